//! Memory behind a registration: how its bytes are reached.

use ferroce_gpu as gpu;

use crate::access::{Access, RegMrError};
use crate::{guard, mappings};

/// How the bytes of a region are reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backing {
    /// The processor reaches them, inside [`guard`].
    Processor,
    /// Only copies of a device reach them, see [`crate::staging`].
    Device(gpu::Memory),
}

/// Whether these octets are memory of a GPU that can be registered.
pub(crate) fn in_gpu(addr: u64, len: usize) -> bool {
    gpu::find(addr, len as u64).is_ok_and(|found| found.is_some())
}

impl Backing {
    /// Finds out how `len` octets at `addr` are reached, and whether they permit the access.
    ///
    /// # Errors
    /// The memory is not there, or does not permit it.
    pub(crate) fn find(addr: u64, len: u64, access: Access) -> Result<Self, RegMrError> {
        if let Some(device) = gpu::find(addr, len)? {
            if access.intersects(Access::ON_DEMAND.union(Access::FLUSH_PERSISTENT)) {
                return Err(RegMrError::DeviceAccess);
            }
            return Ok(Self::Device(device));
        }
        // The program may have installed a handler of its own since.
        guard::install().map_err(RegMrError::System)?;
        if !access.contains(Access::ON_DEMAND) && len > 0 {
            let write = access.intersects(Access::WRITING);
            if !mappings::permit(addr, len, write).map_err(RegMrError::System)? {
                return Err(RegMrError::NotMapped);
            }
        }
        if access.contains(Access::FLUSH_PERSISTENT)
            && !(guard::CAN_PERSIST && mappings::persist(addr, len).map_err(RegMrError::System)?)
        {
            return Err(RegMrError::NotPersistent);
        }
        Ok(Self::Processor)
    }

    /// The device, if only that reaches them.
    pub(crate) fn device(&self) -> Option<gpu::Memory> {
        match self {
            Self::Processor => None,
            Self::Device(memory) => Some(*memory),
        }
    }
}
