//! Decides whether a program without `--sysfs` or `--no-sysfs` gets the files of its devices: only if it
//! loses no right by that.

use std::fs;
use std::path::Path;

use ferroce_host::environment;

use crate::args::RunArgs;
use crate::program::{self, Kind};

/// Paths in programs that open the files themselves.
const SIGNS: [&[u8]; 2] = [b"/sys/class/infiniband", b"/dev/infiniband"];
/// Set by an outer `ferroce run`: the namespaces and devices of existing files.
pub const GIVEN: &str = "FERROCE_SYSFS";

#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    Give,
    /// No files and no message: it needs none, has them, or would lose a right.
    Leave,
    /// No files, for this reason.
    Refuse(String),
}

pub struct Caller {
    /// The caller may mount without a new user namespace.
    pub mounts: bool,
    /// Programs inherit capabilities from it, which a user namespace would remove.
    pub privileged: bool,
}

impl Caller {
    /// The caller is this process.
    pub fn this() -> Self {
        Self::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Parses `/proc/PID/status`. With uid 0 a program keeps all effective capabilities, otherwise the
    /// ambient ones.
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

/// Decides. `possible` tries to make a user namespace that may mount.
pub fn decide(
    caller: &Caller,
    program: Option<&Path>,
    possible: impl FnOnce() -> Result<(), String>,
) -> Offer {
    if caller.mounts {
        return Offer::Give;
    }
    if caller.privileged || program.is_some_and(|file| program::privilege(file).is_some()) {
        // The program's rights matter more to it than the files.
        return Offer::Leave;
    }
    match possible() {
        Ok(()) => Offer::Give,
        Err(_) if program.is_some_and(needs_no_files) => Offer::Leave,
        Err(why) => Offer::Refuse(why),
    }
}

/// Returns whether the program works without the files: it links the libraries itself, and contains no path
/// of these files. Of others, such as interpreters, this is unknown.
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
    let inherited = environment::text("FERROCE_NETDEV").unwrap_or_default();
    let netdev = args.netdev.clone().unwrap_or(inherited);
    let loopback =
        args.loopback || environment::variable("FERROCE_LOOPBACK").is_some_and(|value| value == "1");
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
