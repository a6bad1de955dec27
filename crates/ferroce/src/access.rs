//! Access rights to memory.

use ferroce_engine as engine;

bitflags::bitflags! {
    /// Rights to registered memory, through a window, or of the peer of a queue pair. `|` joins rights.
    /// Without rights only our own sends and writes may read the memory.
    ///
    /// Flags of `ibv_access_flags` that change addressing or paging are not supported.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        /// Receives, and our READs and atomics, may write to the memory.
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        const LOCAL_WRITE = engine::Access::LOCAL_WRITE.bits();
        /// Peers may write to it. Needs `LOCAL_WRITE`.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const REMOTE_WRITE = engine::Access::REMOTE_WRITE.bits();
        /// Peers may read it.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const REMOTE_READ = engine::Access::REMOTE_READ.bits();
        /// Peers may change it by atomics. Needs `LOCAL_WRITE`.
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        const REMOTE_ATOMIC = engine::Access::REMOTE_ATOMIC.bits();
        /// Windows may be bound to it.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const MW_BIND = engine::Access::MW_BIND.bits();
        /// Peers may flush it to global visibility.
        #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
        const FLUSH_GLOBAL = engine::Access::FLUSH_GLOBAL.bits();
        /// Peers may flush it to persistence; all of the memory must be persistent.
        #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
        const FLUSH_PERSISTENT = engine::Access::FLUSH_PERSISTENT.bits();
    }
}

impl Access {
    pub(crate) fn engine(self) -> engine::Access {
        engine::Access::from_bits_retain(self.intersection(Self::all()).bits())
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
