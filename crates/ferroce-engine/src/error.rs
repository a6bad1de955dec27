//! Why the engine refused. `ferroce-capi` turns each variant into an errno; nothing here is one.

use std::io;
use std::net::IpAddr;

use ferroce_ipc::GidEntry;
use ferroce_wire::{Gid, Qkey};
use thiserror::Error;

pub use ferroce_memory::DmAccessError;
pub use ferroce_paths::frames::FlowError;
pub use ferroce_proto::{
    AttachCounterError, CreateQpError as TransportCreateQpError, ModifyQpError as TransportModifyQpError,
    ModifySrqError as TransportModifySrqError, PostRecvError, PostSendError,
};

/// The devices cannot be listed.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// No broker was found or could be started.
    #[error("no ferroce devices: the broker cannot be reached")]
    Broker(#[source] io::Error),
}

/// A file of sysfs cannot be read.
#[derive(Debug, Error)]
pub enum SysfsError {
    /// No file has this name.
    #[error("there is no such file")]
    NoSuchFile,
    /// The path goes on behind a file.
    #[error("a part of the path is no directory")]
    NotADirectory,
    /// The file is a directory.
    #[error("it is a directory")]
    Directory,
    /// An entry of the GID table that is empty.
    #[error("the entry of the GID table is empty")]
    Empty,
    /// The broker does not answer, so the entry is not known.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A device cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The broker cannot be reached or leases no slot.
    #[error("cannot open the device: the broker gives no part of UDP port 4791")]
    Broker(#[source] io::Error),
    /// No device of this name.
    #[error("there is no device named {name}")]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
    },
    /// A socket, descriptor or thread could not be had.
    #[error("cannot open the device: the system refuses a resource")]
    Resources(#[source] io::Error),
}

impl From<DeviceError> for OpenError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Broker(source) => Self::Broker(source),
        }
    }
}

/// A port or table index does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// The device has port 1 only.
    #[error("port {port} does not exist: the device has port 1 only")]
    Port {
        /// The given port.
        port: u8,
    },
    /// Beyond the table.
    #[error("index {index} is beyond the table's {len} entries")]
    Index {
        /// The given index.
        index: u32,
        /// Entries of the table.
        len: u32,
    },
    /// The device is gone.
    #[error("the device is gone")]
    DeviceGone,
}

/// The object is still used by others and was not destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("still in use by {users} other objects")]
pub struct Busy {
    /// How many.
    pub users: usize,
}

/// A protection domain or a memory window cannot be made: the process has as many as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the limit of {max} {what} is reached")]
pub struct LimitReached {
    /// The kind of object, in the plural.
    pub what: &'static str,
    /// The limit.
    pub max: u32,
}

/// Device memory cannot be allocated.
#[derive(Debug, Error)]
pub enum AllocDmError {
    /// No octets.
    #[error("device memory has one octet at least")]
    Empty,
    /// The alignment is too large.
    #[error("an alignment of 2^{log_align} octets is more than {max}")]
    Alignment {
        /// The given exponent.
        log_align: u32,
        /// The largest alignment, in octets.
        max: u64,
    },
    /// The process would have more than the limit.
    #[error("{asked} octets exceed what is free of the {max} octets of device memory")]
    Limit {
        /// The given length, in octets.
        asked: u64,
        /// The limit of the process, in octets.
        max: u64,
    },
    /// The system has no memory.
    #[error("no memory for device memory")]
    Memory(#[source] io::Error),
}

/// A shared receive queue cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateSrqError {
    /// Room for nothing.
    #[error("a shared receive queue has room for one work request at least")]
    Empty,
    /// A size is too large.
    #[error("{what} {asked} is more than {max}")]
    Capability {
        /// Name of the attribute in `ibv_srq_attr`.
        what: &'static str,
        /// The given value.
        asked: u32,
        /// Largest.
        max: u32,
    },
    /// The XRC domain or completion queue is of another context, or ending.
    #[error("the XRC domain or completion queue belongs to another device")]
    Foreign,
    /// The limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// No memory for the work requests.
    #[error("no memory for {max_wr} work requests")]
    Memory {
        /// The given value.
        max_wr: u32,
    },
}

/// An XRC domain cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenXrcdError {
    /// The domain exists, and the caller asked for a new one.
    #[error("an XRC domain of this file exists")]
    Exists,
    /// The domain does not exist, and the caller did not ask to create it.
    #[error("there is no XRC domain of this file")]
    NotThere,
    /// The device speaks iWARP, which has no XRC.
    #[error("iWARP has no XRC")]
    Iwarp,
}

