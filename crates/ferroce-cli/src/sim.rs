//! `ferroce sim`: scenarios in simulated time.

mod json;
mod print;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroce_fault::pcapng::{self, Captured};
use ferroce_sim::hosts::Event;
use ferroce_sim::scenario::{EXAMPLES, Observer, OnEvent, OnProgress, Outcome, Progress, RunError, Scenario};
use ferroce_sim::trace::line;

use crate::args::{SimArgs, Style};
use crate::capture;

/// The time between two reports of progress on a terminal.
const REPORT: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn run(args: &SimArgs, style: Style) -> ExitCode {
    let done = match (&args.print_example, &args.file) {
        (Some(name), _) => example(name),
        (None, Some(file)) => match read(file) {
            Ok(scenario) => all(&scenario, file, args, style),
            Err(message) => {
                eprintln!("ferroce: {message}");
                return ExitCode::from(2);
            }
        },
        (None, None) => Ok(false),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The attributes of the file's queue pairs are not possible.
        Err(error) if error.is::<RunError>() => {
            eprintln!("ferroce: {error:#}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("ferroce: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn example(name: &str) -> Result<bool> {
    let text = EXAMPLES.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text);
    put(text)?;
    Ok(true)
}

/// Prints to standard output. A reader that closed it early is no failure of ours to report.
fn put(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Reads the scenario of a file; the message names the place of an error and shows the line.
fn read(file: &Path) -> Result<Scenario, String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    text.parse().map_err(|error: ferroce_sim::scenario::ScenarioError| {
        let shown = error.source_line.trim_end();
        let mark: String =
            shown.chars().take(error.column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
        format!("{name}:{}:{}: {}\n  {shown}\n  {mark}^", error.line, error.column, error.message)
    })
}

/// Runs all seeds; whether every message ended as promised.
fn all(scenario: &Scenario, file: &Path, args: &SimArgs, style: Style) -> Result<bool> {
    let first = args.seed.unwrap_or(scenario.seed);
    let Some(count) = args.seeds else {
        let outcome = watched(scenario, first, args)?;
        match style.json || style.pretty {
            true => put(&json::array(std::slice::from_ref(&outcome), style)?)?,
            false => put(&print::whole(&outcome, style.details))?,
        }
        return Ok(repeat(&outcome, file));
    };
    let mut ok = 0;
    let mut kept = Vec::new();
    let json = style.json || style.pretty;
    seeds(scenario, first, count, |outcome| {
        ok += u64::from(repeat(&outcome, file));
        match json {
            true => kept.push(outcome),
            false => put(&print::summary(&outcome))?,
        }
        Ok(())
    })?;
    match json {
        true => put(&json::array(&kept, style)?)?,
        false => put(&format!("{ok} of {count} seeds ended as promised\n"))?,
    }
    Ok(ok == count)
}

/// Says on standard error how a run that failed is repeated; whether it did not fail.
fn repeat(outcome: &Outcome, file: &Path) -> bool {
    if outcome.is_ok() {
        return true;
    }
    print::failures(outcome).iter().for_each(|line| eprintln!("ferroce: seed {}: {line}", outcome.seed));
    let name = file.display().to_string();
    let plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_'));
    let name = if plain { name } else { format!("'{}'", name.replace('\'', "'\\''")) };
    eprintln!("ferroce: repeat with: ferroce sim {name} --seed {}", outcome.seed);
    false
}

/// Runs one seed, with a trace and a capture if they are asked for.
fn watched(scenario: &Scenario, seed: u64, args: &SimArgs) -> Result<Outcome> {
    let name = |path: &Path| path.display().to_string();
    let mut lines = None;
    if let Some(path) = &args.trace {
        lines = Some(BufWriter::new(File::create(path).with_context(|| name(path))?));
    }
    let mut frames = None;
    if let Some(path) = &args.pcap {
        frames = Some(capture::create(path).with_context(|| name(path))?);
    }
    // The first error ends the writing, and is reported behind the run.
    let failed: RefCell<Option<io::Error>> = RefCell::new(None);
    let write = |now, event: &Event<'_>| {
        let done = (|| {
            if let Some(lines) = &mut lines {
                writeln!(lines, "{}", line(now, event))?;
            }
            match (&mut frames, event) {
                (Some(frames), Event::Sent(_, frame)) => {
                    let (mut octets, mut block) = (Vec::new(), Vec::new());
                    let link = pcapng::put_frame(&mut octets, &frame.flow, frame.ip_id, &frame.bytes);
                    let (nanos, octets) = (now.as_nanos(), &octets[..]);
                    pcapng::put(&mut block, &Captured { nanos, link, dir: None, octets, comment: &[] });
                    frames.write_all(&block)
                }
                _ => Ok(()),
            }
        })();
        if let Err(error) = done {
            failed.borrow_mut().get_or_insert(error);
        }
    };
    let trace: Option<OnEvent<'_>> = match args.trace.is_some() || args.pcap.is_some() {
        true => Some(Box::new(write)),
        false => None,
    };
    let outcome = scenario.run_observed(seed, Observer { trace, progress: reporter(seed) })?;
    let mut end = failed.into_inner().map_or(Ok(()), Err);
    if let Some(lines) = &mut lines {
        end = end.and_then(|()| lines.flush());
    }
    if let Some(frames) = &mut frames {
        end = end.and_then(|()| frames.flush());
    }
    end.context("the trace or capture cannot be written")?;
    Ok(outcome)
}

/// Reports progress on a terminal.
fn reporter<'o>(seed: u64) -> Option<OnProgress<'o>> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let mut last = Instant::now();
    Some(Box::new(move |progress: Progress| {
        if last.elapsed() >= REPORT {
            last = Instant::now();
            let Progress { now, end, packets } = progress;
            eprint!("\rseed {seed}: {now:.3?} of {end:?} simulated, {packets} packets\x1b[K\r");
        }
    }))
}

/// Runs many seeds on all cores, and gives their outcomes in order.
fn seeds(
    scenario: &Scenario,
    first: u64,
    count: u64,
    mut take: impl FnMut(Outcome) -> Result<()>,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count as usize);
    let next = AtomicU64::new(0);
    let terminal = io::stderr().is_terminal();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(threads);
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count
                        || sender.send((place, scenario.run(first.wrapping_add(place)))).is_err()
                    {
                        return;
                    }
                }
            });
        }
        drop(sender);
        // Outcomes that came before an earlier seed's.
        let mut early = std::collections::BTreeMap::new();
        let mut due = 0;
        for (place, outcome) in receiver {
            early.insert(place, outcome);
            while let Some(outcome) = early.remove(&due) {
                due += 1;
                take(outcome?)?;
            }
            if terminal {
                eprint!("\r{} of {count} seeds\x1b[K\r", due + early.len() as u64);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
