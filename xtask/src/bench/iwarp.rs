//! `cargo xtask bench --iwarp`: perftest with `-R` on ferroce's iWARP, and TCP on the same path in the same rounds.
//!
//! The ends run in network namespaces of their own: both in one on lo, or one each on a veth. Of a device that cannot be made,
//! the table says why, and TCP is measured all the same.

mod paths;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::args::BenchArgs;
use super::common::{machine, median, replaced, today};
use super::spec::{self, Figures, Program, Spec, perftest};
use super::table::short;
use crate::debian::{self, Programs};
use crate::dist::{self, Dist};
use crate::exchange::Logs;
use crate::iwarp::drive;
use crate::job::{self, Ended, Job};
use crate::tree;
use paths::{Kind, Path};

const TITLE: &str = "## iWARP beside TCP";
const LIMIT: Duration = Duration::from_secs(90);

/// One measure of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    /// A program of perftest, with the CRC on or off.
    Ours(&'static str, bool),
    /// A kind of `xtask bench-end`.
    Tcp(&'static str),
}

/// A row: ferroce's measures, then TCP's. Ratios are to the first of TCP's.
struct Row {
    path: Kind,
    name: &'static str,
    size: u64,
    measures: &'static [(&'static str, Measure)],
}

const WRITE: &[(&str, Measure)] = &[
    ("ferroce, CRC off", Measure::Ours("ib_write_bw", false)),
    ("ferroce, CRC on", Measure::Ours("ib_write_bw", true)),
    ("TCP, writes of that size", Measure::Tcp("tcp")),
];
const SEND: &[(&str, Measure)] = &[
    ("ferroce, CRC off", Measure::Ours("ib_send_lat", false)),
    ("ferroce, CRC on", Measure::Ours("ib_send_lat", true)),
    ("TCP, spinning", Measure::Tcp("tcp-spin")),
    ("TCP, blocking", Measure::Tcp("tcp-block")),
];

/// The rows, path by path.
fn rows(filters: &[String]) -> Vec<Row> {
    let mut list = Vec::new();
    for path in [Kind::Loopback, Kind::Veth, Kind::Lossy] {
        list.push(Row { path, name: "WRITE 64 KiB", size: 65_536, measures: WRITE });
        if path != Kind::Lossy {
            list.push(Row { path, name: "WRITE 1 MiB", size: 1 << 20, measures: WRITE });
            list.push(Row { path, name: "SEND 8 B, half round trip", size: 8, measures: SEND });
        }
    }
    let named = |row: &Row| format!("{}: {}", row.path.name(), row.name).to_lowercase();
    list.retain(|row| filters.is_empty() || filters.iter().any(|f| named(row).contains(&f.to_lowercase())));
    list
}

impl Row {
    fn is_latency(&self) -> bool {
        self.measures == SEND
    }

    /// GB/s or µs.
    fn value(&self, figures: &Figures) -> Option<f64> {
        if self.is_latency() { figures.micros } else { Some(figures.rate * self.size as f64 / 1e9) }
    }
}

/// What came of one measure.
#[derive(Default)]
struct Cell {
    samples: Vec<f64>,
    /// Messages of a round.
    count: u64,
    failures: u32,
    missing: Option<String>,
}

/// By row and measure.
type Cells = BTreeMap<(usize, usize), Cell>;

struct Bench {
    dist: Dist,
    programs: Programs,
    me: PathBuf,
    logs: Logs,
    runtime: PathBuf,
    seconds: f64,
    port: u16,
}

