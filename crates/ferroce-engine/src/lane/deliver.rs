//! Delivery: hands each packet of a batch to its endpoint.

use std::sync::atomic::Ordering;

use ferroce_fault::{Affected, Answer, Corruption, Dir, Release};
use ferroce_host::latest::Reader;
use ferroce_paths::rx::{Arrival, RxBatch};
use ferroce_paths::{clock, faults};
use ferroce_wire::icrc::IcrcChecker;
use ferroce_wire::{Flow, IcrcStatus, Instant, Packet};

use super::endpoint::Locked;
use super::{DelayedBy, Delivery, Endpoint, Lane, Round};
use crate::handover::NEVER;
use ferroce_ipc::ledger::DeviceCounters;

/// Datagrams that one message of a ping-pong comes in: its own and the acknowledgement behind it.
const ANSWERABLE: u64 = 2;

/// The place between the checks of the wire and the endpoints, where a plan of faults may act.
trait Gate {
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

/// The gate that a plan of faults guards, behind all checks of the wire and in front of the endpoints. The
/// packets that pass are delivered here, changed or later or more than once.
struct ByPlan;

impl Gate for ByPlan {
    const OPEN: bool = false;

    #[cold]
    fn passes(on: &Round<'_>, to: &mut Delivery, arrival: &Arrival<'_>, packet: &Packet<'_>) -> bool {
        let Some(endpoint) = on.lane.hub.table.get(packet.bth.dest_qp) else {
            DeviceCounters::count(&on.counters.rx_no_qp);
            return false;
        };
        let Arrival { flow, octets, .. } = *arrival;
        let actions =
            faults::judge(Dir::Rx, &endpoint.name, flow.source, flow.traffic_class, packet, octets.len());
        if actions.capture {
            faults::capture(Dir::Rx, &endpoint.lock().core.transport, flow, packet, octets);
        }
        let changed = None;
        actions.apply(&mut Judged { on, to, endpoint: &endpoint, from: *flow, octets, packet, changed });
        on.release(to);
        false
    }

    /// The lane's timers run when the next packet that waits is due.
    fn end_batch(on: &Round<'_>, to: &Delivery) {
        if let Some(at) = to.held.next() {
            on.lane.note_deadline(at.as_nanos());
        }
    }
}

/// A packet that arrived for this endpoint, and that the plan has judged.
struct Judged<'a> {
    on: &'a Round<'a>,
    to: &'a mut Delivery,
    endpoint: &'a Endpoint,
    from: Flow,
    octets: &'a [u8],
    packet: &'a Packet<'a>,
    /// The octets of the packet after a change.
    changed: Option<Vec<u8>>,
}

