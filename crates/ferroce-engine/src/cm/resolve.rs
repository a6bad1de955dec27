//! Which device reaches an address, so that no program needs to know a GID index.
//!
//! The kernel is asked by a connected UDP socket: its answer has the routing rules, the source address
//! selection and the path MTU that our packets will see. It resolves the neighbour itself when we send, so
//! nothing here waits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::OnceLock;

use ferroce_cm::{ConnectParams, attributes};
use ferroce_host::environment;
use ferroce_host::routes::Answer;
use ferroce_wire::cm::PortSpace;
use ferroce_wire::{Gid, PathMtu, Qpn, RoceVersion};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use thiserror::Error;

use crate::device::{GidEntry, GidType, LinkKind};
use crate::engine::{self, Engine};
use crate::error::DeviceError;
use crate::{AhAttr, DeviceInfo};

/// The device that owns a local address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The device.
    pub device: DeviceInfo,
    /// The entry of its GID table that is the address. On iWARP it is the only one, which is no address.
    pub gid: GidEntry,
}

impl Local {
    /// Whether the device speaks iWARP, so that connections are TCP's and the broker has no part in them.
    pub fn is_iwarp(&self) -> bool {
        self.device.is_iwarp()
    }
}

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Device and GID that packets leave from.
    pub local: Local,
    /// The local address; port 0. A link-local one has its interface.
    pub source: SocketAddr,
    /// The address asked for, with the interface if it is link-local; the loopback address for the wildcard.
    pub destination: SocketAddr,
    /// The largest path MTU that fits both the device and the route.
    pub mtu: PathMtu,
    /// Time to live or hop limit of the route.
    pub hop_limit: u8,
}

impl Route {
    /// Whether it begins at an iWARP device: connections are TCP's, and `mtu` and `hop_limit` mean nothing.
    pub fn is_iwarp(&self) -> bool {
        self.local.is_iwarp()
    }

    /// The transport of the route, for a port that is to be used along it.
    pub fn transports(&self) -> Transports {
        if self.is_iwarp() { Transports::Iwarp } else { Transports::Roce }
    }

    /// The parameters of a request along this route for `qpn`, with the type of service that the program asks
    /// for. `source` has the port.
    pub fn request(&self, qpn: Qpn, type_of_service: Option<u8>) -> ConnectParams {
        let tos = self.type_of_service(type_of_service);
        let service = PortSpace::Tcp.service_id(self.destination.port());
        ConnectParams {
            path_mtu: self.mtu,
            traffic_class: tos,
            sl: attributes::service_level(tos),
            hop_limit: self.hop_limit,
            flow_label: attributes::flow_label(self.source.port(), self.destination.port()),
            ece: super::extension::offer(),
            ..ConnectParams::new(self.on(), service, self.guid(), qpn)
        }
    }

    /// The name of the local device on the wire.
    pub fn guid(&self) -> u64 {
        u64::from_be_bytes(self.local.device.node_guid)
    }

    /// The address vector of packets to the end of a RoCE route.
    pub fn address(&self, flow_label: u32, traffic_class: u8, hop_limit: u8) -> AhAttr {
        AhAttr {
            dgid: Gid::from_ip(self.destination.ip()),
            sgid_index: self.local.gid.index as u8,
            flow_label,
            traffic_class,
            sl: attributes::service_level(traffic_class),
            hop_limit,
            ..AhAttr::default()
        }
    }

    /// The route for the connection manager: addresses, interface and RoCE version. That of an iWARP route
    /// means nothing.
    pub fn on(&self) -> super::Route {
        let (local, remote) = (self.source.ip().to_canonical(), self.destination.ip().to_canonical());
        let interface = match (self.local.gid.gid_type, self.destination) {
            (GidType::RoceV1, _) => self.local.gid.ifindex | super::Route::V1,
            (GidType::RoceV2, SocketAddr::V6(v6)) => v6.scope_id(),
            (GidType::RoceV2, SocketAddr::V4(_)) => 0,
        };
        super::Route { local, remote, interface }
    }

    /// The type of service of a connection whose program asks for this one, or for none.
    pub fn type_of_service(&self, asked: Option<u8>) -> u8 {
        asked.unwrap_or(self.local.device.settings.cm_tos)
    }
}

/// The transports that an address may be resolved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transports {
    /// Datagrams, and callers that know nothing else.
    Roce,
    /// Only iWARP.
    Iwarp,
    /// Either: the order of the devices decides.
    Any,
}

