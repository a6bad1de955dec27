//! Registered memory, the only module of this crate with `unsafe`.
//!
//! From registration on, the device reads and writes the memory at any time: when a message arrives, and with
//! remote access whenever the peer does. So no reference to it may exist while it is registered. A
//! [`MemoryRegion`] therefore owns or exclusively borrows its memory and returns copies. The device's own
//! routines make them: they are assembly, so concurrent copies by several threads and by the device are no
//! data race, and aligned words of up to eight octets are never torn.

#![expect(unsafe_code, reason = "memory that the device writes cannot be behind a reference")]

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ferroce_engine as engine;
use ferroce_engine::Sge;
use ferroce_memory::guard;
use ferroce_wire::{Lkey, Rkey};

use crate::{Access, DeviceMemory, Error, ProtectionDomain, RemoteMemory};

/// Alignment that atomics need (IBTA 9.4.5); memory that a region owns has it.
const ALIGNMENT: usize = align_of::<u64>();

/// Registered memory. Dropping it ends the registration; later uses of its keys, ours or the peer's, fail.
///
/// Memory that the region owns begins at a multiple of 8, so an atomic at such an offset is aligned.
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion<'a> {
    mr: Arc<engine::Mr>,
    /// The address of the first octet in work requests.
    base: u64,
    memory: Memory,
    /// The registration uses the domain.
    _domain: ProtectionDomain,
    _borrowed: PhantomData<&'a mut [u8]>,
}

// SAFETY: the region owns its memory or borrows it exclusively, or it meets the contract of `register_raw`;
// all access to it is by raw pointers, from any thread.
unsafe impl Send for MemoryRegion<'_> {}
// SAFETY: as above. `read` and `write` copy by the engine's guarded routines, which several threads may run
// at the same time on the same memory, and no reference to the memory exists that a copy could invalidate.
unsafe impl Sync for MemoryRegion<'_> {}

/// The octets of a region, accessed only by raw pointers.
struct Memory {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// The way to free the memory.
enum Owner {
    /// The caller's memory is not freed.
    Caller,
    /// A `Vec<u8>` of this capacity.
    Octets { capacity: usize },
    /// A `Vec<u64>` of this capacity.
    Words { capacity: usize },
    /// The device, as long as this exists.
    Device(#[expect(dead_code, reason = "kept to be dropped")] Arc<engine::DeviceMemory>),
}

impl Memory {
    /// Takes over the octets, without a copy if they are aligned.
    fn from_vec(octets: Vec<u8>) -> Self {
        if !octets.is_empty() && !octets.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            let aligned = Self::zeroed(octets.len());
            aligned.write(0, &octets);
            return aligned;
        }
        let mut octets = ManuallyDrop::new(octets);
        let (len, capacity) = (octets.len(), octets.capacity());
        Self { start: start_of(octets.as_mut_ptr()), len, owner: Owner::Octets { capacity } }
    }

    /// Allocates zeroed octets.
    fn zeroed(len: usize) -> Self {
        let mut words = ManuallyDrop::new(vec![0_u64; len.div_ceil(ALIGNMENT)]);
        let capacity = words.capacity();
        Self { start: start_of(words.as_mut_ptr().cast()), len, owner: Owner::Words { capacity } }
    }

    fn of_caller(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, owner: Owner::Caller }
    }

    fn addr(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// The address of `len` octets from `offset` on.
    fn part(&self, offset: usize, len: usize) -> u64 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} octets from {offset} on are not inside the region's {}", self.len);
        self.addr() + offset as u64
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        guard::read(self.part(offset, out.len()), out).expect("the memory of a region stays mapped");
    }

    fn write(&self, offset: usize, octets: &[u8]) {
        let to = self.part(offset, octets.len());
        // SAFETY: `part` checked that the range is inside the memory, to which no reference exists: the
        // constructor took a vector or a `&mut`, or the memory meets the contract of `register_raw`.
        unsafe { guard::write(to, octets) }.expect("the memory of a region stays mapped");
    }

    /// Returns the octets, without a copy if they are a `Vec<u8>`.
    fn into_vec(self) -> Vec<u8> {
        match self.owner {
            Owner::Octets { capacity } => {
                let this = ManuallyDrop::new(self);
                // SAFETY: made from a vector of this length and capacity; the destructor does not run.
                unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.len, capacity) }
            }
            Owner::Words { .. } | Owner::Caller | Owner::Device(_) => {
                let mut octets = vec![0; self.len];
                self.read(0, &mut octets);
                octets
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.owner {
            Owner::Caller | Owner::Device(_) => {}
            Owner::Octets { capacity } => {
                // SAFETY: made from a vector of this capacity, and no pointer to it is used any more.
                drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), 0, capacity) });
            }
            Owner::Words { capacity } => {
                // SAFETY: as above; `zeroed` allocated a vector of words.
                drop(unsafe { Vec::from_raw_parts(self.start.as_ptr().cast::<u64>(), 0, capacity) });
            }
        }
    }
}

