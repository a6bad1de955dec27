//! Takes each measure of a table once a round, ours and the rivals in turn, so that a slow minute hits all alike.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::Signal;
use nix::sys::time::TimeValLike;

use super::rows::Row;
use super::spec::{Figures, Path, Spec, Tools};
use ferroce_harness::exchange::Logs;
use ferroce_harness::job::{Ended, Job};
use ferroce_harness::place::Place;

/// For each end. A measure lasts about a second, and a thousand queue pairs take some more to connect.
const LIMIT: Duration = Duration::from_secs(90);
/// The most round trips of a measure beside busy processes.
const BUSY_ROUND_TRIPS: u64 = 500;
/// How often the first run of a measure is tried.
const TRIES: u32 = 3;
/// Busy processes end by themselves after so many seconds, whatever happens to this one.
const BUSY_LIMIT: &str = "120";

/// A measure over the rounds.
#[derive(Default)]
pub struct Measured {
    /// One of each round that went well.
    pub rounds: Vec<Figures>,
    /// The reason for which it could not be taken.
    pub missing: Option<String>,
    /// How many runs failed, which is more than that something is not there.
    pub failures: u32,
    /// The number of messages of a round.
    pub count: u64,
    /// The processor time of the first run, which is mostly start-up, and its number of messages.
    pub first: (f64, u64),
}

/// Every measure of a table.
pub type Outcome = BTreeMap<Spec, Measured>;

/// Runs measures.
pub struct Runner {
    pub tools: Tools,
    pub logs: Logs,
    /// Seconds of a measure.
    pub seconds: f64,
    places: BTreeMap<Path, Place>,
    port: u16,
}

/// One run of a measure: the sum over its processes, and the processor time of them all.
struct Run {
    figures: Figures,
    cpu: f64,
}

/// The reason for which a run gave no figures.
struct Refused {
    why: String,
    failed: bool,
}

impl Runner {
    /// Makes the paths that the rows need.
    pub fn new(tools: Tools, logs: Logs, seconds: f64, rows: &[Row]) -> Result<Self> {
        let mut places = BTreeMap::new();
        for path in rows.iter().flat_map(Row::specs).map(|spec| spec.path) {
            if places.contains_key(&path) {
                continue;
            }
            let place = match path {
                Path::Wire | Path::Host => Place::loopback(),
                Path::Wire6 => Place::loopback6(),
                Path::Cut => Place::cut(&tools.programs)?,
            };
            places.insert(path, place);
        }
        Ok(Self { tools, logs, seconds, places, port: 22_000 })
    }

    /// All rounds of all rows. The first run of each measure finds the number of messages, and is not counted.
    pub fn all(&mut self, rows: &[Row], rounds: u32) -> Result<Outcome> {
        let mut specs: Vec<&Spec> = Vec::new();
        for spec in rows.iter().flat_map(Row::specs) {
            if !specs.contains(&spec) {
                specs.push(spec);
            }
        }
        let mut outcome = Outcome::new();
        let turns = (rounds as usize + 1) * specs.len();
        let began = Instant::now();
        for round in 0..=rounds {
            for (number, spec) in specs.iter().copied().enumerate() {
                let done = round as usize * specs.len() + number;
                let left = began.elapsed().mul_f64((turns - done) as f64 / done.max(1) as f64);
                let head =
                    if round == 0 { "first run".to_owned() } else { format!("round {round} of {rounds}") };
                let left = if done < 5 { String::new() } else { format!(", {} left", spoken(left)) };
                eprintln!("{head}, {} of {}{left}: {}", number + 1, specs.len(), spec.name());
                let measured = outcome.entry(spec.clone()).or_default();
                match round {
                    0 => self.first(spec, measured)?,
                    _ => self.round(spec, measured)?,
                }
            }
        }
        Ok(outcome)
    }

