//! The clients of a [`Server`]: accepts their connections, reads their messages, and keeps what they cannot
//! take yet.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_host::fork::Guarded;
use ferroce_ipc::{Closer, CmRequest, Connection, Message, MessageError, Peer, RefusalCode, Strange};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, error, warn};

use super::Server;
use super::queue::{Queue, UserLoad};
use crate::ports::UNPRIVILEGED;
use crate::privilege::{self, Right};
use crate::{ClientId, ProcessId};

/// Connections of one process; a program needs one.
const MOST_CONNECTIONS: usize = 64;
/// Connections of all programs of another user.
const MOST_OF_USER: usize = 2048;
/// Messages taken from one client before the others have their turn.
const BURST: usize = 32;
/// Time for the requests of another user before those of the others have their turn. A single request may
/// take longer.
const SLICE: Duration = Duration::from_millis(5);
/// Bursts that are read from a connection whose process ended: more than the send buffer of a socket holds.
const LAST_BURSTS: usize = 16;
/// Descriptors of another user that may wait to be closed before no more are taken from that user.
const MOST_TO_CLOSE: usize = 256;
/// Time for the last messages of all connections of another user's process.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How long a closed connection may wait for its client to read the last messages.
const LINGER: Duration = Duration::from_secs(1);

/// A connection and what it could not take yet.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Guarded<Connection>,
    process: ProcessId,
    uid: u32,
    /// Closes what the program sent; `None` if it is trusted.
    closer: Option<Closer>,
    pub(super) queue: Queue,
    /// Time at which the connection is dropped, set once only the last messages are left.
    pub(super) closing: Option<Instant>,
}

impl Link {
    /// Whether the link's messages are to wait: its user's descriptors take long to close.
    pub(super) fn is_held(&self) -> bool {
        self.closer.as_ref().is_some_and(|closer| closer.pending() > MOST_TO_CLOSE)
    }

    /// The events of the connection that the broker's main loop waits for.
    pub(super) fn interest(&self) -> PollFlags {
        let writes = if self.queue.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let waits = self.is_held() || self.queue.has_answers();
        let reads = if waits { PollFlags::empty() } else { PollFlags::IN };
        reads | writes
    }

    /// Whether there is a message or the end of the connection to read.
    fn is_readable(&self) -> bool {
        let at_once = Timespec::default();
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&at_once))).is_ok_and(|ready| ready > 0)
    }

    /// Sends a message, unless the client has to read others first.
    fn takes(&self, client: ClientId, id: u32, message: &Message, descriptors: &[Strange]) -> bool {
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        match self.connection.send(id, message, &borrowed) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            // The other end is gone, which reading will show; a message that cannot be said is left out.
            Err(e) => debug!(?client, "not sent: {e}"),
            Ok(()) => {}
        }
        true
    }
}

/// The clients with the users of those that are not trusted: first the trusted ones, and the clients of each
/// user behind the one that was served last.
fn in_order(
    clients: &[ClientId],
    last: &BTreeMap<u32, ClientId>,
    stranger: impl Fn(ClientId) -> Option<u32>,
) -> Vec<(Option<u32>, ClientId)> {
    let mut order: Vec<_> = clients.iter().map(|client| (stranger(*client), *client)).collect();
    order.sort_unstable_by_key(|(uid, client)| {
        let had = uid.and_then(|uid| last.get(&uid)).is_some_and(|last| client <= last);
        (*uid, had, *client)
    });
    order
}

impl Server {
    /// Serves the clients that have said something: first those that are trusted, and then each other user
    /// for a [`SLICE`]. Those who had no turn can still be read in the next one, and begin it.
    pub(super) fn serve_in_turn(&mut self, now: Instant, clients: &[ClientId]) {
        let last = std::mem::take(&mut self.last_served);
        let stranger = |link: &Link| link.closer.as_ref().map(|_| link.uid);
        let order = in_order(clients, &last, |client| self.links.get(&client).and_then(stranger));
        let mut turn: Option<(u32, Instant, ClientId)> = None;
        for (stranger, client) in order {
            let until = match (stranger, turn) {
                (None, _) => None,
                (Some(uid), Some((of, until, before))) if uid == of => {
                    if Instant::now() >= until {
                        self.last_served.entry(uid).or_insert(before);
                        continue;
                    }
                    Some(until)
                }
                (Some(_), _) => Some(Instant::now() + SLICE),
            };
            turn = stranger.zip(until).map(|(uid, until)| (uid, until, client));
            self.serve(now, client, until);
            self.deliver(now);
        }
    }

