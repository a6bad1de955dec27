//! Events of ids.

use std::ptr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::Held;
use ferroce_engine::cm::CmEventKind;

use super::channel::LiveChannel;
use super::id::{IdHandle, LiveId};
use super::link::{self, Arrival};
use super::multicast::{self, Membership};
use crate::call;
use crate::entry::{CObject, Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::{Handle, Pool};
use crate::wait::{self, Step};

/// An event as the program sees it.
pub(super) type EventHandle = Handle<abi::rdma_cm_event, LiveEvent>;

impl CObject for abi::rdma_cm_event {
    type Whole = Self;
    type Live = LiveEvent;
    type Extra = ();
}

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
    Connection(CmEventKind),
    /// Somebody asks at its port; dropped, they are refused.
    Request(Arrival),
    /// The program says so itself.
    User { kind: abi::rdma_cm_event_type, status: c_int, arg: u64 },
    /// It joined a group.
    Joined(Arc<Membership>),
}

/// What the program is told.
pub(super) struct ProgramEvent {
    pub(super) id: *mut abi::rdma_cm_id,
    pub(super) listen_id: *mut abi::rdma_cm_id,
    pub(super) kind: abi::rdma_cm_event_type,
    pub(super) status: c_int,
    pub(super) param: abi::rdma_cm_event_param,
    pub(super) private: Box<[u8]>,
}

impl ProgramEvent {
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
pub(super) fn next(channel: &Arc<LiveChannel>) -> Result<Step<&'static EventHandle>, Errno> {
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
            What::Result { kind, status } => Some(ProgramEvent::plain(queued.id, kind, status)),
            What::User { kind, status, arg } => {
                let param = abi::rdma_cm_event_param { arg };
                Some(ProgramEvent { param, ..ProgramEvent::plain(queued.id, kind, status) })
            }
            What::Connection(kind) => link::tell(queued.id, &queued.of, kind),
            What::Request(arrival) => link::take_arrival(queued.id, &queued.of, arrival),
            What::Joined(group) => Some(multicast::joined(queued.id, &queued.of, &group)),
        });
        match told {
            Some(told) => return Ok(Step::Done(hand_out(of, told))),
            // Nothing that the program should see.
            None => of.acks.acknowledge(1),
        }
    }
}

fn hand_out(of: Arc<LiveId>, told: ProgramEvent) -> &'static EventHandle {
    let ProgramEvent { id, listen_id, kind, status, mut param, private } = told;
    if !private.is_empty() {
        // Both kinds of parameters begin with the pointer and its length.
        param.conn.private_data = private.as_ptr().cast::<c_void>();
        param.conn.private_data_len = u8::try_from(private.len()).unwrap_or(u8::MAX);
    }
    let event = POOL.take(abi::rdma_cm_event { id, listen_id, event: kind, status, param });
    POOL.make_live(event, LiveEvent { of, _private: private });
    event
}

/// Acknowledges an event; EINVAL if that was done before.
pub(super) fn acknowledge(event: &'static EventHandle) -> Result<(), Errno> {
    let mut of = None;
    POOL.end(event, |live| {
        of = Some(Arc::clone(&live.of));
        Ok(())
    })?;
    if let Some(of) = of {
        of.acks.acknowledge(1);
    }
    Ok(())
}

export! {
    /// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking. A cancellation
    /// point.
    pub waiting fn rdma_get_cm_event(
        channel: Object<abi::rdma_event_channel>,
        event: Ptr<*mut abi::rdma_cm_event>,
    ) -> c_int = wait::minus_one |_, woken| {
        woken?;
        let handle = channel.handle()?;
        let event = event.some()?;
        // A thread may sleep in here while others use the channel.
        let channel = handle.live()?.to_arc();
        next(&channel)?.then(|got| {
            event.write(got.c());
            Ok(0)
        })
    }

    /// Acknowledges an event and frees it: destroying its id waits until all of them are.
    pub fn rdma_ack_cm_event(event: Object<abi::rdma_cm_event>) -> c_int = call::minus_one |_| {
        acknowledge(event.handle()?).map(|()| 0)
    }

    /// Queues an event of the program's own for whoever fetches the id's: RDMA_CM_EVENT_USER, or RDMA_CM_EVENT_INTERNAL, which is
    /// no different here. `arg` is its `param.arg`.
    pub fn rdma_write_cm_event(
        id: Object<abi::rdma_cm_id>,
        event: abi::rdma_cm_event_type,
        status: c_int,
        arg: u64,
    ) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        if !matches!(event, abi::RDMA_CM_EVENT_USER | abi::RDMA_CM_EVENT_INTERNAL) {
            return Err(Errno::EINVAL);
        }
        live.state.lock().queue(handle, &live, What::User { kind: event, status, arg });
        Ok(0)
    }
}
