//! The command lines of `ferroce metrics` and `ferroce top`.

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
