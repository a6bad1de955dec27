//! Lanes that a polling thread looks at now and then.
//!
//! A device whose datapath is AF_XDP has UDP sockets beside its port, and perhaps the rings to the broker.
//! While the port is up, few packets come there: those of this host, and those of the moments in which the
//! broker changes. A look at a socket costs a system call, and a look at the port costs none. So a thread
//! that polls looks at the other lanes with every 64th poll, and with each of the 64 polls after packets came
//! there. A thread that sleeps waits for the descriptors of all of them, and the background thread has them
//! as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Lane;

/// Polls for each look.
const POLLS_PER_LOOK: u32 = 64;
/// Polls after packets came that all look.
const POLLS_AFTER_PACKETS: u32 = 64;

/// Counts of a lane that is looked at now and then. Threads count together; a lost count means nothing.
#[derive(Default)]
pub(super) struct Seldom {
    /// Polls that did not look.
    passed: AtomicU32,
    /// Polls that look.
    busy: AtomicU32,
}

impl Seldom {
    /// Packets came.
    pub(super) fn found(&self) {
        self.busy.store(POLLS_AFTER_PACKETS, Ordering::Relaxed);
    }

    /// Counts a poll. Returns whether it looks.
    fn is_due(&self) -> bool {
        let busy = self.busy.load(Ordering::Relaxed);
        if busy > 0 {
            self.busy.store(busy - 1, Ordering::Relaxed);
            return true;
        }
        let passed = self.passed.load(Ordering::Relaxed) + 1;
        let due = passed >= POLLS_PER_LOOK;
        self.passed.store(if due { 0 } else { passed }, Ordering::Relaxed);
        due
    }
}

/// The lanes that this poll looks at: all of them, or, while the port of one of them is up, few of those
/// beside it.
pub(super) fn due(lanes: &[Arc<Lane>]) -> impl Iterator<Item = &Arc<Lane>> {
    let by_port = lanes.iter().any(|lane| lane.source.is_port_up());
    lanes.iter().filter(move |lane| !by_port || !lane.traits.is_beside_port || lane.seldom.is_due())
}

/// The lane that all packets come by, as far as one can tell; `None` if there are several or none.
pub(super) fn only(lanes: &[Arc<Lane>]) -> Option<&Arc<Lane>> {
    let by_port = lanes.iter().any(|lane| lane.source.is_port_up());
    let mut main = lanes.iter().filter(|lane| !by_port || !lane.traits.is_beside_port);
    main.next().filter(|_| main.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_poll_of_64_looks_and_all_do_after_packets() {
        let seldom = Seldom::default();
        let looks = |polls: u32| (0..polls).filter(|_| seldom.is_due()).count();
        assert_eq!(looks(63), 0);
        assert_eq!(looks(1), 1);
        assert_eq!(looks(640), 10);
        seldom.found();
        assert_eq!(looks(64), 64);
        assert_eq!(looks(64), 1);
    }
}
