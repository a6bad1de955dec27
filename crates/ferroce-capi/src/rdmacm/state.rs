//! The state of ids and of what belongs to them. All other modules of librdmacm work on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::cm::attributes::ConnectedAttr;
use ferroce_engine::cm::resolve::Route;
use ferroce_engine::cm::{Connection, EventKind, Port, RoceRequest, SidrRequest};
use ferroce_engine::faults::Verb;
use ferroce_engine::{AckCount, NotifyQueue};
use ferroce_wire::Gid;
use ferroce_wire::cm::{Ece, Req};
use parking_lot::Mutex;

use super::address;
use super::program_event::ProgramEvent;
use crate::context::ContextHandle;
use crate::entry::{CObject, Object};
use crate::errno::{Errno, judged};
use crate::handle::{Handle, get, set};
use crate::reason;

/// An id.
pub(super) type IdHandle = Handle<abi::rdma_cm_id, LiveId>;

impl IdHandle {
    /// Whether the id asks peers for queue pairs of datagrams, not for connections.
    pub(super) fn is_for_datagrams(&self) -> bool {
        get!(self.qp_type) == abi::IBV_QPT_UD
    }
}

/// The live part of an id.
pub(crate) struct LiveId {
    pub(super) acks: AckCount,
    /// Held only for moments: the thread that hears the broker takes it.
    pub(super) state: Mutex<IdState>,
    /// Held while the broker is asked for a connection. Taken before `state`.
    pub(super) asking: Mutex<()>,
}

impl LiveId {
    /// Judges a call by the plan of faults, without the lock of the state, because the call may be made to
    /// sleep. An id without an open device is not judged.
    pub(super) fn judge(&self, verb: Verb) -> Result<(), Errno> {
        let context = self.state.lock().context;
        match context.map(ContextHandle::live) {
            Some(Ok(live)) => judged(live.engine.judge(verb)),
            Some(Err(_)) | None => Ok(()),
        }
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
        Ok((handle, handle.live()?))
    }
}

/// How far the id has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    /// The id has no address.
    Idle,
    /// The id has a local port.
    Bound,
    /// The id takes requests.
    Listening,
    /// The id's peer address is being resolved.
    Resolving,
    /// The id has a device and knows its peer's address.
    AddressResolved,
    /// The id has a path to the peer.
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
    /// The connection has ended, or was never made.
    Ended,
}

impl Phase {
    /// EINVAL unless the id has come so far; the reason is told, and the call that `lacks`.
    pub(super) fn must_be(self, allowed: &[Self], call: &str, lacks: &str) -> Result<(), Errno> {
        let is_early = allowed.iter().all(|allowed| self < *allowed);
        if allowed.contains(&self) {
            return Ok(());
        }
        let is = match self {
            Self::Idle => "has no address",
            Self::Bound => "has a local address alone",
            Self::Listening => "listens",
            Self::Resolving => "waits for RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddressResolved => "has no route",
            Self::RouteResolved => "has a route, and no connection",
            Self::Connecting => "waits for the peer's answer",
            Self::Answered => "waits for rdma_establish",
            Self::Requested => "is of a request that was not answered",
            Self::Accepted | Self::Connected => "is connected",
            Self::Ended => "was connected or refused: a new connection takes a new id",
        };
        let missing = if is_early { format!("; {lacks} comes before") } else { String::new() };
        reason::tell(call, &io::Error::other(format!("the id {is}{missing}")));
        Err(Errno::EINVAL)
    }
}

/// The state of an id.
pub(super) struct IdState {
    /// Channel that the id's events are sent to.
    pub(super) channel: Arc<LiveChannel>,
    /// Set if it is synchronous: the channel is its own.
    pub(super) own: Option<&'static ChannelHandle>,
    /// The id is being destroyed: nothing happens to it any more.
    pub(super) ended: bool,
    pub(super) phase: Phase,
    /// Events of a request's id until `rdma_accept` succeeds, `None` at other times: the program gets none of
    /// them before, and none at all if it never accepts (Linux 6.12, `ucma_event_handler`). Servers rely on
    /// it.
    pub(super) withheld: Option<Vec<What>>,
    pub(super) route: Option<Route>,
    /// The device it is bound to.
    pub(super) context: Option<&'static ContextHandle>,
    /// Index of the id's address in the GID table of `context`'s device; `None` without a particular address.
    pub(super) gid_index: Option<u8>,
    /// The interface that holds that address.
    pub(super) interface: Option<u32>,
    pub(super) options: Options,
    pub(super) link: Link,
    pub(super) memberships: Vec<Arc<Membership>>,
    /// The result of `rdma_resolve_addrinfo`.
    pub(super) found: Option<List>,
    pub(super) path: Option<PathRecord>,
    /// The path as the record of subnet administration, to compute with.
    pub(super) record: Option<abi::ibv_sa_path_rec>,
    /// The template of `rdma_create_ep` for the ids of requests.
    pub(super) template: Option<Template>,
}

/// The attributes of the queue pairs that a passive endpoint makes.
#[derive(Clone, Copy)]
pub(super) struct Template {
    pub(super) pd: *mut abi::ibv_pd,
    pub(super) init: abi::ibv_qp_init_attr,
}

// SAFETY: handles of this library, which any thread may use; see `handle`.
unsafe impl Send for Template {}

/// The path record that `route.path_rec` of the program's structure names.
pub(super) struct PathRecord(*mut abi::ibv_sa_path_rec);

// SAFETY: it owns what it points to; the program reads that as long as the id lives.
unsafe impl Send for PathRecord {}

