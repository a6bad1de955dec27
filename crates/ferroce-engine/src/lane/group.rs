//! The lane of a multicast group: one packet, a copy for every queue pair that is attached.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ferroce_datapath::udp::RxSocket;
use ferroce_host::fork::Guarded;
use ferroce_wire::Instant;

use super::deliver::flow;
use super::{Endpoint, Hub, Lane, Receiver, Source};
use crate::counters::DeviceCounters;

/// The endpoints that are attached to one group.
pub(crate) type Members = Arc<ArcSwap<Vec<Arc<Endpoint>>>>;

impl Lane {
    /// The lane of a membership on interface `ifindex`.
    pub(crate) fn of_group(id: u64, ifindex: u32, socket: RxSocket, members: Members, hub: Arc<Hub>) -> Self {
        let local = socket.local_addr().ip();
        let source = Source::Group { socket: Guarded::new(socket), members };
        Self::from_source(id, local, ifindex, source, hub)
    }

    /// Leaves the group: no more datagrams arrive, though another thread may still read the socket.
    pub(crate) fn leave_group(&self, ifindex: u32) -> io::Result<()> {
        match &self.source {
            Source::Group { socket, .. } => socket.leave(ifindex),
            _ => Ok(()),
        }
    }

    /// Hands every datagram of the buffer to all members, then finishes the batch of each of them. If a
    /// member cannot take its copy, for example without a receive WQE, only its copy is lost.
    pub(super) fn fan_out(&self, receiver: &mut Receiver, now: Instant, members: &Members) {
        let Receiver { buffer, icrc, touched, .. } = receiver;
        let counters = self.counters();
        DeviceCounters::count(&counters.rx_calls);
        let members = members.load();
        let (mut received, mut octets): (u64, usize) = (0, 0);
        for datagram in buffer.datagrams() {
            received += 1;
            octets += datagram.bytes.len();
            let Some((_, packet)) = self.verify(&datagram, icrc, counters) else { continue };
            for endpoint in members.iter() {
                let mut locked = endpoint.lock();
                locked.receive(now, &flow(&datagram, self.local), &packet, counters);
                if !locked.set_touched(true) {
                    touched.push(Arc::clone(endpoint));
                }
            }
        }
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        Self::finish_touched(touched, now);
    }
}
