//! Attributes of a queue pair.

use alloc::sync::Arc;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr};

use bitflags::bitflags;
use ferroce_wire::{Flow, Gid, PathMtu, Psn, Qkey, Qpn};

use crate::{Budget, SharedReceives};

/// Service type of a queue pair; discriminants are those of `ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_qp_type")]
#[repr(u8)]
pub enum Service {
    Rc = 2,
    Uc = 3,
    Ud = 4,
    /// Ethernet frames (`IBV_QPT_RAW_PACKET`).
    RawPacket = 8,
    /// XRC initiator (`IBV_QPT_XRC_SEND`).
    XrcInitiator = 9,
    /// XRC target (`IBV_QPT_XRC_RECV`).
    XrcTarget = 10,
    /// A stream of iWARP, which programs know as `IBV_QPT_RC`. The number is not one of `ibv_qp_type`.
    Iwarp = 200,
}

impl Service {
    /// Whether packets come from one peer alone.
    pub(crate) const fn is_connected(self) -> bool {
        match self {
            Self::Rc | Self::Uc | Self::XrcInitiator | Self::XrcTarget | Self::Iwarp => true,
            Self::Ud | Self::RawPacket => false,
        }
    }

    /// Whether an error of a send work request ends the send queue alone (SQE, IBTA 10.3.1).
    pub(crate) const fn survives_send_errors(self) -> bool {
        match self {
            Self::Rc | Self::XrcInitiator | Self::XrcTarget | Self::Iwarp => false,
            Self::Uc | Self::Ud | Self::RawPacket => true,
        }
    }
}

/// State of a queue pair; discriminants are those of `ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_qp_state")]
#[repr(u8)]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Error = 6,
}

impl fmt::Display for QpState {
    /// The name in `ibv_qp_state`, without `IBV_QPS_`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// Sizes of a queue pair's queues (`ibv_qp_cap`); what is created holds exactly this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCaps {
    /// Send work requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that may be outstanding.
    pub max_recv_wr: u32,
    /// SGEs of a send work request.
    pub max_send_sge: u32,
    /// SGEs of a receive work request.
    pub max_recv_sge: u32,
    /// Octets of an inline payload.
    pub max_inline: u32,
}

/// The configuration of a new queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    pub qpn: Qpn,
    pub service: Service,
    /// Sizes of the queue pair's queues, which are allocated at creation.
    pub caps: QpCaps,
    /// The shared queues it takes receive WQEs from in place of a queue of its own, whose sizes then have no
    /// meaning. [`SharedReceives::XrcDomain`] for XRC targets, and for them alone.
    pub srq: Option<SharedReceives>,
    /// Every send work request is signaled.
    pub sq_sig_all: bool,
    /// Longest payload of a datagram (UD): the port's active MTU. Connected services are told theirs by
    /// `modify`.
    pub port_mtu: PathMtu,
    /// Source of everything random in it: so far, when to try again after the budget was used up.
    pub seed: u64,
    /// Resend before the ACK timeout, by a timer derived from the round trip time. On in programs; tests that
    /// count transmissions turn it off.
    pub early_resends: bool,
    /// Shared with the process's other queue pairs.
    pub budget: Arc<Budget>,
}

bitflags! {
    /// Remote operations a queue pair admits: bits of `ibv_access_flags`. Others are kept and mean nothing
    /// here.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct QpAccess: u32 {
        /// `IBV_ACCESS_LOCAL_WRITE`: no meaning for a queue pair, but programs set it.
        const LOCAL_WRITE = 1;
        /// `IBV_ACCESS_REMOTE_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// `IBV_ACCESS_REMOTE_READ`.
        const REMOTE_READ = 1 << 2;
        /// `IBV_ACCESS_REMOTE_ATOMIC`.
        const REMOTE_ATOMIC = 1 << 3;
        /// `IBV_ACCESS_FLUSH_GLOBAL`.
        const FLUSH_GLOBAL = 1 << 8;
        /// `IBV_ACCESS_FLUSH_PERSISTENT`.
        const FLUSH_PERSISTENT = 1 << 9;
        const _ = !0;
    }
}