impl Transports {
    /// The transports of librdmacm's connections in this process, by `FERROCE_TRANSPORT`: `roce`, `iwarp`, or
    /// either.
    pub fn of_process() -> Self {
        static OF_PROCESS: OnceLock<Transports> = OnceLock::new();
        *OF_PROCESS.get_or_init(|| match environment::text("FERROCE_TRANSPORT").as_deref() {
            Some("roce") => Self::Roce,
            Some("iwarp") => Self::Iwarp,
            Some("") | None => Self::Any,
            Some(other) => {
                tracing::warn!("FERROCE_TRANSPORT={other} is neither roce nor iwarp, and is ignored");
                Self::Any
            }
        })
    }

    /// The transports whose ports an address takes, of these. `local` is the device that has the address.
    /// Without it the result is all of these, but iWARP does not count beside RoCE if no device of the list
    /// has it. RoCE counts in any case: the list may leave out the device on `lo`, but connections find it.
    ///
    /// # Errors
    /// The devices are not known.
    pub fn at(self, local: Option<&Local>) -> Result<Self, DeviceError> {
        Ok(match (local, self) {
            (Some(local), _) if local.is_iwarp() => Self::Iwarp,
            (Some(_), _) => Self::Roce,
            (None, Self::Any) if !engine::devices()?.iter().any(DeviceInfo::is_iwarp) => Self::Roce,
            (None, these) => these,
        })
    }

    /// Whether devices of this kind are among them.
    pub fn have(self, kind: LinkKind) -> bool {
        match self {
            Self::Roce => kind == LinkKind::Rxe,
            Self::Iwarp => kind == LinkKind::Siw,
            Self::Any => true,
        }
    }
}

