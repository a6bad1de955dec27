//! Access rights to memory, and the errors of registration.

use std::io;

use crate::key::MAX_REGIONS;
use crate::pages::DmAccessError;

bitflags::bitflags! {
    /// Access rights to a region: the bits of `ibv_access_flags`.
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
    /// The rights that allow writing to the memory.
    pub(crate) const WRITING: Self = Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);

    /// Whether the flags exist and go together.
    pub(crate) fn check(self) -> Result<(), RegMrError> {
        let unknown = self.difference(Self::KNOWN);
        if !unknown.is_empty() {
            return Err(RegMrError::UnknownAccess(unknown.bits()));
        }
        if self.intersects(Self::WRITING) && !self.contains(Self::LOCAL_WRITE) {
            return Err(RegMrError::NeedsLocalWrite);
        }
        Ok(())
    }
}

/// Why memory was not registered, or a registration not changed: it is as it was then.
#[derive(Debug, thiserror::Error)]
pub enum RegMrError {
    /// [`MAX_REGIONS`] exist.
    #[error("the limit of {MAX_REGIONS} memory regions is reached")]
    Limit,
    /// Flags that do not exist.
    #[error("unknown access flags {0:#x}")]
    UnknownAccess(u32),
    /// Peers may write or do atomics, but we may not write.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    NeedsLocalWrite,
    /// Peers may flush it to persistence, but it is not all persistent memory (a DAX file mapped with
    /// `MAP_SYNC`).
    #[error("FLUSH_PERSISTENT needs persistent memory")]
    NotPersistent,
    /// A region of device memory is addressed from 0 on, and the flags must say so.
    #[error("a region of device memory needs ZERO_BASED")]
    NotZeroBased,
    /// There is no such device memory.
    #[error(transparent)]
    DeviceMemory(DmAccessError),
    /// `addr + len` or `iova + len` exceeds 2^64.
    #[error("the range wraps around the address space")]
    Wraps,
    /// Memory of a GPU is always there and never persistent.
    #[error("memory of a GPU permits neither ON_DEMAND nor FLUSH_PERSISTENT")]
    DeviceAccess,
    /// Memory of a GPU that cannot be registered.
    #[error("memory of a GPU cannot be registered")]
    Device(#[from] ferroce_gpu::Refusal),
    /// A byte of the range is not mapped, or not with the permission that the access flags need.
    #[error("the memory is not mapped, or does not permit the access asked for")]
    NotMapped,
    /// Memory on demand cannot become other memory, nor the reverse.
    #[error("a registration cannot be changed from or to ON_DEMAND")]
    OnDemandChanged,
    /// The registration was ended, or is of a kind that cannot be changed.
    #[error("no registration that can be changed")]
    NoRegion,
    /// A domain of another context.
    #[error("the protection domain is of another context")]
    ForeignPd,
    /// Windows are bound to it.
    #[error("{windows} memory windows are bound to it")]
    Bound {
        /// How many.
        windows: u32,
    },
    /// The file cannot be mapped so.
    #[error("the file cannot be mapped so")]
    File(#[source] io::Error),
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

    pub const fn value(self) -> u32 {
        self.0
    }
}
