//! The connection to the broker: its events, its end, and the search for the next broker.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ferroce_ipc::{Client, ClientError, CmDone, CmRequest, DeviceInfo, MEMBER_SLOTS, Message, Refusal};
use parking_lot::{Mutex, MutexGuard};
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use tracing::{debug, info, warn};

use super::book::Book;
use super::embed;
use super::offers::{Bell, Ports, RingsOffer};
use super::pipes::{Offered, PipeOffer};
use super::rules::Rules;
use super::spawn::{SpawnError, Starter};
use super::{
    BrokerClient, BrokerEvent, BrokerMode, CONNECT, ConnectOptions, PATIENCE, RETRY, RETRY_SLOWLY, clear,
    leased_on, watch,
};
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;

/// How soon to go on when a new broker could not take all at once.
const TELL_AGAIN: Duration = Duration::from_millis(1);
/// How long a thread of the program that says something waits for the broker to read.
const ROOM: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: ConnectOptions,
    pub(super) starter: Starter,
    pub(super) link: Link,
    /// The rules for management datagrams, which every broker gets.
    pub(super) mad_rules: Rules,
    pub(super) devices: Vec<DeviceInfo>,
    pub(super) known: Arc<ArcSwap<Vec<DeviceInfo>>>,
    /// The leased slots.
    pub(super) slots: Vec<u16>,
    pub(super) addresses: BTreeSet<(Address, u8)>,
    /// Reading end of the parked descriptors: held, never read.
    pub(super) parked: Option<Guarded<OwnedFd>>,
    /// The slots were leased without sockets.
    pub(super) by_rings: bool,
    /// The broker has not answered [`Message::SettleRings`] in time, and not yet since.
    pub(super) settles_late: bool,
    /// The ledger, which every broker gets.
    pub(super) ledger: Option<Guarded<OwnedFd>>,
    /// The broker's end of the bell of our rings, once they were asked for: the next broker gets it as well.
    pub(super) bell: Option<Bell>,
    /// The descriptors for programs that get a pipe to this one; `None` if this one takes no pipes.
    pub(super) offered: Option<Offered>,
    /// The AF_XDP sockets.
    pub(super) ports: Ports,
    /// The connections, as a new broker needs them.
    pub(super) book: Book,
    /// Answers for the present broker.
    pub(super) reports: VecDeque<Message>,
    pub(super) events: VecDeque<BrokerEvent>,
    /// A `ferroced --detach` to be reaped.
    pub(super) child: Option<Child>,
    /// The timer is set, or has run out.
    pub(super) armed: bool,
}

#[derive(Debug)]
pub(super) enum Link {
    /// Greeted; `resume` is the request that hands our slots to a new broker, while it is not answered.
    Up { client: Guarded<Client>, resume: Option<u32> },
    /// Connected to the next broker, which has not greeted yet.
    Greeting { client: Guarded<Client>, at: Instant, search: Search },
    /// No broker.
    Down(Search),
}

/// The search for the next broker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub(super) since: Instant,
    /// Time at which this process last started a broker.
    pub(super) started: Option<Instant>,
    /// Not to be tried again before.
    pub(super) next: Instant,
}

impl Search {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { since: now, started: None, next: now }
    }
}

/// The locked state. Releasing it leaves the wake counter readable if events wait.
pub(super) struct Guard<'a> {
    pub(super) owner: &'a BrokerClient,
    pub(super) inner: MutexGuard<'a, Inner>,
    /// Dropped last, when the lock is free.
    _nudge: Nudge<'a>,
}

/// Wakes the thread that found the lock taken.
struct Nudge<'a>(&'a BrokerClient);

impl Drop for Nudge<'_> {
    fn drop(&mut self) {
        if self.0.missed.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let news = matches!(&self.inner.link, Link::Up { client, .. } if client.has_news());
        if news || !self.inner.events.is_empty() {
            let _ = rustix::io::write(&self.owner.wake, &1_u64.to_ne_bytes());
        }
    }
}

impl<'a> Guard<'a> {
    pub(super) fn new(owner: &'a BrokerClient, inner: MutexGuard<'a, Inner>) -> Self {
        Self { owner, inner, _nudge: Nudge(owner) }
    }

