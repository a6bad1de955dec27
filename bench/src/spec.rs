//! A measure: the program at each of its two ends, the path between them, and the figures in the program's output.

use std::path::PathBuf;
use std::process::Command;

use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;
use ferroce_harness::place::Place;

/// The path between the two ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Path {
    /// UDP over loopback, IPv4.
    Wire,
    /// UDP over loopback, IPv6.
    Wire6,
    /// A veth pair between two network namespaces, without segmentation offloads.
    Cut,
    /// Memory that two processes of one host share.
    Host,
}

impl Path {
    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Wire6 => "wire, IPv6",
            Self::Cut => "cut",
            Self::Host => "same host",
        }
    }

    /// The value of FERROCE_DATAPATH.
    fn datapath(self) -> &'static str {
        match self {
            Self::Host => "shm",
            Self::Wire | Self::Wire6 | Self::Cut => "udp",
        }
    }
}

/// The program at both ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Program {
    /// Debian's perftest on ferroce.
    Perftest {
        /// As `ib_write_bw`.
        program: &'static str,
        /// Further options; without size and number of messages.
        flags: String,
        /// Queue pairs: perftest counts messages for each.
        pairs: u64,
    },
    /// `tests/programs/vbench.c` on ferroce: its kind.
    Vbench(&'static str),
    /// `xtask bench-end`: its kind.
    Own(&'static str),
    /// Debian's ucx_perftest: the test, and `UCX_TLS`.
    Ucx(&'static str, &'static str),
    /// Debian's fi_pingpong: the provider and the type of endpoint.
    Libfabric(&'static str, &'static str),
}

/// One measure.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Spec {
    pub program: Program,
    /// Bytes of a message.
    pub size: u64,
    pub path: Path,
    /// Beside one busy process a core.
    pub busy: bool,
    /// Pairs of processes at once.
    pub processes: u32,
}

/// The figures of one run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// Messages a second of all processes.
    pub rate: f64,
    /// Microseconds of half a round trip, or of a whole one where the target is passive.
    pub micros: Option<f64>,
    /// The longest time without progress, in milliseconds.
    pub stall: Option<f64>,
    /// Seconds of processor time of both ends for each message, when known.
    pub cpu: Option<f64>,
}

/// The files that commands name.
pub struct Tools {
    pub dist: Dist,
    pub programs: Programs,
    pub vbench: PathBuf,
    /// This program.
    pub me: PathBuf,
}

impl Spec {
    /// Whether the program measures latency.
    pub fn is_latency(&self) -> bool {
        match &self.program {
            Program::Perftest { program, .. } => program.ends_with("_lat"),
            Program::Vbench(kind) => *kind != "write",
            Program::Own(kind) => !matches!(*kind, "tcp" | "udp-one" | "udp-gso"),
            Program::Ucx(test, _) => test.ends_with("_lat"),
            Program::Libfabric(..) => true,
        }
    }

    /// Whether the number of messages is the result of a fixed time: perftest's receivers wait for ever for a message that was
    /// lost, and only RC loses none.
    pub fn is_timed(&self) -> bool {
        let Program::Perftest { program, flags, .. } = &self.program else { return false };
        program.ends_with("_bw") && (flags.contains("-c UC") || flags.contains("-c UD"))
    }

    /// Whether the receiver knows the rate, since the network may lose messages.
    pub fn is_counted_by_server(&self) -> bool {
        self.is_timed() && matches!(self.program, Program::Perftest { program: "ib_send_bw", .. })
    }

    /// Queue pairs of one process, to which a count applies.
    pub fn pairs(&self) -> u64 {
        if let Program::Perftest { pairs, .. } = self.program { pairs } else { 1 }
    }

    /// The number of messages of the first run, which tells the rate.
    pub fn first_count(&self) -> u64 {
        match self.is_latency() {
            true => 300,
            false => ((8 << 20) / self.size).clamp(5, 20_000).max(5 * self.pairs()),
        }
    }

    /// The program that must be there, and Debian's package of it.
    pub fn needs(&self) -> Option<(&'static str, &'static str)> {
        match self.program {
            Program::Perftest { program, .. } => Some((program, "perftest")),
            Program::Ucx(..) => Some(("ucx_perftest", "ucx-utils")),
            Program::Libfabric(..) => Some(("fi_pingpong", "libfabric-bin")),
            Program::Vbench(_) | Program::Own(_) => None,
        }
    }

