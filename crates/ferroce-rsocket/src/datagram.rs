//! Datagram rsockets: a UDP socket, and a queue pair of datagrams for each device that is used.
//!
//! The first datagram to somebody goes by UDP, behind a locator that says which queue pair we have; the peer's service
//! takes it to its program and answers with a locator of its own. From then on datagrams go from queue pair to queue pair.
//! Both ways are as lossy as UDP.

mod outlet;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use crate::message::{Locator, LocatorKind, SourceHeader};
use ferroce_wire::{Gid, Qpn};
use parking_lot::{Mutex, MutexGuard};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::place;
use super::service::{self, ReceiveUdp, Task};
use super::settings::Settings;
use super::waker::{Patience, Waker};
use crate::error::{Ready, RsocketError};
use ferroce_engine::cm::attributes;
use ferroce_engine::cm::resolve::{self, Route};
use ferroce_engine::{Ah, AhAttr, CompletionChannel};
use ferroce_engine::{Held, Sleep};
use ferroce_host::event;
use ferroce_host::fork::{self, Guarded};
use outlet::{Inbox, Outlet, SLOT};

/// Peers that are remembered. One more, and all are found out again.
const MAX_PEERS: usize = 4096;
/// Datagrams that came by UDP and wait.
const MAX_FORWARDED: usize = 256;
/// Datagrams of the UDP socket that the service takes before others have their turn.
const HEARD_AT_ONCE: usize = 64;

/// A datagram rsocket.
#[doc(alias = "rsocket")]
pub struct Datagram {
    me: Weak<Datagram>,
    udp: Arc<Guarded<UdpSocket>>,
    v6: bool,
    state: Mutex<State>,
}

/// Somebody that was sent to, or was heard of.
struct Peer {
    /// By which outlet, and from which address of ours.
    outlet: usize,
    source: SocketAddr,
    /// The way, and the queue pair once it is known.
    ah: Arc<Ah>,
    qpn: Option<Qpn>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.ah.destroy();
    }
}

struct State {
    settings: Settings,
    outlets: Vec<Outlet>,
    peers: BTreeMap<SocketAddr, Peer>,
    connected: Option<SocketAddr>,
    inbox: Inbox,
    /// What came by UDP, and from whom.
    forwarded: VecDeque<(SocketAddr, Vec<u8>)>,
    started: bool,
    closed: bool,
    sleeper: bool,
    waiting: Vec<Arc<Waker>>,
}

type Guard<'a> = MutexGuard<'a, State>;

impl State {
    fn pump(&mut self) -> bool {
        let Self { outlets, inbox, .. } = self;
        let mut moved = false;
        for (index, outlet) in outlets.iter_mut().enumerate() {
            moved |= outlet.pump(|message| inbox.push_back((index, message)));
        }
        if moved {
            self.wake();
        }
        moved
    }

    fn wake(&mut self) {
        self.waiting.iter().for_each(|waker| waker.wake());
        if self.sleeper {
            self.outlets.iter().take(1).for_each(|outlet| outlet.channel.nudge());
        }
    }

    fn has_input(&self) -> bool {
        self.closed || !self.forwarded.is_empty() || !self.inbox.is_empty()
    }

    fn ready(&self) -> Ready {
        let writable = self.outlets.iter().all(Outlet::has_room);
        Ready { readable: self.has_input(), writable, ..Ready::default() }
    }
}

impl Datagram {
    /// A socket without address.
    ///
    /// # Errors
    ///
    /// Those of `socket`.
    pub fn new(v6: bool) -> io::Result<Arc<Self>> {
        fork::install();
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let udp = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let udp = Arc::new(Guarded::new(UdpSocket::from(udp)));
        let state = State {
            settings: Settings::usual(),
            outlets: Vec::new(),
            peers: BTreeMap::new(),
            connected: None,
            inbox: VecDeque::new(),
            forwarded: VecDeque::new(),
            started: false,
            closed: false,
            sleeper: false,
            waiting: Vec::new(),
        };
        Ok(Arc::new_cyclic(|me| Self { me: me.clone(), udp, v6, state: Mutex::new(state) }))
    }

    /// The UDP socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }

    /// What the program chose.
    pub fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Changes what the program chose. Whether it counts: once there is a queue pair it comes too late.
    pub fn choose(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = self.state.lock();
        let early = state.outlets.is_empty();
        if early {
            change(&mut state.settings);
        }
        early
    }

    /// An address as this socket's family has it: IPv4's are mapped in IPv6.
    fn own_form(&self, address: SocketAddr) -> SocketAddr {
        let ip = match address.ip().to_canonical() {
            IpAddr::V4(v4) if self.v6 => v4.to_ipv6_mapped().into(),
            _ if self.v6 => return address,
            ip => ip,
        };
        SocketAddr::new(ip, address.port())
    }

