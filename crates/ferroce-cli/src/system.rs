//! `ferroce system`: properties of all devices, and the libraries of all programs.

mod switch;

use std::fmt::{self, Display};

use anyhow::Result;
use serde::Serialize;

use crate::args::Style;
use crate::rows;

pub use switch::{off, on, status};

#[derive(Serialize, Debug)]
struct System {
    /// Every network namespace has its own devices.
    netns: &'static str,
    /// A forked child gets copies of registered pages; the parent keeps the originals.
    #[serde(rename = "copy-on-fork")]
    copy_on_fork: &'static str,
}

pub fn show(style: Style) -> Result<()> {
    rows::print(&[System { netns: "exclusive", copy_on_fork: "on" }], style)
}

impl Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "netns {} copy-on-fork {}", self.netns, self.copy_on_fork)
    }
}