/// Measures, prints, and with `--save` writes the section of docs/BENCHMARKS.md; true when every run ended well.
pub fn run(args: &BenchArgs) -> Result<bool> {
    let rows = rows(&args.rows);
    ensure!(!rows.is_empty(), "no row is called {:?}", args.rows);
    let programs = Programs::ensure(&[debian::BASIC, debian::BENCH])?;
    let dist = match &args.dist {
        Some(folder) => Dist::at(std::path::absolute(folder)?),
        None => dist::build()?,
    };
    let logs = Logs(tree::target().join("xtask").join("bench-iwarp"));
    let runtime = logs.0.join("run");
    std::fs::create_dir_all(&runtime)?;
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700))?;
    let me = std::env::current_exe()?;
    let seconds = if args.quick { 0.1 } else { 1.0 };
    let mut bench = Bench { dist, programs, me, logs, runtime, seconds, port: 24_000 };
    let mut cells = Cells::new();
    for path in [Kind::Loopback, Kind::Veth, Kind::Lossy] {
        let mine: Vec<(usize, &Row)> = rows.iter().enumerate().filter(|(_, row)| row.path == path).collect();
        if mine.is_empty() {
            continue;
        }
        match Path::new(path, &bench.programs) {
            Ok(made) => bench.path(&made, &mine, args.rounds, &mut cells)?,
            Err(why) => skip(&mine, &format!("{}: {why:#}", path.name()), &mut cells),
        }
    }
    let text = report(args, &rows, &mut cells)?;
    print!("{text}");
    if args.save {
        let file = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&file, replaced(&std::fs::read_to_string(&file)?, TITLE, &text))?;
    }
    let failures: u32 = cells.values().map(|cell| cell.failures).sum();
    println!("{failures} runs failed");
    Ok(failures == 0)
}

/// The rows of a path that cannot be made here.
fn skip(rows: &[(usize, &Row)], why: &str, cells: &mut Cells) {
    eprintln!("  {why}");
    for (number, row) in rows {
        for column in 0..row.measures.len() {
            cells.entry((*number, column)).or_default().missing = Some(why.to_owned());
        }
    }
}

impl Bench {
    /// All rounds on one path; the first finds the numbers of messages, and does not count.
    fn path(&mut self, path: &Path, rows: &[(usize, &Row)], rounds: u32, cells: &mut Cells) -> Result<()> {
        let device = self.links(path, true);
        for round in 0..=rounds {
            for (number, row) in rows {
                eprintln!("round {round} of {rounds}, {}: {}", row.path.name(), row.name);
                for (column, (_, measure)) in row.measures.iter().enumerate() {
                    let cell = cells.entry((*number, column)).or_default();
                    if let (Measure::Ours(..), Err(why)) = (measure, &device) {
                        if round == 0 {
                            cell.failures += 1;
                            cell.missing = Some(format!("{}: {why:#}", path.kind.name()));
                        }
                        continue;
                    }
                    self.round(path, row, *measure, round, cell)?;
                }
            }
        }
        if device.is_ok() {
            self.links(path, false)?;
        }
        Ok(())
    }

    fn round(&mut self, path: &Path, row: &Row, measure: Measure, round: u32, cell: &mut Cell) -> Result<()> {
        let spec = row.spec(measure);
        if round > 0 && cell.count == 0 {
            return Ok(());
        }
        let count = if round == 0 { spec.first_count() } else { cell.count };
        let mut result = self.once(path, row, measure, count)?;
        for _ in 1..drive::TRIES {
            if !matches!(&result, Err(why) if why.contains(drive::TOO_EARLY)) {
                break;
            }
            result = self.once(path, row, measure, count)?;
        }
        match result {
            Ok(figures) => {
                cell.count = ((figures.rate * self.seconds) as u64).clamp(100, 5_000_000);
                if round > 0 {
                    cell.samples.extend(row.value(&figures));
                }
            }
            Err(why) => {
                eprintln!("  {}", why.replace('\n', "\n  "));
                cell.failures += 1;
                let first = why.lines().next().unwrap_or_default();
                cell.missing = Some(format!("{}, {}: {first}", path.kind.name(), row.name));
            }
        }
        Ok(())
    }