    /// Its address.
    ///
    /// # Errors
    ///
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Whom it is connected to.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state.lock().connected
    }

    /// Takes an address and a port.
    ///
    /// # Errors
    ///
    /// Those of `bind`.
    #[doc(alias = "rbind")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), RsocketError> {
        rustix::net::bind(self.udp.as_fd(), &address).map_err(io::Error::from)?;
        self.start(&mut self.state.lock())
    }

    /// From now on sends to `address`, and hears nobody else before it is found.
    ///
    /// # Errors
    ///
    /// Those of `connect`; that there is no way.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, address: SocketAddr) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        self.start(&mut state)?;
        self.udp.connect(address)?;
        self.peer(&mut state, address)?;
        state.connected = Some(address);
        Ok(())
    }

    /// Has the service hear the UDP socket, which gets a port if it has none.
    fn start(&self, state: &mut State) -> Result<(), RsocketError> {
        if state.started {
            return Ok(());
        }
        let mut local = self.udp.local_addr()?;
        if local.port() == 0 {
            local.set_ip(if local.is_ipv4() {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            });
            rustix::net::bind(self.udp.as_fd(), &local).map_err(io::Error::from)?;
        }
        service::start()?;
        service::push(Task::Receive(self.me.clone() as _, Arc::clone(&self.udp)));
        state.started = true;
        Ok(())
    }

    /// Whoever has this address, as far as is known; finds out by which device to go.
    fn peer<'a>(&self, state: &'a mut State, address: SocketAddr) -> Result<&'a mut Peer, RsocketError> {
        if !state.peers.contains_key(&address) {
            let local = self.udp.local_addr()?;
            let route = resolve::route(Some(local).filter(|local| !local.ip().is_unspecified()), address)?;
            let outlet = self.outlet(state, &route)?;
            let mut source = route.source;
            source.set_port(local.port());
            let tos = route.type_of_service(state.settings.tos);
            let ah = AhAttr {
                dgid: Gid::from_ip(route.destination.ip()),
                sgid_index: route.local.gid.index as u8,
                hop_limit: route.hop_limit,
                traffic_class: tos,
                sl: attributes::service_level(tos),
                ..AhAttr::default()
            };
            let pd = &state.outlets[outlet].home.pd;
            let ah = pd.create_ah(ah).map_err(RsocketError::resource)?;
            if state.peers.len() >= MAX_PEERS {
                state.peers.clear();
            }
            state.peers.insert(address, Peer { outlet, source, ah, qpn: None });
        }
        state.peers.get_mut(&address).ok_or(RsocketError::Invalid)
    }

    fn outlet(&self, state: &mut State, route: &Route) -> Result<usize, RsocketError> {
        let home = place::home(&route.local.device)?;
        if let Some(index) = state.outlets.iter().position(|outlet| Arc::ptr_eq(&outlet.home, &home)) {
            return Ok(index);
        }
        state.outlets.push(Outlet::new(home, &state.settings)?);
        // Who waits did not know of it.
        state.wake();
        Ok(state.outlets.len() - 1)
    }

    /// Sends a datagram to `address`, or to whom it is connected.
    ///
    /// # Errors
    ///
    /// [`RsocketError::NotConnected`] without an address; [`RsocketError::TooLong`]; [`RsocketError::WouldBlock`] if it must
    /// not wait.
    #[doc(alias = "rsendto")]
    pub fn send(
        &self,
        octets: &[&[u8]],
        address: Option<SocketAddr>,
        nonblocking: bool,
    ) -> Result<usize, RsocketError> {
        let mut state = self.state.lock();
        let address = address.or(state.connected).ok_or(RsocketError::NotConnected)?;
        let address = self.own_form(address);
        self.start(&mut state)?;
        let length: usize = octets.iter().map(|piece| piece.len()).sum();
        if length > SLOT - SourceHeader::MAX_LEN {
            return Err(RsocketError::TooLong);
        }
        let outlet = self.peer(&mut state, address)?.outlet;
        let room = |state: &State| state.outlets.get(outlet).is_none_or(Outlet::has_room);
        let mut state = self.wait(state, Patience::unless(nonblocking), room)?;
        // It may have been forgotten meanwhile.
        let Peer { source, qpn, ref ah, .. } = *self.peer(&mut state, address)?;
        let (ah, qpn) = (Arc::clone(ah), qpn);
        match (qpn, state.outlets.get_mut(outlet)) {
            (Some(qpn), Some(way)) => {
                let source = SocketAddr::new(source.ip().to_canonical(), source.port());
                way.send(&SourceHeader(source), octets, &ah, qpn)?;
            }
            (None, Some(way)) => {
                let own = way.qpn();
                self.locate(LocatorKind::Data, own, source.ip(), octets, address)?;
            }
            (_, None) => return Err(RsocketError::Closed),
        }
        Ok(length)
    }

    /// Says by UDP which queue pair is ours.
    fn locate(
        &self,
        kind: LocatorKind,
        qpn: Qpn,
        own: IpAddr,
        octets: &[&[u8]],
        to: SocketAddr,
    ) -> io::Result<()> {
        let mut room = [0; Locator::MAX_LEN];
        let length = Locator { kind, qpn, address: own.to_canonical() }.emit(&mut room);
        let mut datagram = room[..length].to_vec();
        octets.iter().for_each(|piece| datagram.extend_from_slice(piece));
        self.udp.send_to(&datagram, to).map(drop)
    }

    /// Receives a datagram into `out`, as far as there is room; its length and whom it is from. With `peek` it can be
    /// received again.
    ///
    /// # Errors
    ///
    /// [`RsocketError::WouldBlock`] if it must not wait.
    #[doc(alias = "rrecvfrom")]
    pub fn receive(
        &self,
        out: &mut [&mut [u8]],
        nonblocking: bool,
        peek: bool,
    ) -> Result<(usize, SocketAddr), RsocketError> {
        let mut state = self.state.lock();
        self.start(&mut state)?;
        loop {
            state = self.wait(state, Patience::unless(nonblocking), State::has_input)?;
            if let Some((from, octets)) = state.forwarded.front() {
                let told = (scatter(octets, out), *from);
                if !peek {
                    state.forwarded.pop_front();
                }
                return Ok(told);
            }
            let Some(&(index, message)) = state.inbox.front() else { continue };
            let Some(outlet) = state.outlets.get(index) else { return Err(RsocketError::Closed) };
            let mut octets = [0; SLOT];
            outlet.read(message, &mut octets);
            let parsed = SourceHeader::parse(&octets[..message.length.min(SLOT)]);
            let told = parsed.map(|(SourceHeader(from), behind)| {
                (scatter(behind, out), self.own_form(scoped(&state, index, from)))
            });
            if !peek || told.is_err() {
                outlet.give_back(message);
                state.inbox.pop_front();
            }
            // Without a header it is nobody's.
            if let Ok(told) = told {
                return Ok(told);
            }
        }
    }

    /// Takes what came by UDP; on the service's thread.
    fn take_from_udp(&self) {
        let mut room = [0; SLOT + Locator::MAX_LEN];
        for _ in 0..HEARD_AT_ONCE {
            // Nothing there, or an ICMP error that only says that a datagram was lost.
            let Ok((length, _, Some(from))) =
                rustix::net::recvfrom(self.udp.as_fd(), &mut room[..], RecvFlags::DONTWAIT)
            else {
                return;
            };
            let (Ok(from), Ok((locator, octets))) =
                (SocketAddr::try_from(from), Locator::parse(&room[..length.min(room.len())]))
            else {
                continue;
            };
            if let Err(error) = self.heard(from, locator, octets) {
                tracing::debug!(%error, %from, "a datagram of an rsocket was dropped");
            }
        }
    }

    fn heard(&self, from: SocketAddr, locator: Locator, octets: &[u8]) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(RsocketError::Closed);
        }
        let peer = self.peer(&mut state, from)?;
        peer.qpn = Some(locator.qpn);
        let (outlet, source) = (peer.outlet, peer.source);
        if locator.kind == LocatorKind::Answer {
            return Ok(());
        }
        let Some(own) = state.outlets.get(outlet).map(Outlet::qpn) else { return Ok(()) };
        if state.forwarded.len() < MAX_FORWARDED {
            state.forwarded.push_back((from, octets.to_vec()));
            state.wake();
        }
        self.locate(LocatorKind::Answer, own, source.ip(), &[], from)?;
        Ok(())
    }

    /// What can be done without waiting.
    pub fn ready(&self) -> Ready {
        let mut state = self.state.lock();
        state.pump();
        state.ready()
    }

    /// As [`super::Stream::watch`].
    ///
    /// # Errors
    ///
    /// If it cannot be heard.
    pub fn watch(&self, waker: &Arc<Waker>) -> Result<(Ready, Vec<Arc<CompletionChannel>>), RsocketError> {
        let mut state = self.state.lock();
        self.start(&mut state)?;
        if !state.waiting.iter().any(|known| Arc::ptr_eq(known, waker)) {
            state.waiting.push(Arc::clone(waker));
        }
        let channels = if state.sleeper { Vec::new() } else { state.channels() };
        state.outlets.iter().for_each(Outlet::arm);
        state.pump();
        Ok((state.ready(), channels))
    }

    /// Takes [`Self::watch`] back.
    pub fn unwatch(&self, waker: &Arc<Waker>) {
        self.state.lock().waiting.retain(|known| !Arc::ptr_eq(known, waker));
    }

    /// Waits until `done` says so.
    fn wait<'a>(
        &'a self,
        mut state: Guard<'a>,
        patience: Patience,
        done: impl Fn(&State) -> bool,
    ) -> Result<Guard<'a>, RsocketError> {
        loop {
            if state.closed {
                return Err(RsocketError::Closed);
            }
            if done(&state) {
                return Ok(state);
            }
            if state.pump() {
                continue;
            }
            if patience == Patience::None {
                return Err(RsocketError::WouldBlock);
            }
            if let Some(sleep) = self.fall_asleep(&mut state)? {
                patience.spend(sleep, &mut state)?;
            }
        }
    }

    /// Prepares a sleep until something may have changed, as a stream does if there is one outlet. `None`: something may have.
    fn fall_asleep(&self, state: &mut Guard<'_>) -> Result<Option<Sleep>, RsocketError> {
        let me = self.me.upgrade().ok_or(RsocketError::Closed)?;
        let channels = if state.sleeper { Vec::new() } else { state.channels() };
        if !state.sleeper {
            state.outlets.iter().for_each(Outlet::arm);
            if state.pump() {
                return Ok(None);
            }
        }
        if let [channel] = &channels[..] {
            state.sleeper = true;
            let held = Held::Own(Box::new(Sleeper { me, channel: Arc::clone(channel) }));
            return Ok(MutexGuard::unlocked(state, || channel.doze(held)));
        }
        let waker = Waker::own()?;
        state.waiting.push(Arc::clone(&waker));
        let mut fds: Vec<_> = channels.iter().map(|channel| event::readable(channel.fd())).collect();
        fds.push(event::readable(waker.fd()));
        let held = Held::Own(Box::new(Waiter { me, waker, _channels: channels.clone() }));
        Ok(MutexGuard::unlocked(state, || Sleep::on_channels(&channels, fds, held)))
    }

    /// Ends it, when what was sent has left. Calls that wait return.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        let state = self.state.lock();
        let mut state =
            match self.wait(state, Patience::Sleep, |state| state.outlets.iter().all(Outlet::is_drained)) {
                Ok(state) => state,
                Err(_) => self.state.lock(),
            };
        state.closed = true;
        state.wake();
        let ended = (std::mem::take(&mut state.peers), std::mem::take(&mut state.outlets));
        state.inbox.clear();
        drop(state);
        drop(ended);
    }
}

