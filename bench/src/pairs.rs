//! `cargo xtask bench --iwarp` and `--xdp`: perftest on a link with one setting or another, and its rivals on the same path in the same
//! rounds.
//!
//! The ends run in network namespaces of their own: both in one on lo, or one each on a veth. Of a device that cannot be made,
//! the table says why, and the rivals are measured all the same.

pub mod paths;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::args::BenchArgs;
use super::spec::{self, Figures, Program, Spec, perftest};
use super::table::short;
use ferroce_harness::debian::{self, Programs};
use ferroce_harness::dist::Dist;
use ferroce_harness::exchange::Logs;
use ferroce_harness::figures::{machine, median, replaced, today};
use ferroce_harness::iwarp::drive;
use ferroce_harness::job::{self, Ended, Job};
use ferroce_harness::tree;
use paths::{Kind, Path};

const LIMIT: Duration = Duration::from_secs(90);

/// One measure of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    /// A program of perftest, with settings of the link.
    Ours(&'static str, &'static str),
    /// A kind of `xtask bench-end`.
    Tcp(&'static str),
}

/// A table of the document.
struct Table {
    title: &'static str,
    /// The sentences below the title, after the command and the machine.
    about: &'static str,
    /// The type of the link.
    link: &'static str,
    /// The flags of perftest.
    flags: &'static [&'static str],
    /// Chooses the rival: the ratios of a row are to its first measure for which this is true.
    rival: fn(&Measure) -> bool,
    rows: Vec<Row>,
}

/// A row: ferroce's measures and their rivals.
struct Row {
    path: Kind,
    name: &'static str,
    unit: Unit,
    size: u64,
    measures: &'static [(&'static str, Measure)],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Gigabytes,
    Messages,
    Micros,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Gigabytes => "GB/s",
            Self::Messages => "M messages/s",
            Self::Micros => "µs",
        }
    }
}

fn iwarp() -> Table {
    const WRITE: &[(&str, Measure)] = &[
        ("ferroce, CRC off", Measure::Ours("ib_write_bw", "crc off")),
        ("ferroce, CRC on", Measure::Ours("ib_write_bw", "crc on")),
        ("TCP, writes of that size", Measure::Tcp("tcp")),
    ];
    const SEND: &[(&str, Measure)] = &[
        ("ferroce, CRC off", Measure::Ours("ib_send_lat", "crc off")),
        ("ferroce, CRC on", Measure::Ours("ib_send_lat", "crc on")),
        ("TCP, spinning", Measure::Tcp("tcp-spin")),
        ("TCP, blocking", Measure::Tcp("tcp-block")),
    ];
    let mut rows = Vec::new();
    for path in [Kind::Loopback, Kind::Veth, Kind::Lossy(10_000)] {
        let mut row = |name, unit, size, measures| rows.push(Row { path, name, unit, size, measures });
        row("WRITE 64 KiB", Unit::Gigabytes, 65_536, WRITE);
        if !matches!(path, Kind::Lossy(_)) {
            row("WRITE 1 MiB", Unit::Gigabytes, 1 << 20, WRITE);
            row("SEND 8 B, half round trip", Unit::Micros, 8, SEND);
        }
    }
    Table {
        title: "## iWARP beside TCP",
        about: "Ratios of medians are to the first row of \
                TCP; for bandwidth more is better, for latency less. WRITE and SEND are Debian's unmodified perftest with `-R`, polling; TCP \
                is one stream with TCP_NODELAY, and its ends check what they receive. The veth has an MTU of 1500 and its usual \
                offloads; the veth with loss drops packets in both directions by XDP, which switches offloads off.",
        link: "siw",
        flags: &["-R"],
        rival: |measure| matches!(measure, Measure::Tcp(_)),
        rows,
    }
}

