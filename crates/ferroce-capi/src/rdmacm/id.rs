//! Ids: what a socket is elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::AckCount;
use ferroce_engine::cm::resolve::Route;
use libc::sockaddr_storage;
use parking_lot::Mutex;

use super::address;
use super::addrinfo::List;
use super::channel::{self, ChannelHandle, LiveChannel};
use super::device;
use super::event::{self, Queued, What};
use super::link::Link;
use super::multicast::{self, Membership};
use super::option::Options;
use crate::call::Owner;
use crate::context::ContextHandle;
use crate::entry::{CObject, Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::{Handle, Pool, get, set, take};
use crate::wait::{self, Step};
use crate::{call, log};

/// An id.
pub(super) type IdHandle = Handle<abi::rdma_cm_id, LiveId>;

impl IdHandle {
    /// Its peers are asked for queue pairs, not for connections.
    pub(super) fn is_for_datagrams(&self) -> bool {
        get!(self.qp_type) == abi::IBV_QPT_UD
    }
}

/// What makes an id live.
pub(crate) struct LiveId {
    pub(super) acks: AckCount,
    /// Held only for moments: the thread that hears the broker takes it.
    pub(super) state: Mutex<State>,
    /// Held while the broker is asked for a connection. Taken before `state`.
    pub(super) asking: Mutex<()>,
}

static POOL: Pool<abi::rdma_cm_id, LiveId> = Pool::new();

/// How far the id has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// It has no address.
    Idle,
    /// It has a local port.
    Bound,
    /// It takes requests.
    Listening,
    /// It has a device and knows its peer's address.
    AddressResolved,
    /// It has a path to the peer.
    RouteResolved,
    /// The peer was asked.
    Connecting,
    /// The peer agreed, and waits for a program that sets up the queue pair itself.
    Answered,
    /// A peer asks.
    Requested,
    /// The peer was answered.
    Accepted,
    /// The connection is there.
    Connected,
    /// It is no more, or never came to be.
    Ended,
}

/// What an id knows.
pub(super) struct State {
    /// Where its events go.
    channel: Arc<LiveChannel>,
    /// Set if it is synchronous: the channel is its own.
    own: Option<&'static ChannelHandle>,
    /// It is being destroyed: nothing happens to it any more.
    ended: bool,
    pub(super) phase: Phase,
    pub(super) route: Option<Route>,
    /// The device it is bound to.
    pub(super) context: Option<&'static ContextHandle>,
    /// Its address in that device's GID table, if it has a particular one.
    pub(super) gid_index: Option<u8>,
    /// The interface that holds that address.
    pub(super) interface: Option<u32>,
    pub(super) options: Options,
    pub(super) link: Link,
    pub(super) memberships: Vec<Arc<Membership>>,
    /// What `rdma_resolve_addrinfo` found.
    pub(super) found: Option<List>,
    path: Option<PathRecord>,
    /// The same, to compute with.
    pub(super) record: Option<abi::ibv_sa_path_rec>,
    /// What `rdma_create_ep` keeps for the ids of requests.
    pub(super) template: Option<Template>,
}

/// What a passive endpoint makes queue pairs of.
#[derive(Clone, Copy)]
pub(super) struct Template {
    pub(super) pd: *mut abi::ibv_pd,
    pub(super) init: abi::ibv_qp_init_attr,
}

// SAFETY: handles of this library, which any thread may use; see `handle`.
unsafe impl Send for Template {}

/// The path record that `route.path_rec` of the program's structure names.
struct PathRecord(*mut abi::ibv_sa_path_rec);

// SAFETY: it owns what it points to; the program reads that as long as the id lives.
unsafe impl Send for PathRecord {}

impl Drop for PathRecord {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw, once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl State {
    /// Queues an event for the program. `status` is 0 or an error.
    pub(super) fn tell(
        &self,
        id: &'static IdHandle,
        live: &Arc<LiveId>,
        kind: abi::rdma_cm_event_type,
        status: Result<(), Errno>,
    ) {
        let status = status.map_or_else(|errno| -errno.code(), |()| 0);
        self.queue(id, live, What::Result { kind, status });
    }

    /// Queues what happened, unless the id is being destroyed.
    pub(super) fn queue(&self, id: &'static IdHandle, live: &Arc<LiveId>, what: What) {
        if !self.ended {
            self.channel.events.push(Arc::new(Queued { id, of: Arc::clone(live), what }));
        }
    }

    /// Where its events go.
    pub(super) fn channel(&self) -> &Arc<LiveChannel> {
        &self.channel
    }

    /// It waits for the events of its own calls.
    pub(super) fn is_synchronous(&self) -> bool {
        self.own.is_some()
    }

