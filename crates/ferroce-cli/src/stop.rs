use std::fmt;

use anyhow::Result;
use serde::Serialize;

use crate::args::Style;
use crate::{broker, rows};

/// The result of a stop.
#[derive(Serialize, Debug)]
struct Stopped {
    pid: u32,
    stopped: bool,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broker pid {} stopped", self.pid)
    }
}

/// Ends the broker of this network namespace, and prints its process id. Without a broker it succeeds.
pub fn run(force: bool, style: Style) -> Result<()> {
    let stopped = broker::stop(force)?.map(|pid| Stopped { pid, stopped: true });
    if stopped.is_none() {
        eprintln!("ferroce: no ferroced runs in this network namespace");
    }
    rows::print(stopped.as_slice(), style)
}
