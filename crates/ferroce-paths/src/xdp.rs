//! Ports of AF_XDP: packets of one interface past the kernel's network stack.
//!
//! The broker gives a program a port for the interface of a device whose datapath is AF_XDP. The port has a
//! receiving half, which a lane serves, and a transmitting half, which all queue pairs of the interface
//! share. UDP sockets stay open beside it. They take the packets that the kernel does not redirect, and they
//! are the fallback: while the port is down, a batch leaves by the socket of its queue pair. A port is down
//! after the broker ended or withdrew it, and after its socket refused to send. The next broker brings
//! another socket.
//!
//! The socket of a direct port is at the interface itself. Nothing behind it writes hardware addresses, so
//! the port does, and a batch leaves by the socket of its queue pair while the kernel does not know the next
//! hop.

mod halves;
mod hardware;
mod routes;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferroce_datapath::udp::{LossReason, SendError, Sent, TxSocket};
use ferroce_datapath::xdp::{HARDWARE, MAX_PACKET, PushError};
use ferroce_host::fork::Guarded;
use ferroce_host::rtnetlink::Resolver;
use ferroce_ipc::GidEntry;
use ferroce_ipc::ledger::{DeviceCounters, Ledger};
use ferroce_wire::{BatchLimits, Flow, Instant, RoceVersion, TxBatch};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll;
use rustix::net::SendFlags;

use crate::devices::Devices;
use halves::{RxHalf, TxHalf};
use hardware::Hardware;
use routes::{Routes, Way};

pub use halves::PortBatch;
#[cfg(any(test, feature = "testing"))]
pub use halves::fake;

/// Packets of a batch. The kernel takes 32 with each system call.
const SEGMENTS: usize = 32;
/// Octets of the longest headers in front of the BTH, IPv6 and UDP.
const HEADERS: usize = 48;
/// Attempts to add a packet while all frames are on their way.
const ATTEMPTS: u32 = 16;
/// How long a thread waits for another one that sends. That one may be in a signal handler that posts, and so
/// waits for the queue pair of this thread. After this time the batch leaves by the socket.
const WAIT: Duration = Duration::from_millis(20);
/// The service `discard`. A datagram to it makes the kernel look for the receiver's hardware address, and has
/// no other effect.
const DISCARD: u16 = 9;

/// A program's port of one interface.
pub struct XdpPort {
    ifindex: u32,
    /// Readable while the socket is. Sockets change with the broker, and this descriptor stays for the life
    /// of the lane.
    epoll: Guarded<OwnedFd>,
    up: AtomicBool,
    /// All senders share this lock. A sender holds it while it copies a batch.
    tx: Mutex<Option<Outlet>>,
    /// The holder of the lane's.
    rx: Mutex<Option<RxHalf>>,
    routes: Routes,
    devices: Arc<Devices>,
    ledger: Arc<Ledger>,
    /// Index of the device's block of the ledger.
    block: AtomicUsize,
}

thread_local! {
    /// This thread holds the transmitting half of a port, or waits for it. A signal handler asks.
    static SENDING: Cell<bool> = const { Cell::new(false) };
}

/// The transmitting half of a socket, and the hardware addresses of its frames if it is a direct port's.
struct Outlet {
    half: TxHalf,
    hardware: Option<Hardware>,
}

/// The transmitting half, held by this thread.
struct Sending<'a> {
    /// The destructor unlocks this before it clears `SENDING`. A handler that runs in between does not wait
    /// for the lock.
    tx: Option<MutexGuard<'a, Option<Outlet>>>,
}

impl Sending<'_> {
    fn outlet(&mut self) -> Option<&mut Outlet> {
        self.tx.as_deref_mut()?.as_mut()
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        drop(self.tx.take());
        SENDING.set(false);
    }
}

impl XdpPort {
    /// A port without a socket, which is down until [`Self::install`].
    ///
    /// # Errors
    /// Without another descriptor.
    pub fn new(ifindex: u32, devices: Arc<Devices>, ledger: Arc<Ledger>) -> io::Result<Self> {
        Ok(Self {
            ifindex,
            epoll: Guarded::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            up: AtomicBool::new(false),
            tx: Mutex::new(None),
            rx: Mutex::new(None),
            routes: Routes::new(),
            devices,
            ledger,
            block: AtomicUsize::new(0),
        })
    }

