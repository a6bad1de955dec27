//! Frames between the rings of programs and the wire: RoCE v1, and v2 for programs that ask for it.
//!
//! A thread of its own, so that packets do not wait for connection management nor the other way round. It alone has the
//! packet sockets: who has one may receive and send anything. Programs write packets from GRH or IP header on into their
//! rings; [`rules`] says which may leave, and hardware addresses, VLAN tag and type of the frame are written here. What
//! arrives goes to the ring of the program that holds the slot in its DestQP; queue pair 1 is the broker's own.
//!
//! A VLAN's frames are sent by the interface below it, with a tag that is written here: so its priority is that of the
//! packet's service level, whatever map the VLAN has. They are received from the VLAN, where the kernel has taken the tag
//! out.

mod drops;
mod neighbours;
mod rules;
mod scout;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ferroce_datapath::packet::{EtherSocket, FrameBuffer};
use ferroce_ipc::ring::{ENTRIES, MAX_PACKET, PushError, Rings};
use ferroce_wire::{ETHERTYPE_ROCE, Flow, Gid, LinkLayer, Qpn, RoceVersion};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::{debug, error, warn};

use super::ClientId;
use super::rtnetlink::NeighbourMonitor;
use crate::background::spawn_quietly;
use crate::fork::Guarded;
pub use drops::Counts;
use drops::Drops;
use neighbours::{Found, Neighbours, Settled};
pub use rules::{Reason, Way};

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

/// What the switch is to serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The interfaces that hold the addresses.
    pub ports: Vec<PortView>,
    /// All addresses that are served: of those queue pair 1 is ours.
    pub ways: BTreeSet<Way>,
    /// The programs that hold slots.
    pub programs: Vec<ProgramView>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Its index.
    pub ifindex: u32,
    /// Its hardware address; without one nothing is sent by it.
    pub mac: Option<[u8; 6]>,
    /// The largest packet that it takes.
    pub mtu: u32,
    /// A VLAN: the interface below, and its number.
    pub vlan: Option<(u32, u16)>,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramView {
    /// Its connection.
    pub client: ClientId,
    /// Its slots.
    pub slots: Vec<u8>,
    /// The addresses of its devices.
    pub ways: BTreeSet<Way>,
    /// Packets of RoCE v2 to its slots come by the rings as well.
    pub v2: bool,
}

/// A packet to queue pair 1.
#[derive(Debug)]
pub struct ToGsi {
    /// How it came: version and interface.
    pub link: LinkLayer,
    /// From the GRH or IP header on.
    pub packet: Vec<u8>,
}

/// The broker's handle. Dropping it ends the thread.
#[derive(Debug)]
pub struct Switch {
    shared: Arc<Shared>,
    running: bool,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// The thread is to look at the table.
    wake: Guarded<OwnedFd>,
    /// Something is in [`Table::gsi`].
    gsi: Guarded<OwnedFd>,
    /// The kernel is to be asked something.
    asked: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    ended: bool,
    /// Grows whenever there are other descriptors to wait for.
    generation: u64,
    ways: BTreeSet<Way>,
    ports: BTreeMap<u32, Port>,
    programs: BTreeMap<ClientId, Program>,
    slots: BTreeMap<u8, ClientId>,
    neighbours: Neighbours,
    gsi: VecDeque<ToGsi>,
    drops: Drops,
}

#[derive(Debug)]
struct Port {
    view: PortView,
    /// For RoCE v1.
    v1: Option<Arc<Guarded<EtherSocket>>>,
    /// For RoCE v2, over IPv4 and over IPv6.
    v2: Vec<Arc<Guarded<EtherSocket>>>,
    /// Where frames leave: of a VLAN the interface below.
    tx: Option<Arc<Guarded<EtherSocket>>>,
}

#[derive(Debug)]
struct Program {
    view: ProgramView,
    open: Option<Open>,
}

/// A program's rings.
#[derive(Debug)]
struct Open {
    rings: Rings,
    bell: Arc<Guarded<OwnedFd>>,
}

/// What to do with a packet that passed.
struct Outgoing<'a> {
    link: LinkLayer,
    from: IpAddr,
    to: IpAddr,
    dest_qp: Qpn,
    packet: &'a [u8],
}