/// Why there is no way.
#[derive(Debug, Error)]
pub enum ResolveError {
    /// No interface has the address.
    #[error("{0} is not an address of this host")]
    NotLocal(IpAddr),
    /// An interface has it, but no device stands on that interface.
    #[error("no device has the address {0}: see `ferroce link`")]
    NoDevice(IpAddr),
    /// Source and destination are of two families.
    #[error("{source_address} and {destination} are not of one family")]
    Families {
        /// The source asked for.
        source_address: IpAddr,
        /// The destination.
        destination: IpAddr,
    },
    /// The kernel knows no way: ENETUNREACH, EHOSTUNREACH and others.
    #[error("no route to {destination}")]
    Unreachable {
        /// The destination.
        destination: IpAddr,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// There is no such family here, or no descriptor is left.
    #[error("cannot ask for the route")]
    Socket(#[source] io::Error),
    /// The devices are not known.
    #[error(transparent)]
    Devices(#[from] DeviceError),
}

/// Time to live of what goes to a group (rxe 6.12, `cma_iboe_join_multicast`).
const GROUP_HOP_LIMIT: u8 = 64;

/// The port that RoCE packets go to; a routing rule may look at it.
const ROCE_PORT: u16 = 4791;

/// The way to `destination` by RoCE, from `source` if that is given and not the wildcard.
pub fn route(source: Option<SocketAddr>, destination: SocketAddr) -> Result<Route, ResolveError> {
    route_by(Transports::Roce, source, destination)
}

/// The way to `destination` by one of these transports, from `source` if that is given and not the wildcard.
/// Of the devices that have the source address, the first in the broker's order is taken, as the kernel's
/// `cma` walks its list.
#[doc(alias = "rdma_resolve_addr")]
pub fn route_by(
    transports: Transports,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<Route, ResolveError> {
    if let Some(source) = source
        && source.is_ipv4() != destination.is_ipv4()
    {
        return Err(ResolveError::Families { source_address: source.ip(), destination: destination.ip() });
    }
    if destination.ip().is_multicast() {
        return group_route(source, destination);
    }
    engine::flush_all();
    let source = with_port(source.unwrap_or_else(|| wildcard(&destination)), 0);
    let engine = Engine::global()?;
    let directory = engine.connections();
    let Answer { from, to, mtu, hop_limit } =
        directory.routes().get(source, with_port(destination, 0), || ask(source, destination))?;
    let local = owner(transports, from)?;
    Ok(Route {
        mtu: PathMtu::largest_fitting(mtu).min(local.device.path_mtu()),
        local,
        source: with_port(from, 0),
        destination: with_port(to, destination.port()),
        hop_limit,
    })
}

/// Requests the route from the kernel.
fn ask(source: SocketAddr, destination: SocketAddr) -> Result<Answer, ResolveError> {
    let socket = bind(source)?;
    let unreachable = |source| ResolveError::Unreachable { destination: destination.ip(), source };
    socket.connect(with_port(destination, ROCE_PORT)).map_err(unreachable)?;
    let from = socket.local_addr().map_err(unreachable)?;
    let to = socket.peer_addr().map_err(unreachable)?;
    let (mtu, hop_limit) = measures(&socket, from).map_err(|errno| ResolveError::Socket(errno.into()))?;
    Ok(Answer { from: with_port(from, 0), to, mtu, hop_limit })
}

/// The way back to a peer whose request came from `remote` to `local`, which are addresses with ports. `on`
/// are the addresses of the packet; `None` for iWARP.
pub fn back(on: Option<&super::Route>, local: SocketAddr, remote: SocketAddr) -> Result<Route, ResolveError> {
    let route = match on {
        None => route_by(Transports::Iwarp, Some(local), remote)?,
        Some(on) => {
            let route = route(Some(local), remote)?;
            let found = asked(on, &Engine::global()?.devices());
            Route { local: found.ok_or(ResolveError::NoDevice(on.local))?, ..route }
        }
    };
    Ok(Route { source: local, ..route })
}

/// The way to a group: from the device that has the source, or the one that the kernel would use, or, if it
/// would use none because nobody gave groups a route, the first one. The destination keeps its interface.
fn group_route(source: Option<SocketAddr>, destination: SocketAddr) -> Result<Route, ResolveError> {
    let named = source.filter(|source| !source.ip().is_unspecified());
    let (from, local) = match named {
        Some(source) => {
            bind(source)?;
            (source, owner(Transports::Roce, source)?)
        }
        None => {
            let socket = bind(wildcard(&destination))?;
            match socket.connect(with_port(destination, ROCE_PORT)).and_then(|()| socket.local_addr()) {
                Ok(from) => (from, owner(Transports::Roce, from)?),
                Err(source) => first(&destination)?
                    .ok_or(ResolveError::Unreachable { destination: destination.ip(), source })?,
            }
        }
    };
    Ok(Route {
        mtu: local.device.path_mtu(),
        local,
        source: with_port(from, 0),
        destination,
        hop_limit: GROUP_HOP_LIMIT,
    })
}

/// The first address of a device, of the family and on the interface of `like`, if that names one.
fn first(like: &SocketAddr) -> Result<Option<(SocketAddr, Local)>, ResolveError> {
    let engine = Engine::global()?;
    if !engine.is_running() {
        engine.refresh_devices()?;
    }
    let on = match like {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(v6.scope_id()),
        _ => None,
    };
    let is = |entry: &&GidEntry| {
        entry.gid_type == GidType::RoceV2
            && entry.gid.is_ipv4() == like.is_ipv4()
            && on.is_none_or(|on| entry.ifindex == on)
    };
    let found = engine.devices().iter().find_map(|device| {
        // A default GID may be there without its address.
        let gid = device.gids.iter().find(|entry| is(entry) && bind(address_of(entry)).is_ok())?;
        Some(Local { device: device.clone(), gid: *gid })
    });
    Ok(found.map(|local| (address_of(&local.gid), local)))
}

fn address_of(entry: &GidEntry) -> SocketAddr {
    match entry.gid.to_ip() {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, 0, 0, entry.ifindex).into(),
        ip => (ip, 0).into(),
    }
}

/// The RoCE device that owns `address`; `None` for the wildcard, which is on all.
pub fn local(address: SocketAddr) -> Result<Option<Local>, ResolveError> {
    local_by(Transports::Roce, address)
}

/// The first device of these transports that owns `address`; `None` for the wildcard, which is on all.
#[doc(alias = "rdma_bind_addr")]
pub fn local_by(transports: Transports, address: SocketAddr) -> Result<Option<Local>, ResolveError> {
    if address.ip().is_unspecified() {
        return Ok(None);
    }
    // The kernel lets a datagram socket be bound to a group.
    if address.ip().is_multicast() {
        return Err(ResolveError::NotLocal(address.ip()));
    }
    bind(address)?;
    owner(transports, address).map(Some)
}

fn bind(address: SocketAddr) -> Result<UdpSocket, ResolveError> {
    engine::flush_all();
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // The socket is made by the system's own call, as those of the datapath.
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(|errno| ResolveError::Socket(errno.into()))?;
    rustix::net::bind(&socket, &with_port(address, 0)).map_err(|errno| match errno {
        rustix::io::Errno::ADDRNOTAVAIL => ResolveError::NotLocal(address.ip()),
        errno => ResolveError::Socket(errno.into()),
    })?;
    Ok(socket.into())
}

/// MTU and hop limit of a connected socket's route.
fn measures(socket: &UdpSocket, from: SocketAddr) -> rustix::io::Result<(u32, u8)> {
    // A socket connected to an IPv4-mapped address behaves as an IPv4 socket.
    if from.ip().to_canonical().is_ipv4() {
        let ttl = sockopt::ip_ttl(socket)?;
        let mtu = if from.is_ipv4() { sockopt::ip_mtu(socket)? } else { u32::MAX };
        Ok((mtu, u8::try_from(ttl).unwrap_or(u8::MAX)))
    } else {
        Ok((sockopt::ipv6_mtu(socket)?, sockopt::ipv6_unicast_hops(socket)?))
    }
}

fn owner(transports: Transports, address: SocketAddr) -> Result<Local, ResolveError> {
    let engine = Engine::global()?;
    // Until a device is open, no event reports changes.
    if !engine.is_running() {
        engine.refresh_devices()?;
    }
    let holders = || engine.connections().routes().holders(address);
    if let Some(local) = find(&engine.devices(), transports, address, holders) {
        return Ok(local);
    }
    engine.refresh_devices()?;
    find(&engine.devices(), transports, address, holders).ok_or(ResolveError::NoDevice(address.ip()))
}

/// The iWARP device that has a local address, as far as is known without asking the broker: also for the
/// thread that hears it.
pub(crate) fn iwarp_device(engine: &Engine, address: SocketAddr) -> Option<DeviceInfo> {
    let holders = || engine.connections().routes().holders(address);
    find(&engine.devices(), Transports::Iwarp, address, holders).map(|local| local.device)
}

/// The first device of these transports that has the address. A RoCE device has it as a GID, of the RoCE
/// version that its connections have. An iWARP device has all addresses of its interface; `holders` tells the
/// interfaces that have this one.
fn find(
    devices: &[DeviceInfo],
    transports: Transports,
    address: SocketAddr,
    holders: impl Fn() -> Vec<u32>,
) -> Option<Local> {
    let interface = interface(address);
    // Only a host with an iWARP device asks the kernel.
    let mut known = None;
    let at = |device: &DeviceInfo| {
        if !device.is_iwarp() {
            return entry(device, address.ip(), interface, device.settings.cm_type());
        }
        let here = known.get_or_insert_with(&holders).contains(&device.ifindex);
        let gid = device.gid_table().first().copied().filter(|_| here)?;
        Some(Local { device: device.clone(), gid })
    };
    devices.iter().filter(|device| transports.have(device.kind)).find_map(at)
}

/// The GID of a connection that a peer asks for: of the RoCE version that it speaks.
fn asked(on: &super::Route, devices: &[DeviceInfo]) -> Option<Local> {
    let gid_type = match on.version() {
        RoceVersion::V1 => GidType::RoceV1,
        RoceVersion::V2 => GidType::RoceV2,
    };
    let interface = Some(on.ifindex()).filter(|ifindex| *ifindex != 0);
    devices.iter().find_map(|device| entry(device, on.local, interface, gid_type))
}

fn entry(device: &DeviceInfo, ip: IpAddr, interface: Option<u32>, gid_type: GidType) -> Option<Local> {
    let gid = Gid::from_ip(ip);
    let is = |entry: &&GidEntry| {
        entry.gid == gid
            && entry.gid_type == gid_type
            && interface.is_none_or(|interface| entry.ifindex == interface)
    };
    device.gids.iter().find(is).map(|gid| Local { device: device.clone(), gid: *gid })
}

/// Whether a device has the address; on `interface`, if that is not 0.
pub(super) fn is_ours(engine: &Engine, address: IpAddr, interface: u32) -> bool {
    let gid = Gid::from_ip(address);
    let is = |entry: &GidEntry| entry.gid == gid && (interface == 0 || entry.ifindex == interface);
    engine.devices().iter().any(|device| device.gids.iter().any(is))
}

/// The interface that a link-local address belongs to; other addresses are the host's.
fn interface(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => Some(v6.scope_id()),
        _ => None,
    }
}

fn wildcard(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Returns the address with `port`, and without flow label, which would have to be leased.
fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => (*v4.ip(), port).into(),
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), port, 0, v6.scope_id()).into(),
    }
}

