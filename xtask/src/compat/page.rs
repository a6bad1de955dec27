//! The page of the results.

use std::fmt::Write;

use anyhow::Result;

use super::Outcome;
use crate::bench::common::{machine, median, today};
use crate::tree;

const PAGE: &str = "docs/book/src/compatibility.md";

/// The results as a table.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| program | version | run | result | ferroce | its own TCP | ferroce ÷ TCP | limits |\n|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let result = match (outcome.passed, outcome.verified) {
            (true, true) => "passes, data compared",
            (true, false) => "passes",
            (false, _) => "**fails**",
        };
        let [ours, tcp] = [&outcome.ferroce, &outcome.tcp].map(|figures| {
            let mut figures = figures.clone();
            (!figures.is_empty()).then(|| median(&mut figures))
        });
        let shown = |figure: Option<f64>| match (figure, &outcome.unit) {
            (Some(figure), Some(unit)) => format!("{} {unit}", rounded(figure)),
            _ => "–".to_owned(),
        };
        let ratio = ours.zip(tcp).map_or("–".to_owned(), |(ours, tcp)| {
            let better = if outcome.more_is_better { "" } else { " (less is better)" };
            format!("{:.2}{better}", ours / tcp)
        });
        let Outcome { program, version, what, limit, .. } = outcome;
        let (ours, tcp) = (shown(ours), shown(tcp));
        let _ = writeln!(
            text,
            "| {program} | {version} | {what} | {result} | {ours} | {tcp} | {ratio} | {limit} |"
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

/// Writes the page.
pub fn save(outcomes: &[Outcome], rounds: u32) -> Result<()> {
    let text = format!(
        "# Compatibility\n\nUnmodified programs of Debian between two processes on one host, over ferroce and over their own TCP transport in \
         turn.\n\nMade by `cargo xtask compat --rounds {rounds} --save` on {}: {}. The figures are medians. ferroce carries \
         connections by shared memory and datagrams (UD) over UDP, as programs get it. A run passes if both ends end well and ferroce counted what was sent. \
         [Programs](programs.md) lists what other tests cover.\n\n{}",
        today()?,
        machine()?,
        table(outcomes)
    );
    Ok(std::fs::write(tree::root().join(PAGE), text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_happened() {
        let outcome = Outcome {
            program: "fio".to_owned(),
            version: "3.33".to_owned(),
            what: "write".to_owned(),
            passed: true,
            verified: false,
            octets: 1,
            unit: Some("MB/s".to_owned()),
            more_is_better: true,
            ferroce: vec![300.0, 100.0, 200.0],
            tcp: vec![50.0],
            limit: String::new(),
        };
        let text = table(&[outcome]);
        assert!(text.contains("| fio | 3.33 | write | passes | 200 MB/s | 50.0 MB/s | 4.00 |"), "{text}");
    }
}
