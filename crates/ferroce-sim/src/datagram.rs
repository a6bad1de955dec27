//! Packets that can be carried, and what becomes of them.

use std::time::Duration;

use ferroce_fault::Facts;

/// A packet that the network can carry.
pub trait Datagram: Clone {
    /// Changes it as a fault on the way would; `noise` says where and how.
    fn corrupt(&mut self, noise: u64);

    /// Computes its checksum anew, so that nothing tells what [`Self::corrupt`] changed.
    fn seal(&mut self) {}

    /// Octets on the wire.
    fn wire_len(&self) -> usize;

    /// Marks it as having met congestion; `false` if its sender is not capable of ECN.
    fn mark_ce(&mut self) -> bool {
        false
    }

    /// The facts that a plan of faults looks at, for a packet to this endpoint; `None` if plans do not apply
    /// to it.
    fn facts(&self, _to: usize) -> Option<Facts<'_>> {
        None
    }
}

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Arrives after the usual time.
    Pass,
    /// Arrives so much later, perhaps behind others.
    Delay(Duration),
    /// Never arrives.
    Drop,
    /// Arrives, and once more so much later.
    Duplicate(Duration),
    /// Arrives changed.
    Corrupt(u64),
}

/// Counts of packets by their fate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Given to the network.
    pub sent: u64,
    /// Taken from it, duplicates included.
    pub delivered: u64,
    /// Dropped by rules.
    pub dropped: u64,
    /// Dropped because a link was full.
    pub overflowed: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delayed.
    pub delayed: u64,
    /// Changed.
    pub corrupted: u64,
}