#[cfg(test)]
mod tests {
    use ferroce_ipc::{Origin, PhysState};

    use super::*;

    fn device(name: &str, gids: &[(u16, &str, u32)]) -> DeviceInfo {
        let entry = |&(index, ip, ifindex): &(u16, &str, u32)| GidEntry {
            index,
            gid: Gid::from_ip(ip.parse().unwrap()),
            gid_type: GidType::RoceV2,
            ifindex,
        };
        DeviceInfo {
            id: 1,
            name: name.to_owned(),
            dev_name: "uverbs0".to_owned(),
            node_guid: [1; 8],
            netdev: "eth0".to_owned(),
            ifindex: 2,
            mtu: 1500,
            port_active: true,
            phys_state: PhysState::LinkUp,
            origin: Origin::Link,
            kind: LinkKind::Rxe,
            datapath: Default::default(),
            gids: gids.iter().map(entry).collect(),
            settings: ferroce_ipc::LinkSettings::default(),
            macs: Default::default(),
        }
    }

    #[test]
    fn an_address_belongs_to_the_device_that_has_it() {
        let mut first = device("fr1", &[(0, "fe80::1", 2), (1, "192.0.2.1", 2), (2, "2001:db8::1", 9)]);
        first.gids.push(GidEntry { index: 3, gid_type: GidType::RoceV1, ..first.gids[1] });
        let devices = [first, device("fr2", &[(0, "fe80::1", 3), (4, "192.0.2.2", 3)])];
        for (address, want) in [
            ("192.0.2.1:7", Some(("fr1", 1))),
            ("192.0.2.2:0", Some(("fr2", 4))),
            ("[::ffff:192.0.2.2]:0", Some(("fr2", 4))),
            ("[2001:db8::1]:0", Some(("fr1", 2))),
            ("[fe80::1%2]:0", Some(("fr1", 0))),
            ("[fe80::1%3]:0", Some(("fr2", 0))),
            ("[fe80::1%4]:0", None),
            ("[fe80::1]:0", None),
            ("192.0.2.3:0", None),
        ] {
            let asked = || panic!("without iWARP nobody needs to know");
            let found = find(&devices, Transports::Any, address.parse().unwrap(), asked);
            let found = found.as_ref().map(|local| (local.device.name.as_str(), local.gid.index));
            assert_eq!(found, want, "{address}");
        }
    }