/// The thread that sleeps on the completion channel of the only outlet.
struct Sleeper {
    me: Arc<Datagram>,
    channel: Arc<CompletionChannel>,
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.channel.take_back();
        let mut state = self.me.state.lock();
        state.sleeper = false;
        state.waiting.iter().for_each(|waker| waker.wake());
    }
}

/// A thread that waits in the list, and on several channels, which live as long as the system looks at their descriptors.
struct Waiter {
    me: Arc<Datagram>,
    waker: Arc<Waker>,
    _channels: Vec<Arc<CompletionChannel>>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.me.unwatch(&self.waker);
    }
}

impl ReceiveUdp for Datagram {
    fn receive_udp(&self) {
        self.take_from_udp();
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        if self.state.get_mut().started {
            service::push(Task::Prune);
        }
    }
}

impl State {
    /// The channels to sleep on, with nothing in them that is known already.
    fn channels(&self) -> Vec<Arc<CompletionChannel>> {
        let channels = self.outlets.iter().map(|outlet| {
            outlet.channel.take_back();
            Arc::clone(&outlet.channel)
        });
        channels.collect()
    }
}

/// The address of somebody that came by this outlet, with its interface if it is link-local: the header says none. Their
/// first datagram came by UDP, which does.
fn scoped(state: &State, outlet: usize, from: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(v6) = from else { return from };
    if !v6.ip().is_unicast_link_local() || v6.scope_id() != 0 {
        return from;
    }
    let same = |known: &&SocketAddrV6| (known.ip(), known.port()) == (v6.ip(), v6.port());
    let scope =
        state.peers.iter().filter(|(_, peer)| peer.outlet == outlet).find_map(|(known, _)| match known {
            SocketAddr::V6(known) => Some(known).filter(same).map(SocketAddrV6::scope_id),
            SocketAddr::V4(_) => None,
        });
    let device = || state.outlets.get(outlet).map_or(0, |outlet| outlet.home.context.info().ifindex);
    SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), scope.unwrap_or_else(device)).into()
}

/// Copies octets to several places, as far as there is room; how many.
fn scatter(mut octets: &[u8], out: &mut [&mut [u8]]) -> usize {
    let all = octets.len();
    for piece in out {
        let (head, tail) = octets.split_at(octets.len().min(piece.len()));
        piece[..head.len()].copy_from_slice(head);
        octets = tail;
    }
    all - octets.len()
}
