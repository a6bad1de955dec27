//! `ferroce run`: executes the command with ferroce's libraries before the system's.
//!
//! The command replaces this process, so it has its own signals, exit status, process id and job control.

mod auditor;
mod offer;
mod private_net;
mod sysfs;
mod traffic;
mod tree;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use ferroce_host::runtime_dir::{OFlags, RuntimeDir};
use ferroce_host::{environment, limits, output};

use crate::args::RunArgs;
use crate::capture::Capture;
use crate::{broker, plan, program, sweep};

use offer::{Caller, Offer};

pub use sysfs::{is_sysfs_keeper, keep_sysfs};

/// The names by which programs ask for the libraries. The first one must exist; the others are links to it.
pub const LIBRARIES: [&str; 3] = [LIBRARY, "librdmacm.so.1", "libibumad.so.3"];
const LIBRARY: &str = ferroce_audit::LIBRARY;

/// Chooses NCCL's way of communication that a GPU begins. Without it NCCL 2.28.7 and 2.28.9 crash where no
/// card is NVIDIA's: they look for cards that a GPU serves itself, and call what they have not found. With 2,
/// they take a thread of the processor for it, and so does every later version, with or without the variable.
const NCCL_BACKEND: &str = "NCCL_GIN_TYPE";

/// Executes the command; returns only on failure.
pub fn run(args: &RunArgs) -> ExitCode {
    if args.unblock {
        // The set is right, so this succeeds.
        let _ = sweep::ends().thread_unblock();
    }
    match limits::with_children(|| prepare(args)) {
        Err(error) => {
            eprintln!("ferroce: {error:#}");
            ExitCode::FAILURE
        }
        Ok((command, Some(capture))) => limits::with_children(|| capture.run(command)),
        Ok((command, None)) if args.expect_traffic => limits::with_children(|| traffic::expect(command)),
        Ok((mut command, None)) => {
            let error = command.exec();
            eprintln!("ferroce: {}: {error}", command.get_program().to_string_lossy());
            // The exit status is that of env(1) and the shells.
            ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
        }
    }
}

fn prepare(args: &RunArgs) -> Result<(Command, Option<Capture>)> {
    let Some((program, rest)) = args.command.split_first() else { bail!("no command") };
    let (lib, own) = (library_dir()?, distribution()?.join(ferroce_audit::FILE));
    ensure!(own.exists(), "{} is not there", own.display());
    if args.private_net {
        private_net::enter()?;
    }
    let mut command = Command::new(program);
    command.args(rest).env("LD_LIBRARY_PATH", search_path(&lib, environment::variable("LD_LIBRARY_PATH"))?);
    command.env("LD_AUDIT", auditor::auditors(&own, environment::variable("LD_AUDIT"))?);
    let tunables = auditor::tunables(Path::new(program), environment::text("GLIBC_TUNABLES"));
    command.env("GLIBC_TUNABLES", tunables);
    command.env("VALGRIND_OPTS", auditor::valgrind(environment::text("VALGRIND_OPTS")));
    match environment::text(NCCL_BACKEND) {
        Some(own) if own != "2" => _ = command.env_remove(environment::SET_FOR_A_FAULT),
        Some(_) => {}
        None => _ = command.env(NCCL_BACKEND, "2").env(environment::SET_FOR_A_FAULT, NCCL_BACKEND),
    }
    if let Some(netdev) = &args.netdev {
        nix::net::if_::if_nametoindex(netdev.as_str())
            .with_context(|| format!("no network device is called {netdev}; see `ip link`"))?;
        command.env("FERROCE_NETDEV", netdev);
    }
    if args.loopback {
        command.env("FERROCE_LOOPBACK", "1");
    }
    if !args.check.is_empty() {
        command.env("FERROCE_CHECK", args.check.join(","));
    }
    let mut rules = args.fault.clone();
    if args.explore.is_some() || args.capture.is_some() {
        let own = environment::text(plan::VARIABLE).filter(|_| rules.is_empty() && args.fault_file.is_none());
        rules.extend(own);
    }
    if let Some(seed) = args.explore {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = seed.unwrap_or(u64::from(now.subsec_micros()));
        output::say(format_args!("--explore={seed} repeats this run"));
        rules.push(ferroce_fault::exploration(seed));
    }
    let begin = |file: &PathBuf| Capture::begin(file, args.capture_filter.as_deref(), args.capture_ring);
    let capture = args.capture.as_ref().map(begin).transpose()?;
    if let Some(capture) = &capture {
        // Behind the others: the place of a rule decides what it draws.
        rules.push(capture.rules.clone());
    }
    if let Some(plan) = plan::text(args.fault_file.as_deref(), &rules)? {
        command.env(plan::VARIABLE, plan);
    }
    broker::ensure()?;
    if files(args, Path::new(program))? {
        command.env(offer::GIVEN, offer::given(args));
        command.env("PATH", first_in_path(Path::new(sysfs::COMMANDS), environment::variable("PATH"))?);
    }
    Ok((command, capture))
}

