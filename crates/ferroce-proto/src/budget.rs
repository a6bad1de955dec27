//! The limits on data in flight that the queue pairs of one process share.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};

use ferroce_wire::mix;

use crate::hold::HoldPool;

/// Octets on their way, of all queue pairs of a process: to each destination address, and asked for by READs
/// into the process. A receive buffer is the process's, not a queue pair's, so the limits are too.
///
/// No locks: one atomic add takes or gives back. Nothing is ordered by these counters, so all are relaxed.
#[derive(Debug)]
pub struct Budget {
    granted: u64,
    turns: bool,
    reads: Shares,
    destinations: [Shares; DESTINATIONS],
    hold: HoldPool,
}

/// A limit that queue pairs share.
#[derive(Debug)]
struct Shares {
    in_use: AtomicU64,
    /// Queue pairs that were refused and will try again.
    waiting: AtomicU64,
}

impl Shares {
    const fn new() -> Self {
        Self { in_use: AtomicU64::new(0), waiting: AtomicU64::new(0) }
    }
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
    /// Nothing is counted.
    Unlimited,
}

/// The counters of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Accounts {
    /// For READs and atomics.
    pub reads: Account,
    /// For other requests.
    pub data: Account,
}

impl Budget {
    /// For a process whose sockets were granted a receive buffer of this many octets (what SO_RCVBUF says it
    /// holds). The peers' are taken to be as large.
    pub fn new(granted_rcvbuf: usize) -> Self {
        Self {
            granted: granted_rcvbuf as u64,
            turns: false,
            reads: Shares::new(),
            destinations: [const { Shares::new() }; DESTINATIONS],
            hold: HoldPool::new(),
        }
    }

    /// As [`Self::new`], for a process that gives its waiting queue pairs their turns, see
    /// [`QueuePair::waits_for_budget`](crate::QueuePair::waits_for_budget).
    pub fn with_turns(granted_rcvbuf: usize) -> Self {
        Self { turns: true, ..Self::new(granted_rcvbuf) }
    }

    /// Gives the budget `blocks` blocks of 64 KiB, at most 128, in which responders hold requests that came
    /// too early. A queue pair takes up to four blocks; if no block is left, the queue pair drops such
    /// requests.
    #[must_use]
    pub fn with_hold_blocks(self, blocks: usize) -> Self {
        Self { hold: HoldPool::with_blocks(blocks.min(HoldPool::BLOCKS)), ..self }
    }

    /// Blocks of memory to hold requests in that no queue pair has.
    pub fn hold_blocks_available(&self) -> usize {
        self.hold.available()
    }

    pub(crate) const fn hold(&self) -> &HoldPool {
        &self.hold
    }

    /// Whether queue pairs that wait get their turns.
    pub(crate) const fn gives_turns(&self) -> bool {
        self.turns
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
        self.reads.in_use.load(Ordering::Relaxed)
    }

    /// Octets on their way to an address (or to others that share its counter).
    pub fn destination_in_use(&self, address: IpAddr) -> u64 {
        self.shares(Self::destination(address)).map_or(0, |shares| shares.in_use.load(Ordering::Relaxed))
    }

    /// The counters of a queue pair that sends to an address; none if its path is not `limited`.
    pub(crate) fn accounts(address: IpAddr, limited: bool) -> Accounts {
        match limited {
            true => Accounts { reads: Account::Reads, data: Self::destination(address) },
            false => Accounts { reads: Account::Unlimited, data: Account::Unlimited },
        }
    }

    pub(crate) fn destination(address: IpAddr) -> Account {
        let bits = match address {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => address.to_bits(),
        };
        Account::Destination(mix((bits >> 64) as u64 ^ mix(bits as u64)) as u8)
    }

