//! Every relative link of a page leads to a file that is there, and to a heading of it; every path that it names is there, too.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use super::page::Page;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// Checks the links of all pages.
pub fn check(pages: &[Page], checks: &mut Checks) -> Result<()> {
    let known: BTreeMap<&str, &str> =
        pages.iter().map(|page| (page.path.as_str(), page.text.as_str())).collect();
    for page in pages {
        let mut wrong = Vec::new();
        for link in links(&page.text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let here = Path::new(&page.path);
            let target = match file {
                "" => here.to_owned(),
                file => plain(&here.parent().unwrap_or(Path::new("")).join(file)),
            };
            if !tree::root().join(&target).exists() {
                wrong.push(format!("({link}): there is no {}", target.display()));
                continue;
            }
            let text = target.to_str().and_then(|path| known.get(path));
            if !anchor.is_empty() && !text.is_some_and(|text| headings(text).iter().any(|h| h == anchor)) {
                wrong.push(format!("({link}): {} has no such heading", target.display()));
            }
        }
        // The changelog may name files of earlier days.
        let named = if page.path == "CHANGELOG.md" { Vec::new() } else { paths(&page.text) };
        let gone = named.into_iter().filter(|path| !tree::root().join(path).exists());
        wrong.extend(gone.map(|path| format!("`{path}` is not there")));
        match wrong.is_empty() {
            true => checks.pass(),
            false => checks.fail(&page.path, &wrong.join("\n")),
        }
    }
    Ok(())
}

/// Paths below the root that stand as code in the text.
fn paths(text: &str) -> Vec<&str> {
    const FOLDERS: [&str; 6] = ["crates/", "tests/e2e", "bench", "xtask/", "docs/", "fuzz/"];
    let spans = text.split('`').skip(1).step_by(2);
    spans
        .filter(|span| FOLDERS.iter().any(|f| span.starts_with(f)) && !span.contains([' ', '*', '\n']))
        .collect()
}

/// Targets of `[text](target)` outside of code, those on other hosts excepted.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        let ends = line.match_indices("](").filter_map(|(at, _)| line.get(at + 2..));
        let targets = ends.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
        found.extend(targets.filter(|target| !target.contains("://") && !target.contains(' ')));
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn headings(text: &str) -> Vec<String> {
    let mut code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            code = !code;
        }
        if let (false, Some(heading)) = (code, line.strip_prefix('#')) {
            let heading = heading.trim_start_matches('#').trim();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.push(kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect());
        }
    }
    found
}

/// Without `..` and `.`.
fn plain(path: &Path) -> PathBuf {
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings_are_found() {
        let text = "# The `one`\n[a](b.md#c) and [d](https://e) [f](../g)\n```\n[no](no)\n# no\n```\n## Which GID index?\n";
        assert_eq!(links(text), ["b.md#c", "../g"]);
        assert_eq!(headings(text), ["the-one", "which-gid-index"]);
        assert_eq!(paths("in `crates/a/src` and `cargo x`, `docs/b.md`"), ["crates/a/src", "docs/b.md"]);
        assert_eq!(plain(Path::new("docs/book/src/../../../README.md")), Path::new("README.md"));
    }
}
