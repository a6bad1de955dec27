//! The pages: Markdown files of the book, and those at the root.

use anyhow::{Context, Result};

use ferroce_harness::tree;

/// A page: its path below the root, and its text.
pub struct Page {
    /// As `docs/book/src/ci.md`.
    pub path: String,
    /// Markdown.
    pub text: String,
}

/// The pages that are checked: those of the book and those beside it.
pub fn pages() -> Result<Vec<Page>> {
    let root = tree::root();
    let beside = ["README", "ARCHITECTURE", "CONTRIBUTING", "RELEASING", "SECURITY", "CHANGELOG"];
    let mut paths: Vec<String> = beside.map(|name| format!("{name}.md")).into();
    let mut book: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(root.join("docs/book/src"))? {
        let name = entry?.file_name().into_string().ok().context("a page's name is not UTF-8")?;
        book.extend(name.ends_with(".md").then(|| format!("docs/book/src/{name}")));
    }
    book.sort();
    paths.extend(book);
    let read = |path: String| {
        let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Ok(Page { path, text })
    };
    paths.into_iter().map(read).collect()
}
