//! Gathering: small messages that the program posts one by one wait until they fill a batch, which leaves in
//! one system call.
//!
//! This is Nagle's idea: while enough messages are on their way, a further one waits for the acknowledgement
//! that is on its way too. A message that finds the queue pair idle leaves at once, and so do the first few
//! behind it, because a peer may hold the acknowledgement of a ping-pong back for some messages (see
//! [`ferroce_paths::delayed_ack`]). Once a batch was filled, one message on its way is enough.
//!
//! Small requests of direct copies wait as well, each of which would cost system calls of its own. A copy is over
//! at once, so that nothing is on its way: those count that were posted in quick succession without a poll.
//!
//! The waiting messages leave with the first of these: a packet of the peer, a full batch, a request that is
//! no small message, a second poll in vain after the last post, a sleep or an armed completion queue, a
//! change of the queue pair, the end of the process, or the end of [`LONGEST`], for which the background
//! thread sees to it. A program that posts some messages and then spins on its memory waits for the latter;
//! if that happens, the next messages of the queue pair do not wait, and each time it happens again twice as
//! many.

use std::time::Duration;

use ferroce_proto::Backlog;
use ferroce_wire::{BatchLimits, Instant};

/// Messages wait no longer than this, and up to a millisecond more where the background thread sees to it: a
/// wake-up of that thread for each batch would cost as much as the batch.
pub(super) const LONGEST: Duration = Duration::from_millis(1);
/// Messages on their way that let a further one wait. More than a peer leaves unacknowledged in a ping-pong.
const MANY: u64 = 9;
/// Octets of a packet beside its payload, at most: BTH, the longest extended header and ICRC.
const HEADERS: usize = 60;
/// Octets of a batch, at most.
const MAX_OCTETS: usize = 65_507;
/// A wait up to [`LONGEST`] for fewer messages than this was in vain.
const FEW: u64 = 16;
/// Messages that do not wait after the first wait in vain, and at most.
const PAUSES: [u32; 2] = [256, 65_536];

/// The messages of one queue pair that wait.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Messages wait, until then at the latest.
    until: Option<Instant>,
    /// The program polled in vain since its last post.
    looked: bool,
    /// The endpoint is in the lane's list of those that gather.
    pub(super) listed: bool,
    /// The program posts faster than the peer answers: a batch was filled.
    streams: bool,
    /// Number of the next messages that leave at once.
    pause: u32,
    /// Value of `pause` after the next wait in vain.
    next_pause: u32,
}

/// The reason to look at an endpoint that gathers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    /// A thread of the program polled and found nothing.
    PolledInVain,
    /// A timer is due; the value is the time now.
    Due(Instant),
    /// Nothing may wait any longer.
    Final,
}

impl Gathering {
    pub(super) const fn new() -> Self {
        Self { until: None, looked: false, listed: false, streams: false, pause: 0, next_pause: PAUSES[0] }
    }