    /// Both devices stand on interface 2, and only the order says which one is taken.
    #[test]
    fn the_first_device_of_the_transports_is_taken() {
        let roce = device("fr1", &[(1, "192.0.2.1", 2)]);
        let iwarp = DeviceInfo { kind: LinkKind::Siw, ..device("iw1", &[]) };
        let find = |devices: &[DeviceInfo], transports, address: &str| {
            let holders = || if address.starts_with("192.0.2.") { vec![2] } else { vec![3] };
            let found = super::find(devices, transports, address.parse().unwrap(), holders);
            found.map(|local| (local.device.name.clone(), local.gid.index, local.is_iwarp()))
        };
        let (fr1, iw1) = (Some(("fr1".to_owned(), 1, false)), Some(("iw1".to_owned(), 0, true)));
        let (one, other) = ([roce.clone(), iwarp.clone()], [iwarp, roce]);
        for (transports, address, first, second) in [
            (Transports::Any, "192.0.2.1:7", &fr1, &iw1),
            (Transports::Roce, "192.0.2.1:7", &fr1, &fr1),
            (Transports::Iwarp, "192.0.2.1:7", &iw1, &iw1),
            (Transports::Any, "192.0.2.2:7", &iw1, &iw1),
            (Transports::Roce, "192.0.2.2:7", &None, &None),
            (Transports::Any, "198.51.100.1:7", &None, &None),
        ] {
            assert_eq!(find(&one, transports, address), *first, "{transports:?} {address}");
            assert_eq!(find(&other, transports, address), *second, "{transports:?} {address}");
        }
    }

    #[test]
    fn ports_and_flow_labels_are_not_part_of_a_route() {
        let address = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0x12345, 3));
        let without = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9, 0, 3));
        assert_eq!(with_port(address, 9), without);
    }
}
