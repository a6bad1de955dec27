//! The command line of `ferroce sim`.

use std::path::PathBuf;

/// Arguments of `ferroce sim`.
#[derive(clap::Args, Debug)]
pub struct SimArgs {
    /// A scenario in TOML. The book's page about simulation explains it; `--print-example all` has every key.
    #[arg(value_name = "FILE", required_unless_present = "print_example")]
    pub file: Option<PathBuf>,
    /// The seed, in place of the file's.
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Run N consecutive seeds on all cores, beginning with --seed or the file's seed. Seeds that fail are
    /// printed with the command that repeats them.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub seeds: Option<u64>,
    /// Write a line for each packet that is sent or received, and for each timer.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    pub trace: Option<PathBuf>,
    /// Write each packet of queue pairs, as it leaves its queue pair, to a file for Wireshark.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    pub pcap: Option<PathBuf>,
    /// Print an example file, and end.
    #[arg(long, value_name = "NAME", exclusive = true, value_parser = ["incast", "lossy", "partition", "replay", "all"])]
    pub print_example: Option<String>,
}