    /// Takes every message that is there, and looks for the next broker when that is due.
    pub(super) fn drain(&mut self) {
        if self.inner.armed && clear(&self.owner.timer) {
            self.inner.armed = false;
        }
        self.inner.reap();
        self.inner.take_up(&self.owner.later);
        self.inner.take_up_reports(&self.owner.reports);
        loop {
            let inner = &mut *self.inner;
            match &mut inner.link {
                Link::Up { client, .. } => match client.poll() {
                    Ok(Some((id, message, descriptors))) => {
                        if let Some(lost) = inner.message(id, message, descriptors) {
                            self.down(&lost);
                        }
                    }
                    Ok(None) => match inner.tell() {
                        Ok(true) => return,
                        Ok(false) => {
                            self.retry_in(TELL_AGAIN);
                            return;
                        }
                        Err(e) => self.down(&e.into()),
                    },
                    Err(e) => self.down(&e),
                },
                Link::Greeting { client, at, .. } => match client.poll() {
                    Ok(Some((_, Message::Hello(hello), _))) if hello.major == ferroce_ipc::MAJOR => {
                        if let Err(e) = inner.greeted() {
                            self.down(&e.into());
                        }
                    }
                    Ok(Some((_, Message::Refused(refusal), _))) => self.down(&refusal.into()),
                    Ok(Some(_)) => self.down(&ClientError::Unexpected),
                    Ok(None) if at.elapsed() > CONNECT => self.down(&ClientError::Closed),
                    Ok(None) => {
                        self.retry_in(CONNECT);
                        return;
                    }
                    Err(e) => self.down(&e),
                },
                Link::Down(_) => {
                    if !self.look() {
                        return;
                    }
                }
            }
        }
    }

    /// Tells the broker what is to be told, without looking for what it says; without a broker, as
    /// [`Guard::drain`].
    pub(super) fn say(&mut self) {
        if !self.inner.is_ready() {
            return self.drain();
        }
        self.inner.take_up(&self.owner.later);
        self.inner.take_up_reports(&self.owner.reports);
        loop {
            match self.inner.tell() {
                Ok(true) => return,
                // A program that sends faster than the broker reads is slowed down to the broker's speed.
                Ok(false) if self.inner.has_room_soon() => {}
                Ok(false) => return self.retry_in(TELL_AGAIN),
                Err(e) => {
                    self.down(&e.into());
                    return self.drain();
                }
            }
        }
    }

    /// The broker is gone, or of no use.
    pub(super) fn down(&mut self, why: &ClientError) {
        let inner = &mut *self.inner;
        match inner.link {
            Link::Up { .. } => {
                info!("ferroced is gone: {why}");
                inner.hear_the_rest();
                super::met(0);
                inner.link = Link::Down(Search::new());
                // The next broker knows no number of this one's.
                inner.reports.clear();
                inner.events.push_back(BrokerEvent::Disconnected);
            }
            Link::Greeting { search, .. } => {
                // The last one may still be dying, with its name; one that is there and fails must not make
                // us spin.
                let pause = if why.is_leaving() { RETRY } else { RETRY_SLOWLY };
                debug!("the next ferroced is of no use: {why}");
                inner.link = Link::Down(Search { next: Instant::now() + pause, ..search });
            }
            Link::Down(_) => {}
        }
    }

    /// Tries once to reach the next broker. Returns whether it is connected; otherwise the timer says when to
    /// try again.
    fn look(&mut self) -> bool {
        let inner = &mut *self.inner;
        let Link::Down(search) = inner.link else { return true };
        let now = Instant::now();
        if now < search.next {
            self.retry_in(search.next - now);
            return false;
        }
        let pause = if now >= search.since + PATIENCE { RETRY_SLOWLY } else { RETRY };
        let mut search = Search { next: now + pause, ..search };
        match Client::begin(&inner.options.name, &inner.options.netdev) {
            Ok(client) => match watch(&self.owner.epoll, &client) {
                Ok(()) => {
                    inner.link = Link::Greeting { client: Guarded::new(client), at: now, search };
                    return true;
                }
                Err(e) => warn!("the connection to ferroced cannot be watched: {e}"),
            },
            Err(ClientError::NoBroker) => {
                // All programs of a dead broker are here at the same time. The lowest slot starts the next
                // one, the others follow if that does not happen.
                let turn = inner
                    .slots
                    .first()
                    .map_or(8, |slot| u32::from(slot / MEMBER_SLOTS).saturating_sub(1).min(8));
                let turn = search.since + Duration::from_millis(50) * turn;
                if !self.owner.system
                    && now >= turn
                    && search.started.is_none_or(|last| now >= last + PATIENCE)
                {
                    search.started = Some(now);
                    inner.start();
                }
            }
            Err(e) => debug!("no ferroced yet: {e}"),
        }
        inner.link = Link::Down(search);
        self.retry_in(pause);
        false
    }

    fn retry_in(&mut self, time: Duration) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        self.inner.armed = true;
        if let Err(e) = timerfd_settime(&self.owner.timer, TimerfdTimerFlags::empty(), &once) {
            warn!("no timer: {e}");
        }
    }
}

