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

    impl View {
        pub(crate) fn read_inline(
            &self,
            _addr: u64,
            _out: &mut [u8],
        ) -> Result<(), ferroce_proto::MemoryError> {
            match *self {}
        }
    }
}

pub(crate) mod proto {
    use std::net::IpAddr;

    use ferroce_proto::*;
    use ferroce_wire::{Instant, Packet, TxBatch};

    use super::memory::View;

    pub(crate) enum QueuePair {}

    #[allow(unused_variables)]
    impl QueuePair {
        pub(crate) fn new(config: QpConfig) -> Result<Self, CreateQpError> {
            Err(CreateQpError::Service(config.service))
        }
        pub(crate) fn state(&self) -> QpState {
            match *self {}
        }
        pub(crate) fn query(&self) -> QpAttr {
            match *self {}
        }
        pub(crate) fn counters(&self) -> &Counters {
            match *self {}
        }
        pub(crate) fn modify(
            &mut self,
            now: Instant,
            attr: &QpAttr,
            mask: QpAttrMask,
        ) -> Result<(), ModifyQpError> {
            match *self {}
        }
        pub(crate) fn post_send(
            &mut self,
            now: Instant,
            wr: &SendWr<'_>,
            m: &View,
        ) -> Result<(), PostSendError> {
            match *self {}
        }
        pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
            match *self {}
        }
        pub(crate) fn sq_mark(&self) -> u64 {
            match *self {}
        }
        pub(crate) fn sq_rollback(&mut self, mark: u64) {
            match *self {}
        }
        pub(crate) fn handle_datagram(
            &mut self,
            now: Instant,
            source: IpAddr,
            packet: &Packet<'_>,
            memory: &mut View,
        ) -> Result<(), DropReason> {
            match *self {}
        }
        pub(crate) fn handle_timeout(&mut self, now: Instant) {
            match *self {}
        }
        pub(crate) fn poll_transmit(
            &mut self,
            now: Instant,
            memory: &mut View,
            batch: &mut TxBatch<'_>,
        ) -> bool {
            match *self {}
        }
        pub(crate) fn poll_event(&mut self) -> Option<QpEvent> {
            match *self {}
        }
        pub(crate) fn poll_timeout(&self) -> Option<Instant> {
            match *self {}
        }
    }
}

pub(crate) mod udp {
    use std::io;
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use ferroce_wire::TxBatch;

    pub(crate) enum TxSocket {}

    impl AsFd for TxSocket {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match *self {}
        }
    }

    #[allow(unused_variables)]
    impl TxSocket {
        pub(crate) fn bind(ip: IpAddr, scope_id: u32, port: u16) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }
        pub(crate) fn port(&self) -> u16 {
            match *self {}
        }
        pub(crate) fn gso(&self) -> bool {
            match *self {}
        }
        pub(crate) fn send(&self, batch: &mut TxBatch<'_>) -> io::Result<()> {
            match *self {}
        }
    }

    pub(crate) fn source_ports(
        _secret: u64,
        _destination: IpAddr,
        _slot: u8,
        _local_qpn: u32,
        _remote_qpn: u32,
    ) -> impl Iterator<Item = u16> + Clone {
        0..0
    }

    pub(crate) enum RxSocket {}

    #[allow(unused_variables)]
    impl RxSocket {
        pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }
        pub(crate) fn local_addr(&self) -> SocketAddr {
            match *self {}
        }
        pub(crate) fn granted_rcvbuf(&self) -> io::Result<usize> {
            match *self {}
        }
        pub(crate) fn recv(&self, buffer: &mut RxBuffer) -> io::Result<usize> {
            match *self {}
        }
    }

    impl AsFd for RxSocket {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match *self {}
        }
    }

    pub(crate) struct RxBuffer;

    #[derive(Clone, Copy)]
    pub(crate) struct Datagram<'a> {
        pub(crate) source: IpAddr,
        pub(crate) source_port: u16,
        pub(crate) bytes: &'a [u8],
    }

    impl RxBuffer {
        pub(crate) fn new() -> Self {
            Self
        }
        pub(crate) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
            std::iter::empty()
        }
    }
}