impl Drop for PathRecord {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw, once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl IdState {
    /// Queues an event for the program. `status` is 0 or an error.
    pub(super) fn tell(
        &mut self,
        id: &'static IdHandle,
        live: &Arc<LiveId>,
        kind: abi::rdma_cm_event_type,
        status: Result<(), Errno>,
    ) {
        let status = status.map_or_else(|errno| -errno.code(), |()| 0);
        self.queue(id, live, What::Result { kind, status });
    }

    /// Queues what happened, unless the id is being destroyed. What a request's id is not yet told waits for
    /// [`IdState::accepted`].
    pub(super) fn queue(&mut self, id: &'static IdHandle, live: &Arc<LiveId>, what: What) {
        match &mut self.withheld {
            _ if self.ended => {}
            // The others are the outcome of the program's own calls.
            Some(withheld) if !matches!(what, What::User { .. } | What::Joined(_)) => withheld.push(what),
            _ => self.channel.events.push(Arc::new(Queued { id, of: Arc::clone(live), what })),
        }
    }

    /// `rdma_accept` succeeded: the id is told everything from now on.
    pub(super) fn accepted(&mut self, id: &'static IdHandle, live: &Arc<LiveId>) {
        for what in self.withheld.take().unwrap_or_default() {
            self.queue(id, live, what);
        }
    }

    /// Whether the id's route begins at an iWARP device.
    pub(super) fn is_iwarp(&self) -> bool {
        self.route.as_ref().is_some_and(Route::is_iwarp)
    }

    /// Whether calls on the id wait for their events themselves.
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

/// The objects that an id has at the broker, or with TCP.
#[derive(Default)]
pub(super) struct Link {
    pub(super) port: Option<Arc<Port>>,
    pub(super) connection: Option<Arc<Connection>>,
    /// The depths that a peer's request offers: reads that the peer wants to have outstanding, and those that
    /// it serves.
    pub(super) offered: (u8, u8),
    /// The request for a queue pair of datagrams, until it is answered.
    pub(super) sidr_request: Option<Arc<SidrRequest>>,
    /// Our request by RoCE.
    pub(super) req: Option<Box<Req>>,
    /// A peer's request by RoCE.
    pub(super) asked: Option<Arc<RoceRequest>>,
    /// The attributes of the queue pair, once REQ and REP are known.
    pub(super) agreed: Option<ConnectedAttr>,
    /// Vendor options that the peer shall be told.
    pub(super) local_ece: Ece,
    /// Vendor options that the peer sent.
    pub(super) remote_ece: Ece,
}

/// The options of `rdma_set_option`.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Options {
    /// The traffic class of its packets; `None` is the device's default.
    pub(super) tos: Option<u8>,
    /// Share the address with others that do the same.
    pub(super) reuse_address: bool,
    /// An IPv6 wildcard is not the IPv4 one; `None` leaves it to the system.
    pub(super) family_only: Option<bool>,
    /// Local ACK timeout of its queue pair: 4.096 µs × 2^n.
    pub(super) ack_timeout: Option<u8>,
}

/// An event channel.
pub(super) type ChannelHandle = Handle<abi::rdma_event_channel, LiveChannel>;

impl CObject for abi::rdma_event_channel {
    type Whole = Self;
    type Live = LiveChannel;
    type Extra = ();
}

/// The live part of an event channel.
pub(crate) struct LiveChannel {
    /// Events of ids that the program has not fetched yet.
    pub(super) events: NotifyQueue<Arc<Queued>>,
}

/// Something that happened to an id and waits to be told.
pub(super) struct Queued {
    pub(super) id: &'static IdHandle,
    pub(super) of: Arc<LiveId>,
    pub(super) what: What,
}

pub(super) enum What {
    /// An operation of the id's own ended. `status` is 0 or a negative errno.
    Result { kind: abi::rdma_cm_event_type, status: c_int },
    /// Something on its connection.
    Connection(EventKind),
    /// A peer's request at its port, which dropping refuses.
    Request(Box<PendingRequest>),
    /// The program says so itself.
    User { kind: abi::rdma_cm_event_type, status: c_int, arg: u64 },
    /// The id joined a group.
    Joined(Arc<Membership>),
}

/// A request that the program has not seen yet. The call fills in the request's id when the program fetches
/// the event of this listening id, and returns `None` if the request cannot be connected any more.
pub(super) type PendingRequest =
    dyn FnOnce(&'static IdHandle, &Arc<LiveId>) -> Option<ProgramEvent> + Send + Sync;

/// A group that an id joined.
pub(super) struct Membership {
    pub(super) address: SocketAddr,
    /// The IPv4 address as IPv6, an IPv6 address as it is (RoCEv2 A17).
    pub(super) mgid: Gid,
    /// The membership is for sending only: the queue pair is not attached to the group.
    pub(super) send_only: bool,
    /// The program's, given back with the event.
    pub(super) context: *mut c_void,
}

// SAFETY: the pointer is the program's own, and never followed.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

/// Frees what `rdma_getaddrinfo` made; a results list is taken apart by its allocator's rules: all of it is
/// malloc's.
pub(super) struct List(pub(super) *mut abi::rdma_addrinfo);

// SAFETY: it owns what it points to.
unsafe impl Send for List {}

impl Drop for List {
    fn drop(&mut self) {
        let mut next = self.0;
        while !next.is_null() {
            // SAFETY: an element of a list that nobody else uses any more.
            let info = unsafe { next.read() };
            let parts: [*mut c_void; 7] = [
                info.ai_src_addr.cast(),
                info.ai_dst_addr.cast(),
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_route,
                info.ai_connect,
                next.cast(),
            ];
            for part in parts {
                // SAFETY: from malloc, or NULL.
                unsafe { libc::free(part) };
            }
            next = info.ai_next;
        }
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