impl Inner {
    /// Whether there is a broker that knows all it is to know.
    pub(super) fn is_ready(&self) -> bool {
        let told = self.book.outbox.is_empty() && self.book.restoring.is_empty();
        told && matches!(self.link, Link::Up { resume: None, .. })
    }

    /// Takes up what was to be told without waiting for an answer.
    fn take_up(&mut self, later: &Mutex<VecDeque<CmRequest>>) {
        let later = std::mem::take(&mut *later.lock());
        for request in later {
            self.book.done(&request, &CmDone::default());
            self.book.outbox.push_back(request);
        }
    }

    /// Starts the next broker, without waiting for it.
    fn start(&mut self) {
        let embedded = match self.options.mode {
            BrokerMode::None => return,
            BrokerMode::Embedded => true,
            BrokerMode::Auto => match self.starter.start_in_background() {
                Ok(child) => {
                    self.child = Some(child);
                    false
                }
                Err(SpawnError::NotFound) => true,
                Err(e) => {
                    warn!("the next ferroced cannot be started: {e}");
                    false
                }
            },
        };
        if embedded && let Err(e) = embed::start(&self.options.name) {
            warn!("the broker cannot be run in this process: {e}");
        }
    }

    pub(super) fn reap(&mut self) {
        if let Some(child) = &mut self.child
            && !matches!(child.try_wait(), Ok(None))
        {
            self.child = None;
        }
    }

    /// A new broker greeted: hands it what it does not know.
    fn greeted(&mut self) -> io::Result<()> {
        let down = Link::Down(Search::new());
        let Link::Greeting { mut client, .. } = std::mem::replace(&mut self.link, down) else {
            return Ok(());
        };
        super::met(client.peer().pid);
        self.settles_late = false;
        self.ports.forget_broker();
        let mut resume = None;
        let sent = (|| {
            if !self.slots.is_empty() && (self.parked.is_some() || self.by_rings) {
                client.send(&Message::Devices(self.devices.clone()), &[])?;
                let slots = self.slots.clone();
                resume = Some(match &self.parked {
                    Some(parked) => {
                        let id = client.send(&Message::Resume(slots), &[parked.as_fd()])?;
                        if let Some(bell) = &self.bell {
                            client.send(&bell.message(), &[bell.far.as_fd()])?;
                        }
                        id
                    }
                    // The rings follow when the broker has given the slots back.
                    None => client.send(&Message::ResumeByRings(slots), &[])?,
                });
                if let Some(offered) = &self.offered {
                    client.send(&offered.message(), &offered.descriptors())?;
                }
            }
            client.send(&Message::ListDevices, &[]).map(drop)
        })();
        match resume {
            Some(_) => self.book.tell_all(),
            None => self.events.push_back(BrokerEvent::Reconnected),
        }
        self.link = Link::Up { client, resume };
        sent.and_then(|()| self.hand_over_ledger())
    }

