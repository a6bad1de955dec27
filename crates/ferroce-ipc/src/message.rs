//! The messages and their bytes.
//!
//! Every packet starts with a header of 10 bytes: number of descriptors (u16), request id (u32), length of
//! all (u32). The kind (u8) and the fields of the message follow, as `bytes` lists them. A newer minor
//! version may append fields to a message and to the rows of a table; the older end reads what it knows and
//! skips the rest. It ignores messages of a kind that it does not know. The header, [`Hello`] and [`Refusal`]
//! stay as they are in every major version: they are what two strangers need to understand that they are
//! strangers.

mod bytes;
mod cm;
mod faults;
mod fields;

use std::net::{IpAddr, SocketAddr};

use ferroce_cm::{CmCounters, CmDropReason, PerMessage};

use crate::device::{DeviceInfo, GID_TABLE};
use crate::kind::LinkKind;
use crate::settings::Setting;

pub use crate::packet::MAX_MESSAGE;
pub use bytes::{DEVICE_BYTES, GID_BYTES, MAC_BYTES, RULE_BYTES, STATUS_PROGRAMS, is_device_name};
pub use cm::{CmBind, CmDone, CmNotice, CmRequest, PORT_BLOCK};
pub use faults::{FaultCounts, FaultOrder, FaultReport, Known, MadFaultReport};

/// Major version: another one is refused with a sentence.
pub const MAJOR: u16 = 1;
/// The last member that programs can lease. Member 0 is the broker's own. Member 255 would contain queue pair
/// number 0xFFFFFF.
pub const LAST_MEMBER: u8 = 254;
/// Slots of a member.
pub const MEMBER_SLOTS: u16 = 16;
/// Bit of [`Hello::features`]: this program's packets are to be seen, so that even MADs which the broker
/// sends to itself shall be packets.
pub const SHOW_MADS: u64 = 1;
/// Bit of [`Hello::features`] of a broker: it serves all users, and an administrator or the service manager
/// starts the next one.
pub const ALL_USERS: u64 = 2;
/// Minor version: grows with every new message kind or field. Each end skips kinds and fields that it does
/// not know, and refuses a peer of another major version only.
///
/// A message or field of a later minor version gets a constant here, such as `SETTLE_RINGS_MINOR: u16 = 1`,
/// and its sender compares that with the peer's [`Hello::minor`]: a request that the peer does not know has
/// no answer. A new field is the last one of its message or row, and a peer may leave it out.
pub const MINOR: u16 = 0;
/// The beginning of the netdev in a [`Message::LinkAdd`] that names a device of DPDK.
pub const DPDK_PREFIX: &str = "dpdk:";

