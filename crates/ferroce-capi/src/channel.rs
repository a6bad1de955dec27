//! Completion channels.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use core::ffi::{c_int, c_uint, c_void};
use ferroce_abi as abi;
use ferroce_engine::{CompletionChannel, Held};

use crate::call;
use crate::context::{self, ContextHandle};
use crate::cq::CqHandle;
use crate::errno::Errno;
use crate::handle::{Handle, Pool};
use crate::wait::{self, Step};

/// A completion channel.
pub(crate) type ChannelHandle = Handle<abi::ibv_comp_channel, LiveChannel>;

/// What makes a completion channel live.
pub(crate) struct LiveChannel {
    pub(crate) engine: Arc<CompletionChannel>,
    context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_comp_channel, LiveChannel> = Pool::new();

/// Makes a completion channel. Its descriptor may be polled, and be set to O_NONBLOCK.
///
/// # Safety
///
/// `context` is NULL or open.
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut abi::ibv_context,
) -> *mut abi::ibv_comp_channel {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { context::enter(owner, context) }?;
        let engine = live.engine.create_channel()?;
        let fd = engine.fd().as_raw_fd();
        let channel = POOL.take(abi::ibv_comp_channel { context: handle.public(), fd, refcnt: 0 });
        POOL.enliven(channel, LiveChannel { engine, context: handle });
        Ok(channel.c())
    })
}

/// Ends the channel; EBUSY while completion queues report to it.
///
/// # Safety
///
/// `channel` is NULL or came from [`ibv_create_comp_channel`].
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::ibv_comp_channel) -> c_int {
    call::ending(|owner| {
        // SAFETY: as the caller says.
        let handle = unsafe { ChannelHandle::from_c(channel) }?;
        owner.is(handle.live()?.context)?;
        POOL.end(handle, |live| Ok(live.engine.destroy()?))
    })
}

/// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking. A cancellation point.
///
/// # Safety
///
/// `channel` is NULL or came from [`ibv_create_comp_channel`]; `cq` and `cq_context` are NULL or writable.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut abi::ibv_comp_channel,
    cq: *mut *mut abi::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    wait::minus_one(|owner, woken| {
        woken?;
        // SAFETY: as the caller says.
        let handle = unsafe { ChannelHandle::from_c(channel) }?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::EINVAL);
        }
        let channel = {
            let live = handle.live()?;
            owner.is(live.context)?;
            Arc::clone(&live.engine)
        };
        let fired = loop {
            if let Some(fired) = channel.take_event() {
                break fired;
            }
            if let Some(sleep) = channel.fall_asleep(Held::Shared(Arc::clone(&channel) as _))? {
                return Ok(Step::Sleep(sleep, -1));
            }
        };
        let fired = CqHandle::of_engine(&fired);
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { cq.write(fired.c().cast()) };
        // SAFETY: `c()` points to a whole ibv_cq_ex.
        let user = unsafe { (*fired.c()).cq_context };
        // SAFETY: as `cq`.
        unsafe { cq_context.write(user) };
        Ok(Step::Done(0))
    })
}

/// Acknowledges completion events: destroying the queue waits until all of them are.
///
/// # Safety
///
/// `cq` is NULL or came from `ibv_create_cq` or `ibv_create_cq_ex`.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut abi::ibv_cq, events: c_uint) {
    call::quick::nothing(|_| {
        // SAFETY: as the caller says.
        let handle = unsafe { CqHandle::from_c(cq) }?;
        // Not through the context: a dead one must not keep ibv_destroy_cq waiting.
        handle.live()?.engine.ack_events(events);
        Ok(())
    })
}
