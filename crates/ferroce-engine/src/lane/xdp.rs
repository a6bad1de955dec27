//! The lane of a port of AF_XDP.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_paths::xdp::XdpPort;
use ferroce_wire::Instant;

use super::{Hub, Lane, Receiver, Source};
use crate::counters::DeviceCounters;

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
        port.receive(self.checks.load(Ordering::Relaxed), |batch| {
            let counters = self.counters();
            let now = self.deliver(&mut receiver.delivery, counters, program, batch);
            DeviceCounters::add(&counters.xdp_rcvd_pkts, batch.received() as u64);
            now
        })
    }
}
