//! The tables of the switch, and the path of a packet: from a ring or the wire to a ring, to queue pair 1, or
//! to the wire.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use ferroce_datapath::packet::{EtherSocket, FrameBuffer};
use ferroce_ipc::Strange;
use ferroce_ipc::ring::{ENTRIES, MAX_PACKET, PushError, Rings};
use ferroce_wire::{ETHERTYPE_ROCE, Flow, Gid, LinkLayer, Qpn, RoceVersion};
use tracing::{debug, warn};

use super::drops::Drops;
use super::group_sockets::GroupSockets;
use super::neighbours::{Found, Neighbours, Released};
use super::relay::{Relay, Relays};
use super::rules::{self, Reason, Way};
use super::view::{PortView, ProgramView, View};
use crate::ClientId;
use crate::dpdk::{self, Ports};
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;
use ferroce_host::rtnetlink::NeighbourMonitor;

/// Packets of one ring or socket before others have their turn.
const BURST: usize = 64;
/// Turns before the wire has its turn.
const TURNS: usize = 4;
/// Packets to queue pair 1 that wait for the broker.
const MOST_GSI: usize = 1024;
/// Octets before a packet: addresses, tag, type.
const MOST_ETHERNET: usize = 18;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// A packet to queue pair 1.
#[derive(Debug)]
pub struct ToGsi {
    /// How it came: version and interface.
    pub link: LinkLayer,
    /// From the GRH or IP header on.
    pub packet: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) ended: bool,
    /// Grows whenever there are other descriptors to wait for.
    pub(super) generation: u64,
    ways: BTreeSet<Way>,
    pub(super) ports: BTreeMap<u32, SwitchPort>,
    pub(super) programs: BTreeMap<ClientId, Program>,
    slots: BTreeMap<u16, ClientId>,
    pub(super) neighbours: Neighbours,
    pub(super) gsi: VecDeque<ToGsi>,
    relays: Relays,
    pub(super) drops: Drops,
    dpdk: Arc<Ports>,
}

#[derive(Debug)]
pub(super) struct SwitchPort {
    pub(super) view: PortView,
    /// For RoCE v1.
    v1: Option<Arc<Guarded<EtherSocket>>>,
    /// For RoCE v2, over IPv4 and over IPv6.
    v2: Vec<Arc<Guarded<EtherSocket>>>,
    /// Where frames leave: of a VLAN the interface below.
    pub(super) tx: Option<Leaving>,
    /// Where packets of RoCE v2 to groups leave instead.
    groups: GroupSockets,
}

/// Sends frames to the wire: the two kinds of a port.
#[derive(Clone, Debug)]
pub(super) enum Leaving {
    /// A packet socket.
    Socket(Arc<Guarded<EtherSocket>>),
    /// A port of DPDK. The frames leave with [`dpdk::DpdkPort::flush`].
    Dpdk(Arc<dpdk::DpdkPort>),
}

impl Leaving {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        match self {
            Self::Socket(socket) => socket.send(frame),
            Self::Dpdk(port) if port.send(frame) => Ok(()),
            Self::Dpdk(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) view: ProgramView,
    pub(super) open: Option<Open>,
}

/// A program's rings.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) rings: Rings,
    /// Wakes the program. The program made the doorbell and may hold its ends, so the broker never reads it
    /// if the program is another user's: a reader whose memory is slow to come makes every other reader of a
    /// socket wait, even one that must not block.
    pub(super) bell: Guarded<Strange>,
    /// Wakes the broker.
    pub(super) heard: Arc<Guarded<Strange>>,
}

/// A packet that passed the rules, with its destination.
pub(super) struct Outgoing<'a> {
    pub(super) link: LinkLayer,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) dest_qp: Qpn,
    /// The addressing of a packet that leaves by a socket of the broker.
    pub(super) by_udp: Option<Flow>,
    pub(super) packet: &'a [u8],
}

/// Ends a program's rings, whose indices make no sense.
pub(super) fn close(program: &mut Program) -> u64 {
    warn!(client = ?program.view.client, "the rings of a program make no sense: closed");
    program.open = None;
    1
}

/// The descriptors that the thread waits for.
#[derive(Default)]
pub(super) struct Waits {
    pub(super) generation: Option<u64>,
    pub(super) ports: Vec<(u32, Arc<Guarded<EtherSocket>>)>,
    pub(super) relays: Vec<Arc<Relay>>,
    pub(super) bells: Vec<(ClientId, Arc<Guarded<Strange>>)>,
}

