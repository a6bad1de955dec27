//! `cargo xtask bench --connections`: Debian's cmtime, both ends in the guest, on the kernel's rxe and on
//! ferroce in turn. Emulated, so only the ratios say something.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::args::BenchArgs;
use super::guest::{HOST, Stacks};
use ferroce_harness::dist::Dist;
use ferroce_harness::figures::{machine, median, replaced, today};
use ferroce_harness::tree;

/// For one client of cmtime, in an emulated machine.
const LIMIT: Duration = Duration::from_secs(120);
/// The phases that cmtime measures, by its names.
const PHASES: [&str; 7] =
    ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];

/// Microseconds a connection, of each round: by stack, ferroce or not, and phase.
type Samples = BTreeMap<(bool, &'static str), Vec<f64>>;

/// Measures, prints, and with `--save` writes the section of docs/BENCHMARKS.md; true when every run ended well.
pub fn run(args: &BenchArgs) -> Result<bool> {
    let dist = match &args.dist {
        Some(folder) => Dist::at(folder),
        None => Dist::build()?,
    };
    let count = if args.quick { 100 } else { 1000 };
    let stacks = Stacks::up(&dist, None)?;
    let mut samples = Samples::new();
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        for ours in [false, true] {
            once(&stacks, ours, count, &mut samples)?;
        }
    }
    let text = report(args, count, &mut samples)?;
    print!("{text}");
    if args.save {
        let path = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&path, replaced(&std::fs::read_to_string(&path)?, TITLE, &text))?;
    }
    Ok(true)
}

/// One run of cmtime.
fn once(stacks: &Stacks, ours: bool, count: u32, samples: &mut Samples) -> Result<()> {
    stacks.choose(ours)?;
    let front = if ours { Stacks::front("", "--netdev eth0") } else { String::new() };
    // The server serves until it is ended.
    let line = format!(
        "{front}cmtime -b {HOST} >/dev/null 2>&1 & server=$!; sleep 3; \
         {front}cmtime -s {HOST} -c {count}; status=$?; kill $server; wait $server 2>/dev/null; exit $status"
    );
    let name = if ours { "cmtime ferroce" } else { "cmtime rxe" };
    let ended = stacks.run(name, &line, LIMIT)?;
    ensure!(ended.ok(), "{}", ended.describe());
    for phase in PHASES {
        let row = ended.output.lines().find(|line| line.split(':').next().map(str::trim) == Some(phase));
        let last = row.and_then(|row| row.split_whitespace().last()).and_then(|word| word.parse().ok());
        let Some(value) = last else { bail!("no figure for '{phase}': {}", ended.describe()) };
        samples.entry((ours, phase)).or_default().push(value);
    }
    Ok(())
}

const TITLE: &str = "## Connections";

fn report(args: &BenchArgs, count: u32, samples: &mut Samples) -> Result<String> {
    let mut text = format!(
        "{TITLE}\n\n\
         Made by `cargo xtask bench --connections --rounds {}{} --save` on {}: {}, in a guest of it (QEMU without KVM, Debian's \
         kernel 6.1).\nDebian's `cmtime -c {count}`, both ends at the guest's own address, on rxe and on ferroce in turn. Microseconds \
         of each phase, divided by the connections: median (least to greatest) of {} rounds. Phases of many connections \
         overlap, so that a phase is no latency.\n\n\
         | phase | ferroce | rxe | ratio |\n|---|---|---|---|\n",
        args.rounds,
        if args.quick { " --quick" } else { "" },
        today()?,
        machine()?,
        args.rounds
    );
    let mut sums = [0.0, 0.0];
    for phase in PHASES {
        let mut cell = |ours: bool| {
            let values = samples.entry((ours, phase)).or_default();
            let middle = median(values);
            let (least, most) = (values.first().copied(), values.last().copied());
            let text =
                format!("{middle:.1} ({:.1}–{:.1})", least.unwrap_or(f64::NAN), most.unwrap_or(f64::NAN));
            sums[usize::from(ours)] += middle;
            (middle, text)
        };
        let ((ours, our_text), (rxe, rxe_text)) = (cell(true), cell(false));
        text.push_str(&format!("| {phase} | {our_text} | {rxe_text} | {:.2} |\n", ours / rxe));
    }
    let [rxe, ours] = sums;
    text.push_str(&format!("| all, of the medians | {ours:.1} | {rxe:.1} | {:.2} |\n", ours / rxe));
    text.push_str(&format!(
        "| connections a second | {:.0} | {:.0} | {:.2} |\n",
        1e6 / ours,
        1e6 / rxe,
        rxe / ours
    ));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let args = BenchArgs { rounds: 3, quick: true, connections: true, ..BenchArgs::default() };
        let mut samples = Samples::new();
        for phase in PHASES {
            samples.insert((true, phase), vec![3.0, 1.0, 2.0]);
            samples.insert((false, phase), vec![4.0, 9.0, 1.0]);
        }
        let text = report(&args, 100, &mut samples).unwrap();
        assert!(text.contains("| connect | 2.0 (1.0–3.0) | 4.0 (1.0–9.0) | 0.50 |"), "{text}");
        assert!(text.contains("| connections a second | 71429 | 35714 | 2.00 |"), "{text}");
    }
}