    /// Gives the broker the ledger, if there is one.
    pub(super) fn hand_over_ledger(&mut self) -> io::Result<()> {
        match (&mut self.link, &self.ledger) {
            (Link::Up { client, .. }, Some(ledger)) => {
                client.send(&Message::Ledger, &[ledger.as_fd()]).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Waits until the broker takes another message, for moments.
    fn has_room_soon(&self) -> bool {
        matches!(&self.link, Link::Up { client, .. } if client.wait_writable(ROOM).is_ok())
    }

    /// Takes the messages that a broker sent before its end. The next one does not repeat its events.
    fn hear_the_rest(&mut self) {
        let mut resets = 0;
        while let Link::Up { client, .. } = &mut self.link {
            match client.poll() {
                Ok(Some((id, message, descriptors))) => {
                    self.message(id, message, descriptors);
                }
                // A broker that left messages of ours unread: Linux reports that before the messages of its
                // own.
                Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::ConnectionReset && resets == 0 => {
                    resets += 1
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Says what a new broker is to know of connections, as far as it takes it. Whether that was all.
    fn tell(&mut self) -> io::Result<bool> {
        // Before it gave our slots back, the broker knows no owner of ports and connections, and applies no
        // rules.
        let Link::Up { client, resume: None } = &mut self.link else { return Ok(true) };
        while let Some(request) = self.book.outbox.pop_front() {
            let unanswered = matches!(
                request,
                CmRequest::Close(_)
                    | CmRequest::Unbind { .. }
                    | CmRequest::Accept { .. }
                    | CmRequest::PortBlockReturn { .. }
                    | CmRequest::Establish(_)
                    | CmRequest::Disconnect(_)
            );
            let message = Message::Cm(request);
            let sent = match unanswered {
                true => client.tell(&message).map(|()| 0),
                false => client.send(&message, &[]),
            };
            let Message::Cm(request) = message else { continue };
            match sent {
                Ok(id) => self.book.told(id, &request),
                Err(e) => {
                    self.book.outbox.push_front(request);
                    return if e.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(e) };
                }
            }
        }
        self.tell_reports()
    }

    /// Takes a message of a greeted broker. Returns why its connection is of no use any more, if so.
    fn message(&mut self, id: u32, message: Message, mut descriptors: Vec<OwnedFd>) -> Option<ClientError> {
        let Link::Up { resume, .. } = &mut self.link else { return None };
        match message {
            Message::Devices(devices) => self.update(devices),
            Message::Address(address) => {
                for socket in leased_on(&address, descriptors) {
                    // A new broker that takes us over reports addresses again that we already have.
                    if self.slots.contains(&(u16::from(socket.member) * MEMBER_SLOTS))
                        && self.addresses.insert(socket.key())
                    {
                        self.events.push_back(BrokerEvent::AddressAdded(socket));
                    }
                }
            }
            Message::Parked => self.parked = descriptors.pop().map(Guarded::new),
            Message::Leased(leased) if *resume == Some(id) => {
                *resume = None;
                if let Some(parked) = descriptors.pop() {
                    self.parked = Some(Guarded::new(parked));
                }
                if leased.by_rings
                    && let (Link::Up { client, .. }, Some(bell)) = (&mut self.link, &self.bell)
                    && let Err(e) = client.send(&bell.message(), &[bell.far.as_fd()])
                {
                    warn!("the broker was not asked for rings: {e}");
                }
                self.events.push_back(BrokerEvent::Reconnected);
                self.lose(&leased.slots);
                self.book.tell_all();
                self.hand_over_mad_rules();
                self.ask_for_ports();
            }
            Message::Refused(refusal) if *resume == Some(id) => {
                *resume = None;
                warn!("ferroced does not take our slots back: {refusal}");
                self.events.push_back(BrokerEvent::Reconnected);
                self.lose(&[]);
                self.book.tell_all();
            }
            Message::Refused(refusal) if id == 0 => return Some(refusal.into()),
            Message::Refused(refusal) if self.port_refused(id, &refusal.sentence) => {}
            Message::Refused(refusal) if self.mad_rules_refused(id, &refusal.sentence) => {}
            Message::MadFaultHits => self.ask_for_hits(),
            Message::MadFaultReport(report) => self.mad_faults(report),
            Message::CmEvent(notice) => {
                self.book.event(&notice);
                self.events.push_back(BrokerEvent::Connection(Box::new(notice.event)));
            }
            // The answer to a request that was given up, or to one that needs none.
            Message::Refused(Refusal { sentence, .. }) => {
                debug!("refused: {sentence}");
                if let Some(lost) = self.book.answered(id) {
                    self.book.lost(lost);
                    self.events.push_back(BrokerEvent::ConnectionLost(lost));
                }
            }
            Message::CmDone(_) => {
                self.book.answered(id);
            }
            Message::Pipe { first, slots, .. } => {
                self.events.extend(PipeOffer::new(first, slots, descriptors).map(BrokerEvent::Pipe));
            }
            Message::FaultOrder { number, order } => {
                self.events.push_back(BrokerEvent::FaultOrder(number, order));
            }
            Message::Xdp { ifindex, direct } => self.port_given(ifindex, direct, descriptors),
            Message::Rings => self.events.extend(RingsOffer::new(descriptors).map(BrokerEvent::Rings)),
            Message::Done => self.settles_late = false,
            Message::Leased(_)
            | Message::Status(_)
            | Message::Statistics(_)
            | Message::Ledgers(_)
            | Message::LedgerOf(_)
            | Message::CmIds { .. }
            | Message::FaultReport { .. } => {}
            // Messages that only a program may send, and a second `Hello`.
            _ => return Some(ClientError::Unexpected),
        }
        None
    }

    /// Keeps only these slots.
    fn lose(&mut self, kept: &[u16]) {
        let (kept, lost) = self.slots.iter().partition(|slot| kept.contains(slot));
        self.slots = kept;
        let lost: Vec<u16> = lost;
        if !lost.is_empty() {
            self.addresses.retain(|(_, member)| !lost.contains(&(u16::from(*member) * MEMBER_SLOTS)));
            self.book.lose_slots(&lost, self.slots.is_empty());
            self.events.push_back(BrokerEvent::SlotsLost(lost));
        }
    }
}

#[cfg(test)]
mod tests;
