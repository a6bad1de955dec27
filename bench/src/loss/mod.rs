//! `cargo xtask bench --loss`: goodput over paths that lose and reorder packets, by ferroce, TCP and the kernel's rxe.
//!
//! Ratios of a stack to itself without loss count, so all conditions of a measure follow each other. The samples are kept in a
//! file: a run continues the one before it.

mod grid;
mod guest;
mod programs;
mod report;
mod store;
mod veth;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::args::BenchArgs;
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;
use ferroce_harness::figures::{machine, replaced};
use ferroce_harness::tree;
use grid::{BEDS, Bed, Cell};
use store::Store;

/// The length of a sample on the machine, and in the emulated guest.
const SECONDS: u32 = 1;
const GUEST_SECONDS: u32 = 2;

/// The parts that the beds share.
struct Setting {
    dist: Dist,
    programs: Programs,
    me: PathBuf,
    logs: Logs,
}

impl Setting {
    /// The folder of ferroce's brokers.
    fn runtime(&self) -> Result<PathBuf> {
        let runtime = self.logs.0.join("run");
        std::fs::create_dir_all(&runtime)?;
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700))?;
        Ok(runtime)
    }
}

/// Takes the samples that are missing; prints, and with `--save` writes the documents. True when every run ended well.
pub fn run(args: &BenchArgs) -> Result<bool> {
    let began = Instant::now();
    let programs = Programs::ensure(&[debian::BASIC, debian::BENCH, programs::NEEDED])?;
    let dist = match &args.dist {
        Some(folder) => Dist::at(std::path::absolute(folder)?),
        None => Dist::build()?,
    };
    let logs = Logs(tree::target().join("xtask").join("bench-loss"));
    std::fs::create_dir_all(&logs.0)?;
    let seconds = SECONDS + GUEST_SECONDS;
    let of = format!("{}, library {:x}, {seconds} s", machine()?, store::fingerprint(&dist.library())?);
    let mut store = Store::open(logs.0.join("samples.json"), of, args.again);
    let setting = Setting { dist, programs, me: std::env::current_exe()?, logs };
    let rounds = args.rounds as usize;
    let limit = args.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let is_late = || limit.is_some_and(|limit| began.elapsed() > limit);
    let chosen = |cell: &Cell| {
        let name = cell.name().to_lowercase();
        args.rows.is_empty() || args.rows.iter().any(|filter| name.contains(&filter.to_lowercase()))
    };
    let mut missing = 0;
    for bed in BEDS {
        let cells: Vec<Cell> = bed.cells().into_iter().filter(chosen).collect();
        let left = |store: &Store| {
            cells.iter().map(|cell| rounds.saturating_sub(store.of(cell).runs())).sum::<usize>()
        };
        if left(&store) > 0 && !is_late() {
            on(bed, &setting, &cells, rounds, &mut store, &is_late)?;
        }
        missing += left(&store);
    }
    let text = report::report(args, &store)?;
    print!("{text}");
    let failed = BEDS.iter().flat_map(|bed| bed.cells()).map(|cell| store.of(&cell).failures).sum::<u32>();
    println!("{failed} runs failed, {missing} samples are missing");
    if args.save {
        ensure!(missing == 0, "not saved: the same command again takes the samples that are missing");
        save(&text)?;
    }
    Ok(failed == 0)
}

/// The ends of a bed.
enum Place<'a> {
    Veth(veth::Veth<'a>),
    Guest(guest::InGuest<'a>),
}

/// Takes the samples of one bed.
fn on(
    bed: Bed,
    setting: &Setting,
    cells: &[Cell],
    rounds: usize,
    store: &mut Store,
    is_late: &dyn Fn() -> bool,
) -> Result<()> {
    let mut place = match bed {
        Bed::Veth => Place::Veth(veth::Veth::new(setting)?),
        Bed::Pair | Bed::Guest => Place::Guest(guest::InGuest::up(setting)?),
    };
    for round in 1..=rounds {
        for cell in cells {
            if store.of(cell).runs() >= round {
                continue;
            }
            if is_late() {
                return Ok(());
            }
            let sample = match &mut place {
                Place::Veth(place) => place.measure(cell)?,
                Place::Guest(place) => place.measure(cell)?,
            };
            let shown = match &sample {
                Ok(value) => format!("{:.1} MB/s", value / 1e6),
                Err(why) => why.replace('\n', "\n  "),
            };
            eprintln!("round {round} of {rounds}, {}: {shown}", cell.name());
            store.add(cell, sample)?;
        }
    }
    Ok(())
}

/// Octets a second in the output of the client.
fn rate(cell: &Cell, output: &str) -> Option<f64> {
    let after = |name: &str| -> Option<f64> {
        output.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
    };
    let size = cell.size as f64;
    if cell.stack.is_tcp() {
        return Some(after("messages")? / after("seconds")? * size);
    }
    // perftest's own rate depends on its measurement of the processor's clock, which fails under emulation.
    let row = output.lines().find(|line| line.split_whitespace().next() == Some(&cell.size.to_string()))?;
    let messages: f64 = row.split_whitespace().nth(1)?.parse().ok()?;
    let seconds = if cell.bed == Bed::Veth { SECONDS } else { GUEST_SECONDS };
    Some(messages * size / f64::from(seconds))
}

const DOCUMENT: &str = "docs/BENCHMARKS.md";

/// Writes the section of the document.
fn save(text: &str) -> Result<()> {
    let document = tree::root().join(DOCUMENT);
    let text = replaced(&std::fs::read_to_string(&document)?, report::TITLE, text);
    Ok(std::fs::write(&document, text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_messages_in_the_time() {
        let cell = |tcp: bool| Bed::Veth.cells().into_iter().find(|cell| cell.stack.is_tcp() == tcp).unwrap();
        let table = " #bytes  #iterations  BW peak\n 65536  2000  0.00  0.00  0.00\n----\n";
        assert_eq!(rate(&cell(false), table), Some(131_072_000.0));
        assert_eq!(rate(&cell(true), "seconds 0.5 gap 3 messages 100\n"), Some(13_107_200.0));
        assert_eq!(rate(&cell(true), "no"), None);
    }
}
