//! Device memory.

use std::sync::Arc;

use ferroce_engine as engine;

use crate::{Context, Error};

/// Zeroed memory that belongs to the device. Regions of it ([`ProtectionDomain::register_device_memory`])
/// keep it, so it may be dropped before them. A forked child shares it with its parent.
///
/// All device memory of a process has at most [`DeviceAttr::max_dm_size`] octets; it takes whole pages of 4
/// KiB.
///
/// [`ProtectionDomain::register_device_memory`]: crate::ProtectionDomain::register_device_memory
/// [`DeviceAttr::max_dm_size`]: crate::DeviceAttr::max_dm_size
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    pub(crate) memory: Arc<engine::DeviceMemory>,
}

impl Context {
    /// Allocates `len` octets of device memory, at least one. They begin at a multiple of 4096, so an atomic
    /// at an offset that is a multiple of 8 is aligned.
    ///
    /// # Errors
    ///
    /// [`Usage::Invalid`](crate::error::Usage::Invalid) if `len` is 0,
    /// [`Device::Limit`](crate::error::Device::Limit) if it is more than is free.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn device_memory(&self, len: usize) -> Result<DeviceMemory, Error> {
        Ok(DeviceMemory { memory: self.open.context.alloc_dm(len, 0)? })
    }
}

#[expect(clippy::len_without_is_empty, reason = "there is no empty device memory")]
impl DeviceMemory {
    /// The length in octets.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies octets from `offset` on to `out`. Aligned words of up to eight octets are never torn.
    ///
    /// # Errors
    ///
    /// [`Usage::Invalid`](crate::error::Usage::Invalid) if the range is not inside, or `offset` or the length
    /// is no multiple of 4.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.memory.read(offset as u64, out)?)
    }

    /// Copies `octets` to `offset`, in ascending order: a thread that sees the last octet sees all of them.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: usize, octets: &[u8]) -> Result<(), Error> {
        Ok(self.memory.write(offset as u64, octets)?)
    }
}
