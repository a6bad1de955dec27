//! Running the trials, in a network namespace of our own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::outcome::{Outcome, TrialState};
use super::software::{self, Missing};
use super::trial::{Ends, Place, Start, Trial};
use crate::Bed;
use crate::nobody::Nobody;
use ferroce_harness::exchange::{Exchange, Meeting, listening};
use ferroce_harness::job;
use ferroce_harness::netns;
use ferroce_harness::report::Checks;

/// The server listens by then; nothing outside shows that it does.
const PATIENCE: Duration = Duration::from_millis(700);
/// The address of the link.
const ADDRESS: &str = "10.9.0.1";

/// Runs trials one after the other, all as user nobody: ferroce serves one user in a network namespace.
pub struct Runner<'a> {
    bed: &'a Bed,
    nobody: Nobody<'a>,
    files: PathBuf,
    /// Whether each trial runs on its own TCP transport as well.
    compares: bool,
    /// The software whose folder was copied last, and the copy.
    copied: Option<(&'static str, PathBuf)>,
}

/// The transport of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Ferroce,
    /// The program's own.
    Tcp,
}

impl<'a> Runner<'a> {
    /// Copies the distribution and our scripts to where nobody can read them.
    pub fn new(bed: &'a Bed, compares: bool) -> Result<Self> {
        let nobody = Nobody::new(bed, "ferroce-compat")?;
        let files = nobody.folder(&software::sources(), "files")?;
        Ok(Self { bed, nobody, files, compares, copied: None })
    }

    /// Runs a trial `rounds` times, on its own transport in turn.
    pub fn trial(&mut self, trial: &Trial, rounds: u32, missing: &Missing) -> Result<Outcome> {
        let mut outcome = Outcome::of(trial);
        if let Some(why) = missing.get(trial.of.name) {
            outcome.state = TrialState::NotRun(why.clone());
            return Ok(outcome);
        }
        self.copy(trial)?;
        let link = (trial.place == Place::Link).then(|| Link::add(&self.nobody)).transpose()?;
        let words = if trial.fails.is_some() { "fails, as known:" } else { "FAIL" };
        let mut checks = Checks::aside(words);
        let mut ended = 0;
        for _ in 0..rounds {
            // A broker that was idle for a minute exits with its counters: count around the run alone.
            let before = self.octets()?;
            if let Some(figure) = self.meet(trial, Over::Ferroce, &mut checks)? {
                ended += 1;
                outcome.ferroce.extend(figure);
            }
            outcome.octets += self.octets()?.saturating_sub(before);
            if self.compares && trial.tcp.is_some() {
                let figure = self.meet(trial, Over::Tcp, &mut Checks::aside("its TCP fails:"))?.flatten();
                outcome.tcp.extend(figure);
            }
        }
        drop(link);
        let few = outcome.octets < trial.octets * u64::from(ended);
        if few {
            let text = format!("it ended well, but ferroce counted {} octets only", outcome.octets);
            checks.fail(trial.what, &text);
        }
        let good = checks.good() && ended == rounds;
        outcome.state = match (good, trial.fails) {
            (true, None) => TrialState::Passed,
            (true, Some(_)) => TrialState::Unexpected,
            (false, Some(why)) => TrialState::Known(why.to_owned()),
            (false, None) => TrialState::Failed,
        };
        Ok(outcome)
    }

    /// Copies what the software compiled or installed, once for all its trials.
    fn copy(&mut self, trial: &Trial) -> Result<()> {
        let folder = trial.of.folder();
        if self.copied.as_ref().is_some_and(|(name, _)| *name == trial.of.name) || !folder.is_dir() {
            return Ok(());
        }
        if let Some((_, old)) = self.copied.take() {
            std::fs::remove_dir_all(old)?;
        }
        let copy = self.nobody.folder(&folder, trial.of.name)?;
        self.copied = Some((trial.of.name, copy));
        Ok(())
    }