pub(super) struct Buffers {
    pub(super) frame: FrameBuffer,
    pub(super) packet: Box<[u8; MAX_PACKET]>,
}

impl Table {
    pub(super) fn new(dpdk: Arc<Ports>) -> Self {
        Self { dpdk, ..Self::default() }
    }

    pub(super) fn follow(&mut self, view: View, socket: impl FnMut(Address, u8) -> io::Result<OwnedFd>) {
        let View { ports, ways, programs, relays, epoch } = view;
        let there: BTreeSet<ClientId> = programs.iter().map(|program| program.client).collect();
        let before: Vec<ClientId> = self.programs.keys().copied().collect();
        // The interfaces and sockets by which their last packets leave may be served no more without them.
        for client in before.into_iter().filter(|client| !there.contains(client)) {
            self.take_last(client);
        }
        self.programs.retain(|client, _| there.contains(client));
        self.relays.follow(relays, epoch, socket);
        let on = |ifindex: u32, version| ways.iter().any(|w| w.ifindex == ifindex && w.version == version);
        let v2 = programs.iter().any(|program| program.v2);
        let of = |ways: &BTreeSet<Way>, ifindex| -> Vec<Way> {
            ways.iter().filter(|way| way.ifindex == ifindex).copied().collect()
        };
        let known = |ifindex: u32| {
            let port = self.ports.get(&ifindex).is_some_and(|port| ports.contains(&port.view));
            port && of(&self.ways, ifindex) == of(&ways, ifindex)
        };
        self.neighbours.doubt(|ifindex| !known(ifindex));
        self.ports.retain(|_, port| ports.contains(&port.view));
        for view in ports {
            let port = self.ports.entry(view.ifindex).or_insert_with(|| SwitchPort::new(view));
            let ifindex = port.view.ifindex;
            if let Some(dpdk) = self.dpdk.get(ifindex) {
                port.serve_dpdk(dpdk);
                continue;
            }
            port.serve(on(ifindex, RoceVersion::V1), v2 && on(ifindex, RoceVersion::V2));
        }
        self.ways = ways;
        self.slots.clear();
        for view in programs {
            self.slots.extend(view.slots.iter().map(|slot| (*slot, view.client)));
            match self.programs.get_mut(&view.client) {
                Some(known) => known.view = view,
                None => drop(self.programs.insert(view.client, Program { view, open: None })),
            }
        }
        self.generation += 1;
    }

    pub(super) fn waits(&self) -> Waits {
        let sockets = |(ifindex, port): (&u32, &SwitchPort)| {
            let all: Vec<_> =
                port.v1.iter().chain(&port.v2).map(|socket| (*ifindex, Arc::clone(socket))).collect();
            all
        };
        let bell = |(client, program): (&ClientId, &Program)| {
            Some((*client, Arc::clone(&program.open.as_ref()?.heard)))
        };
        Waits {
            generation: Some(self.generation),
            ports: self.ports.iter().flat_map(sockets).collect(),
            relays: self.relays.sockets.clone(),
            bells: self.programs.iter().filter_map(bell).collect(),
        }
    }

    pub(super) fn count(&mut self, ifindex: u32, reason: Reason) {
        debug!(ifindex, ?reason, "dropped a frame");
        self.drops.count(ifindex, reason);
    }

    /// Takes the packets that a program left in its ring before it exited, such as its last acknowledgement.
    fn take_last(&mut self, client: ClientId) {
        let mut packet = Box::new([0; MAX_PACKET]);
        for _ in 0..=ENTRIES as usize / BURST {
            if !self.take_from(Instant::now(), client, &mut packet) {
                break;
            }
        }
    }