    /// The interface's index.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Takes this socket in place of the last one, and is up. `direct`: the socket is at the interface
    /// itself.
    ///
    /// # Errors
    /// The errors of [`ferroce_datapath::xdp::join`], `epoll_ctl(2)`, and of a socket of rtnetlink.
    pub fn install(&self, socket: OwnedFd, memory: OwnedFd, direct: bool) -> io::Result<()> {
        let (rx, tx) = ferroce_datapath::xdp::join(socket, memory)?;
        let hardware = if direct { Some(self.hardware()?) } else { None };
        self.install_halves(RxHalf::Socket(Guarded::new(rx)), TxHalf::Socket(tx), hardware)
    }

    /// The hardware addresses that the kernel's tables have for frames of this interface.
    fn hardware(&self) -> io::Result<Hardware> {
        let mut resolver = Guarded::new(Resolver::open()?);
        let (devices, ifindex) = (Arc::clone(&self.devices), self.ifindex);
        Ok(Hardware::new(Box::new(move |source, destination| {
            let own = devices.mac(ifindex)?;
            let hop = resolver.hardware(ifindex, source, destination).ok()?;
            let mut both = [0; HARDWARE];
            both.iter_mut().zip(hop.into_iter().chain(own)).for_each(|(to, from)| *to = from);
            Some(both)
        })))
    }

