//! Ids: what a socket is elsewhere.

use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::AckCount;
use libc::sockaddr_storage;
use parking_lot::Mutex;

use super::address;
use super::program_event::acknowledge_last;
use super::queue_pair::leave_all;
use super::state::{ChannelHandle, IdHandle, IdState, Link, LiveChannel, LiveId, Options, Phase};
use super::{channel, device};
use crate::entry::{Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::{Pool, get, set};
use crate::{call, log};

static POOL: Pool<abi::rdma_cm_id, LiveId> = Pool::new();

/// Makes an id that reports to `channel`, or, if that is NULL, works synchronously.
pub(super) fn create(
    channel: Object<abi::rdma_event_channel>,
    context: *mut c_void,
    ps: abi::rdma_port_space,
    qp_type: abi::ibv_qp_type,
) -> Result<&'static IdHandle, Errno> {
    let (own, reports_to) = place(channel)?;
    let live = reports_to.live()?;
    let id = make(live, own);
    set!(id.channel = reports_to.c());
    set!(id.context = context);
    set!(id.ps = ps);
    set!(id.qp_type = qp_type);
    Ok(id)
}

/// An id that knows nothing yet but where its events go.
pub(super) fn make(channel: Arc<LiveChannel>, own: Option<&'static ChannelHandle>) -> &'static IdHandle {
    let state = IdState {
        channel,
        own,
        ended: false,
        phase: Phase::Idle,
        withheld: None,
        route: None,
        context: None,
        gid_index: None,
        interface: None,
        options: Options::default(),
        link: Link::default(),
        memberships: Vec::new(),
        found: None,
        path: None,
        record: None,
        template: None,
    };
    let live = LiveId { acks: AckCount::default(), state: Mutex::new(state), asking: Mutex::new(()) };
    // SAFETY: all of it is plain data and pointers, for which zero is a value.
    POOL.put(unsafe { std::mem::zeroed() }, live)
}

/// The channel that a program named, or one for a synchronous id alone.
fn place(
    channel: Object<abi::rdma_event_channel>,
) -> Result<(Option<&'static ChannelHandle>, &'static ChannelHandle), Errno> {
    if channel.is_null() {
        let own = channel::create()?;
        return Ok((Some(own), own));
    }
    Ok((None, channel.handle()?))
}

/// Ends an id. Events that were not told vanish; waits until those that were are acknowledged.
pub(super) fn destroy(id: &'static IdHandle) -> Result<(), Errno> {
    let of = id.live()?;
    POOL.end(id, |live| {
        acknowledge_last(id);
        device::forget(id);
        let mut untold = Vec::new();
        let (own, link, memberships) = {
            let mut state = live.state.lock();
            state.ended = true;
            state.channel.events.purge(|queued| {
                let mine = Arc::ptr_eq(&queued.of, &of);
                if mine {
                    untold.push(Arc::clone(queued));
                }
                mine
            });
            (state.own.take(), std::mem::take(&mut state.link), std::mem::take(&mut state.memberships))
        };
        leave_all(id, memberships);
        // Ends the connection as its state wants, gives back the port, and refuses requests that nobody saw.
        drop((link, untold));
        live.acks.wait();
        if let Some(own) = own {
            // The program may have ended it, though it was not its own.
            let _ = channel::destroy(own);
        }
        Ok(())
    })
}

export! {
    /// Makes an id; without a channel it is synchronous: calls wait for their event, which is then
    /// `id->event`.
    pub fn rdma_create_id(
        channel: Object<abi::rdma_event_channel>,
        id: Ptr<*mut abi::rdma_cm_id>,
        context: *mut c_void,
        ps: abi::rdma_port_space,
    ) -> c_int = call::minus_one |_| {
        log::install();
        let id = id.some()?;
        let qp_type = match ps {
            abi::RDMA_PS_TCP | abi::RDMA_PS_IB => abi::IBV_QPT_RC,
            abi::RDMA_PS_UDP | abi::RDMA_PS_IPOIB => abi::IBV_QPT_UD,
            _ => return Err(Errno::EINVAL),
        };
        let made = create(channel, context, ps, qp_type)?;
        id.write(made.c());
        Ok(0)
    }

    /// Ends an id, once its events are acknowledged; its queue pair must be destroyed before.
    pub fn rdma_destroy_id(id: Object<abi::rdma_cm_id>) -> c_int = call::minus_one |_| {
        destroy(id.handle()?).map(|()| 0)
    }

    /// Moves an id, with the events that were not told, to another channel; NULL makes it synchronous. Waits
    /// until those that were told are acknowledged.
    pub fn rdma_migrate_id(
        id: Object<abi::rdma_cm_id>,
        channel: Object<abi::rdma_event_channel>,
    ) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        acknowledge_last(handle);
        live.acks.wait();
        migrate(handle, &live, channel).map(|()| 0)
    }
}

/// Moves an id with the events that were not told.
pub(super) fn migrate(
    handle: &'static IdHandle,
    live: &Arc<LiveId>,
    channel: Object<abi::rdma_event_channel>,
) -> Result<(), Errno> {
    let (own, reports_to) = place(channel)?;
    let to = reports_to.live()?;
    let previous = {
        let mut state = live.state.lock();
        let from = std::mem::replace(&mut state.channel, Arc::clone(&to));
        let mut moved = Vec::new();
        from.events.purge(|queued| {
            let mine = Arc::ptr_eq(&queued.of, live);
            if mine {
                moved.push(Arc::clone(queued));
            }
            mine
        });
        moved.into_iter().for_each(|queued| to.events.push(queued));
        std::mem::replace(&mut state.own, own)
    };
    set!(handle.channel = reports_to.c());
    if let Some(previous) = previous {
        let _ = channel::destroy(previous);
    }
    Ok(())
}

/// The port of an address in network order, 0 if it has none.
fn port(address: &sockaddr_storage) -> abi::be16 {
    address::of_storage(address).map_or(0, |address| address.port()).to_be()
}

export! {
    /// The local port in network order, 0 while the id has none.
    pub fn rdma_get_src_port(id: Object<abi::rdma_cm_id>) -> abi::be16 {
        call::value(0, |_| {
            let (handle, live) = id.opened()?;
            let _unchanged = live.state.lock();
            Ok(port(&get!(handle.route.addr.unnamed.src_storage)))
        })
    }

    /// The peer's port in network order, 0 while the id has none.
    pub fn rdma_get_dst_port(id: Object<abi::rdma_cm_id>) -> abi::be16 {
        call::value(0, |_| {
            let (handle, live) = id.opened()?;
            let _unchanged = live.state.lock();
            Ok(port(&get!(handle.route.addr.unnamed_2.dst_storage)))
        })
    }
}
