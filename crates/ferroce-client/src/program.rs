//! The search for the program `ferroced`, and the check whether it may be executed.
//!
//! The library starts it from within any program, root's as well. A file that another user can create or
//! replace would run with that program's rights, so every file found is checked against [`Files`].

use std::path::{Path, PathBuf};

use ferroce_ipc::trust::{Files, Untrusted};
use tracing::warn;

use ferroce_host::{environment, process};

/// Paths at which distributions and administrators install `ferroced`. For a program that runs with more
/// rights than its caller nothing else is looked at.
const INSTALLED: [&str; 4] =
    ["/usr/bin/ferroced", "/usr/sbin/ferroced", "/usr/local/bin/ferroced", "/usr/local/sbin/ferroced"];

/// The program `ferroced`: what `FERROCE_DAEMON` names, and nothing else if it names something; otherwise the
/// one beside our own code, in `PATH`, or where it is usually installed.
pub(super) fn find() -> Option<PathBuf> {
    let installed = || INSTALLED.map(PathBuf::from).into_iter().find(|path| path.is_file());
    if process::is_privileged_program() {
        return installed();
    }
    let own = process::own_file().and_then(|file| file.canonicalize().ok());
    let files = Files::new(own.as_deref());
    if let Some(path) = environment::variable("FERROCE_DAEMON") {
        return trusted(&files, &PathBuf::from(path), None);
    }
    let beside = own.iter().flat_map(|file| beside(file));
    let in_path = environment::variable("PATH").unwrap_or_default();
    let in_path: Vec<PathBuf> = std::env::split_paths(&in_path).map(|dir| dir.join("ferroced")).collect();
    beside
        .map(|(path, shared)| (path, Some(shared)))
        .chain(in_path.into_iter().map(|path| (path, None)))
        .find_map(|(path, shared)| trusted(&files, &path, shared))
        .or_else(installed)
}

/// The program at `path`; `None` if it does not exist or strangers may change it.
fn trusted(files: &Files, path: &Path, shared: Option<&Path>) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    match files.program(path, shared) {
        Ok(program) => Some(program),
        Err(Untrusted::Missing(_) | Untrusted::NoProgram) => None,
        Err(why) => {
            warn!("{} is not executed: {why}", path.display());
            None
        }
    }
}

/// Paths at which `ferroced` may lie as seen from the file of our own code, each with the folder that leads
/// to both: `bin` beside the folder of an installed library (`lib`), or one above (`lib/x86_64-linux-gnu`);
/// the same folder for an installed program; the one above for tests and examples of cargo.
fn beside(file: &Path) -> Vec<(PathBuf, &Path)> {
    let mut folders = file.ancestors().skip(1);
    let (folder, above, top) = (folders.next(), folders.next(), folders.next());
    let places = [(above, "bin/ferroced"), (folder, "ferroced"), (above, "ferroced"), (top, "bin/ferroced")];
    places.into_iter().filter_map(|(shared, name)| Some((shared?.join(name), shared?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_looked_for_beside_our_own_code() {
        let found =
            |file| -> Vec<PathBuf> { beside(Path::new(file)).into_iter().map(|(path, _)| path).collect() };
        let want = [
            "/opt/ferroce/bin/ferroced",
            "/opt/ferroce/lib/ferroced",
            "/opt/ferroce/ferroced",
            "/opt/bin/ferroced",
        ];
        assert_eq!(found("/opt/ferroce/lib/libferroce.so"), want.map(PathBuf::from));
        let multiarch = found("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
        assert!(multiarch.contains(&PathBuf::from("/usr/bin/ferroced")), "{multiarch:?}");
        assert_eq!(found("/prog"), ["/ferroced"].map(PathBuf::from));
        for (path, shared) in beside(Path::new("/a/b/c/d/libibverbs.so.1")) {
            assert!(path.starts_with(shared) && Path::new("/a/b/c/d/libibverbs.so.1").starts_with(shared));
        }
    }

    /// A program in a folder below `/tmp`, beside which anybody may put files.
    #[test]
    fn what_a_stranger_put_beside_a_program_is_not_found() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let top = std::env::temp_dir().join(format!("ferroce-beside-{}", std::process::id()));
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
        };
        for folder in ["", "build", "bin"] {
            std::fs::create_dir(top.join(folder)).unwrap();
            mode(&top.join(folder), 0o755);
        }
        let program = top.join("build/program");
        std::fs::write(&program, "").unwrap();
        let daemon = top.join("bin/ferroced");
        std::fs::write(&daemon, "").unwrap();
        mode(&daemon, 0o755);
        let files = Files::new(Some(&program));
        let found =
            || beside(&program).into_iter().find_map(|(path, shared)| trusted(&files, &path, Some(shared)));
        assert_eq!(found(), daemon.canonicalize().ok());
        mode(&top, 0o777);
        assert_eq!(found(), None, "anybody may replace the folder");
        mode(&top, 0o1777);
        assert!(found().is_some(), "nobody else may");
        if nix::unistd::geteuid().is_root() {
            chown(top.join("bin"), Some(1234), None).unwrap();
            assert_eq!(found(), None, "a stranger's folder");
            chown(top.join("bin"), Some(0), None).unwrap();
            chown(&daemon, Some(1234), None).unwrap();
            assert_eq!(found(), None, "a stranger's file");
        } else {
            println!("skipped files of others: needs root");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }
}
