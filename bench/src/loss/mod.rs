//! `cargo xtask bench --loss`: goodput over paths that lose and reorder packets, by ferroce, TCP and the kernel's rxe.
//!
//! Ratios of a stack to itself without loss count, so all conditions of a measure follow each other. The samples are kept in a
//! file: a run continues the one before it.

mod grid;
mod guest;
mod programs;
mod report;
mod setting;
mod store;
mod veth;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::args::BenchArgs;
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;
use ferroce_harness::figures::{machine, replaced};
use ferroce_harness::tree;
use grid::{BEDS, Bed, Cell, GUEST_SECONDS, SECONDS};
use setting::Setting;
use store::Store;

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

const DOCUMENT: &str = "docs/BENCHMARKS.md";

/// Writes the section of the document.
fn save(text: &str) -> Result<()> {
    let document = tree::root().join(DOCUMENT);
    let text = replaced(&std::fs::read_to_string(&document)?, report::TITLE, text);
    Ok(std::fs::write(&document, text)?)
}
