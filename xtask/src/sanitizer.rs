//! The library built with AddressSanitizer, under the C programs of its tests, which are built with it as well.
//!
//! The compiler's part of it (`-Zsanitizer`) needs a nightly toolchain, which is used where it is installed. The run-time
//! library is the C compiler's: a program brings it, and the library finds it there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::source;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Builds the library and runs the C programs; skipped where a compiler is missing.
pub fn check(checks: &mut Checks) -> Result<()> {
    if let Some(missing) = missing()? {
        checks.skip("C programs", &missing);
        return Ok(());
    }
    let library = build()?;
    let mut command = tree::cargo();
    // The only test of this name; with one package, its dependencies would have other features than in the stage `unit`.
    command.args(["test", "--workspace", "--test", "c_programs", "--no-fail-fast"]);
    command.env("FERROCE_SANITIZED_LIBRARY", library).env("FERROCE_C_PROGRAMS", "required");
    source::tests(checks, "sanitizer", command)
}

/// A sentence on the first thing that is not here.
fn missing() -> Result<Option<String>> {
    let works = |mut command: Command| {
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !works(nightly(&["--version"])) {
        return Ok(Some("no nightly toolchain is installed (rustup toolchain install nightly)".to_owned()));
    }
    let dir = tree::target().join("xtask");
    std::fs::create_dir_all(&dir)?;
    let source = dir.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n")?;
    let mut cc = Command::new("cc");
    cc.arg("-fsanitize=address").arg("-o").arg(dir.join("empty")).arg(source);
    Ok((!works(cc))
        .then(|| "the C compiler has no AddressSanitizer (Debian: gcc brings libasan8)".to_owned()))
}

/// The nightly cargo, which never installs a toolchain by itself and knows nothing of the cargo that runs us.
pub fn nightly(args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    let outer = |name: &OsStr| {
        let name = name.to_string_lossy();
        let ours = name.starts_with("CARGO") && !["CARGO_HOME", "CARGO_NET_OFFLINE"].contains(&&*name);
        ours || name.starts_with("RUST")
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| outer(name) && name != "RUSTUP_HOME") {
        command.env_remove(name);
    }
    command
        .args(["run", "nightly", "cargo"])
        .args(args)
        .current_dir(tree::root())
        .env("RUSTUP_AUTO_INSTALL", "0");
    command
}

/// The development build, whose assertions are checked too; the library's file.
fn build() -> Result<PathBuf> {
    let host = host()?;
    let target = tree::target().join("sanitizer");
    let mut command = nightly(&["build", "--quiet", "--package", "ferroce-dropin", "--target"]);
    command.arg(&host).arg("--target-dir").arg(&target).env("RUSTFLAGS", "-Zsanitizer=address");
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(Path::new(&target).join(host).join("debug/libibverbs.so"))
}

/// The triple of the machine. With it, build scripts are built without the sanitizer.
pub fn host() -> Result<String> {
    let mut command = Command::new("rustc");
    let output = command.arg("-vV").output().context("rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV does not name the host")
}