/// A message between a program and the broker. Requests carry an id other than 0, answers repeat it,
/// notifications have id 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// First on every connection, from both ends.
    Hello(Hello),
    /// The broker refuses a request, or gives the reason before it closes the connection.
    Refused(Refusal),
    /// The broker has done the request.
    Done,
    /// Asks for [`Message::Devices`].
    ListDevices,
    /// The client's whole view: the broker sends it as an answer, or as a notification after a change. A
    /// program that adopts a new broker sends its previous view, so that names and GID indices stay.
    Devices(Vec<DeviceInfo>),
    /// Requests this number of leases, 1 to 254. The broker decides whether a lease is a member, with all its
    /// slots and the sockets of all addresses, or one slot of a member whose sockets the broker keeps
    /// ([`Leased::by_rings`]).
    Lease(u8),
    /// The slots leased, and the number of [`Message::Address`] that follow with the same id. With sockets
    /// comes one descriptor, the reading end of the parked descriptors.
    Leased(Leased),
    /// The group sockets of one address, one descriptor a member in the order of `members`. As a
    /// notification: an address appeared.
    Address(AddressSockets),
    /// Gives slots back; an empty list is all of the client's. Answered by [`Message::Done`].
    Release(Vec<u16>),
    /// To a new broker: the slots this program holds, with the reading end of the parked descriptors.
    /// Answered by [`Message::Leased`] with no slot more than these.
    Resume(Vec<u16>),
    /// As [`Message::Resume`], from a program without sockets ([`Leased::by_rings`]).
    ResumeByRings(Vec<u16>),
    /// Notification: the broker moved the parked descriptors to another socket and sends its reading end. The
    /// earlier one is closed.
    Parked,
    /// Makes a device on a netdev. Answered by [`Message::Done`].
    LinkAdd {
        /// Name of the device: 1 to 63 characters of letters, digits, `_`, `-` and `.`.
        name: String,
        /// The transport of the device.
        kind: LinkKind,
        /// Name of the interface; or [`DPDK_PREFIX`] and DPDK's device arguments: 1 to 256 octets without
        /// spaces.
        netdev: String,
        /// Not to outlive the broker.
        transient: bool,
    },
    /// Removes a device that [`Message::LinkAdd`] made. Answered by [`Message::Done`].
    LinkDel {
        /// Name of the device.
        name: String,
        /// A link that outlives the broker is to be there again with the next one.
        transient: bool,
    },
    /// Asks for [`Message::Status`].
    GetStatus,
    Status(Status),
    /// The program reports its object counts; there is no answer.
    Report(ResourceCounts),
    /// A request to connection management; answered by [`Message::CmDone`].
    Cm(CmRequest),
    /// Connection management has done the request.
    CmDone(CmDone),
    /// Something happened to a connection, or at a port that listens.
    CmEvent(CmNotice),
    /// Changes settings of a device: all of these or none. Answered by [`Message::Done`].
    LinkSet {
        /// Name of the device.
        name: String,
        /// In their order.
        settings: Vec<Setting>,
        /// Not to outlive the broker.
        transient: bool,
        /// Even what the broker advises against.
        force: bool,
    },
    /// Gives a device another name. Answered by [`Message::Done`].
    LinkRename {
        /// Name of the device.
        name: String,
        /// The new name, as in [`Message::LinkAdd`].
        to: String,
        /// A link that outlives the broker has its old name again with the next one.
        transient: bool,
    },
    /// A program's ledger, one descriptor ([`crate::ledger`]). No answer.
    Ledger,
    /// Asks for [`Message::Statistics`] of the device of this name.
    GetStatistics(String),
    /// The device's counters by name, including those of ended programs. Numbers wrap.
    Statistics(Vec<(String, u64)>),
    /// Asks for the ledgers of all programs: answered by [`Message::Ledgers`].
    GetLedgers,
    /// As [`Self::GetLedgers`], of programs that ended lately.
    GetEndedLedgers,
    /// This number of [`Message::LedgerOf`] follow with the same id.
    Ledgers(u16),
    /// A program with its ledger, one descriptor.
    LedgerOf(LeaseEntry),
    /// Requests [`Message::CmIds`], without the first entries, of which the field gives the number.
    GetCmIds(u32),
    /// Binds and connections of all programs.
    CmIds {
        /// As many as fit.
        ids: Vec<CmIdEntry>,
        /// There are others after these.
        more: bool,
    },
    /// Has the broker pass an order about faults on to the program that holds this slot, of the same user.
    /// Answered by [`Message::FaultReport`] with a report, or by a refusal: at the latest after the broker's
    /// limit of 2 s.
    FaultRequest {
        /// A slot of the program.
        slot: u16,
        /// The program's process id as [`LeaseEntry::pid`] has it, so that the order does not reach a later
        /// holder of the slot.
        pid: u32,
        order: FaultOrder,
    },
    /// Notification: a program is to do this. Answered by [`Message::FaultReport`] with the same number.
    FaultOrder {
        /// Chosen by the broker.
        number: u32,
        order: FaultOrder,
    },
    /// The result of an order. Without an id it is the program's; the broker passes it on as an answer.
    FaultReport {
        /// Number of the order, from [`Message::FaultOrder`].
        number: u32,
        /// The state after the order, or the reason why the program refused it, for people.
        result: Result<FaultReport, String>,
    },
    /// Has the broker apply these rules to the management datagrams of the program's connections, in place of
    /// earlier ones. The program holds slots. Answered by [`Message::Done`].
    MadFaults {
        /// Grows with each plan of the program. Rules that the broker has already, by this number, go on with
        /// their counts; they are then for all slots that the program holds now.
        generation: u32,
        /// The seed and the rules for management datagrams, in lines; empty for none.
        rules: String,
    },
    /// Asks for [`Message::MadFaultReport`].
    GetMadFaults,
    /// The counts and new hits of the program's rules for management datagrams.
    MadFaultReport(MadFaultReport),
    /// Notification: there are hits to be reported. The next one follows when the program has asked for the
    /// report.
    MadFaultHits,
    /// Asks for rings, for a program that holds slots. The descriptor is one end of a socket pair of
    /// packets: each side sends an octet there when the other may be asleep. Answered by [`Message::Rings`];
    /// earlier ones of the program are closed.
    OpenRings {
        /// Also for RoCE v2: what arrives for the program's slots is to come by the rings.
        v2: bool,
    },
    /// The descriptors are the memory of [`crate::ring::Rings`] and the end of a
    /// [doorbell](crate::doorbell) of the broker's own, by which the program wakes the broker.
    Rings,
    /// Has the broker move the packets that are in rings and in sockets of its own by now. Answered by
    /// [`Message::Done`] when those for programs of this host are in the rings or sockets of these. A later
    /// one of the program stands for one that waits, which is refused.
    SettleRings,
    /// The program takes [`pipes`](crate::pipe) from other programs of this broker. The descriptors are the
    /// far end of its [doorbell](crate::doorbell) and, with `direct`, the file that says which of its memory
    /// others may copy to and from. Answered by [`Message::Done`].
    OfferPipes {
        /// Whether other programs may copy to and from its memory.
        direct: bool,
    },
    /// Asks for a pipe to the program that holds this slot. Answered by [`Message::Pipe`].
    OpenPipe(u16),
    /// A pipe to another program. The other program receives one as well, unasked. The descriptors are the
    /// pipe's memory, the other program's doorbell, its pidfd, and, with `direct`, the file that says which
    /// of its memory may be copied.
    Pipe {
        /// The receiver of this message is the pipe's first side.
        first: bool,
        /// Whether the last descriptor is there.
        direct: bool,
        /// The slots of the other program.
        slots: Vec<u16>,
    },
    /// Asks for an AF_XDP socket on the interface with this index, of a device whose
    /// [`DeviceInfo::datapath`] is AF_XDP, for a program that holds slots. Answered by [`Message::Xdp`]; an
    /// earlier one of the program on that interface is closed.
    OpenXdp(u32),
    /// An AF_XDP socket. The descriptors are the bound socket, whose rings can be mapped, and the file that
    /// is its memory of packets. XDP programs of the broker decide which packets arrive there and, unless it
    /// is `direct`, which may leave.
    Xdp {
        /// The index of the device's interface.
        ifindex: u32,
        /// Whether the socket is at the interface itself, so that the program writes the hardware addresses
        /// of its frames. The broker checks none of them.
        direct: bool,
    },
    /// Ends the broker. Answered by [`Message::Done`], and then by the end of the connection.
    Stop {
        /// Even if other programs use it. They find or start another one and go on.
        force: bool,
    },
}