fn xdp() -> Table {
    const WRITE: &[(&str, Measure)] = &[
        ("ferroce, AF_XDP, direct port", Measure::Ours("ib_write_bw", "datapath xdp xdp-ports auto")),
        ("ferroce, AF_XDP, pair", Measure::Ours("ib_write_bw", "datapath xdp xdp-ports pairs")),
        ("ferroce, UDP sockets", Measure::Ours("ib_write_bw", "datapath udp")),
        ("TCP, writes of that size", Measure::Tcp("tcp")),
    ];
    const SEND: &[(&str, Measure)] = &[
        ("ferroce, AF_XDP, direct port", Measure::Ours("ib_send_lat", "datapath xdp xdp-ports auto")),
        ("ferroce, AF_XDP, pair", Measure::Ours("ib_send_lat", "datapath xdp xdp-ports pairs")),
        ("ferroce, UDP sockets", Measure::Ours("ib_send_lat", "datapath udp")),
    ];
    const RATE: &[(&str, Measure)] = &[
        ("ferroce, AF_XDP, direct port", Measure::Ours("ib_send_bw", "datapath xdp xdp-ports auto")),
        ("ferroce, AF_XDP, pair", Measure::Ours("ib_send_bw", "datapath xdp xdp-ports pairs")),
        ("ferroce, UDP sockets", Measure::Ours("ib_send_bw", "datapath udp")),
    ];
    let row = |name, unit, size, measures| Row { path: Kind::Veth, name, unit, size, measures };
    Table {
        title: "## AF_XDP beside UDP sockets",
        about: "Ratios of medians are to ferroce's UDP sockets; for latency less is better. All are Debian's unmodified perftest, \
                polling, run by root, on a veth with an MTU of 1500. A direct port is a socket at the interface itself, which programs with CAP_NET_RAW \
                get; a pair is that of other programs. The XDP program takes the offloads of the veth away while it is attached, so the \
                ways are set in turn. The column of processor time has the seconds that both ends took for a gigabyte, or for a million \
                messages.",
        link: "rxe",
        flags: &["-d", "bench0"],
        rival: |measure| matches!(measure, Measure::Ours(_, "datapath udp")),
        rows: vec![
            row("SEND 8 B, half round trip", Unit::Micros, 8, SEND),
            row("SEND 1 KiB, half round trip", Unit::Micros, 1024, SEND),
            row("SEND 8 B", Unit::Messages, 8, RATE),
            row("WRITE 64 KiB", Unit::Gigabytes, 65_536, WRITE),
        ],
    }
}

impl Table {
    /// The table of the arguments, with the rows that they choose.
    fn of(args: &BenchArgs) -> Self {
        let mut table = match args {
            BenchArgs { xdp: true, .. } => xdp(),
            _ => iwarp(),
        };
        let named = |row: &Row| format!("{}: {}", row.path.name(), row.name).to_lowercase();
        let chosen = |row: &Row| args.rows.iter().any(|f| named(row).contains(&f.to_lowercase()));
        table.rows.retain(|row| args.rows.is_empty() || chosen(row));
        table
    }
}

impl Row {
    fn value(&self, figures: &Figures) -> Option<f64> {
        match self.unit {
            Unit::Gigabytes => Some(figures.rate * self.size as f64 / 1e9),
            Unit::Messages => Some(figures.rate / 1e6),
            Unit::Micros => figures.micros,
        }
    }

    /// Seconds of processor time for each gigabyte, or for each million messages.
    fn cpu(&self, seconds: f64, count: u64) -> f64 {
        let messages = seconds / count as f64;
        if self.unit == Unit::Gigabytes { messages / self.size as f64 * 1e9 } else { messages * 1e6 }
    }
}

/// The results of one measure.
#[derive(Default)]
struct Cell {
    samples: Vec<f64>,
    /// Processor time as [`Row::cpu`] has it.
    cpu: Vec<f64>,
    /// Messages of a round.
    count: u64,
    failures: u32,
    missing: Option<String>,
}

/// By row and measure.
type Cells = BTreeMap<(usize, usize), Cell>;