impl Switch {
    /// A switch that serves nothing.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        let counter = || {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok::<_, io::Error>(Guarded::new(fd))
        };
        let shared =
            Shared { table: Mutex::default(), wake: counter()?, gsi: counter()?, asked: Condvar::new() };
        Ok(Self { shared: Arc::new(shared), running: false })
    }

    /// Serves this from now on.
    pub fn follow(&mut self, view: View) {
        if !self.running && !view.ways.is_empty() {
            let shared = Arc::clone(&self.shared);
            match spawn_quietly("ferroce-switch", move || run(&shared)) {
                Ok(()) => self.running = true,
                Err(e) => error!("no frames are sent or received: {e}"),
            }
            let shared = Arc::clone(&self.shared);
            if let Err(e) = spawn_quietly("ferroce-scout", move || scout::run(&shared, &scout::Here)) {
                error!("no neighbours are looked for: {e}");
            }
        }
        self.shared.table.lock().follow(view);
        self.shared.look();
    }

    /// Opens rings to a program that [`Switch::follow`] named. Returns their memory.
    ///
    /// # Errors
    /// `NotFound` for any other; otherwise those of [`Rings::create`].
    pub fn open(&mut self, client: ClientId, bell: OwnedFd) -> io::Result<OwnedFd> {
        let mut table = self.shared.table.lock();
        // Between programs here nothing is needed.
        if !table.ports.values().any(|port| port.tx.is_some() || port.view.mac.is_none()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let program = table.programs.get_mut(&client).ok_or(io::ErrorKind::NotFound)?;
        let (rings, memory) = Rings::create()?;
        program.open = Some(Open { rings, bell: Arc::new(Guarded::new(bell)) });
        table.generation += 1;
        drop(table);
        self.shared.look();
        Ok(memory)
    }

    /// Readable when [`Switch::take_gsi`] has something.
    pub fn gsi_fd(&self) -> BorrowedFd<'_> {
        self.shared.gsi.as_fd()
    }

    /// The next packet to queue pair 1.
    pub fn take_gsi(&self) -> Option<ToGsi> {
        let mut table = self.shared.table.lock();
        let next = table.gsi.pop_front();
        if next.is_none() {
            let _ = rustix::io::read(&*self.shared.gsi, &mut [0; 8]);
        }
        next
    }

    /// What was dropped since this was last asked for, by interface; 0 for none.
    pub fn take_drops(&self) -> BTreeMap<u32, Counts> {
        self.shared.table.lock().drops.take()
    }

    /// Sends a packet of queue pair 1, from the GRH or IP header on. One that cannot be sent is lost.
    pub fn send(&self, flow: &Flow, packet: &[u8]) {
        let mut table = self.shared.table.lock();
        let (from, to) = (flow.source, flow.destination);
        table.send(Instant::now(), &Outgoing { link: flow.link, from, to, dest_qp: Qpn::GSI, packet });
        self.shared.pass_on(&mut table);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.table.lock().ended = true;
        self.shared.asked.notify_all();
        self.shared.look();
    }
}

