//! Devices.

use std::sync::Arc;

use ferroce_engine as engine;

use crate::error::Cause;
use crate::shared::Open;
use crate::{DeviceAttr, DeviceInfo, Error, GidEntry, PortAttr};

/// Lists the devices of this network namespace. Without configuration there is one, `fr0` on `lo`. With
/// links, or with `FERROCE_NETDEV`, `fr0` is listed only if `FERROCE_LOOPBACK=1` or it is open; it can be
/// opened in any case.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    offer_a_broker();
    Ok(engine::devices()?.iter().map(DeviceInfo::of).collect())
}

/// Registers the in-process broker, which the engine starts if it finds neither a broker nor `ferroced`.
pub(crate) fn offer_a_broker() {
    #[cfg(feature = "embedded")]
    ferroce_client::embed_with(ferroce_broker::start_embedded);
}

/// An open device. Clones are the same one; it closes after the last clone and the last object created from
/// it are dropped.
#[derive(Clone)]
#[doc(alias = "ibv_context")]
pub struct Context {
    pub(crate) open: Arc<Open>,
}

impl Context {
    /// Opens the device named `name`.
    ///
    /// # Errors
    ///
    /// [`Device::NotFound`](crate::error::Device::NotFound) if there is no such device,
    /// [`Device::NoBroker`](crate::error::Device::NoBroker) if no broker can be reached or started.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self, Error> {
        offer_a_broker();
        Ok(Self { open: Arc::new(Open::new(engine::Context::open(name)?)) })
    }

    fn context(&self) -> &Arc<engine::Context> {
        &self.open.context
    }

    /// Returns the device's limits and identity.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> DeviceAttr {
        DeviceAttr::of(&self.context().attr())
    }

    /// Returns the state of the device's only port, number 1.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self) -> Result<PortAttr, Error> {
        Ok(PortAttr::of(&self.context().port(1)?))
    }

    /// Returns the used entries of the GID table.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        self.context().gid_table().iter().map(GidEntry::of).collect()
    }

    /// Returns one entry of the GID table.
    ///
    /// # Errors
    ///
    /// [`Device::EmptyGid`](crate::error::Device::EmptyGid) if the entry is empty,
    /// [`Usage::Invalid`](crate::error::Usage::Invalid) if `index` is beyond the table.
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self, index: u32) -> Result<GidEntry, Error> {
        let entry = self.context().gid(index)?.ok_or_else(|| Cause::no_gid(self.context(), index))?;
        Ok(GidEntry::of(&entry))
    }
}
