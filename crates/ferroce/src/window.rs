//! Memory windows.

use std::ops::RangeBounds;
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{Bind, MwType, WindowAccess};

use crate::{Access, Error, MemoryRegion, ProtectionDomain, RemoteMemory};

/// A separate key to a part of a region, for one peer and until it is invalidated; the region stays
/// registered afterwards. [`crate::WorkRequest::bind`] binds it; dropping it invalidates it.
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    mw: Arc<engine::Mw>,
    /// Number of binds; it varies the last octet of each key.
    binds: u8,
    /// Start of the memory of the last bind.
    addr: u64,
    _domain: ProtectionDomain,
}

impl ProtectionDomain {
    /// Creates an unbound memory window of type 2.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self) -> Result<MemoryWindow, Error> {
        let mw = self.shared.pd.alloc_mw(MwType::Two)?;
        Ok(MemoryWindow { mw, binds: 0, addr: 0, _domain: self.clone() })
    }
}

impl MemoryWindow {
    /// The memory of the last bind, for the peer: valid from the completion of the bind until the window is
    /// invalidated, or the window, the region or the queue pair is dropped.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: self.addr, rkey: self.mw.rkey(self.binds.into()) }
    }

    pub(crate) fn bind(
        &mut self,
        region: &MemoryRegion<'_>,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Bind {
        let (start, end) = region.bounds(range);
        self.binds = self.binds.wrapping_add(1);
        self.addr = region.base() + start as u64;
        Bind {
            window: self.mw.name(),
            rkey: self.remote().rkey,
            region: region.engine().lkey(),
            addr: self.addr,
            length: (end - start) as u64,
            access: WindowAccess::from_bits_retain(access.engine().bits()),
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.mw.dealloc();
    }
}
