//! Completion channels.

use std::os::fd::AsRawFd;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::CompletionChannel;
use ferroce_engine::faults::Verb;

use crate::call::{self, Owner};
use crate::context::{ContextHandle, LiveContext, Made, object};
use crate::entry::{Object, export};
use crate::errno::{Errno, judged};
use crate::handle::{Live, Pool};

static POOL: Pool<abi::ibv_comp_channel, Made<CompletionChannel>> = Pool::new();

object!(abi::ibv_comp_channel => Made<CompletionChannel>);

/// Makes a completion channel in an open context.
pub(crate) fn create(
    (handle, live): (&'static ContextHandle, Live<LiveContext>),
) -> Result<*mut abi::ibv_comp_channel, Errno> {
    judged(live.engine.judge(Verb::CreateChannel))?;
    let engine = live.engine.create_channel()?;
    let fd = engine.fd().as_raw_fd();
    let channel = abi::ibv_comp_channel { context: handle.public(), fd, refcnt: 0 };
    Ok(POOL.put(channel, Made { engine, context: handle }).c())
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
}
