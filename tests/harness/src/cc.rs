//! Small C programs, compiled against the system's `infiniband/verbs.h` and our library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::debian::Programs;
use crate::dist::Dist;
use crate::tree;

/// Compiles `tests/programs/NAME.c`; the program.
pub fn ours(name: &str, dist: &Dist, programs: &Programs) -> Result<PathBuf> {
    let source = tree::root().join("tests/programs").join(name).with_extension("c");
    compile(&source, dist, programs)
}

/// Compiles one C file to `target/xtask/NAME`.
pub fn compile(source: &Path, dist: &Dist, programs: &Programs) -> Result<PathBuf> {
    build(source, programs, |command| {
        command.arg("-L").arg(dist.lib()).arg("-libverbs");
    })
}

/// Compiles `tests/programs/NAME.c` against Debian's libraries, so that it runs on those and on ours; the program.
pub fn debians(name: &str, programs: &Programs) -> Result<PathBuf> {
    let source = tree::root().join("tests/programs").join(name).with_extension("c");
    build(&source, programs, |command| {
        if let Some(root) = &programs.unpacked {
            let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
            command.arg("-L").arg(root.join("usr/lib").join(triplet));
        }
        command.args(["-lrdmacm", "-libverbs"]);
    })
}

fn build(source: &Path, programs: &Programs, libraries: impl Fn(&mut Command)) -> Result<PathBuf> {
    let dir = tree::target().join("xtask");
    std::fs::create_dir_all(&dir)?;
    let program = dir.join(source.file_stem().context("a source without a name")?);
    // Another run of stages may compile or run the same program now.
    let fresh = program.with_extension(std::process::id().to_string());
    let mut command = Command::new("cc");
    command.args(["-O2", "-w", "-pthread", "-o"]).arg(&fresh).arg(source);
    if let Some(root) = &programs.unpacked {
        command.arg("-I").arg(root.join("usr/include"));
    }
    libraries(&mut command);
    let output = command.output().context("cc (Debian: gcc)")?;
    ensure!(output.status.success(), "cc {}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, &program)?;
    Ok(program)
}
