//! The regions of a process.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferroce_proto::MemoryError;
use parking_lot::Mutex;

use super::key::{Key, SLOT_BITS, Secret, USES};
use super::{View, guard, mappings};

/// Regions (and, later, windows) that can exist at once.
pub const MAX_REGIONS: u32 = (1 << SLOT_BITS) - 1;

/// Slots that rest before the one that was freed first is used again, if the table can grow instead.
const RESTING: usize = 1024;
const CHUNK: usize = 1024;

bitflags::bitflags! {
    /// What may be done to a region: the bits of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// Written by receives, READs and atomics of our own.
        const LOCAL_WRITE = 1;
        /// Written by peers.
        const REMOTE_WRITE = 1 << 1;
        /// Read by peers.
        const REMOTE_READ = 1 << 2;
        /// Changed by peers' atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addressed from 0, whatever the iova.
        const ZERO_BASED = 1 << 5;
        /// Need not be mapped yet.
        const ON_DEMAND = 1 << 6;
        /// A hint about page sizes.
        const HUGETLB = 1 << 7;
        /// Peers may flush it to where all see it.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush it to persistent memory.
        const FLUSH_PERSISTENT = 1 << 9;
        /// `IBV_ACCESS_OPTIONAL_RANGE`: hints that a device may ignore, and this one does.
        const OPTIONAL = 0x3ff0_0000;
        /// Unknown bits are kept, to be refused by name.
        const _ = !0;
    }
}

impl Access {
    const KNOWN: Self = Self::from_bits_retain(0x3ff0_03ff);
    /// What lets somebody change the memory.
    const WRITING: Self = Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);
}

/// Why memory was not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegMrError {
    /// [`MAX_REGIONS`] exist.
    #[error("the limit of memory regions is reached")]
    Limit,
    /// Flags that do not exist.
    #[error("unknown access flags {0:#x}")]
    UnknownAccess(u32),
    /// Peers may write or do atomics, but we may not write.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    NeedsLocalWrite,
    /// Flags or a range that the device does not offer: persistent memory, or the whole address space on demand.
    #[error("not offered: {0}")]
    Unsupported(&'static str),
    /// `addr + len` or `iova + len` exceeds 2^64.
    #[error("the range wraps around the address space")]
    Wraps,
    /// A byte of the range is not mapped, or not with the permission that the access flags need.
    #[error("the memory is not mapped, or does not permit the access asked for")]
    NotMapped,
    /// The memory map could not be read, or the fault guard not installed.
    #[error("the system does not tell what is mapped")]
    System(#[source] io::Error),
}

/// Number of a protection domain, unique in the process while any region lives in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PdId(u32);

impl PdId {
    /// Any number that no other domain has.
    pub const fn new(id: u32) -> Self {
        Self(id)
    }
}

/// All regions of a process. Looking one up is wait-free; registering and deregistering take a lock.
pub struct MemoryTable {
    regions: Arc<Regions>,
}

impl MemoryTable {
    /// An empty table with a secret of its own. Installs the fault guard.
    pub fn new() -> io::Result<Self> {
        guard::install()?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Ok(Self::with_seed(seed))
    }

    pub(super) fn with_seed(seed: [u8; 32]) -> Self {
        let chunks = (0..(1 << SLOT_BITS) / CHUNK).map(|_| OnceLock::new()).collect();
        // Slot 0 stays unused, so that there is one region less than slots.
        let free = Mutex::new(Free { never_used: 1, resting: VecDeque::new() });
        Self { regions: Arc::new(Regions { secret: Secret::new(seed), chunks, free }) }
    }

    /// Registers `len` bytes at `addr`, which work requests and packets address from `iova` on, or from 0 if
    /// [`Access::ZERO_BASED`]. Zero bytes make a valid region that nothing fits into.
    ///
    /// The memory must be mapped and permit the access, unless [`Access::ON_DEMAND`]. It may be unmapped later: accesses
    /// then fail.
    pub fn register(
        &self,
        pd: PdId,
        addr: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Key, RegMrError> {
        let unknown = access.difference(Access::KNOWN);
        if !unknown.is_empty() {
            return Err(RegMrError::UnknownAccess(unknown.bits()));
        }
        if access.intersects(Access::WRITING) && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegMrError::NeedsLocalWrite);
        }
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(RegMrError::Unsupported("FLUSH_PERSISTENT without persistent memory"));
        }
        let on_demand = access.contains(Access::ON_DEMAND);
        if on_demand && addr == 0 && len == usize::MAX {
            return Err(RegMrError::Unsupported("the whole address space on demand"));
        }
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let len = len as u64;
        if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(RegMrError::Wraps);
        }
        // The program may have installed a handler of its own since.
        guard::install().map_err(RegMrError::System)?;
        if !on_demand && len > 0 {
            let write = access.intersects(Access::WRITING);
            if !mappings::permit(addr, len, write).map_err(RegMrError::System)? {
                return Err(RegMrError::NotMapped);
            }
        }
        self.regions.insert(Region { pd, addr, len, iova, access })
    }

    /// Ends a registration. When it returns, nobody touches the memory through it any more; a key that is none is
    /// ignored.
    ///
    /// Waits for copies in progress, so it must not be called from one.
    pub fn deregister(&self, key: Key) {
        self.regions.remove(key);
    }

    /// The table as queue pairs of a domain see it.
    pub fn view(&self, pd: PdId) -> View {
        View::new(Arc::clone(&self.regions), pd)
    }

    /// Regions that exist.
    pub fn len(&self) -> usize {
        let free = self.regions.free.lock();
        free.never_used as usize - 1 - free.resting.len()
    }

    /// Whether no region exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) pd: PdId,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) iova: u64,
    pub(super) access: Access,
}