    /// Gives the id its one path record; the earlier one ends.
    pub(super) fn set_path(&mut self, id: &'static IdHandle, record: abi::ibv_sa_path_rec) {
        let path = PathRecord(Box::into_raw(Box::new(record)));
        set!(id.route.path_rec = path.0);
        set!(id.route.num_paths = 1);
        self.path = Some(path);
        self.record = Some(record);
    }
}

impl CObject for abi::rdma_cm_id {
    type Whole = Self;
    type Live = LiveId;
    type Extra = ();
}

impl Object<abi::rdma_cm_id> {
    /// The live id and its handle.
    pub(super) fn opened(self) -> Result<(&'static IdHandle, Arc<LiveId>), Errno> {
        let handle = self.handle()?;
        Ok((handle, handle.live()?.to_arc()))
    }
}

/// A call that begins an operation: for a synchronous id it waits for the operation's event, which becomes `id->event`, and
/// fails if that did. `begin` returns the id, or nothing if no event will come. A cancellation point while it waits: the
/// operation then goes on, and its event is the next one of the id.
pub(super) fn operation<F>(mut begin: F) -> c_int
where
    F: FnMut(&Owner) -> Result<Option<&'static IdHandle>, Errno>,
{
    const { assert!(!std::mem::needs_drop::<F>(), "a thread may be cancelled while this is on its stack") };
    let mut begun = None;
    wait::minus_one(|owner, woken| {
        woken?;
        let id = match begun {
            Some(id) => id,
            None => {
                let Some(id) = begin(owner)? else { return Ok(Step::Done(0)) };
                acknowledge_if_synchronous(id)?;
                *begun.insert(id)
            }
        };
        completed(id)?.then(|()| Ok(0))
    })
}

/// As [`operation`], for one whose event is there already: nothing has to be waited for.
pub(super) fn complete(id: &'static IdHandle) -> Result<(), Errno> {
    acknowledge_if_synchronous(id)?;
    loop {
        match completed(id)? {
            Step::Done(()) => return Ok(()),
            Step::Sleep(sleep, _) => sleep.sleep()?,
        }
    }
}

fn acknowledge_if_synchronous(id: &'static IdHandle) -> Result<(), Errno> {
    if id.live()?.state.lock().is_synchronous() {
        acknowledge_last(id);
    }
    Ok(())
}

/// The outcome of a synchronous id's operation, once its event is there. Operations of other ids have none.
fn completed(id: &'static IdHandle) -> Result<Step<()>, Errno> {
    let channel = {
        let live = id.live()?;
        let state = live.state.lock();
        if !state.is_synchronous() {
            return Ok(Step::Done(()));
        }
        Arc::clone(&state.channel)
    };
    event::next(&channel)?.then(|event| {
        set!(id.event = event.c());
        let (kind, status) = (get!(event.event), get!(event.status));
        match status {
            0 => Ok(()),
            _ if kind == abi::RDMA_CM_EVENT_REJECTED => Err(Errno::ECONNREFUSED),
            // The status of a SIDR_REP.
            1.. if kind == abi::RDMA_CM_EVENT_UNREACHABLE => Err(Errno::ECONNREFUSED),
            status => Err(std::io::Error::from_raw_os_error(status.wrapping_abs()).into()),
        }
    })
}

/// Acknowledges the event of a synchronous id's last operation.
pub(super) fn acknowledge_last(id: &'static IdHandle) {
    let event = take!(id.event);
    // A program that acknowledged it itself did no harm.
    let _ = named!(event).handle().and_then(event::acknowledge);
}

/// Makes an id that reports to `channel`, or, if that is NULL, works synchronously.
pub(super) fn create(
    channel: Object<abi::rdma_event_channel>,
    context: *mut c_void,
    ps: abi::rdma_port_space,
    qp_type: abi::ibv_qp_type,
) -> Result<&'static IdHandle, Errno> {
    let (own, reports_to) = place(channel)?;
    let live = reports_to.live()?.to_arc();
    let id = make(live, own);
    set!(id.channel = reports_to.c());
    set!(id.context = context);
    set!(id.ps = ps);
    set!(id.qp_type = qp_type);
    Ok(id)
}

/// An id that knows nothing yet but where its events go.
pub(super) fn make(channel: Arc<LiveChannel>, own: Option<&'static ChannelHandle>) -> &'static IdHandle {
    // SAFETY: all of it is plain data and pointers, for which zero is a value.
    let id = POOL.take(unsafe { std::mem::zeroed() });
    let state = State {
        channel,
        own,
        ended: false,
        phase: Phase::Idle,
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
    POOL.make_live(
        id,
        LiveId { acks: AckCount::default(), state: Mutex::new(state), asking: Mutex::new(()) },
    );
    id
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
    let of = id.live()?.to_arc();
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
        multicast::leave_all(id, memberships);
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
    /// Makes an id; without a channel it is synchronous: calls wait for their event, which is then `id->event`.
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

    /// Moves an id, with the events that were not told, to another channel; NULL makes it synchronous. Waits until those
    /// that were told are acknowledged.
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
    let to = reports_to.live()?.to_arc();
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
    /// The local port in network order, 0 while there is none.
    pub fn rdma_get_src_port(id: Object<abi::rdma_cm_id>) -> abi::be16 {
        call::value(0, |_| {
            let (handle, live) = id.opened()?;
            let _unchanged = live.state.lock();
            Ok(port(&get!(handle.route.addr.unnamed.src_storage)))
        })
    }

    /// The peer's port in network order, 0 while there is none.
    pub fn rdma_get_dst_port(id: Object<abi::rdma_cm_id>) -> abi::be16 {
        call::value(0, |_| {
            let (handle, live) = id.opened()?;
            let _unchanged = live.state.lock();
            Ok(port(&get!(handle.route.addr.unnamed_2.dst_storage)))
        })
    }
}

/// Lets the program see an address of its id.
pub(super) fn show_source(id: &'static IdHandle, address: SocketAddr) {
    set!(id.route.addr.unnamed.src_storage = address::storage(address));
}

/// As [`show_source`].
pub(super) fn show_destination(id: &'static IdHandle, address: SocketAddr) {
    set!(id.route.addr.unnamed_2.dst_storage = address::storage(address));
}
