//! A program's side of the broker: finds one or starts one, and stays with whichever broker there is.
//!
//! A [`BrokerClient`] asks the broker and hears what the broker says without a request. When a broker has
//! died, the client brings the next one up to date. The caller polls it for [events](BrokerEvent).
#![forbid(unsafe_code)]

mod book;
mod devices;
mod embed;
mod faults;
mod find;
mod link;
mod mads;
mod offers;
mod pipes;
mod port_blocks;
mod program;
mod rules;
mod spawn;
mod xdp;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ferroce_cm::CmEvent;
use ferroce_ipc::{
    ALL_USERS, AddressSockets, Client, ClientError, CmDone, CmRequest, CmStatus, DeviceInfo, FaultOrder,
    Leased, Listing, MEMBER_SLOTS, MadFaultReport, Message, QpnOrder, Refusal, RefusalCode, ResourceCounts,
};
use ferroce_wire::cm::CommId;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use tracing::{debug, error, warn};

pub use embed::{StartEmbedded, embed_with};
pub use find::{BrokerError, BrokerMode, ConnectOptions, connect_or_start, connect_to_running};
pub use offers::{RingsOffer, XdpOffer};
use pipes::Offered;
pub use pipes::PipeOffer;
pub use port_blocks::{PortBlocks, PortChoice};
pub use spawn::{SpawnError, Starter};

use book::Book;
use find::find_or_start;
use link::{Guard, Inner, Link};
use offers::{Bell, Ports};
use rules::Rules;

use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;

/// How long finding, starting and greeting a broker may take. It takes milliseconds, but a broker is a
/// process like any other: beside a dozen that spin on two cores one that attaches AF_XDP took more than ten
/// seconds.
const CONNECT: Duration = Duration::from_secs(30);
/// How long a request may take: longer than a new broker waits for programs of an earlier one.
const REQUEST: Duration = CONNECT;
/// How long a message without answer waits for requests of other threads.
const TELL_TIMEOUT: Duration = Duration::from_millis(20);
/// How long the end of a process waits for the next broker.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two looks for the next broker at the end of a process.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// How long the background thread waits for a lock that is held for moments.
const MOMENT: Duration = Duration::from_millis(1);
/// Interval of the search for the next broker: at first, and after `PATIENCE`.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_SLOWLY: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(2);

/// The process of the broker that serves this one; 0 without a broker, or if the broker is in another pid
/// namespace.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The process of the broker that serves this one, 0 if it is unknown, or was asked for before: it is to be
/// killed, and afterwards its number may be that of another process.
pub fn take_process() -> u32 {
    PROCESS.swap(0, Ordering::Relaxed)
}

fn met(pid: u32) {
    PROCESS.store(pid, Ordering::Relaxed);
}

/// The slots of this program and the sockets that go with them.
#[derive(Debug)]
pub struct Lease {
    /// The slots: bits 23 to 12 of this program's QPNs.
    pub slots: Vec<u16>,
    /// There are no sockets: packets travel by the rings.
    pub by_rings: bool,
    /// A socket for each member on each local address.
    pub addresses: Vec<LeasedAddress>,
    /// A message for the user, for example about an address whose port another process holds; may be empty.
    pub notice: String,
    /// The order of this program's numbers.
    pub order: Option<QpnOrder>,
}

/// A group socket of one member on one local address.
#[derive(Debug)]
pub struct LeasedAddress {
    /// The member: bits 23 to 16 of the QPNs that it receives packets for.
    pub member: u8,
    /// The address it is bound to, with port 4791.
    pub ip: IpAddr,
    /// Interface index of a link-local address, else 0.
    pub scope_id: u32,
    /// The socket.
    pub fd: OwnedFd,
}