    /// One run. The inner error is the reason for which it gave no figures.
    fn once(
        &mut self,
        path: &Path,
        row: &Row,
        measure: Measure,
        count: u64,
    ) -> Result<Result<Figures, String>> {
        if let Measure::Ours(_, crc) = measure {
            let line = format!("link set iw0 crc {} --no-persist", if crc { "on" } else { "off" });
            if let Err(why) = self.ferroce(path, true, &line).and_then(|()| self.ferroce(path, false, &line))
            {
                return Ok(Err(format!("{why:#}")));
            }
        }
        self.port = if self.port < 29_000 { self.port + 1 } else { 24_000 };
        let port = self.port;
        let name = format!("{} {} {measure:?}", path.kind.name(), row.name);
        let end = |server: bool| -> Result<Job> {
            let role = if server { "server" } else { "client" };
            let log = self.logs.path(&format!("{name} {role}"));
            Job::start(self.command(path, row, measure, server, count, port), &log, LIMIT)
        };
        let mut server = end(true)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !path.listens(port) && !server.ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = end(false)?.wait()?;
        if !client.ok() {
            // A server without a client may wait for ever.
            server.signal(Signal::SIGTERM);
        }
        let server = server.wait()?;
        Ok(figures(row, measure, count, &client, &server))
    }

    fn command(
        &self,
        path: &Path,
        row: &Row,
        measure: Measure,
        server: bool,
        count: u64,
        port: u16,
    ) -> Command {
        let mut command = path.front(server);
        let (size, count) = (row.size.to_string(), count.to_string());
        match measure {
            Measure::Ours(program, _) => {
                let file = self.programs.find(program).unwrap_or_else(|| PathBuf::from(program));
                command.env("FERROCE_RUNTIME_DIR", &self.runtime);
                if let Some(dirs) = self.programs.libraries() {
                    command.env("LD_LIBRARY_PATH", dirs);
                }
                command.arg(self.dist.bin("ferroce")).args(["run", "--"]).arg(file);
                command.args(["-F", "-R", "-s", &size, "-n", &count, "-p", &port.to_string()]);
                command.args((!server).then_some(path.address()));
            }
            Measure::Tcp(kind) => {
                let role = if server { "--listen" } else { "--connect" };
                command.arg(&self.me).args(["bench-end", kind, &size, &count, role]);
                command.arg(format!("{}:{port}", path.address()));
            }
        }
        command
    }

    /// Makes or removes the device of each end.
    fn links(&self, path: &Path, make: bool) -> Result<()> {
        for server in path.ends() {
            let line = match make {
                true => format!("link add iw0 type siw netdev {} --no-persist", path.netdev(*server)),
                false => "link del iw0 --no-persist".to_owned(),
            };
            self.ferroce(path, *server, &line)?;
        }
        Ok(())
    }

    fn ferroce(&self, path: &Path, server: bool, line: &str) -> Result<()> {
        let mut command = path.front(server);
        command.env("FERROCE_RUNTIME_DIR", &self.runtime);
        command.arg(self.dist.bin("ferroce")).args(line.split(' '));
        let log = self.logs.path(&format!("{} {server} {line}", path.kind.name()));
        let ended = job::run(command, &log, Duration::from_secs(20)).context("ferroce")?;
        let said = ended.output.lines().last().unwrap_or_default();
        ensure!(ended.ok(), "ferroce {line}: {}: {said}", ended.how());
        Ok(())
    }
}

impl Row {
    /// The measure, in the words of the usual table: it knows the baselines' output and their first number of messages.
    fn spec(&self, measure: Measure) -> Spec {
        let program = match measure {
            Measure::Ours(program, _) => Program::Perftest { program, flags: "-R".to_owned(), pairs: 1 },
            Measure::Tcp(kind) => Program::Own(kind),
        };
        Spec { program, size: self.size, path: spec::Path::Wire, busy: false, processes: 1 }
    }
}

