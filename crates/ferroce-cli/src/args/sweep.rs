//! The command line of `ferroce sweep`.

use std::ffi::OsString;
use std::time::Duration;

use super::watch::seconds;

/// The part of a result that has to be that of the run without a fault.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The strictest of the others in which two runs without a fault agree.
    Auto,
    /// Standard output, octet by octet.
    Exact,
    /// The lines of standard output in any order, without words that have a digit.
    Words,
    /// The exit status alone.
    Status,
}

/// Arguments of `ferroce sweep`.
#[derive(clap::Args, Debug)]
pub struct SweepArgs {
    /// Runs at once. By default as many as there are processors.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Time limit of each run. By default 10 seconds and ten times what CMD takes without a fault.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Time limit of all runs together. Rules that have no time left are not tried.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub budget: Option<Duration>,
    /// The part of the result that counts, apart from the exit status.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Compare::Auto)]
    pub compare: Compare,
    /// The error with which calls fail.
    #[arg(long, value_name = "ERRNO", default_value = "ENOMEM")]
    pub errno: String,
    /// Run CMD in this network namespace, one run after the other, for a program that needs its interfaces.
    #[arg(long)]
    pub shared_net: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
