//! Datagram rsockets: a UDP socket, and one UD queue pair for each device in use.
//!
//! The first datagram to a peer is sent by UDP behind a locator that names our queue pair. The peer's service
//! thread queues it for the program and answers with a locator of its own. Later datagrams travel between the
//! queue pairs. Either path may lose datagrams, as UDP does.

mod endpoint;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use crate::message::{Locator, LocatorKind, SourceHeader};
use ferroce_wire::{Gid, Qpn};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::device;
use super::service::{self, Task};
use super::settings::Settings;
use super::waker::{Blocking, Waker};
use crate::error::{Ready, RsocketError};
use endpoint::{Endpoint, Inbox, SLOT};
use ferroce_engine::cm::attributes;
use ferroce_engine::cm::resolve::{self, Route};
use ferroce_engine::{Ah, AhAttr, CompletionChannel};
use ferroce_engine::{Held, Sleep};
use ferroce_host::event;
use ferroce_host::fork::{self, Guarded};

/// A further peer clears the table; each peer is then resolved again.
const MAX_PEERS: usize = 4096;
/// Limit of queued datagrams that arrived by UDP.
const MAX_FORWARDED: usize = 256;
/// Datagrams that the service reads from one UDP socket before it serves the next.
const UDP_BATCH: usize = 64;

#[doc(alias = "rsocket")]
pub struct Datagram {
    me: Weak<Datagram>,
    udp: Arc<Guarded<UdpSocket>>,
    v6: bool,
    state: Mutex<DatagramState>,
}

struct Peer {
    /// Index into `DatagramState::endpoints`, and our address towards this peer.
    endpoint: usize,
    source: SocketAddr,
    /// The queue pair number is `None` until the peer's locator arrives.
    ah: Arc<Ah>,
    qpn: Option<Qpn>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.ah.destroy();
    }
}

#[derive(Default)]
struct DatagramState {
    settings: Settings,
    endpoints: Vec<Endpoint>,
    peers: BTreeMap<SocketAddr, Peer>,
    connected: Option<SocketAddr>,
    /// The kernel's form of that address: of no other sender is anything received.
    only: Option<SocketAddr>,
    inbox: Inbox,
    /// Datagrams that arrived by UDP, with their senders.
    forwarded: VecDeque<(SocketAddr, Vec<u8>)>,
    started: bool,
    closed: bool,
    /// A device in use is gone. The next call that would wait fails once; further datagrams travel by other
    /// devices.
    failed: bool,
    sleeper: bool,
    waiting: Vec<Arc<Waker>>,
}

type Guard<'a> = MutexGuard<'a, DatagramState>;

impl DatagramState {
    fn pump(&mut self) -> bool {
        let Self { endpoints, inbox, only, .. } = self;
        let mut moved = false;
        for (index, endpoint) in endpoints.iter_mut().enumerate() {
            moved |= endpoint.pump(*only, |message| inbox.push_back((index, message)));
        }
        moved |= self.drop_lost();
        if moved {
            self.wake();
        }
        moved
    }

    /// Gives up the queue pairs whose devices are gone, and returns whether there were any. Their messages
    /// can still be read.
    fn drop_lost(&mut self) -> bool {
        let Self { endpoints, peers, failed, .. } = self;
        let mut any = false;
        for (index, endpoint) in endpoints.iter_mut().enumerate().filter(|(_, endpoint)| endpoint.is_lost()) {
            endpoint.ended = true;
            peers.retain(|_, peer| peer.endpoint != index);
            any = true;
        }
        *failed |= any;
        any
    }

    fn wake(&mut self) {
        self.waiting.iter().for_each(|waker| waker.wake());
        if self.sleeper {
            let mut live = self.endpoints.iter().filter(|endpoint| !endpoint.ended);
            live.next().inspect(|endpoint| endpoint.queues.channel.nudge());
        }
    }

    fn has_input(&self) -> bool {
        self.closed || !self.forwarded.is_empty() || !self.inbox.is_empty()
    }

    fn ready(&self) -> Ready {
        let writable = self.endpoints.iter().all(Endpoint::has_room);
        Ready { readable: self.has_input() || self.failed, writable, error: self.failed, ..Ready::default() }
    }
}

