//! The content that all packages share: the stripped distribution, licences, the bill of materials, and the
//! time of the commit.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::elf::{self, Glibc};
use crate::files::{Entry, Files};
use crate::materials::Materials;
use ferroce_harness::{dist::AUDITOR, tree};

/// The files with debug information.
const DIVIDED: [&str; 3] = ["bin/ferroce", "bin/ferroced", "lib/libibverbs.so.1"];

/// The files and texts that packages are made of.
pub struct Release {
    /// `bin/`, `lib/` and `share/` of the distribution, stripped.
    pub files: Files,
    /// Debug information by the path of its file.
    pub debug: Files,
    /// The oldest glibc that all of it runs with.
    pub glibc: Glibc,
    /// The crates inside.
    pub materials: Materials,
    /// The time of all files, in seconds of the epoch.
    pub stamp: u64,
}

impl Release {
    /// Reads a distribution; `work` is a folder for temporary files.
    ///
    /// # Errors
    /// objcopy or readelf (Debian: binutils) is missing, cargo does not know its crates, or `dist` is no
    /// distribution.
    pub fn of(dist: &Path, work: &Path) -> Result<Self> {
        let mut files = Files::read(dist)?;
        let (mut debug, mut glibc) = (Files::default(), Vec::new());
        for path in DIVIDED {
            let from = dist.join(path);
            glibc.push(elf::needed_glibc(&from)?);
            let split = elf::split(&from, work)?;
            let (folder, name) = path.split_once('/').context("a path without a folder")?;
            debug.text(&format!("{folder}/.debug/{name}.debug"), split.debug);
            files.program(path, split.stripped);
        }
        let plain = files
            .0
            .iter()
            .filter(|(_, entry)| matches!(entry, Entry::File(..)))
            .filter(|(path, _)| path.starts_with("lib/system/") || **path == format!("lib/{AUDITOR}"));
        for path in plain.map(|(path, _)| path.clone()).collect::<Vec<_>>() {
            files.program(&path, elf::stripped(&dist.join(&path), work)?);
        }
        let glibc = glibc.into_iter().max().context("no files")?;
        Ok(Self { files, debug, glibc, materials: Materials::gather()?, stamp: stamp()? })
    }

    /// The texts that every package carries, by name.
    ///
    /// # Errors
    /// A licence of the workspace cannot be read.
    pub fn texts(&self) -> Result<Files> {
        let mut texts = Files::default();
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            texts.text(name, std::fs::read(tree::root().join(name))?);
        }
        texts.text("THIRD-PARTY.txt", self.materials.licences.clone());
        Ok(texts)
    }
}

/// `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn stamp() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().with_context(|| format!("SOURCE_DATE_EPOCH is {text:?}"));
    }
    let log = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(tree::root()).output();
    let log = log.context("git")?;
    ensure!(log.status.success(), "the sources are no repository: set SOURCE_DATE_EPOCH");
    Ok(String::from_utf8(log.stdout)?.trim().parse()?)
}
