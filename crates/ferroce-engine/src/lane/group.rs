//! The lane of a multicast group: one packet, a copy for every queue pair that is attached.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_datapath::udp::RxSocket;
use ferroce_host::fork::Guarded;
use ferroce_paths::clock;
use ferroce_paths::rx::RxBatch;
use ferroce_wire::{Instant, Qpn};

use super::{Hub, Lane, Members, Receiver, Source};
use ferroce_ipc::ledger::DeviceCounters;

impl Lane {
    /// The lane of a membership on interface `ifindex`.
    pub(crate) fn of_group(id: u64, ifindex: u32, socket: RxSocket, members: Members, hub: Arc<Hub>) -> Self {
        let local = socket.local_addr().ip();
        let source = Source::Group { socket: Guarded::new(socket), members };
        Self::from_source(id, local, ifindex, source, hub)
    }

    /// Leaves the group: no more datagrams arrive, though another thread may still read the socket.
    pub(crate) fn leave_group(&self, ifindex: u32) -> io::Result<()> {
        self.source.socket().map_or(Ok(()), |socket| socket.leave(ifindex))
    }

    /// Hands every datagram of a batch to all members, then finishes the batch of each of them. If a member
    /// cannot take its copy, for example without a receive WQE, only its copy is lost. Returns when that was,
    /// or `None` if nothing waits.
    pub(super) fn receive_group(
        &self,
        receiver: &mut Receiver,
        socket: &RxSocket,
        members: &Members,
    ) -> Option<Instant> {
        let Receiver { buffer, delivery, .. } = receiver;
        let mut batch = self.receive_datagrams(buffer, socket)?;
        let now = clock::now();
        delivery.look_at_guard(now);
        let counters = self.counters();
        let members = members.load();
        let (mut received, mut octets): (u64, usize) = (0, 0);
        // A group is addressed by its IP address and by this number together; rxe looks at the number alone.
        let is_multicast = |qpn| qpn == Qpn::MULTICAST;
        let checks = self.checks.load(Ordering::Relaxed);
        while let Some(arrival) = batch.next() {
            received += 1;
            octets += arrival.octets.len();
            let checker = checks.then_some(&mut delivery.icrc);
            let Some(packet) = arrival.read(checker, is_multicast, counters) else { continue };
            for endpoint in members.iter() {
                let mut locked = endpoint.lock();
                locked.receive(now, &arrival, &packet, counters);
                delivery.touch(endpoint, &mut locked);
            }
        }
        DeviceCounters::count(&counters.rx_calls);
        DeviceCounters::add(&counters.rcvd_pkts, received);
        DeviceCounters::add(&counters.rcvd_octets, octets as u64);
        delivery.finish_touched(now);
        Some(now)
    }
}