    pub(super) fn hang_up(&mut self, client: ClientId, bell: &Arc<Guarded<Strange>>) {
        self.take_last(client);
        if let Some(program) = self.programs.get_mut(&client)
            && program.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.heard, bell))
        {
            program.open = None;
            self.generation += 1;
        }
    }

    pub(super) fn follow_neighbours(&mut self, monitor: &NeighbourMonitor) {
        let whole = monitor.drain(|neighbour| {
            let released = self.neighbours.changed(&neighbour);
            self.send_released(neighbour.ifindex, released);
        });
        if !whole {
            self.neighbours.doubt(|_| true);
        }
    }

    /// Sends frames that waited for their neighbour.
    pub(super) fn send_released(&mut self, ifindex: u32, released: Released) {
        for frame in &released.ready {
            match self.ports.get(&ifindex).and_then(|port| port.tx.as_ref()).map(|tx| tx.send(frame)) {
                Some(Ok(())) => {}
                Some(Err(_)) => self.count(ifindex, Reason::Refused),
                None => self.count(ifindex, Reason::Port),
            }
        }
        for _ in 0..released.lost {
            self.count(ifindex, Reason::Neighbour);
        }
    }

    /// Takes what arrived at an interface. Returns whether there may be more.
    pub(super) fn receive(&mut self, ifindex: u32, socket: &EtherSocket, buffers: &mut Buffers) -> bool {
        for _ in 0..BURST {
            let frame = match socket.recv(&mut buffers.frame) {
                Ok(Some(frame)) => frame,
                Ok(None) => return false,
                Err(e) => {
                    debug!(ifindex, "cannot receive: {e}");
                    return false;
                }
            };
            // A tag that is left is that of a VLAN that we do not have; number 0 is none.
            if !frame.meant || frame.vlan.is_some_and(|tci| tci & 0xfff != 0) {
                continue;
            }
            match rules::may_receive(&self.ways, ifindex, frame.bytes) {
                Ok((link, start, passed)) if link.version == RoceVersion::V2 => {
                    // Packets for other programs, and for queue pair 1, go by sockets.
                    let program =
                        self.slots.get(&passed.dest_qp.slot()).and_then(|client| self.programs.get(client));
                    if !program.is_some_and(|program| program.view.v2) {
                        continue;
                    }
                    let packet = frame.bytes.get(start..start + passed.len).unwrap_or_default();
                    rules::cut(packet, frame.merged, |front, back| {
                        self.deliver(link, passed.dest_qp, front, back);
                    });
                }
                Ok((link, start, passed)) => {
                    let packet = frame.bytes.get(start..start + passed.len).unwrap_or_default();
                    self.deliver(link, passed.dest_qp, packet, &[]);
                }
                Err(reason) => self.count(ifindex, reason),
            }
        }
        true
    }

    /// Takes a frame that arrived at a port of DPDK with this tap and hardware address, if it is for a
    /// program or for queue pair 1 of RoCE v1. `false`: it is for the kernel. So are packets to queue pair 1
    /// and to groups of RoCE v2, and those to programs without rings, which all have sockets.
    pub(super) fn take_from_dpdk(&mut self, ifindex: u32, mac: [u8; 6], frame: &[u8]) -> bool {
        let v1 = frame.get(12..14) == Some(&ETHERTYPE_ROCE.to_be_bytes());
        let meant = frame.first_chunk::<6>().is_some_and(|to| *to == mac || to[0] & 1 != 0);
        if !meant {
            return v1;
        }
        match rules::may_receive(&self.ways, ifindex, frame) {
            Ok((link, start, passed)) => {
                if link.version == RoceVersion::V2 {
                    let program =
                        self.slots.get(&passed.dest_qp.slot()).and_then(|client| self.programs.get(client));
                    if passed.dest_qp == Qpn::GSI || program.is_none_or(|program| program.open.is_none()) {
                        return false;
                    }
                }
                let packet = frame.get(start..start + passed.len).unwrap_or_default();
                self.deliver(link, passed.dest_qp, packet, &[]);
                true
            }
            Err(_) if !v1 => false,
            Err(reason) => {
                self.count(ifindex, reason);
                true
            }
        }
    }

    /// Puts a packet, in two pieces, into the ring of whom it is for.
    pub(super) fn deliver(&mut self, link: LinkLayer, dest_qp: Qpn, front: &[u8], back: &[u8]) {
        if dest_qp == Qpn::GSI {
            match self.gsi.len() < MOST_GSI {
                true => self.gsi.push_back(ToGsi { link, packet: [front, back].concat() }),
                false => self.count(link.ifindex, Reason::Full),
            }
            return;
        }
        let program = self.slots.get(&dest_qp.slot()).and_then(|client| self.programs.get_mut(client));
        let Some(open) = program.and_then(|program| program.open.as_mut()) else {
            return self.count(link.ifindex, Reason::Slot);
        };
        match open.rings.tx.push(link, front, back) {
            Ok(()) => {}
            Err(PushError::Full) => self.count(link.ifindex, Reason::Full),
            Err(PushError::TooLong(_)) => self.count(link.ifindex, Reason::Length),
            // Closed when it is shown.
            Err(PushError::Corrupt(_)) => self.count(link.ifindex, Reason::Slot),
        }
    }

    /// Takes what programs put into their rings, in turns: at least all that was there before. Returns
    /// whether there is more.
    pub(super) fn take_from_programs(&mut self, now: Instant, buffers: &mut Buffers) -> bool {
        let clients: Vec<ClientId> = self
            .programs
            .iter()
            .filter(|(_, program)| program.open.is_some())
            .map(|(client, _)| *client)
            .collect();
        const _: () = assert!(TURNS * BURST >= ENTRIES as usize);
        let mut left = false;
        for _ in 0..TURNS {
            left = false;
            for client in &clients {
                left |= self.take_from(now, *client, &mut buffers.packet);
            }
            if !left {
                break;
            }
        }
        left
    }

    /// Takes one turn of a program's packets. Returns whether there are more.
    fn take_from(&mut self, now: Instant, client: ClientId, buffer: &mut [u8; MAX_PACKET]) -> bool {
        for _ in 0..BURST {
            let Some(program) = self.programs.get_mut(&client) else { return false };
            let Some(open) = &mut program.open else { return false };
            let popped = match open.rings.rx.pop(buffer) {
                Ok(Some(popped)) => popped,
                Ok(None) => return false,
                Err(_) => {
                    self.generation += close(program);
                    let ifindex = program.interface(&self.ports, 0);
                    self.count(ifindex, Reason::Rings);
                    return false;
                }
            };
            let packet = buffer.get(..popped.len).unwrap_or_default();
            let link = popped.link;
            let mtu = self.ports.get(&link.ifindex).map(|port| port.view.mtu).ok_or(Reason::Port);
            let ProgramView { ways, slots, v2, relayed, .. } = &program.view;
            let dpdk = matches!(
                self.ports.get(&link.ifindex).and_then(|port| port.tx.as_ref()),
                Some(Leaving::Dpdk(_))
            );
            let by_udp = *relayed && !*v2 && link.version == RoceVersion::V2;
            match mtu.and_then(|mtu| rules::may_send(ways, slots, mtu, link, packet)) {
                Ok(passed) => {
                    let packet = packet.get(..passed.len).unwrap_or_default();
                    let (from, to, dest_qp) = (passed.source, passed.destination, passed.dest_qp);
                    // The kernel gives packets to a group to the members on this host as well.
                    let by_udp = by_udp && (!dpdk || to.is_multicast());
                    let by_udp = by_udp.then_some(Flow { link, ..passed.way });
                    self.send(now, &Outgoing { link, from, to, dest_qp, by_udp, packet });
                }
                Err(reason) => {
                    let ifindex = program.interface(&self.ports, link.ifindex);
                    self.count(ifindex, reason);
                }
            }
        }
        true
    }

    /// Sends a packet that may be sent: to a program here, or by its interface.
    pub(super) fn send(&mut self, now: Instant, out: &Outgoing<'_>) {
        let gid = Gid::from_ip(out.to);
        let (low, high) = (0, u32::MAX);
        let at = |ifindex| Way { version: out.link.version, gid, ifindex };
        // One of our own; of link-local ones there may be several.
        let same = self.ways.contains(&at(out.link.ifindex)).then_some(out.link.ifindex);
        let any = || self.ways.range(at(low)..=at(high)).next().map(|way| way.ifindex);
        let link_local = matches!(out.to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let here = same.or_else(|| if link_local { None } else { any() });
        // A program with sockets receives from the kernel.
        let holder = self.slots.get(&out.dest_qp.slot()).and_then(|client| self.programs.get(client));
        let has_sockets = holder.is_some_and(|program| !program.view.relayed && !program.view.v2);
        if let Some(ifindex) = here
            && !(has_sockets && out.by_udp.is_some())
        {
            return self.deliver(LinkLayer { ifindex, ..out.link }, out.dest_qp, out.packet, &[]);
        }
        let sent = match &out.by_udp {
            Some(way) => {
                let header = if way.is_ipv4() { 28 } else { 48 };
                let mut transport = out.packet.get(header..).unwrap_or_default().to_vec();
                self.relays.send(way, out.dest_qp, &mut transport)
            }
            None => self.transmit(now, out),
        };
        if let Err(reason) = sent {
            self.count(out.link.ifindex, reason);
        }
    }

    fn transmit(&mut self, now: Instant, out: &Outgoing<'_>) -> Result<(), Reason> {
        let Self { ports, neighbours, .. } = self;
        let LinkLayer { version, sl, ifindex } = out.link;
        let port = ports.get_mut(&ifindex).ok_or(Reason::Port)?;
        if out.to.is_multicast() && version == RoceVersion::V2 {
            match port.groups.send(ifindex, out.packet) {
                // Another program has the source port. A frame still reaches the members on other hosts.
                Err(Reason::Refused) if !port.view.loopback => {}
                sent => return sent,
            }
        }
        let (Some(tx), Some(source)) = (&port.tx, port.view.mac) else { return Err(Reason::Port) };
        let made = rules::mac_of_gid(Gid::from_ip(out.to), Gid::from_ip(out.from));
        let found = match made.filter(|_| version == RoceVersion::V1) {
            _ if out.to.is_multicast() => Found::Known(rules::mac_of_group(version, out.to)),
            Some(mac) => Found::Known(mac),
            None => neighbours.find(now, ifindex, out.from, out.to, version == RoceVersion::V2),
        };
        let destination = match found {
            Found::Known(mac) => mac,
            Found::Asked => [0; 6],
            Found::Unreachable => return Err(Reason::Neighbour),
        };
        let mut frame = [0_u8; MOST_ETHERNET + MAX_PACKET];
        let mut len = 0;
        let mut put = |octets: &[u8]| {
            if let Some(to) = frame.get_mut(len..len + octets.len()) {
                to.copy_from_slice(octets);
                len += octets.len();
            }
        };
        put(&destination);
        put(&source);
        if let Some((_, vid)) = port.view.vlan {
            put(&ETHERTYPE_VLAN.to_be_bytes());
            put(&(u16::from(sl & 7) << 13 | vid).to_be_bytes());
        }
        let ethertype = match (version, out.to) {
            (RoceVersion::V1, _) => ETHERTYPE_ROCE,
            (RoceVersion::V2, IpAddr::V4(_)) => ETHERTYPE_IPV4,
            (RoceVersion::V2, IpAddr::V6(_)) => ETHERTYPE_IPV6,
        };
        put(&ethertype.to_be_bytes());
        put(out.packet);
        let frame = frame.get(..len).unwrap_or_default();
        if found == Found::Asked {
            let waits = neighbours.wait(ifindex, out.to, version == RoceVersion::V2, frame);
            return if waits { Ok(()) } else { Err(Reason::Neighbour) };
        }
        tx.send(frame).map_err(|e| {
            debug!(ifindex, "a frame cannot be sent: {e}");
            Reason::Refused
        })
    }
}