    /// Takes `amount` if the limit is then not exceeded. If nothing is taken, any amount is granted, so that
    /// a buffer smaller than a packet does not stop everything.
    ///
    /// While others wait, room for a packet of each, up to half of it all, is theirs: otherwise those that
    /// have something on its way would take again at once whatever comes free. `waited` tells that the caller
    /// is one of them.
    pub(crate) fn take(&self, account: Account, amount: u64, waited: bool) -> bool {
        let Some(shares) = self.shares(account) else { return true };
        let limit = self.limit(account);
        let kept = match shares.waiting.load(Ordering::Relaxed) {
            waiting if waiting > 0 && !waited => waiting.saturating_mul(amount).min(limit / 2),
            _ => 0,
        };
        let before = shares.in_use.fetch_add(amount, Ordering::Relaxed);
        if before == 0 || before.saturating_add(amount) <= limit - kept {
            return true;
        }
        shares.in_use.fetch_sub(amount, Ordering::Relaxed);
        false
    }

    /// Whether there is room for `amount`, or for a quarter of all if that is less.
    pub(crate) fn has_room(&self, account: Account, amount: u64) -> bool {
        let limit = self.limit(account);
        self.shares(account).is_none_or(|shares| {
            let in_use = shares.in_use.load(Ordering::Relaxed);
            in_use == 0 || in_use.saturating_add(amount.min(limit / 4)) <= limit
        })
    }

    /// Takes `amount` whatever the limit says.
    pub(crate) fn force(&self, account: Account, amount: u64) {
        if let Some(shares) = self.shares(account) {
            shares.in_use.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub(crate) fn give_back(&self, account: Account, amount: u64) {
        if amount > 0
            && let Some(shares) = self.shares(account)
        {
            shares.in_use.fetch_sub(amount, Ordering::Relaxed);
        }
    }

    /// A queue pair was refused and will try again; [`Budget::stop_waiting`] follows.
    pub(crate) fn wait(&self, account: Account) {
        if let Some(shares) = self.shares(account) {
            shares.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn stop_waiting(&self, account: Account) {
        if let Some(shares) = self.shares(account) {
            shares.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    const fn limit(&self, account: Account) -> u64 {
        match account {
            Account::Reads => self.read_limit(),
            Account::Destination(_) => self.destination_limit(),
            Account::Unlimited => u64::MAX,
        }
    }

    fn shares(&self, account: Account) -> Option<&Shares> {
        match account {
            Account::Unlimited => None,
            Account::Reads => Some(&self.reads),
            Account::Destination(index) => self.destinations.get(usize::from(index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_but_for_the_first() {
        let budget = Budget::new(1000);
        assert_eq!((budget.read_limit(), budget.destination_limit()), (250, 500));
        assert!(budget.take(Account::Reads, 9999, false), "an unused budget grants any amount");
        assert!(!budget.take(Account::Reads, 1, false));
        budget.give_back(Account::Reads, 9999);
        assert!(budget.take(Account::Reads, 200, false));
        assert!(!budget.take(Account::Reads, 51, false));
        assert!(budget.take(Account::Reads, 50, false));
        assert_eq!(budget.reads_in_use(), 250);
        budget.force(Account::Reads, 100);
        assert_eq!(budget.reads_in_use(), 350);
    }

    #[test]
    fn room_is_kept_for_those_that_wait() {
        let budget = Budget::new(1000);
        assert!(budget.take(Account::Reads, 100, false));
        budget.wait(Account::Reads);
        assert!(budget.take(Account::Reads, 50, false), "and 50 for the one");
        assert!(!budget.take(Account::Reads, 60, false));
        assert!(budget.take(Account::Reads, 60, true));
        budget.stop_waiting(Account::Reads);
        assert!(budget.take(Account::Reads, 40, false));
    }

    #[test]
    fn destinations_have_accounts_of_their_own() {
        let budget = Budget::new(1000);
        let addresses = [1, 2].map(|host| IpAddr::from([192, 0, 2, host]));
        let accounts = addresses.map(Budget::destination);
        assert_ne!(accounts[0], accounts[1]);
        assert!(budget.take(accounts[0], 400, false));
        assert!(budget.take(accounts[1], 400, false));
        assert_eq!(addresses.map(|address| budget.destination_in_use(address)), [400, 400]);
        // Hosts of one network do not crowd into a few accounts.
        let used: std::collections::BTreeSet<_> = (0..=255)
            .map(|host| format!("{:?}", Budget::destination(IpAddr::from([10, 0, 0, host]))))
            .collect();
        assert!(used.len() > 140, "{}", used.len());
    }
}
