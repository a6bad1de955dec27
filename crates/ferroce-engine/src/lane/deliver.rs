//! Delivery: checks each datagram of a lane's buffer, finds its endpoint and hands it over.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_datapath::udp::Datagram;
use ferroce_wire::icrc::{IcrcChecker, Verdict};
use ferroce_wire::{Flow, IcrcStatus, Instant, Packet, Qpn};

use super::endpoint::Locked;
use super::{Arrived, DelayedBy, Endpoint, Lane, Source};
use crate::counters::DeviceCounters;

/// Datagrams that one message of a ping-pong comes in: its own and the acknowledgement behind it.
const ANSWERABLE: u64 = 2;

impl Lane {
    /// Hands every datagram of the buffer to its endpoint, then finishes the batch of each of those, in the
    /// order in which they were first meant: a program may count on an acknowledgement before the answer that
    /// another queue pair takes.
    pub(super) fn dispatch<'a>(
        &self,
        arrived: &Arrived<'_>,
        datagrams: impl Iterator<Item = Datagram<'a>>,
        icrc: &mut IcrcChecker,
        touched: &mut Vec<Arc<Endpoint>>,
        delayed_ack: &mut Option<DelayedBy>,
    ) {
        let &Arrived { counters, destination: local, now, .. } = arrived;
        DeviceCounters::count(&counters.rx_calls);
        let (mut received, mut octets): (u64, usize) = (0, 0);
        let mut datagrams = datagrams.peekable();
        while let Some(datagram) = datagrams.next() {
            received += 1;
            octets += datagram.bytes.len();
            let Some((qpn, packet)) = self.verify(&datagram, icrc, counters) else { continue };
            let found = self.hub.table.get(qpn);
            let Some(endpoint) = found.as_deref().and_then(Option::as_ref) else {
                DeviceCounters::count(&counters.rx_no_qp);
                continue;
            };
            let mut locked = endpoint.lock();
            locked.receive(now, &flow(&datagram, local), &packet, counters);
            // Batches are mostly of one queue pair: keep its lock over the run.
            while let Some(next) = datagrams.next_if(|next| destination(next.bytes) == Some(qpn)) {
                received += 1;
                octets += next.bytes.len();
                if let Some((_, packet)) = self.verify(&next, icrc, counters) {
                    locked.receive(now, &flow(&next, local), &packet, counters);
                }
            }
            let whole = datagrams.peek().is_none().then_some(received);
            self.end_run(arrived, endpoint, locked, whole, touched, delayed_ack);
        }
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        Self::finish_touched(touched, now);
    }

    /// Ends a run of packets for one endpoint. `whole` is the number of packets of the batch, if nothing
    /// follows in it.
    pub(super) fn end_run(
        &self,
        arrived: &Arrived<'_>,
        endpoint: &Arc<Endpoint>,
        mut locked: Locked<'_>,
        whole: Option<u64>,
        touched: &mut Vec<Arc<Endpoint>>,
        delayed_ack: &mut Option<DelayedBy>,
    ) {
        let &Arrived { now, program, .. } = arrived;
        let Some(received) = whole.filter(|_| touched.is_empty()) else {
            if !locked.set_touched(true) {
                touched.push(Arc::clone(endpoint));
            }
            return;
        };
        // A single message (and perhaps the acknowledgement of ours), taken by the thread that
        // looks at its completion next and most likely answers: then its acknowledgement
        // leaves with the answer.
        if program && received <= ANSWERABLE {
            let by_epoll = self.follow.is_attached();
            if let Some(until) = locked.finish_batch_delaying_ack(now, by_epoll) {
                *delayed_ack = Some(DelayedBy { endpoint: Arc::clone(endpoint), until });
                self.state.ack_delayed(&self.hub.attention, || self.hub.wake());
            }
        } else {
            locked.finish_batch(now);
        }
    }

    /// Sends the batch's answers and publishes its completions.
    pub(super) fn finish_touched(touched: &mut Vec<Arc<Endpoint>>, now: Instant) {
        for endpoint in touched.drain(..) {
            let mut locked = endpoint.lock();
            if locked.set_touched(false) {
                locked.finish_batch(now);
            }
        }
    }

    /// A datagram that is a packet for this slot with the right ICRC, if that counts here. Everything else is
    /// counted.
    pub(super) fn verify<'a>(
        &self,
        datagram: &Datagram<'a>,
        icrc: &mut IcrcChecker,
        counters: &DeviceCounters,
    ) -> Option<(Qpn, Packet<'a>)> {
        let Some(qpn) = destination(datagram.bytes) else {
            DeviceCounters::count(&counters.rx_malformed);
            return None;
        };
        if self.checks.load(Ordering::Relaxed) {
            match icrc.check(&flow(datagram, self.local), datagram.bytes) {
                Verdict::Good => {}
                Verdict::Solved(_) => DeviceCounters::count(&counters.icrc_id_solved),
                Verdict::Bad => {
                    DeviceCounters::count(&counters.rx_icrc_errors);
                    return None;
                }
            }
        }
        // A group is addressed by its IP address and by this number together; rxe looks at the number alone.
        let meant = match &self.source {
            Source::Group { .. } => qpn == Qpn::MULTICAST,
            _ => self.hub.table.owns(qpn),
        };
        if !meant {
            DeviceCounters::count(&counters.rx_stray_slot);
            return None;
        }
        match Packet::parse(datagram.bytes) {
            Ok(mut packet) => {
                packet.icrc = IcrcStatus::Checked;
                Some((qpn, packet))
            }
            Err(error) => {
                DeviceCounters::count(&counters.rx_malformed);
                tracing::debug!(%error, source = %datagram.source, "malformed packet");
                None
            }
        }
    }
}

/// The way a datagram came.
pub(super) fn flow(datagram: &Datagram<'_>, destination: IpAddr) -> Flow {
    Flow {
        source: datagram.source,
        destination,
        source_port: datagram.source_port,
        traffic_class: datagram.traffic_class,
        hop_limit: datagram.hop_limit,
        link: Default::default(),
    }
}

/// DestQP of a datagram that is long enough to have one: BTH octets 5 to 7.
pub(super) fn destination(bytes: &[u8]) -> Option<Qpn> {
    match bytes {
        [_, _, _, _, _, a, b, c, ..] => Some(Qpn::from_be_bytes([*a, *b, *c])),
        _ => None,
    }
}