impl Program {
    /// The interface that a packet of its counts for: the one it names, or else that of an address of its.
    pub(super) fn interface(&self, ports: &BTreeMap<u32, SwitchPort>, named: u32) -> u32 {
        let first = || self.view.ways.first().map_or(0, |way| way.ifindex);
        if ports.contains_key(&named) { named } else { first() }
    }
}

impl SwitchPort {
    fn new(view: PortView) -> Self {
        Self { view, v1: None, v2: Vec::new(), tx: None, groups: GroupSockets::default() }
    }

    /// Frames come and leave by a port of DPDK, and by no socket.
    fn serve_dpdk(&mut self, dpdk: Arc<dpdk::DpdkPort>) {
        self.v1 = None;
        self.v2.clear();
        self.tx = self.view.mac.map(|_| Leaving::Dpdk(dpdk));
    }

    /// Opens what is needed.
    fn serve(&mut self, v1: bool, v2: bool) {
        let PortView { ifindex, vlan, mac, .. } = self.view;
        if mac.is_none() {
            return;
        }
        let taken = |socket: io::Result<EtherSocket>| {
            let socket = socket.inspect_err(|e| warn!(ifindex, "no frames can be sent or received: {e}"));
            socket.ok().map(|socket| Arc::new(Guarded::new(socket)))
        };
        if !v1 && !v2 {
            (self.v1, self.tx) = (None, None);
            self.v2.clear();
            return;
        }
        let opened = |ifindex, ethertype| taken(EtherSocket::open(ifindex, ethertype));
        if matches!(self.tx, Some(Leaving::Dpdk(_))) {
            self.tx = None;
        }
        if !v2 {
            self.v2.clear();
        } else if self.v2.is_empty() {
            self.v2
                .extend([false, true].into_iter().filter_map(|v6| taken(EtherSocket::open_v2(ifindex, v6))));
        }
        if v1 && self.v1.is_none() {
            self.v1 = opened(ifindex, ETHERTYPE_ROCE);
        } else if !v1 {
            self.v1 = None;
        }
        if self.tx.is_none() {
            let socket = match (&self.v1, vlan) {
                (_, Some((below, _))) => opened(below, 0),
                (Some(socket), None) => Some(Arc::clone(socket)),
                (None, None) => opened(ifindex, 0),
            };
            self.tx = socket.map(Leaving::Socket);
        }
    }
}

#[cfg(test)]
mod tests;