    fn install_halves(&self, rx: RxHalf, half: TxHalf, hardware: Option<Hardware>) -> io::Result<()> {
        self.set_down();
        epoll::add(&self.epoll, &rx, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        self.close(self.rx.lock().replace(rx));
        let mut locked = self.tx.lock();
        *locked = Some(Outlet { half, hardware });
        self.up.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes a socket out of the epoll set, where it would stay while the broker holds it open.
    fn close(&self, rx: Option<RxHalf>) {
        if let Some(rx) = rx
            && let Err(errno) = epoll::delete(&self.epoll, &rx)
        {
            tracing::debug!(%errno, "cannot stop watching an AF_XDP socket");
        }
    }

    /// Packets leave by UDP sockets from now on. The packets that have arrived are still received.
    pub fn set_down(&self) {
        self.end_sending(&mut self.tx.lock());
    }

    /// The transmitting half ends before the receiving half, which has the record of the descriptor.
    fn end_sending(&self, tx: &mut Option<Outlet>) {
        *tx = None;
        self.up.store(false, Ordering::Release);
    }

    /// Whether packets leave by the port.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Whether no thread is sending at the moment.
    pub fn is_free(&self) -> bool {
        self.tx.try_lock().is_some()
    }

    /// The limits of a batch. All its packets have the IPv4 identification 0, as those that a socket sends
    /// one by one.
    pub const fn limits() -> BatchLimits {
        BatchLimits { max_segments: SEGMENTS, gso: false }
    }

    /// Readable while a packet waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The device's block of the ledger, which counts what the port sends.
    pub fn set_block(&self, block: usize) {
        self.block.store(block, Ordering::Relaxed);
    }

    fn counters(&self) -> &DeviceCounters {
        self.ledger.device(self.block.load(Ordering::Relaxed))
    }

    /// Whether a path from this entry of the GID table to `destination` may lead through the port.
    pub fn reaches(&self, source: &GidEntry, destination: IpAddr) -> bool {
        source.ifindex == self.ifindex
            && RoceVersion::from(source.gid_type) == RoceVersion::V2
            && !is_for_sockets(&self.devices, destination)
    }

    /// Whether a device of this host has the address.
    pub fn is_local(&self, destination: IpAddr) -> bool {
        self.devices.has_address(destination)
    }

    /// A path to `destination` was made, which sends from `socket` otherwise: the kernel looks for the next
    /// hop's hardware address.
    pub fn prepare(&self, destination: IpAddr, socket: &TxSocket, now: Instant) {
        self.routes.known(destination, now);
        look_for(destination, socket);
    }

    /// Sends a batch, by `socket` if the port cannot.
    ///
    /// # Errors
    /// The errors of [`TxSocket::send`].
    pub fn send(&self, batch: &mut TxBatch<'_>, socket: &TxSocket, now: Instant) -> Result<Sent, SendError> {
        match self.try_send(batch, socket, now) {
            Some(sent) => Ok(sent),
            None => socket.send(batch),
        }
    }

    /// Sends a batch, unless the port is down, the destination is not reached by it, or the packets are too
    /// long.
    fn try_send(&self, batch: &TxBatch<'_>, socket: &TxSocket, now: Instant) -> Option<Sent> {
        let flow = batch.flow().filter(|_| self.is_up())?;
        if batch.segment_size() + HEADERS > MAX_PACKET {
            return None;
        }
        let destination = flow.destination;
        match self.routes.way(destination, now, || is_for_sockets(&self.devices, destination)) {
            Way::Socket => return None,
            Way::Port { look_for: true } => look_for(destination, socket),
            Way::Port { look_for: false } => {}
        }
        let mut sending = self.lock_to_send()?;
        let Outlet { half: tx, hardware } = sending.outlet()?;
        if let Some(hardware) = hardware {
            tx.set_hardware(hardware.find(flow, now)?);
        }
        let gso = batch.limits().gso;
        let (mut sent, mut reason) = (0, None);
        for (index, segment) in batch.segments().enumerate() {
            let id = if gso { index as u16 } else { 0 };
            match push(tx, flow, id, segment) {
                Ok(()) => sent += 1,
                Err(PushError::Full) => reason = Some(LossReason::Congested),
                Err(PushError::TooLong) => reason = Some(LossReason::TooLong),
            }
        }
        match tx.flush() {
            Err(error) if !is_passing(&error) => {
                if let Some(tx) = sending.tx.as_deref_mut() {
                    self.end_sending(tx);
                }
                drop(sending);
                tracing::debug!(%error, ifindex = self.ifindex, "an AF_XDP socket has ended; UDP sockets send");
                None
            }
            _ => {
                DeviceCounters::add(&self.counters().xdp_sent_pkts, sent as u64);
                Some(Sent { sent, lost: batch.len() - sent, reason })
            }
        }
    }

    /// Waits for the threads that send, at most for `WAIT`, and not at all in a signal handler that
    /// interrupted one of them.
    fn lock_to_send(&self) -> Option<Sending<'_>> {
        if SENDING.replace(true) {
            return None;
        }
        let tx = self.tx.try_lock_for(WAIT);
        if tx.is_none() {
            SENDING.set(false);
        }
        Some(Sending { tx: Some(tx?) })
    }

    /// Gives the receiving half to the holder of the lane. Returns `None` without one, and while another
    /// socket is installed.
    ///
    /// The last socket of a port that is down is closed when it is empty.
    pub fn receive<R>(&self, checks: bool, take: impl FnOnce(&mut PortBatch<'_>) -> Option<R>) -> Option<R> {
        let mut rx = self.rx.try_lock()?;
        let taken = take(&mut PortBatch::new(rx.as_mut()?, self.ifindex, checks));
        if taken.is_none() && !self.is_up() {
            self.close(rx.take());
        }
        taken
    }
}

/// Adds one packet. If all frames are on their way, the kernel gets time to send them.
fn push(tx: &mut TxHalf, flow: &Flow, id: u16, segment: &[u8]) -> Result<(), PushError> {
    let mut headers = [0; HEADERS];
    let len = flow.write_headers(id, segment.len(), &mut headers);
    let headers = headers.get(..len).unwrap_or_default();
    for _ in 1..ATTEMPTS {
        match tx.push(flow.link.version, headers, segment) {
            Err(PushError::Full) => {}
            other => return other,
        }
        // An error is found again by the last flush of the batch.
        if tx.flush().is_err() {
            break;
        }
        std::thread::yield_now();
    }
    tx.push(flow.link.version, headers, segment)
}

/// Whether the kernel may send what was added with a later flush.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR))
}

/// Whether packets to `destination` take sockets while the port is up: those to groups, to the addresses of
/// this host, and to link-local addresses, whose interface the kernel's tables do not know.
fn is_for_sockets(devices: &Devices, destination: IpAddr) -> bool {
    let link_local = matches!(destination, IpAddr::V6(ip) if ip.is_unicast_link_local());
    destination.is_multicast() || link_local || devices.has_address(destination)
}

/// Makes the kernel look for the hardware address of the next hop on the way to `destination`, without
/// waiting. The program on the other side of the port drops packets while the kernel does not know it.
fn look_for(destination: IpAddr, socket: &TxSocket) {
    let scope_id = match socket.local_addr() {
        SocketAddr::V6(local) => local.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let to = match destination {
        IpAddr::V4(ip) => SocketAddr::from((ip, DISCARD)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, DISCARD, 0, scope_id).into(),
    };
    if let Err(error) = rustix::net::sendto(socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to) {
        tracing::debug!(%error, %destination, "no neighbour can be looked for");
    }
}

#[cfg(test)]
mod tests;
