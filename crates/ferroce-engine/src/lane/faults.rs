//! Received packets by a plan of faults: behind all checks of the wire, in front of the endpoints.

use ferroce_fault::{Affected, Answer, Corruption, Dir, Release};
use ferroce_paths::clock;
use ferroce_paths::faults;
use ferroce_paths::rx::Arrival;
use ferroce_wire::{Flow, IcrcStatus, Instant, Packet};

use super::deliver::Gate;
use super::{Delivery, Endpoint, Lane, Round};
use crate::counters::DeviceCounters;
use crate::handover::NEVER;

/// The gate that a plan of faults guards: what passes is delivered here, changed or later or more than once.
pub(super) struct ByPlan;

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
        let changed = None;
        actions.apply(&mut Judged { on, to, endpoint: &endpoint, from: flow, packet, changed });
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
            corruption.apply(self.changed.get_or_insert(faults::octets(self.packet)));
        } else {
            // The check of the ICRC would have found it.
            DeviceCounters::count(&self.on.counters.rx_icrc_errors);
        }
        corruption.icrc_ok
    }

    fn go_on(&mut self, release: Option<Release>) {
        match (release, &self.changed) {
            (Some(release), changed) => {
                let octets = changed.clone().unwrap_or_else(|| faults::octets(self.packet));
                self.to.held.push(release, self.endpoint.name.qp, &self.from, octets);
            }
            (None, Some(octets)) => self.on.deliver_octets(self.to, &self.from, octets),
            (None, None) => self.on.deliver(self.to, &self.from, self.packet),
        }
    }

    fn count_as_successor(&mut self) {
        self.to.held.passed(self.endpoint.name.qp);
    }
}

impl Lane {
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
            endpoint.lock().finish_batch(clock::now());
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
                self.deliver(to, from, &packet);
            }
            Ok(_) => DeviceCounters::count(&self.counters.rx_stray_slot),
            Err(_) => DeviceCounters::count(&self.counters.rx_malformed),
        }
    }

    fn deliver(&self, to: &mut Delivery, from: &Flow, packet: &Packet<'_>) {
        let Some(endpoint) = self.lane.hub.table.get(packet.bth.dest_qp) else {
            DeviceCounters::count(&self.counters.rx_no_qp);
            return;
        };
        let mut locked = endpoint.lock();
        locked.receive(self.now, from, packet, self.counters);
        to.touch(&endpoint, &mut locked);
    }
}