impl Affected for Judged<'_> {
    fn answer(&mut self, answer: Answer) {
        self.endpoint.lock().refuse(self.packet.bth.psn, answer, self.on.now);
    }

    fn mark_ce(&mut self) {
        self.from.traffic_class |= 3;
    }

    fn corrupt(&mut self, corruption: Corruption) -> bool {
        if corruption.icrc_ok {
            corruption.apply(self.changed.get_or_insert(self.octets.to_vec()));
        } else {
            // The check of the ICRC would have found it.
            DeviceCounters::count(&self.on.counters.rx_icrc_errors);
        }
        corruption.icrc_ok
    }

    fn go_on(&mut self, release: Option<Release>) {
        match (release, &self.changed) {
            (Some(release), changed) => {
                let octets = changed.clone().unwrap_or_else(|| self.octets.to_vec());
                self.to.held.push(release, self.endpoint.name.qp, &self.from, octets);
            }
            (None, Some(octets)) => self.on.deliver_octets(self.to, &self.from, octets),
            (None, None) => {
                self.on.deliver(self.to, &Arrival::new(&self.from, self.octets), self.packet);
            }
        }
    }

    fn count_as_successor(&mut self) {
        self.to.held.passed(self.endpoint.name.qp);
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
        self.deliver_from(None, delivery, counters, program, batch)
    }

    /// As [`Self::deliver`]. `first` is the endpoint of the first packet, if it was looked for.
    #[inline]
    pub(super) fn deliver_from(
        &self,
        first: Option<&Endpoint>,
        delivery: &mut Delivery,
        counters: &DeviceCounters,
        program: bool,
        batch: &mut impl RxBatch,
    ) -> Option<Instant> {
        match faults::on() {
            false => self.dispatch::<Open>(first, delivery, counters, program, batch),
            true => self.dispatch::<ByPlan>(first, delivery, counters, program, batch),
        }
    }

    /// Hands every packet of the batch that the gate lets pass to its endpoint, then finishes the batch of
    /// each of those, in the order in which they were first meant: a program may count on an acknowledgement
    /// before the answer that another queue pair takes. Returns when that was, or `None` if the batch is
    /// empty.
    #[inline]
    fn dispatch<G: Gate>(
        &self,
        mut first: Option<&Endpoint>,
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
        let reader = Reader::enter();
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
            let known = first.take().filter(|known| known.qpn == qpn);
            let Some(endpoint) = known.or_else(|| self.hub.table.read(qpn, &reader)) else {
                DeviceCounters::count(&counters.rx_no_qp);
                next = batch.next();
                continue;
            };
            let mut locked = endpoint.lock();
            locked.receive(now, arrival, &packet, counters);
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
                    locked.receive(now, arrival, &packet, counters);
                }
            }
            let whole = next.is_none().then_some(received);
            self.end_run(&round, endpoint, locked, whole, delivery);
        }
        self.count_received(counters, received, octets);
        G::end_batch(&round, delivery);
        delivery.finish_touched(now);
        Some(now)
    }

    /// Counts packets of a batch. The caller holds the lane.
    #[inline]
    pub(super) fn count_received(&self, counters: &DeviceCounters, packets: u64, octets: usize) {
        if self.source.pipes().is_some() {
            // All pipes are one lane, so no other thread counts these.
            DeviceCounters::add_alone(&counters.pipe_rcvd_pkts, packets);
            DeviceCounters::add_alone(&counters.pipe_rcvd_octets, octets as u64);
        } else {
            DeviceCounters::count(&counters.rx_calls);
            DeviceCounters::add(&counters.rcvd_pkts, packets);
            DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        }
    }

    /// Reads a packet for this slot. Everything else is counted.
    #[inline]
    pub(super) fn read<'a>(
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
    #[inline]
    pub(super) fn end_run(
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
        // leaves with the answer. A program that polls its memory does not come back if it has none.
        if program && received <= ANSWERABLE && !self.state.is_eager() {
            let by_epoll = self.follow.is_attached();
            if let Some(until) = locked.finish_batch_delaying_ack(now, by_epoll)
                && let Some(endpoint) = endpoint.me.upgrade()
            {
                self.ack_is_held.store(until > now, Ordering::Relaxed);
                delivery.delayed_ack = Some(DelayedBy { endpoint, until });
                self.state.ack_delayed(&self.hub.attention, || self.hub.wake());
            }
        } else {
            locked.finish_batch(now);
        }
    }

    /// Delivers what has waited long enough. Returns when more is due, or [`NEVER`].
    pub(super) fn release_held(&self, delivery: &mut Delivery, now: Instant) -> u64 {
        if delivery.held.is_empty() {
            return NEVER;
        }
        Round { lane: self, counters: self.counters(), now, program: false }.release(delivery);
        delivery.finish_touched(now);
        delivery.held.next().map_or(NEVER, Instant::as_nanos)
    }

    /// The plan changed. Packets that wait for their way out leave now, packets that arrived at the next
    /// look, which is soon. An endpoint permits direct copies or not by the present plan.
    pub(crate) fn follow_plan(&self) {
        let endpoints = self.endpoints.lock().clone();
        for endpoint in endpoints {
            let mut locked = endpoint.lock();
            locked.core.changed = true;
            locked.finish_batch(clock::now());
        }
        self.note_deadline(clock::now().as_nanos());
    }
}

impl Round<'_> {
    /// Delivers what has waited long enough.
    fn release(&self, to: &mut Delivery) {
        while let Some((from, octets)) = to.held.pop(self.now) {
            self.deliver_octets(to, &from, &octets);
        }
    }

    fn deliver_octets(&self, to: &mut Delivery, from: &Flow, octets: &[u8]) {
        match Packet::parse(octets) {
            Ok(mut packet) if self.lane.hub.table.owns(packet.bth.dest_qp) => {
                packet.icrc = IcrcStatus::Checked;
                self.deliver(to, &Arrival::new(from, octets), &packet);
            }
            Ok(_) => DeviceCounters::count(&self.counters.rx_stray_slot),
            Err(_) => DeviceCounters::count(&self.counters.rx_malformed),
        }
    }

    fn deliver(&self, to: &mut Delivery, arrival: &Arrival<'_>, packet: &Packet<'_>) {
        let Some(endpoint) = self.lane.hub.table.get(packet.bth.dest_qp) else {
            DeviceCounters::count(&self.counters.rx_no_qp);
            return;
        };
        let mut locked = endpoint.lock();
        locked.receive(self.now, arrival, packet, self.counters);
        to.touch(&endpoint, &mut locked);
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