impl Datagram {
    /// # Errors
    ///
    /// Returns the errors of `socket(2)`.
    pub fn new(v6: bool) -> io::Result<Arc<Self>> {
        fork::install();
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let udp = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let udp = Arc::new(Guarded::new(UdpSocket::from(udp)));
        Ok(Arc::new_cyclic(|me| Self { me: me.clone(), udp, v6, state: Mutex::default() }))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }

    pub fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Returns `false` and changes nothing once a queue pair exists.
    pub fn choose(&self, change: impl FnOnce(&mut Settings)) -> bool {
        let mut state = self.state.lock();
        let early = state.endpoints.is_empty();
        if early {
            change(&mut state.settings);
        }
        early
    }

    /// Converts an address to this socket's family: on an IPv6 socket an IPv4 address becomes v4-mapped.
    fn own_form(&self, address: SocketAddr) -> SocketAddr {
        let ip = match address.ip().to_canonical() {
            IpAddr::V4(v4) if self.v6 => v4.to_ipv6_mapped().into(),
            _ if self.v6 => return address,
            ip => ip,
        };
        SocketAddr::new(ip, address.port())
    }

    /// # Errors
    ///
    /// Returns the errors of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state.lock().connected
    }

    /// # Errors
    ///
    /// Returns the errors of `bind(2)`.
    #[doc(alias = "rbind")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), RsocketError> {
        rustix::net::bind(self.udp.as_fd(), &address).map_err(io::Error::from)?;
        self.start(&mut self.state.lock())
    }

    /// Sends to `address` from now on, and receives from no other address.
    ///
    /// # Errors
    /// Returns the errors of `connect(2)`, and an error without a route.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, address: SocketAddr) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        self.start(&mut state)?;
        self.udp.connect(address)?;
        self.peer(&mut state, address)?;
        state.connected = Some(address);
        state.only = self.udp.peer_addr().ok();
        Ok(())
    }

    /// Registers the UDP socket with the service thread; the socket gets a port if it has none.
    fn start(&self, state: &mut DatagramState) -> Result<(), RsocketError> {
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
        let me = self.me.clone();
        let receive = move || me.upgrade().iter().for_each(|me| me.take_from_udp());
        service::push(Task::Receive(Arc::clone(&self.udp), Box::new(receive)));
        state.started = true;
        Ok(())
    }

    /// Returns the peer of this address; resolves its device and route if the peer is unknown.
    fn peer<'a>(
        &self,
        state: &'a mut DatagramState,
        address: SocketAddr,
    ) -> Result<&'a mut Peer, RsocketError> {
        if !state.peers.contains_key(&address) {
            let local = self.udp.local_addr()?;
            let route = resolve::route(Some(local).filter(|local| !local.ip().is_unspecified()), address)?;
            let endpoint = self.endpoint(state, &route)?;
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
            let pd = &state.endpoints[endpoint].device.pd;
            let ah = pd.create_ah(ah).map_err(RsocketError::resource)?;
            if state.peers.len() >= MAX_PEERS {
                state.peers.clear();
            }
            state.peers.insert(address, Peer { endpoint, source, ah, qpn: None });
        }
        state.peers.get_mut(&address).ok_or(RsocketError::Invalid)
    }

    fn endpoint(&self, state: &mut DatagramState, route: &Route) -> Result<usize, RsocketError> {
        let device = device::open(&route.local.device)?;
        if let Some(index) =
            state.endpoints.iter().position(|endpoint| Arc::ptr_eq(&endpoint.device, &device))
        {
            return Ok(index);
        }
        state.endpoints.push(Endpoint::new(device, &state.settings)?);
        // The waiting threads do not watch this endpoint yet.
        state.wake();
        Ok(state.endpoints.len() - 1)
    }

    /// Sends a datagram to `address`, or to the connected peer.
    ///
    /// # Errors
    /// [`RsocketError::NotConnected`] without an address; [`RsocketError::TooLong`];
    /// [`RsocketError::WouldBlock`] if `nonblocking` is set and no send slot is free.
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
        state.drop_lost();
        let endpoint = self.peer(&mut state, address)?.endpoint;
        let room = |state: &DatagramState| state.endpoints.get(endpoint).is_none_or(Endpoint::has_room);
        let mut state = self.wait(state, Blocking::unless(nonblocking), room)?;
        // The table of peers may have been cleared during the wait.
        let Peer { endpoint, source, qpn, ref ah } = *self.peer(&mut state, address)?;
        let (ah, qpn) = (Arc::clone(ah), qpn);
        match (qpn, state.endpoints.get_mut(endpoint)) {
            (Some(qpn), Some(endpoint)) => {
                let source = SocketAddr::new(source.ip().to_canonical(), source.port());
                endpoint.send(&SourceHeader(source), octets, &ah, qpn)?;
            }
            (None, Some(endpoint)) => {
                let own = endpoint.qpn();
                self.locate(LocatorKind::Data, own, source.ip(), octets, address)?;
            }
            (_, None) => return Err(RsocketError::Closed),
        }
        Ok(length)
    }

    /// Sends a locator with our queue pair number by UDP.
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

    /// Receives a datagram into `out`, cut to its size, and returns its length and its sender. With `peek` it
    /// stays queued.
    ///
    /// # Errors
    ///
    /// [`RsocketError::WouldBlock`] if `nonblocking` is set and no datagram is queued.
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
            state = self.wait(state, Blocking::unless(nonblocking), DatagramState::has_input)?;
            if let Some((from, octets)) = state.forwarded.front() {
                let received = (scatter(octets, out), *from);
                if !peek {
                    state.forwarded.pop_front();
                }
                return Ok(received);
            }
            let Some(&(index, message)) = state.inbox.front() else { continue };
            let Some(endpoint) = state.endpoints.get(index) else { return Err(RsocketError::Closed) };
            let mut octets = [0; SLOT];
            let length = endpoint.read(message, &mut octets);
            let from = self.own_form(scoped(&state, index, message.from));
            if !peek {
                endpoint.give_back(message);
                state.inbox.pop_front();
            }
            return Ok((scatter(&octets[..length], out), from));
        }
    }

    /// Reads the UDP socket; runs on the service's thread.
    fn take_from_udp(&self) {
        let mut room = [0; SLOT + Locator::MAX_LEN];
        for _ in 0..UDP_BATCH {
            // The socket is empty, or it reports an ICMP error, which only means a lost datagram.
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
            if let Err(error) = self.handle_locator(from, locator, octets) {
                tracing::debug!(%error, %from, "an rsocket dropped a datagram");
            }
        }
    }

    fn handle_locator(&self, from: SocketAddr, locator: Locator, octets: &[u8]) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(RsocketError::Closed);
        }
        let peer = self.peer(&mut state, from)?;
        peer.qpn = Some(locator.qpn);
        let (endpoint, source) = (peer.endpoint, peer.source);
        if locator.kind == LocatorKind::Answer {
            return Ok(());
        }
        let Some(own) = state.endpoints.get(endpoint).map(Endpoint::qpn) else { return Ok(()) };
        if state.forwarded.len() < MAX_FORWARDED {
            state.forwarded.push_back((from, octets.to_vec()));
            state.wake();
        }
        self.locate(LocatorKind::Answer, own, source.ip(), &[], from)?;
        Ok(())
    }

    /// Takes completions and returns the operations that would not block.
    pub fn ready(&self) -> Ready {
        let mut state = self.state.lock();
        state.pump();
        state.ready()
    }

    /// See [`super::Stream::watch`].
    ///
    /// # Errors
    ///
    /// If the UDP socket cannot be registered with the service.
    pub fn watch(&self, waker: &Arc<Waker>) -> Result<(Ready, Vec<Arc<CompletionChannel>>), RsocketError> {
        let mut state = self.state.lock();
        self.start(&mut state)?;
        if !state.waiting.iter().any(|known| Arc::ptr_eq(known, waker)) {
            state.waiting.push(Arc::clone(waker));
        }
        let channels = if state.sleeper { Vec::new() } else { state.channels() };
        state.endpoints.iter().for_each(Endpoint::arm);
        state.pump();
        Ok((state.ready(), channels))
    }

    /// Undoes [`Self::watch`].
    pub fn unwatch(&self, waker: &Arc<Waker>) {
        self.state.lock().waiting.retain(|known| !Arc::ptr_eq(known, waker));
    }

    /// Waits until `done` returns true.
    fn wait<'a>(
        &'a self,
        mut state: Guard<'a>,
        blocking: Blocking,
        done: impl Fn(&DatagramState) -> bool,
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
            if std::mem::take(&mut state.failed) {
                return Err(io::Error::from(Errno::IO).into());
            }
            if blocking == Blocking::None {
                return Err(RsocketError::WouldBlock);
            }
            if let Some(sleep) = self.prepare_sleep(&mut state)? {
                blocking.apply(sleep, &mut state)?;
            }
        }
    }

    /// Prepares a sleep until the state may have changed: on the channel if there is exactly one endpoint,
    /// else on a waker. Returns `None` if it has changed already.
    fn prepare_sleep(&self, state: &mut Guard<'_>) -> Result<Option<Sleep>, RsocketError> {
        let me = self.me.upgrade().ok_or(RsocketError::Closed)?;
        let channels = if state.sleeper { Vec::new() } else { state.channels() };
        if !state.sleeper {
            state.endpoints.iter().for_each(Endpoint::arm);
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

    /// Closes the socket after its outstanding sends have completed. Waiting calls return.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        let state = self.state.lock();
        let mut state = match self
            .wait(state, Blocking::Sleep, |state| state.endpoints.iter().all(Endpoint::is_drained))
        {
            Ok(state) => state,
            Err(_) => self.state.lock(),
        };
        state.closed = true;
        state.wake();
        let ended = (std::mem::take(&mut state.peers), std::mem::take(&mut state.endpoints));
        state.inbox.clear();
        drop(state);
        drop(ended);
    }
}