    fn first(&mut self, spec: &Spec, measured: &mut Measured) -> Result<()> {
        if let Some((program, package)) = spec.needs()
            && self.tools.programs.find(program).is_none()
        {
            let why =
                format!("{program} is not here; Debian's package {package} brings it: apt install {package}");
            eprintln!("  {why}");
            measured.missing = Some(why);
            return Ok(());
        }
        let count = spec.first_count();
        // A run that fails is a failure, but other runs may tell more.
        for _ in 0..TRIES {
            match self.once(spec, count, &plain)? {
                Ok(run) => {
                    measured.count = self.wanted(spec, &run.figures);
                    measured.first = (run.cpu, count);
                    break;
                }
                Err(refused) => {
                    let failed = refused.failed;
                    note(measured, refused);
                    if !failed {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The number of messages that last as long as they should.
    fn wanted(&self, spec: &Spec, figures: &Figures) -> u64 {
        // Several pairs do not start at the same moment, so that they need longer to be at work together.
        let seconds = if spec.processes > 1 { 4.0 * self.seconds } else { self.seconds };
        let wanted = figures.rate / f64::from(spec.processes) * seconds;
        // Beside busy processes a round trip may take microseconds in one run and milliseconds in the next.
        let most = if spec.busy && spec.is_latency() { BUSY_ROUND_TRIPS } else { 20_000_000 };
        (wanted as u64).clamp(100, most)
    }

    fn round(&mut self, spec: &Spec, measured: &mut Measured) -> Result<()> {
        if measured.count == 0 {
            return Ok(());
        }
        let count = measured.count;
        match self.once(spec, count, &plain)? {
            Ok(Run { mut figures, cpu }) => {
                let (first_cpu, first_count) = measured.first;
                let more = count.saturating_sub(first_count) as f64 * f64::from(spec.processes);
                // Too few more messages than in the first run would leave a difference of start-up times.
                if count > 4 * first_count && cpu > first_cpu && !spec.is_timed() {
                    figures.cpu = Some((cpu - first_cpu) / more);
                }
                // A short first run tells little of the rate.
                measured.count = self.wanted(spec, &figures);
                measured.rounds.push(figures);
            }
            Err(refused) => note(measured, refused),
        }
        Ok(())
    }

    /// Runs a measure once with each end's command changed by `wrap`, which is told whether it is the server's; after two
    /// runs without, which find the number of messages. The inner error is the reason for which it cannot run here.
    pub fn under(
        &mut self,
        spec: &Spec,
        wrap: impl Fn(bool, Command) -> Command,
    ) -> Result<Result<(), String>> {
        let mut measured = Measured::default();
        self.first(spec, &mut measured)?;
        self.round(spec, &mut measured)?;
        if measured.count == 0 {
            return Ok(Err(measured.missing.unwrap_or_default()));
        }
        Ok(self.once(spec, measured.count, &wrap)?.map(drop).map_err(|refused| refused.why))
    }

    /// Starts all servers, then all clients, and waits for them.
    fn once(
        &mut self,
        spec: &Spec,
        count: u64,
        wrap: &dyn Fn(bool, Command) -> Command,
    ) -> Result<Result<Run, Refused>> {
        let place = self.places.get(&spec.path).context("a path without a place")?;
        let busy = if spec.busy { Busy::start(&self.tools)? } else { Busy(Vec::new()) };
        let before = children()?;
        let mut servers = Vec::new();
        for number in 0..spec.processes {
            self.port = if self.port < 29_000 { self.port + 1 } else { 22_000 };
            let log = self.logs.path(&format!("{} server {number}", spec.name()));
            let command = wrap(true, spec.command(&self.tools, place, true, count, self.port));
            servers.push((self.port, Job::start(command, &log, LIMIT)?));
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        let ready = |servers: &mut [(u16, Job)]| {
            servers.iter_mut().all(|(port, job)| place.listening(*port) || job.ended())
        };
        while !ready(&mut servers) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut clients = Vec::new();
        for (number, (port, _)) in servers.iter().enumerate() {
            let log = self.logs.path(&format!("{} client {number}", spec.name()));
            let command = wrap(false, spec.command(&self.tools, place, false, count, *port));
            clients.push(Job::start(command, &log, LIMIT)?);
        }
        let clients = clients.into_iter().map(Job::wait).collect::<Result<Vec<_>>>()?;
        if clients.iter().any(|client| !client.ok()) {
            // A server without a client may wait for ever.
            std::thread::sleep(Duration::from_millis(300));
            servers.iter().for_each(|(_, job)| job.signal(Signal::SIGTERM));
        }
        let servers = servers.into_iter().map(|(_, job)| job.wait()).collect::<Result<Vec<_>>>()?;
        let cpu = children()? - before;
        drop(busy);
        Ok(sum(spec, count, &clients, &servers).map(|figures| Run { figures, cpu }))
    }
}

/// The command as it is.
fn plain(_: bool, command: Command) -> Command {
    command
}

/// The figures of all processes together.
fn sum(spec: &Spec, count: u64, clients: &[Ended], servers: &[Ended]) -> Result<Figures, Refused> {
    let mut total = Figures::default();
    for (client, server) in clients.iter().zip(servers) {
        if !client.ok() || !server.ok() {
            return Err(refusal(client, server));
        }
        let teller = if spec.is_counted_by_server() { server } else { client };
        let Some(one) = spec.figures(&teller.output, count) else {
            return Err(Refused { why: format!("no figures: {}", teller.describe()), failed: true });
        };
        total.rate += one.rate;
        total.micros = one.micros.map(|micros| micros.max(total.micros.unwrap_or(0.0)));
        total.stall = one.stall.map(|stall| stall.max(total.stall.unwrap_or(0.0)));
    }
    Ok(total)
}

/// A library that has no such datapath says so, which is no failure.
fn refusal(client: &Ended, server: &Ended) -> Refused {
    let lines = client.output.lines().chain(server.output.lines());
    let told = lines.into_iter().find(|line| line.contains("FERROCE_DATAPATH"));
    match told {
        Some(line) => Refused { why: format!("not available: {}", line.trim()), failed: false },
        None => Refused {
            why: format!("client: {}\nserver: {}", client.describe(), server.describe()),
            failed: true,
        },
    }
}

fn note(measured: &mut Measured, refused: Refused) {
    eprintln!("  {}", refused.why.replace('\n', "\n  "));
    measured.failures += u32::from(refused.failed);
    measured.missing = Some(refused.why);
}

/// Seconds of processor time of all children that ended and were waited for.
fn children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// `40 s` or `12 min`.
fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

/// One process a core that only computes; dropping it ends them.
struct Busy(Vec<Child>);

impl Busy {
    fn start(tools: &Tools) -> Result<Self> {
        let mut all = Self(Vec::new());
        for _ in 0..std::thread::available_parallelism()?.get() {
            let mut command = Command::new(&tools.me);
            command.args(["bench-end", "busy", "8", BUSY_LIMIT, "--listen", "nowhere"]);
            all.0.push(command.stdin(Stdio::null()).spawn()?);
        }
        Ok(all)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::rows;

    fn ended(output: &str, code: i32) -> Ended {
        Ended {
            line: "program".to_owned(),
            status: Some(ExitStatus::from_raw(code << 8)),
            output: output.to_owned(),
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn processes_are_added_up_and_refusals_are_no_failures() {
        let rows = rows::usual();
        let spec = &rows.first().unwrap().ours;
        let good = || ended("8 100 0.0 1.00 0.250000\n", 0);
        let total = sum(spec, 100, &[good(), good()], &[good(), good()]).ok().unwrap();
        assert_eq!(total.rate, 500_000.0);
        let refused =
            sum(spec, 100, &[ended("FERROCE_DATAPATH: no shm here\n", 1)], &[good()]).err().unwrap();
        assert_eq!((refused.failed, &*refused.why), (false, "not available: FERROCE_DATAPATH: no shm here"));
        assert!(sum(spec, 100, &[ended("oops", 1)], &[good()]).err().unwrap().failed);
        assert_eq!(
            (spoken(Duration::from_secs(99)), spoken(Duration::from_secs(121))),
            ("99 s".into(), "3 min".into())
        );
    }
}
