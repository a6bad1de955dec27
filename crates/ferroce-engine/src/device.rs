//! Attributes of a device and its port.

use ferroce_wire::PathMtu;
use parking_lot::Mutex;

use ferroce_host::speed;
pub use ferroce_host::speed::{DEFAULT_SPEED, width_and_speed};

pub use ferroce_ipc::{DeviceInfo, GidEntry, GidType, LinkKind, LinkSettings, Origin, PhysState};

/// Limits and identity of a device, as `ibv_query_device` tells them. Every limit can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The transport that the device speaks.
    pub kind: LinkKind,
    /// Version of ferroce.
    pub fw_ver: String,
    /// EUI-64 in network order; never zero.
    pub node_guid: [u8; 8],
    /// The node GUID: a device is a system of its own.
    pub sys_image_guid: [u8; 8],
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Queue pairs of one process.
    pub max_qp: u32,
    /// Work requests of one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Scatter/gather entries of one READ.
    pub max_sge_rd: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Completion queues of one process.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions of one process.
    pub max_mr: u32,
    /// Memory windows of one process.
    pub max_mw: u32,
    /// Octets of device memory of one process.
    pub max_dm_size: u64,
    /// Protection domains of one process.
    pub max_pd: u32,
    /// Address handles of one process.
    pub max_ah: u32,
    /// Shared receive queues of one process.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather entries of one of them.
    pub max_srq_sge: u32,
    /// READs and atomics that a queue pair answers at a time.
    pub max_qp_rd_atom: u32,
    /// READs and atomics that a queue pair has in flight.
    pub max_qp_init_rd_atom: u32,
    /// READs and atomics that the device answers at a time.
    pub max_res_rd_atom: u32,
    /// Multicast groups that queue pairs of one process are attached to.
    pub max_mcast_grp: u32,
    /// Queue pairs of one process that are attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Attachments of one process, in all groups.
    pub max_total_mcast_qp_attach: u32,
    /// Ports: always one, number 1.
    pub phys_port_cnt: u8,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// 4.096 µs × 2^n: how long an answer may take here.
    pub local_ca_ack_delay: u8,
}

impl DeviceAttr {
    /// Returns the limits of an iWARP device: without what iWARP lacks, as siw tells it. A Read Request names
    /// one sink (RFC 5040 4.4).
    pub(crate) fn of_iwarp(self) -> Self {
        Self {
            kind: LinkKind::Siw,
            max_sge_rd: 1,
            max_ah: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            local_ca_ack_delay: 0,
            ..self
        }
    }
}

/// [`DeviceAttr::max_qp`]: one slot's numbers.
pub const MAX_QP: u32 = crate::qpn::MAX_QPS;
/// [`DeviceAttr::max_qp_wr`].
pub const MAX_QP_WR: u32 = 16_384;
/// [`DeviceAttr::max_sge`].
pub const MAX_SGE: u32 = 32;
/// [`DeviceAttr::max_inline`].
pub const MAX_INLINE: u32 = 1024;
/// [`DeviceAttr::max_cq`].
pub const MAX_CQ: u32 = 65_536;
/// [`DeviceAttr::max_cqe`].
pub const MAX_CQE: u32 = 1 << 20;
/// [`DeviceAttr::max_mr`].
pub const MAX_MR: u32 = 131_072;
/// [`DeviceAttr::max_mw`].
pub const MAX_MW: u32 = 131_071;
/// [`DeviceAttr::max_dm_size`]: some hundred times as much as cards have, and little beside a program's other
/// memory.
pub const MAX_DM_SIZE: u64 = 16 << 20;
/// [`DeviceAttr::max_pd`].
pub const MAX_PD: u32 = 65_536;
/// [`DeviceAttr::max_ah`].
pub const MAX_AH: u32 = 65_536;
/// [`DeviceAttr::max_qp_rd_atom`] and [`DeviceAttr::max_qp_init_rd_atom`].
pub const MAX_RD_ATOM: u32 = 128;
/// [`DeviceAttr::max_mcast_grp`]: each takes a descriptor for each interface, of the 1024 that a process
/// normally has.
pub const MAX_MCAST_GRP: u32 = 512;
/// [`DeviceAttr::max_mcast_qp_attach`], as in rxe: the maximum of copies of one packet.
pub const MAX_MCAST_QP_ATTACH: u32 = 56;
/// [`DeviceAttr::max_total_mcast_qp_attach`].
pub const MAX_TOTAL_MCAST_QP_ATTACH: u32 = MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH;

