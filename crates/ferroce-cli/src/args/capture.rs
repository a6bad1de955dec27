//! The command line of `ferroce capture`.

use std::path::PathBuf;
use std::time::Duration;

use super::watch::seconds;

/// Arguments of `ferroce capture`.
#[derive(clap::Args, Debug)]
pub struct CaptureArgs {
    /// The file, which is replaced.
    pub file: PathBuf,
    /// Programs by their process ids. Without one: all programs of this user that have a device open.
    pub pid: Vec<u32>,
    /// Capture only packets for which these terms of a rule hold, such as `qp=0,dir=rx,op=ack|nak`.
    /// ferroce-faults(7) has all terms.
    #[arg(long, value_name = "TERMS")]
    pub filter: Option<String>,
    /// Keep the last MIB mebibytes of each process; at least half of that is there.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub ring: u32,
    /// End after this time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,
}