    /// The program posted requests. Whether they wait; `now` is asked if they are the first.
    pub(super) fn posted(
        &mut self,
        backlog: Option<Backlog>,
        limits: BatchLimits,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let Some(Backlog { in_flight, waiting, payload }) = backlog else { return false };
        let octets = payload as u64 + HEADERS as u64;
        let fits =
            |messages: u64| messages * octets <= MAX_OCTETS as u64 && messages <= limits.max_segments as u64;
        if !fits(waiting + 1) {
            (self.streams, self.next_pause) = (fits(2), PAUSES[0]);
            return false;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if in_flight < (if self.streams { 1 } else { MANY }) {
            return false;
        }
        self.looked = false;
        if self.until.is_none() {
            self.until = Some(now() + LONGEST);
        }
        true
    }

    /// Notes that the waiting messages leave now.
    pub(super) const fn left(&mut self) {
        self.until = None;
    }

    /// Whether messages wait.
    pub(super) const fn waits(&self) -> bool {
        self.until.is_some()
    }

    /// The latest end of the wait.
    pub(super) const fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether what waits must leave now; `waiting` says how many messages that are.
    pub(super) fn visited(&mut self, visit: Visit, waiting: impl FnOnce() -> u64) -> bool {
        let Some(until) = self.until else { return false };
        match visit {
            Visit::PolledInVain => std::mem::replace(&mut self.looked, true),
            Visit::Final => true,
            Visit::Due(now) if now < until => false,
            Visit::Due(_) => {
                if waiting() < FEW {
                    (self.streams, self.pause) = (false, self.next_pause);
                    self.next_pause = (self.next_pause * 2).min(PAUSES[1]);
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BatchLimits = BatchLimits { max_segments: 64, gso: true };
    const NOW: Instant = Instant::from_nanos(1_000_000);

    const fn backlog(in_flight: u64, waiting: u64) -> Option<Backlog> {
        Some(Backlog { in_flight, waiting, payload: 8 })
    }

    fn posts(gathering: &mut Gathering, in_flight: u64, waiting: u64) -> bool {
        gathering.posted(backlog(in_flight, waiting), LIMITS, || NOW)
    }

    #[test]
    fn a_message_waits_only_behind_many() {
        let mut gathering = Gathering::new();
        assert!((0..MANY).all(|in_flight| !posts(&mut gathering, in_flight, 1)));
        assert!(posts(&mut gathering, MANY, 1));
        assert_eq!(gathering.until(), Some(NOW + LONGEST));
        assert!(!gathering.posted(None, LIMITS, || NOW), "something else is to be sent");
    }

    #[test]
    fn a_full_batch_leaves_and_the_next_message_waits_behind_one() {
        let mut gathering = Gathering::new();
        assert!((1..64).all(|waiting| posts(&mut gathering, MANY, waiting)));
        assert!(!posts(&mut gathering, MANY, 64));
        gathering.left();
        assert!(!posts(&mut gathering, 0, 1), "a lone message never waits");
        assert!(posts(&mut gathering, 1, 1));
        // Fifteen packets of 4 KiB fill a system call.
        let large = |waiting| Some(Backlog { in_flight: 64, waiting, payload: 4096 });
        assert!(gathering.posted(large(14), LIMITS, || NOW) && !gathering.posted(large(15), LIMITS, || NOW));
        let single = BatchLimits { max_segments: 1, gso: false };
        assert!(!gathering.posted(backlog(64, 1), single, || NOW), "nothing is gained");
    }

    #[test]
    fn it_ends_with_the_second_poll_in_vain_after_a_post() {
        let mut gathering = Gathering::new();
        for waiting in 1..10 {
            assert!(posts(&mut gathering, MANY, waiting));
            assert!(!gathering.visited(Visit::PolledInVain, || waiting));
        }
        assert!(gathering.visited(Visit::PolledInVain, || 9));
        gathering.left();
        assert!(!gathering.visited(Visit::PolledInVain, || 0) && !gathering.visited(Visit::Final, || 0));
    }

    #[test]
    fn a_program_that_does_not_poll_is_not_kept_waiting_again() {
        let mut gathering = Gathering::new();
        assert!(posts(&mut gathering, MANY, 1));
        assert!(!gathering.visited(Visit::Due(NOW), || 1));
        assert!(gathering.visited(Visit::Due(NOW + LONGEST), || 1));
        gathering.left();
        let pauses = |gathering: &mut Gathering, count: u32| {
            assert!((0..count).all(|_| !posts(gathering, 100, 1)));
            assert!(posts(gathering, 100, 1));
        };
        pauses(&mut gathering, PAUSES[0]);
        // A large part of a batch was worth the wait.
        assert!(gathering.visited(Visit::Due(NOW + LONGEST), || FEW));
        gathering.left();
        pauses(&mut gathering, 0);
        assert!(gathering.visited(Visit::Due(NOW + LONGEST), || 1));
        gathering.left();
        pauses(&mut gathering, 2 * PAUSES[0]);
    }
}