/// No such queue pair to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the XRC domain has no target {qpn:?} in this process")]
pub struct OpenQpError {
    /// The given number.
    pub qpn: ferroce_wire::Qpn,
}

/// Attributes of a shared receive queue were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ModifySrqError {
    /// The queue refused.
    #[error(transparent)]
    Transport(#[from] TransportModifySrqError),
    /// Larger than a queue can be.
    #[error("{asked} work requests, a shared receive queue has at most {max}")]
    TooLarge {
        /// The given value.
        asked: u32,
        /// Largest.
        max: u32,
    },
    /// Destroyed.
    #[error("the shared receive queue was destroyed")]
    Destroyed,
}

/// A completion channel cannot be made.
#[derive(Debug, Error)]
#[error("no descriptor for a completion channel")]
pub struct CreateChannelError(#[source] pub io::Error);

/// A completion queue cannot be made, or keeps its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CqError {
    /// Entries out of range.
    #[error("{asked} entries: a completion queue has 1 to {max}")]
    Entries {
        /// The given value.
        asked: u32,
        /// Largest.
        max: u32,
    },
    /// The queue holds more entries than the requested capacity.
    #[error("{asked} entries: the queue holds {present}")]
    Present {
        /// The given value.
        asked: u32,
        /// Entries to be polled.
        present: u32,
    },
    /// No such vector.
    #[error("completion vector {asked}: the device has 0 to {last}")]
    Vector {
        /// The given vector.
        asked: u32,
        /// Last one.
        last: u32,
    },
    /// The limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The channel or the parent domain belongs to another context.
    #[error("a completion queue, its channel and its domain must be of one context")]
    Foreign,
    /// No memory for the entries.
    #[error("no memory for {entries} completions")]
    Memory {
        /// The given value.
        entries: u32,
    },
}

/// A completion was lost because the completion queue was full; the ones before it were returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the completion queue overflowed and is unusable: create it with an entry for each work request")]
pub struct Overrun;