fn figures(
    row: &Row,
    measure: Measure,
    count: u64,
    client: &Ended,
    server: &Ended,
) -> Result<Figures, String> {
    let found = match measure {
        Measure::Ours(program, _) => perftest(program, &client.output, row.size),
        Measure::Tcp(_) => row.spec(measure).figures(&client.output, count),
    };
    found
        .filter(|_| client.ok() && server.ok())
        .ok_or_else(|| format!("client: {}\nserver: {}", client.describe(), server.describe()))
}

/// The section of the document.
fn report(args: &BenchArgs, rows: &[Row], cells: &mut Cells) -> Result<String> {
    let mut text = format!(
        "{TITLE}\n\n\
         Made by `{}`{} on {}: {}.\n\
         Median (least to greatest) of {} rounds, ferroce and TCP in turn in each round. Ratios of medians are to the first row of \
         TCP; for bandwidth more is better, for latency less. WRITE and SEND are Debian's unmodified perftest with `-R`, polling; TCP \
         is one stream with TCP_NODELAY, and its ends check what they receive. The veth has an MTU of 1500 and its usual \
         offloads; the veth with loss drops packets in both directions by XDP, which switches offloads off.\n\n\
         | path | measure | unit | end | median | ratio |\n|---|---|---|---|---|---|\n",
        args.line(),
        args.other_build(),
        today()?,
        machine()?,
        args.rounds
    );
    let mut missing = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let mut middle = |column: usize| {
            let cell = cells.get_mut(&(number, column))?;
            Some(median(&mut cell.samples)).filter(|value| value.is_finite())
        };
        let first = row.measures.iter().position(|(_, measure)| matches!(measure, Measure::Tcp(_)));
        let rival = first.and_then(&mut middle);
        let medians: Vec<Option<f64>> = (0..row.measures.len()).map(&mut middle).collect();
        for (column, ((name, _), value)) in row.measures.iter().zip(medians).enumerate() {
            let cell = cells.get(&(number, column));
            let spread = |cell: &Cell| Some((*cell.samples.first()?, *cell.samples.last()?));
            let shown = match (value, cell.and_then(spread)) {
                (Some(value), Some((least, most))) => {
                    format!("{} ({}–{})", short(value), short(least), short(most))
                }
                _ => "not measured".to_owned(),
            };
            let ratio =
                value.zip(rival).filter(|_| Some(column) != first).map(|(ours, tcp)| short(ours / tcp));
            let unit = if row.is_latency() { "µs" } else { "GB/s" };
            text += &format!(
                "| {} | {} | {unit} | {name} | {shown} | {} |\n",
                row.path.name(),
                row.name,
                ratio.unwrap_or_else(|| "–".to_owned())
            );
            missing.extend(cell.and_then(|cell| cell.missing.clone()));
        }
    }
    missing.sort();
    missing.dedup();
    if !missing.is_empty() {
        text += "\nNot measured, or failed once:\n\n";
        text.extend(missing.iter().map(|why| format!("- {why}\n")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_row_for_each_measure_and_ratios_to_tcp() {
        let rows = rows(&["lo: write 64".to_owned()]);
        let mut cells = Cells::new();
        for (column, value) in [1.0, 0.5, 2.0].into_iter().enumerate() {
            let samples = vec![value * 2.0, value, value * 0.5];
            cells.insert((0, column), Cell { samples, ..Cell::default() });
        }
        let text = report(&BenchArgs { iwarp: true, ..BenchArgs::default() }, &rows, &mut cells).unwrap();
        assert!(text.contains("| lo | WRITE 64 KiB | GB/s | ferroce, CRC off | 1.00 (0.50–2.00) | 0.50 |"));
        assert!(text.contains("| TCP, writes of that size | 2.00 (1.00–4.00) | – |"), "{text}");
        assert!(text.contains("--iwarp"));
    }

    #[test]
    fn every_path_has_rows() {
        assert_eq!(rows(&[]).len(), 7);
        assert_eq!(rows(&["loses".to_owned()]).len(), 1);
    }
}
