//! Devices and their objects.

use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{DeviceAttr, DeviceInfo, GidEntry, PortAttr};

use crate::cq::SharedQueue;
use crate::handles::Handles;
use crate::srq::SharedSrq;
use crate::{CompletionChannel, CompletionQueue, Error, ProtectionDomain};

/// Lists the devices of this network namespace. Without configuration there is one, `fr0` on `lo`. With links, or with
/// `FERROCE_NETDEV`, `fr0` is listed only if `FERROCE_LOOPBACK=1` or it is open; it can be opened in any case.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    offer_a_broker();
    Ok(engine::devices()?)
}

/// Registers the in-process broker, which the engine starts if it finds neither a broker nor `ferroced`.
pub(crate) fn offer_a_broker() {
    engine::broker::embed_with(ferroce_broker::start_embedded);
}

/// An open device. Clones are the same one; it closes after the last clone and the last object created from it are
/// dropped.
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    pub(crate) open: Arc<Open>,
}

pub(crate) struct Open {
    pub(crate) context: Arc<engine::Context>,
    /// Completion queues, by the number in their events.
    pub(crate) queues: Handles<SharedQueue>,
    /// Shared receive queues, by the number in their events.
    pub(crate) shared_queues: Handles<SharedSrq>,
    pid: u32,
}

impl Open {
    /// Returns whether this process opened it. In a forked child, threads of the parent may have left locks locked, and
    /// the parent's objects are unusable.
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

    /// Returns the device's limits and identity.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> DeviceAttr {
        self.context().attr()
    }

    /// Returns the state of the device's only port, number 1.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> Result<PortAttr, Error> {
        Ok(self.context().port(1)?)
    }

    /// Returns the used entries of the GID table.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        self.context().gid_table()
    }

    /// Returns one entry of the GID table.
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self, index: u32) -> Result<GidEntry, Error> {
        self.context().gid(index)?.ok_or(Error::EmptyGid { index })
    }

    /// Creates a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion channel, a descriptor that becomes readable on completions.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::new(self)
    }

    /// Creates a completion queue for at least `entries` completions. Each queue pair created on it enlarges the queue
    /// to one completion for each work request that its queue pairs and their shared receive queues may have
    /// outstanding, up to the device's `max_cqe`, 1,048,576.
    ///
    /// An overflow ends the queue and the queue pairs that use it. A work request is outstanding until its completion
    /// is created, not until it is polled: a program that posts continuously must poll as often.
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self, entries, channel)
    }
}
