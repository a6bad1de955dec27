//! Attributes of queue pairs in the words of verbs: addresses are GIDs and indices of tables.

use ferroce_proto::{QpAccess, QpState};
use ferroce_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

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

/// Attributes of a queue pair (`ibv_qp_attr`). [`crate::Qp::modify`] reads those its mask names;
/// [`crate::Qp::query`] fills in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_qp_attr")]
pub struct QpAttr {
    /// The state to go to, or the state it is in.
    pub qp_state: QpState,
    /// The state the caller believes it to be in.
    pub cur_qp_state: QpState,
    /// Payload of a full packet.
    pub path_mtu: PathMtu,
    /// Queue key; not used on RC.
    pub qkey: Qkey,
    /// The PSN expected next from the peer.
    pub rq_psn: Psn,
    /// The PSN of the next new request.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qp: Qpn,
    /// The peer's permissions.
    pub access: QpAccess,
    /// The path to the peer.
    pub ah: AhAttr,
    /// Index of the P_Key: 0.
    pub pkey_index: u16,
    /// The port: 1.
    pub port_num: u8,
    /// READs and atomics of ours in flight, at most 128.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer's in flight, at most 128.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code, 0 to 31.
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs × 2^n, 0 for none, at most 31.
    pub timeout: u8,
    /// 0 to 7, literally.
    pub retry_cnt: u8,
    /// 0 to 6, 7 for ever.
    pub rnr_retry: u8,
    /// With a transition to SQD: ask for an event when drained.
    pub en_sqd_async_notify: bool,
    /// Queried: in SQD and not yet drained.
    pub sq_draining: bool,
    /// With a transition to RTR: connection management agreed on selective repeat with the peer. Not queried.
    pub selective_repeat: bool,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self::from_transport(&ferroce_proto::QpAttr::default(), AhAttr::default())
    }
}

impl QpAttr {
    pub(crate) fn from_transport(attr: &ferroce_proto::QpAttr, ah: AhAttr) -> Self {
        Self {
            qp_state: attr.state,
            cur_qp_state: attr.cur_state,
            path_mtu: attr.path_mtu,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp: attr.dest_qp,
            access: attr.access,
            ah,
            pkey_index: attr.pkey_index,
            port_num: attr.port,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            en_sqd_async_notify: attr.en_sqd_async_notify,
            sq_draining: attr.sq_draining,
            selective_repeat: false,
        }
    }

    pub(crate) fn to_transport(self, path: ferroce_wire::Flow) -> ferroce_proto::QpAttr {
        ferroce_proto::QpAttr {
            state: self.qp_state,
            cur_state: self.cur_qp_state,
            path_mtu: self.path_mtu,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp: self.dest_qp,
            access: self.access,
            path,
            pkey_index: self.pkey_index,
            port: self.port_num,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            en_sqd_async_notify: self.en_sqd_async_notify,
            sq_draining: self.sq_draining,
        }
    }
}