/// The first message of both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// [`MAJOR`] of the sender.
    pub major: u16,
    /// [`MINOR`] of the sender.
    pub minor: u16,
    /// Bits for optional behaviour: [`SHOW_MADS`].
    pub features: u64,
    /// The sender's version, for messages and logs: at most 32 bytes.
    pub build: String,
    /// Client: the netdev for which it requests a device of its own; empty for none. Broker: empty.
    pub netdev: String,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people: what is wrong and what to do; at most 1,024 bytes.
    pub sentence: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// Anything else, and every code a newer broker may send.
    Failed,
    /// The major versions differ.
    Version,
    /// The client's user is neither the broker's own nor root.
    ForeignUser,
    /// As `ForeignUser`, but the broker serves no program and leaves: connect again.
    Leaving,
    /// Another process holds UDP port 4791.
    PortTaken,
    /// All slots are leased.
    NoSlots,
    /// No interface of that name.
    UnknownNetdev,
    /// The netdev has a link already, or the name is taken.
    Exists,
    /// No link of that name.
    UnknownLink,
    /// The message makes no sense here.
    BadRequest,
    /// In use.
    Busy,
    /// The system refused the operation because a privilege is missing.
    Permission,
    /// Another bind has the port, or another one listens there.
    AddressInUse,
    /// No address of this host.
    NoAddress,
    /// No such bind, connection, question or request of this program.
    UnknownId,
    /// The state of the object does not allow this.
    WrongState,
    /// As many connections or binds as there may be.
    Full,
    /// As `AddressInUse`, and one of both binds is for all addresses.
    WildcardInUse,
}

/// See [`Message::Leased`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Leased {
    /// The slots: bits 23 to 12 of the program's queue pair numbers. A leased member is its sixteen slots.
    pub slots: Vec<u16>,
    /// The broker keeps the sockets, and the program's packets travel by [rings](crate::ring).
    pub by_rings: bool,
    /// Number of [`Message::Address`] that follow with the same id.
    pub addresses: u16,
    /// A warning for the user, such as an address whose port another process holds; may be empty.
    pub notice: String,
    /// The order in which the program takes its queue pair numbers. A program that comes back keeps its own.
    pub order: Option<QpnOrder>,
}

