//! The packets on the fabric.

use ferroce_fault::Facts;

use crate::tcp::Segment;
use crate::{Datagram, Frame};

/// A packet on the fabric.
#[derive(Clone, Debug)]
pub enum Carried {
    /// A frame of a queue pair.
    Roce(Frame),
    /// A segment of a TCP flow.
    #[expect(private_interfaces, reason = "rules pass it on and cannot look into it")]
    Tcp(Segment),
}

impl Datagram for Carried {
    fn corrupt(&mut self, noise: u64) {
        // A segment with a wrong checksum would be dropped: plans do not apply to TCP, so nothing corrupts
        // one.
        if let Self::Roce(frame) = self {
            frame.corrupt(noise);
        }
    }

    fn seal(&mut self) {
        if let Self::Roce(frame) = self {
            frame.seal();
        }
    }

    fn wire_len(&self) -> usize {
        match self {
            Self::Roce(frame) => frame.wire_len(),
            Self::Tcp(segment) => segment.wire_len(),
        }
    }

    fn mark_ce(&mut self) -> bool {
        match self {
            Self::Roce(frame) => frame.mark_ce(),
            Self::Tcp(segment) => {
                segment.marked |= segment.capable;
                segment.capable
            }
        }
    }

    fn facts(&self, to: usize) -> Option<Facts<'_>> {
        match self {
            Self::Roce(frame) => frame.facts(to),
            Self::Tcp(_) => None,
        }
    }
}
