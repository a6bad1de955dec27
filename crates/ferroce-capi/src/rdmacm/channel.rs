//! Event channels.

use std::os::fd::AsRawFd;

use ferroce_abi as abi;
use ferroce_engine::NotifyQueue;

use super::state::{ChannelHandle, LiveChannel};
use crate::entry::{Object, export};
use crate::errno::Errno;
use crate::handle::Pool;
use crate::{call, log};

static POOL: Pool<abi::rdma_event_channel, LiveChannel> = Pool::new();

/// Makes a channel.
pub(super) fn create() -> Result<&'static ChannelHandle, Errno> {
    let events = NotifyQueue::new()?;
    Ok(POOL.put(abi::rdma_event_channel { fd: events.fd().as_raw_fd() }, LiveChannel { events }))
}

/// Ends a channel; its descriptor lives until the last id that reports to it is gone.
pub(super) fn destroy(channel: &'static ChannelHandle) -> Result<(), Errno> {
    POOL.end(channel, |_| Ok(()))
}

export! {
    /// Makes an event channel. Its descriptor may be polled, and be set to O_NONBLOCK.
    pub fn rdma_create_event_channel() -> *mut abi::rdma_event_channel = call::pointer |_| {
        log::install();
        Ok(create()?.c())
    }

    /// Ends the channel. All ids on it must be destroyed, all its events acknowledged.
    pub fn rdma_destroy_event_channel(channel: Object<abi::rdma_event_channel>) -> () = call::nothing |_| {
        destroy(channel.handle()?)
    }
}
