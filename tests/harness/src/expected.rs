//! Failures that are known, each with its reason: `tests/interop/expected-failures.txt`.

const FILE: &str = include_str!("../../interop/expected-failures.txt");

/// Why the check called `name` may fail, if it may.
pub fn reason(name: &str) -> Option<&'static str> {
    entries(FILE).find(|(part, _)| name.contains(part)).map(|(_, reason)| reason)
}

fn entries(file: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = file.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.filter_map(|line| line.split_once(" : ")).map(|(part, reason)| (part.trim(), reason.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_part_and_a_reason() {
        let lines = FILE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        assert_eq!(lines.count(), entries(FILE).count());
        assert!(entries(FILE).all(|(part, reason)| part.len() > 3 && reason.len() > 10));
        assert_eq!(entries("# x\n\na b : because\n").collect::<Vec<_>>(), [("a b", "because")]);
    }
}