fn start_of(pointer: *mut u8) -> NonNull<u8> {
    NonNull::new(pointer).expect("memory does not begin at NULL")
}

/// A part of registered memory in a work request. It keeps no memory alive: if its region is dropped before
/// the work request is done, that fails with [`crate::Status::LocProtErr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_sge")]
pub struct Slice {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: Lkey,
}

impl Slice {
    pub(crate) fn sge(self) -> Sge {
        Sge { addr: self.addr, length: self.length, lkey: self.lkey }
    }

    /// The length in octets.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<'a> MemoryRegion<'a> {
    /// Private: a caller that forgets the region instead of dropping it would leave the borrowed memory
    /// registered after the borrow.
    fn borrowed(domain: &ProtectionDomain, memory: &'a mut [u8], access: Access) -> Result<Self, Error> {
        let len = memory.len();
        Self::new(domain, Memory::of_caller(NonNull::from(memory).cast(), len), access)
    }

    fn new(domain: &ProtectionDomain, memory: Memory, access: Access) -> Result<Self, Error> {
        let addr = memory.addr();
        let mr = domain.shared.pd.reg_mr(addr, memory.len, addr, access.engine())?;
        Ok(Self { mr, base: addr, memory, _domain: domain.clone(), _borrowed: PhantomData })
    }

    /// The length in octets.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of it, for work requests.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region or has 4 GiB or more.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Slice {
        let (start, end) = self.bounds(range);
        let length = u32::try_from(end - start).expect("a slice has less than 4 GiB");
        Slice { addr: self.base + start as u64, length, lkey: self.mr.lkey() }
    }

    /// Returns the memory from octet `offset` on, for the peer's READ, WRITE and atomics. Atomics need an
    /// address that is a multiple of 8 (IBTA 9.4.5), and so such an `offset`.
    ///
    /// # Panics
    ///
    /// If `offset` is beyond the region.
    pub fn remote(&self, offset: usize) -> RemoteMemory {
        assert!(offset <= self.len(), "offset {offset} is beyond the region's {} octets", self.len());
        RemoteMemory { addr: self.base + offset as u64, rkey: self.mr.rkey() }
    }

    /// The key for the peer.
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// Copies octets from `offset` on to `out`. A concurrent write of the device or another thread may be
    /// copied in part, but aligned words of up to eight octets are never torn.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region, or if memory of [`ProtectionDomain::register_raw`] is no longer
    /// mapped.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.memory.read(offset, out);
    }

    /// Copies `octets` to `offset`, in ascending order: a thread that sees the last octet sees all of them.
    ///
    /// # Panics
    ///
    /// As [`Self::read`].
    pub fn write(&self, offset: usize, octets: &[u8]) {
        self.memory.write(offset, octets);
    }

    /// Loads eight octets at `offset` as one word, which is never torn. This thread reads the word after all
    /// that it read before, and before all that it reads later.
    ///
    /// The word has the byte order of this host, as in the peer's atomics.
    ///
    /// # Panics
    ///
    /// As [`Self::read`], and if the address of the word is not a multiple of 8.
    pub fn load(&self, offset: usize) -> u64 {
        let offset = self.word(offset);
        let mut octets = [0; ALIGNMENT];
        fence(Ordering::Acquire);
        self.memory.read(offset, &mut octets);
        fence(Ordering::Acquire);
        u64::from_ne_bytes(octets)
    }

    /// Stores eight octets at `offset` as one word, which is never torn. Threads and the peer's READs see it
    /// after all that this thread wrote to the region before, and before all that this thread writes later.
    ///
    /// The word has the byte order of this host, as in the peer's atomics.
    ///
    /// # Panics
    ///
    /// As [`Self::load`].
    pub fn store(&self, offset: usize, word: u64) {
        let offset = self.word(offset);
        fence(Ordering::Release);
        self.memory.write(offset, &word.to_ne_bytes());
        fence(Ordering::Release);
    }

    /// Checks that a word begins at `offset`.
    fn word(&self, offset: usize) -> usize {
        let aligned = self.memory.part(offset, ALIGNMENT).is_multiple_of(ALIGNMENT as u64);
        assert!(aligned, "offset {offset} is not that of an aligned word");
        offset
    }

    /// Returns a copy of all octets.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        self.read(0, &mut out);
        out
    }

    /// The address of the first octet in work requests.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn engine(&self) -> &engine::Mr {
        &self.mr
    }

    /// The first octet and the one behind the last.
    pub(crate) fn bounds(&self, range: impl RangeBounds<usize>) -> (usize, usize) {
        let behind = |octet: &usize| octet.checked_add(1).expect("no region reaches the last address");
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => behind(before),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => behind(last),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        let len = self.len();
        assert!(start <= end && end <= len, "{start}..{end} is not inside the region's {len} octets");
        (start, end)
    }
}

