//! Builds the library once for each test binary and installs its names as links.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A library built with AddressSanitizer for these tests; `just sanitizer` sets it.
pub fn sanitized() -> Option<PathBuf> {
    std::env::var_os("FERROCE_SANITIZED_LIBRARY").map(PathBuf::from)
}

/// The library file. Cargo does not build a cdylib for its own package's tests, so this runs cargo.
pub fn library() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        if let Some(file) = sanitized() {
            return file;
        }
        // `cargo xtask test` has built it.
        if let Some(file) = std::env::var_os("FERROCE_TEST_LIBRARY") {
            return PathBuf::from(file);
        }
        built("build --package ferroce-dropin --message-format=json", "/libibverbs.so")
    })
}

/// The auditor that `ferroce run` names in `LD_AUDIT`, built as for a release: it needs a build of its own.
pub fn auditor() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        if let Some(file) = std::env::var_os("FERROCE_TEST_AUDITOR") {
            return PathBuf::from(file);
        }
        let words = "rustc --release --package ferroce-audit --crate-type cdylib --message-format=json -- -Cpanic=abort";
        built(words, "/libferroce_audit.so")
    })
}

/// The file that cargo, with these arguments, says to have built, whose path ends like this.
fn built(words: &str, end: &str) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(words.split(' ')).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.env("CARGO_TERM_QUIET", "true").output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let at = messages.find(&format!("{end}\"")).expect("cargo names the library") + end.len();
    let start = messages[..at].rfind('"').expect("a JSON string") + 1;
    PathBuf::from(&messages[start..at])
}

/// A directory with the names that programs load, as links to the one file.
pub fn library_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    // Once in a process, because its tests run in parallel.
    DIR.get_or_init(|| {
        let name = if sanitized().is_some() { "names-sanitized" } else { "names" };
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).expect("target is writable");
        for name in ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"] {
            let link = dir.join(name);
            if std::fs::read_link(&link).ok().as_deref() != Some(library()) {
                let fresh = dir.join(format!("{name}.{}", std::process::id()));
                std::os::unix::fs::symlink(library(), &fresh).expect("links can be made");
                std::fs::rename(&fresh, &link).expect("links can be replaced");
            }
        }
        dir
    })
    .clone()
}

/// Returns the `unshare` command that makes a network namespace for this user, or the reason why none can be made.
pub fn namespace() -> Result<Vec<&'static str>, String> {
    static FORM: OnceLock<Option<Vec<&'static str>>> = OnceLock::new();
    let form = FORM.get_or_init(|| {
        let forms = [vec!["unshare", "--net", "--"], vec!["unshare", "--map-root-user", "--net", "--"]];
        forms.into_iter().find(|form| {
            let tried = Command::new(form[0]).args(&form[1..]).arg("true").stderr(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        })
    });
    form.clone().ok_or_else(|| "no network namespace can be made here".to_owned())
}
