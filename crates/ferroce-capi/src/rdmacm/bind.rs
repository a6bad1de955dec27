//! Local ports, and listening at them.

use std::net::SocketAddr;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::cm::resolve::{self, Local, Transports};
use ferroce_engine::cm::{Bind, Port};
use ferroce_engine::{self as engine, Origin, iwarp};
use ferroce_wire::cm::PortSpace;
use libc::sockaddr;

use super::route::take_home;
use super::state::{IdHandle, LiveId, Options, Phase, show_source};
use super::{address, device, link, stream};
use crate::call;
use crate::entry::{ConstPtr, Object, export};
use crate::errno::Errno;
use crate::handle::get;

/// Takes a port in the id's port space.
pub(super) fn take(id: &'static IdHandle, address: SocketAddr, options: &Options) -> Result<Port, Errno> {
    let code = u16::try_from(get!(id.ps)).map_err(|_| Errno::EINVAL)?;
    let space = PortSpace::from_code(code).ok_or(Errno::EINVAL)?;
    let v6_only = options.family_only.unwrap_or(false);
    Ok(Port::bind(&Bind { space, address, reuse: options.reuse_address, v6_only })?)
}

/// The transports that an id may use: iWARP has connected queue pairs of type RC alone, and librdmacm's ports of TCP.
pub(super) fn transports(id: &'static IdHandle) -> Transports {
    match (get!(id.ps), get!(id.qp_type)) {
        (abi::RDMA_PS_TCP | abi::RDMA_PS_IB, abi::IBV_QPT_RC) => Transports::of_process(),
        _ => Transports::Roce,
    }
}

/// The ports of an id: the broker's, TCP's, or both with the same number.
#[derive(Default)]
pub(super) struct Ports {
    pub(super) broker: Option<Port>,
    pub(super) tcp: Option<Arc<iwarp::Port>>,
}

impl Ports {
    /// Takes the port of TCP: the kernel owns it, and the broker is not asked.
    pub(super) fn of_tcp(address: SocketAddr, options: &Options) -> Result<Self, Errno> {
        Ok(Self { broker: None, tcp: Some(stream::take(address, options)?) })
    }

    /// Takes the broker's port.
    pub(super) fn of_broker(
        id: &'static IdHandle,
        address: SocketAddr,
        options: &Options,
    ) -> Result<Self, Errno> {
        Ok(Self { broker: Some(take(id, address, options)?), tcp: None })
    }

    /// Takes the ports for an address that is of no device in particular: of each transport that has a device. Where only the port of TCP
    /// is taken, the id is bound without it.
    fn of_all(id: &'static IdHandle, address: SocketAddr, options: &Options) -> Result<Self, Errno> {
        match transports(id) {
            Transports::Any if engine::devices()?.iter().any(|device| device.is_iwarp()) => {}
            Transports::Roce | Transports::Any => return Self::of_broker(id, address, options),
            Transports::Iwarp => return Self::of_tcp(address, options),
        }
        // The list of devices may leave the device on `lo` out, but connections find it, so the broker has a part in any case.
        // These are the numbers that TCP did not have free: held, so that the broker does not choose them again.
        let mut passed = Vec::new();
        loop {
            let broker = take(id, address, options)?;
            let mut at = address;
            at.set_port(broker.number());
            match stream::take(at, options) {
                Ok(tcp) => return Ok(Self { broker: Some(broker), tcp: Some(tcp) }),
                Err(Errno::EADDRINUSE) if address.port() == 0 && passed.len() < TRIES => passed.push(broker),
                Err(errno) => {
                    tracing::warn!(%at, ?errno, "iWARP peers cannot connect: the port of TCP cannot be taken");
                    return Ok(Self { broker: Some(broker), tcp: None });
                }
            }
        }
    }

    /// The number of the port.
    pub(super) fn number(&self) -> u16 {
        let tcp = || self.tcp.as_ref().map(|port| port.number());
        self.broker.as_ref().map(Port::number).or_else(tcp).unwrap_or(0)
    }
}

/// Attempts to find a number that is free with the broker and with TCP.
const TRIES: usize = 64;

