//! The lane of all pipes of the process.

use std::sync::atomic::Ordering;

use ferroce_host::latest::Reader;
use ferroce_ipc::pipe::{Batch, MAX_BATCH, SHORT};
use ferroce_paths::pipes::Pipes;
use ferroce_paths::rx::{Arrival, Segments};
use ferroce_paths::{clock, faults};
use ferroce_wire::{IcrcStatus, Instant, Packet};

use super::{Delivery, Endpoint, Lane, Receiver, Round};
use crate::handover::NEVER;
use ferroce_ipc::ledger::DeviceCounters;

impl Lane {
    /// The calling thread is about to sleep on the lane's descriptor. Returns whether something waits, so
    /// that it must not.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        self.source.pipes().is_some_and(|pipes| pipes.prepare_to_sleep())
    }

    /// The background thread woke up because the lane's descriptor is readable: it is not any more.
    pub(crate) fn silence(&self) {
        self.source.pipes().inspect(|pipes| pipes.silence());
    }

    /// As [`Self::prepare_to_sleep`]; if something waits, the descriptor is readable again, for all threads
    /// that sleep on it.
    pub(crate) fn stay_ready(&self) -> bool {
        let waits = self.prepare_to_sleep();
        if waits {
            self.source.pipes().inspect(|pipes| pipes.ring());
        }
        waits
    }

    /// Receives and processes one batch; when that was, or `None` if nothing waits. Before the background
    /// thread finds nothing, it prepares to sleep.
    #[inline]
    pub(super) fn receive_pipes(
        &self,
        receiver: &mut Receiver,
        pipes: &Pipes,
        program: bool,
    ) -> Option<Instant> {
        // A program that is woken by the doorbell itself sleeps as soon as it finds nothing.
        let looks_only = program && !self.follow.is_attached();
        let reader = Reader::enter();
        let list = pipes.list(&reader);
        let octets = receiver.batch.get_or_insert_with(|| Box::new([0; MAX_BATCH]));
        let (pipe, batch) = match pipes.receive(list, octets) {
            Some(received) => received,
            None if looks_only || !pipes.prepare_to_sleep() => return None,
            None => pipes.receive(list, octets)?,
        };
        let now = self.process_batch(receiver, &batch, program)?;
        if receiver.delivery.delayed_ack.is_none() {
            pipe.settle();
        }
        Some(now)
    }

    /// As [`Self::receive_pipes`] on a thread of the program, for one short packet, without the steps for
    /// batches. `None` says nothing, and nothing was taken.
    #[inline(always)]
    pub(super) fn receive_straight(
        &self,
        receiver: &mut Receiver,
        pipes: &Pipes,
        reader: &Reader,
    ) -> Option<Instant> {
        if faults::on() || self.follow.is_attached() {
            return None;
        }
        let delivery = &mut receiver.delivery;
        let mut octets = [0; SHORT];
        let (pipe, flow, len) = pipes.receive_short(pipes.list(reader), &mut octets)?;
        let octets = octets.get(..len).unwrap_or_default();
        let arrival = Arrival::new(&flow, octets);
        let endpoint = arrival.destination().and_then(|qpn| self.hub.table.read(qpn, reader));
        let counters = match endpoint {
            Some(endpoint) => self.hub.ledger.device(endpoint.block),
            None => self.counters(),
        };
        let now = clock::now();
        delivery.look_at_guard(now);
        self.follow.received();
        let round = Round { lane: self, counters, now, program: true };
        // A packet of the common kinds is made in its place.
        if let Some(endpoint) = endpoint
            && let Some(mut packet) = Packet::parse_common(octets)
            && packet.bth.dest_qp == endpoint.qpn
        {
            packet.icrc = IcrcStatus::Checked;
            self.give(&round, endpoint, (&arrival, &packet), delivery);
        } else {
            self.receive_other(&round, endpoint, &arrival, delivery);
        }
        self.count_received(counters, 1, len);
        if delivery.delayed_ack.is_none() {
            pipe.settle();
        }
        Some(now)
    }

    #[cold]
    fn receive_other(
        &self,
        round: &Round<'_>,
        endpoint: Option<&Endpoint>,
        arrival: &Arrival<'_>,
        delivery: &mut Delivery,
    ) {
        let Some(packet) = self.read(arrival, &mut delivery.icrc, round.counters) else { return };
        match endpoint {
            Some(endpoint) => self.give(round, endpoint, (arrival, &packet), delivery),
            None => DeviceCounters::count(&round.counters.rx_no_qp),
        }
    }

    /// Hands the one packet of a batch to its endpoint.
    #[inline(always)]
    fn give(
        &self,
        round: &Round<'_>,
        endpoint: &Endpoint,
        (arrival, packet): (&Arrival<'_>, &Packet<'_>),
        delivery: &mut Delivery,
    ) {
        let mut locked = endpoint.lock();
        locked.receive(round.now, arrival, packet, round.counters);
        self.end_run(round, endpoint, locked, Some(1), delivery);
    }

    /// Whether a poll of the program has nothing to do at this lane but to look at the clock now and then:
    /// nothing waits in a pipe. A lane of other packets is never quiet.
    #[inline(always)]
    pub(super) fn is_quiet(&self, reader: &Reader) -> bool {
        let Some(pipes) = self.source.pipes() else { return false };
        let ack_waits = self.state.delayed_ack_pending();
        // Rare reasons share a branch.
        let is_usual = (self.state.gathers_until() == NEVER)
            & !(self.any_waits.load(Ordering::Relaxed) | self.follow.is_attached());
        is_usual && (!ack_waits || self.ack_is_held.load(Ordering::Relaxed)) && !pipes.seem_ready(reader)
    }

    /// Tells the background thread that the program polls the lane, which is quiet. Returns whether a timer
    /// is due, or perhaps an acknowledgement, or another thread works here, for which a poller yields.
    pub(super) fn is_due(&self) -> bool {
        let now = clock::now().as_nanos();
        self.state.served(now);
        self.state.earliest() <= now || self.state.delayed_ack_pending() || self.receiver.is_locked()
    }

    /// The acknowledgement that was delayed has left.
    pub(super) fn settle(&self) {
        self.source.pipes().inspect(|pipes| pipes.settle());
    }

    /// Receives and processes what each pipe has held at the time of the call; when the last batch came, if
    /// any did.
    pub(super) fn empty_pipes(&self, receiver: &mut Receiver, pipes: &Pipes) -> Option<Instant> {
        let mut last = None;
        for pipe in pipes.all().iter() {
            let mut rest = pipe.contents();
            loop {
                let octets = receiver.batch.get_or_insert_with(|| Box::new([0; MAX_BATCH]));
                let Some(batch) = rest.receive(octets) else { break };
                last = self.process_batch(receiver, &batch, false).or(last);
            }
            pipe.settle();
        }
        last
    }

    /// Processes a batch, which is in the receiver's buffer. Returns when that was.
    #[inline]
    fn process_batch(&self, receiver: &mut Receiver, batch: &Batch, program: bool) -> Option<Instant> {
        receiver.octets = batch.len;
        let octets: &[u8] = receiver.batch.as_deref().map_or(&[], |octets| octets);
        let mut segments = Segments::new(batch, octets);
        // The device that counts is that of the first packet's queue pair.
        let reader = Reader::enter();
        let first = segments.destination().and_then(|qpn| self.hub.table.read(qpn, &reader));
        let counters = match first {
            Some(endpoint) => self.hub.ledger.device(endpoint.block),
            None => self.counters(),
        };
        let now = self.deliver_from(first, &mut receiver.delivery, counters, program, &mut segments);
        if program && self.follow.is_attached() {
            // The doorbell is in the program's epoll set: it says that something waits as long as nobody
            // silences it.
            self.stay_ready();
        }
        now
    }
}