    /// For messages and logs.
    pub fn name(&self) -> String {
        let program = match &self.program {
            Program::Perftest { program, flags, .. } => format!("{program} -s {} {flags}", self.size),
            Program::Vbench(kind) => format!("vbench {kind} {}", self.size),
            Program::Own(kind) => format!("{kind} {}", self.size),
            Program::Ucx(test, tls) => format!("UCX_TLS={tls} ucx_perftest -t {test} -s {}", self.size),
            Program::Libfabric(provider, kind) => {
                format!("fi_pingpong -p {provider} -e {kind} -S {}", self.size)
            }
        };
        let busy = if self.busy { ", busy" } else { "" };
        let many = if self.processes > 1 { format!(", {} processes", self.processes) } else { String::new() };
        format!("{}{busy}{many}: {}", self.path.name(), program.trim_end())
    }

    /// One end's command, for `count` messages of all queue pairs together.
    pub fn command(&self, tools: &Tools, place: &Place, server: bool, count: u64, port: u16) -> Command {
        let mut command = place.command(server);
        let find = |name: &str| tools.programs.find(name).unwrap_or_else(|| PathBuf::from(name));
        let host = (!server).then_some(place.meeting_address());
        let (count, size, port) = ((count / self.pairs()).max(5), self.size.to_string(), port.to_string());
        match &self.program {
            Program::Perftest { .. } | Program::Vbench(_) => {
                command.env("FERROCE_DATAPATH", self.path.datapath());
                if let Some(dirs) = tools.programs.libraries() {
                    command.env("LD_LIBRARY_PATH", dirs);
                }
                command.arg(tools.dist.bin("ferroce")).arg("run");
                command.args(place.netdev(server).into_iter().flat_map(|dev| ["--netdev", dev])).arg("--");
            }
            Program::Ucx(_, tls) => {
                command.env("UCX_TLS", tls).env("UCX_NET_DEVICES", place.netdev(server).unwrap_or("lo"));
            }
            Program::Own(_) | Program::Libfabric(..) => {}
        }
        match &self.program {
            Program::Perftest { program, flags, .. } => {
                // With lists of work requests, perftest takes multiples of their length alone.
                let count = if count < 64 { count } else { count - count % 64 };
                command.arg(find(program)).args(["-F", "-x", place.gid, "-p", &port]);
                if !program.starts_with("ib_atomic") {
                    command.args(["-s", &size]);
                }
                match self.is_timed() {
                    true => command.args(["-D", "1"]),
                    false => command.args(["-n", &count.to_string()]),
                };
                command.args(flags.split_whitespace()).args(host);
            }
            Program::Vbench(kind) => {
                command.arg(&tools.vbench).args(["-g", place.gid, "-t", &port, kind, &size]);
                command.arg(count.to_string()).args(host);
            }
            Program::Own(kind) => {
                let role = if server { "--listen" } else { "--connect" };
                command.arg(&tools.me).args(["bench-end", kind, &size, &count.to_string(), role]);
                let address = place.server_address;
                let brackets = if address.contains(':') { ("[", "]") } else { ("", "") };
                command.arg(format!("{}{address}{}:{port}", brackets.0, brackets.1));
            }
            Program::Ucx(test, _) => {
                command.arg(find("ucx_perftest")).args(["-p", &port]);
                if !server {
                    command.args([
                        "-t",
                        test,
                        "-s",
                        &size,
                        "-n",
                        &count.to_string(),
                        "-w",
                        "100",
                        "-f",
                        "-v",
                    ]);
                    command.args(host);
                }
            }
            Program::Libfabric(provider, kind) => {
                command.arg(find("fi_pingpong")).args(["-p", provider, "-e", kind, "-S", &size]);
                command.args(["-I", &count.to_string(), if server { "-B" } else { "-P" }, &port]).args(host);
            }
        }
        command
    }

    /// The figures in what the program printed; None if there are none.
    pub fn figures(&self, output: &str, count: u64) -> Option<Figures> {
        match &self.program {
            Program::Perftest { program, .. } => perftest(program, output, self.size),
            Program::Vbench(_) | Program::Own(_) => words(output, count),
            Program::Ucx(..) => self.ucx(output),
            Program::Libfabric(..) => libfabric(output),
        }
    }

