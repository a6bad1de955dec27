//! Parameters, commands and events of connection management.

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr, SocketAddrV6};

use ferroce_wire::cm::{
    About, CmTime, CommId, Ece, Info, Path, PrivateData, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq,
    SidrStatus, Transport,
};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Gid, PathMtu, Pkey, Psn, Qkey, Qpn, RoceVersion};

use super::attributes;

/// The two ends of a MAD. IPv4 addresses are never written as IPv6 ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Route {
    pub local: IpAddr,
    pub remote: IpAddr,
    /// The interface of link-local addresses, as a number of the caller's choice; 0 for other addresses. It
    /// is part of the route: a MAD from another interface is not the peer's. With [`Self::V1`] it is set for
    /// all addresses.
    pub interface: u32,
}

impl Route {
    /// A flag in [`Self::interface`]: the MADs and the connection use RoCEv1. A peer that uses the other
    /// version is a different peer.
    pub const V1: u32 = 1 << 31;

    pub const fn ifindex(&self) -> u32 {
        self.interface & !Self::V1
    }

    /// The local address with `port`, and with its interface if it is link-local.
    pub fn local_addr(&self, port: u16) -> SocketAddr {
        with_interface(self.local, port, self.ifindex())
    }

    /// The peer's address with `port`, and with its interface if it is link-local.
    pub fn remote_addr(&self, port: u16) -> SocketAddr {
        with_interface(self.remote, port, self.ifindex())
    }

    pub const fn version(&self) -> RoceVersion {
        if self.interface & Self::V1 != 0 { RoceVersion::V1 } else { RoceVersion::V2 }
    }
}

fn with_interface(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, interface).into(),
        ip => (ip, port).into(),
    }
}

/// A MAD to send to the peer's queue pair 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    pub route: Route,
    /// The owner of the connection or SIDR request that it is about; `None` for an answer to somebody
    /// unknown.
    pub owner: Option<u16>,
    pub traffic_class: u8,
    pub mad: Box<[u8; MAD_LEN]>,
}

/// A listener. [`super::ConnectionManager::listen`] chooses the number; a broker that forwards an event
/// replaces it by the name that the listening program gave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bind {
    Any,
    /// Every local IPv4 address.
    AnyV4,
    /// Every local IPv6 address.
    AnyV6,
    /// This address, on any interface.
    Address(IpAddr),
    /// This address, on one interface: link-local addresses.
    Scoped(IpAddr, u32),
}

/// The kind of request that a listener takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Connections,
    /// UD queue pairs, by SIDR_REQ.
    Datagrams,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenParams {
    pub service_id: ServiceId,
    pub bind: Bind,
    pub kind: Kind,
    /// Maximum of pending requests; 0 and values above [`Self::MAX_BACKLOG`] mean [`Self::MAX_BACKLOG`].
    /// Further requests are dropped, and the peer repeats them.
    pub backlog: usize,
}

impl ListenParams {
    /// Maximum of pending requests of one listener.
    pub const MAX_BACKLOG: usize = 1024;
}

/// Parameters of a REQ. See [`Req`] for the meaning of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectParams {
    pub route: Route,
    /// The peer connects to us at the same time, to the same service, and neither end listens (IBTA 12.10).
    pub peer_to_peer: bool,
    pub service_id: ServiceId,
    pub ca_guid: u64,
    pub qpn: Qpn,
    /// The first PSN that our queue pair expects; a random one if `None`.
    pub starting_psn: Option<Psn>,
    /// Service of the queue pairs.
    pub transport: Transport,
    /// Reads and atomics that we can serve.
    pub responder_resources: u8,
    /// Reads and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// Whether our queue pair gives credits.
    pub flow_control: bool,
    /// `retry_cnt` of both queue pairs, at most 7.
    pub retry_count: u8,
    /// `rnr_retry` of the peer's queue pair, at most 7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes from a shared receive queue.
    pub srq: bool,
    /// Payload of a full packet.
    pub path_mtu: PathMtu,
    /// Longest time that a packet may be under way: 16 on RoCE.
    pub packet_life: CmTime,
    /// Longest time that our queue pair takes to acknowledge.
    pub ack_delay: CmTime,
    /// The time in which each end answers: 20.
    pub response_timeout: CmTime,
    /// Repetitions of a message by each end, at most 15.
    pub max_cm_retries: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Service level, 4 bits.
    pub sl: u8,
    pub ece: Ece,
    /// Starts with the IP CM header if the service is a port.
    pub private: PrivateData<92>,
}

impl ConnectParams {
    /// A reliable connection with the defaults of librdmacm and the kernel.
    pub const fn new(route: Route, service_id: ServiceId, ca_guid: u64, qpn: Qpn) -> Self {
        Self {
            route,
            peer_to_peer: false,
            service_id,
            ca_guid,
            qpn,
            starting_psn: None,
            transport: Transport::Rc,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            path_mtu: PathMtu::B1024,
            packet_life: CmTime::saturating(16),
            ack_delay: CmTime::saturating(15),
            response_timeout: CmTime::saturating(20),
            max_cm_retries: 15,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            sl: 0,
            ece: Ece { vendor_id: 0, options: 0 },
            private: PrivateData::EMPTY,
        }
    }

