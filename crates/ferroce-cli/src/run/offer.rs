//! Whether a program is given the files of its devices when nobody said so: where that takes nothing away from it.

use std::fs;
use std::path::Path;

use crate::args::RunArgs;
use crate::program::{self, Kind};

/// Strings in programs that open the files by themselves.
const SIGNS: [&[u8]; 2] = [b"/sys/class/infiniband", b"/dev/infiniband"];
/// Names the namespaces and devices whose files are there already: of a `ferroce run` within another one.
pub const GIVEN: &str = "FERROCE_SYSFS";

/// The decision for a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// Give it the files.
    Give,
    /// It needs none, or has them, or they would cost it a right. Nothing is said.
    Leave,
    /// It gets none, for this reason.
    Refuse(String),
}

/// The facts about the caller.
pub struct Caller {
    /// It may mount without a user namespace of its own.
    pub mounts: bool,
    /// Its capabilities that a program inherits: what a user namespace would take from it.
    pub privileged: bool,
}

impl Caller {
    /// This process.
    pub fn this() -> Self {
        Self::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// By `/proc/PID/status`. For uid 0 a program keeps all of the effective capabilities, for others the ambient ones.
    fn of(status: &str) -> Self {
        const SYS_ADMIN: u32 = 21;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let set =
            |name: &str| field(name).first().and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
        let root = field("Uid:").get(1).is_some_and(|uid| uid == "0");
        let kept = if root { set("CapEff:") } else { set("CapAmb:") };
        Self { mounts: set("CapEff:") >> SYS_ADMIN & 1 == 1, privileged: kept != 0 }
    }
}

/// Decides. `possible` tries whether a user namespace can be made that may mount.
pub fn decide(
    caller: &Caller,
    program: Option<&Path>,
    possible: impl FnOnce() -> Result<(), String>,
) -> Offer {
    if caller.mounts {
        return Offer::Give;
    }
    if caller.privileged || program.is_some_and(|file| program::privilege(file).is_some()) {
        // These rights are worth more to it than the files.
        return Offer::Leave;
    }
    match possible() {
        Ok(()) => Offer::Give,
        Err(_) if program.is_some_and(needs_no_files) => Offer::Leave,
        Err(why) => Offer::Refuse(why),
    }
}

/// Whether it is of no interest to a program that there are no files: it calls the libraries itself, and has no path of
/// these files in its own. Of others, as interpreters, nothing can be known.
fn needs_no_files(program: &Path) -> bool {
    let bytes = fs::read(program).unwrap_or_default();
    let Kind::Elf(elf) = Kind::of(&bytes) else { return false };
    let names = |sign: &&[u8]| bytes.windows(sign.len()).any(|window| window == *sign);
    elf.needed.iter().any(|name| program::is_ours(name)) && !SIGNS.iter().any(names)
}

/// The value of [`GIVEN`] for this process and these arguments.
pub fn given(args: &RunArgs) -> String {
    let namespace = |name: &str| {
        let link = fs::read_link(Path::new("/proc/self/ns").join(name)).unwrap_or_default();
        link.to_string_lossy().into_owned()
    };
    let inherited = std::env::var("FERROCE_NETDEV").unwrap_or_default();
    let netdev = args.netdev.clone().unwrap_or(inherited);
    let loopback = args.loopback || std::env::var("FERROCE_LOOPBACK").is_ok_and(|value| value == "1");
    format!("{} {} {netdev} {}", namespace("mnt"), namespace("net"), u8::from(loopback))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_would_lose() {
        let of = |uid: u32, effective: &str, ambient: &str| {
            let status = format!(
                "Name:\tsh\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{effective}\nCapAmb:\t{ambient}\n"
            );
            let caller = Caller::of(&status);
            (caller.mounts, caller.privileged)
        };
        assert_eq!(of(0, "000001ffffffffff", "0000000000000000"), (true, true), "root");
        assert_eq!(of(0, "00000000a80425fb", "0000000000000000"), (false, true), "root of a container");
        assert_eq!(of(1000, "0000000000000000", "0000000000000000"), (false, false), "a user");
        assert_eq!(
            of(1000, "0000000000002000", "0000000000002000"),
            (false, true),
            "a user with CAP_NET_RAW"
        );
        assert_eq!(of(0, "0000000000000000", "0000000000000000"), (false, false), "root without anything");
        let nothing = Caller::of("");
        assert!(!nothing.mounts && !nothing.privileged);
    }

    #[test]
    fn who_is_given_files() {
        let caller = |mounts, privileged| Caller { mounts, privileged };
        let (yes, no) = (|| Ok(()), || Err("no namespaces".to_owned()));
        let refused = Offer::Refuse("no namespaces".to_owned());
        let unasked = || panic!("nothing need be tried");
        let own = std::env::current_exe().unwrap();
        assert_eq!(decide(&caller(true, true), None, unasked), Offer::Give);
        assert_eq!(decide(&caller(false, true), None, unasked), Offer::Leave);
        assert_eq!(decide(&caller(false, false), Some(&own), yes), Offer::Give);
        assert_eq!(decide(&caller(false, false), None, no), refused);
        assert_eq!(decide(&caller(false, false), Some(&own), no), refused, "it may load anything");
    }
}