/// An event that the broker reports without a request. Devices are named by [`DeviceInfo::id`].
#[derive(Debug)]
pub enum BrokerEvent {
    /// An address appeared: its socket, which traffic may already reach.
    AddressAdded(LeasedAddress),
    /// The GID table of a device changed.
    GidsChanged(u32),
    /// The interface of this index, which holds GIDs of a device, has another hardware address.
    MacChanged(u32, u32),
    /// The port of a device became ACTIVE.
    PortActive(u32),
    /// The port of a device is not ACTIVE any more.
    PortDown(u32),
    /// The MTU or the settings of a device changed.
    DeviceChanged(u32),
    /// There is a new device.
    DeviceAdded(u32),
    /// A device is gone, with its interface or by `ferroce link del`.
    DeviceRemoved(u32),
    /// The broker died; the sockets work on. The next one is being looked for, or started.
    Disconnected,
    /// There is a broker again, and it knows our slots.
    Reconnected,
    /// The broker gave these slots to another process while we were away (this process was stopped, for
    /// example): all objects on them are dead.
    SlotsLost(Vec<u16>),
    /// Something happened to a connection, or at a port that listens.
    Connection(Box<CmEvent>),
    /// A new broker did not take a connection over: it is no more.
    ConnectionLost(CommId),
    /// The rings to a new broker, in place of those to the last one.
    Rings(RingsOffer),
    /// An AF_XDP socket, in place of an earlier one on its interface.
    Xdp(XdpOffer),
    /// Another program opened a pipe to this one.
    Pipe(PipeOffer),
    /// An order about faults, to be answered by [`BrokerClient::report_faults`] with its number.
    FaultOrder(u32, FaultOrder),
    /// The broker reports the counts and new hits of this program's rules for management datagrams.
    MadFaults(MadFaultReport),
    /// The next broker has the rules for management datagrams, by this number in its reports; or the reason
    /// why it has not.
    MadRules(Result<u32, String>),
}

/// A program's connection to its broker, whichever that is in the course of time.
///
/// [`BrokerClient::event_fd`] becomes readable when there is something to do; call [`BrokerClient::process`]
/// then, from one thread, for as long as slots are held: it also brings the next broker when one has died. No
/// call but `connect` and the requests waits, and these for seconds at most. A forked child closes all
/// descriptors of it and must neither use nor drop it.
#[derive(Debug)]
pub struct BrokerClient {
    inner: Mutex<Inner>,
    /// The broker serves all users: an administrator starts the next one.
    system: bool,
    /// [`BrokerClient::process`] found the lock taken: its holder wakes the background thread afterwards.
    missed: AtomicBool,
    /// The holder of the lock waits for an answer, and the connection is not watched.
    asking: AtomicBool,
    /// Messages to the broker that need no answer.
    later: Mutex<VecDeque<CmRequest>>,
    /// Answers to orders about faults.
    reports: Mutex<VecDeque<Message>>,
    /// Holds the connection, the timer and the wake counter.
    epoll: Guarded<OwnedFd>,
    /// Readable while events wait.
    wake: Guarded<OwnedFd>,
    /// Readable when the next look for a broker is due.
    timer: Guarded<OwnedFd>,
    /// The devices that the broker reported last, for threads that must not wait for another thread's
    /// request.
    known: Arc<ArcSwap<Vec<DeviceInfo>>>,
    listing: Listing,
}

impl BrokerClient {
    /// Finds a broker, or starts one.
    ///
    /// # Errors
    /// A sentence that says what to do, after 2 s at most.
    pub fn connect(mode: BrokerMode) -> Result<Self, BrokerError> {
        Self::connect_with(ConnectOptions::new(mode))
    }

