//! Ports of port spaces, which the broker gives.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferroce_client::PortChoice;
use ferroce_ipc::{CmBind, CmRequest};
use ferroce_wire::cm::PortSpace;

use super::port::Bind;
use super::{CmError, EventSink, resolve};
use crate::engine::Engine;

/// A port of the broker, until it is dropped.
pub(super) struct BrokerPort {
    engine: Arc<Engine>,
    handle: u64,
    space: PortSpace,
    number: u16,
    origin: Origin,
}

/// The source of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The broker.
    Broker,
    /// The broker, and it is of a block of ours.
    BrokerOfBlock,
    /// A block of ours.
    Block,
}

impl BrokerPort {
    pub(super) fn bind(bind: &Bind) -> Result<Self, CmError> {
        let engine = super::engine()?;
        let Bind { space, address, reuse, v6_only, .. } = *bind;
        let interface = match address {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        let handle = engine.connections().handle();
        let wanted = CmBind {
            handle,
            space,
            port: address.port(),
            address: plain(address.ip()),
            interface,
            reuse,
            v6_only,
        };
        if let Some(number) = of_block(&engine, &wanted) {
            return Ok(Self { engine, handle, space, number, origin: Origin::Block });
        }
        let (is_ours, unsaid) = engine.connections().blocks().claim(space, wanted.port);
        let origin = if is_ours { Origin::BrokerOfBlock } else { Origin::Broker };
        let claimed = Claim { engine: &engine, space, number: wanted.port, origin };
        if let Some(unsaid) = unsaid {
            say(&engine, unsaid)?;
        }
        let done = engine.broker().connections(CmRequest::Bind(wanted), |_| {})?;
        std::mem::forget(claimed);
        Ok(Self { engine, handle, space, number: done.port, origin })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Takes requests from now on, as [`super::Port::listen`].
    pub(super) fn listen(&self, backlog: u16, sink: EventSink) -> Result<(), CmError> {
        self.engine.flush_all();
        let unsaid = match self.origin {
            Origin::Block => self.engine.connections().blocks().unsaid(self.space, self.number),
            Origin::Broker | Origin::BrokerOfBlock => None,
        };
        if let Some(unsaid) = unsaid {
            say(&self.engine, unsaid)?;
        }
        // Before, because the first request may be as fast as the answer.
        self.engine.connections().listens(self.handle, sink);
        let listen = CmRequest::Listen { handle: self.handle, backlog };
        let listening = self.engine.broker().connections(listen, |_| {});
        if listening.is_err() {
            self.engine.connections().forget_port(self.handle);
        }
        listening?;
        Ok(())
    }
}

impl Drop for BrokerPort {
    /// Requests that wait and were told already can still be answered.
    fn drop(&mut self) {
        if self.engine.is_ours() {
            self.engine.connections().forget_port(self.handle);
            let unsaid = || self.engine.connections().blocks().unsaid(self.space, self.number);
            if self.origin != Origin::Block || unsaid().is_none() {
                self.engine.broker().tell(CmRequest::Unbind { handle: self.handle });
            }
            drop(Claim { engine: &self.engine, space: self.space, number: self.number, origin: self.origin });
        }
    }
}

/// A port of a block is given out while this lives.
struct Claim<'a> {
    engine: &'a Engine,
    space: PortSpace,
    number: u16,
    origin: Origin,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.origin == Origin::Broker {
            return;
        }
        let returned = self.engine.connections().blocks().release(self.space, self.number);
        if let Some(first) = returned {
            self.engine.broker().tell(CmRequest::PortBlockReturn { space: self.space, first });
        }
    }
}

/// A port of a block, if any will do for `wanted`, and the broker need not know which.
fn of_block(engine: &Engine, wanted: &CmBind) -> Option<u16> {
    if wanted.port != 0 || wanted.reuse || !resolve::is_ours(engine, wanted.address, wanted.interface) {
        return None;
    }
    let directory = engine.connections();
    let blocks = || directory.blocks();
    for _ in 0..2 {
        let choice = blocks().choose(wanted);
        match choice {
            PortChoice::Given(number) => return Some(number),
            PortChoice::AskForPort => return None,
            PortChoice::AskForBlock => {}
        }
        let request = CmRequest::PortBlock { space: wanted.space, first: 0 };
        match engine.broker().connections(request, |_| {}) {
            Ok(done) => blocks().add(wanted.space, done.port),
            _ => blocks().refused(),
        }
    }
    None
}

/// The broker is told of a port that it need not have known.
fn say(engine: &Engine, unsaid: CmBind) -> Result<(), CmError> {
    engine.broker().connections(CmRequest::Bind(unsaid), |_| {})?;
    engine.connections().blocks().said(unsaid.space, unsaid.port);
    Ok(())
}

/// IPv4 as IPv4, however it is written.
fn plain(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
