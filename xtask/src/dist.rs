//! `cargo xtask dist`: what a user installs, below `target/dist`.
//!
//! `lib/` holds one library file and the links under which programs ask for it: glibc maps one inode once,
//! so a process that loads libibverbs and librdmacm still has one engine.

mod dpdk;
mod system;

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::rustflags;
use ferroce_harness::dist::{AUDITOR, DPDK, Dist, LIBRARY};
use ferroce_harness::tree;

/// The other names of it. There are none for linking (`librdmacm.so`): the file has one SONAME, so a program
/// that is linked with it asks for `libibverbs.so.1` alone, and does not start on rdma-core. Programs are
/// linked with rdma-core's libraries, and run on either.
const LINKS: [&str; 2] = ["librdmacm.so.1", "libibumad.so.3"];
/// The names under which `ferroce` does what the scripts for RoCE cards do.
const SCRIPTS: [&str; 2] = ["show_gids", "ibdev2netdev"];

/// Builds the release and fills `target/dist`.
pub fn build() -> Result<Dist> {
    build_in(&tree::target(), &[])
}

/// Builds the release below `target`, with further flags for rustc, and fills the folder `dist` there.
pub fn build_in(target: &Path, flags: &[String]) -> Result<Dist> {
    let made = cargo_build(target, flags)?;
    let library = made.get("cdylib").context("ferroce-dropin made no cdylib")?;
    let fresh = target.join(format!("dist.{}", std::process::id()));
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh)?;
    }
    let (lib, bin) = (fresh.join("lib"), fresh.join("bin"));
    std::fs::create_dir_all(&lib)?;
    std::fs::create_dir_all(&bin)?;
    install(library, &lib.join(LIBRARY))?;
    for name in LINKS {
        symlink(LIBRARY, lib.join(name))?;
    }
    system::fill(&lib)?;
    install(&auditor(target, flags)?, &lib.join(AUDITOR))?;
    if flags.is_empty()
        && let Some(why) = dpdk::fill(&lib)?
    {
        eprintln!("xtask: the distribution has no {}, which only links on devices of DPDK need: {why}", DPDK);
    }
    for name in ["ferroce", "ferroced"] {
        let program = made.get(name).with_context(|| format!("no program {name} was built"))?;
        install(program, &bin.join(name))?;
    }
    for name in SCRIPTS {
        symlink("ferroce", bin.join(name))?;
    }
    ferroce_packaging::manual::write(&fresh.join("share"))?;
    let suppressions = Dist::at(&fresh).suppressions();
    std::fs::create_dir_all(suppressions.parent().context("a path without a folder")?)?;
    std::fs::copy(tree::root().join("docs/valgrind.supp"), suppressions)?;
    std::fs::copy(tree::root().join("docs/tsan.supp"), Dist::at(&fresh).thread_suppressions())?;
    std::fs::copy(tree::root().join("packaging/grafana.json"), fresh.join("share/ferroce/grafana.json"))?;
    // The folder is replaced as a whole: a program that runs from the old one keeps its files.
    let root = target.join("dist");
    if root.exists() {
        std::fs::remove_dir_all(&root)?;
    }
    std::fs::rename(&fresh, &root)?;
    Ok(Dist { root })
}

/// Builds the Rust programs that are tested but not installed: `ferroce`'s examples. The whole workspace is
/// named, because dependencies then have the features that they have in the stage `unit`, and are not built
/// again.
pub fn examples() -> Result<()> {
    let output = tree::cargo().args(["build", "--quiet", "--workspace", "--examples"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Builds the library as the tests of `ferroce-dropin` use it, with the features of the stage `unit`; its
/// file.
pub fn development_library() -> Result<PathBuf> {
    let args = ["build", "--quiet", "--workspace", "--lib", "--examples"];
    let output = tree::cargo().args(args).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(tree::target().join("debug/libibverbs.so"))
}

fn install(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Builds the auditor of the loader below `target`; its file.
///
/// # Errors
/// The build fails.
pub fn auditor(target: &Path, flags: &[String]) -> Result<PathBuf> {
    let mut command = tree::cargo();
    command.args(["rustc", "--quiet", "--release", "-p", "ferroce-audit", "--crate-type", "cdylib"]);
    command.arg("--target-dir").arg(target).env("CARGO_ENCODED_RUSTFLAGS", rustflags::encoded(flags)?);
    let status = command.args(["--", "-Cpanic=abort"]).status()?;
    ensure!(status.success(), "cargo rustc -p ferroce-audit failed");
    Ok(target.join("release/libferroce_audit.so"))
}

/// The command that builds the release below `target`.
fn release(target: &Path, flags: &[String]) -> Result<Command> {
    let mut command = tree::cargo();
    command
        .args(["build", "--release", "--message-format=json-render-diagnostics"])
        .args(["-p", "ferroce-dropin", "-p", "ferroce-cli", "-p", "ferroce-broker", "--target-dir"])
        .arg(target)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags::encoded(flags)?);
    Ok(command)
}

/// Compiles the release and says nothing, for a later [`build`] that finds everything compiled.
pub fn compile_quietly() -> Result<()> {
    release(&tree::target(), &[])?.output()?;
    Ok(())
}

/// Builds, and returns what cargo says it made: programs by name, the library as `cdylib`.
fn cargo_build(target: &Path, flags: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let output = release(target, flags)?.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo build --release failed");
    let mut made = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: Value = serde_json::from_str(line)?;
        if let Some(program) = message.get("executable").and_then(Value::as_str) {
            let path = PathBuf::from(program);
            let Some(name) = path.file_name() else { bail!("a program without a name: {program}") };
            made.insert(name.to_string_lossy().into_owned(), path);
        }
        let kinds = message.pointer("/target/kind").and_then(Value::as_array);
        if kinds.is_some_and(|kinds| kinds.iter().any(|k| k == "cdylib")) {
            let files = message.get("filenames").and_then(Value::as_array).into_iter().flatten();
            let library = files.filter_map(Value::as_str).find(|f| f.ends_with(".so"));
            made.extend(library.map(|f| ("cdylib".to_owned(), PathBuf::from(f))));
        }
    }
    Ok(made)
}