/// The thread that sleeps on the completion channel of the only endpoint.
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

/// A thread that sleeps on its waker and several channels. It keeps the channels open while the kernel polls
/// their descriptors.
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

impl Drop for Datagram {
    fn drop(&mut self) {
        if self.state.get_mut().started {
            service::push(Task::Forget(Arc::clone(&self.udp)));
        }
    }
}

impl DatagramState {
    /// Returns the channels to sleep on, after it consumed their queued events.
    fn channels(&self) -> Vec<Arc<CompletionChannel>> {
        let channels = self.endpoints.iter().filter(|endpoint| !endpoint.ended).map(|endpoint| {
            endpoint.queues.channel.take_back();
            Arc::clone(&endpoint.queues.channel)
        });
        channels.collect()
    }
}

/// Adds the interface to a link-local address, because the source header has none. It is known from the
/// peer's first datagram, which arrived by UDP.
fn scoped(state: &DatagramState, endpoint: usize, from: SocketAddr) -> SocketAddr {
    let SocketAddr::V6(v6) = from else { return from };
    if !v6.ip().is_unicast_link_local() || v6.scope_id() != 0 {
        return from;
    }
    let same = |known: &&SocketAddrV6| (known.ip(), known.port()) == (v6.ip(), v6.port());
    let scope =
        state.peers.iter().filter(|(_, peer)| peer.endpoint == endpoint).find_map(|(known, _)| match known {
            SocketAddr::V6(known) => Some(known).filter(same).map(SocketAddrV6::scope_id),
            SocketAddr::V4(_) => None,
        });
    let device =
        || state.endpoints.get(endpoint).map_or(0, |endpoint| endpoint.device.context.info().ifindex);
    SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), scope.unwrap_or_else(device)).into()
}

/// Copies octets into several buffers until they are full, and returns the number copied.
fn scatter(mut octets: &[u8], out: &mut [&mut [u8]]) -> usize {
    let all = octets.len();
    for piece in out {
        let (head, tail) = octets.split_at(octets.len().min(piece.len()));
        piece[..head.len()].copy_from_slice(head);
        octets = tail;
    }
    all - octets.len()
}
