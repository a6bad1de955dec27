//! Direct copies of an endpoint: its peer's to and from this process, and its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferroce_ipc::published::{self, Connection};
use ferroce_memory::View;
use ferroce_memory::direct::{Direct, Ends, Progress, TargetConnection};
use ferroce_paths::clock;
use ferroce_proto::history::Event;
use ferroce_proto::{DirectTarget, QueuePair};
use ferroce_wire::{Flow, Instant, Psn};

use super::choice::{Choice, STREAM};
use ferroce_ipc::ledger::{DeviceCounters, Entry};

/// The state of direct copies.
#[derive(Default)]
pub(crate) struct DirectState {
    /// The rights of the peer, as published.
    target: Option<DirectTarget>,
    progress: Progress,
    /// Attempts in a row that failed, as a power of two, and calls until the next one.
    failed: u32,
    pause: u32,
    /// Requests that were posted in quick succession and without a poll between them, the time of the last
    /// one's end, and the polls before it.
    run: u64,
    last: Instant,
    polls: u64,
    choice: Choice,
    /// The connection as this end publishes it, and as its peer does.
    ours: Connection,
    theirs: TargetConnection,
}

/// A program that posts so soon behind its last request has seen no answer of a peer to that one.
const QUICK: Duration = Duration::from_nanos(700);

/// Calls that pass at most between two attempts.
const LONGEST_PAUSE: u32 = 64;

impl DirectState {
    /// A request for a direct copy was posted, after the program had found completions by so many polls.
    /// Returns the number of requests before it that were posted in quick succession without a poll.
    pub(super) fn posted(&mut self, now: Instant, polls: u64) -> u64 {
        let goes_on = now < self.last + QUICK && polls == self.polls;
        self.run = if goes_on { self.run + 1 } else { 0 };
        (self.last, self.polls) = (now, polls);
        self.run
    }

    /// Takes note of the requests that are completed.
    #[inline]
    pub(super) fn follow(&mut self, transport: &QueuePair) {
        if let Some(done) = transport.sends_answered() {
            self.choice.completed(done, clock::now);
        }
    }

    /// Executes by direct copies what the send queue has for them; returns whether it has more.
    pub(super) fn copy(
        &mut self,
        transport: &mut QueuePair,
        memory: &View,
        (direct, flow): (&Direct, &Flow),
        counters: &DeviceCounters,
        record: &Entry,
    ) -> bool {
        self.pause = self.pause.saturating_sub(1);
        let first = transport.direct_request(0).map(|request| request.length);
        let streams = self.run >= STREAM || transport.direct_request(STREAM as u32).is_some();
        // Without answers nothing would tell when copies may begin again.
        let sends = transport.sends_answered().is_some()
            && self.choice.sends(streams, first.is_some(), first.unwrap_or(0), clock::now);
        transport.prefer_direct(self.pause == 0 && !sends);
        if self.pause > 0 || sends || first.is_none() {
            return false;
        }
        let (remote, ..) = transport.progress();
        let ends = Ends { local: transport.qpn(), remote, flow, target: &self.theirs };
        let more = direct.drain(transport, memory, &ends, &mut self.progress, counters);
        self.last = clock::now();
        record.happened(Event::copied(self.last));
        if self.theirs.is_over() && transport.lose_peer() {
            return false;
        }
        if !more && transport.direct_request(0).is_some() {
            // Memory that the kernel cannot copy, for example: packets in a stream serve it better than one
            // by one.
            self.failed = (2 * self.failed).clamp(1, LONGEST_PAUSE);
            self.pause = self.failed;
            transport.prefer_direct(false);
        } else {
            self.failed = 0;
        }
        more
    }

    /// A connection began to receive, and expects this PSN first.
    pub(crate) fn receives_from(&mut self, first: Psn) {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        self.ours = Connection::new(COUNT.fetch_add(1, Ordering::Relaxed), first);
    }

    /// A connection began to send, with this PSN.
    pub(crate) fn sends_from(&mut self, first: Psn) {
        self.theirs = TargetConnection::new(first);
        self.choice = Choice::default();
    }

    /// Publishes the rights of the peer, if they changed; it has none unless the queue pair `lives`. When this
    /// returns, the peer copies no more by those that it lost.
    pub(super) fn follow_target(&mut self, transport: &mut QueuePair, memory: &View, lives: bool) {
        let target = transport.direct_target().filter(|_| lives && !ferroce_paths::faults::on());
        if self.target != target {
            self.end_target(transport, memory);
            self.publish_target(transport, memory, target);
        }
    }

    #[cold]
    fn publish_target(&mut self, transport: &QueuePair, memory: &View, target: Option<DirectTarget>) {
        let Some(publisher) = memory.publisher() else { return };
        if let Some(DirectTarget { remote, write, read }) = target {
            let Flow { source, destination, link, .. } = transport.query().path;
            publisher.put_queue_pair(&published::QueuePair {
                qpn: transport.qpn(),
                remote,
                source,
                destination,
                version: link.version,
                pd: memory.domain().value(),
                write,
                read,
                connection: self.ours,
            });
        }
        self.target = target;
    }

    /// Takes the rights of the peer back until [`Self::follow_target`], because its path changes.
    pub(crate) fn end_target(&mut self, transport: &mut QueuePair, memory: &View) {
        transport.prefer_direct(false);
        if self.target.take().is_some()
            && let Some(publisher) = memory.publisher()
        {
            publisher.end_queue_pair(transport.qpn());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_behind_a_pause_or_a_poll_begin_a_new_run() {
        let mut state = DirectState::default();
        let mut now = Instant::from_nanos(1_000_000);
        let mut posted = |after: u64, polls: u64| {
            now += Duration::from_nanos(after);
            state.posted(now, polls)
        };
        assert_eq!([posted(0, 0), posted(100, 0), posted(699, 0), posted(700, 0)], [0, 1, 2, 0]);
        assert_eq!([posted(10, 0), posted(10, 1), posted(10, 1)], [1, 0, 1]);
    }
}