struct Bench<'a> {
    table: &'a Table,
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
    let table = Table::of(args);
    let rows = &table.rows;
    ensure!(!rows.is_empty(), "no row is called {:?}", args.rows);
    let programs = Programs::ensure(&[debian::BASIC, debian::BENCH])?;
    let dist = match &args.dist {
        Some(folder) => Dist::at(std::path::absolute(folder)?),
        None => Dist::build()?,
    };
    let logs = Logs(tree::target().join("xtask").join("bench-pairs"));
    let runtime = logs.0.join("run");
    std::fs::create_dir_all(&runtime)?;
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700))?;
    let me = std::env::current_exe()?;
    let seconds = if args.quick { 0.1 } else { 1.0 };
    let mut bench = Bench { table: &table, dist, programs, me, logs, runtime, seconds, port: 24_000 };
    let mut cells = Cells::new();
    let mut paths: Vec<Kind> = rows.iter().map(|row| row.path).collect();
    paths.dedup();
    for path in paths {
        let mine: Vec<(usize, &Row)> = rows.iter().enumerate().filter(|(_, row)| row.path == path).collect();
        if mine.is_empty() {
            continue;
        }
        match Path::new(path, &bench.programs) {
            Ok(made) => bench.path(&made, &mine, args.rounds, &mut cells)?,
            Err(why) => skip(&mine, &format!("{}: {why:#}", path.name()), &mut cells),
        }
    }
    let text = report(args, &table, &mut cells)?;
    print!("{text}");
    if args.save {
        let file = tree::root().join("docs/BENCHMARKS.md");
        std::fs::write(&file, replaced(&std::fs::read_to_string(&file)?, table.title, &text))?;
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

impl Bench<'_> {
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
            Ok((figures, cpu)) => {
                cell.count = ((figures.rate * self.seconds) as u64).clamp(100, 5_000_000);
                if round > 0 {
                    cell.samples.extend(row.value(&figures));
                    cell.cpu.push(row.cpu(cpu, count));
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

    /// One run: its figures, and the processor time of both ends in seconds. The inner error is the reason for which it gave none.
    fn once(
        &mut self,
        path: &Path,
        row: &Row,
        measure: Measure,
        count: u64,
    ) -> Result<Result<(Figures, f64), String>> {
        if let Measure::Ours(_, settings) = measure {
            let line = format!("link set bench0 {settings} --no-persist");
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
        let before = children()?;
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
        let cpu = children()? - before;
        Ok(figures(row, measure, count, &client, &server).map(|figures| (figures, cpu)))
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
                command.args(self.table.flags);
                command.args(["-F", "-s", &size, "-n", &count, "-p", &port.to_string()]);
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
                true => format!(
                    "link add bench0 type {} netdev {} --no-persist",
                    self.table.link,
                    path.netdev(*server)
                ),
                false => "link del bench0 --no-persist".to_owned(),
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
            Measure::Ours(program, _) => Program::Perftest { program, flags: String::new(), pairs: 1 },
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

/// Seconds of processor time of all children that ended.
fn children() -> Result<f64> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The section of the document.
fn report(args: &BenchArgs, table: &Table, cells: &mut Cells) -> Result<String> {
    let mut text = format!(
        "{}\n\n\
         Made by `{}`{} on {}: {}.\n\
         Median (least to greatest) of {} rounds, all measures of a row in turn in each round. {}\n\n\
         | path | measure | unit | end | median | ratio | CPU s |\n|---|---|---|---|---|---|---|\n",
        table.title,
        args.line(),
        args.other_build(),
        today()?,
        machine()?,
        args.rounds,
        table.about
    );
    let mut missing = Vec::new();
    for (number, row) in table.rows.iter().enumerate() {
        let mut middle = |column: usize| {
            let cell = cells.get_mut(&(number, column))?;
            Some(median(&mut cell.samples)).filter(|value| value.is_finite())
        };
        let first = row.measures.iter().position(|(_, measure)| (table.rival)(measure));
        let rival = first.and_then(&mut middle);
        let medians: Vec<Option<f64>> = (0..row.measures.len()).map(&mut middle).collect();
        for (column, ((name, _), value)) in row.measures.iter().zip(medians).enumerate() {
            let cpu = cells.get_mut(&(number, column)).map(|cell| median(&mut cell.cpu));
            let cpu = cpu.filter(|cpu| cpu.is_finite()).map_or_else(|| "–".to_owned(), short);
            let cell = cells.get(&(number, column));
            let spread = |cell: &Cell| Some((*cell.samples.first()?, *cell.samples.last()?));
            let shown = match (value, cell.and_then(spread)) {
                (Some(value), Some((least, most))) => {
                    format!("{} ({}–{})", short(value), short(least), short(most))
                }
                _ => "not measured".to_owned(),
            };
            let ratio =
                value.zip(rival).filter(|_| Some(column) != first).map(|(ours, other)| short(ours / other));
            text += &format!(
                "| {} | {} | {} | {name} | {shown} | {} | {cpu} |\n",
                row.path.name(),
                row.name,
                row.unit.name(),
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
        let args = BenchArgs { iwarp: true, rows: vec!["lo: write 64".to_owned()], ..BenchArgs::default() };
        let table = Table::of(&args);
        let mut cells = Cells::new();
        for (column, value) in [1.0, 0.5, 2.0].into_iter().enumerate() {
            let (samples, cpu) = (vec![value * 2.0, value, value * 0.5], vec![value]);
            cells.insert((0, column), Cell { samples, cpu, ..Cell::default() });
        }
        let text = report(&args, &table, &mut cells).unwrap();
        let wanted = "| lo | WRITE 64 KiB | GB/s | ferroce, CRC off | 1.00 (0.50–2.00) | 0.50 | 1.00 |";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("| TCP, writes of that size | 2.00 (1.00–4.00) | – | 2.00 |"), "{text}");
        assert!(text.contains("--iwarp"));
    }

    #[test]
    fn every_path_has_rows() {
        let rows = |filters: &[&str], xdp| {
            let rows = filters.iter().map(|filter| (*filter).to_owned()).collect();
            Table::of(&BenchArgs { rows, xdp, ..BenchArgs::default() }).rows.len()
        };
        assert_eq!((rows(&[], false), rows(&["loses"], false), rows(&[], true)), (7, 1, 4));
    }
}