    /// Runs the ends. `None` if they failed, else the figure, if there is one.
    fn meet(&self, trial: &Trial, over: Over, checks: &mut Checks) -> Result<Option<Option<f64>>> {
        let port = self.bed.port();
        let limit = Duration::from_secs(trial.seconds);
        let name =
            format!("{} {}{}", trial.of.name, trial.what, if over == Over::Tcp { ", TCP" } else { "" });
        let home = self.nobody.scratch("home")?;
        let mut commands = self.commands(trial, over, port, &home.display().to_string())?.into_iter();
        let first = commands.next().context("a trial without a command")?;
        let says = |output: &str| {
            ensure!(output.contains(trial.says), "it did not print \"{}\"", trial.says);
            Ok(())
        };
        let Some(client) = commands.next() else {
            let ended = job::run(first, &self.bed.logs.path(&name), limit)?;
            if !ended.ok() {
                checks.fail(&name, &ended.describe());
                return Ok(None);
            }
            if let Err(why) = says(&ended.output) {
                checks.fail(&name, &format!("{why}\n{}", ended.describe()));
                return Ok(None);
            }
            return Ok(Some(figure(trial, &ended, checks)));
        };
        let judge = |client: &job::Ended, _: &job::Ended| says(&client.output);
        let endless = trial.endless;
        let ends = match trial.start {
            Start::Listening => {
                let ready = Box::new(move || listening(port));
                let exchange = Exchange { name, server: first, client, ready, limit };
                exchange.start(&self.bed.logs)?.judge(endless, &judge, checks)?
            }
            Start::Pause => {
                let patience = Some(PATIENCE);
                let meeting =
                    Meeting { name, server: first, client, patience, judge: &judge, endless, limit };
                meeting.run(&self.bed.logs, checks)?
            }
        };
        Ok(ends.map(|(client, _)| figure(trial, &client, checks)))
    }

    fn commands(&self, trial: &Trial, over: Over, port: u16, home: &str) -> Result<Vec<Command>> {
        let (ends, variables): (Ends, _) = match (over, trial.tcp) {
            (Over::Tcp, Some(tcp)) => tcp,
            _ => (trial.ends, trial.variables),
        };
        let host = if trial.place == Place::Link { ADDRESS } else { "127.0.0.1" };
        let folder = self.copied.as_ref().map(|(_, copy)| copy.display().to_string()).unwrap_or_default();
        let fill = |words: &str| {
            words
                .replace("{port}", &port.to_string())
                .replace("{host}", host)
                .replace("{home}", home)
                .replace("{files}", &self.files.display().to_string())
                .replace("{bin}", &format!("{folder}/bin"))
                .replace("{wheels}", &format!("{folder}/wheels"))
        };
        ends.iter()
            .map(|words| {
                let words = fill(words);
                let mut words = words.split_whitespace();
                let program = words.next().context("an end without a program")?;
                let program = self.bed.programs.find(program).unwrap_or_else(|| PathBuf::from(program));
                let mut command = match over {
                    Over::Tcp => self.nobody.plain(&program),
                    Over::Ferroce => {
                        let mut command = self.nobody.ferroce();
                        command.arg("run").args(trial.options.split_whitespace()).arg("--").arg(program);
                        command
                    }
                };
                command.args(words).env("HOME", home).env("TMPDIR", home);
                command.envs(variables.iter().map(|(name, value)| (name, fill(value))));
                Ok(command)
            })
            .collect()
    }

    /// Octets that the devices sent and copied directly so far.
    fn octets(&self) -> Result<u64> {
        let output = self.nobody.ferroce().args(["-d", "-j", "statistic", "show"]).output()?;
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let counted = |row: &serde_json::Value, name: &str| row.get(name).and_then(serde_json::Value::as_u64);
        let sum = |row| {
            ["sent_octets", "direct_octets"].map(|name| counted(row, name).unwrap_or(0)).iter().sum::<u64>()
        };
        Ok(rows.iter().map(sum).sum())
    }
}

/// The figure of a client's output, if there should be one.
fn figure(trial: &Trial, client: &job::Ended, checks: &mut Checks) -> Option<f64> {
    let figure = (trial.figure?.read)(&client.output);
    if figure.is_none() {
        checks.fail(trial.what, &format!("no figure in what it printed\n{}", client.describe()));
    }
    figure
}

/// A link on one end of a veth pair.
struct Link<'a>(&'a Nobody<'a>);

impl<'a> Link<'a> {
    fn add(nobody: &'a Nobody<'a>) -> Result<Self> {
        for words in [
            "link add v0 mtu 4200 type veth peer name v1 mtu 4200",
            "address add 10.9.0.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
        ] {
            succeeds(Command::new("ip").args(words.split(' ')))?;
        }
        // Programs that use GID 0, the link-local address, fail while the kernel looks for duplicates of it.
        netns::until("v0 has an IPv6 address that is no longer tentative", || {
            let output = Command::new("ip").args(["-6", "-o", "address", "show", "dev", "v0"]).output();
            let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
            text.contains("fe80") && !text.contains("tentative")
        })?;
        let link = Self(nobody);
        succeeds(nobody.ferroce().args([
            "link",
            "add",
            "fr1",
            "type",
            "roce",
            "netdev",
            "v0",
            "--no-persist",
        ]))?;
        Ok(link)
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        let _ = self.0.ferroce().args(["link", "delete", "fr1"]).output();
        let _ = Command::new("ip").args(["link", "delete", "v0"]).output();
    }
}

fn succeeds(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| job::line(command))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", job::line(command), errors.trim());
    Ok(())
}
