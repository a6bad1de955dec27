//! Published Rust crates that use libibverbs: their tests, built as their authors packed them.
//!
//! A version is fixed, and the crate's own `Cargo.lock` fixes what it needs. Nothing of it is kept here.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use ferroce_harness::debian::{Program, Programs};
use ferroce_harness::tree;

/// One crate.
pub struct Foreign {
    /// Its name on crates.io.
    pub name: &'static str,
    /// The exact version.
    pub version: &'static str,
    /// Tests that are left out: the front of their names, and why.
    pub without: &'static [(&'static str, &'static str)],
    /// Whole test programs that are left out, and why.
    pub without_programs: &'static [(&'static str, &'static str)],
    /// How many tests there are then; fewer mean that something kept them from being run.
    pub tests: u32,
}

/// The crates whose tests are run.
pub const ALL: &[Foreign] = &[Foreign {
    name: "sideway",
    version: "0.4.3",
    without: &[(
        "ibverbs::device_context::tests::test_query_gid_table_fallback",
        "reads the kernel's /sys/class/infiniband, where a device in user space is not",
    )],
    without_programs: &[("compiletest", "compares the compiler's messages and calls no verb")],
    tests: 67,
}];

/// The programs that building them needs besides a compiler.
const TOOLS: &[Program] = &[
    Program { name: "cmake", package: "cmake" },
    Program { name: "/usr/lib/llvm-14/lib/libclang.so.1", package: "libclang-dev" },
];

impl Foreign {
    /// Where its test programs are, once built.
    pub fn programs(&self) -> PathBuf {
        tree::target().join("xtask/crates").join(format!("{}-{}.tests", self.name, self.version))
    }

    /// Fetches it from crates.io and builds its tests; if it or a tool is not to be had here, says why.
    pub fn build(&self) -> Result<Option<String>> {
        let base = tree::target().join("xtask/crates");
        let programs = self.programs();
        if programs.exists() {
            std::fs::remove_dir_all(&programs)?;
        }
        let fetched = Programs::ensure(&[TOOLS]).and_then(|_| self.fetch(&base.join("fetch")));
        let cached = match fetched {
            Ok(cached) => cached,
            Err(why) => return Ok(Some(format!("{why:#}"))),
        };
        let source = base.join(format!("{}-{}", self.name, self.version));
        if source.exists() {
            std::fs::remove_dir_all(&source)?;
        }
        copy(&cached, &source)?;
        // Else cargo takes it for a part of this workspace.
        let manifest = source.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest)?;
        std::fs::write(&manifest, text + "\n[workspace]\n")?;
        let mut build = cargo(&source);
        build.args(["test", "--locked", "--no-run", "--lib", "--tests"]);
        build.args(["--message-format", "json-render-diagnostics", "--target-dir"]).arg(base.join("build"));
        let output = build.stderr(Stdio::piped()).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "its tests do not build: {}", last_lines(&errors));
        std::fs::create_dir_all(&programs)?;
        for line in String::from_utf8(output.stdout)?.lines() {
            let message: Value = serde_json::from_str(line)?;
            let name = message.pointer("/target/name").and_then(Value::as_str);
            let Some(name) = name else { continue };
            let kept = self.without_programs.iter().all(|(other, _)| *other != name);
            if let Some(program) = message.get("executable").and_then(Value::as_str).filter(|_| kept) {
                std::fs::copy(program, programs.join(name))?;
            }
        }
        Ok(None)
    }

    /// Has cargo fetch it; its sources in the registry's cache.
    fn fetch(&self, dir: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(dir.join("src"))?;
        std::fs::write(dir.join("src/lib.rs"), "")?;
        let manifest = format!(
            "[package]\nname = \"fetch\"\nedition = \"2021\"\n\n[dependencies]\n{} = \"={}\"\n\n[workspace]\n",
            self.name, self.version
        );
        std::fs::write(dir.join("Cargo.toml"), manifest)?;
        let output = cargo(dir).args(["metadata", "--format-version", "1"]).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo cannot fetch it: {}", last_lines(&errors));
        let all: Value = serde_json::from_slice(&output.stdout)?;
        let packages = all.get("packages").and_then(Value::as_array).into_iter().flatten();
        let mut ours = packages.filter(|p| p.get("name").and_then(Value::as_str) == Some(self.name));
        let manifest = ours.next().and_then(|p| p.get("manifest_path")).and_then(Value::as_str);
        let Some(dir) = manifest.and_then(|m| Path::new(m).parent()) else {
            bail!("cargo metadata does not know it")
        };
        Ok(dir.to_owned())
    }
}

/// A cargo that knows nothing of the one that runs us but its place.
fn cargo(dir: &Path) -> Command {
    let mut command = tree::cargo();
    command.current_dir(dir);
    let outer = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_") && name != "CARGO_HOME" || name == "RUSTFLAGS"
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| outer(name)) {
        command.env_remove(name);
    }
    command
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
