//! Address handles: the way to a peer, for datagrams.
//!
//! The UDP source port depends on the slot of the destination, so a handle keeps one sending socket for each
//! slot that it sent to (at most 256 for all handles of a local address). Queue pairs keep the sockets that
//! they sent from, so a handle may end while packets are under way.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use ferroce_datapath::udp::Class;
use ferroce_paths::devices;
use ferroce_paths::neighbour::{self, DEFAULT_HOP_LIMIT, Unreached};
use ferroce_paths::tx::{SharedTxSocket, TxSockets};
use ferroce_proto::{AhAttr, SendTo};
use ferroce_wire::{Flow, Gid, LinkLayer, Qkey, Qpn, RoceVersion};
use parking_lot::Mutex;

use crate::error::{AnswerError, CreateAhError, LimitReached, PathError};
use crate::lane::Lane;
use crate::{Context, Pd, device};
use ferroce_host::fork;

/// Longest wait for the link address of a peer (Linux 6.12, `rdma_addr_find_l2_eth_by_grh`).
const NEIGHBOUR_LIMIT: Duration = Duration::from_millis(1000);

/// An address handle (`ibv_ah`): where datagrams go, but for the queue pair there. Queue pairs of its
/// protection domain may share it.
#[doc(alias = "ibv_ah")]
pub struct Ah {
    pd: Arc<Pd>,
    attr: AhAttr,
    link: LinkLayer,
    local: IpAddr,
    tx_sockets: Arc<TxSockets>,
    destination: IpAddr,
    /// To a multicast group: by which interface.
    ifindex: Option<u32>,
    class: Class,
    hop_limit: u8,
    /// The socket for each member of the destination that was sent to, by member.
    routes: ArcSwap<Vec<(u8, Arc<SharedTxSocket>)>>,
    /// Held while a route is added.
    adding: Mutex<()>,
    destroyed: AtomicBool,
    epoch: u64,
}

impl Pd {
    /// Makes an address handle. The destination may be a multicast group.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(self: &Arc<Self>, attr: AhAttr) -> Result<Arc<Ah>, CreateAhError> {
        let attr = completed(self.context(), &attr)?;
        let ResolvedPath { lane, local, class, hop_limit, link } = resolve(self.context(), &attr)?;
        if !self.context().engine().ahs.take() {
            return Err(LimitReached { what: "address handles", max: device::MAX_AH }.into());
        }
        self.add_user();
        let source = self.context().gid(u32::from(attr.sgid_index)).ok().flatten();
        Ok(Arc::new(Ah {
            pd: Arc::clone(self),
            attr,
            link,
            local,
            tx_sockets: Arc::clone(lane.tx_sockets()),
            destination: attr.dgid.to_ip(),
            ifindex: source.filter(|_| attr.dgid.is_multicast()).map(|entry| entry.ifindex),
            class,
            hop_limit,
            routes: ArcSwap::default(),
            adding: Mutex::new(()),
            destroyed: AtomicBool::new(false),
            epoch: fork::epoch(),
        }))
    }
}

impl Ah {
    /// The domain it is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The attributes that the handle was created with.
    pub fn attr(&self) -> AhAttr {
        self.attr
    }

    /// The destination of a send work request: queue pair `qpn` there, whose queue key is `qkey`; with bit 31
    /// set, the sender's own.
    ///
    /// Opens a socket the first time that a process there is sent to.
    pub fn to(&self, qpn: Qpn, qkey: Qkey) -> io::Result<SendTo> {
        let member = qpn.member();
        let routes = self.routes.load();
        let port = match find(&routes, member) {
            _ if self.link.ifindex != 0 => rings_port(self.link, member),
            Some(sender) => sender.flow().source_port,
            None => self.add_route(member)?,
        };
        let path = Flow {
            source: self.local,
            destination: self.destination,
            source_port: port,
            traffic_class: self.class.traffic_class,
            hop_limit: self.hop_limit,
            link: self.link,
        };
        Ok(SendTo::Datagram { path, qpn, qkey })
    }

