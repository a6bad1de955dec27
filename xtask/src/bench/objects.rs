//! `cargo xtask bench --objects`: how long `ferroce resource show` takes while programs have many queue pairs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{BenchArgs, machine, median, today};
use crate::debian::{self, Programs};
use crate::dist::Dist;
use crate::{cc, netns, tree};

/// Programs, and queue pairs of all of them.
const CASES: [(usize, usize); 3] = [(1, 1), (3, 100), (3, 3000)];
const WORDS: [&str; 4] = ["resource show", "resource show qp", "statistic show", "statistic qp"];
/// What it must not exceed with 3 programs and 100 queue pairs, in milliseconds.
const MUST: f64 = 50.0;

pub const TITLE: &str = "## Objects of all programs";

/// A program that holds queue pairs until its input ends.
struct Holder(Child);

impl Holder {
    fn start(dist: &Dist, program: &std::path::Path, count: usize) -> Result<Self> {
        let mut command = Command::new(dist.bin("ferroce"));
        command.arg("run").arg("--").arg(program).arg(count.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "{} {count}: '{line}'", program.display());
        Ok(Self(child))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// In a network namespace of its own: measures, prints, and with `--save` writes the section of docs/BENCHMARKS.md.
pub fn run(args: &BenchArgs, dist: &Dist) -> Result<bool> {
    netns::raise_loopback()?;
    let programs = Programs::ensure(&[debian::BASIC])?;
    let holds = cc::ours("holds", dist, &programs)?;
    let mut samples: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    for (case, (count, pairs)) in CASES.into_iter().enumerate() {
        let share = |number: usize| pairs / count + usize::from(number < pairs % count);
        let holders: Vec<Holder> =
            (0..count).map(|number| Holder::start(dist, &holds, share(number))).collect::<Result<_>>()?;
        for _ in 0..args.rounds {
            for words in WORDS {
                let began = Instant::now();
                let output = Command::new(dist.bin("ferroce")).args(words.split(' ')).output()?;
                samples.entry((case, words)).or_default().push(began.elapsed().as_secs_f64() * 1e3);
                ensure!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
                let lines = String::from_utf8_lossy(&output.stdout).lines().count();
                let want = if words.contains("qp") { pairs } else { 1 };
                ensure!(lines == want, "{words}: {lines} lines, not {want}");
            }
        }
        drop(holders);
    }
    let text = report(args, &mut samples)?;
    print!("{text}");
    if args.save {
        let path = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&path, replaced(&std::fs::read_to_string(&path)?, &text))?;
    }
    Ok(true)
}

fn report(args: &BenchArgs, samples: &mut BTreeMap<(usize, &str), Vec<f64>>) -> Result<String> {
    let mut text = format!(
        "{TITLE}\n\n\
         Made by `cargo xtask bench --objects --rounds {} --save` on {}: {}.\n\
         Milliseconds from starting the command to its end, median (least to greatest) of {} rounds. `resource show` with 3 \
         programs and 100 queue pairs must take less than {MUST} ms.\n\n| command |",
        args.rounds,
        today()?,
        machine()?,
        args.rounds
    );
    for (programs, pairs) in CASES {
        text += &format!(" programs {programs}, queue pairs {pairs} |");
    }
    text += "\n|---|---|---|---|\n";
    for words in WORDS {
        text += &format!("| `ferroce {words}` |");
        for case in 0..CASES.len() {
            let values = samples.entry((case, words)).or_default();
            let middle = median(values);
            let (least, most) = (values.first().copied(), values.last().copied());
            text += &format!(" {middle:.1} ({:.1}–{:.1}) |", least.unwrap_or(0.0), most.unwrap_or(0.0));
        }
        text.push('\n');
    }
    Ok(text)
}

/// The document with its section of that title replaced, or put in front of that of connections.
fn replaced(document: &str, section: &str) -> String {
    let (before, after) = match document.find(TITLE) {
        Some(at) => {
            let (before, old) = document.split_at(at);
            let end = old.get(TITLE.len()..).and_then(|rest| rest.find("\n## "));
            (before, end.map_or("", |end| old.split_at(TITLE.len() + end + 1).1))
        }
        None => document.find(super::connect::TITLE).map_or((document, ""), |at| document.split_at(at)),
    };
    let gap = if after.is_empty() { "" } else { "\n" };
    format!("{}\n\n{section}{gap}{after}", before.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_replaced_and_nothing_else() {
        let new = format!("{TITLE}\n\nnew\n");
        let connections = super::super::connect::TITLE;
        for (before, after) in [
            ("# B\n\ntext\n".to_owned(), format!("# B\n\ntext\n\n{new}")),
            (format!("# B\n\n{TITLE}\n\nold\n"), format!("# B\n\n{new}")),
            (format!("# B\n\n{connections}\n\nx\n"), format!("# B\n\n{new}\n{connections}\n\nx\n")),
            (
                format!("# B\n\n{TITLE}\n\nold\n\n{connections}\n\nx\n"),
                format!("# B\n\n{new}\n{connections}\n\nx\n"),
            ),
        ] {
            assert_eq!(replaced(&before, &new), after);
        }
    }
}