    /// `iterations,median_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr`
    fn ucx(&self, output: &str) -> Option<Figures> {
        let row = last_row(output)?;
        let columns: Vec<f64> = row.trim().split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        let micros = self.is_latency().then(|| columns.get(1).copied()).flatten();
        Some(Figures { rate: *columns.get(6)?, micros, ..Figures::default() })
    }
}

/// The last line that begins with a number.
fn last_row(output: &str) -> Option<&str> {
    output.lines().rev().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))
}

/// The last row of perftest's table.
pub fn perftest(program: &str, output: &str, size: u64) -> Option<Figures> {
    let row = last_row(output)?;
    let columns: Vec<f64> = row.split_whitespace().map(|word| word.parse().unwrap_or(f64::NAN)).collect();
    let column = |n: usize| columns.get(n).copied().filter(|value| value.is_finite());
    if program.ends_with("_bw") {
        // #bytes #iterations peak average[MiB/s] rate[M/s]: the larger unit has more digits.
        let (mib, rate) = (column(3)?, column(4)? * 1e6);
        let by_size = mib * 1_048_576.0 / size as f64;
        return Some(Figures { rate: if size >= 4096 { by_size } else { rate }, ..Figures::default() });
    }
    // #bytes #iterations min max median average …; for SEND and WRITE half a round trip.
    let (most, typical, average) = (column(3)?, column(4)?, column(5)?);
    let whole = if program.starts_with("ib_read") || program.starts_with("ib_atomic") { 1.0 } else { 2.0 };
    Some(Figures {
        rate: 1e6 / (average * whole),
        micros: Some(typical),
        stall: Some(most * whole / 1e3),
        cpu: None,
    })
}

/// `seconds S gap N messages N` or `median N p99 N max N`, each in nanoseconds but for the seconds.
fn words(output: &str, count: u64) -> Option<Figures> {
    let find = |name: &str| -> Option<f64> {
        let mut words = output.split_whitespace().skip_while(|word| *word != name).skip(1);
        words.next()?.parse().ok()
    };
    if let Some(seconds) = find("seconds") {
        let messages = find("messages").unwrap_or(count as f64);
        let stall = find("gap").map(|gap| gap / 1e6);
        return Some(Figures { rate: messages / seconds, stall, ..Figures::default() });
    }
    let median = find("median")?;
    let stall = find("max").map(|most| most * 2.0 / 1e6);
    Some(Figures { rate: 1e9 / (2.0 * median), micros: Some(median / 1e3), stall, cpu: None })
}

/// `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`
fn libfabric(output: &str) -> Option<Figures> {
    let row = last_row(output)?;
    let micros: f64 = row.split_whitespace().nth(6)?.parse().ok()?;
    Some(Figures { rate: 1e6 / (2.0 * micros), micros: Some(micros), ..Figures::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(program: Program, size: u64) -> Spec {
        Spec { program, size, path: Path::Wire, busy: false, processes: 1 }
    }

    #[test]
    fn figures_are_found_in_the_output_of_each_program() {
        let row = " 65536  5000  2000.1  1000.00  0.016000\n---\n";
        let bandwidth = perftest("ib_write_bw", row, 65_536).unwrap();
        assert_eq!((bandwidth.rate, bandwidth.micros), (16_000.0, None));
        let row = " 8  1000  4.5  1000.0  5.0  6.25  1.0  25.2  47.5 \n";
        let latency = perftest("ib_send_lat", row, 8).unwrap();
        assert_eq!((latency.rate, latency.micros, latency.stall), (80_000.0, Some(5.0), Some(2.0)));
        assert_eq!(perftest("ib_read_lat", row, 8).unwrap().stall, Some(1.0));
        assert!(perftest("ib_read_lat", "no table", 8).is_none());
        let ucx = spec(Program::Ucx("tag_lat", "tcp"), 8);
        let figures = ucx.figures("iterations,x\n  5000,8.8,9.0,9.0,1,1,55000,55000\n", 5000).unwrap();
        assert_eq!((figures.rate, figures.micros), (55_000.0, Some(8.8)));
        let own = spec(Program::Own("tcp"), 1 << 20);
        let figures = own.figures("seconds 0.5 gap 2000000\n", 100).unwrap();
        assert_eq!((figures.rate, figures.stall), (200.0, Some(2.0)));
        let fi = spec(Program::Libfabric("tcp", "msg"), 8);
        let row = "bytes x\n8  5k  =5k  78k  0.70s  0.11  69.78  0.01\n";
        assert_eq!(fi.figures(row, 5000).unwrap().micros, Some(69.78));
    }
}
