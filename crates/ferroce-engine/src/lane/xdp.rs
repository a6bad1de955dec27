//! The lane of a port of AF_XDP.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_paths::clock;
use ferroce_paths::faults;
use ferroce_paths::xdp::{RxHalf, XdpPort};
use ferroce_wire::{Flow, Instant, LinkLayer, Packet, RoceVersion};

use super::faults::Delivery;
use super::rings::wire_len;
use super::{Arrived, Hub, Lane, Receiver, Source};
use crate::counters::DeviceCounters;

/// Packets that are looked at in one turn.
const PACKETS: u64 = 64;

/// The packets of a batch so far.
struct Tally {
    received: u64,
    octets: u64,
    /// The interface.
    ifindex: u32,
    checks: bool,
}

impl Lane {
    /// The lane of a port.
    pub(crate) fn of_xdp(id: u64, port: Arc<XdpPort>, hub: Arc<Hub>) -> Self {
        // All addresses of an interface, so none: nobody looks for it by one.
        Self::from_source(id, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0, Source::Xdp(port), hub)
    }

    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    pub(super) fn receive_xdp(
        &self,
        receiver: &mut Receiver,
        port: &XdpPort,
        program: bool,
    ) -> Option<Instant> {
        let now = port.receive(|rx| self.receive_from(receiver, rx, port.ifindex(), program))?;
        receiver.look_at_guard(now);
        Some(now)
    }

    fn receive_from(
        &self,
        receiver: &mut Receiver,
        rx: &mut RxHalf,
        ifindex: u32,
        program: bool,
    ) -> Option<Instant> {
        let checks = self.checks.load(Ordering::Relaxed);
        let mut tally = Tally { received: 0, octets: 0, ifindex, checks };
        let mut next = self.pull(rx, &mut tally);
        next.as_ref()?;
        let now = clock::now();
        self.follow.received();
        let Receiver { touched, delayed_ack, held, .. } = receiver;
        let by_plan = faults::on();
        let counters = self.counters();
        let arrived = Arrived { counters, destination: self.local, now, program };
        while let Some(valid) = next {
            let Some((flow, packet)) = valid else {
                next = self.pull(rx, &mut tally);
                continue;
            };
            if by_plan {
                let mut delivery = Delivery { counters, touched, held, now };
                self.judge(&mut delivery, &flow, &packet, wire_len(&packet));
                next = self.pull(rx, &mut tally);
                continue;
            }
            let qpn = packet.bth.dest_qp;
            let found = self.hub.table.get(qpn);
            let Some(endpoint) = found.as_deref().and_then(Option::as_ref) else {
                DeviceCounters::count(&counters.rx_no_qp);
                next = self.pull(rx, &mut tally);
                continue;
            };
            let mut locked = endpoint.lock();
            locked.receive(now, &flow, &packet, counters);
            // Batches are mostly of one queue pair: keep its lock over the run.
            loop {
                next = self.pull(rx, &mut tally);
                match &next {
                    Some(Some((flow, packet))) if packet.bth.dest_qp == qpn => {
                        locked.receive(now, flow, packet, counters);
                    }
                    Some(None) => {}
                    _ => break,
                }
            }
            let whole = next.is_none().then_some(tally.received);
            self.end_run(&arrived, endpoint, locked, whole, touched, delayed_ack);
        }
        DeviceCounters::count(&counters.rx_calls);
        DeviceCounters::add(&counters.rcvd_pkts, tally.received);
        DeviceCounters::add(&counters.rcvd_octets, tally.octets);
        DeviceCounters::add(&counters.xdp_rcvd_pkts, tally.received);
        self.note_held(held);
        Self::finish_touched(touched, now);
        Some(now)
    }

    /// Takes the next packet of the batch, and checks it: `Some(None)` if it is not for this process. `None`
    /// at the end of the batch.
    fn pull<'r>(&self, rx: &'r mut RxHalf, tally: &mut Tally) -> Option<Option<(Flow, Packet<'r>)>> {
        if tally.received == PACKETS {
            return None;
        }
        let received = rx.next()?;
        tally.received += 1;
        let link = match received.version {
            RoceVersion::V1 => LinkLayer { version: RoceVersion::V1, sl: 0, ifindex: tally.ifindex },
            // As by a socket, so that it is the same to a queue pair which way its packets come.
            RoceVersion::V2 => LinkLayer::UDP,
        };
        let read = self.read(link, tally.checks, received.packet);
        tally.octets += received.packet.len().saturating_sub(headers(link.version, received.packet)) as u64;
        Some(read)
    }
}

/// Octets in front of the BTH.
fn headers(version: RoceVersion, packet: &[u8]) -> usize {
    match (version, packet.first().map(|first| first >> 4)) {
        (RoceVersion::V1, _) => 40,
        (RoceVersion::V2, Some(4)) => 28,
        (RoceVersion::V2, _) => 48,
    }
}
