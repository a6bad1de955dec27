//! The lane of the rings to the broker.

use arc_swap::ArcSwap;

use ferroce_ipc::ring::MAX_PACKET;
use ferroce_paths::rings::RingPort;
use ferroce_wire::Instant;

use super::{Lane, Receiver};

impl Lane {
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
