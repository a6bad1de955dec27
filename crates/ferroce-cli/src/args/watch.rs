//! The command lines of `ferroce metrics` and `ferroce top`.

use std::path::PathBuf;
use std::time::Duration;

/// Parses the time between two looks.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.01 to 86400".to_owned())
}

/// Arguments of `ferroce metrics`.
#[derive(clap::Args, Debug)]
pub struct MetricsArgs {
    /// Serve the text by HTTP at /metrics until SIGINT or SIGTERM, in place of printing it once.
    ///
    /// ADDRESS is a port of 127.0.0.1, an address with a port, or the path of a Unix socket, which has a `/`.
    /// Everybody who can connect can read the names and numbers of all programs, so an address that is not
    /// of the loopback interface has to be written out.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}

/// Arguments of `ferroce top`.
#[derive(clap::Args, Debug)]
pub struct TopArgs {
    /// Print plain tables one after the other, as top(1) does. Without a terminal this is the default.
    #[arg(short, long)]
    pub batch: bool,
    /// End after COUNT looks.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The time between two looks.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub every: Duration,
    /// Write a page for a browser to FILE instead: the timeline of a file of `ferroce capture` or
    /// `ferroce run --capture`, with a line for each queue pair. The page is one file and needs no server.
    #[arg(long, value_name = "FILE", requires = "capture")]
    pub html: Option<PathBuf>,
    /// The capture that --html shows.
    #[arg(requires = "html")]
    pub capture: Option<PathBuf>,
}
