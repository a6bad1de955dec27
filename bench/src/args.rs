//! The options of `cargo xtask bench`.

use std::path::PathBuf;

use clap::Args;

/// Describes the file that `--json` writes.
pub const JSON: &str = "\
The file of --json is one object:
  schema    1
  command, date, machine   strings
  rounds    number
  rows      array of objects:
    path, measure, unit    strings; unit is GB/s, M messages/s, µs or CPU s/GB
    busy       whether one busy process a core ran beside it
    ferroce    a measure: {name, median, least, most, samples, cpu_s_per_gb, cpu_s_per_million,
               stall_ms, missing, failures}; a number that is not known is null; missing is the last
               reason for which a run gave none; failures is the number of runs that failed
    rivals     array of measures; the ratio is that to the first
    ratio      ferroce's median by the first rival's, or null
    must, goal {bound: \"at least\" or \"at most\", of: \"ratio\" or \"value\", value, reached}, or null";

/// Which benchmark.
#[derive(Args, Default)]
pub struct BenchArgs {
    /// How often each measure is taken; the median counts.
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// A tenth of the messages: to try the benchmark, not the machine.
    #[arg(long)]
    pub quick: bool,
    /// Writes docs/BENCHMARKS.md and the book's page of bars.
    #[arg(long, conflicts_with = "rows")]
    pub save: bool,
    /// Only rows whose `path: measure` contains this. May be given several times.
    #[arg(long, value_name = "FILTER")]
    pub rows: Vec<String>,
    /// The wide table: all sizes, operations, services, queue pairs, processes and rivals. It takes hours with many rounds.
    #[arg(long)]
    pub all: bool,
    /// Names the rows and stops.
    #[arg(long)]
    pub list: bool,
    /// Writes the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the result as one SVG page of bars.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Measures this distribution (a folder with lib/ and bin/) and builds none.
    #[arg(long, value_name = "FOLDER")]
    pub dist: Option<PathBuf>,
    /// Connecting by cmtime instead, beside the kernel's rxe, in the guest.
    #[arg(long)]
    pub connections: bool,
    /// perftest instead, on the kernel's rxe and on ferroce in turn, in the guest.
    #[arg(long)]
    pub guest: bool,
    /// With --guest: the MTU of the guest's wire. The path MTU of both stacks follows: 1024 octets below 4200,
    /// 4096 from there on.
    #[arg(long, value_name = "OCTETS", requires = "guest", default_value_t = 4200, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    pub mtu: u32,
    /// iWARP instead, beside TCP, on lo, on a veth, and on a veth that loses packets.
    #[arg(long)]
    pub iwarp: bool,
    /// AF_XDP instead, beside UDP sockets, on a veth.
    #[arg(long, conflicts_with = "iwarp")]
    pub xdp: bool,
    /// Lost and reordered packets instead: ferroce, TCP and the kernel's rxe on a veth and in the guest. The
    /// samples are kept: the same command again takes those that are missing, and --save writes the documents once all are there.
    #[arg(long, conflicts_with_all = ["iwarp", "xdp"])]
    pub loss: bool,
    /// With --loss: no sample begins after so many minutes.
    #[arg(long, requires = "loss")]
    pub minutes: Option<f64>,
    /// With --loss: forgets the samples of earlier runs.
    #[arg(long, requires = "loss")]
    pub again: bool,
    /// `ferroce resource show` with many queue pairs instead.
    #[arg(long)]
    pub objects: bool,
    /// The memory of a queue pair, a completion queue, a memory region and a connection instead.
    #[arg(long)]
    pub memory: bool,
    /// Profiles a row instead, both ends, by perf: shares of the processor time and a flame graph. `book` stands for the rows of
    /// the book's page, which --save writes. May be given several times.
    #[arg(long, value_name = "ROW")]
    pub profile: Vec<String>,
    /// Set by the benchmark itself inside its network namespace: the distribution.
    #[arg(long, hide = true)]
    pub inside: Option<PathBuf>,
}

impl BenchArgs {
    /// Words for a document if `--dist` named the build.
    pub fn other_build(&self) -> &'static str {
        if self.dist.is_some() { " with another build's distribution (`--dist`)" } else { "" }
    }

    /// The arguments that change what is measured, as a person would type them.
    pub fn line(&self) -> String {
        let mut line = format!("cargo xtask bench --rounds {}", self.rounds);
        line.extend(self.rows.iter().map(|filter| format!(" --rows {filter:?}")));
        for (given, name) in [
            (self.iwarp, " --iwarp"),
            (self.xdp, " --xdp"),
            (self.loss, " --loss"),
            (self.all, " --all"),
            (self.quick, " --quick"),
            (self.save, " --save"),
        ] {
            line += if given { name } else { "" };
        }
        line
    }
}
