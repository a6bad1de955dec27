//! Delivery: hands each packet of a batch to its endpoint.

use std::sync::atomic::Ordering;

use ferroce_paths::rx::{Arrival, RxBatch};
use ferroce_paths::{clock, faults};
use ferroce_wire::icrc::IcrcChecker;
use ferroce_wire::{Instant, Packet};

use super::endpoint::Locked;
use super::faults::ByPlan;
use super::{DelayedBy, Delivery, Endpoint, Lane, Round};
use crate::counters::DeviceCounters;

/// Datagrams that one message of a ping-pong comes in: its own and the acknowledgement behind it.
const ANSWERABLE: u64 = 2;

/// The place between the checks of the wire and the endpoints, where a plan of faults may act.
pub(super) trait Gate {
    /// The gate lets all packets pass, so it is not asked under an endpoint's lock.
    const OPEN: bool;

    /// Whether the packet goes on from here; if not, the gate has seen to it. No lock of an endpoint is held.
    fn passes(on: &Round<'_>, to: &mut Delivery, arrival: &Arrival<'_>, packet: &Packet<'_>) -> bool;

    /// The batch ends.
    fn end_batch(_on: &Round<'_>, _to: &Delivery) {}
}

/// The gate without a plan.
struct Open;

impl Gate for Open {
    const OPEN: bool = true;

    #[inline(always)]
    fn passes(_: &Round<'_>, _: &mut Delivery, _: &Arrival<'_>, _: &Packet<'_>) -> bool {
        true
    }
}

impl Lane {
    /// Delivers a batch, by the plan of faults if there is one. Returns when that was, or `None` if the batch
    /// is empty.
    #[inline]
    pub(super) fn deliver(
        &self,
        delivery: &mut Delivery,
        counters: &DeviceCounters,
        program: bool,
        batch: &mut impl RxBatch,
    ) -> Option<Instant> {
        match faults::on() {
            false => self.dispatch::<Open>(delivery, counters, program, batch),
            true => self.dispatch::<ByPlan>(delivery, counters, program, batch),
        }
    }

    /// Hands every packet of the batch that the gate lets pass to its endpoint, then finishes the batch of
    /// each of those, in the order in which they were first meant: a program may count on an acknowledgement
    /// before the answer that another queue pair takes. Returns when that was, or `None` if the batch is
    /// empty.
    #[inline]
    fn dispatch<G: Gate>(
        &self,
        delivery: &mut Delivery,
        counters: &DeviceCounters,
        program: bool,
        batch: &mut impl RxBatch,
    ) -> Option<Instant> {
        let mut next = batch.next();
        next.as_ref()?;
        let now = clock::now();
        delivery.look_at_guard(now);
        self.follow.received();
        self.seldom.found();
        let round = Round { lane: self, counters, now, program };
        let (mut received, mut octets): (u64, usize) = (0, 0);
        while let Some(arrival) = &next {
            received += 1;
            octets += arrival.octets.len();
            let packet = match self.read(arrival, &mut delivery.icrc, counters) {
                Some(packet) if G::passes(&round, delivery, arrival, &packet) => packet,
                _ => {
                    next = batch.next();
                    continue;
                }
            };
            let qpn = packet.bth.dest_qp;
            let Some(endpoint) = self.hub.table.get(qpn) else {
                DeviceCounters::count(&counters.rx_no_qp);
                next = batch.next();
                continue;
            };
            let mut locked = endpoint.lock();
            locked.receive(now, &arrival.flow, &packet, counters);
            // Batches are mostly of one queue pair: keep its lock over the run.
            loop {
                next = batch.next();
                let Some(arrival) = next.as_ref().filter(|next| G::OPEN && next.destination() == Some(qpn))
                else {
                    break;
                };
                received += 1;
                octets += arrival.octets.len();
                if let Some(packet) = self.read(arrival, &mut delivery.icrc, counters) {
                    locked.receive(now, &arrival.flow, &packet, counters);
                }
            }
            let whole = next.is_none().then_some(received);
            self.end_run(&round, &endpoint, locked, whole, delivery);
        }
        DeviceCounters::count(&counters.rx_calls);
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        G::end_batch(&round, delivery);
        delivery.finish_touched(now);
        Some(now)
    }

    /// Reads a packet for this slot. Everything else is counted.
    fn read<'a>(
        &self,
        arrival: &Arrival<'a>,
        icrc: &mut IcrcChecker,
        counters: &DeviceCounters,
    ) -> Option<Packet<'a>> {
        let checker = self.checks.load(Ordering::Relaxed).then_some(icrc);
        arrival.read(checker, |qpn| self.hub.table.owns(qpn), counters)
    }

    /// Ends a run of packets for one endpoint. `whole` is the number of packets of the batch, if nothing
    /// follows in it.
    fn end_run(
        &self,
        round: &Round<'_>,
        endpoint: &Endpoint,
        mut locked: Locked<'_>,
        whole: Option<u64>,
        delivery: &mut Delivery,
    ) {
        let &Round { now, program, .. } = round;
        let Some(received) = whole.filter(|_| delivery.touched.is_empty()) else {
            delivery.touch(endpoint, &mut locked);
            return;
        };
        // A single message (and perhaps the acknowledgement of ours), taken by the thread that
        // looks at its completion next and most likely answers: then its acknowledgement
        // leaves with the answer.
        if program && received <= ANSWERABLE {
            let by_epoll = self.follow.is_attached();
            if let Some(until) = locked.finish_batch_delaying_ack(now, by_epoll)
                && let Some(endpoint) = endpoint.me.upgrade()
            {
                delivery.delayed_ack = Some(DelayedBy { endpoint, until });
                self.state.ack_delayed(&self.hub.attention, || self.hub.wake());
            }
        } else {
            locked.finish_batch(now);
        }
    }
}

impl Delivery {
    /// Notes that the endpoint received something of the batch.
    pub(super) fn touch(&mut self, endpoint: &Endpoint, locked: &mut Locked<'_>) {
        if !locked.set_touched(true) {
            self.touched.extend(endpoint.me.upgrade());
        }
    }

    /// Sends the batch's answers and publishes its completions.
    #[inline]
    pub(super) fn finish_touched(&mut self, now: Instant) {
        if !self.touched.is_empty() {
            self.finish_all(now);
        }
    }

    fn finish_all(&mut self, now: Instant) {
        for endpoint in self.touched.drain(..) {
            let mut locked = endpoint.lock();
            if locked.set_touched(false) {
                locked.finish_batch(now);
            }
        }
    }
}