bitflags! {
    /// Which attributes a modify sets: bits of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_qp_attr_mask")]
    pub struct QpAttrMask: u32 {
        /// [`QpAttr::state`].
        const STATE = 1;
        /// [`QpAttr::cur_state`].
        const CUR_STATE = 1 << 1;
        /// [`QpAttr::en_sqd_async_notify`].
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// [`QpAttr::access`].
        const ACCESS_FLAGS = 1 << 3;
        /// [`QpAttr::pkey_index`].
        const PKEY_INDEX = 1 << 4;
        /// [`QpAttr::port_num`].
        const PORT = 1 << 5;
        /// [`QpAttr::qkey`].
        const QKEY = 1 << 6;
        /// [`QpAttr::ah`] and [`QpAttr::path`].
        const AV = 1 << 7;
        /// [`QpAttr::path_mtu`].
        const PATH_MTU = 1 << 8;
        /// [`QpAttr::timeout`].
        const TIMEOUT = 1 << 9;
        /// [`QpAttr::retry_cnt`].
        const RETRY_CNT = 1 << 10;
        /// [`QpAttr::rnr_retry`].
        const RNR_RETRY = 1 << 11;
        /// [`QpAttr::rq_psn`].
        const RQ_PSN = 1 << 12;
        /// [`QpAttr::max_rd_atomic`].
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path: refused on RoCE.
        const ALT_PATH = 1 << 14;
        /// [`QpAttr::min_rnr_timer`].
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpAttr::sq_psn`].
        const SQ_PSN = 1 << 16;
        /// [`QpAttr::max_dest_rd_atomic`].
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state: taken where the table allows it, without effect.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes: never modified.
        const CAP = 1 << 19;
        /// [`QpAttr::dest_qp`].
        const DEST_QPN = 1 << 20;
        const _ = !0;
    }
}

impl fmt::Display for QpAttrMask {
    /// The names in `ibv_qp_attr_mask`, with commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.iter_names();
        for (index, (name, _)) in names.by_ref().enumerate() {
            write!(f, "{}IBV_QP_{name}", if index > 0 { ", " } else { "" })?;
        }
        match names.remaining().bits() {
            0 => Ok(()),
            rest => write!(f, "{}the bits {rest:#x}", if rest == self.bits() { "" } else { ", " }),
        }
    }
}

/// Address vector of a connected queue pair (`ibv_ah_attr`): how packets reach the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_ah_attr")]
pub struct AhAttr {
    /// Must be true: RoCE has no other addresses.
    pub is_global: bool,
    /// The peer's GID.
    pub dgid: Gid,
    /// 20 bits, kept for queries: the UDP source port carries the entropy.
    pub flow_label: u32,
    /// Which of our GIDs to send from.
    pub sgid_index: u8,
    /// Hop limit of packets to a group; 0 means 64. Unicast packets get that of the route, which queries then
    /// show.
    pub hop_limit: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Service level, kept for queries.
    pub sl: u8,
    /// Always 1.
    pub port_num: u8,
}

impl Default for AhAttr {
    fn default() -> Self {
        Self {
            is_global: true,
            dgid: Gid::ZERO,
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
            sl: 0,
            port_num: 1,
        }
    }
}

/// Attributes of a queue pair (`ibv_qp_attr`). Small numbers are plain, so that a wrong one can be refused by
/// name. A modify reads those that its mask names; a query fills in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_qp_attr")]
pub struct QpAttr {
    /// The state to go to; queried: the state it is in.
    pub state: QpState,
    /// The state the caller believes it is in; queried: as `state`.
    pub cur_state: QpState,
    /// Payload of a full packet.
    pub path_mtu: PathMtu,
    /// Queue key, of UD alone: what datagrams to it must have.
    pub qkey: Qkey,
    /// The PSN expected next from the peer.
    pub rq_psn: Psn,
    /// The PSN of the next request never sent before.
    pub sq_psn: Psn,
    pub dest_qp: Qpn,
    pub access: QpAccess,
    /// The address vector as the program gave it, kept for queries.
    pub ah: AhAttr,
    /// The path of `ah`: our address and source port, the peer's address. The engine sets both together.
    pub path: Flow,
    /// Index of the P_Key: 0.
    pub pkey_index: u16,
    /// The port: 1.
    pub port_num: u8,
    /// Reads and atomics of ours that may be outstanding, at most 128.
    pub max_rd_atomic: u8,
    /// Reads and atomics of the peer's that may be outstanding, at most 128.
    pub max_dest_rd_atomic: u8,
    /// The delay that an RNR NAK asks of the peer: code 0 to 31, see `ferroce_wire::RnrTimer`.
    pub min_rnr_timer: u8,
    /// Local ACK timeout: code 0 (none) to 31, see `ferroce_wire::AckTimeout`.
    pub timeout: u8,
    /// Retries, 0 to 7; 7 is seven.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 is without end.
    pub rnr_retry: u8,
    /// With a transition to SQD: ask for [`crate::AsyncEventKind::SqDrained`].
    pub en_sqd_async_notify: bool,
    /// Queried: in SQD, something that had started has not yet completed.
    pub sq_draining: bool,
    /// With a transition to RTR: connection management agreed on selective repeat with the peer. The engine
    /// reads it and calls [`set_selective_repeat`](crate::QueuePair::set_selective_repeat). Not queried.
    pub selective_repeat: bool,
}

impl QpAttr {
    /// Most reads and atomics that may be outstanding, either way.
    pub const MAX_RD_ATOMIC: u8 = 128;
}

impl Default for QpAttr {
    /// The attributes of a queue pair that was just created.
    fn default() -> Self {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: PathMtu::B256,
            qkey: Qkey::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qp: Qpn::new(0),
            access: QpAccess::empty(),
            ah: AhAttr::default(),
            path: Flow {
                source: nowhere,
                destination: nowhere,
                source_port: 0,
                traffic_class: 0,
                hop_limit: 64,
                link: Default::default(),
            },
            pkey_index: 0,
            port_num: 1,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            selective_repeat: false,
        }
    }
}

/// The reaction of a reliable queue pair to congestion that the network marks (RoCEv2 annex A17.9), see
/// [`QueuePair::set_congestion_control`](crate::QueuePair::set_congestion_control).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CongestionControl {
    /// CNPs are counted, and nothing else. Round trips that show a queue change nothing either.
    Off,
    /// The queue pair slows down when CNPs come, by the rules of DCQCN.
    #[default]
    React,
    /// As `React`; the queue pair also sends a CNP when packets of the peer come marked.
    Full,
}

/// How a reliable queue pair sends again what was lost, see
/// [`QueuePair::set_selective_repeat`](crate::QueuePair::set_selective_repeat).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SelectiveRepeat {
    /// All from the first lost packet on, as the specification says. A peer's offers are ignored.
    #[default]
    Off,
    /// Offered to the peer by a reserved bit of each request that asks for an acknowledgement. Without an
    /// answer it is as [`Off`](Self::Off).
    Offered,
    /// Agreed upon before, by connection management.
    Agreed,
}