impl MemoryRegion<'static> {
    /// Registers the memory of a buffer pool, without remote access. The pool drops the region before it
    /// frees the memory, and accesses no part of it that an outstanding work request uses.
    pub(crate) fn of_pool(domain: &ProtectionDomain, memory: &mut [u8]) -> Result<Self, Error> {
        let len = memory.len();
        Self::new(domain, Memory::of_caller(NonNull::from(memory).cast(), len), Access::LOCAL_WRITE)
    }

    /// Ends the registration and returns the memory. It is copied if registration copied it, or if
    /// [`ProtectionDomain::allocate`] or [`ProtectionDomain::register_raw`] registered it.
    pub fn into_memory(mut self) -> Vec<u8> {
        self.mr.end();
        std::mem::replace(&mut self.memory, Memory::of_caller(NonNull::dangling(), 0)).into_vec()
    }
}

impl Drop for MemoryRegion<'_> {
    fn drop(&mut self) {
        // After this the device does not access the memory, which is dropped next.
        self.mr.end();
    }
}

impl fmt::Debug for MemoryRegion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addr = self.mr.addr();
        let mut region = f.debug_struct("MemoryRegion");
        region.field("addr", &format_args!("{addr:#x}")).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Registers memory, which the region owns from then on. Remote access needs [`Access::REMOTE_READ`] or
    /// [`Access::REMOTE_WRITE`] and `LOCAL_WRITE`.
    ///
    /// The region uses the vector's own memory if that begins at a multiple of 8; otherwise it copies the
    /// octets.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(
        &self,
        memory: impl Into<Vec<u8>>,
        access: Access,
    ) -> Result<MemoryRegion<'static>, Error> {
        MemoryRegion::new(self, Memory::from_vec(memory.into()), access)
    }

    /// Allocates `len` zeroed octets and registers them as [`Self::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize, access: Access) -> Result<MemoryRegion<'static>, Error> {
        MemoryRegion::new(self, Memory::zeroed(len), access)
    }

    /// Registers `len` octets of device memory from `offset` on. The region and its peers address them from 0
    /// on.
    ///
    /// # Errors
    ///
    /// [`Usage::Invalid`](crate::error::Usage::Invalid) if the octets are not inside the device memory.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_device_memory(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion<'static>, Error> {
        let device = Arc::clone(&memory.memory);
        let access = access.engine() | engine::Access::ZERO_BASED;
        let mr = self.shared.pd.reg_dm_mr(&device, offset as u64, len, access)?;
        let start = start_of(std::ptr::with_exposed_provenance_mut(mr.addr() as usize));
        let memory = Memory { start, len, owner: Owner::Device(device) };
        Ok(MemoryRegion { mr, base: 0, memory, _domain: self.clone(), _borrowed: PhantomData })
    }

    /// Registers borrowed memory while `work` runs. After the return the device does not access it. The
    /// memory is not moved, so peers' atomics need a start that is a multiple of 8.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_for<R>(
        &self,
        memory: &mut [u8],
        access: Access,
        work: impl FnOnce(&MemoryRegion<'_>) -> R,
    ) -> Result<R, Error> {
        let region = MemoryRegion::borrowed(self, memory, access)?;
        Ok(work(&region))
    }

    /// Registers memory by address, for example a mapped file or huge pages.
    ///
    /// # Errors
    ///
    /// [`Usage::Invalid`](crate::error::Usage::Invalid) if the memory is not mapped, or does not permit
    /// `access`.
    ///
    /// # Safety
    ///
    /// While the region exists, no reference to the `len` octets from `start` on is used, and only the region
    /// and the device access them. They must be writable if the region is written to. If the memory is
    /// unmapped meanwhile, work requests fail; if other memory is mapped there, they may change it.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw<'a>(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion<'a>, Error> {
        MemoryRegion::new(self, Memory::of_caller(start, len), access)
    }
}
