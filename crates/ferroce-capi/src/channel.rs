//! Completion channels.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use core::ffi::{c_int, c_uint, c_void};
use ferroce_abi as abi;
use ferroce_engine::{CompletionChannel, Held};

use crate::call;
use crate::call::Owner;
use crate::context::object;
use crate::context::{ContextHandle, LiveContext};
use crate::cq::CqHandle;
use crate::entry::{Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::Live;
use crate::handle::{Pool, get};
use crate::wait::{self, Step};

/// What makes a completion channel live.
pub(crate) struct LiveChannel {
    pub(crate) engine: Arc<CompletionChannel>,
    context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_comp_channel, LiveChannel> = Pool::new();

object!(abi::ibv_comp_channel => LiveChannel);

/// Makes a completion channel in an open context.
pub(crate) fn create(
    (handle, live): (&'static ContextHandle, Live<LiveContext>),
) -> Result<*mut abi::ibv_comp_channel, Errno> {
    let engine = live.engine.create_channel()?;
    let fd = engine.fd().as_raw_fd();
    let channel = POOL.take(abi::ibv_comp_channel { context: handle.public(), fd, refcnt: 0 });
    POOL.enliven(channel, LiveChannel { engine, context: handle });
    Ok(channel.c())
}

/// Ends a channel.
pub(crate) fn destroy(owner: &Owner, channel: Object<abi::ibv_comp_channel>) -> Result<(), Errno> {
    let (handle, _) = channel.enter(owner)?;
    POOL.end(handle, |live| Ok(live.engine.destroy()?))
}

export! {
    /// Makes a completion channel. Its descriptor may be polled, and be set to O_NONBLOCK.
    pub fn ibv_create_comp_channel(context: Object<abi::ibv_context>) -> *mut abi::ibv_comp_channel = call::pointer |owner| {
        create(context.opened(owner)?)
    }

    /// Ends the channel; EBUSY while completion queues report to it.
    pub fn ibv_destroy_comp_channel(channel: Object<abi::ibv_comp_channel>) -> c_int = call::ending |owner| {
        destroy(owner, channel)
    }

    /// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking. A cancellation point.
    pub waiting fn ibv_get_cq_event(
        channel: Object<abi::ibv_comp_channel>,
        cq: Ptr<*mut abi::ibv_cq>,
        cq_context: Ptr<*mut c_void>,
    ) -> c_int = wait::minus_one |owner, woken| {
        woken?;
        let handle = channel.handle()?;
        let (cq, cq_context) = (cq.some()?, cq_context.some()?);
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
        cq.write(fired.c().cast());
        cq_context.write(get!(fired.cq_context));
        Ok(Step::Done(0))
    }

    /// Acknowledges completion events: destroying the queue waits until all of them are.
    pub fn ibv_ack_cq_events(cq: Object<abi::ibv_cq>, events: c_uint) -> () = call::quick::nothing |_| {
        let handle = cq.handle()?;
        // Not through the context: a dead one must not keep ibv_destroy_cq waiting.
        handle.live()?.engine.ack_events(events);
        Ok(())
    }
}
