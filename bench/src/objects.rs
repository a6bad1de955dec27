//! `cargo xtask bench --objects`: how long `ferroce resource show` takes while programs have many queue pairs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::args::BenchArgs;
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::figures::{machine, median, replaced, today};
use ferroce_harness::{cc, netns, tree};

/// Programs, and queue pairs of all of them.
const CASES: [(usize, usize); 3] = [(1, 1), (3, 100), (3, 3000)];
const WORDS: [&str; 4] = ["resource show", "resource show qp", "statistic show", "statistic qp"];
/// The limit with 3 programs and 100 queue pairs, in milliseconds.
const MUST: f64 = 50.0;

const TITLE: &str = "## Objects of all programs";

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
        std::fs::write(&path, replaced(&std::fs::read_to_string(&path)?, TITLE, &text))?;
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
