//! The page of the results.

use std::fmt::Write;

use anyhow::{Context, Result};

use crate::compat::Outcome;
use ferroce_harness::figures::{machine, median, today};
use ferroce_harness::tree;

const PAGE: &str = "docs/book/src/compatibility.md";
const HEAD: &str = "| program | version | run | result | octets by ferroce | ferroce | its own TCP | ferroce ÷ TCP | limits |\n\
                    |---|---|---|---|---|---|---|---|---|\n";

/// The results as a table. Program and version are told in the first row of the program.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(HEAD);
    let (mut above, mut program_above) = ("", "");
    for outcome in outcomes {
        let [ours, tcp] = [&outcome.ferroce, &outcome.tcp].map(|figures| {
            let mut figures = figures.clone();
            (!figures.is_empty()).then(|| median(&mut figures))
        });
        let shown = |figure: Option<f64>| match (figure, &outcome.unit) {
            (Some(figure), Some(unit)) => format!("{} {unit}", rounded(figure)),
            _ => String::new(),
        };
        let ratio = ours.zip(tcp).map_or_else(String::new, |(ours, tcp)| format!("{:.2}", ours / tcp));
        let Outcome { program, version, what, .. } = outcome;
        let again = !above.is_empty() && above == outcome.limit;
        above = &outcome.limit;
        let limit = if again { "as above" } else { above };
        let (name, version) = if program == program_above { ("", "") } else { (&**program, &**version) };
        program_above = program;
        let (result, octets) = (outcome.result(), size(outcome.octets));
        let (ours, tcp) = (shown(ours), shown(tcp));
        let _ = writeln!(
            text,
            "| {name} | {version} | {what} | {result} | {octets} | {ours} | {tcp} | {ratio} | {limit} |"
        );
    }
    text
}

/// Three digits.
fn rounded(figure: f64) -> String {
    match figure {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// A number of octets in the largest unit of which there is one.
fn size(octets: u64) -> String {
    match octets {
        0 => String::new(),
        1_000_000_000.. => format!("{} GB", rounded(octets as f64 / 1e9)),
        1_000_000.. => format!("{} MB", rounded(octets as f64 / 1e6)),
        1_000.. => format!("{} kB", rounded(octets as f64 / 1e3)),
        _ => format!("{octets} B"),
    }
}

/// Writes the page.
pub fn save(outcomes: &[Outcome], rounds: u32) -> Result<()> {
    let text = format!(
        "# Compatibility\n\nUnmodified programs of Debian and PyPI between processes on one host, over ferroce and over their own TCP \
         transport in turn.\n\nMade by `cargo xtask compat --rounds {rounds} --save` on {}: {}, with a load average of {} over the \
         last quarter of an hour. The figures are medians; if the load is more than the processors, they say little. A shorter time is better. ferroce carries \
         connections by shared memory and datagrams (UD) over UDP, as programs get it. All run as user nobody with `no_new_privs`. \
         A run passes if all ends end well and ferroce counted at least what the run must send. \"Compared\" means that the program \
         checks what arrives. `cargo xtask compat --check` compares the results of a new run with this page. \
         [Programs](programs.md) lists what other tests cover.\n\n{}",
        today()?,
        machine()?,
        load()?,
        table(outcomes)
    );
    Ok(std::fs::write(tree::root().join(PAGE), text)?)
}

/// The load average over 15 minutes.
fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').nth(2).context("/proc/loadavg")?.to_owned())
}

/// The page as it is.
pub fn saved() -> Result<String> {
    std::fs::read_to_string(tree::root().join(PAGE)).context(PAGE)
}

/// Program, run and result of each row of a table.
fn results(text: &str) -> Vec<[&str; 3]> {
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| program |"));
    let mut program = "";
    rows.filter_map(|line| {
        let cells: Vec<&str> = line.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        program = cells.first().filter(|name| !name.is_empty()).unwrap_or(&program);
        Some([program, *cells.get(2)?, *cells.get(3)?])
    })
    .collect()
}

/// How the results differ from those of a page, a sentence each. Unless the run was `whole`, rows of other programs do not count.
pub fn differences(page: &str, outcomes: &[Outcome], whole: bool) -> Vec<String> {
    let fresh = table(outcomes);
    let (old, new) = (results(page), results(&fresh));
    let result_of = |rows: &[[&str; 3]], row: &[&str; 3]| {
        rows.iter().find(|other| other[..2] == row[..2]).map(|other| other[2].to_owned())
    };
    let mut differences = Vec::new();
    for row @ [program, what, result] in &new {
        match result_of(&old, row) {
            None => differences.push(format!("{program} {what}: the page does not have it")),
            Some(page) if page != *result => {
                differences
                    .push(format!("{program} {what}: the page says \"{page}\", this run \"{result}\""));
            }
            Some(_) => {}
        }
    }
    let tried = |program: &str| whole || new.iter().any(|row| row[0] == program);
    for row @ [program, what, _] in old.iter().filter(|row| tried(row[0])) {
        if result_of(&new, row).is_none() {
            differences.push(format!("{program} {what}: the page has it, this run does not"));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::TrialState;

    fn outcome() -> Outcome {
        Outcome::example("fio", "write", "3.33")
    }

    #[test]
    fn a_row_says_what_happened() {
        let text = table(&[outcome()]);
        let row = "| fio | 3.33 | write | passes | 2.50 MB | 200 MB/s | 50.0 MB/s | 4.00 |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn figures_and_versions_may_differ_and_results_may_not() {
        let page = format!("# Compatibility\n\n{}", table(&[outcome()]));
        let other = Outcome { octets: 7, ferroce: vec![9.0], version: "4".to_owned(), ..outcome() };
        assert_eq!(differences(&page, &[other], true), [""; 0]);
        for state in [
            TrialState::Failed,
            TrialState::Known("why".to_owned()),
            TrialState::NotRun("not here".to_owned()),
        ] {
            let other = Outcome { state, ..outcome() };
            let found = differences(&page, &[other], true);
            assert!(found.len() == 1 && found[0].contains("the page says \"passes\""), "{found:?}");
        }
    }

    #[test]
    fn a_program_is_named_in_its_first_row() {
        let text = table(&[outcome(), Outcome { what: "read".to_owned(), ..outcome() }]);
        assert!(text.contains("|  |  | read | passes |"), "{text}");
        assert_eq!(results(&text), [["fio", "write", "passes"], ["fio", "read", "passes"]]);
    }

    #[test]
    fn rows_that_one_side_lacks_are_named() {
        let page = table(&[outcome(), Outcome { program: "ucx".to_owned(), ..outcome() }]);
        let found = differences(&page, &[outcome()], true);
        assert_eq!(found, ["ucx write: the page has it, this run does not"]);
        assert_eq!(differences(&page, &[outcome()], false), [""; 0]);
        let read = Outcome { what: "read".to_owned(), ..outcome() };
        assert_eq!(differences(&page, &[read], false).len(), 2);
    }
}
