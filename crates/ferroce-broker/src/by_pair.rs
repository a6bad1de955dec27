//! Why the AF_XDP port of a program is at a pair, and not at the interface itself.

use std::fmt;

use crate::privilege::Unprivileged;

/// Why the port of a program is at a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ByPair {
    /// The setting says so.
    Setting,
    /// The program may not send any frame.
    Unprivileged(Unprivileged),
    /// Number of receive queues that the interface uses; a socket receives from only one.
    Queues(u32),
    /// Another program has the direct port of the interface.
    Taken,
    /// The kernel refused the socket.
    Failed,
}

impl ByPair {
    /// The name of the counter. Numbers and parts of a reason have no counter of their own.
    pub const fn counter(self) -> &'static str {
        match self {
            Self::Setting => "xdp_pair_setting",
            Self::Unprivileged(_) => "xdp_pair_unprivileged",
            Self::Queues(_) => "xdp_pair_queues",
            Self::Taken => "xdp_pair_taken",
            Self::Failed => "xdp_pair_failed",
        }
    }
}

impl fmt::Display for ByPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting => f.write_str("xdp-ports is pairs"),
            Self::Unprivileged(why) => why.fmt(f),
            Self::Queues(count) => {
                write!(f, "the interface has {count} receive queues, and a direct port needs it to have one")
            }
            Self::Taken => f.write_str("another program has the direct port of the interface"),
            Self::Failed => f.write_str("the kernel refused a socket at the interface"),
        }
    }
}
