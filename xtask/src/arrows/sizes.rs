//! How long files and crates are.

use anyhow::Result;
use serde_json::json;

use super::package::{Package, TOOLS};
use super::scan::File;
use ferroce_harness::report::Checks;

/// The most lines that a product file may have, comments and inline tests included. A file is cut at a seam:
/// a type with its whole `impl` in one file is easier to read than three files that reach into each other, so
/// the limit is far above the usual file.
const FILE: usize = 900;

/// Most lines of product code in a crate.
const CRATE: usize = 12_000;

/// Most lines of code in xtask: tests and benchmarks are crates of their own.
const XTASK: usize = 3_000;

/// Checks all crates.
pub fn check(checks: &mut Checks, packages: &[Package]) {
    for package in packages {
        let most = if package.name == "xtask" { XTASK } else { CRATE };
        let code = Size::of(package).code;
        let verdict = if code > most { Err(format!("{code} lines of code, at most {most}")) } else { Ok(()) };
        checks.check(&format!("{}: size", package.name), verdict);
        for file in files(package).into_iter().filter(|file| file.lines > FILE) {
            checks.fail(&file.path.display().to_string(), &format!("{} lines, at most {FILE}", file.lines));
        }
    }
}

/// Prints a row for each crate.
pub fn print(packages: &[Package], json: bool) -> Result<()> {
    let sizes: Vec<Size> = packages.iter().map(Size::of).collect();
    if json {
        let rows: Vec<_> = sizes.iter().map(Size::json).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("{:<18} {:>6} {:>6} {:>5} {:>6}  longest file", "crate", "code", "lines", "files", "unsafe");
    for size in &sizes {
        size.print();
    }
    let product = sizes.iter().filter(|size| !TOOLS.contains(&size.name.as_str()));
    let total =
        product.fold(Size { name: "product".to_owned(), ..Size::default() }, |sum, size| sum.plus(size));
    total.print();
    Ok(())
}

/// The files of a crate, each once.
fn files(package: &Package) -> Vec<&File> {
    let mut files: Vec<&File> = package.targets.iter().flat_map(|target| &target.files).collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    files
}

/// A crate's row.
#[derive(Default, Clone)]
struct Size {
    name: String,
    code: usize,
    lines: usize,
    files: usize,
    unsafe_blocks: usize,
    longest: (usize, String),
}

impl Size {
    fn of(package: &Package) -> Self {
        let files = files(package);
        let longest = files.iter().map(|file| (file.lines, file.path.display().to_string())).max();
        Self {
            name: package.name.clone(),
            code: files.iter().map(|file| file.code).sum(),
            lines: files.iter().map(|file| file.lines).sum(),
            files: files.len(),
            unsafe_blocks: files.iter().map(|file| file.unsafe_blocks).sum(),
            longest: longest.unwrap_or_default(),
        }
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            code: self.code + other.code,
            lines: self.lines + other.lines,
            files: self.files + other.files,
            unsafe_blocks: self.unsafe_blocks + other.unsafe_blocks,
            longest: self.longest.max(other.longest.clone()),
            name: self.name,
        }
    }

    fn print(&self) {
        let Self { name, code, lines, files, unsafe_blocks, longest: (longest, path) } = self;
        println!("{name:<18} {code:>6} {lines:>6} {files:>5} {unsafe_blocks:>6}  {longest} {path}");
    }

    fn json(&self) -> serde_json::Value {
        let (longest, path) = &self.longest;
        json!({
            "crate": self.name, "code": self.code, "lines": self.lines, "files": self.files,
            "unsafe_blocks": self.unsafe_blocks, "longest": { "file": path, "lines": longest },
        })
    }
}
