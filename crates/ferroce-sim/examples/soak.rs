//! `just soak` starts this: `soak [--seeds N] [--first S] [--messages M] [--jobs J]`, or `soak --seed S [--messages M] [--trace]`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ferroce_sim::soak::{Failure, Report, Setting, check, run};

/// Failures that are printed.
const MOST_FAILURES: usize = 20;

struct Args {
    seeds: u64,
    first: u64,
    messages: u64,
    jobs: u64,
    seed: Option<u64>,
    trace: bool,
}

fn args() -> Result<Args, String> {
    let mut args = Args { seeds: 1000, first: 0, messages: 10_000, jobs: 1, seed: None, trace: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--trace" {
            args.trace = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        let value: u64 = value.parse().map_err(|_| format!("{word} {value}: this is no number"))?;
        match word.as_str() {
            "--seeds" => args.seeds = value,
            "--first" => args.first = value,
            "--messages" => args.messages = value,
            "--jobs" => args.jobs = value.clamp(1, 64),
            "--seed" => args.seed = Some(value),
            _ => return Err(format!("{word} is unknown")),
        }
    }
    if args.messages > u64::from(u32::MAX) {
        return Err("--messages is at most 4294967295".to_owned());
    }
    Ok(args)
}

fn main() -> ExitCode {
    let args = match args() {
        Ok(args) => args,
        Err(message) => {
            eprintln!("soak: {message}");
            return ExitCode::from(2);
        }
    };
    match args.seed {
        Some(seed) => replay(seed, &args),
        None => soak(&args),
    }
}

/// One seed, perhaps with its trace.
fn replay(seed: u64, args: &Args) -> ExitCode {
    let setting = Setting::of_seed(seed);
    eprintln!("{setting:#?}");
    let mut print = |line: String| println!("{line}");
    let report = run(&setting, args.messages, if args.trace { Some(&mut print) } else { None });
    eprintln!("{report:#?}");
    ExitCode::SUCCESS
}

fn soak(args: &Args) -> ExitCode {
    let started = Instant::now();
    let next = AtomicU64::new(args.first);
    let end = args.first.saturating_add(args.seeds);
    let (results, received) = mpsc::channel::<Result<Report, Failure>>();
    let mut sums = Sums::default();
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            let (results, next) = (results.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || results.send(check(seed, args.messages)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for result in received {
            sums.add(result);
            if (sums.seeds + sums.failures.len() as u64).is_multiple_of(100) {
                eprintln!("{} seeds after {:.0} s", sums.seeds, started.elapsed().as_secs_f64());
            }
        }
    });
    sums.print(started.elapsed(), args.messages)
}

#[derive(Default)]
struct Sums {
    seeds: u64,
    messages: u64,
    packets: u64,
    faults: [u64; 4],
    resent: u64,
    held: u64,
    simulated: Duration,
    longest: Duration,
    digest: u64,
    failures: Vec<Failure>,
}

impl Sums {
    fn add(&mut self, result: Result<Report, Failure>) {
        let report = match result {
            Ok(report) => report,
            Err(failure) => return self.failures.push(failure),
        };
        self.seeds += 1;
        self.messages += report.messages;
        self.packets += report.network.sent;
        let network = report.network;
        let faults =
            [network.dropped + report.overflowed, network.duplicated, network.delayed, network.corrupted];
        self.faults.iter_mut().zip(faults).for_each(|(sum, count)| *sum += count);
        self.resent += report.resent;
        self.held += report.held;
        self.simulated += report.simulated;
        self.longest = self.longest.max(report.simulated);
        // The order of the results depends on the jobs, the sum does not.
        self.digest = self.digest.wrapping_add(report.digest);
    }

    fn print(&self, took: Duration, messages: u64) -> ExitCode {
        let [lost, duplicated, delayed, corrupted] = self.faults;
        println!("{} seeds, {} messages, {} packets", self.seeds, self.messages, self.packets);
        println!("{lost} packets lost, {duplicated} duplicated, {delayed} delayed, {corrupted} corrupted");
        println!("{} packets sent again, {} requests executed from hold", self.resent, self.held);
        let simulated = self.simulated.as_secs_f64();
        println!("{simulated:.1} s simulated, at most {:.2} s a seed", self.longest.as_secs_f64());
        let rate = self.messages as f64 / took.as_secs_f64();
        println!("{:.0} s, {rate:.0} messages a second, digest {:016x}", took.as_secs_f64(), self.digest);
        for failure in self.failures.iter().take(MOST_FAILURES) {
            println!("FAILED {failure}");
            println!("  replay: just soak --seed {} --messages {messages} --trace", failure.seed);
        }
        println!("{} failures", self.failures.len());
        if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
