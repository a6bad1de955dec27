//! Devices and what is made from an open one.

use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{DeviceAttr, DeviceInfo, GidEntry, PortAttr};

use crate::cq::SharedQueue;
use crate::handles::Handles;
use crate::srq::SharedSrq;
use crate::{CompletionChannel, CompletionQueue, Error, ProtectionDomain};

/// The devices of this network namespace. Without configuration there is one, `fr0` on `lo`; with links, or with
/// `FERROCE_NETDEV`, `fr0` is not listed unless `FERROCE_LOOPBACK=1` or it is open, and can be opened all the same.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    offer_a_broker();
    Ok(engine::devices()?)
}

/// Tells the engine how to run a broker in this process, which it does if it finds neither a broker nor `ferroced`.
pub(crate) fn offer_a_broker() {
    engine::broker::embed_with(ferroce_broker::start_embedded);
}

/// An open device. Clones are the same one; it closes when the last of them and of everything
/// made from it is dropped.
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    pub(crate) open: Arc<Open>,
}

pub(crate) struct Open {
    pub(crate) context: Arc<engine::Context>,
    /// Completion queues, by the number that their events carry.
    pub(crate) queues: Handles<SharedQueue>,
    /// Shared receive queues, likewise.
    pub(crate) shared_queues: Handles<SharedSrq>,
    pid: u32,
}

impl Open {
    /// Whether this process opened it. In a forked child other threads of the parent may have left locks locked, and
    /// nothing of the parent's is of use there.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.context.close();
    }
}

impl Context {
    /// Opens the device named `name`.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self, Error> {
        offer_a_broker();
        let context = engine::Context::open(name)?;
        let (queues, shared_queues) = (Handles::default(), Handles::default());
        Ok(Self { open: Arc::new(Open { context, queues, shared_queues, pid: std::process::id() }) })
    }

    fn context(&self) -> &Arc<engine::Context> {
        &self.open.context
    }

    /// Limits and identity.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> DeviceAttr {
        self.context().attr()
    }

    /// State of the device's one port, number 1.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> Result<PortAttr, Error> {
        Ok(self.context().port(1)?)
    }

    /// The entries of the GID table that are in use.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        self.context().gid_table()
    }

    /// One entry of the GID table.
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self, index: u32) -> Result<GidEntry, Error> {
        self.context().gid(index)?.ok_or(Error::EmptyGid { index })
    }

    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(self)
    }

    /// Makes a completion channel: a descriptor that tells when completions are there.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::new(self)
    }

    /// Makes a completion queue for at least `entries` completions. When a queue pair is made on it, the queue grows until
    /// it can hold a completion for each work request that its queue pairs and their shared receive queues may have
    /// outstanding, up to the device's `max_cqe`, 1,048,576.
    ///
    /// An overflow is the end of the queue and of the queue pairs that use it. A work request is outstanding until its
    /// completion is made, not until it is polled: a program that posts on and on must poll as often.
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self, entries, channel)
    }
}
