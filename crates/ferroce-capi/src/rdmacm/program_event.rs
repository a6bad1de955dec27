//! Events as programs see them.

use std::ptr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::faults;

use super::state::{IdHandle, LiveId};
use crate::entry::{CObject, named};
use crate::errno::Errno;
use crate::handle::{Handle, Pool, take};

/// An event as the program sees it.
pub(super) type EventHandle = Handle<abi::rdma_cm_event, LiveEvent>;

impl CObject for abi::rdma_cm_event {
    type Whole = Self;
    type Live = LiveEvent;
    type Extra = ();
}

/// An event that was not yet acknowledged.
pub(crate) struct LiveEvent {
    of: Arc<LiveId>,
    /// Keeps the memory that `private_data` points to.
    _private: Box<[u8]>,
}

static POOL: Pool<abi::rdma_cm_event, LiveEvent> = Pool::new();

/// An event in the form that the program receives.
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
        if kind == abi::RDMA_CM_EVENT_ESTABLISHED {
            // A plan of faults may kill a process now.
            faults::established();
        }
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

pub(super) fn hand_out(of: Arc<LiveId>, told: ProgramEvent) -> &'static EventHandle {
    let ProgramEvent { id, listen_id, kind, status, mut param, private } = told;
    if !private.is_empty() {
        // Both kinds of parameters begin with the pointer and its length.
        param.conn.private_data = private.as_ptr().cast::<c_void>();
        param.conn.private_data_len = u8::try_from(private.len()).unwrap_or(u8::MAX);
    }
    let event = abi::rdma_cm_event { id, listen_id, event: kind, status, param };
    POOL.put(event, LiveEvent { of, _private: private })
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

/// Acknowledges the event of a synchronous id's last operation.
pub(super) fn acknowledge_last(id: &'static IdHandle) {
    let event = take!(id.event);
    // A program that acknowledged it itself did no harm.
    let _ = named!(event).handle().and_then(acknowledge);
}