    /// As [`BrokerClient::connect`], with another name or interface.
    ///
    /// # Errors
    /// As [`BrokerClient::connect`].
    pub fn connect_with(options: ConnectOptions) -> Result<Self, BrokerError> {
        let starter = Starter::from_environment();
        let (client, devices) = find_or_start(&options, &starter, Instant::now() + CONNECT)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(io::Error::from)?;
        let [epoll, wake, timer] = [epoll, wake, timer].map(Guarded::new);
        let known = Arc::new(ArcSwap::from_pointee(devices.clone()));
        watch(&epoll, &wake)?;
        watch(&epoll, &timer)?;
        watch(&epoll, &client)?;
        let listing = options.listing;
        let system = client.broker().features & ALL_USERS != 0;
        let inner = Inner {
            options,
            starter,
            link: Link::Up { client, resume: None },
            mad_rules: Rules::default(),
            devices,
            slots: Vec::new(),
            addresses: BTreeSet::new(),
            parked: None,
            by_rings: false,
            settles_late: false,
            ledger: None,
            bell: None,
            offered: None,
            ports: Ports::default(),
            book: Book::default(),
            reports: VecDeque::new(),
            known: Arc::clone(&known),
            events: VecDeque::new(),
            child: None,
            armed: false,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            system,
            missed: AtomicBool::new(false),
            asking: AtomicBool::new(false),
            later: Mutex::default(),
            reports: Mutex::default(),
            epoll,
            wake,
            timer,
            known,
            listing,
        })
    }

    /// Which devices the program lists.
    pub fn listing(&self) -> Listing {
        self.listing
    }

    /// The devices as they are now: this program's own first, `fr0` last.
    ///
    /// # Errors
    /// Fails if the broker has gone and cannot be found or started again.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, BrokerError> {
        let mut guard = self.up()?;
        guard.drain();
        Ok(guard.inner.devices.clone())
    }

    /// The devices as the broker last told them, without asking: never waits for a broker.
    pub fn known_devices(&self) -> Vec<DeviceInfo> {
        self.known.load().as_ref().clone()
    }

    /// Leases `count` members with the sockets of all addresses, or slots without sockets, as the broker
    /// decides.
    ///
    /// # Errors
    /// [`BrokerError::Client`] with the broker's sentence: no slot is free, or another process holds UDP port
    /// 4791.
    pub fn lease(&self, count: u8) -> Result<Lease, BrokerError> {
        let (mut guard, (leased, sockets, parked)) = self.ask(|client| {
            let (answer, mut descriptors) = client.request(&Message::Lease(count), REQUEST)?;
            let Message::Leased(leased) = answer else { return Err(ClientError::Unexpected) };
            let mut sockets = Vec::new();
            for _ in 0..leased.addresses {
                match client.more(REQUEST)? {
                    (Message::Address(address), descriptors) => {
                        sockets.extend(leased_on(&address, descriptors))
                    }
                    _ => return Err(ClientError::Unexpected),
                }
            }
            Ok((leased, sockets, descriptors.pop()))
        })?;
        let Leased { slots, by_rings, notice, order, .. } = leased;
        let inner = &mut *guard.inner;
        inner.by_rings = by_rings;
        inner.parked = parked.map(Guarded::new);
        inner.slots.extend(&slots);
        inner.addresses.extend(sockets.iter().map(LeasedAddress::key));
        if !notice.is_empty() {
            error!("{notice}");
        }
        Ok(Lease { slots, by_rings, addresses: sockets, notice, order })
    }

    /// Opens rings for packets to and from the broker, with `v2` for those of RoCE v2 as well. `bell` is the
    /// broker's end of the doorbell. Every later broker brings other rings ([`BrokerEvent::Rings`]).
    ///
    /// # Errors
    /// [`BrokerError::Client`] with the broker's sentence: it may not send frames.
    pub fn open_rings(&self, bell: OwnedFd, v2: bool) -> Result<RingsOffer, BrokerError> {
        let bell = Bell { far: Guarded::new(bell), v2 };
        let (mut guard, rings) = self.ask(|client| {
            let (answer, descriptors) = client.request_with(&bell.message(), &[bell.far.as_fd()], REQUEST)?;
            let Message::Rings = answer else { return Err(ClientError::Unexpected) };
            RingsOffer::new(descriptors).ok_or(ClientError::Unexpected)
        })?;
        guard.inner.bell = Some(bell);
        Ok(rings)
    }

    /// Whether the broker serves all users.
    pub fn is_for_all_users(&self) -> bool {
        self.system
    }

    /// Waits until the broker has moved what is in rings and in sockets of its own by now, but not longer
    /// than `limit`. Packets of before for this program are then in its ring or its sockets. If
    /// the broker did not answer in time, the next callers ask nothing until it did.
    pub fn settle_rings(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let Some(inner) = self.inner.try_lock_until(end) else { return };
        let mut guard = Guard::new(self, inner);
        guard.drain();
        let inner = &mut *guard.inner;
        if !inner.is_ready() || inner.settles_late {
            return;
        }
        let Link::Up { client, .. } = &mut inner.link else { return };
        let left = || end.saturating_duration_since(Instant::now());
        let answer = self.alone(client, |client| {
            client.wait_writable(left())?;
            client.send(&Message::SettleRings, &[])?;
            client.more(left()).map(drop)
        });
        if let Err(error) = answer {
            debug!("packets may be in rings to the broker: {error}");
            inner.settles_late = matches!(error, ClientError::Timeout { .. });
        }
    }

    /// From now on other programs may ask for pipes to this one, of this broker and of each one that follows
    /// it. They ring `bell`, the far end of a [doorbell](ferroce_ipc::doorbell). `published` is the file that
    /// says which memory they may copy to and from, if they may.
    ///
    /// # Errors
    /// [`BrokerError::Client`].
    pub fn offer_pipes(&self, bell: OwnedFd, published: Option<OwnedFd>) -> Result<(), BrokerError> {
        let offered = Offered { bell: Guarded::new(bell), published: published.map(Guarded::new) };
        // The answer matters: a peer may ask for a pipe as soon as it knows a queue pair of this program.
        let (mut guard, _) = self.ask(|client| {
            client.request_with(&offered.message(), &offered.descriptors(), REQUEST).map(drop)
        })?;
        guard.inner.offered = Some(offered);
        Ok(())
    }

    /// Asks for a pipe to the program that holds `slot`.
    ///
    /// # Errors
    /// [`BrokerError::Client`] with the broker's sentence: nobody holds the slot, or its program takes no
    /// pipes.
    pub fn open_pipe(&self, slot: u16) -> Result<PipeOffer, BrokerError> {
        let (_guard, offer) = self.ask(|client| {
            let (answer, descriptors) = client.request(&Message::OpenPipe(slot), REQUEST)?;
            let Message::Pipe { first, slots, .. } = answer else { return Err(ClientError::Unexpected) };
            PipeOffer::new(first, slots, descriptors).ok_or(ClientError::Unexpected)
        })?;
        Ok(offer)
    }

    /// Gives all slots back; their sockets must be closed before.
    ///
    /// # Errors
    /// Fails if the broker has gone and cannot be found or started again.
    pub fn release(&self) -> Result<(), BrokerError> {
        let mut guard = self.up()?;
        let inner = &mut *guard.inner;
        let slots = std::mem::take(&mut inner.slots);
        inner.book.lose_slots(&slots, true);
        inner.addresses.clear();
        inner.parked = None;
        drop(guard);
        // A broker that dies meanwhile takes no slots along that it was not told of.
        self.ask(|client| client.request(&Message::Release(Vec::new()), REQUEST)).map(drop)
    }

    /// Tells the broker that a bind or connection is over: [`CmRequest::Unbind`] or [`CmRequest::Close`].
    /// Waits for no answer; if a broker is there that answers other threads' requests, it has the message
    /// when this returns, so that it comes before whatever the caller does next.
    pub fn tell(&self, request: CmRequest) {
        self.later.lock().push_back(request);
        match self.inner.try_lock_for(TELL_TIMEOUT) {
            Some(inner) => Guard::new(self, inner).say(),
            // If another thread is in a request, the thread that follows the broker sends the message.
            None => {
                let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
            }
        }
    }

    /// At the exit of the process: waits until a broker knows the connections that this program has, or
    /// closed just now, for [`EXIT_TIMEOUT`] at most. The broker tells their peers that they are over, which
    /// otherwise would not learn it.
    pub fn take_leave(&self) {
        let end = Instant::now() + EXIT_TIMEOUT;
        // A program may exit in a signal handler, whose thread may hold the lock.
        while let Some(inner) = self.inner.try_lock_for(TELL_TIMEOUT) {
            let mut guard = Guard::new(self, inner);
            let left = end.saturating_duration_since(Instant::now());
            if guard.inner.book.is_settled() || left.is_zero() {
                return;
            }
            guard.drain();
            if guard.inner.is_ready()
                && let Link::Up { client, .. } = &mut guard.inner.link
            {
                // A broker that was killed can be written to until its end. One that answers has read all.
                match client.request(&Message::ListDevices, left) {
                    Ok(_) => return,
                    Err(error) => guard.down(&error),
                }
            }
            drop(guard);
            std::thread::sleep(EXIT_CHECK_INTERVAL);
        }
    }

    /// Continues a connection: [`CmRequest::Accept`], [`CmRequest::Establish`] or [`CmRequest::Disconnect`].
    /// Waits for no answer, as [`BrokerClient::tell`]; an event reports the result.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is no such connection any more.
    pub fn go_on(&self, request: CmRequest) -> Result<(), BrokerError> {
        let id = match &request {
            // Twice is once too often, and the broker says so.
            CmRequest::Accept { id, .. } if self.is_asked(*id) => *id,
            CmRequest::Establish(id) | CmRequest::Disconnect(id) => *id,
            _ => return self.connections(request, |_| {}).map(drop),
        };
        let Some(inner) = self.inner.try_lock_for(TELL_TIMEOUT) else {
            self.tell(request);
            return Ok(());
        };
        let mut guard = Guard::new(self, inner);
        if !guard.inner.book.knows(id) {
            let sentence = format!("no connection {id:?}");
            return Err(ClientError::from(Refusal { code: RefusalCode::UnknownId, sentence }).into());
        }
        self.later.lock().push_back(request);
        guard.say();
        Ok(())
    }

    fn is_asked(&self, id: CommId) -> bool {
        self.inner.try_lock_for(TELL_TIMEOUT).is_some_and(|inner| inner.book.is_asked(id))
    }

    /// Sends a request to connection management. `then` sees the answer before any event about it is handed
    /// out; it must not call this client.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's reason; those of a broker that must be found anew.
    pub fn connections(&self, request: CmRequest, then: impl FnOnce(&CmDone)) -> Result<CmDone, BrokerError> {
        let message = Message::Cm(request);
        let (mut guard, done) = self.ask(|client| match client.request(&message, REQUEST)? {
            (Message::CmDone(done), _) => Ok(done),
            _ => Err(ClientError::Unexpected),
        })?;
        if let Message::Cm(request) = &message {
            guard.inner.book.done(request, &done);
        }
        then(&done);
        Ok(done)
    }

    /// Tells the broker what this program has, for `ferroce status`. Does not wait; a broker that is away
    /// misses it.
    pub fn report(&self, counts: ResourceCounts) {
        if let Some(mut inner) = self.inner.try_lock()
            && let Link::Up { client, .. } = &mut inner.link
            && let Err(e) = client.send(&Message::Report(counts), &[])
        {
            debug!("the broker was not told the number of objects: {e}");
        }
    }

    /// Hands the program's ledger to the broker, and to each one that follows it. Does not wait.
    pub fn keep_ledger(&self, ledger: OwnedFd) {
        let mut inner = self.inner.lock();
        inner.ledger = Some(Guarded::new(ledger));
        if let Err(e) = inner.hand_over_ledger() {
            debug!("the broker was not given the ledger: {e}");
        }
    }

    /// The counters of a device in all programs, by name.
    ///
    /// # Errors
    /// [`BrokerError::Client`] with the broker's sentence if there is no such device.
    pub fn statistics(&self, device: &str) -> Result<Vec<(String, u64)>, BrokerError> {
        let question = Message::GetStatistics(device.to_owned());
        let (_, counters) = self.ask(|client| match client.request(&question, REQUEST)? {
            (Message::Statistics(counters), _) => Ok(counters),
            _ => Err(ClientError::Unexpected),
        })?;
        Ok(counters)
    }

    /// The counters of connection management for all devices and programs.
    ///
    /// # Errors
    /// Fails if the broker has gone and cannot be found or started again.
    pub fn cm_status(&self) -> Result<CmStatus, BrokerError> {
        let (_, status) = self.ask(|client| match client.request(&Message::GetStatus, REQUEST)? {
            (Message::Status(status), _) => Ok(status),
            _ => Err(ClientError::Unexpected),
        })?;
        Ok(*status.cm)
    }

    /// Readable when [`BrokerClient::process`] has something to do.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what is due, without waiting, and returns what happened.
    pub fn process(&self) -> Vec<BrokerEvent> {
        // A holder that waits for no answer has the lock for moments only.
        let moment = if self.asking.load(Ordering::Relaxed) { Duration::ZERO } else { MOMENT };
        let guard = self.inner.try_lock_for(moment).map(|inner| Guard::new(self, inner));
        let mut guard = match guard {
            Some(guard) => guard,
            None => {
                // Another thread is in a request, and wakes us at its end. Until then the descriptor must not
                // be readable.
                let (woken, due) = (clear(&self.wake), clear(&self.timer));
                if woken || due {
                    self.missed.store(true, Ordering::SeqCst);
                }
                // Unless it was over before it could know.
                let Some(guard) = self.try_guard() else { return Vec::new() };
                guard
            }
        };
        guard.drain();
        let events = guard.inner.events.drain(..).collect();
        clear(&self.wake);
        events
    }

    fn try_guard(&self) -> Option<Guard<'_>> {
        self.inner.try_lock().map(|inner| Guard::new(self, inner))
    }

    /// Sends a request to the broker, and to the next one if this one dies before it answers.
    fn ask<R>(
        &self,
        mut question: impl FnMut(&mut Client) -> Result<R, ClientError>,
    ) -> Result<(Guard<'_>, R), BrokerError> {
        let deadline = Instant::now() + CONNECT;
        loop {
            let mut guard = self.up()?;
            let inner = &mut *guard.inner;
            let Link::Up { client, .. } = &mut inner.link else { continue };
            match self.alone(client, &mut question) {
                Ok(answer) => return Ok((guard, answer)),
                Err(e) if e.is_leaving() && Instant::now() < deadline => guard.down(&e),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Has `question` wait for an answer, for which no other thread wakes up.
    fn alone<R>(&self, client: &mut Client, question: impl FnOnce(&mut Client) -> R) -> R {
        watch_for(&self.epoll, client, epoll::EventFlags::empty());
        self.asking.store(true, Ordering::Relaxed);
        let answer = question(client);
        self.asking.store(false, Ordering::Relaxed);
        watch_for(&self.epoll, client, epoll::EventFlags::IN);
        answer
    }

    /// Waits until a broker is connected.
    fn up(&self) -> Result<Guard<'_>, BrokerError> {
        let deadline = Instant::now() + CONNECT;
        loop {
            let mut guard = Guard::new(self, self.inner.lock());
            if !guard.inner.is_ready() || self.has_more_to_tell() {
                guard.drain();
            }
            if guard.inner.is_ready() {
                return Ok(guard);
            }
            drop(guard);
            if Instant::now() >= deadline {
                return Err(ClientError::NoBroker.into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for BrokerClient {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        // So that the slots are free at once; without it the broker waits whether we come back.
        if let Link::Up { client, .. } = &mut inner.link {
            let _ = client.send(&Message::Release(Vec::new()), &[]);
        }
        inner.reap();
    }
}

impl Lease {
    /// The members that were leased whole, with their sockets: bits 23 to 16 of the QPNs.
    pub fn members(&self) -> Vec<u8> {
        let first = self.slots.iter().filter(|slot| !self.by_rings && **slot % MEMBER_SLOTS == 0);
        first.map(|slot| (slot / MEMBER_SLOTS) as u8).collect()
    }
}

impl LeasedAddress {
    fn key(&self) -> (Address, u8) {
        (Address { ip: self.ip, scope_id: self.scope_id }, self.member)
    }
}

fn list(client: &mut Client) -> Result<Vec<DeviceInfo>, ClientError> {
    match client.request(&Message::ListDevices, REQUEST)? {
        (Message::Devices(devices), _) => Ok(devices),
        _ => Err(ClientError::Unexpected),
    }
}

fn leased_on(address: &AddressSockets, descriptors: Vec<OwnedFd>) -> Vec<LeasedAddress> {
    let AddressSockets { ip, scope_id, members } = address;
    let socket =
        |(member, fd): (&u8, OwnedFd)| LeasedAddress { member: *member, ip: *ip, scope_id: *scope_id, fd };
    members.iter().zip(descriptors).map(socket).collect()
}

fn watch(epoll: &impl AsFd, fd: &impl AsFd) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

/// Changes the watched events. Events that are already there count.
fn watch_for(epoll: &impl AsFd, fd: &impl AsFd, what: epoll::EventFlags) {
    if let Err(e) = epoll::modify(epoll, fd, epoll::EventData::new_u64(0), what) {
        warn!("the connection to ferroced cannot be watched: {e}");
    }
}

/// Makes an event counter or a timer unreadable; whether it was readable.
fn clear(counter: &impl AsFd) -> bool {
    rustix::io::read(counter, &mut [0; 8]).is_ok()
}
