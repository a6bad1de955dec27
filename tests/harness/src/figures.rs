//! The parts that all benchmarks share: medians, and where and when a figure was made.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

/// The median; NaN of nothing. Sorts the values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The date as `2026-11-22`.
pub fn today() -> Result<String> {
    let output = Command::new("date").arg("+%F").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Processor, cores and kernel.
pub fn machine() -> Result<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("an unnamed processor");
    let cores = std::thread::available_parallelism()?;
    let release = std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease"))?;
    ensure!(!release.is_empty(), "no kernel release");
    let model = model.trim_start_matches(['\t', ' ', ':']);
    Ok(format!("{model}, {cores} cores, Linux {}", release.trim()))
}

/// A document of sections that begin with `## `, with the section of `title` replaced, or added at the end.
pub fn replaced(document: &str, title: &str, section: &str) -> String {
    let (before, after) = match document.find(title) {
        Some(at) => {
            let (before, old) = document.split_at(at);
            let end = old.get(title.len()..).and_then(|rest| rest.find("\n## "));
            (before, end.map_or("", |end| old.split_at(title.len() + end + 1).1))
        }
        None => (document, ""),
    };
    let gap = if after.is_empty() { "" } else { "\n" };
    format!("{}\n\n{}\n{gap}{after}", before.trim_end(), section.trim_end())
}

/// The sections of a document, behind its first part.
pub fn sections(document: &str) -> &str {
    document.find("\n## ").map_or("", |at| document.split_at(at).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn a_section_is_replaced_and_nothing_else() {
        let (title, new) = ("## New", "## New\n\nnew\n");
        for (before, after) in [
            ("# B\n\ntext\n", "# B\n\ntext\n\n## New\n\nnew\n"),
            ("# B\n\n## New\n\nold\n", "# B\n\n## New\n\nnew\n"),
            ("# B\n\n## C\n\nx\n", "# B\n\n## C\n\nx\n\n## New\n\nnew\n"),
            ("# B\n\n## New\n\nold\n\n## C\n\nx\n", "# B\n\n## New\n\nnew\n\n## C\n\nx\n"),
        ] {
            assert_eq!(replaced(before, title, new), after);
        }
        assert_eq!(sections("# B\n\ntext\n\n## C\n\nx\n"), "\n## C\n\nx\n");
    }
}
