//! The lane of the rings to the broker.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;

use ferroce_ipc::ring::MAX_PACKET;
use ferroce_paths::rings::RingPort;
use ferroce_wire::Instant;

use super::{Hub, Lane, Receiver, Source};

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
        let Receiver { packet: buffer, delivery, .. } = receiver;
        let buffer = buffer.get_or_insert_with(|| Box::new([0; MAX_PACKET]));
        let unchecked = unchecked.load();
        self.deliver(delivery, self.counters(), program, &mut port.receive(buffer, &unchecked, program))
    }
}