/// [`DeviceAttr::max_srq`]: one slot's numbers.
pub const MAX_SRQ: u32 = crate::qpn::MAX_QPS;
/// [`DeviceAttr::max_srq_wr`].
pub const MAX_SRQ_WR: u32 = MAX_QP_WR;
/// [`DeviceAttr::max_srq_sge`].
pub const MAX_SRQ_SGE: u32 = MAX_SGE;

/// Whether the port carries traffic. Discriminants are those of `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The netdev is down.
    Down = 1,
    /// The netdev is up and running.
    Active = 4,
}

/// State of the one port, as `ibv_query_port` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// The transport of the device.
    pub kind: LinkKind,
    /// Whether the netdev is up.
    pub state: PortState,
    /// Carrier of the netdev.
    pub phys_state: PhysState,
    /// RoCE: always 4096. iWARP: as `active_mtu`.
    pub max_mtu: PathMtu,
    /// Largest path MTU that fits the netdev, on RoCE with all headers. On iWARP it means nothing on the
    /// wire.
    pub active_mtu: PathMtu,
    /// Entries of the GID table, empty ones included.
    pub gid_tbl_len: u32,
    /// 1, the default P_Key; 0 on iWARP, which has no P_Keys.
    pub pkey_tbl_len: u16,
    /// Bytes of the largest message: 2^31.
    pub max_msg_sz: u32,
    /// The speed that the netdev claims, in Mb/s; [`VIRTUAL_SPEED`](ferroce_host::speed::VIRTUAL_SPEED) for
    /// one without a wire, whatever it says; `None` where nothing is known.
    pub speed: Option<u32>,
    /// Packets that were not of the partition, to this process.
    pub bad_pkeys: u64,
    /// Datagrams without the queue pair's Q_Key, to this process.
    pub bad_qkeys: u64,
}

impl PortAttr {
    /// The port of a device that need not be open; nothing was counted yet.
    pub fn of(info: &DeviceInfo) -> Self {
        Self::with_speed(info, speed::of(info.ifindex, &info.netdev))
    }

    /// As [`Self::of`], of a port with this speed.
    fn with_speed(info: &DeviceInfo, speed: Option<u32>) -> Self {
        let iwarp = info.is_iwarp();
        Self {
            kind: info.kind,
            state: if info.port_active { PortState::Active } else { PortState::Down },
            phys_state: info.phys_state,
            max_mtu: if iwarp { info.path_mtu() } else { PathMtu::B4096 },
            active_mtu: info.path_mtu(),
            gid_tbl_len: u32::from(info.gid_table_len()),
            pkey_tbl_len: u16::from(!iwarp),
            max_msg_sz: 1 << 31,
            speed,
            bad_pkeys: 0,
            bad_qkeys: 0,
        }
    }

    /// The codes of the width and of a lane's speed that stand for [`Self::speed`].
    pub fn width_and_speed(&self) -> (u8, u32) {
        width_and_speed(self.speed.unwrap_or(DEFAULT_SPEED))
    }
}

/// The speed of the port of an open device, which is looked for again when the link is another one, or comes
/// and goes. In between a query makes no system call, because the program may be in a sandbox by then.
pub(crate) struct KnownSpeed(Mutex<(LinkState, Option<u32>)>);

/// Whether the port is up, its state, and the index and MTU of its interface.
type LinkState = (bool, PhysState, u32, u32);

impl KnownSpeed {
    pub(crate) fn new(info: &DeviceInfo) -> Self {
        Self(Mutex::new((link_state(info), speed::of(info.ifindex, &info.netdev))))
    }

    /// The state of the port.
    pub(crate) fn port(&self, info: &DeviceInfo) -> PortAttr {
        let now = link_state(info);
        let mut known = self.0.lock();
        if known.0 != now {
            *known = (now, speed::of(info.ifindex, &info.netdev));
        }
        PortAttr::with_speed(info, known.1)
    }
}

fn link_state(info: &DeviceInfo) -> LinkState {
    (info.port_active, info.phys_state, info.ifindex, info.mtu)
}

/// Entries of a RoCE port's GID table, as rxe.
pub const GID_TABLE_LEN: u32 = ferroce_ipc::GID_TABLE as u32;
