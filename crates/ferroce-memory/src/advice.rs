//! Advice of programs about on-demand memory (`ibv_advise_mr`).
#![allow(unsafe_code)]

use ferroce_proto::Sge;

use crate::access::{Access, PdId};
use crate::guard::{self, Fault};
use crate::slots::{Kind, Region};
use crate::table::MemoryTable;

/// Advice for a range of on-demand memory; the discriminants are those of `enum ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_advise_mr")]
#[repr(u32)]
pub enum Advice {
    /// Bring its pages into memory, to be read.
    Prefetch = 0,
    /// Bring its pages into memory, to be written.
    PrefetchWrite = 1,
    /// Nothing that brings pages into memory: what is there is there.
    PrefetchNoFault = 2,
}

/// Why advice was not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdviseError {
    /// The key names nothing.
    #[error("no memory has this key")]
    BadKey,
    /// The key is not that of a memory region.
    #[error("the key is not that of a memory region")]
    NoRegion,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    WrongPd,
    /// The region was not registered on demand.
    #[error("the memory region is not on demand")]
    NotOnDemand,
    /// The region was not registered to be written.
    #[error("the memory region is not writable")]
    NotWritable,
    /// Outside of the region.
    #[error("outside of the memory region")]
    OutOfRange,
    /// A page of the range is not mapped, or not with the permission asked for.
    #[error("the memory is not mapped, or does not permit the access")]
    NotMapped,
}

impl MemoryTable {
    /// Follows advice on a range of a region in `pd`; when this returns, its pages are there, unless they
    /// were taken again in the meantime.
    ///
    /// # Errors
    ///
    /// See [`AdviseError`]. Of a range that is not all mapped, a part may have been fetched.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, pd: PdId, advice: Advice, sge: &Sge) -> Result<(), AdviseError> {
        let key = sge.lkey.value();
        let in_use = self.slots.get(self.slots.secret().slot(key), key).map_err(|_| AdviseError::BadKey)?;
        let region: &Region = in_use.region().map_err(|_| AdviseError::BadKey)?;
        if region.pd != pd {
            return Err(AdviseError::WrongPd);
        }
        if region.kind != Kind::Memory {
            return Err(AdviseError::NoRegion);
        }
        // Memory of a device is never registered on demand.
        if !region.access.contains(Access::ON_DEMAND) {
            return Err(AdviseError::NotOnDemand);
        }
        let write = advice == Advice::PrefetchWrite;
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(AdviseError::NotWritable);
        }
        let len = u64::from(sge.length);
        let place = region.place(sge.addr, len).map_err(|_| AdviseError::OutOfRange)?;
        if advice == Advice::PrefetchNoFault || len == 0 {
            return Ok(());
        }
        fetch(place, len, write).map_err(|Fault| AdviseError::NotMapped)
    }
}

/// Brings the pages of a range into memory.
fn fetch(addr: u64, len: u64, write: bool) -> Result<(), Fault> {
    // SAFETY: sysconf reads a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64;
    let first = addr / page * page;
    // The range does not wrap, but its last page may end at 2^64.
    let last = (addr + (len - 1)) / page * page;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let bytes = (last - first).saturating_add(page) as usize;
    // SAFETY: populating changes no byte, whatever the range.
    if unsafe { libc::madvise(first as *mut libc::c_void, bytes, advice) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // Before Linux 5.14, or a mapping of a device.
        Some(libc::EINVAL) => touch(first, last, page, write),
        _ => Err(Fault),
    }
}

/// Touches each page.
fn touch(first: u64, last: u64, page: u64, write: bool) -> Result<(), Fault> {
    for at in (first..=last).step_by(page as usize) {
        if write {
            // SAFETY: adding nothing changes nothing; the region's owner registered it for writing, and pages
            // begin at multiples of 8.
            unsafe { guard::fetch_add(at, 0) }?;
        } else {
            guard::read(at, &mut [0])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Pages;

    #[test]
    #[cfg_attr(miri, ignore = "Miri protects no pages")]
    fn both_ways_to_fetch_see_the_same() {
        guard::install().unwrap();
        let pages = Pages::new(4);
        let size = crate::tests::page() as u64;
        // Two to be written, one to be read, one for nothing.
        pages.protect(2 * size as usize, libc::PROT_READ);
        pages.protect(3 * size as usize, libc::PROT_NONE);
        for write in [false, true] {
            for (from, len) in [(0, 1), (5, size), (size, size), (size, 1), (size, size + 1), (3 * size, 1)] {
                let (at, last) = (pages.at(from as usize), pages.at((from + len - 1) as usize));
                let touched = touch(at / size * size, last / size * size, size, write);
                assert_eq!(fetch(at, len, write), touched, "{from} {len} {write}");
            }
        }
        assert_eq!(fetch(u64::MAX - 7, 8, false), Err(Fault));
        assert_eq!(fetch(0, 8, false), Err(Fault));
    }
}