impl Shared {
    fn look(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Shows programs what was put into their rings, and the other threads what is for them.
    fn pass_on(&self, table: &mut Table) {
        let Table { programs, ports, drops, generation, .. } = table;
        for program in programs.values_mut() {
            let Some(open) = &mut program.open else { continue };
            match open.rings.tx.publish() {
                Ok(true) => ring(&*open.bell),
                Ok(false) => {}
                Err(_) => {
                    *generation += close(program);
                    drops.count(program.interface(ports, 0), Reason::Rings);
                }
            }
        }
        if !table.gsi.is_empty() {
            let _ = rustix::io::write(&*self.gsi, &1_u64.to_ne_bytes());
        }
        if table.neighbours.has_questions() {
            self.asked.notify_one();
        }
    }
}

/// Rings a bell: a socket of packets. Never waits, whatever the other side did to it; one that is full has been rung.
pub fn ring(bell: &impl AsFd) {
    use rustix::net::{SendFlags, send};
    let _ = send(bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Silences a bell; whether its other end is there.
pub fn silence(bell: &impl AsFd) -> bool {
    use rustix::net::{RecvFlags, recv};
    let mut octets = [0_u8; 8];
    for _ in 0..BURST {
        match recv(bell, octets.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// Ends a program's rings, whose indices make no sense.
fn close(program: &mut Program) -> u64 {
    warn!(client = ?program.view.client, "the rings of a program make no sense: closed");
    program.open = None;
    1
}

/// What the thread waits for.
#[derive(Default)]
struct Waits {
    generation: Option<u64>,
    ports: Vec<(u32, Arc<Guarded<EtherSocket>>)>,
    bells: Vec<(ClientId, Arc<Guarded<OwnedFd>>)>,
}

fn run(shared: &Shared) {
    let monitor = NeighbourMonitor::open().map(Guarded::new);
    let monitor = monitor.inspect_err(|e| warn!("changes of neighbours will not be seen: {e}")).ok();
    let mut waits = Waits::default();
    let mut more = false;
    let mut buffers = Buffers { frame: FrameBuffer::new(), packet: Box::new([0; MAX_PACKET]) };
    loop {
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        match &monitor {
            Some(monitor) => fds.push(PollFd::new(monitor, PollFlags::IN)),
            None => fds.push(PollFd::new(&shared.wake, PollFlags::empty())),
        }
        fds.extend(waits.ports.iter().map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN)));
        fds.extend(waits.bells.iter().map(|(_, bell)| PollFd::new(&**bell, PollFlags::IN)));
        let limit = Timespec { tv_sec: if more { 0 } else { 3600 }, tv_nsec: 0 };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                error!("the switch cannot wait: {e}");
                return;
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        if is_ready(0) {
            let _ = rustix::io::read(&*shared.wake, &mut [0; 8]);
        }
        let now = Instant::now();
        let mut table = shared.table.lock();
        if table.ended {
            return;
        }
        if is_ready(1)
            && let Some(monitor) = &monitor
        {
            table.hear_of_neighbours(monitor);
        }
        for (index, (ifindex, socket)) in waits.ports.iter().enumerate() {
            if is_ready(2 + index) {
                table.receive(*ifindex, socket, &mut buffers);
            }
        }
        let first = 2 + waits.ports.len();
        for (index, (client, bell)) in waits.bells.iter().enumerate() {
            if is_ready(first + index) && !silence(&**bell) {
                table.hang_up(*client, bell);
            }
        }
        more = table.take_from_programs(now, &mut buffers);
        shared.pass_on(&mut table);
        if waits.generation != Some(table.generation) {
            waits = table.waits();
        }
    }
}

struct Buffers {
    frame: FrameBuffer,
    packet: Box<[u8; MAX_PACKET]>,
}

impl Table {
    fn follow(&mut self, view: View) {
        let View { ports, ways, programs } = view;
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
            let port = self.ports.entry(view.ifindex).or_insert_with(|| Port::new(view));
            let ifindex = port.view.ifindex;
            port.serve(on(ifindex, RoceVersion::V1), v2 && on(ifindex, RoceVersion::V2));
        }
        self.ways = ways;
        let gone: Vec<ClientId> = self.programs.keys().copied().collect();
        for client in gone.into_iter().filter(|client| programs.iter().all(|p| p.client != *client)) {
            self.take_last(client);
        }
        self.programs.retain(|client, _| programs.iter().any(|program| program.client == *client));
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

    fn waits(&self) -> Waits {
        let sockets = |(ifindex, port): (&u32, &Port)| {
            let all: Vec<_> =
                port.v1.iter().chain(&port.v2).map(|socket| (*ifindex, Arc::clone(socket))).collect();
            all
        };
        let bell = |(client, program): (&ClientId, &Program)| {
            Some((*client, Arc::clone(&program.open.as_ref()?.bell)))
        };
        Waits {
            generation: Some(self.generation),
            ports: self.ports.iter().flat_map(sockets).collect(),
            bells: self.programs.iter().filter_map(bell).collect(),
        }
    }

    fn count(&mut self, ifindex: u32, reason: Reason) {
        debug!(ifindex, %reason, "dropped a frame");
        self.drops.count(ifindex, reason);
    }

    /// What a program put into its ring before it ended, its last acknowledgement perhaps.
    fn take_last(&mut self, client: ClientId) {
        let mut packet = Box::new([0; MAX_PACKET]);
        for _ in 0..=ENTRIES as usize / BURST {
            if !self.take_from(Instant::now(), client, &mut packet) {
                break;
            }
        }
    }

    fn hang_up(&mut self, client: ClientId, bell: &Arc<Guarded<OwnedFd>>) {
        self.take_last(client);
        if let Some(program) = self.programs.get_mut(&client)
            && program.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.bell, bell))
        {
            program.open = None;
            self.generation += 1;
        }
    }

    fn hear_of_neighbours(&mut self, monitor: &NeighbourMonitor) {
        let whole = monitor.drain(|neighbour| {
            let settled = self.neighbours.changed(&neighbour);
            self.settle(neighbour.ifindex, settled);
        });
        if !whole {
            self.neighbours.doubt(|_| true);
        }
    }

    /// Sends frames that waited for their neighbour.
    fn settle(&mut self, ifindex: u32, settled: Settled) {
        for frame in &settled.ready {
            match self.ports.get(&ifindex).and_then(|port| port.tx.as_ref()).map(|tx| tx.send(frame)) {
                Some(Ok(())) => {}
                Some(Err(_)) => self.count(ifindex, Reason::Refused),
                None => self.count(ifindex, Reason::Port),
            }
        }
        for _ in 0..settled.lost {
            self.count(ifindex, Reason::Neighbour);
        }
    }

    /// Takes what arrived at an interface.
    fn receive(&mut self, ifindex: u32, socket: &EtherSocket, buffers: &mut Buffers) {
        for _ in 0..BURST {
            let frame = match socket.recv(&mut buffers.frame) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(e) => {
                    debug!(ifindex, "cannot receive: {e}");
                    return;
                }
            };
            // A tag that is left is that of a VLAN that we do not have; number 0 is none.
            if !frame.meant || frame.vlan.is_some_and(|tci| tci & 0xfff != 0) {
                continue;
            }
            match rules::may_receive(&self.ways, ifindex, frame.bytes) {
                Ok((link, start, passed)) if link.version == RoceVersion::V2 => {
                    // Those of others, and of queue pair 1, go by sockets.
                    let slot = (passed.dest_qp.value() >> 16) as u8;
                    let program = self.slots.get(&slot).and_then(|client| self.programs.get(client));
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
    }

    /// Puts a packet, in two pieces, into the ring of whom it is for.
    fn deliver(&mut self, link: LinkLayer, dest_qp: Qpn, front: &[u8], back: &[u8]) {
        if dest_qp == Qpn::GSI {
            match self.gsi.len() < MOST_GSI {
                true => self.gsi.push_back(ToGsi { link, packet: [front, back].concat() }),
                false => self.count(link.ifindex, Reason::Full),
            }
            return;
        }
        let slot = (dest_qp.value() >> 16) as u8;
        let program = self.slots.get(&slot).and_then(|client| self.programs.get_mut(client));
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

    /// Takes what programs put into their rings, in turns. Whether there is more.
    fn take_from_programs(&mut self, now: Instant, buffers: &mut Buffers) -> bool {
        let clients: Vec<ClientId> = self
            .programs
            .iter()
            .filter(|(_, program)| program.open.is_some())
            .map(|(client, _)| *client)
            .collect();
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

    /// One turn; whether there is more.
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
            let ProgramView { ways, slots, .. } = &program.view;
            match mtu.and_then(|mtu| rules::may_send(ways, slots, mtu, link, packet)) {
                Ok(passed) => {
                    let packet = packet.get(..passed.len).unwrap_or_default();
                    let (from, to, dest_qp) = (passed.source, passed.destination, passed.dest_qp);
                    self.send(now, &Outgoing { link, from, to, dest_qp, packet });
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
    fn send(&mut self, now: Instant, out: &Outgoing<'_>) {
        let gid = Gid::from_ip(out.to);
        let (low, high) = (0, u32::MAX);
        let at = |ifindex| Way { version: out.link.version, gid, ifindex };
        // One of our own; of link-local ones there may be several.
        let same = self.ways.contains(&at(out.link.ifindex)).then_some(out.link.ifindex);
        let any = || self.ways.range(at(low)..=at(high)).next().map(|way| way.ifindex);
        let link_local = matches!(out.to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if let Some(ifindex) = same.or_else(|| if link_local { None } else { any() }) {
            return self.deliver(LinkLayer { ifindex, ..out.link }, out.dest_qp, out.packet, &[]);
        }
        if let Err(reason) = self.transmit(now, out) {
            self.count(out.link.ifindex, reason);
        }
    }

    fn transmit(&mut self, now: Instant, out: &Outgoing<'_>) -> Result<(), Reason> {
        let Self { ports, neighbours, .. } = self;
        let LinkLayer { version, sl, ifindex } = out.link;
        let port = ports.get(&ifindex).ok_or(Reason::Port)?;
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
    fn interface(&self, ports: &BTreeMap<u32, Port>, named: u32) -> u32 {
        let first = || self.view.ways.first().map_or(0, |way| way.ifindex);
        if ports.contains_key(&named) { named } else { first() }
    }
}

impl Port {
    fn new(view: PortView) -> Self {
        Self { view, v1: None, v2: Vec::new(), tx: None }
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
        let opened = |ifindex, ethertype| taken(EtherSocket::open(ifindex, ethertype));
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
            self.tx = match (&self.v1, vlan) {
                (_, Some((below, _))) => opened(below, 0),
                (Some(socket), None) => Some(Arc::clone(socket)),
                (None, None) => opened(ifindex, 0),
            };
        }
    }
}
