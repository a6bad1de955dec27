//! Every environment variable that the sources read is on one page, and every one on the page is read.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use super::page::Page;
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

const PAGE: &str = "docs/book/src/environment.md";

/// Compares the sources with the page, and the page with the manual pages.
pub fn check(pages: &[Page], checks: &mut Checks) -> Result<()> {
    let page = pages.iter().find(|page| page.path == PAGE).context(PAGE)?;
    let mut read = BTreeSet::new();
    for folder in ["crates", "tests/e2e", "tests/harness", "bench", "xtask/src", "packaging"] {
        collect(&tree::root().join(folder), &mut read)?;
    }
    let told = names(&page.text);
    let missing: Vec<_> = read.difference(&told).collect();
    let stale: Vec<_> = told.difference(&read).collect();
    match missing.is_empty() && stale.is_empty() {
        true => checks.pass(),
        false => checks.fail(PAGE, &format!("not on the page: {missing:?}; not in the sources: {stale:?}")),
    }
    // Other pages may only name variables that exist.
    for other in pages {
        let unknown: Vec<_> = names(&other.text).difference(&read).cloned().collect();
        if !unknown.is_empty() {
            checks.fail(&other.path, &format!("names variables that nothing reads: {unknown:?}"));
        }
    }
    Ok(())
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "c" || e == "sh" || e == "py") {
            // A variable is read or set by its name in quotes, or in the shell.
            let text = std::fs::read_to_string(&path)?;
            found.extend(names(&text));
        }
    }
    Ok(())
}

/// Words that begin as our variables do.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let ours = |word: &&str| {
        let prefix = ["FERROCE_", "VERBS_LOG_"].into_iter().find(|prefix| word.starts_with(prefix));
        prefix.is_some_and(|prefix| word.len() > prefix.len()) && !word.ends_with('_')
    };
    words.filter(ours).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn names_are_found_in_code_and_text() {
        let text = "env(\"FERROCE_LOG\") `VERBS_LOG_FILE=x` FERROCE_ starts_with(\"FERROCE_\") MY_FERROCE";
        assert_eq!(names(text).into_iter().collect::<Vec<_>>(), ["FERROCE_LOG", "VERBS_LOG_FILE"]);
    }
}
