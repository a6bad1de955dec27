//! Parts of the engine that are still being built, as types without values: the device cannot be
//! opened until they are there.

pub(crate) mod memory {
    use ferroce_wire::Qpn;

    bitflags::bitflags! {
        /// What may be done to a memory region: bits of `ibv_access_flags`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Access: u32 {
            /// Written by receives, READs and atomics of our own.
            const LOCAL_WRITE = 1;
            /// Written by peers.
            const REMOTE_WRITE = 1 << 1;
            /// Read by peers.
            const REMOTE_READ = 1 << 2;
            /// Changed by peers' atomics.
            const REMOTE_ATOMIC = 1 << 3;
            const _ = !0;
        }
    }

    /// Why memory was not registered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    pub enum RegMrError {
        /// The limit is reached.
        #[error("the limit of memory regions is reached")]
        Limit,
    }

    #[derive(Clone, Copy)]
    pub(crate) struct PdId(#[allow(dead_code)] u32);

    impl PdId {
        pub(crate) const fn new(id: u32) -> Self {
            Self(id)
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Key(u32);

    impl Key {
        pub(crate) const fn value(self) -> u32 {
            self.0
        }
    }

    pub(crate) struct MemoryTable;

    impl MemoryTable {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn register(
            &self,
            _pd: PdId,
            _addr: u64,
            _len: usize,
            _iova: u64,
            _access: Access,
        ) -> Result<Key, RegMrError> {
            Err(RegMrError::Limit)
        }

        pub(crate) fn deregister(&self, _key: Key) {}

        pub(crate) fn view(&self, _pd: PdId, _qpn: Qpn) -> View {
            unreachable!("no queue pair can be made yet")
        }
    }

    pub(crate) enum View {}

    use ferroce_proto::{Memory, MemoryError, RemoteAccess, Sge};
    use ferroce_wire::{Lkey, Rkey};

    impl Memory for View {
        fn check_local(&self, _: &Sge, _: bool) -> Result<(), MemoryError> {
            match *self {}
        }
        fn read_local(&self, _: Lkey, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
            match *self {}
        }
        fn write_local(&mut self, _: Lkey, _: u64, _: &[u8]) -> Result<(), MemoryError> {
            match *self {}
        }
        fn read_inline(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
            match *self {}
        }
        fn check_remote(&self, _: Rkey, _: u64, _: u64, _: RemoteAccess) -> Result<(), MemoryError> {
            match *self {}
        }
        fn read_remote(&self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), MemoryError> {
            match *self {}
        }
        fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), MemoryError> {
            match *self {}
        }
        fn compare_swap(&mut self, _: Rkey, _: u64, _: u64, _: u64) -> Result<u64, MemoryError> {
            match *self {}
        }
        fn fetch_add(&mut self, _: Rkey, _: u64, _: u64) -> Result<u64, MemoryError> {
            match *self {}
        }
        fn invalidate(&mut self, _: Rkey) -> Result<(), MemoryError> {
            match *self {}
        }
    }
}