    /// The clients that have said something.
    pub(super) fn waiting_clients(&self) -> io::Result<Vec<ClientId>> {
        let links = self.links.values();
        let mut fds: Vec<PollFd<'_>> =
            links.map(|link| PollFd::new(&link.connection, link.interest() & PollFlags::IN)).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&at_once)))?;
        let said = |(client, fd): (&ClientId, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(*client);
        Ok(self.links.keys().zip(&fds).filter_map(said).collect())
    }

    pub(super) fn accept(&mut self) {
        for _ in 0..BURST {
            let mut connection = match self.listener.accept() {
                Ok(connection) => connection,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                    error!("no connection can be accepted: {e}");
                    self.broker.no_descriptor();
                    // It stays in the queue; do not spin on it.
                    std::thread::sleep(Duration::from_millis(50));
                    return;
                }
                Err(e) => {
                    debug!("a connection was gone before it was accepted: {e}");
                    continue;
                }
            };
            let Ok(peer) = connection.peer() else { continue };
            let (closer, load) = self.stranger(peer.uid).unzip();
            let queue = Queue::new(load);
            connection.closed_by(closer.clone());
            let client = ClientId(self.next_client);
            self.next_client += 1;
            let (process, watched) = self.watch(client, peer, &connection);
            if self.links.values().filter(|link| link.process == process).count() >= MOST_CONNECTIONS {
                warn!(pid = peer.pid, "has {MOST_CONNECTIONS} connections: one more is closed");
                continue;
            }
            let refused = self.refuses(peer, &connection, closer.as_ref());
            if refused.is_none() && self.broker.clients.serves(peer.uid) {
                connection.take_descriptors(closer.clone());
            }
            self.links.insert(
                client,
                Link {
                    connection: Guarded::new(connection),
                    process,
                    uid: peer.uid,
                    closer,
                    queue,
                    closing: None,
                },
            );
            match refused {
                None => self.broker.connected(client, peer, process, watched),
                Some((code, sentence)) => self.broker.clients.turn_away(client, code, sentence),
            }
        }
    }

    /// Why a program of another user may not connect, if so.
    fn refuses(
        &self,
        peer: Peer,
        connection: &Connection,
        closer: Option<&Closer>,
    ) -> Option<(RefusalCode, String)> {
        let access = self.access.as_ref()?;
        if let Err(sentence) = access.check(peer, connection.as_fd()) {
            warn!(pid = peer.pid, uid = peer.uid, "refused a program: {sentence}");
            return Some((RefusalCode::ForeignUser, sentence));
        }
        let own = nix::unistd::geteuid().as_raw();
        let count = self.links.values().filter(|link| link.uid == peer.uid).count();
        if peer.uid == 0 || peer.uid == own {
            return None;
        }
        let user = Peer::user(peer.uid);
        if let Some(waiting) = closer.map(Closer::pending).filter(|pending| *pending > MOST_TO_CLOSE) {
            let sentence =
                format!("{waiting} descriptors that programs of {user} gave to ferroced are not closed yet");
            return Some((RefusalCode::Full, sentence));
        }
        if count < self.most_of_user() {
            return None;
        }
        Some((
            RefusalCode::Full,
            format!(
                "programs of {user} have {count} connections to ferroced, which is all that a user may have"
            ),
        ))
    }

    /// The thread that closes what a user's programs sent, and what waits for them. The broker's own user and
    /// root may stop this process anyway.
    fn stranger(&mut self, uid: u32) -> Option<(Closer, Arc<UserLoad>)> {
        if uid == 0 || uid == nix::unistd::geteuid().as_raw() {
            return None;
        }
        let is_used =
            |closer: &Closer, load: &Arc<UserLoad>| !closer.is_unused() || Arc::strong_count(load) > 1;
        self.strangers.retain(|known, (closer, load)| *known == uid || is_used(closer, load));
        Some(self.strangers.entry(uid).or_default().clone())
    }

    /// Connections of all programs of another user: a program needs about eight descriptors here, and the
    /// users together get half.
    fn most_of_user(&self) -> usize {
        use nix::sys::resource::{Resource, getrlimit};
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        usize::try_from(soft / 16).unwrap_or(usize::MAX).clamp(16, MOST_OF_USER)
    }

    /// Makes the death of a client's process visible, if the system can.
    fn watch(&mut self, client: ClientId, peer: Peer, connection: &Connection) -> (ProcessId, bool) {
        let process = match peer.pid {
            0 => ProcessId(1 << 32 | client.0), // in no pid namespace that we see
            pid => ProcessId(pid.into()),
        };
        if let Some(known) = self.processes.get(&process) {
            let still = Timespec::default();
            if poll(&mut [PollFd::new(known, PollFlags::IN)], Some(&still)) == Ok(0) {
                return (process, true);
            }
            // The id was given to a new process before we heard of the old one's death.
            self.bury(Instant::now(), process);
        }
        let by_socket = nix::sys::socket::getsockopt(connection, nix::sys::socket::sockopt::PeerPidfd).ok();
        let by_pid = || {
            let pid = rustix::process::Pid::from_raw(peer.pid.try_into().ok()?)?;
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        };
        match by_socket.or_else(by_pid) {
            Some(pidfd) => {
                self.processes.insert(process, Guarded::new(pidfd));
                (process, true)
            }
            None => (process, false),
        }
    }

    /// Ends what a process had that is no more. Its last messages are read before: on Linux they are system
    /// calls, which count although the program was killed right after them, and its peers may know of them
    /// already. A forked child may hold the connection and go on sending, so the end of the connection is not
    /// waited for.
    pub(super) fn bury(&mut self, now: Instant, process: ProcessId) {
        debug!(?process, "process ended");
        let links = self.links.iter().filter(|(_, link)| link.process == process);
        let clients: Vec<ClientId> = links.map(|(client, _)| *client).collect();
        let end = Instant::now() + LAST_WORDS;
        for client in clients {
            let is_stranger = self.links.get(&client).is_some_and(|link| link.closer.is_some());
            let until = is_stranger.then_some(end);
            for _ in 0..LAST_BURSTS {
                let is_over = until.is_some_and(|until| Instant::now() >= until);
                if is_over || !self.links.get(&client).is_some_and(Link::is_readable) {
                    break;
                }
                self.serve(now, client, until);
            }
        }
        self.processes.remove(&process);
        self.broker.died(now, process);
    }

    /// Reads what a client says, at most until the end of its user's turn, and sends what waits for it.
    fn serve(&mut self, now: Instant, client: ClientId, until: Option<Instant>) {
        self.flush(client);
        for _ in 0..BURST {
            if until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
            let Some(link) = self.links.get_mut(&client) else { return };
            if link.closing.is_some_and(|end| end <= now) {
                self.links.remove(&client);
                return;
            }
            // The client takes the answers to its earlier requests first.
            if link.queue.has_answers() {
                return;
            }
            let received = match link.is_held() {
                false => link.connection.recv(&mut self.buffer),
                // The last messages of a connection that is held stay in its socket, unread.
                true if is_gone(&link.connection) => Ok(None),
                true => return,
            };
            match received {
                Ok(Some(received)) => {
                    if link.closing.is_some() {
                        continue;
                    }
                    match received.message {
                        Ok((id, message)) => {
                            if matches!(message, Message::GetStatistics(_)) {
                                for (ifindex, drops) in self.switch.take_drops() {
                                    self.broker.frames_dropped(ifindex, &drops);
                                }
                            }
                            if let Some(right) = needed(&message) {
                                let connection = link.connection.as_fd();
                                let judged = privilege::judge(connection, received.sender, right);
                                self.broker.clients.judged(client, right, judged);
                            }
                            self.broker.message(now, client, id, message, received.descriptors)
                        }
                        Err(MessageError::UnknownKind(kind)) => debug!(?client, kind, "ignored a message"),
                        Err(e) => {
                            warn!(?client, "not a message: {e}");
                            self.broker.lost(client);
                        }
                    }
                    self.deliver(now);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The program left messages of ours unread: Linux reports that once, before the program's own
                // messages.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
                Ok(None) | Err(_) => {
                    self.links.remove(&client);
                    self.broker.disconnected(now, client);
                    return;
                }
            }
        }
    }

    /// Sends a message, at once or when the client has read what waits before it.
    pub(super) fn send(&mut self, client: ClientId, id: u32, message: Message, descriptors: Vec<Strange>) {
        let Some(link) = self.links.get_mut(&client) else { return };
        if link.queue.is_empty() && link.takes(client, id, &message, &descriptors) {
            return;
        }
        link.queue.push(id, message, descriptors);
        let (uid, of_client, of_user) = (link.uid, link.queue.is_beyond(), link.queue.is_user_beyond());
        if of_client {
            warn!(?client, "reads nothing: given up");
            self.give_up(client);
        } else if of_user {
            let links = self.links.iter().filter(|(_, link)| link.uid == uid);
            let most = links.max_by_key(|(_, link)| link.queue.octets()).map(|(client, _)| *client);
            if let Some(most) = most {
                warn!(client = ?most, uid, "leaves the most unread of a user's programs: given up");
                self.give_up(most);
            }
        }
    }

    /// Ends the connection of a client that does not read. The program comes back when it goes on, and nobody
    /// repeats its events.
    fn give_up(&mut self, client: ClientId) {
        let gone = self.links.remove(&client);
        self.broker.lost(client);
        let mut queue = gone.map(|link| link.queue).unwrap_or_default();
        while let Some(waiting) = queue.pop() {
            if let Message::CmEvent(notice) = waiting.message {
                self.broker.keep_event(notice);
            }
        }
    }

    /// Closes a connection once its client has read what waits for it, or has not done so in time.
    pub(super) fn close(&mut self, now: Instant, client: ClientId) {
        if let Some(link) = self.links.get_mut(&client) {
            link.closing = Some(now + LINGER);
        }
        self.flush(client);
    }

    pub(super) fn flush(&mut self, client: ClientId) {
        let Some(link) = self.links.get_mut(&client) else { return };
        while let Some(first) = link.queue.front() {
            if !link.takes(client, first.id, &first.message, &first.descriptors) {
                return;
            }
            link.queue.pop();
        }
        if link.closing.is_some() {
            // Not closed yet: with its messages unread here, the client would see a reset in place of ours.
            let _ = rustix::net::shutdown(&link.connection, rustix::net::Shutdown::Write);
        }
    }
}

