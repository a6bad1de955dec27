//! Registered memory of our own: buffers and tables of rsockets.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::protocol::Table;
use ferroce_proto::{Remote, Sge};

use ferroce_engine::{Access, Mr, Pd, RegMrError};

const PAGE: usize = 4096;

/// Zeroed memory of whole pages, registered. Peers may write to it at any time, so nobody has a reference to its octets.
pub(super) struct Region {
    start: NonNull<u8>,
    layout: Layout,
    mr: Arc<Mr>,
}

// SAFETY: it owns its memory, which only copies by raw pointers touch.
unsafe impl Send for Region {}
// SAFETY: as above; callers of `write` do not race with each other for the same octets, as the socket's lock is held.
unsafe impl Sync for Region {}

impl Region {
    /// At least one octet.
    pub(super) fn new(pd: &Arc<Pd>, len: usize, access: Access) -> Result<Self, RegMrError> {
        let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| RegMrError::Wraps)?;
        // SAFETY: the layout has at least one octet.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(RegMrError::NotMapped)?;
        let addr = start.as_ptr() as u64;
        match pd.reg_mr(addr, layout.size(), addr, access) {
            Ok(mr) => Ok(Self { start, layout, mr }),
            Err(error) => {
                // SAFETY: allocated above with this layout, and nobody else knows it.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// As peers address it.
    pub(super) fn remote(&self) -> Remote {
        Remote { addr: self.start.as_ptr() as u64, rkey: self.mr.rkey() }
    }

    /// A part of it, for a work request.
    pub(super) fn sge(&self, at: u32, length: u32) -> Sge {
        Sge { addr: self.start.as_ptr() as u64 + u64::from(at), length, lkey: self.mr.lkey() }
    }

    /// Copies out of it, from `at` on.
    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        let end = at.checked_add(out.len());
        assert!(end.is_some_and(|end| end <= self.layout.size()), "the caller stays within the region");
        // SAFETY: within the allocation, as was just checked. A peer that breaks the protocol may write meanwhile: then the
        // octets are any, and nobody but its own reader sees them.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
    }

    /// Copies into it, from `at` on.
    pub(super) fn write(&self, at: usize, from: &[u8]) {
        let end = at.checked_add(from.len());
        assert!(end.is_some_and(|end| end <= self.layout.size()), "the caller stays within the region");
        // SAFETY: as in `read`; work requests that still read there do not exist, by the protocol's count of free octets.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), from.len()) };
    }
}

impl Table for Region {
    fn read(&self, at: usize, out: &mut [u8]) {
        Region::read(self, at, out);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // From here on nobody touches the memory.
        self.mr.end();
        // SAFETY: allocated in `new` with this layout, once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
