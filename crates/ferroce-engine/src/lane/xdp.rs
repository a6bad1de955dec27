//! The lane of a port of AF_XDP.

use std::sync::atomic::Ordering;

use ferroce_paths::xdp::XdpPort;
use ferroce_wire::Instant;

use super::{Lane, Receiver};
use ferroce_ipc::ledger::DeviceCounters;

impl Lane {
    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    pub(super) fn receive_xdp(
        &self,
        receiver: &mut Receiver,
        port: &XdpPort,
        program: bool,
    ) -> Option<Instant> {
        port.receive(self.checks.load(Ordering::Relaxed), |batch| {
            let counters = self.counters();
            let now = self.deliver(&mut receiver.delivery, counters, program, batch);
            DeviceCounters::add(&counters.xdp_rcvd_pkts, batch.received() as u64);
            now
        })
    }
}
