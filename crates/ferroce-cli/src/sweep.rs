//! `ferroce sweep`: a program with one fault after the other.

mod result;
mod rules;
mod runner;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;

use crate::args::{Compare, Style, SweepArgs};
use crate::rows;
use crate::usage::Usage;

use result::{Expected, Verdict};
pub use runner::ends;
use runner::{Ended, Runner};

/// A rule and what became of the program.
#[derive(Serialize, Debug)]
struct Row {
    rule: String,
    verdict: Verdict,
    /// The exit status, as shells have it; without one the run was ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    /// How often the rule acted.
    hits: usize,
    seconds: f64,
    detail: String,
    /// The command that does it again.
    command: String,
}

pub fn run(args: &SweepArgs, style: Style) -> ExitCode {
    match sweep(args, style) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ferroce: {error:#}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// Whether no run had a problem.
fn sweep(args: &SweepArgs, style: Style) -> Result<bool> {
    let rules = rules::all(&args.errno)?;
    let end = args.budget.map(|budget| Instant::now() + budget);
    let runner = Runner::new(args.command.clone(), args.shared_net)?;
    let left = |limit: Option<Duration>| {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        limit.into_iter().chain(left).min().unwrap_or(Duration::MAX)
    };
    let told = io::stderr().is_terminal();
    if told {
        eprint!("\rwithout a fault\x1b[K\r");
    }
    let reference = must_succeed(runner.run("", left(args.timeout))?, "without a fault")?;
    let limit = args.timeout.unwrap_or(reference.elapsed * 10 + Duration::from_secs(10));
    let survey = runner.run(&rules::survey(&rules), left(Some(limit)))?;
    let survey = must_succeed(survey, "with rules that do no harm")?;
    let expected = Expected::new(args.compare, &reference, &survey);
    if args.compare == Compare::Auto && expected.compare == Compare::Status {
        eprintln!("ferroce: the output is another one in each run, so only the exit status is compared");
    }
    let reached: Vec<&rules::Rule> = rules.iter().filter(|rule| survey.hits.contains(&rule.trial)).collect();
    if reached.is_empty() {
        bail!("no rule acts on the program: it makes no call of verbs, or does not load ferroce's libraries");
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let jobs = if args.shared_net { 1 } else { args.jobs.map_or(processors, usize::from) };
    let next = AtomicUsize::new(0);
    let mut rows = BTreeMap::new();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs.min(reached.len()) {
            let (sender, next, reached, expected, runner) =
                (sender.clone(), &next, &reached, &expected, &runner);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(rule) = reached.get(place) else { return };
                    let limit_now = left(Some(limit));
                    let done = (!limit_now.is_zero()).then(|| runner.run(&rule.text, limit_now));
                    let cut = limit_now < limit;
                    let row = done.transpose().map(|ended| row(args, &rule.text, ended, expected, cut));
                    if sender.send((place, row)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (place, row) in receiver {
            rows.insert(place, row?);
            if told {
                let problems = rows.values().filter(|row: &&Row| row.verdict.is_problem()).count();
                progress(rows.len(), reached.len(), problems);
            }
        }
        anyhow::Ok(())
    })?;
    if told {
        eprint!("\x1b[K");
    }
    let rows: Vec<Row> = rows.into_values().collect();
    let text = match rows::json(&rows, style)? {
        Some(json) => json,
        None => table(&rows, rules.len(), style.details),
    };
    rows::write_text(&text)?;
    Ok(!rows.iter().any(|row| row.verdict.is_problem()))
}

/// The end of a run that has to succeed, because every other one is compared with it.
fn must_succeed(ended: Ended, how: &str) -> Result<Ended> {
    match ended.status {
        Some(0) => Ok(ended),
        None => bail!("the program does not end {how} within {:.1} s", ended.elapsed.as_secs_f64()),
        Some(status) => {
            let message = ended.message();
            let why = if message.is_empty() { String::new() } else { format!(":\n{}", message.trim_end()) };
            bail!("the program fails {how}, with exit status {status}{why}")
        }
    }
}

/// The row of a rule; without an end there was no time for it. `cut` tells that the budget, and not the time
/// limit of a run, ended it.
fn row(args: &SweepArgs, rule: &str, ended: Option<Ended>, expected: &Expected, cut: bool) -> Row {
    let command = command(&args.command, rule, args.shared_net);
    let Some(ended) = ended.filter(|ended| !(cut && ended.status.is_none())) else {
        let detail = "the budget is used up".to_owned();
        return Row {
            rule: rule.to_owned(),
            verdict: Verdict::NotRun,
            status: None,
            hits: 0,
            seconds: 0.0,
            detail,
            command,
        };
    };
    let (verdict, detail) = expected.judge(&ended);
    Row {
        rule: rule.to_owned(),
        verdict,
        status: ended.status,
        hits: ended.hits.len(),
        seconds: (ended.elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        detail,
        command,
    }
}

/// The command that runs the program with a rule, for a shell.
fn command(program: &[OsString], rule: &str, shared_net: bool) -> String {
    let net = if shared_net { "" } else { " --private-net" };
    let words: Vec<String> = program.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    format!("ferroce run{net} --fault {} -- {}", quoted(rule), words.join(" "))
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.-_=,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn progress(done: usize, all: usize, problems: usize) {
    const WIDTH: usize = 30;
    let full = WIDTH * done / all.max(1);
    let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
    eprint!("\r[{bar}] {done} of {all} rules, {problems} problems\x1b[K\r");
}

/// A line for each rule that acted, the command of each problem, and a summary. The commands of all rules are
/// details.
fn table(rows: &[Row], rules: usize, details: bool) -> String {
    let mut text = String::new();
    let width = rows.iter().map(|row| row.rule.len()).max().unwrap_or(0);
    for row in rows {
        let Row { rule, verdict, seconds, detail, .. } = row;
        let line = format!("{:<8} {seconds:>8.2} s  {rule:<width$}  {detail}", verdict.name());
        text.push_str(line.trim_end());
        text.push('\n');
        if details || row.verdict.is_problem() {
            text.push_str(&format!("           repeat with: {}\n", row.command));
        }
    }
    let count = |verdict: Verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let counts =
        Verdict::ALL.into_iter().map(|verdict| (verdict, count(verdict))).filter(|(_, count)| *count > 0);
    let counts: Vec<String> = counts.map(|(verdict, count)| format!("{count} {}", verdict.name())).collect();
    text.push_str(&format!("{} of {rules} rules act on the program: {}\n", rows.len(), counts.join(", ")));
    text
}

#[cfg(test)]
mod tests;
