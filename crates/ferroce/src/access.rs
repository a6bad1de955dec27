//! Access rights to memory.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use ferroce_engine as engine;

/// Rights to registered memory, through a window, or of the peer of a queue pair. `|` joins rights.
///
/// Flags of `ibv_access_flags` that change addressing or paging are not supported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[doc(alias = "ibv_access_flags")]
pub struct Access(engine::Access);

impl Access {
    /// Receives, and our READs and atomics, may write to the memory.
    #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
    pub const LOCAL_WRITE: Self = Self(engine::Access::LOCAL_WRITE);
    /// Peers may write to it. Needs `LOCAL_WRITE`.
    #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
    pub const REMOTE_WRITE: Self = Self(engine::Access::REMOTE_WRITE);
    /// Peers may read it.
    #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
    pub const REMOTE_READ: Self = Self(engine::Access::REMOTE_READ);
    /// Peers may change it by atomics. Needs `LOCAL_WRITE`.
    #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
    pub const REMOTE_ATOMIC: Self = Self(engine::Access::REMOTE_ATOMIC);
    /// Windows may be bound to it.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub const MW_BIND: Self = Self(engine::Access::MW_BIND);
    /// Peers may flush it to global visibility.
    #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
    pub const FLUSH_GLOBAL: Self = Self(engine::Access::FLUSH_GLOBAL);
    /// Peers may flush it to persistence; all of the memory must be persistent.
    #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
    pub const FLUSH_PERSISTENT: Self = Self(engine::Access::FLUSH_PERSISTENT);

    /// No rights: only our own sends and writes may read the memory.
    pub const fn empty() -> Self {
        Self(engine::Access::empty())
    }

    /// Returns whether there are no rights.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether all of `other` are included.
    pub const fn contains(self, other: Self) -> bool {
        self.0.contains(other.0)
    }

    /// Joins both, as `|` does; usable in constants.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0.union(other.0))
    }

    pub(crate) fn engine(self) -> engine::Access {
        self.0
    }

    pub(crate) fn bits(self) -> u32 {
        self.0.bits()
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_a_set() {
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        assert!(access.contains(Access::REMOTE_READ) && !access.contains(Access::REMOTE_WRITE));
        access |= Access::REMOTE_WRITE;
        assert_eq!(access.bits(), 0b111);
        assert_eq!(format!("{access:?}"), "Access(LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ)");
        assert!(Access::default().is_empty() && Access::empty() == Access::default());
    }
}
