//! Registered memory: the one place of this crate that needs `unsafe`.
//!
//! From registration on, the device reads and writes the memory at any time: when a message
//! arrives, and with remote access whenever the peer likes. So no reference to it can exist while
//! it is registered. A [`MemoryRegion`] therefore owns or exclusively borrows its memory and hands
//! out copies, made octet by octet as far as Rust is concerned.

#![expect(unsafe_code, reason = "memory that the device writes cannot be behind a reference")]

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{Access, Sge};
use ferroce_wire::{Lkey, Rkey};

use crate::{Error, ProtectionDomain, RemoteMemory};

/// Registered memory. Dropping it ends the registration: later use of its keys, ours or the
/// peer's, is refused.
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion<'a> {
    mr: Arc<engine::Mr>,
    memory: NonNull<u8>,
    len: usize,
    owned: bool,
    /// Registered memory needs its domain.
    _domain: ProtectionDomain,
    _borrowed: PhantomData<&'a mut [u8]>,
}

// SAFETY: the region owns its memory or borrows it exclusively; all access to it goes through raw
// pointers as below, from whichever thread.
unsafe impl Send for MemoryRegion<'_> {}
// SAFETY: as above. Concurrent `read` and `write` may mix octets, as the device may, but no
// reference to the memory exists that this could invalidate.
unsafe impl Sync for MemoryRegion<'_> {}

/// A part of registered memory, as work requests name it. It holds no memory: if its region is
/// dropped before the work request is done, that fails with [`crate::Status::LocProtErr`].
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

    /// Octets.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<'a> MemoryRegion<'a> {
    pub(crate) fn owned(
        domain: &ProtectionDomain,
        memory: Box<[u8]>,
        access: Access,
    ) -> Result<MemoryRegion<'static>, Error> {
        let len = memory.len();
        let start = Box::into_raw(memory).cast::<u8>();
        // SAFETY: a box is never null.
        let memory = unsafe { NonNull::new_unchecked(start) };
        match Self::registered(domain, memory, len, access) {
            Ok(mr) => Ok(MemoryRegion {
                mr,
                memory,
                len,
                owned: true,
                _domain: domain.clone(),
                _borrowed: PhantomData,
            }),
            Err(error) => {
                // SAFETY: from `into_raw` above with this length, and registered nowhere.
                drop(unsafe { reclaim(memory, len) });
                Err(error)
            }
        }
    }

    /// Private to the crate: a caller that forgets the region instead of dropping it would leave
    /// the borrowed memory registered after the borrow.
    pub(crate) fn borrowed(
        domain: &ProtectionDomain,
        memory: &'a mut [u8],
        access: Access,
    ) -> Result<Self, Error> {
        let len = memory.len();
        let memory = NonNull::from(memory).cast::<u8>();
        let mr = Self::registered(domain, memory, len, access)?;
        Ok(Self { mr, memory, len, owned: false, _domain: domain.clone(), _borrowed: PhantomData })
    }

    fn registered(
        domain: &ProtectionDomain,
        memory: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Arc<engine::Mr>, Error> {
        let addr = memory.as_ptr().expose_provenance() as u64;
        Ok(domain.shared.pd.reg_mr(addr, len, addr, access)?)
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, for work requests.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region or has 4 GiB or more.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Slice {
        let (start, end) = self.bounds(range);
        let length = u32::try_from(end - start).expect("a slice has less than 4 GiB");
        Slice { addr: self.mr.addr() + start as u64, length, lkey: self.mr.lkey() }
    }

    /// The region from octet `offset` on, as the peer needs it for READ and WRITE.
    ///
    /// # Panics
    ///
    /// If `offset` is beyond the region.
    pub fn remote(&self, offset: usize) -> RemoteMemory {
        assert!(offset <= self.len, "offset {offset} is beyond the region's {} octets", self.len);
        RemoteMemory { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }

    /// The key that the peer needs.
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// Copies octets out, from `offset` on. What the device writes meanwhile may be seen in part.
    ///
    /// # Panics
    ///
    /// If that is not inside the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let (start, _) = self.bounds(offset..offset + out.len());
        for (index, octet) in out.iter_mut().enumerate() {
            // JUSTIFICATION: a slice copy would assume that nobody writes meanwhile.
            // SAFETY: `bounds` checked that start + index is inside the memory, which lives as long as self.
            *octet = unsafe { self.memory.as_ptr().add(start + index).read_volatile() };
        }
    }

    /// Copies octets in, from `offset` on.
    ///
    /// # Panics
    ///
    /// If that is not inside the region.
    pub fn write(&self, offset: usize, octets: &[u8]) {
        let (start, _) = self.bounds(offset..offset + octets.len());
        for (index, octet) in octets.iter().enumerate() {
            // JUSTIFICATION: as in `read`.
            // SAFETY: as in `read`; the memory was given as `Box` or `&mut`, so it may be written.
            unsafe { self.memory.as_ptr().add(start + index).write_volatile(*octet) };
        }
    }

    /// All octets, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        self.read(0, &mut out);
        out
    }

    pub(crate) fn engine(&self) -> &engine::Mr {
        &self.mr
    }

    pub(crate) fn bounds(&self, range: impl RangeBounds<usize>) -> (usize, usize) {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => *before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => *last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        assert!(
            start <= end && end <= self.len,
            "{start}..{end} is not inside the region's {} octets",
            self.len
        );
        (start, end)
    }
}

impl MemoryRegion<'static> {
    /// Ends the registration and gives the memory back.
    pub fn into_memory(self) -> Box<[u8]> {
        let mut this = std::mem::ManuallyDrop::new(self);
        this.end();
        // SAFETY: a 'static region is made by `owned` only, from a box of this length; its
        // destructor does not run. After `end` nobody touches the memory.
        let memory = unsafe { reclaim(this.memory, this.len) };
        // SAFETY: `this` is not used after this, so each field is dropped once.
        unsafe {
            std::ptr::drop_in_place(&raw mut this.mr);
            std::ptr::drop_in_place(&raw mut this._domain);
        }
        memory
    }
}

impl MemoryRegion<'_> {
    fn end(&mut self) {
        self.mr.end();
    }
}

impl Drop for MemoryRegion<'_> {
    fn drop(&mut self) {
        self.end();
        if self.owned {
            // SAFETY: made by `owned` from a box of this length; after `end` nobody touches it.
            drop(unsafe { reclaim(self.memory, self.len) });
        }
    }
}

/// The box that `memory` was.
///
/// # Safety
///
/// `memory` is from `Box::into_raw` of a `Box<[u8]>` of `len` octets, and is used by nobody any more.
unsafe fn reclaim(memory: NonNull<u8>, len: usize) -> Box<[u8]> {
    let slice = std::ptr::slice_from_raw_parts_mut(memory.as_ptr(), len);
    // SAFETY: promised by the caller.
    unsafe { Box::from_raw(slice) }
}
