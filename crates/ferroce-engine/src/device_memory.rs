//! Device memory: memory that belongs to the device and not to the program.
//!
//! A device without hardware has it in the process that asks for it. Peers reach it as any other region, on
//! every datapath.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Context;
use crate::device::MAX_DM_SIZE;
use crate::engine::Engine;
use crate::error::{AllocDmError, Busy, DmAccessError};
use ferroce_host::fork;
use ferroce_memory::{PAGE, Pages};

/// Offsets and lengths of copies are multiples of this many octets, as mlx5 cards ask for it. rdma-core's
/// tests expect it of every device.
pub(crate) const COPY_UNIT: u64 = 4;

/// Device memory (`ibv_dm`), zeroed at first. It is unmapped when its last user drops it. A forked child
/// shares it with its parent.
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    pages: Pages,
    len: usize,
    /// The regions in it, or [`FREED`].
    users: AtomicUsize,
    /// Returns after the pages.
    _budget: Budget,
    epoch: u64,
}

/// In place of the number of regions: it was freed.
const FREED: usize = usize::MAX;

/// A part of the octets that the process may have, which returns when it is dropped.
struct Budget {
    engine: Arc<Engine>,
    octets: u32,
}

impl Budget {
    fn take(engine: &Arc<Engine>, octets: u32) -> Option<Self> {
        engine.device_memory.take_several(octets).then(|| Self { engine: Arc::clone(engine), octets })
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.engine.device_memory.give_back_several(self.octets);
    }
}

impl Context {
    /// Allocates `len` octets of device memory that begin at a multiple of `1 << log_align`. It takes whole
    /// pages of the octets that [`DeviceAttr::max_dm_size`](crate::DeviceAttr::max_dm_size) promises. A
    /// forked child may allocate memory of its own in its parent's context, which takes no lock and does not
    /// reach the device.
    ///
    /// # Errors
    ///
    /// See [`AllocDmError`].
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(self: &Arc<Self>, len: usize, log_align: u32) -> Result<Arc<DeviceMemory>, AllocDmError> {
        let max = MAX_DM_SIZE;
        if len == 0 {
            return Err(AllocDmError::Empty);
        }
        let too_much = AllocDmError::Limit { asked: len as u64, max };
        let align = 1_u64.checked_shl(log_align).filter(|align| *align <= max);
        let align = align.ok_or(AllocDmError::Alignment { log_align, max })?;
        if len as u64 > max {
            return Err(too_much);
        }
        let whole = len.next_multiple_of(PAGE);
        let budget = Budget::take(self.engine(), whole as u32).ok_or(too_much)?;
        let pages = Pages::new(whole, align as usize).map_err(AllocDmError::Memory)?;
        Ok(Arc::new(DeviceMemory {
            pages,
            len,
            users: AtomicUsize::new(0),
            _budget: budget,
            epoch: fork::epoch(),
        }))
    }
}

impl DeviceMemory {
    /// Octets.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty device memory")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first octet's address in the process.
    pub fn addr(&self) -> u64 {
        self.pages.addr()
    }

    /// Whether copies of `len` octets at `offset` are possible: within the memory, and both multiples of 4.
    ///
    /// # Errors
    ///
    /// See [`DmAccessError`].
    pub fn check(&self, offset: u64, len: usize) -> Result<(), DmAccessError> {
        self.place(offset, len)?;
        if (offset | len as u64).is_multiple_of(COPY_UNIT) { Ok(()) } else { Err(DmAccessError::Misaligned) }
    }

    /// Copies `out.len()` octets from `offset` on, aligned words of up to eight octets untorn.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DmAccessError> {
        self.check(offset, out.len())?;
        self.pages.read(offset as usize, out).map_err(|_| DmAccessError::NotMapped)
    }

    /// Copies `octets` to `offset`, lowest address first.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: u64, octets: &[u8]) -> Result<(), DmAccessError> {
        self.check(offset, octets.len())?;
        self.pages.write(offset as usize, octets).map_err(|_| DmAccessError::NotMapped)
    }

    /// Whether it was freed, or the range is not inside.
    fn place(&self, offset: u64, len: usize) -> Result<(), DmAccessError> {
        if self.users.load(Ordering::Acquire) == FREED {
            return Err(DmAccessError::Freed);
        }
        let (len, max) = (len as u64, self.len as u64);
        if len <= max && offset <= max - len {
            Ok(())
        } else {
            Err(DmAccessError::OutOfRange { offset, len, max })
        }
    }

    /// Ends it for all who have it. Its memory is unmapped when they drop it. In a forked child nothing
    /// happens to memory of the parent.
    ///
    /// # Errors
    ///
    /// [`Busy`] while regions are in it.
    #[doc(alias = "ibv_free_dm")]
    pub fn free(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        match self.users.compare_exchange(0, FREED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(FREED) => Ok(()),
            Err(users) => Err(Busy { users }),
        }
    }
}

/// The use of device memory by a region.
pub(crate) struct UsedMemory(Arc<DeviceMemory>);

impl UsedMemory {
    /// Uses `len` octets from `offset` on, which cannot be freed meanwhile.
    pub(crate) fn new(memory: &Arc<DeviceMemory>, offset: u64, len: usize) -> Result<Self, DmAccessError> {
        memory.place(offset, len)?;
        let more = |users: usize| (users != FREED).then_some(users + 1);
        match memory.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Self(Arc::clone(memory))),
            Err(_) => Err(DmAccessError::Freed),
        }
    }
}

impl Drop for UsedMemory {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
