//! Registered memory of rsockets: buffers and tables.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::protocol::Table;
use ferroce_proto::{Remote, Sge};

use ferroce_engine::{Access, Mr, Pd, RegMrError};

const PAGE: usize = 4096;

/// Zeroed and registered pages. Peers may write to them at any time, so there is no reference to their
/// octets.
pub(super) struct Region {
    start: NonNull<u8>,
    layout: Layout,
    mr: Arc<Mr>,
}

// SAFETY: the region owns its memory, which is accessed only by raw pointer copies.
unsafe impl Send for Region {}
// SAFETY: as above; callers of `write` hold the socket's lock, so they do not race with each other.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates at least one octet.
    pub(super) fn new(pd: &Arc<Pd>, len: usize, access: Access) -> Result<Self, RegMrError> {
        let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| RegMrError::Wraps)?;
        // SAFETY: the layout has at least one octet.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(RegMrError::NotMapped)?;
        let addr = start.as_ptr() as u64;
        match pd.reg_mr(addr, layout.size(), addr, access) {
            Ok(mr) => Ok(Self { start, layout, mr }),
            Err(error) => {
                // SAFETY: allocated above with this layout, and the pointer was not passed on.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// The address and rkey for the peer.
    pub(super) fn remote(&self) -> Remote {
        Remote { addr: self.start.as_ptr() as u64, rkey: self.mr.rkey() }
    }

    pub(super) fn sge(&self, at: u32, length: u32) -> Sge {
        Sge { addr: self.start.as_ptr() as u64 + u64::from(at), length, lkey: self.mr.lkey() }
    }

    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        let end = at.checked_add(out.len());
        assert!(end.is_some_and(|end| end <= self.layout.size()), "the caller stays within the region");
        // SAFETY: the range was just checked to lie within the allocation. A peer that breaks the protocol
        // may write meanwhile: then the octets are arbitrary, and only their reader sees them.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
    }

    pub(super) fn write(&self, at: usize, from: &[u8]) {
        let end = at.checked_add(from.len());
        assert!(end.is_some_and(|end| end <= self.layout.size()), "the caller stays within the region");
        // SAFETY: as in `read`; no outstanding work request reads there, because the protocol counts the free
        // octets.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), from.len()) };
    }
}

impl Table for Region {
    fn read(&self, at: usize, out: &mut [u8]) {
        Region::read(self, at, out);
    }

    fn clear(&self, at: usize, len: usize) {
        Region::write(self, at, &[0; 64][..len.min(64)]);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // After this no work request or peer accesses the memory.
        self.mr.end();
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
