//! `ferroce system`: what holds for all devices.

use std::fmt::{self, Display};

use anyhow::Result;
use serde::Serialize;

use crate::args::Style;
use crate::rows;

/// The one line of `system show`.
#[derive(Serialize, Debug)]
struct System {
    /// Every network namespace has devices of its own.
    netns: &'static str,
    /// A forked child has copies of registered pages: its parent's stay where they are.
    #[serde(rename = "copy-on-fork")]
    copy_on_fork: &'static str,
}

/// Prints it.
pub fn show(style: Style) -> Result<()> {
    rows::print(&[System { netns: "exclusive", copy_on_fork: "on" }], style)
}

impl Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "netns {} copy-on-fork {}", self.netns, self.copy_on_fork)
    }
}