/// A queue pair cannot be made.
#[derive(Debug, Error)]
pub enum CreateQpError {
    /// A service this version does not have.
    #[error("the service type is not supported")]
    Service,
    /// A capability beyond the device's limit.
    #[error("{what} {asked} is beyond the limit of {max}")]
    Capability {
        /// Name of the attribute, as in `ibv_qp_cap`.
        what: &'static str,
        /// The given value.
        asked: u32,
        /// The limit.
        max: u32,
    },
    /// A completion queue of another device.
    #[error("the completion queue belongs to another device")]
    ForeignCq,
    /// A protection domain of another context.
    #[error("the protection domain belongs to another device")]
    ForeignPd,
    /// An XRC domain that was closed.
    #[error("the XRC domain was closed")]
    Xrcd,
    /// A shared receive queue of another context, or one that is being destroyed.
    #[error("the shared receive queue belongs to another device")]
    ForeignSrq,
    /// The limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// No raw packets of the interface.
    #[error("raw packets of {netdev} need CAP_NET_RAW, which this program has to have itself")]
    Frames {
        /// The interface.
        netdev: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Refused by the transport.
    #[error(transparent)]
    Transport(#[from] ferroce_proto::CreateQpError),
}

/// A queue pair keeps its state and attributes.
#[derive(Debug, Error)]
pub enum ModifyQpError {
    /// The transition, mask or a value is wrong.
    #[error(transparent)]
    Transport(#[from] ferroce_proto::ModifyQpError),
    /// The address vector leads nowhere.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The device has port 1 only.
    #[error("port {port} does not exist: the device has port 1 only")]
    Port {
        /// The given port.
        port: u8,
    },
    /// The table has one P_Key.
    #[error("pkey_index {index}: the table has one entry")]
    PkeyIndex {
        /// The given index.
        index: u16,
    },
    /// A controlled Q_Key, of which the highest bit is set, is for privileged programs.
    #[error("qkey {:#010x}: its highest bit needs CAP_NET_RAW, as in Linux", qkey.value())]
    Qkey {
        /// The given Q_Key.
        qkey: Qkey,
    },
    /// Larger than the port's MTU allows.
    #[error("path_mtu {asked} is larger than the port's {active}")]
    PathMtu {
        /// Octets asked for.
        asked: usize,
        /// Octets that fit.
        active: usize,
    },
    /// No socket to send from.
    #[error("no socket for the path")]
    Socket(#[source] io::Error),
    /// Destroyed, or its context closed.
    #[error("the queue pair was destroyed")]
    Destroyed,
}

/// A queue pair was not attached to a multicast group.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Datagrams alone go to groups.
    #[error("only a queue pair of service UD can be attached to a multicast group")]
    Service,
    /// The device speaks iWARP, which has no datagrams.
    #[error("iWARP has no multicast")]
    Iwarp,
    /// The GID is no group's.
    #[error("{mgid} is not the GID of a multicast group")]
    NotAGroup {
        /// The given GID.
        mgid: Gid,
    },
    /// The limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The limit of this group is reached.
    #[error("the limit of {max} queue pairs attached to one multicast group is reached")]
    Members {
        /// The limit.
        max: u32,
    },
    /// The system refuses the membership.
    #[error("cannot join {group} on interface {ifindex}")]
    Join {
        /// The group.
        group: IpAddr,
        /// The interface.
        ifindex: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Destroyed, or its context closed.
    #[error("the queue pair was destroyed")]
    Destroyed,
}

/// A queue pair was not detached from a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the queue pair is not attached to {mgid}")]
pub struct NotAttached {
    /// The given GID.
    pub mgid: Gid,
}

/// An address vector leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// The device speaks iWARP, whose connections are TCP's: there are no address vectors.
    #[error("iWARP has no address vectors: connect by librdmacm")]
    Iwarp,
    /// RoCE addresses by GIDs: `ah_attr.is_global` must be 1.
    #[error("ah_attr.is_global is 0: RoCE needs a GID")]
    NotGlobal,
    /// The device has port 1 only.
    #[error("ah_attr.port_num {port} does not exist: the device has port 1 only")]
    Port {
        /// The given port.
        port: u8,
    },
    /// No such entry in the GID table.
    #[error("ah_attr.grh.sgid_index {index} is empty{}", there.map(|entry| format!("; {entry}")).unwrap_or_default())]
    SgidIndex {
        /// The index that was asked for.
        index: u8,
        /// An entry that is not.
        there: Option<GidEntry>,
    },
    /// The entry is the default GID of its port, which is there without the address.
    #[error("ah_attr.grh.sgid_index {index} is {sgid}, and no interface has that address")]
    NoAddress {
        /// The index that was asked for.
        index: u8,
        /// The entry.
        sgid: Gid,
    },
    /// The packets would go by the broker, which does not take them.
    #[error("ferroced sends no frames: sgid_index {index} is of RoCE v1, or FERROCE_DATAPATH=packet is set")]
    Frames {
        /// The index that was asked for.
        index: u8,
    },
    /// The destination is of the other address family, or none, or for a connection a multicast group.
    #[error("ah_attr.grh.dgid {dgid} cannot be reached from {sgid}")]
    Dgid {
        /// Destination.
        dgid: Gid,
        /// Source.
        sgid: Gid,
    },
    /// No host answers for the next hop, so the kernel does not know its link address.
    #[error("no host answered for ah_attr.grh.dgid {dgid}, or the router to it, within {limit:?}")]
    Unanswered {
        /// Destination.
        dgid: Gid,
        /// The longest wait.
        limit: std::time::Duration,
    },
    /// The kernel has no route to the destination, or one that refuses packets.
    #[error("there is no route from {sgid} to ah_attr.grh.dgid {dgid}: see ip route get")]
    NoRoute {
        /// Destination.
        dgid: Gid,
        /// Source.
        sgid: Gid,
        /// The kernel's error.
        errno: i32,
    },
    /// The destination is link-local, and the source is not: a UDP socket of that address sends nothing
    /// there.
    #[error("ah_attr.grh.dgid {dgid} is link-local, and ah_attr.grh.sgid_index names {sgid}, which is not")]
    LinkLocal {
        /// Destination.
        dgid: Gid,
        /// Source.
        sgid: Gid,
    },
}

/// A datagram cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// Neither an IPv6 nor an IPv4 header.
    #[error("the receive buffer begins with no IP header")]
    NoHeader,
    /// Which of our addresses should answer is not said.
    #[error("the datagram was sent to a multicast group")]
    Multicast,
    /// Sent to an address that is not ours any more.
    #[error("{gid} is not in the GID table")]
    NoSuchGid {
        /// The destination.
        gid: Gid,
    },
}

/// An address handle cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateAhError {
    /// The address leads nowhere.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The limit is reached.
    #[error(transparent)]
    Limit(#[from] LimitReached),
}

/// An event could not be had.
#[derive(Debug, Error)]
pub enum EventError {
    /// None is there and the descriptor is non-blocking.
    #[error("no event is there")]
    WouldBlock,
    /// A signal handler ran.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The system refused to wait.
    #[error("cannot wait for events")]
    Io(#[source] io::Error),
}

impl EventError {
    /// EIO: the device or the process of the events is gone, so there will be none.
    pub fn ended() -> Self {
        Self::Io(io::Error::from_raw_os_error(libc::EIO))
    }
}
