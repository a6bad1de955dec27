//! The lane of an address: the datagrams of a UDP socket.

use std::sync::Arc;

use ferroce_datapath::udp::{RxBuffer, RxSocket};
use ferroce_host::fork::Guarded;
use ferroce_paths::rx::Datagrams;
use ferroce_wire::Instant;

use super::{Hub, Lane, Receiver, Source};
use ferroce_ipc::ledger::DeviceCounters;

impl Lane {
    /// The lane of a leased socket.
    pub(crate) fn new(id: u64, scope_id: u32, socket: RxSocket, hub: Arc<Hub>) -> Self {
        let local = socket.local_addr().ip();
        Self::from_source(id, local, scope_id, Source::Udp(Guarded::new(socket)), hub)
    }

    /// Datagrams come with what their IP header held from now on.
    pub(crate) fn receive_headers(&self) {
        if let Some(socket) = self.source.socket()
            && let Err(error) = socket.receive_headers()
        {
            tracing::warn!(%error, local = %self.local, "datagrams come without TTL and traffic class");
        }
    }

    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    pub(super) fn receive_udp(
        &self,
        receiver: &mut Receiver,
        socket: &RxSocket,
        program: bool,
    ) -> Option<Instant> {
        let Receiver { buffer, delivery, .. } = receiver;
        let mut batch = self.receive_datagrams(buffer, socket)?;
        self.deliver(delivery, self.counters(), program, &mut batch)
    }

    /// Receives one batch of datagrams, if any wait.
    #[inline]
    pub(super) fn receive_datagrams<'b>(
        &self,
        buffer: &'b mut RxBuffer,
        socket: &RxSocket,
    ) -> Option<Datagrams<'b>> {
        match socket.recv(buffer) {
            Ok(0) => None,
            Ok(_) => Some(Datagrams::new(buffer.datagrams(), self.local)),
            Err(error) => {
                DeviceCounters::count(&self.counters().rx_err);
                tracing::debug!(%error, local = %self.local, "cannot receive");
                None
            }
        }
    }
}
