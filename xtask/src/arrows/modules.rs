//! Circles of modules, and of files, inside a crate. The compiler permits them.

use std::collections::{BTreeMap, BTreeSet};

use super::package::Package;
use super::scan::{Sources, Use};
use ferroce_harness::report::Checks;

/// Top-level modules that still use each other in a circle, and why.
const CIRCLES: &[(&str, &str, &str)] = &[
    ("ferroce-engine", "channel cq", "a channel lists the queues that report to it"),
    ("ferroce-engine", "srq xrc", "a domain lists the queues that peers name in it"),
    ("ferroce-proto", "attr error receive srq", "errors name what they are about, re-exported by the root"),
];

/// Files that may use each other in a circle: a type and its parts.
const MAX_FILES: usize = 3;

/// Checks all crates.
pub fn check(checks: &mut Checks, packages: &[Package]) {
    // Entries of CIRCLES that the sources still need, each with the name of its crate.
    let mut needed = BTreeSet::new();
    for package in packages {
        let mut problems = Vec::new();
        for sources in &package.targets {
            problems.extend(circles(&package.name, sources, &mut needed));
            problems.extend(file_circles(sources));
        }
        checks.check(
            &format!("{}: modules", package.name),
            if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) },
        );
    }
    for (name, modules, _) in CIRCLES {
        let gone = modules.split_whitespace().filter(|module| !needed.contains(&(*name, *module)));
        let gone: Vec<&str> = gone.collect();
        if !gone.is_empty() {
            checks.fail(name, &format!("no longer in a circle: remove from CIRCLES: {}", gone.join(" ")));
        }
    }
}

fn has(modules: &str, module: &str) -> bool {
    modules.split_whitespace().any(|of| of == module)
}

/// Which top-level module uses which; the root may use all.
fn edges(sources: &Sources) -> BTreeSet<(&str, &str)> {
    let top = |of: &Use| (sources.top(of.user), sources.top(of.target));
    sources.uses.iter().map(top).filter(|(from, to)| from != to && !from.is_empty()).collect()
}

/// Circles of top-level modules that are not in the table.
fn circles(
    name: &str,
    sources: &Sources,
    needed: &mut BTreeSet<(&'static str, &'static str)>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for circle in strongly_connected(&edges(sources)) {
        let listed = CIRCLES
            .iter()
            .find(|(of, modules, _)| *of == name && circle.iter().all(|module| has(modules, module)));
        if let Some((of, modules, _)) = listed {
            let still = modules.split_whitespace().filter(|module| circle.contains(module));
            needed.extend(still.map(|module| (*of, module)));
            continue;
        }
        problems.push(format!("{} use each other in a circle:", circle.join(", ")));
        problems.extend(examples(sources, &circle, |id| sources.top(id).to_owned()));
    }
    problems
}

/// Circles of files that are too large.
fn file_circles(sources: &Sources) -> Vec<String> {
    let edges: BTreeSet<(usize, usize)> =
        sources.uses.iter().map(|of| (of.file, sources.file_of(of.target))).collect();
    let path = |file: &usize| {
        sources.files.get(*file).map(|file| file.path.display().to_string()).unwrap_or_default()
    };
    let circles = strongly_connected(&edges).into_iter().filter(|circle| circle.len() > MAX_FILES);
    circles
        .map(|circle| {
            let paths: Vec<String> = circle.iter().map(path).collect();
            format!("{} files in a circle:\n  {}", paths.len(), paths.join("\n  "))
        })
        .collect()
}

/// Finds a use for each pair of modules in a circle.
fn examples(sources: &Sources, circle: &[&str], top: impl Fn(usize) -> String) -> Vec<String> {
    let mut first: BTreeMap<(String, String), String> = BTreeMap::new();
    for of in &sources.uses {
        let (from, to) = (top(of.user), top(of.target));
        if from != to && [&from, &to].into_iter().all(|module| circle.contains(&module.as_str())) {
            let text = format!("  {}: {from} uses {to}", sources.place(of));
            first.entry((from, to)).or_insert(text);
        }
    }
    first.into_values().collect()
}

/// The sets of at least two nodes that all reach each other.
fn strongly_connected<T: Ord + Copy>(edges: &BTreeSet<(T, T)>) -> Vec<Vec<T>> {
    let reach = |from: T| {
        let mut seen = BTreeSet::new();
        let mut todo = vec![from];
        while let Some(node) = todo.pop() {
            let next = edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to);
            todo.extend(next.filter(|to| seen.insert(*to)));
        }
        seen
    };
    let nodes: BTreeSet<T> = edges.iter().map(|(from, _)| *from).collect();
    let reached: BTreeMap<T, BTreeSet<T>> = nodes.iter().map(|node| (*node, reach(*node))).collect();
    let meets = |a: &T, b: &T| reached.get(a).is_some_and(|seen| seen.contains(b));
    let mut circles: Vec<Vec<T>> = Vec::new();
    for node in nodes.iter().filter(|node| meets(node, node)) {
        if !circles.iter().flatten().any(|known| known == node) {
            circles.push(
                nodes.iter().filter(|other| meets(node, other) && meets(other, node)).copied().collect(),
            );
        }
    }
    circles.retain(|circle| circle.len() > 1);
    circles
}

#[cfg(test)]
mod tests {
    use super::strongly_connected;

    #[test]
    fn a_circle_is_found_and_a_line_is_none() {
        let edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (6, 6)].into_iter().collect();
        assert_eq!(strongly_connected(&edges), [vec![1, 2, 3]]);
    }
}
