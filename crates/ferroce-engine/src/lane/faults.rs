//! Received packets by a plan of faults: behind all checks of the wire, in front of the endpoints.

use std::sync::Arc;

use ferroce_datapath::udp::Datagram;
use ferroce_fault::{Affected, Answer, Corruption, Dir, Release};
use ferroce_paths::clock;
use ferroce_paths::faults::{self, Held};
use ferroce_wire::icrc::IcrcChecker;
use ferroce_wire::{Flow, IcrcStatus, Instant, Packet};

use super::deliver::flow;
use super::{Arrived, Endpoint, Lane, Receiver};
use crate::counters::DeviceCounters;
use crate::handover::NEVER;

/// The target of packets that a plan of faults lets pass.
pub(super) struct Delivery<'a> {
    pub(super) counters: &'a DeviceCounters,
    pub(super) touched: &'a mut Vec<Arc<Endpoint>>,
    pub(super) held: &'a mut Held,
    pub(super) now: Instant,
}

/// A packet that arrived for this endpoint.
struct Arrival<'a, 'd> {
    lane: &'a Lane,
    to: &'a mut Delivery<'d>,
    endpoint: &'a Endpoint,
    from: Flow,
    packet: &'a Packet<'a>,
    /// The octets of the packet after a change.
    changed: Option<Vec<u8>>,
}

impl Affected for Arrival<'_, '_> {
    fn answer(&mut self, answer: Answer) {
        self.endpoint.lock().refuse(self.packet.bth.psn, answer, self.to.now);
    }

    fn mark_ce(&mut self) {
        self.from.traffic_class |= 3;
    }

    fn corrupt(&mut self, corruption: Corruption) -> bool {
        if corruption.icrc_ok {
            corruption.apply(self.changed.get_or_insert(faults::octets(self.packet)));
        } else {
            // The check of the ICRC would have found it.
            DeviceCounters::count(&self.to.counters.rx_icrc_errors);
        }
        corruption.icrc_ok
    }

    fn go_on(&mut self, release: Option<Release>) {
        match (release, &self.changed) {
            (Some(release), changed) => {
                let octets = changed.clone().unwrap_or_else(|| faults::octets(self.packet));
                self.to.held.push(release, self.endpoint.name.qp, &self.from, octets);
            }
            (None, Some(octets)) => self.lane.deliver_octets(self.to, &self.from, octets),
            (None, None) => self.lane.deliver(self.to, &self.from, self.packet),
        }
    }

    fn count_as_successor(&mut self) {
        self.to.held.passed(self.endpoint.name.qp);
    }
}

impl Lane {
    /// As [`Lane::dispatch`], by the plan.
    #[cold]
    pub(super) fn dispatch_by_plan<'a>(
        &self,
        arrived: &Arrived<'_>,
        datagrams: impl Iterator<Item = Datagram<'a>>,
        icrc: &mut IcrcChecker,
        touched: &mut Vec<Arc<Endpoint>>,
        held: &mut Held,
    ) {
        let &Arrived { counters, destination, now, .. } = arrived;
        DeviceCounters::count(&counters.rx_calls);
        let (mut received, mut octets): (u64, usize) = (0, 0);
        let mut delivery = Delivery { counters, touched, held, now };
        for datagram in datagrams {
            received += 1;
            octets += datagram.bytes.len();
            if let Some((_, packet)) = self.verify(&datagram, icrc, counters) {
                self.judge(&mut delivery, &flow(&datagram, destination), &packet, datagram.bytes.len());
            }
        }
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        self.note_held(held);
        Self::finish_touched(touched, now);
    }

    /// Delivers a packet as the plan lets it pass. It passed all checks; `wire_len` is its length from BTH to
    /// ICRC.
    #[cold]
    pub(super) fn judge(&self, to: &mut Delivery<'_>, from: &Flow, packet: &Packet<'_>, wire_len: usize) {
        let found = self.hub.table.get(packet.bth.dest_qp);
        let Some(endpoint) = found.as_deref().and_then(Option::as_ref) else {
            DeviceCounters::count(&to.counters.rx_no_qp);
            return;
        };
        let actions =
            faults::judge(Dir::Rx, &endpoint.name, from.source, from.traffic_class, packet, wire_len);
        actions.apply(&mut Arrival { lane: self, to, endpoint, from: *from, packet, changed: None });
        self.release(to);
    }

    /// Delivers what has waited long enough.
    fn release(&self, to: &mut Delivery<'_>) {
        while let Some((from, octets)) = to.held.pop(to.now) {
            self.deliver_octets(to, &from, &octets);
        }
    }

    /// As [`Self::release`], when the lane's timers run. Returns when more is due, or [`NEVER`].
    pub(super) fn release_held(&self, receiver: &mut Receiver, now: Instant) -> u64 {
        let Receiver { held, touched, .. } = receiver;
        if held.is_empty() {
            return NEVER;
        }
        self.release(&mut Delivery { counters: self.counters(), touched, held, now });
        Self::finish_touched(touched, now);
        held.next().map_or(NEVER, Instant::as_nanos)
    }

    /// The plan changed. Packets that wait for their way out leave now, packets that arrived at the next
    /// look, which is soon. An endpoint permits direct copies or not by the present plan.
    pub(crate) fn follow_plan(&self) {
        let endpoints = self.endpoints.lock().clone();
        for endpoint in endpoints {
            endpoint.lock().finish_batch(clock::now());
        }
        self.note_deadline(clock::now().as_nanos());
    }

    /// The lane's timers run when the next packet that waits is due.
    pub(super) fn note_held(&self, held: &Held) {
        if let Some(at) = held.next() {
            self.note_deadline(at.as_nanos());
        }
    }

    fn deliver_octets(&self, to: &mut Delivery<'_>, from: &Flow, octets: &[u8]) {
        match Packet::parse(octets) {
            Ok(mut packet) if self.hub.table.owns(packet.bth.dest_qp) => {
                packet.icrc = IcrcStatus::Checked;
                self.deliver(to, from, &packet);
            }
            Ok(_) => DeviceCounters::count(&to.counters.rx_stray_slot),
            Err(_) => DeviceCounters::count(&to.counters.rx_malformed),
        }
    }

    fn deliver(&self, to: &mut Delivery<'_>, from: &Flow, packet: &Packet<'_>) {
        let found = self.hub.table.get(packet.bth.dest_qp);
        let Some(endpoint) = found.as_deref().and_then(Option::as_ref) else {
            DeviceCounters::count(&to.counters.rx_no_qp);
            return;
        };
        let mut locked = endpoint.lock();
        locked.receive(to.now, from, packet, to.counters);
        if !locked.set_touched(true) {
            to.touched.push(Arc::clone(endpoint));
        }
    }
}
