//! Processing of what has arrived, before a change that decides what becomes of packets.
//!
//! A card judges a packet when it arrives, by the state that its queue pair has at that time. Here a packet
//! may wait in a socket or a pipe until a thread looks, or in a ring until the broker does. So a thread that
//! is about to change a state first processes what has arrived under the old one.

use std::sync::Arc;
use std::time::Duration;

use ferroce_paths::clock;
use ferroce_wire::Instant;

use super::{Endpoint, Lane, Lanes, OCTETS_BEFORE_TIMERS, Receiver, Served, Source, Visit};
use ferroce_client::BrokerClient;

/// How long a thread waits for the one that serves a lane. That one works for some microseconds, unless it
/// does not run. A thread that serves the lane itself, and calls this from a signal handler, waits in vain.
const HOLDER: Duration = Duration::from_millis(500);
/// How long a post waits for the thread that serves a lane. Signal handlers may post.
const HOLDER_AT_POST: Duration = Duration::from_millis(20);

/// Receive calls at most: a socket that is never empty must not stop the caller.
const CALLS: u32 = 8192;

/// The lanes are looked at so often: answers of this process to what was found first are found the second
/// time.
const PASSES: u32 = 2;

impl Lane {
    /// Receives and processes what has arrived before this call. If another thread does so, waits for it:
    /// that thread may have what the caller must not miss. The caller has no lock.
    pub(crate) fn catch_up(&self) {
        self.catch_up_within(HOLDER);
    }

    /// As [`Self::catch_up`], with the longest wait for another thread. Returns whether something had
    /// arrived.
    fn catch_up_within(&self, holder: Duration) -> bool {
        let Some(mut receiver) = self.receiver.try_lock_for(holder) else { return false };
        let receiver = &mut **receiver;
        let delayed = receiver.delivery.delayed_ack.take();
        let batch_time = match self.source.pipes() {
            Some(pipes) => self.empty_pipes(receiver, pipes),
            None => self.empty_socket(receiver),
        };
        self.finish_serving(receiver, delayed, batch_time, false) == Served::Some
    }

    fn empty_socket(&self, receiver: &mut Receiver) -> Option<Instant> {
        let (mut octets, mut last) = (0, None);
        for _ in 0..CALLS {
            let Some(now) = self.receive(receiver, false) else { break };
            last = Some(now);
            if self.source.socket().is_some() {
                octets += receiver.buffer.octets();
            }
            if octets > OCTETS_BEFORE_TIMERS {
                break;
            }
        }
        last
    }
}

impl Lanes {
    /// Processes what has arrived while the endpoint receives nothing yet, so that the packets for it are
    /// dropped.
    pub(crate) fn drop_arrived(&self, broker: &BrokerClient, endpoint: &Endpoint) {
        (0..PASSES).any(|_| !self.pass(endpoint, HOLDER, Some(broker)));
    }

    /// Has the broker move what is on its way through it to one of these lanes. Packets between a program
    /// with sockets and one of another user pass through the broker as well.
    pub(crate) fn settle<'a>(broker: &BrokerClient, mut lanes: impl Iterator<Item = &'a Arc<Lane>>) {
        let by_broker = |lane: &Lane| match lane.source {
            Source::Rings { .. } => true,
            Source::Udp(_) => broker.is_for_all_users(),
            _ => false,
        };
        if lanes.any(|lane| by_broker(lane)) {
            broker.settle_rings(HOLDER);
        }
    }

    /// Processes what has arrived before the first post of a connection: there is nothing yet that it could
    /// acknowledge.
    pub(crate) fn drop_early_answers(&self, endpoint: &Endpoint) {
        self.pass(endpoint, HOLDER_AT_POST, None);
    }

    /// Returns whether something had arrived.
    fn pass(&self, endpoint: &Endpoint, holder: Duration, broker: Option<&BrokerClient>) -> bool {
        let lanes = self.all();
        let concerned = || lanes.iter().filter(|lane| lane.source.may_bring(endpoint));
        // Messages that wait to fill a batch would have left.
        concerned().for_each(|lane| lane.visit_gatherers(Visit::Final, clock::now));
        if let Some(broker) = broker {
            Self::settle(broker, concerned());
        }
        concerned().filter(|lane| lane.catch_up_within(holder)).count() > 0
    }
}
