//! The lane of a multicast group: one packet, a copy for every queue pair that is attached.

use std::io;
use std::sync::Arc;

use ferroce_datapath::udp::RxSocket;
use ferroce_wire::Instant;

use super::{Lane, Receiver, Source};
use crate::counters::DeviceCounters;
use crate::hub::Hub;
use crate::mcast::Members;

impl Lane {
    /// The lane of a membership on interface `ifindex`.
    pub(crate) fn of_group(id: u64, ifindex: u32, socket: RxSocket, members: Members, hub: Arc<Hub>) -> Self {
        Self { members: Some(members), ..Self::new(id, 0, ifindex, socket, hub) }
    }

    /// Leaves the group: nothing more arrives, though somebody may still look at the socket.
    pub(crate) fn leave_group(&self, ifindex: u32) -> io::Result<()> {
        match &self.source {
            Source::Packets(socket) => socket.leave(ifindex),
            Source::Frames(_) | Source::Rings(_) => Ok(()),
        }
    }

    /// Hands every datagram of the buffer to all members, then settles each of those once. A member that cannot take
    /// its copy, for want of a receive WQE say, loses that one alone.
    pub(super) fn fan_out(&self, receiver: &mut Receiver, now: Instant, members: &Members) {
        let Receiver { buffer, icrc, touched, .. } = receiver;
        let counters = self.counters();
        DeviceCounters::count(&counters.rx_calls);
        let members = members.load();
        let (mut received, mut octets): (u64, usize) = (0, 0);
        for datagram in buffer.datagrams() {
            received += 1;
            octets += datagram.bytes.len();
            let Some((_, packet)) = self.verify(&datagram, icrc) else { continue };
            for qp in members.iter() {
                let mut core = qp.lock();
                core.receive(now, &self.flow(&datagram), &packet, counters);
                if !core.set_touched(true) {
                    touched.push(Arc::clone(qp));
                }
            }
        }
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        Self::settle_touched(touched, now);
    }
}