    pub fn req(&self, local_id: CommId, starting_psn: Psn) -> Req {
        let routed = self.hop_limit > 1;
        let lid = if routed { 0xffff } else { 0 };
        Req {
            local_id,
            ece: self.ece,
            service_id: self.service_id,
            ca_guid: self.ca_guid,
            qpn: self.qpn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            remote_timeout: self.response_timeout,
            local_timeout: self.response_timeout,
            transport: self.transport,
            flow_control: self.flow_control,
            starting_psn,
            retry_count: self.retry_count.min(7),
            pkey: Pkey::DEFAULT,
            path_mtu: self.path_mtu as u8,
            rnr_retry_count: self.rnr_retry_count.min(7),
            max_cm_retries: self.max_cm_retries.min(15),
            srq: self.srq,
            primary: Path {
                local_lid: lid,
                remote_lid: lid,
                local_gid: Gid::from_ip(self.route.local),
                remote_gid: Gid::from_ip(self.route.remote),
                flow_label: self.flow_label,
                rate: 0,
                traffic_class: self.traffic_class,
                hop_limit: self.hop_limit,
                sl: self.sl,
                subnet_local: !routed,
                ack_timeout: attributes::ack_timeout(self.ack_delay, self.packet_life),
            },
            private: self.private,
            ..Req::default()
        }
    }
}

/// Parameters of a REP. See [`Rep`] for the meaning of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptParams {
    pub ca_guid: u64,
    pub qpn: Qpn,
    /// Reads and atomics that we can serve.
    pub responder_resources: u8,
    /// Reads and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// Longest time that our queue pair takes to acknowledge.
    pub ack_delay: CmTime,
    /// Whether our queue pair gives credits.
    pub flow_control: bool,
    /// `rnr_retry` of the peer's queue pair, at most 7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes from a shared receive queue.
    pub srq: bool,
    pub ece: Ece,
    pub private: PrivateData<196>,
}

impl AcceptParams {
    /// A reply with the defaults of librdmacm and the kernel.
    pub const fn new(ca_guid: u64, qpn: Qpn) -> Self {
        Self {
            ca_guid,
            qpn,
            responder_resources: 1,
            initiator_depth: 1,
            ack_delay: CmTime::saturating(15),
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ece: Ece { vendor_id: 0, options: 0 },
            private: PrivateData::EMPTY,
        }
    }

    pub fn rep(&self, local_id: CommId, starting_psn: Psn, req: &Req) -> Rep {
        let xrc = req.transport == Transport::XRC;
        let nobody = Qpn::new(0);
        Rep {
            local_id,
            remote_id: req.local_id,
            qpn: if xrc { nobody } else { self.qpn },
            eecn: if xrc { self.qpn } else { nobody },
            ece: self.ece,
            starting_psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            target_ack_delay: self.ack_delay,
            // RoCE has no alternate paths: a REQ that proposes one gets "not supported".
            failover: u8::from(!req.alternate.remote_gid.is_zero()),
            flow_control: self.flow_control,
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: self.srq || xrc,
            ca_guid: self.ca_guid,
            private: self.private,
            ..Rep::default()
        }
    }
}

/// Parameters of a SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrParams {
    pub route: Route,
    pub service_id: ServiceId,
    /// The time in which the peer answers: 20.
    pub response_timeout: CmTime,
    /// Repetitions, at most 15.
    pub max_cm_retries: u8,
    pub traffic_class: u8,
    /// Starts with the IP CM header if the service is a port.
    pub private: PrivateData<216>,
}

/// Parameters of a SIDR_REP.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SidrAnswer {
    /// The other fields have a meaning only if the status is [`SidrStatus::VALID`].
    pub status: SidrStatus,
    pub qpn: Qpn,
    pub qkey: Qkey,
    pub ece: Ece,
    pub private: PrivateData<136>,
}

/// An event of a connection or SIDR request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmEvent {
    pub owner: u16,
    /// The connection, SIDR request or pending request.
    pub id: CommId,
    pub kind: CmEventKind,
}

/// The kind of an event. After [`Rejected`](Self::Rejected), [`Unreachable`](Self::Unreachable) and the
/// events whose text says so, the id is invalid unless [`super::ConnectionManager::state`] still knows it:
/// then it is in time-wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEventKind {
    /// A peer requests a connection: accept or reject it. `listener` is `None` if this peer received a
    /// peer-to-peer REQ of ours.
    Request {
        listener: Option<ListenerId>,
        /// The addresses of the packet, which may differ from those in the REQ.
        route: Route,
        req: Box<Req>,
        /// The first PSN that our queue pair has to expect.
        starting_psn: Psn,
    },
    /// The peer accepted: set up the queue pair, then establish or reject.
    Reply {
        /// The REP as the peer sent it.
        rep: Box<Rep>,
    },
    /// The connection is established at both ends.
    Established,
    /// The peer refused, or revoked its own request.
    Rejected { about: About, reason: RejReason, info: Info, private: Box<PrivateData<148>> },
    /// The peer did not answer a REQ, REP or SIDR_REQ.
    Unreachable,
    /// The connection ends. Reported once.
    Disconnected(Disconnect),
    /// Time-wait is over; the id is invalid from now on.
    TimeWaitOver,
    /// A peer requests a UD queue pair: answer it.
    SidrRequest { listener: ListenerId, route: Route, req: Box<SidrReq> },
    /// The answer to our SIDR request; the id is invalid from now on.
    SidrReply {
        /// The peer's answer; its status says whether the peer agreed.
        rep: Box<SidrRep>,
    },
    /// The connection or SIDR request has ended because its connection manager ended and no other one took it
    /// over. A [`super::ConnectionManager`] never reports this itself.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disconnect {
    /// The peer sent a DREQ: answer it by `disconnect`.
    ByPeer,
    /// We sent a DREQ, and the peer agreed.
    ByUs,
    /// We sent a DREQ, and the peer did not answer.
    NoAnswer,
}
