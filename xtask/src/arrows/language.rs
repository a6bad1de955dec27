//! Comments that cannot be read alone, and comment lines that are too long.

use std::path::{Path, PathBuf};

use anyhow::Result;

use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// The most columns of a comment line, which is the width of the code (`rustfmt.toml`). Rows of tables may be
/// longer.
const COLUMNS: usize = 110;

/// A comment that begins with one of these words continues what stands above it.
const BEGINNINGS: &[&str] =
    &["By", "It", "Its", "Of", "One", "The same", "These", "They", "Those", "What", "When", "Where"];

/// Words in place of a number or of an absence.
const WORDS: &[&str] = &["so many", "is none"];

/// The most faults of each crate that still has some. A crate without an entry has none, and gets none.
/// The numbers only fall, and this table goes with its last entry.
const LEFT: &[(&str, usize)] = &[("ferroce-broker", 52), ("ferroce-engine", 17)];

/// Checks the sources of all crates in `crates`, of the packages' maker and of the workspace's commands.
pub fn check(checks: &mut Checks) -> Result<()> {
    let mut folders = ["packaging", "xtask"].map(PathBuf::from).to_vec();
    for entry in std::fs::read_dir(tree::root().join("crates"))? {
        folders.push(Path::new("crates").join(entry?.file_name()));
    }
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let mut faults = Vec::new();
        read(&folder.join("src"), &mut faults)?;
        let most = LEFT.iter().find(|(left, _)| *left == name).map(|(_, most)| *most);
        let verdict = match (faults.len(), most) {
            (0, Some(_)) => Err("no fault: remove it from LEFT in xtask/src/arrows/language.rs".to_owned()),
            (count, most) if count > most.unwrap_or(0) => {
                let shown = if most.is_some() { "" } else { &format!(":\n{}", faults.join("\n")) };
                Err(format!("{count} faults of language, at most {}{shown}", most.unwrap_or(0)))
            }
            _ => Ok(()),
        };
        checks.check(&format!("{name}: language"), verdict);
    }
    Ok(())
}

/// Adds the faults of each file below `folder`.
fn read(folder: &Path, faults: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(tree::root().join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read(&path, faults)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let found = of_text(&std::fs::read_to_string(entry.path())?);
            faults.extend(found.iter().map(|(line, why)| format!("{}:{line}: {why}", path.display())));
        }
    }
    Ok(())
}

/// The faults of a file, each with its line.
fn of_text(text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    let mut above = None;
    for (number, line) in (1..).zip(text.lines()) {
        let comment = comment(line);
        if let Some((mark, words)) = comment {
            let begins = |word: &&&str| {
                words.strip_prefix(**word).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            if above != Some(mark)
                && let Some(word) = BEGINNINGS.iter().find(begins)
            {
                faults.push((number, format!("begins with `{word}`")));
            }
            let used = WORDS.iter().filter(|word| words.contains(**word));
            faults.extend(used.map(|word| (number, format!("says `{word}`"))));
            let columns = line.chars().count();
            // Markdown cannot break the row of a table.
            if columns > COLUMNS && !words.starts_with('|') {
                faults.push((number, format!("{columns} columns, at most {COLUMNS}")));
            }
        }
        // Text below a heading begins anew.
        above = comment.filter(|(_, words)| !words.starts_with("# ")).map(|(mark, _)| mark);
    }
    faults
}

/// The mark and the words of a line that is a comment.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))?;
    Some((mark, line.strip_prefix(mark)?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found_where_a_comment_begins() {
        let lines = |text: &str| of_text(text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
        assert_eq!(
            lines("/// Its number.\n/// When it came.\nlet it;\n// Of these.\n//! The same.\n"),
            [1, 4, 5]
        );
        assert!(
            lines("/// A number.\n/// It counts.\nlet x = 1; // It is\n/// Once, Items, Ofs.\n").is_empty()
        );
        assert_eq!(lines("/// # Errors\n/// Those of it.\n"), [2]);
        assert_eq!(lines("// There are so many.\n/// If there is none, so many.\n"), [1, 2, 2]);
        let long = format!("{}\n    // {}\n", "x".repeat(120), "é".repeat(COLUMNS - 7));
        assert!(lines(&long).is_empty());
        assert_eq!(lines(&format!("// {0}\n/// | {0} |", "x".repeat(COLUMNS))), [1]);
    }
}
