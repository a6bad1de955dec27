//! Events of ids.

use std::ptr;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;

use super::channel::{ChannelHandle, LiveChannel};
use super::id::{IdHandle, LiveId};
use crate::call;
use crate::errno::Errno;
use crate::handle::{Handle, Pool};

/// An event as the program sees it.
type EventHandle = Handle<abi::rdma_cm_event, LiveEvent>;

/// What makes an event live: it was not yet acknowledged.
struct LiveEvent {
    of: Arc<LiveId>,
}

static POOL: Pool<abi::rdma_cm_event, LiveEvent> = Pool::new();

/// Something that happened to an id and waits to be told.
pub(super) struct Queued {
    pub(super) id: &'static IdHandle,
    pub(super) of: Arc<LiveId>,
    pub(super) kind: abi::rdma_cm_event_type,
    /// 0, or a negative errno.
    pub(super) status: c_int,
}

/// The oldest event of a channel; waits for one unless its descriptor is non-blocking.
pub(super) fn next(channel: &LiveChannel) -> Result<*mut abi::rdma_cm_event, Errno> {
    loop {
        let popped = channel.events.pop(|queued| {
            queued.of.acks.handed_out(1);
            queued
        });
        if let Some(queued) = popped {
            let nothing = abi::rdma_conn_param {
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
            let event = POOL.take(abi::rdma_cm_event {
                id: queued.id.c(),
                listen_id: ptr::null_mut(),
                event: queued.kind,
                status: queued.status,
                param: abi::rdma_cm_event_param { conn: nothing },
            });
            POOL.enliven(event, LiveEvent { of: Arc::clone(&queued.of) });
            return Ok(event.c());
        }
        channel.events.wait()?;
    }
}

/// Acknowledges an event; EINVAL if that was done before.
///
/// # Safety
///
/// `event` is NULL or came from [`next`].
pub(super) unsafe fn acknowledge(event: *mut abi::rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let handle = unsafe { EventHandle::from_c(event) }?;
    POOL.end(handle, |live| {
        live.of.acks.acknowledge(1);
        Ok(())
    })
}

/// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking.
///
/// # Safety
///
/// `channel` is NULL or an event channel, `event` NULL or writable.
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut abi::rdma_event_channel,
    event: *mut *mut abi::rdma_cm_event,
) -> c_int {
    call::minus_one(|_| {
        // SAFETY: as the caller says.
        let handle = unsafe { ChannelHandle::from_c(channel) }?;
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // A thread may sleep in here while others use the channel.
        let channel = handle.live()?.to_arc();
        let got = next(&channel)?;
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { event.write(got) };
        Ok(0)
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
