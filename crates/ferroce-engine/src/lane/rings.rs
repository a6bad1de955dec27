//! The lane of the rings to the broker.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;

use ferroce_ipc::ring::MAX_PACKET;
use ferroce_paths::clock;
use ferroce_paths::faults;
use ferroce_paths::rings::RingPort;
use ferroce_wire::{Flow, Frame, IcrcStatus, Instant, LinkLayer, Packet, RoceVersion};

use super::deliver::destination;
use super::faults::Delivery;
use super::{Endpoint, Hub, Lane, Receiver, Source};
use crate::counters::DeviceCounters;

/// Packets that are looked at in one turn.
const PACKETS: usize = 32;

impl Lane {
    /// The lane of the rings.
    pub(crate) fn of_rings(id: u64, port: Arc<RingPort>, hub: Arc<Hub>) -> Self {
        // All addresses, so none: nobody looks for it by one.
        let source = Source::Rings { port, unchecked: ArcSwap::default() };
        Self::from_source(id, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0, source, hub)
    }

    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    pub(super) fn receive_rings(
        &self,
        receiver: &mut Receiver,
        port: &RingPort,
        unchecked: &ArcSwap<Vec<u32>>,
        program: bool,
    ) -> Option<Instant> {
        let Receiver { packet: buffer, touched, held, .. } = receiver;
        let by_plan = faults::on();
        let buffer = buffer.get_or_insert_with(|| Box::new([0; MAX_PACKET]));
        let mut batch_time = None;
        let (mut received, mut octets) = (0, 0);
        for _ in 0..PACKETS {
            let Some(popped) = port.next(buffer, program) else { break };
            let now = *batch_time.get_or_insert_with(clock::now);
            received += 1;
            octets += popped.len;
            let checks = !unchecked.load().contains(&popped.link.ifindex);
            if let Some((flow, packet)) = self.read(popped.link, checks, &buffer[..popped.len]) {
                match by_plan {
                    false => self.give(touched, now, &flow, &packet),
                    true => {
                        let mut delivery = Delivery { counters: self.counters(), touched, held, now };
                        self.judge(&mut delivery, &flow, &packet, wire_len(&packet));
                    }
                }
            }
        }
        self.note_held(held);
        let now = batch_time?;
        let counters = self.counters();
        self.seldom.found();
        DeviceCounters::count(&counters.rx_calls);
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        Self::finish_touched(touched, now);
        receiver.look_at_guard(now);
        Some(now)
    }

    /// A packet, from GRH or IP header on, that is one for this slot, with the right ICRC if `checks` says
    /// so. Everything else is counted.
    pub(super) fn read<'a>(
        &self,
        link: LinkLayer,
        checks: bool,
        bytes: &'a [u8],
    ) -> Option<(Flow, Packet<'a>)> {
        let counters = self.counters();
        let frame = match link.version {
            RoceVersion::V1 => Frame::parse_grh(bytes),
            RoceVersion::V2 => Frame::parse_ip(bytes),
        };
        let (Ok(frame), malformed) = (frame, || DeviceCounters::count(&counters.rx_malformed)) else {
            DeviceCounters::count(&counters.rx_malformed);
            return None;
        };
        let Some(qpn) = destination(frame.transport) else {
            malformed();
            return None;
        };
        // All 32 bits: nothing of the headers is hidden here.
        if checks && !frame.icrc_holds() {
            DeviceCounters::count(&counters.rx_icrc_errors);
            return None;
        }
        if !self.hub.table.owns(qpn) {
            DeviceCounters::count(&counters.rx_stray_slot);
            return None;
        }
        match Packet::parse(frame.transport) {
            Ok(mut packet) => {
                packet.icrc = IcrcStatus::Checked;
                Some((Flow { link, ..frame.way() }, packet))
            }
            Err(error) => {
                malformed();
                tracing::debug!(%error, "malformed packet");
                None
            }
        }
    }

    fn give(&self, touched: &mut Vec<Arc<Endpoint>>, now: Instant, flow: &Flow, packet: &Packet<'_>) {
        let counters = self.counters();
        let found = self.hub.table.get(packet.bth.dest_qp);
        let Some(endpoint) = found.as_deref().and_then(Option::as_ref) else {
            DeviceCounters::count(&counters.rx_no_qp);
            return;
        };
        let mut locked = endpoint.lock();
        locked.receive(now, flow, packet, counters);
        if !locked.set_touched(true) {
            touched.push(Arc::clone(endpoint));
        }
    }
}

/// Octets from BTH to ICRC.
pub(super) fn wire_len(packet: &Packet<'_>) -> usize {
    packet.wire_len(packet.op.payload().len()).unwrap_or(0)
}
