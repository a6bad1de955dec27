//! The table of rxe's known faults, which the book includes, names tests and stages that exist.

use std::path::Path;

use ferroce_harness::tree;

const TABLE: &str = include_str!("../../interop/faults-of-rxe.txt");

/// The last cell of each row: names in backticks.
fn named() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = TABLE.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| test |"));
    let cells = rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | ").map(|(_, cell)| cell));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(move |name| (cell, name)))
}

/// All Rust sources below `dir`.
fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, text);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(entry).unwrap());
        }
    }
}

#[test]
fn each_test_and_stage_of_the_table_exists() {
    let mut text = String::new();
    sources(&tree::root().join("crates"), &mut text);
    let (stages, tests): (Vec<_>, Vec<_>) = named().partition(|(cell, _)| cell.starts_with("stage "));
    assert!(tests.len() > 80, "the table names only {} tests", tests.len());
    let missing: Vec<&str> =
        tests.into_iter().map(|(_, name)| name).filter(|name| !exists(&text, name)).collect();
    assert!(missing.is_empty(), "no such test: {missing:?}");
    for (_, stage) in stages {
        assert!(crate::STAGES.iter().any(|(name, _)| *name == stage), "no such stage: {stage}");
    }
}

fn exists(text: &str, name: &str) -> bool {
    text.contains(&format!("fn {name}("))
}
