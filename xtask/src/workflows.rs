//! The workflows of `.github` and the pages: each `cargo xtask` line is one that this program takes, and
//! actions are named by commit. The stage `schemas` checks the files against GitHub's own schema.

use clap::{CommandFactory, Parser};
use yaml_rust2::{Yaml, YamlLoader};

use ferroce_e2e::book;
use ferroce_harness::tree;

use crate::{Args, Command, test};

const RUST_VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// The workflows, each with its name and its steps.
fn workflows() -> Vec<(String, Yaml, Vec<Yaml>)> {
    let folder = std::fs::read_dir(tree::root().join(".github/workflows")).unwrap();
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut documents = YamlLoader::load_from_str(&text).unwrap();
        assert_eq!(documents.len(), 1, "{}", path.display());
        let file = documents.remove(0);
        let jobs = file["jobs"].as_hash().unwrap();
        let steps = jobs.values().flat_map(|job| job["steps"].clone().into_vec().unwrap()).collect();
        (path.file_name().unwrap().to_string_lossy().into_owned(), file, steps)
    };
    folder.map(read).collect()
}

/// The lines of all `run:` steps; GitHub's expressions are replaced by a number.
fn lines(steps: &[Yaml]) -> Vec<String> {
    let mut lines = Vec::new();
    for text in steps.iter().filter_map(|step| step["run"].as_str()) {
        let (first, rest) = text.split_once("${{").map_or((text, ""), |(first, rest)| (first, rest));
        let mut plain = first.to_owned();
        for part in rest.split("${{").filter(|part| !part.is_empty()) {
            plain.push('1');
            plain.push_str(part.split_once("}}").expect("an expression ends").1);
        }
        lines.extend(plain.lines().map(|line| line.trim().to_owned()));
    }
    lines
}

/// Why this program would not take a line. A text between double quotation marks is one word.
fn refusal(line: &str) -> Option<String> {
    let mut words = Vec::new();
    for (n, part) in line.split('"').enumerate() {
        if n % 2 == 1 { words.push(part) } else { words.extend(part.split_whitespace()) }
    }
    let args = match Args::try_parse_from(&words[1..]) {
        Ok(args) => args,
        // Help is no error.
        Err(error) => return error.use_stderr().then(|| error.to_string()),
    };
    let Command::Test(args) = args.command else { return None };
    let mut stages = args.only.iter().chain(&args.skip);
    stages.find(|name| !test::is_stage(name)).map(|name| format!("no stage is called {name}"))
}

#[test]
fn each_command_of_a_workflow_is_one_of_ours() {
    Args::command().debug_assert();
    let justfile = std::fs::read_to_string(tree::root().join("justfile")).unwrap();
    let mut commands = 0;
    for (name, file, steps) in workflows() {
        assert_eq!(file["permissions"]["contents"].as_str(), Some("read"), "{name} may write");
        for line in lines(&steps).iter().filter(|line| line.starts_with("cargo xtask")) {
            commands += 1;
            assert_eq!(refusal(line), None, "{name}: {line}");
        }
        for recipe in lines(&steps).iter().filter_map(|line| line.strip_prefix("just ")) {
            let recipe = recipe.split(' ').next().unwrap_or_default();
            let has = |line: &str| line.split([' ', ':']).next() == Some(recipe);
            assert!(justfile.lines().any(has), "{name}: just {recipe}");
        }
    }
    assert!(commands > 5);
    for bad in ["cargo xtask tset", "cargo xtask fuzz --tim 5", "cargo xtask test --only lint"] {
        assert!(refusal(bad).is_some(), "{bad}");
    }
}

#[test]
fn each_command_of_a_page_is_one_of_ours() {
    let pages = book::pages().unwrap();
    for page in &pages {
        let lines = page.text.lines().map(|line| line.trim_start().trim_start_matches("$ "));
        for line in lines.filter(|line| line.starts_with("cargo xtask ")) {
            let line = line.split(" #").next().unwrap_or_default();
            assert_eq!(refusal(line), None, "{}: {line}", page.path);
        }
    }
    assert!(pages.iter().any(|page| page.path == "RELEASING.md"));
}

#[test]
fn actions_are_named_by_commit() {
    for (name, _, steps) in workflows() {
        for action in steps.iter().filter_map(|step| step["uses"].as_str()) {
            let commit = action.split_once('@').map_or("", |(_, commit)| commit);
            let hex = commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(commit.len() == 40 && hex, "{name}: {action}");
        }
    }
}

#[test]
fn the_oldest_compiler_is_that_of_the_manifest() {
    let wanted = format!("cargo +{RUST_VERSION} check --workspace");
    let all: Vec<_> = workflows().into_iter().flat_map(|(_, _, steps)| lines(&steps)).collect();
    assert!(all.contains(&wanted), "no workflow runs `{wanted}`");
    let justfile = std::fs::read_to_string(tree::root().join("justfile")).unwrap();
    assert!(justfile.contains(&wanted), "no recipe runs `{wanted}`");
}

#[test]
fn the_pages_name_the_rust_version_of_the_manifest() {
    for page in ["README.md", "docs/book/src/getting-started.md", "docs/book/src/support.md"] {
        let text = std::fs::read_to_string(tree::root().join(page)).unwrap();
        assert!(text.contains(&format!("{RUST_VERSION} or later")), "{page} does not say {RUST_VERSION}");
    }
}
