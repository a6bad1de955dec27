//! Registered memory as a queue pair sees it.

use std::sync::Arc;

use ferroce_proto::{Memory, MemoryError, RemoteAccess, Sge};
use ferroce_wire::{Lkey, Rkey};

use super::guard::{self, Fault};
use super::table::{Access, InUse, PdId, Regions};

/// The regions of one protection domain, for its queue pairs: the [`Memory`] of their state machines.
///
/// Each access finds its region anew, and the region outlives the access: [`super::MemoryTable::deregister`] waits.
#[derive(Clone)]
pub struct View {
    regions: Arc<Regions>,
    pd: PdId,
}

impl View {
    pub(super) fn new(regions: Arc<Regions>, pd: PdId) -> Self {
        Self { regions, pd }
    }

    /// Finds the bytes and hands their address to `touch`, during which the region lives.
    #[inline]
    fn with<T>(
        &self,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
        touch: impl FnOnce(u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let in_use: InUse<'_> = self.regions.get(key)?;
        let place = in_use.region(self.pd, access)?.place(va, len)?;
        touch(place)
    }

    fn read(&self, key: u32, va: u64, out: &mut [u8], access: Access) -> Result<(), MemoryError> {
        self.with(key, va, out.len() as u64, access, |place| Ok(guard::read(place, out)?))
    }

    fn write(&self, key: u32, va: u64, data: &[u8], access: Access) -> Result<(), MemoryError> {
        self.with(key, va, data.len() as u64, access, |place| {
            // SAFETY: the owner of the memory registered it for writing, and it stays registered during the copy.
            Ok(unsafe { guard::write(place, data) }?)
        })
    }

    fn atomic<T>(
        &self,
        rkey: Rkey,
        va: u64,
        touch: impl FnOnce(u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        self.with(rkey.value(), va, 8, Access::REMOTE_ATOMIC, |place| {
            aligned(va, place)?;
            touch(place)
        })
    }
}

/// IBTA C9-185 asks it of the address in the packet, the processor of the place.
fn aligned(va: u64, place: u64) -> Result<(), MemoryError> {
    if (va | place).is_multiple_of(8) { Ok(()) } else { Err(MemoryError::Misaligned) }
}

impl Memory for View {
    fn check_local(&self, sge: &Sge, write: bool) -> Result<(), MemoryError> {
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        self.with(sge.lkey.value(), sge.addr, sge.length.into(), access, |_| Ok(()))
    }

    fn read_local(&self, lkey: Lkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.read(lkey.value(), addr, out, Access::empty())
    }

    fn write_local(&mut self, lkey: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.write(lkey.value(), addr, data, Access::LOCAL_WRITE)
    }

    fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        Ok(guard::read(addr, out)?)
    }

    fn check_remote(&self, rkey: Rkey, addr: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryError> {
        let needed = match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
            RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        };
        self.with(rkey.value(), addr, len, needed, |place| match access {
            RemoteAccess::Atomic => aligned(addr, place),
            RemoteAccess::Read | RemoteAccess::Write => Ok(()),
        })
    }

    fn read_remote(&self, rkey: Rkey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.read(rkey.value(), addr, out, Access::REMOTE_READ)
    }

    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.write(rkey.value(), addr, data, Access::REMOTE_WRITE)
    }

    fn compare_swap(&mut self, rkey: Rkey, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.atomic(rkey, addr, |place| {
            // SAFETY: as for writes; both addresses are multiples of 8.
            Ok(unsafe { guard::compare_swap(place, compare, swap) }?)
        })
    }

    fn fetch_add(&mut self, rkey: Rkey, addr: u64, add: u64) -> Result<u64, MemoryError> {
        self.atomic(rkey, addr, |place| {
            // SAFETY: as for writes; both addresses are multiples of 8.
            Ok(unsafe { guard::fetch_add(place, add) }?)
        })
    }

    /// A region's key does not end by a work request: it was not made by one.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryError> {
        let in_use = self.regions.get(rkey.value())?;
        in_use.region(self.pd, Access::empty())?;
        Err(MemoryError::NoPermission)
    }
}

impl From<Fault> for MemoryError {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}