    fn add_route(&self, member: u8) -> io::Result<u16> {
        let _adding = self.adding.lock();
        let routes = self.routes.load();
        if let Some(sender) = find(&routes, member) {
            return Ok(sender.flow().source_port);
        }
        let sender = self.tx_sockets.of_datagrams(self.destination, member, self.class)?;
        if let Some(ifindex) = self.ifindex {
            sender.set_multicast_interface(ifindex)?;
        }
        let port = sender.flow().source_port;
        let mut more = Vec::clone(&routes);
        more.push((member, sender));
        self.routes.store(Arc::new(more));
        Ok(port)
    }

    /// Destroys the handle. Posted work requests that have not been sent may be lost. A second call has no
    /// effect.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(&self) {
        if self.epoch == fork::epoch() && !self.destroyed.swap(true, Ordering::AcqRel) {
            self.pd.context().engine().ahs.give_back();
            self.pd.remove_user();
        }
    }
}

fn find(routes: &[(u8, Arc<SharedTxSocket>)], member: u8) -> Option<&Arc<SharedTxSocket>> {
    routes.iter().find(|(known, _)| *known == member).map(|(_, sender)| sender)
}

impl Context {
    /// The path back to the sender of a datagram, read from the start of its receive buffer
    /// ([`Flow::grh_area`](ferroce_wire::Flow::grh_area)).
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn answering(&self, area: &[u8; Flow::GRH_AREA]) -> Result<AhAttr, AnswerError> {
        let came = Flow::from_grh_area(area).ok_or(AnswerError::NoHeader)?;
        if came.destination.is_multicast() {
            return Err(AnswerError::Multicast);
        }
        let gid = Gid::from_ip(came.destination);
        let table = self.gid_table();
        let ours = table
            .iter()
            .find(|entry| entry.gid == gid && RoceVersion::from(entry.gid_type) == came.link.version);
        let ours = ours.ok_or(AnswerError::NoSuchGid { gid })?;
        Ok(AhAttr {
            dgid: Gid::from_ip(came.source),
            sgid_index: u8::try_from(ours.index).map_err(|_| AnswerError::NoSuchGid { gid })?,
            hop_limit: came.hop_limit,
            traffic_class: came.traffic_class,
            ..AhAttr::default()
        })
    }
}

/// The path that an address vector stands for.
pub(crate) struct ResolvedPath {
    /// Lane that the path starts on.
    pub(crate) lane: Arc<Lane>,
    pub(crate) local: IpAddr,
    /// The traffic class of its packets, which may differ from the program's.
    pub(crate) class: Class,
    pub(crate) hop_limit: u8,
    /// With an interface, if they go by the rings to the broker.
    pub(crate) link: LinkLayer,
}

/// The UDP source port of what goes by the rings, where no socket is needed for one; RoCE v1 has none.
pub(crate) fn rings_port(link: LinkLayer, member: u8) -> u16 {
    match link.version {
        RoceVersion::V1 => 0,
        RoceVersion::V2 => 0xc000 | u16::from(member),
    }
}