/// Binds an id to a local address, perhaps the wildcard, and a port.
pub(super) fn bind(id: &'static IdHandle, live: &Arc<LiveId>, address: SocketAddr) -> Result<(), Errno> {
    let options = {
        let mut state = live.state.lock();
        if state.phase != Phase::Idle {
            return Err(Errno::EINVAL);
        }
        // Another thread cannot bind it meanwhile.
        state.phase = Phase::Bound;
        state.options
    };
    let bound = owner(id, address).and_then(|local| {
        let home = local.as_ref().map(|local| device::home(&local.device)).transpose()?;
        let ports = match &local {
            Some(local) if local.is_iwarp() => Ports::of_tcp(address, &options)?,
            Some(_) => Ports::of_broker(id, address, &options)?,
            None => Ports::of_all(id, address, &options)?,
        };
        Ok((home, local, ports))
    });
    let mut state = live.state.lock();
    match bound {
        Ok((home, local, ports)) => {
            let mut shown = address;
            shown.set_port(ports.number());
            show_source(id, shown);
            if let Some(home) = home {
                take_home(id, &mut state, home);
            }
            state.interface = local.as_ref().map(|local| local.gid.ifindex);
            state.gid_index = local.and_then(|local| u8::try_from(local.gid.index).ok());
            (state.link.port, state.link.tcp) = (ports.broker, ports.tcp);
            Ok(())
        }
        Err(errno) => {
            state.phase = Phase::Idle;
            Err(errno)
        }
    }
}

/// The device that an id gets with a local address; `None` for the wildcard. With links present a loopback address gives none
/// either, as in Linux (6.12, `cma_any_addr`): libfabric binds an id to `localhost` to see all devices, and drops those that are
/// not the id's. Without links the device on `lo` is the only one there is, and programs that bind to 127.0.0.1 and then use
/// `id->verbs`, as rdma-core's Python tests do, find it.
fn owner(id: &'static IdHandle, address: SocketAddr) -> Result<Option<Local>, Errno> {
    let transports = transports(id);
    if !address.ip().is_loopback() {
        return Ok(resolve::local_by(transports, address)?);
    }
    let links = engine::devices()?.iter().any(|device| device.origin != Origin::Default);
    // A loopback address that no device has can be bound all the same.
    Ok(if links { None } else { resolve::local_by(transports, address).unwrap_or(None) })
}

/// Takes requests at the ports of an id. If it has both, TCP's may be another's: RoCE goes on alone.
fn listen(
    id: &'static IdHandle,
    live: &Arc<LiveId>,
    ports: &Ports,
    backlog: u16,
) -> Result<Option<iwarp::Listener>, Errno> {
    let by_tcp = |tcp: &iwarp::Port| iwarp::Listener::listen(tcp, backlog, stream::sink(id, live));
    match (&ports.broker, &ports.tcp) {
        (None, None) => Err(Errno::EINVAL),
        (None, Some(tcp)) => Ok(Some(by_tcp(tcp)?)),
        (Some(broker), tcp) => {
            broker.listen(backlog, link::sink(id, live))?;
            let listener = tcp.as_ref().map(|tcp| by_tcp(tcp)).transpose();
            Ok(listener.unwrap_or_else(|error| {
                tracing::warn!(%error, port = broker.number(), "iWARP peers cannot connect: TCP cannot listen");
                None
            }))
        }
    }
}

export! {
    /// Binds the id to a local address and port; port 0 means any free port. An address of a device binds the id to that device.
    /// The wildcard leaves `id->verbs` NULL, and with links present so do the loopback addresses (127.0.0.0/8 and `::1`), as in Linux:
    /// the id then gets a device from `rdma_resolve_addr`, or each request brings one.
    pub fn rdma_bind_addr(id: Object<abi::rdma_cm_id>, addr: ConstPtr<sockaddr>) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let address = address::read(addr)?;
        bind(handle, &live, address).map(|()| 0)
    }

    /// Takes requests from now on: at the port that the id was bound to, or at any. So many may wait for an answer; none or
    /// more than 1024 mean 1024.
    pub fn rdma_listen(id: Object<abi::rdma_cm_id>, backlog: c_int) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        if live.state.lock().phase == Phase::Idle {
            bind(handle, &live, ([0, 0, 0, 0], 0).into())?;
        }
        let ports = {
            let mut state = live.state.lock();
            if state.phase != Phase::Bound {
                return Err(Errno::EINVAL);
            }
            state.phase = Phase::Listening;
            Ports { broker: state.link.port.take(), tcp: state.link.tcp.clone() }
        };
        // Not under the lock: the first request may be told before this returns.
        let listening = listen(handle, &live, &ports, u16::try_from(backlog).unwrap_or(0));
        let mut state = live.state.lock();
        state.link.port = ports.broker;
        match listening {
            Ok(listener) => state.link.listener = listener,
            Err(errno) => {
                state.phase = Phase::Bound;
                return Err(errno);
            }
        }
        Ok(0)
    }
}
