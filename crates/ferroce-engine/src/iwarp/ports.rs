//! The ports of one end, which may take requests by RoCE and by iWARP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Listener, Port, Sink};
use crate::cm::resolve::{Local, Transports};
use crate::cm::{self, Bind, CmError, EventSink};
use crate::device::DeviceInfo;
use crate::engine::devices;
use crate::error::DeviceError;

/// Attempts to find a number that is free with the broker and with TCP.
const TRIES: usize = 64;

/// The ports of one end: the broker's for RoCE, TCP's for iWARP, or both with the same number.
#[derive(Default, Debug)]
pub struct Ports {
    /// The broker's.
    pub broker: Option<cm::Port>,
    /// TCP's.
    pub tcp: Option<Arc<Port>>,
}

/// Why ports were not taken, or do not listen.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    /// There is no port.
    #[error("no port was taken")]
    NoPort,
    /// The broker refused.
    #[error(transparent)]
    Broker(#[from] CmError),
    /// TCP refused: see [`Port::bind`] and [`Listener::listen`].
    #[error("TCP refused the port")]
    Tcp(#[from] io::Error),
    /// The devices are not known.
    #[error(transparent)]
    Devices(#[from] DeviceError),
}

impl Ports {
    /// The transports whose ports an address takes, of those in `among`. `local` is the device that has the
    /// address. Without it the result is `among`, but iWARP does not count if the list of devices has none of
    /// iWARP. RoCE counts in any case: the list may leave out the device on `lo`, but connections find it.
    ///
    /// # Errors
    /// The devices are not known.
    pub fn transports(among: Transports, local: Option<&Local>) -> Result<Transports, DeviceError> {
        Ok(match (local, among) {
            (Some(local), _) if local.is_iwarp() => Transports::Iwarp,
            (Some(_), _) => Transports::Roce,
            (None, Transports::Any) if !devices()?.iter().any(DeviceInfo::is_iwarp) => Transports::Roce,
            (None, among) => among,
        })
    }

    /// Takes the ports of `transports` at an address, perhaps the wildcard; port 0 is any number that is
    /// free. For [`Transports::Any`] the broker's port suffices: a warning says that TCP's cannot be taken.
    ///
    /// # Errors
    /// [`PortsError::Broker`] and [`PortsError::Tcp`].
    pub fn bind(bind: &Bind, transports: Transports) -> Result<Self, PortsError> {
        let tcp = |address| Port::bind(address, bind.v6_only).map(Arc::new);
        match transports {
            Transports::Roce => return Ok(Self { broker: Some(cm::Port::bind(bind)?), tcp: None }),
            Transports::Iwarp => return Ok(Self { broker: None, tcp: Some(tcp(bind.address)?) }),
            Transports::Any => {}
        }
        // The numbers that TCP did not have free. They are held, so that the broker does not choose them
        // again.
        let mut passed = Vec::new();
        loop {
            let broker = cm::Port::bind(bind)?;
            let mut at = bind.address;
            at.set_port(broker.number());
            match tcp(at) {
                Ok(tcp) => return Ok(Self { broker: Some(broker), tcp: Some(tcp) }),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && bind.address.port() == 0
                        && passed.len() < TRIES =>
                {
                    passed.push(broker);
                }
                Err(error) => {
                    tracing::warn!(%at, %error, "iWARP peers cannot connect: the port of TCP cannot be taken");
                    return Ok(Self { broker: Some(broker), tcp: None });
                }
            }
        }
    }

    /// Takes the port of TCP beside the broker's, at `address`. If TCP refuses, and devices of RoCE may take
    /// requests as well, these go on alone, and a warning says so.
    ///
    /// # Errors
    /// [`PortsError::Tcp`] if only iWARP devices may take requests; [`PortsError::Devices`].
    pub fn add_tcp(&mut self, address: SocketAddr, v6_only: bool) -> Result<(), PortsError> {
        match Port::bind(address, v6_only) {
            Ok(port) => self.tcp = Some(Arc::new(port)),
            Err(error) if devices()?.iter().all(DeviceInfo::is_iwarp) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%address, %error, "iWARP peers cannot connect: the port of TCP cannot be taken");
            }
        }
        Ok(())
    }

    /// Takes requests from now on, as [`cm::Port::listen`] and [`Listener::listen`] do, and returns the
    /// listener of TCP. If TCP cannot listen, there is a port of the broker, and `tcp_may_fail` is set, RoCE
    /// goes on alone, and a warning says so.
    ///
    /// # Errors
    /// [`PortsError::NoPort`], [`PortsError::Broker`] and [`PortsError::Tcp`].
    pub fn listen(
        &self,
        backlog: u16,
        by_broker: EventSink,
        by_tcp: Sink,
        tcp_may_fail: bool,
    ) -> Result<Option<Listener>, PortsError> {
        if let Some(broker) = &self.broker {
            broker.listen(backlog, by_broker)?;
        }
        match (&self.tcp, &self.broker) {
            (None, None) => Err(PortsError::NoPort),
            (None, Some(_)) => Ok(None),
            (Some(tcp), broker) => match (Listener::listen(tcp, backlog, by_tcp), broker) {
                (Err(error), Some(broker)) if tcp_may_fail => {
                    tracing::warn!(%error, port = broker.number(), "iWARP peers cannot connect: TCP cannot listen");
                    Ok(None)
                }
                (listening, _) => Ok(Some(listening?)),
            },
        }
    }

    /// The number; `None` without a port.
    pub fn number(&self) -> Option<u16> {
        let tcp = || self.tcp.as_ref().map(|port| port.number());
        self.broker.as_ref().map(cm::Port::number).or_else(tcp)
    }
}
