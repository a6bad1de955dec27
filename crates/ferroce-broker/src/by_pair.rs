//! Why the AF_XDP port of a program is at a pair, and not at the interface itself.

use crate::privilege::Unprivileged;

/// Why the port of a program is at a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ByPair {
    /// The setting says so.
    #[error("xdp-ports is pairs")]
    Setting,
    /// The program may not send any frame.
    #[error("{0}")]
    Unprivileged(Unprivileged),
    /// Number of receive queues that the interface uses; a socket receives from only one.
    #[error("the interface has {0} receive queues, and a direct port needs it to have one")]
    Queues(u32),
    /// Another program has the direct port of the interface.
    #[error("another program has the direct port of the interface")]
    Taken,
    /// The kernel refused the socket.
    #[error("the kernel refused a socket at the interface")]
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
