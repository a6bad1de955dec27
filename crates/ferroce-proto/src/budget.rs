//! What the queue pairs of one process share: how much may be on its way.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Octets on their way, of all queue pairs of a process: to each destination address, and asked for by READs into the
/// process. A receive buffer is the process's, not a queue pair's, so the limits are too.
///
/// No locks: one atomic add takes or gives back. Nothing is ordered by these counters, so all are relaxed.
#[derive(Debug)]
pub struct Budget {
    granted: u64,
    reads: AtomicU64,
    destinations: [AtomicU64; DESTINATIONS],
}

/// Addresses beyond this many share a counter: they are sent to more carefully than needed.
const DESTINATIONS: usize = 256;

/// Which counter of a [`Budget`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Account {
    /// Requested by READs and atomics, to be received.
    Reads,
    /// Sent to one destination, by index.
    Destination(u8),
}

impl Budget {
    /// For a process whose sockets were granted a receive buffer of this many octets (what SO_RCVBUF says it holds).
    /// The peers' are taken to be as large.
    pub fn new(granted_rcvbuf: usize) -> Self {
        Self {
            granted: granted_rcvbuf as u64,
            reads: AtomicU64::new(0),
            destinations: [const { AtomicU64::new(0) }; DESTINATIONS],
        }
    }

    /// The granted receive buffer in octets.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// READ octets that may be requested at a time: a quarter of the buffer.
    pub const fn read_limit(&self) -> u64 {
        self.granted / 4
    }

    /// Octets that may be on their way to one address: half of the buffer.
    pub const fn destination_limit(&self) -> u64 {
        self.granted / 2
    }

    /// READ octets requested and not yet received or given up.
    pub fn reads_in_use(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Octets on their way to an address (or to others that share its counter).
    pub fn destination_in_use(&self, address: IpAddr) -> u64 {
        self.counter(Self::destination(address)).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    pub(crate) fn destination(address: IpAddr) -> Account {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        address.hash(&mut hasher);
        let hash = hasher.finish();
        Account::Destination((hash ^ (hash >> 32) ^ (hash >> 16) ^ (hash >> 8)) as u8)
    }

    /// Takes `amount` if `limit` is then not exceeded. Whoever finds nothing taken gets his amount however large it is,
    /// so that a buffer smaller than a packet does not stop everything.
    pub(crate) fn take(&self, account: Account, amount: u64, limit: u64) -> bool {
        let Some(counter) = self.counter(account) else { return true };
        let before = counter.fetch_add(amount, Ordering::Relaxed);
        if before == 0 || before.saturating_add(amount) <= limit {
            return true;
        }
        counter.fetch_sub(amount, Ordering::Relaxed);
        false
    }

    /// Takes `amount` whatever the limit says.
    pub(crate) fn force(&self, account: Account, amount: u64) {
        if let Some(counter) = self.counter(account) {
            counter.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub(crate) fn give_back(&self, account: Account, amount: u64) {
        if amount > 0
            && let Some(counter) = self.counter(account)
        {
            counter.fetch_sub(amount, Ordering::Relaxed);
        }
    }

    fn counter(&self, account: Account) -> Option<&AtomicU64> {
        match account {
            Account::Reads => Some(&self.reads),
            Account::Destination(index) => self.destinations.get(usize::from(index)),
        }
    }
}

/// FNV-1a: the same in every run, unlike the standard hasher.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
