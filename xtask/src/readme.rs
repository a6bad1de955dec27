//! The README's table of verbs, made from what the export table of ferroce-dropin says.

use std::fmt::Write;

use anyhow::{Context, Result};

use crate::report::Checks;
use crate::tree;

const BEGIN: &str = "<!-- made from the export table by `cargo xtask readme` -->\n";
const END: &str = "<!-- end -->\n";
/// More functions than these are not named one by one, unless they are done.
const NAMED: usize = 10;

/// Compares the README with the table.
pub fn check(checks: &mut Checks) -> Result<()> {
    let (have, want) = both()?;
    match have == want {
        true => checks.pass(),
        false => checks.fail("README.md", "its table of verbs is stale: run `cargo xtask readme`"),
    }
    Ok(())
}

/// Writes the README with the table as it is now.
pub fn write() -> Result<bool> {
    std::fs::write(tree::root().join("README.md"), both()?.1)?;
    Ok(true)
}

/// The README as it is, and as it should be.
fn both() -> Result<(String, String)> {
    let verbs = std::fs::read_to_string(tree::root().join("crates/ferroce-dropin/VERBS.md"))?;
    let readme = std::fs::read_to_string(tree::root().join("README.md"))?;
    let (before, rest) = readme.split_once(BEGIN).context("README.md has no place for the table of verbs")?;
    let (_, after) = rest.split_once(END).context("README.md's table of verbs has no end")?;
    let fresh = format!("{before}{BEGIN}{}{END}{after}", table(&verbs));
    Ok((readme, fresh))
}

/// A row for every library and state, in the order in which VERBS.md has them; what is done comes first.
fn table(verbs: &str) -> String {
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    // | library | `function` | version | state |
    for line in verbs.lines().filter(|line| line.starts_with("| lib") && line.contains('`')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, library, name, _, state, ..] = cells.as_slice() else { continue };
        match groups.iter_mut().find(|(l, s, _)| l == library && s == state) {
            Some((_, _, names)) => names.push(name),
            None => groups.push((library, state, vec![name])),
        }
    }
    groups.sort_by_key(|(_, state, _)| *state != "done");
    let mut text = String::from("| library | state | | functions |\n|---|---|---|---|\n");
    for (library, state, names) in groups {
        let list = match names.as_slice() {
            [first, .., last] if names.len() > NAMED && state != "done" => format!("{first} … {last}"),
            _ => names.join(" "),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {library} | {state} | {} | {list} |", names.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn done_comes_first_and_long_lists_are_cut() {
        let mut verbs = String::from(
            "1 of 13 public functions\n\n| library | function | version | state |\n|---|---|---|---|\n",
        );
        for i in 0..12 {
            verbs += &format!("| librdmacm | `rdma_{i}` | RDMACM_1.0 | not built |\n");
        }
        verbs += "| libibverbs | `ibv_a` | IBVERBS_1.1 | done |\n";
        assert_eq!(
            table(&verbs),
            "| library | state | | functions |\n|---|---|---|---|\n\
             | libibverbs | done | 1 | `ibv_a` |\n| librdmacm | not built | 12 | `rdma_0` … `rdma_11` |\n"
        );
    }
}
