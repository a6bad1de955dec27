//! A local port at which peers ask for connections or for UD queue pairs.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferroce_engine::cm::resolve::{self, Transports};
use ferroce_engine::cm::{Bind, CmError, Event, EventSink, Port, Queue};
use ferroce_wire::cm::PortSpace;

use super::ConnectError;
use crate::Error;

/// A bound port, and the events of its requests.
pub(super) struct ListeningPort {
    _port: Port,
    events: Arc<Queue>,
    local: SocketAddr,
}

impl ListeningPort {
    pub(super) fn open(
        transports: Transports,
        space: PortSpace,
        mut local: SocketAddr,
        backlog: u16,
    ) -> Result<Self, ConnectError> {
        crate::device::offer_a_broker();
        // The port is refused if the address is not one of this host.
        let found = resolve::local_by(transports, local).unwrap_or(None);
        let transports = transports.at(found.as_ref()).map_err(CmError::from)?;
        let port = Port::bind(&Bind { transports, ..Bind::new(space, local) })?;
        local.set_port(port.number());
        let events = Queue::new()?;
        port.listen(backlog, EventSink::queue(&events, 0))?;
        Ok(Self { _port: port, events, local })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for an event that `request` turns into a value, and returns the value. Other events are dropped.
    pub(super) fn wait<T>(&self, request: impl Fn(Event) -> Option<T>) -> Result<T, Error> {
        loop {
            let event = self.events.get().map_err(ConnectError::Events)?;
            if let Some(request) = request(event) {
                return Ok(request);
            }
        }
    }

    /// Returns the first value that `request` makes of the queued events, without waiting.
    pub(super) fn poll<T>(&self, request: impl Fn(Event) -> Option<T>) -> Option<T> {
        loop {
            if let Some(request) = request(self.events.poll()?) {
                return Some(request);
            }
        }
    }

    /// Readable while [`Self::poll`] may find something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}
