//! The book (`docs/book`), the README and the other pages: they are built, and what they claim is compared with the sources.

mod blocks;
mod commands;
mod links;
mod page;
mod variables;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

pub use blocks::{Block, Kind, agree};
pub use page::{Page, pages};

/// The README is a front page: the rest belongs in the book.
const README_LINES: usize = 110;

/// ARCHITECTURE.md is a map: what belongs to one module stands in its documentation.
const MAP_OCTETS: usize = 20_000;

/// The program that builds the book, and a version that is known to.
const MDBOOK: (&str, &str) = ("mdbook", "0.4.52");

/// Compares the pages with the sources, and builds the book if mdBook is there.
pub fn check(checks: &mut Checks) -> Result<()> {
    let pages = pages()?;
    let readme = pages.iter().find(|page| page.path == "README.md").context("no README.md")?;
    let lines = readme.text.lines().count();
    match lines <= README_LINES {
        true => checks.pass(),
        false => checks.fail("README.md", &format!("{lines} lines; at most {README_LINES}")),
    }
    let map = pages.iter().find(|page| page.path == "ARCHITECTURE.md").map_or(0, |page| page.text.len());
    match map <= MAP_OCTETS {
        true => checks.pass(),
        false => checks.fail("ARCHITECTURE.md", &format!("{map} octets; at most {MAP_OCTETS}")),
    }
    links::check(&pages, checks)?;
    commands::check(&pages, checks);
    variables::check(&pages, checks)?;
    match mdbook() {
        Some(program) => checks.check("mdbook", make(&program).map(|_| ())),
        None => checks.skip("mdbook", &hint()),
    }
    Ok(())
}

/// Builds `target/book`; true if that worked without a warning.
pub fn build() -> Result<bool> {
    let program = match mdbook() {
        Some(program) => program,
        None => install().with_context(hint)?,
    };
    println!("{}", make(&program)?.display());
    Ok(true)
}

fn hint() -> String {
    let (name, version) = MDBOOK;
    format!("{name} is not here; `cargo install {name} --version {version} --locked` brings it")
}

/// In `PATH`, or where [`install`] puts it.
fn mdbook() -> Option<PathBuf> {
    let own = tree::target().join("tools/bin").join(MDBOOK.0);
    let all = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&all).map(|dir| dir.join(MDBOOK.0)).find(|path| path.is_file());
    found.or_else(|| own.is_file().then_some(own))
}

/// Installs mdBook below `target/tools`.
fn install() -> Result<PathBuf> {
    let (name, version) = MDBOOK;
    let root = tree::target().join("tools");
    eprintln!("xtask: {name} {version} is installed into {}, which takes some minutes", root.display());
    let mut command = tree::cargo();
    command.args(["install", "--quiet", name, "--version", version, "--locked", "--no-default-features"]);
    let status = command.args(["--features", "search"]).arg("--root").arg(&root).status()?;
    ensure!(status.success(), "cargo install {name}: {status}");
    Ok(root.join("bin").join(name))
}

/// Where the book is; a warning is an error.
fn make(program: &Path) -> Result<PathBuf> {
    let to = tree::target().join("book");
    let mut command = Command::new(program);
    command.arg("build").arg("--dest-dir").arg(&to).arg(tree::root().join("docs/book"));
    let output = command.output().with_context(|| program.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !said.contains("[WARN]") && !said.contains("[ERROR]"), "{said}");
    Ok(to)
}