/// The address vector with what the kernel fills in: the hop limit of unicast is the route's, whatever the
/// program says, but for link-local destinations of RoCE v1 (Linux 6.12, `ib_resolve_unicast_gid_dmac`); a
/// link's `ttl` is before both. Waits for the link address of the next hop, so the caller holds no lock.
/// [`resolve`] refuses what is wrong with the rest.
pub(crate) fn completed(context: &Context, ah: &AhAttr) -> Result<AhAttr, PathError> {
    let (entry, dgid) = (context.gid(u32::from(ah.sgid_index)).ok().flatten(), ah.dgid);
    let usable = ah.is_global && ah.port_num == 1 && !dgid.is_zero() && !context.is_iwarp();
    let Some(entry) = entry.filter(|entry| usable && entry.gid.is_ipv4() == dgid.is_ipv4()) else {
        return Ok(*ah);
    };
    let own = if ah.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { ah.hop_limit };
    let by_link = RoceVersion::from(entry.gid_type) == RoceVersion::V1 && devices::scope_of(dgid, 1) != 0;
    let hop_limit = if dgid.is_multicast() || by_link {
        own
    } else {
        let (from, to) = (with_scope(entry.gid, entry.ifindex), with_scope(dgid, entry.ifindex));
        neighbour::reach(from, to, NEIGHBOUR_LIMIT).map_err(|why| match why {
            Unreached::Unanswered => PathError::Unanswered { dgid, limit: NEIGHBOUR_LIMIT },
            // An error of the address vector itself comes first.
            Unreached::NoRoute(errno) => {
                resolve(context, ah).err().unwrap_or(PathError::NoRoute { dgid, sgid: entry.gid, errno })
            }
        })?
    };
    Ok(AhAttr { hop_limit: context.settings().hop_limit(hop_limit), ..*ah })
}

fn with_scope(gid: Gid, ifindex: u32) -> SocketAddr {
    match gid.to_ip() {
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, devices::scope_of(gid, ifindex)).into(),
        v4 => (v4, 0).into(),
    }
}

/// The way of an address vector, as the device's settings have it now.
pub(crate) fn resolve(context: &Context, ah: &AhAttr) -> Result<ResolvedPath, PathError> {
    if context.is_iwarp() {
        return Err(PathError::Iwarp);
    }
    if !ah.is_global {
        return Err(PathError::NotGlobal);
    }
    if ah.port_num != 1 {
        return Err(PathError::Port { port: ah.port_num });
    }
    let index = ah.sgid_index;
    let Ok(Some(entry)) = context.gid(u32::from(index)) else {
        let table = context.gid_table();
        let there = table.iter().find(|entry| entry.gid.is_ipv4()).or_else(|| table.first()).copied();
        return Err(PathError::SgidIndex { index, there });
    };
    let (sgid, dgid) = (entry.gid, ah.dgid);
    if dgid.is_zero() || dgid.is_ipv4() != sgid.is_ipv4() {
        return Err(PathError::Dgid { dgid, sgid });
    }
    let (local, version) = (sgid.to_ip(), RoceVersion::from(entry.gid_type));
    let settings = context.settings();
    let class = Class {
        traffic_class: settings.traffic_class(local, dgid.to_ip(), ah.traffic_class),
        service_level: ah.sl & 15,
    };
    let hop_limit = ah.hop_limit;
    // The kernel gives packets to a group to the members on this host as well.
    let polled = !dgid.is_multicast() && context.is_polled(entry.ifindex);
    if version == RoceVersion::V1 || polled || context.engine().v2_by_rings() {
        let rings = context.engine().open_rings().inspect_err(|error| tracing::warn!(%error, "no frames"));
        let (_, lane) = rings.map_err(|_| PathError::Frames { index })?;
        let link = LinkLayer { version, sl: class.service_level, ifindex: entry.ifindex };
        return Ok(ResolvedPath { lane: Arc::clone(lane), local, class, hop_limit, link });
    }
    let scope = devices::scope_of(sgid, entry.ifindex);
    // Multicast goes by the interface, unicast by the scope of the socket.
    if scope == 0 && !dgid.is_multicast() && devices::scope_of(dgid, 1) != 0 {
        return Err(PathError::LinkLocal { dgid, sgid });
    }
    let lane = context.engine().lanes().of(local, scope);
    let lane = lane.ok_or(PathError::NoAddress { index, sgid })?;
    let link = LinkLayer { sl: class.service_level, ..LinkLayer::UDP };
    Ok(ResolvedPath { lane, local, class, hop_limit, link })
}
