//! Local ports, and listening at them.

use std::net::SocketAddr;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::cm::resolve::{self, Local, Transports};
use ferroce_engine::cm::{Bind, Port};
use ferroce_engine::faults::Verb;
use ferroce_engine::{self as engine, Origin};
use ferroce_wire::cm::PortSpace;
use libc::sockaddr;

use super::route::take_home;
use super::state::{IdHandle, LiveId, Options, Phase, show_source};
use super::{address, device, link};
use crate::call;
use crate::entry::{ConstPtr, Object, export};
use crate::errno::{Errno, judged_without_device};
use crate::handle::get;

/// The port to take, in the id's port space.
pub(super) fn wanted(
    id: &'static IdHandle,
    transports: Transports,
    address: SocketAddr,
    options: &Options,
) -> Result<Bind, Errno> {
    let code = u16::try_from(get!(id.ps)).map_err(|_| Errno::EINVAL)?;
    let space = PortSpace::from_code(code).ok_or(Errno::EINVAL)?;
    let v6_only = options.family_only.unwrap_or(false);
    Ok(Bind { transports, space, address, reuse: options.reuse_address, v6_only })
}

/// The transports that an id may use: iWARP has connected queue pairs of type RC alone, and librdmacm's ports
/// of TCP.
pub(super) fn transports(id: &'static IdHandle) -> Transports {
    match (get!(id.ps), get!(id.qp_type)) {
        (abi::RDMA_PS_TCP | abi::RDMA_PS_IB, abi::IBV_QPT_RC) => Transports::of_process(),
        _ => Transports::Roce,
    }
}

/// Binds an id to a local address, perhaps the wildcard, and a port.
pub(super) fn bind(id: &'static IdHandle, live: &Arc<LiveId>, address: SocketAddr) -> Result<(), Errno> {
    let options = {
        let mut state = live.state.lock();
        state.phase.must_be(&[Phase::Idle], "rdma_bind_addr", "rdma_create_id")?;
        // Another thread cannot bind it meanwhile.
        state.phase = Phase::Bound;
        state.options
    };
    let bound = owner(id, address).and_then(|local| {
        let home = local.as_ref().map(|local| device::home(&local.device)).transpose()?;
        let transports = transports(id).at(local.as_ref())?;
        let port = Port::bind(&wanted(id, transports, address, &options)?)?;
        Ok((home, local, port))
    });
    let mut state = live.state.lock();
    match bound {
        Ok((home, local, port)) => {
            let mut shown = address;
            shown.set_port(port.number());
            show_source(id, shown);
            if let Some(home) = home {
                take_home(id, &mut state, home);
            }
            state.interface = local.as_ref().map(|local| local.gid.ifindex);
            state.gid_index = local.and_then(|local| u8::try_from(local.gid.index).ok());
            state.link.port = Some(Arc::new(port));
            Ok(())
        }
        Err(errno) => {
            state.phase = Phase::Idle;
            Err(errno)
        }
    }
}

/// The device that an id gets with a local address; `None` for the wildcard. With links present a loopback
/// address gives none either, as in Linux (6.12, `cma_any_addr`): libfabric binds an id to `localhost` to see
/// all devices, and drops those that are not the id's. Without links the device on `lo` is the only one there
/// is, and programs that bind to 127.0.0.1 and then use `id->verbs`, as rdma-core's Python tests do, find it.
fn owner(id: &'static IdHandle, address: SocketAddr) -> Result<Option<Local>, Errno> {
    let transports = transports(id);
    if !address.ip().is_loopback() {
        return Ok(resolve::local_by(transports, address)?);
    }
    let links = engine::devices()?.iter().any(|device| device.origin != Origin::Default);
    // A loopback address that no device has can be bound all the same.
    Ok(if links { None } else { resolve::local_by(transports, address).unwrap_or(None) })
}

export! {
    /// Binds the id to a local address and port; port 0 means any free port. An address of a device binds the
    /// id to that device. The wildcard leaves `id->verbs` NULL, and with links present so do the loopback
    /// addresses (127.0.0.0/8 and `::1`), as in Linux: the id then gets a device from `rdma_resolve_addr`, or
    /// each request brings one.
    pub fn rdma_bind_addr(id: Object<abi::rdma_cm_id>, addr: ConstPtr<sockaddr>) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        let address = address::read(addr)?;
        bind(handle, &live, address).map(|()| 0)
    }

    /// Takes requests from now on: at the port that the id was bound to, or at any. So many may wait for an
    /// answer; none or more than 1024 mean 1024.
    pub fn rdma_listen(id: Object<abi::rdma_cm_id>, backlog: c_int) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        judged_without_device(Verb::Listen)?;
        if live.state.lock().phase == Phase::Idle {
            bind(handle, &live, ([0, 0, 0, 0], 0).into())?;
        }
        let port = {
            let mut state = live.state.lock();
            state.phase.must_be(&[Phase::Bound], "rdma_listen", "rdma_bind_addr")?;
            let port = state.link.port.clone().ok_or(Errno::EINVAL)?;
            state.phase = Phase::Listening;
            port
        };
        // Not under the lock: the first request may be told before this returns.
        if let Err(error) = port.listen(u16::try_from(backlog).unwrap_or(0), link::sink(handle, &live)) {
            live.state.lock().phase = Phase::Bound;
            return Err(error.into());
        }
        Ok(0)
    }
}
