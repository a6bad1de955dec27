//! How the state machines touch memory.

#[cfg(test)]
pub(crate) mod nothing;

use ferroce_wire::{Feth, Lkey, Rkey};

use crate::{Bind, Sge};

/// Registered memory, seen by one queue pair: the implementation knows its protection domain and, for
/// windows, its QPN.
///
/// Every call checks key, domain, permission and range itself. The `check_*` calls check ahead, so that a
/// message is refused before its first octet is written. Their result may be outdated by the time of the
/// copy: the application may deregister at any moment. `addr` is in the key's address space (virtual, iova or
/// zero based).
///
/// A length of zero is never passed: such accesses need no valid key (IBTA C9-88).
pub trait Memory {
    /// Whether an SGE may be read, or with `write` written.
    fn check_local(&self, sge: &Sge, write: bool) -> Result<(), MemoryError>;
    /// Copies out of local memory. Behind these octets `rest` ones of the same message follow in memory, and
    /// may be fetched with them.
    fn read_local(&self, lkey: Lkey, addr: u64, out: &mut [u8], rest: u64) -> Result<(), MemoryError>;
    /// Copies into local memory, lowest address first, at the latest until [`Self::finish_writes`] returns.
    fn write_local(&mut self, lkey: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryError>;
    /// Copies from the program's own, unregistered memory: inline data while it is posted.
    fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), MemoryError>;
    /// Whether the peer may access this range. For [`RemoteAccess::Atomic`] and [`RemoteAccess::AtomicWrite`]
    /// that includes alignment.
    fn check_remote(&self, rkey: Rkey, addr: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryError>;
    /// Copies out for a READ of the peer's, of which `rest` octets follow these, see [`Self::read_local`].
    fn read_remote(&self, rkey: Rkey, addr: u64, out: &mut [u8], rest: u64) -> Result<(), MemoryError>;
    /// Copies in for a WRITE of the peer's, lowest address first, at the latest until [`Self::finish_writes`]
    /// returns.
    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), MemoryError>;
    /// Waits until all that was written is in its place, where memory is written late. Called at the end of
    /// each message, before its completion, its acknowledgement and later messages, and before a key is
    /// invalidated.
    ///
    /// # Errors
    /// Something that was written since the last call is not in its place.
    fn finish_writes(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }
    /// Stores `swap` if the eight octets at `addr` equal `compare` (native order); returns what was there.
    /// Atomic with respect to the local CPU.
    fn compare_swap(&mut self, rkey: Rkey, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryError>;
    /// Adds to the eight octets at `addr` (native order); returns what was there. Atomic as `compare_swap`.
    fn fetch_add(&mut self, rkey: Rkey, addr: u64, add: u64) -> Result<u64, MemoryError>;
    /// From now on keys are looked for in this protection domain, or with `None` again in the queue pair's:
    /// the WQEs of a shared receive queue name memory of that queue's domain. Nothing to do where there is
    /// one domain only.
    fn enter(&mut self, _domain: Option<Domain>) {}
    /// Stores eight octets (as they lie in memory) by one aligned store, behind everything written before.
    fn atomic_write(&mut self, rkey: Rkey, addr: u64, octets: [u8; 8]) -> Result<(), MemoryError>;
    /// Flushes earlier writes to the `len` octets at `addr`, or to the whole region of the key, to the
    /// placement that `feth` names. Checks the key also for a length of zero.
    fn flush(&mut self, rkey: Rkey, addr: u64, len: u64, feth: Feth) -> Result<(), MemoryError>;
    /// Ends a key that may be invalidated by work requests (type 2 windows), by ours or by the peer's.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryError>;
    fn bind(&mut self, bind: &Bind) -> Result<(), MemoryError>;
}

/// A protection domain, by the number it has with the implementation of [`Memory`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Domain(pub u32);

/// A peer's kind of access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteAccess {
    Read,
    Write,
    /// Compare-and-swap and fetch-and-add.
    Atomic,
    /// ATOMIC WRITE: as WRITE, and aligned.
    AtomicWrite,
}

/// Why memory was not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// No such key, or one that ended.
    #[error("no memory has this key")]
    BadKey,
    /// The key belongs to another protection domain, or its window to another queue pair.
    #[error("the key belongs to another protection domain or queue pair")]
    WrongPd,
    /// Registered without this permission.
    #[error("the memory was registered without this permission")]
    NoPermission,
    /// Outside of the registered range.
    #[error("outside of the registered range")]
    OutOfRange,
    /// An atomic at an address that is no multiple of eight.
    #[error("an atomic needs an address that is a multiple of 8")]
    Misaligned,
    /// The memory behind the registration is gone: unmapped, protected or truncated.
    #[error("the memory behind the registration is gone")]
    Fault,
}
