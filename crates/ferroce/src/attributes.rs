//! Devices, ports and GID tables as programs see them.

use ferroce_engine as engine;
use ferroce_wire::{Gid, PathMtu};

use crate::declare::{mirror, view};

/// The transport of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_transport_type")]
#[non_exhaustive]
pub enum Transport {
    /// RoCE: InfiniBand's transport over UDP, or over Ethernet frames.
    Roce,
    /// iWARP: RDMA over TCP.
    Iwarp,
}

impl Transport {
    const fn of(kind: engine::LinkKind) -> Self {
        match kind {
            engine::LinkKind::Rxe => Self::Roce,
            engine::LinkKind::Siw => Self::Iwarp,
        }
    }
}

view! {
    /// A device that [`devices`](crate::devices) lists.
    #[doc(alias = "ibv_device")]
    pub struct DeviceInfo of DeviceInfo as info {
        /// The transport of the device.
        transport: Transport = Transport::of(info.kind),
        ..
        /// The name for [`Context::open`](crate::Context::open), 1 to 63 characters.
        name: String,
        /// EUI-64 in network byte order, never zero.
        node_guid: [u8; 8],
        /// Name of the network interface that carries the device, 1 to 15 characters.
        netdev: String,
        /// MTU of the network interface, in octets.
        mtu: u32,
        /// Whether the port is active: the interface is up and has a carrier.
        port_active: bool,
    }
}

mirror! {
    /// RoCE version of a GID. Discriminants are those of `ibv_gid_type`.
    #[doc(alias = "ibv_gid_type")]
    pub enum GidType of GidType {
        /// RoCE v1: Ethernet frames of type 0x8915.
        RoceV1 = 1,
        /// RoCE v2: UDP port 4791.
        RoceV2 = 2,
    }
}

view! {
    /// A used entry of a GID table.
    #[doc(alias = "ibv_gid_entry")]
    #[derive(Copy)]
    pub struct GidEntry of GidEntry as entry {
        /// RoCE version of packets from the GID.
        gid_type: GidType = GidType::of(entry.gid_type),
        ..
        /// Index in the table, 0 to 1023.
        index: u16,
        /// The GID: an IP address of the interface.
        gid: Gid,
        /// Index of the network interface that has the address: the device's, or a VLAN or bond above it.
        ifindex: u32,
    }
}

view! {
    /// Identity and limits of a device.
    #[doc(alias = "ibv_device_attr")]
    pub struct DeviceAttr of DeviceAttr as attr {
        /// The transport of the device.
        transport: Transport = Transport::of(attr.kind),
        ..
        /// Version of ferroce.
        fw_ver: String,
        /// EUI-64 in network byte order, never zero.
        node_guid: [u8; 8],
        /// Equals `node_guid`: each device is a system of its own.
        sys_image_guid: [u8; 8],
        /// Octets of one memory region, at most.
        max_mr_size: u64,
        /// Queue pairs of one process, at most.
        max_qp: u32,
        /// Outstanding work requests of one send or receive queue, at most.
        max_qp_wr: u32,
        /// Slices of one work request, at most.
        max_sge: u32,
        /// Slices of one READ, at most.
        max_sge_rd: u32,
        /// Octets of one inline work request, at most.
        max_inline: u32,
        /// Completion queues of one process, at most.
        max_cq: u32,
        /// Completions in one completion queue, at most.
        max_cqe: u32,
        /// Memory regions of one process, at most.
        max_mr: u32,
        /// Memory windows of one process, at most.
        max_mw: u32,
        /// Octets of device memory of one process, at most.
        max_dm_size: u64,
        /// Protection domains of one process, at most.
        max_pd: u32,
        /// Address handles of one process, at most; 0 with iWARP.
        max_ah: u32,
        /// Shared receive queues of one process, at most.
        max_srq: u32,
        /// Outstanding receives of one shared receive queue, at most.
        max_srq_wr: u32,
        /// Slices of one receive in a shared receive queue, at most.
        max_srq_sge: u32,
        /// READs and atomics of the peer that a queue pair executes at once, at most.
        max_qp_rd_atom: u32,
        /// READs and atomics that a queue pair has in flight, at most.
        max_qp_init_rd_atom: u32,
        /// READs and atomics of peers that the device executes at once, at most.
        max_res_rd_atom: u32,
        /// Multicast groups with a queue pair of one process, at most; 0 with iWARP.
        max_mcast_grp: u32,
        /// Queue pairs of one process in one multicast group, at most; 0 with iWARP.
        max_mcast_qp_attach: u32,
        /// Memberships of one process in all multicast groups, at most; 0 with iWARP.
        max_total_mcast_qp_attach: u32,
        /// Number of ports: 1.
        phys_port_cnt: u8,
        /// Number of completion vectors.
        num_comp_vectors: u32,
        /// Longest time until the device acknowledges a packet, as the code n of 4.096 µs × 2^n.
        local_ca_ack_delay: u8,
    }
}

mirror! {
    /// State of a port. Discriminants are those of `ibv_port_state`.
    #[doc(alias = "ibv_port_state")]
    pub enum PortState of PortState {
        /// The network interface is down, or has no carrier.
        Down = 1,
        /// The port carries traffic.
        Active = 4,
    }
}

view! {
    /// State of a device's only port.
    #[doc(alias = "ibv_port_attr")]
    pub struct PortAttr of PortAttr as port {
        /// Whether the port carries traffic.
        state: PortState = PortState::of(port.state),
        ..
        /// Largest path MTU of any port: 4096 octets with RoCE.
        max_mtu: PathMtu,
        /// Largest path MTU of this port: a packet of it, with all headers, fits the interface.
        active_mtu: PathMtu,
        /// Entries of the GID table, including empty ones.
        gid_tbl_len: u32,
        /// Entries of the P_Key table: 1 with RoCE, 0 with iWARP.
        pkey_tbl_len: u16,
        /// Octets of the longest message: 2^31.
        max_msg_sz: u32,
        /// Speed of the network interface in Mb/s, as the kernel claims; `None` if it is unknown.
        speed: Option<u32>,
        /// Packets that this process received with a wrong P_Key.
        bad_pkeys: u64,
        /// Datagrams that this process received with a wrong Q_Key.
        bad_qkeys: u64,
    }
}