impl Region {
    /// Where in the process the `len` bytes at `va` of the region's address space lie.
    pub(super) fn place(&self, va: u64, len: u64) -> Result<u64, MemoryError> {
        let offset = va.checked_sub(self.iova).ok_or(MemoryError::OutOfRange)?;
        // Two comparisons, no sum that could wrap.
        if len > self.len || offset > self.len - len {
            return Err(MemoryError::OutOfRange);
        }
        Ok(self.addr + offset)
    }
}

pub(super) struct Regions {
    secret: Secret,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
}

/// Which slots may be taken.
struct Free {
    /// Lowest slot that was never used.
    never_used: u32,
    /// Freed ones, longest ago first.
    resting: VecDeque<u32>,
}

/// An entry. `state` is the key in the upper half, 0 while free, and in the lower the number of those who read `region`.
///
/// A reader announces itself and sees in the same step whether the key is the one it wants; only then it reads `region`.
/// `region` is written by the one who took the slot out of the free list, while the key is 0 and after all readers of
/// the former key have left; a late reader that announces itself still finds a key that is not its own, and leaves.
#[derive(Default)]
struct Slot {
    state: AtomicU64,
    region: UnsafeCell<Option<Region>>,
    /// Times it was used; guarded by the free list's lock.
    uses: UnsafeCell<u16>,
}

// SAFETY: `region` is read and written under the protocol above, `uses` under a lock.
unsafe impl Sync for Slot {}

/// A region that is not deregistered while this lives.
pub(super) struct InUse<'a> {
    slot: &'a Slot,
}

impl Regions {
    /// Finds a region by its key.
    #[inline]
    pub(super) fn get(&self, key: u32) -> Result<InUse<'_>, MemoryError> {
        let index = self.secret.slot(key) as usize;
        let slot = self.chunks[index / CHUNK].get().ok_or(MemoryError::BadKey)?;
        let slot = &slot[index % CHUNK];
        // A wrong key leaves no trace, so that nobody delays a deregistration by guessing.
        if slot.state.load(Ordering::Relaxed) >> 32 != u64::from(key) || key == 0 {
            return Err(MemoryError::BadKey);
        }
        let before = slot.state.fetch_add(1, Ordering::Acquire);
        let region = InUse { slot };
        if before >> 32 == u64::from(key) { Ok(region) } else { Err(MemoryError::BadKey) }
    }

    fn insert(&self, region: Region) -> Result<Key, RegMrError> {
        let mut free = self.free.lock();
        let index = match free.never_used {
            n if n <= MAX_REGIONS && free.resting.len() < RESTING => {
                free.never_used += 1;
                n
            }
            _ => free.resting.pop_front().ok_or(RegMrError::Limit)?,
        };
        let chunk =
            self.chunks[index as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        let slot = &chunk[index as usize % CHUNK];
        // SAFETY: the free list's lock is held.
        let uses = unsafe { &mut *slot.uses.get() };
        let mut key;
        loop {
            key = self.secret.key(index, *uses);
            *uses = (*uses + 1) % USES;
            // 0 is no key, and a number that looks like an error is better left out.
            if key.value() != 0 && key.value() != u32::MAX {
                break;
            }
        }
        drop(free);
        // SAFETY: the slot came from the free list, so its key is 0 and no reader of its former key is left; nobody reads
        // `region` before the key is stored.
        unsafe { *slot.region.get() = Some(region) };
        slot.state.fetch_add(u64::from(key.value()) << 32, Ordering::Release);
        Ok(key)
    }

    fn remove(&self, key: Key) {
        let index = self.secret.slot(key.value());
        let Some(chunk) = self.chunks[index as usize / CHUNK].get() else { return };
        let slot = &chunk[index as usize % CHUNK];
        let wanted = u64::from(key.value());
        let taken = slot.state.try_update(Ordering::AcqRel, Ordering::Relaxed, |state| {
            (state >> 32 == wanted && wanted != 0).then_some(state & 0xffff_ffff)
        });
        if taken.is_err() {
            return;
        }
        slot.wait_for_readers();
        self.free.lock().resting.push_back(index);
    }
}

impl Slot {
    /// A reader is in a copy of 64 KiB at most, but may be preempted in it or wait for a page from a disk.
    fn wait_for_readers(&self) {
        for turn in 0_u32.. {
            if self.state.load(Ordering::Acquire) & 0xffff_ffff == 0 {
                return;
            }
            match turn {
                0..64 => std::hint::spin_loop(),
                64..128 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}

impl InUse<'_> {
    /// Fails with `NoPermission` or `WrongPd`.
    pub(super) fn region(&self, pd: PdId, access: Access) -> Result<&Region, MemoryError> {
        // SAFETY: this reader is announced and saw its key, so nobody writes `region` until it leaves.
        let region = unsafe { &*self.slot.region.get() }.as_ref().ok_or(MemoryError::BadKey)?;
        if region.pd != pd {
            return Err(MemoryError::WrongPd);
        }
        if !region.access.contains(access) {
            return Err(MemoryError::NoPermission);
        }
        Ok(region)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.slot.state.fetch_sub(1, Ordering::Release);
    }
}
