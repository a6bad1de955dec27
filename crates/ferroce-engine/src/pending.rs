//! Parts of the engine that are still being built, as types without values: the device cannot be
//! opened until they are there.

pub(crate) mod broker {
    pub(crate) mod client {
        use std::io;
        use std::net::IpAddr;
        use std::os::fd::OwnedFd;

        use crate::DeviceInfo;

        #[derive(Clone, Copy)]
        pub(crate) enum BrokerMode {
            Auto,
        }

        impl BrokerMode {
            pub(crate) fn from_env() -> Self {
                Self::Auto
            }
        }

        pub(crate) enum BrokerClient {}

        pub(crate) struct Lease {
            pub(crate) slots: Vec<u8>,
            pub(crate) addresses: Vec<LeasedAddress>,
        }

        pub(crate) struct LeasedAddress {
            pub(crate) ip: IpAddr,
            pub(crate) scope_id: u32,
            pub(crate) fd: OwnedFd,
        }

        impl BrokerClient {
            pub(crate) fn connect(mode: BrokerMode) -> io::Result<Self> {
                match mode {
                    BrokerMode::Auto => Err(io::ErrorKind::Unsupported.into()),
                }
            }

            pub(crate) fn devices(&self) -> io::Result<Vec<DeviceInfo>> {
                match *self {}
            }

            pub(crate) fn lease(&self, _slots: u8) -> io::Result<Lease> {
                match *self {}
            }
        }
    }
}

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

pub(crate) mod device {
    use ferroce_wire::Gid;

    /// One RDMA device in a client's view: a link on a network interface, with its single port.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceInfo {
        /// Stable for the life of the device; never reused by one broker.
        pub id: u32,
        /// What `ibv_get_device_name` prints: 1 to 63 characters.
        pub name: String,
        /// The character device it would have: `uverbs0`.
        pub dev_name: String,
        /// Octets of `ibv_get_device_guid`, as on the wire; never zero.
        pub node_guid: [u8; 8],
        /// The interface's name: 1 to 15 characters.
        pub netdev: String,
        /// The interface's index.
        pub ifindex: u32,
        /// The interface's MTU in bytes; the port's active MTU is the largest path MTU that fits it.
        pub mtu: u32,
        /// Whether the port is ACTIVE: the interface is up and has a carrier.
        pub port_active: bool,
        /// The port's physical state.
        pub phys_state: PhysState,
        /// Why this device exists.
        pub origin: Origin,
        /// The valid entries of the GID table, by ascending index.
        pub gids: Vec<GidEntry>,
    }

    /// One valid entry of a GID table.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GidEntry {
        /// Index in the port's table: 0 to 1023.
        pub index: u16,
        /// The GID; its address is one of the interface or of an upper of it.
        pub gid: Gid,
        /// RoCE version.
        pub gid_type: GidType,
        /// The interface that holds the address: the device's own or a VLAN, macvlan or bond above it.
        pub ifindex: u32,
    }

    /// RoCE version of a GID; the numbers are `enum ibv_gid_type`'s.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum GidType {
        /// Ethernet frames of type 0x8915.
        RoceV1 = 1,
        /// UDP port 4791.
        RoceV2 = 2,
    }

    /// Physical state of a port; the numbers are the verbs' `phys_state`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum PhysState {
        /// Up, no carrier.
        Polling = 2,
        /// The interface is down.
        Disabled = 3,
        /// Up, with carrier.
        LinkUp = 5,
    }

    /// Why a device exists.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Origin {
        /// The device on `lo` that is always there.
        Default = 0,
        /// Made by `ferroce link add`.
        Link = 1,
        /// Made for one client only, which asked for a netdev.
        View = 2,
    }
}