/// The order in which a program takes the numbers of its slots. Successive programs on one slot have the same
/// key and other starts. A number that one program used is thus not among the first of the next: a peer still
/// knows it, and refuses a connection from it as stale (IBTA 12.9.8.3.1), until that peer's time-wait is
/// over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnOrder {
    /// Random, not 0, and the same for all programs of one user on a member. It permutes the numbers.
    pub key: u64,
    /// The position of the first number among the 65,536 of a member.
    pub start: u16,
}

/// See [`Message::Address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSockets {
    /// Local address of the sockets.
    pub ip: IpAddr,
    /// Interface index of a link-local address, else 0.
    pub scope_id: u32,
    /// Members of the descriptors, in order; at least one. A member is bits 23 to 16 of the queue pair
    /// numbers that it receives packets for.
    pub members: Vec<u8>,
}

/// The state of the broker, for people.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// Process id of the broker, in its own pid namespace.
    pub broker_pid: u32,
    /// User of the broker.
    pub broker_uid: u32,
    /// Sockets in each group, the broker's own included.
    pub group_size: u16,
    /// Number of addresses with a group.
    pub groups: u16,
    /// Whether this broker took over from one that died.
    pub adopted: bool,
    /// Version of the broker.
    pub build: String,
    /// The programs that hold slots.
    pub programs: Vec<LeaseEntry>,
    /// Connection management.
    pub cm: Box<CmStatus>,
}

/// Objects of connection management, and its counters since the broker began. Counters wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CmStatus {
    /// Connections, time-wait included.
    pub connections: u32,
    /// SIDR requests.
    pub sidr_requests: u32,
    /// Listeners.
    pub listeners: u32,
    /// Ports of all port spaces.
    pub ports: u32,
    /// MADs, by kind as in [`CmStatus::MESSAGES`] and by reason as in [`CmStatus::DROPS`].
    pub counters: CmCounters,
    /// Datagrams to queue pair 1 that held no MAD.
    pub no_mad: u64,
}

impl CmStatus {
    /// The messages, as Linux names them below `/sys/class/infiniband_cm` in each of `cm_rx_msgs`,
    /// `cm_rx_duplicates`, `cm_tx_msgs` and `cm_tx_retries`.
    pub const MESSAGES: [&'static str; 11] = PerMessage::NAMES;
    /// Why MADs had no effect.
    pub const DROPS: [&'static str; 8] = CmDropReason::NAMES;
}

/// A program that holds slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseEntry {
    /// Process id of the program as the broker sees it; 0 if the broker cannot see it.
    pub pid: u32,
    /// User id of the program.
    pub uid: u32,
    /// Name of the program as `/proc/PID/comm` has it; may be empty.
    pub command: String,
    /// Slots of the program, ascending.
    pub slots: Vec<u16>,
    /// The program's last report.
    pub resources: ResourceCounts,
}

/// A bind or a connection, as rdma(8) shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmIdEntry {
    /// A number that no other has.
    pub number: u32,
    /// Slot of the program.
    pub slot: u16,
    pub state: CmIdState,
    /// `enum ibv_qp_type` of its queue pairs, 0 if it has none.
    pub qp_type: u8,
    /// The port space as `enum rdma_port_space` has it, 0 if it has no ports.
    pub space: u16,
    /// Number of the queue pair; 0 as long as it is not known.
    pub qpn: u32,
    /// Ours; the unspecified one for all.
    pub local: SocketAddr,
    /// The peer's; the unspecified one for none.
    pub remote: SocketAddr,
}

/// The state of a [`CmIdEntry`] by rdma(8)'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CmIdState {
    /// Has a port.
    AddrBound = 0,
    /// Listens.
    Listen = 1,
    /// Is connected, or about to be.
    Connect = 2,
    /// Ends.
    Disconnect = 3,
}

/// Numbers of objects in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResourceCounts {
    /// Protection domains.
    pub pds: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
}

/// Whether programs can lease a slot: one of a member from 1 to [`LAST_MEMBER`].
pub const fn is_leasable(slot: u16) -> bool {
    let member = slot / MEMBER_SLOTS;
    member >= 1 && member <= LAST_MEMBER as u16
}

impl Message {
    /// How many descriptors belong to this message.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Address(address) => address.members.len(),
            Self::Leased(leased) => usize::from(!leased.by_rings),
            Self::Resume(_) | Self::Parked | Self::Ledger | Self::LedgerOf(_) => 1,
            Self::OpenRings { .. } => 1,
            Self::OfferPipes { direct } => 1 + usize::from(*direct),
            Self::Rings | Self::Xdp { .. } => 2,
            Self::Pipe { direct, .. } => 3 + usize::from(*direct),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