/// The right that a request may need.
fn needed(message: &Message) -> Option<Right> {
    match message {
        Message::OpenXdp(_) => Some(Right::Frames),
        Message::Cm(CmRequest::Bind(bind)) if (1..UNPRIVILEGED).contains(&bind.port) => Some(Right::LowPorts),
        _ => None,
    }
}

/// Whether the program has closed its connection.
fn is_gone(connection: &Connection) -> bool {
    let at_once = Timespec::default();
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_goes_on_behind_the_client_that_was_served_last() {
        let clients = [1, 2, 3, 4, 5, 6].map(ClientId);
        let stranger = |client: ClientId| (client.0 != 5).then_some(if client.0 == 6 { 8 } else { 7 });
        let order = |last: &[(u32, u64)]| {
            let last = last.iter().map(|(uid, client)| (*uid, ClientId(*client))).collect();
            in_order(&clients, &last, stranger).into_iter().map(|(_, client)| client.0).collect::<Vec<_>>()
        };
        assert_eq!(order(&[]), [5, 1, 2, 3, 4, 6], "the trusted one first");
        assert_eq!(order(&[(7, 2), (8, 6)]), [5, 3, 4, 1, 2, 6]);
        assert_eq!(order(&[(7, 9)]), [5, 1, 2, 3, 4, 6], "that client is gone");
    }
}
