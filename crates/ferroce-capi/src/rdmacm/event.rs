//! Events of ids.

use std::ptr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::Held;
use ferroce_engine::cm::EventKind;

use super::channel::{ChannelHandle, LiveChannel};
use super::id::{self, IdHandle, LiveId};
use super::link::{self, Arrival};
use super::multicast::{self, Membership};
use crate::call;
use crate::errno::Errno;
use crate::handle::{Handle, Pool};
use crate::wait::{self, Step};

/// An event as the program sees it.
type EventHandle = Handle<abi::rdma_cm_event, LiveEvent>;

/// What makes an event live: it was not yet acknowledged.
pub(crate) struct LiveEvent {
    of: Arc<LiveId>,
    /// What `private_data` names.
    _private: Box<[u8]>,
}

static POOL: Pool<abi::rdma_cm_event, LiveEvent> = Pool::new();

/// Something that happened to an id and waits to be told.
pub(super) struct Queued {
    pub(super) id: &'static IdHandle,
    pub(super) of: Arc<LiveId>,
    pub(super) what: What,
}

/// What happened.
pub(super) enum What {
    /// An operation of the id's own ended. `status` is 0 or a negative errno.
    Result { kind: abi::rdma_cm_event_type, status: c_int },
    /// Something on its connection.
    News(EventKind),
    /// Somebody asks at its port; dropped, they are refused.
    Request(Arrival),
    /// The program says so itself.
    User { kind: abi::rdma_cm_event_type, status: c_int, arg: u64 },
    /// It joined a group.
    Joined(Arc<Membership>),
}

/// What the program is told.
pub(super) struct Told {
    pub(super) id: *mut abi::rdma_cm_id,
    pub(super) listen_id: *mut abi::rdma_cm_id,
    pub(super) kind: abi::rdma_cm_event_type,
    pub(super) status: c_int,
    pub(super) param: abi::rdma_cm_event_param,
    pub(super) private: Box<[u8]>,
}

impl Told {
    /// An event that says nothing more.
    pub(super) fn plain(id: &'static IdHandle, kind: abi::rdma_cm_event_type, status: c_int) -> Self {
        Self {
            id: id.c(),
            listen_id: ptr::null_mut(),
            kind,
            status,
            param: abi::rdma_cm_event_param { conn: NOTHING },
            private: Box::default(),
        }
    }
}

/// Parameters of a connection that say nothing.
pub(super) const NOTHING: abi::rdma_conn_param = abi::rdma_conn_param {
    private_data: ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};

/// Parameters of datagrams that say nothing.
pub(super) const NO_DATAGRAMS: abi::rdma_ud_param = abi::rdma_ud_param {
    private_data: ptr::null(),
    private_data_len: 0,
    ah_attr: abi::ibv_ah_attr {
        grh: abi::ibv_global_route {
            dgid: abi::ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 0,
        port_num: 0,
    },
    qp_num: 0,
    qkey: 0,
};

/// The oldest event of a channel, or a sleep until there may be one; EAGAIN instead if its descriptor is non-blocking.
pub(super) fn next(channel: &Arc<LiveChannel>) -> Result<Step<*mut abi::rdma_cm_event>, Errno> {
    loop {
        let popped = channel.events.pop(|queued| {
            queued.of.acks.handed_out(1);
            queued
        });
        let Some(queued) = popped else {
            return Ok(Step::Sleep(channel.events.fall_asleep(Held::Shared(Arc::clone(channel) as _))?, -1));
        };
        let of = Arc::clone(&queued.of);
        // Only who pops it has it.
        let told = Arc::into_inner(queued).and_then(|queued| match queued.what {
            What::Result { kind, status } => Some(Told::plain(queued.id, kind, status)),
            What::User { kind, status, arg } => {
                let param = abi::rdma_cm_event_param { arg };
                Some(Told { param, ..Told::plain(queued.id, kind, status) })
            }
            What::News(kind) => link::tell(queued.id, &queued.of, kind),
            What::Request(arrival) => link::introduce(queued.id, &queued.of, arrival),
            What::Joined(group) => Some(multicast::joined(queued.id, &queued.of, &group)),
        });
        match told {
            Some(told) => return Ok(Step::Done(hand_out(of, told))),
            // Nothing that the program should see.
            None => of.acks.acknowledge(1),
        }
    }
}

fn hand_out(of: Arc<LiveId>, told: Told) -> *mut abi::rdma_cm_event {
    let Told { id, listen_id, kind, status, mut param, private } = told;
    if !private.is_empty() {
        // Both kinds of parameters begin with the pointer and its length.
        param.conn.private_data = private.as_ptr().cast::<c_void>();
        param.conn.private_data_len = u8::try_from(private.len()).unwrap_or(u8::MAX);
    }
    let event = POOL.take(abi::rdma_cm_event { id, listen_id, event: kind, status, param });
    POOL.enliven(event, LiveEvent { of, _private: private });
    event.c()
}

/// Acknowledges an event; EINVAL if that was done before.
///
/// # Safety
///
/// `event` is NULL or came from [`next`].
pub(super) unsafe fn acknowledge(event: *mut abi::rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let handle = unsafe { EventHandle::from_c(event) }?;
    let mut of = None;
    POOL.end(handle, |live| {
        of = Some(Arc::clone(&live.of));
        Ok(())
    })?;
    if let Some(of) = of {
        of.acks.acknowledge(1);
    }
    Ok(())
}

/// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking. A cancellation
/// point.
///
/// # Safety
///
/// `channel` is NULL or an event channel, `event` NULL or writable.
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut abi::rdma_event_channel,
    event: *mut *mut abi::rdma_cm_event,
) -> c_int {
    wait::minus_one(|_, woken| {
        woken?;
        // SAFETY: as the caller says.
        let handle = unsafe { ChannelHandle::from_c(channel) }?;
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // A thread may sleep in here while others use the channel.
        let channel = handle.live()?.to_arc();
        next(&channel)?.then(|got| {
            // SAFETY: not NULL, and the caller says it may be written to.
            unsafe { event.write(got) };
            Ok(0)
        })
    })
}

/// Acknowledges an event and frees it: destroying its id waits until all of them are.
///
/// # Safety
///
/// `event` is NULL or came from [`rdma_get_cm_event`].
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut abi::rdma_cm_event) -> c_int {
    call::minus_one(|_| {
        // SAFETY: as the caller says.
        unsafe { acknowledge(event) }.map(|()| 0)
    })
}

/// Queues an event of the program's own for whoever fetches the id's: RDMA_CM_EVENT_USER, or RDMA_CM_EVENT_INTERNAL, which is
/// no different here. `arg` is its `param.arg`.
///
/// # Safety
///
/// `id` is NULL or an id.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut abi::rdma_cm_id,
    event: abi::rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    call::minus_one(|_| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { id::enter(id) }?;
        if !matches!(event, abi::RDMA_CM_EVENT_USER | abi::RDMA_CM_EVENT_INTERNAL) {
            return Err(Errno::EINVAL);
        }
        live.state.lock().queue(handle, &live, What::User { kind: event, status, arg });
        Ok(0)
    })
}
