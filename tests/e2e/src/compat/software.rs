//! The programs of the page, where they come from, and how they are made ready before the network namespace is entered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use ferroce_harness::debian::{Program, Programs};
use ferroce_harness::tree;

/// One program, or several of one package.
pub struct Software {
    /// The name on the command line and on the page.
    pub name: &'static str,
    /// Debian's programs that the runs need. The page shows the version of the first one's package, if nothing comes from
    /// PyPI.
    pub debian: &'static [Program],
    /// Wheels of PyPI with exact versions (`name==version`), installed without what they depend on. The page shows the
    /// version of the first.
    pub wheels: &'static [&'static str],
    /// C and C++ programs of ours that are compiled with its headers.
    pub builds: &'static [Build],
}

/// A program of `tests/programs/compat` in C or C++.
pub struct Build {
    /// The name of the program.
    pub program: &'static str,
    /// The source file.
    pub source: &'static str,
    /// The compiler.
    pub compiler: &'static str,
    /// Further words of its command line.
    pub words: &'static str,
}

/// The Python of Debian, which user nobody can execute; the wheels are those for it.
pub const PYTHON: &str = "/usr/bin/python3";

/// Why each program that could not be made ready could not, by its name.
pub type Missing = BTreeMap<String, String>;

impl Software {
    /// Where its wheels (`wheels`) and compiled programs (`bin`) are.
    pub fn folder(&self) -> PathBuf {
        tree::target().join("xtask/compat").join(self.name)
    }

    /// The version for the page.
    pub fn version(&self) -> String {
        if let Some(first) = self.wheels.first() {
            return first.split_once("==").map_or(*first, |(_, version)| version).to_owned();
        }
        let package = self.debian.first().map_or("", |program| program.package);
        let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
        let version = output.ok().filter(|output| output.status.success());
        version.map_or_else(|| "–".to_owned(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
    }

    /// Installs Debian's packages and the wheels, and compiles.
    fn prepare(&self) -> Result<()> {
        Programs::ensure(&[self.debian])?;
        // Unpacked packages are not enough: MPI and libfabric look for their files where the package puts them.
        for Program { name, package } in self.debian {
            let installed = Programs::default().find(name).is_some();
            ensure!(installed, "Debian's package {package} is not installed: run this as root once");
        }
        let folder = self.folder();
        if !self.wheels.is_empty() {
            self.install(&folder.join("wheels"))?;
        }
        for build in self.builds {
            build.compile(&folder.join("bin"))?;
        }
        Ok(())
    }

    /// Installs the wheels to `folder`, unless they are there.
    fn install(&self, folder: &Path) -> Result<()> {
        let (mark, wanted) = (folder.join(".wheels"), self.wheels.join("\n"));
        if std::fs::read_to_string(&mark).is_ok_and(|there| there == wanted) {
            return Ok(());
        }
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
        let mut pip = Command::new(PYTHON);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
        ]);
        // Nothing of a wheel is executed by an installation.
        pip.args(["--no-deps", "--only-binary=:all:", "--target"]).arg(folder).args(self.wheels);
        let output = pip.stdin(Stdio::null()).output().context("pip (Debian: python3-pip)")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let why = errors.lines().rfind(|line| line.contains("ERROR")).unwrap_or("no reason given");
        ensure!(output.status.success(), "pip cannot install it: {why}");
        Ok(std::fs::write(mark, wanted)?)
    }
}

impl Build {
    fn compile(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let source = sources().join(self.source);
        let mut command = Command::new(self.compiler);
        command.args(["-O2", "-Wall", "-o"]).arg(folder.join(self.program)).arg(&source);
        let output = command.args(self.words.split_whitespace()).output();
        let output = output.with_context(|| self.compiler.to_owned())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} {}: {errors}", self.compiler, source.display());
        Ok(())
    }
}

/// The folder of our programs and scripts.
pub fn sources() -> PathBuf {
    tree::root().join("tests/programs/compat")
}

/// Makes each program ready. The reasons of the others are for the page.
pub fn prepare<'a>(all: impl Iterator<Item = &'a Software>) -> Missing {
    let mut missing = Missing::new();
    for software in all {
        if let Err(why) = software.prepare() {
            eprintln!("{}: {why:#}", software.name);
            let first = format!("{why:#}").lines().next().unwrap_or_default().replace('|', "/");
            missing.insert(software.name.to_owned(), first);
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Software = Software {
        name: "nowhere",
        debian: &[],
        wheels: &[],
        builds: &[Build { program: "x", source: "mpi.c", compiler: "no-such-compiler", words: "" }],
    };

    #[test]
    fn a_program_that_cannot_be_made_ready_has_a_reason() {
        let missing = prepare([&NOWHERE].into_iter());
        assert!(missing["nowhere"].contains("no-such-compiler"), "{missing:?}");
    }

    #[test]
    fn the_version_of_a_wheel_is_the_pinned_one() {
        let software = Software { wheels: &["x==1.2.3.post1", "y==2"], ..NOWHERE };
        assert_eq!(software.version(), "1.2.3.post1");
    }
}
