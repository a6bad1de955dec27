//! The interfaces between processes: broker messages, descriptor passing, shared memory and rings of packets
//! in it.
//!
//! A program and the broker `ferroced` of its network namespace communicate over a `SOCK_SEQPACKET` socket
//! under the abstract name [`BROKER_NAME`]: each packet is one [`Message`] of fixed little-endian structures,
//! with descriptors by `SCM_RIGHTS`. Both sides first send [`Hello`]. [`Message::decode`] validates every
//! field, so a peer's invalid bytes end only the peer's own connection.
#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod client;
mod codec;
mod connection;
mod datapath;
mod device;
pub mod doorbell;
mod embed;
mod gid;
mod kind;
pub mod ledger;
mod message;
mod null;
pub mod packet;
pub mod pipe;
pub mod published;
pub mod ring;
mod settings;
mod shared;
pub mod strange;
pub mod sysfs;
pub mod trust;
mod words;

pub use client::{Answer, Client, ClientError};
pub use codec::MessageError;
pub use connection::{Connection, Listener, Peer, Received};
pub use datapath::{Datapath, DatapathState, XdpPorts};
pub use device::{DeviceInfo, GID_TABLE, Listing, Origin, PhysState};
pub use embed::EmbedError;
pub use ferroce_host::netdev::Vlan;
pub use gid::{GidEntry, GidType};
pub use kind::LinkKind;
pub use message::{
    ALL_USERS, AddressSockets, CmBind, CmDone, CmIdEntry, CmIdState, CmNotice, CmRequest, CmStatus,
    DEVICE_BYTES, DPDK_PREFIX, FaultCounts, FaultOrder, FaultReport, GID_BYTES, Hello, Known, LAST_MEMBER,
    LeaseEntry, Leased, MAC_BYTES, MAJOR, MAX_MESSAGE, MEMBER_SLOTS, MINOR, MadFaultReport, Message,
    PORT_BLOCK, QpnOrder, RULE_BYTES, Refusal, RefusalCode, ResourceCounts, SHOW_MADS, STATUS_PROGRAMS,
    Status, is_device_name, is_leasable,
};
pub use null::null_stream;
pub use settings::{BadPrefix, LinkSettings, Prefix, RoceMode, Setting, TcRule};
pub use shared::{Shared, SharedView};
pub use strange::{Closer, Strange};

/// The abstract Unix name that every broker binds. Abstract names belong to a network namespace as UDP ports
/// do, exist once, and vanish with their holder: the name is both the broker's address and its lock.
pub const BROKER_NAME: &str = "ferroce.4791";