/// Gives the program the files of its devices if it needs them; returns whether it did.
fn files(args: &RunArgs, program: &Path) -> Result<bool> {
    if args.sysfs {
        return sysfs::enter(args).context("--sysfs is not possible here").map(|()| true);
    }
    // With a broker of the program's own, the devices are unknown before it starts.
    let own = matches!(environment::text("FERROCE_BROKER").as_deref(), Some("embedded" | "none"));
    if args.no_sysfs
        || own
        || environment::text(offer::GIVEN).is_some_and(|given| given == offer::given(args))
    {
        return Ok(false);
    }
    let file = program::find(program);
    let refused = match offer::decide(&Caller::this(), file.as_deref(), || sysfs::probe(args)) {
        Offer::Leave => return Ok(false),
        Offer::Refuse(why) => why,
        Offer::Give => match sysfs::enter(args) {
            Ok(()) => return Ok(true),
            Err(error) => format!("{error:#}"),
        },
    };
    if !args.quiet && is_news(&refused) {
        // The program's start must not wait for a reader of its errors.
        output::say(format_args!(
            "no files in /sys/class/infiniband and /dev/infiniband, which UCX and Mooncake need: {refused} (said once)"
        ));
    }
    Ok(false)
}

/// Whether this user was not told so yet: a file beside the broker's log has the last sentence.
fn is_news(sentence: &str) -> bool {
    let Ok(folder) = RuntimeDir::open() else { return true };
    let said = folder.file("said", OFlags::RDONLY).and_then(std::io::read_to_string);
    let old = said.is_ok_and(|said| said == sentence);
    if !old {
        // A user who cannot write the file is told again at the next run.
        let file = folder.file("said", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC);
        let _ = file.and_then(|mut file| output::without_signals(|| file.write_all(sentence.as_bytes())));
    }
    !old
}

/// `lib/` beside the `bin/` of this program.
fn distribution() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("/proc/self/exe")?;
    let lib = exe.parent().and_then(Path::parent).map(|root| root.join("lib")).unwrap_or_default();
    ensure!(
        lib.join(LIBRARY).exists(),
        "{} is not there; run ferroce from its distribution (`cargo xtask dist` makes target/dist)",
        lib.join(LIBRARY).display()
    );
    Ok(lib)
}

/// The folder of the libraries: that of the distribution; or one of links to its library, if it has no other
/// names, as in a wheel, which cannot have links.
pub fn library_dir() -> Result<PathBuf> {
    let lib = distribution()?;
    if LIBRARIES.iter().all(|name| lib.join(name).exists()) { Ok(lib) } else { links_to(&lib.join(LIBRARY)) }
}

/// A folder beside the broker's log where a library has all its names.
fn links_to(library: &Path) -> Result<PathBuf> {
    let is = library.metadata()?;
    let folder = RuntimeDir::open()?.within(&format!("lib-{:x}-{:x}", is.dev(), is.ino()))?;
    for name in LIBRARIES {
        let link = folder.held_path().join(name);
        if fs::read_link(&link).is_ok_and(|target| target == library) {
            continue;
        }
        // Several processes may do it at once, and make the same link.
        let _ = fs::remove_file(&link);
        match symlink(library, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| folder.path().join(name).display().to_string());
            }
            _ => {}
        }
    }
    Ok(folder.path().to_owned())
}

/// Puts our folder before the existing ones.
fn search_path(lib: &Path, before: Option<OsString>) -> Result<OsString> {
    let before = before.unwrap_or_default();
    let rest = std::env::split_paths(&before).filter(|p| p != lib && !p.as_os_str().is_empty());
    let paths = std::iter::once(lib.to_owned()).chain(rest);
    // The loader would split a name at a colon or semicolon.
    std::env::join_paths(paths).with_context(|| format!("{} cannot be searched", lib.display()))
}

/// Puts a folder before those of PATH.
fn first_in_path(folder: &Path, before: Option<OsString>) -> Result<OsString> {
    let before = before.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let rest = std::env::split_paths(&before).filter(|path| path != folder);
    Ok(std::env::join_paths(std::iter::once(folder.to_owned()).chain(rest))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_libraries_come_first_and_once() {
        let lib = Path::new("/opt/ferroce/lib");
        let path = |before: &str| search_path(lib, Some(before.into())).map(|p| p.into_string());
        for (before, want) in [
            ("", "/opt/ferroce/lib"),
            ("/a:/b", "/opt/ferroce/lib:/a:/b"),
            ("/a:/opt/ferroce/lib", "/opt/ferroce/lib:/a"),
        ] {
            assert!(matches!(path(before), Ok(Ok(got)) if got == want), "{before}");
        }
        assert!(search_path(Path::new("/with:colon/lib"), None).is_err());
    }

    /// A wheel that is installed anew at the same place may have the number of the old file, or another one.
    #[test]
    fn a_library_without_other_names_has_them_in_a_folder_of_links() {
        let lib = std::env::temp_dir().join(format!("ferroce-wheel-{}", std::process::id()));
        fs::create_dir(&lib).unwrap();
        let (first, second) = (lib.join(LIBRARY), lib.join("second"));
        fs::write(&first, "library").unwrap();
        let links = links_to(&first).unwrap();
        assert_eq!(links_to(&first).unwrap(), links);
        fs::hard_link(&first, &second).unwrap();
        assert_eq!(links_to(&second).unwrap(), links);
        for name in LIBRARIES {
            assert_eq!(fs::read_link(links.join(name)).unwrap(), second);
        }
        fs::remove_dir_all(&lib).unwrap();
        fs::remove_dir_all(&links).unwrap();
    }

    #[test]
    fn the_folder_of_commands_comes_before_path_and_once() {
        let path = |before: &str| first_in_path(Path::new("/dev/ferroce"), Some(before.into())).unwrap();
        assert_eq!(path("/usr/bin:/bin"), "/dev/ferroce:/usr/bin:/bin");
        assert_eq!(path("/dev/ferroce:/bin"), "/dev/ferroce:/bin");
    }
}
