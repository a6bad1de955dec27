//! The set-up of connections, on the background thread.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferroce_cm::ConnectParams;
use ferroce_host::fork::Guarded;
use ferroce_paths::clock;
use ferroce_proto::iwarp::setup::{
    self, Heard, Initiator, Progress, REPLY_TIMEOUT, REQUEST_TIMEOUT, Reason, Responder, SetupParams,
};
use ferroce_wire::cm::RejReason;
use ferroce_wire::iwarp::mpa::REVISION_BASIC;
use ferroce_wire::{Instant, Qpn};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::backlog::Silent;
use super::connection::{self, Shared, crc_at, find, too_long};
use super::manager::{Manager, Results, Wait, Waiting};
use super::port::{TcpPort, canonical};
use crate::cm::connection::Transport;
use crate::cm::event::{EventKind, EventSink, Request, Terms};
use crate::cm::{CmError, Connection};

/// A wait that this process comes to so late after its end lasts as long again: it had no processor, and the
/// peer may have had none either.
const LATE: Duration = Duration::from_secs(1);

/// Whether a wait until then goes on, because this process is late itself.
fn prolong(until: &mut Instant, now: Instant) -> bool {
    let is_late = now.saturating_since(*until) > LATE;
    if is_late {
        *until = now + LATE;
    }
    is_late
}

/// Octets that are read at once. A request has at most 532.
const PIECE: usize = 4096;

/// Receives on a socket; 0 octets at the end of the stream.
fn receive(socket: &Guarded<OwnedFd>, piece: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, piece, RecvFlags::DONTWAIT).map(|(len, _)| len)
}

impl connection::Connection {
    /// Asks a peer for a connection, see [`crate::cm::Port::connect`].
    pub(in crate::cm) fn connect(
        port: &TcpPort,
        destination: SocketAddr,
        params: &ConnectParams,
        private: &[u8],
        sink: EventSink,
    ) -> Result<Self, CmError> {
        let (engine, manager) = Manager::global()?;
        find(&engine, params.qpn)?;
        let shared = Shared::new(&engine, &manager, crc_at(&engine, port.local()), sink);
        let offer = SetupParams {
            crc: shared.crc,
            ird: params.responder_resources,
            ord: params.initiator_depth,
            private,
            // A kernel whose siw was asked for it can be ended by a FIN before the first FPDU (Linux 6.1, BUG
            // in iwcm.c). See `Shared::replied` for what takes its place.
            peer_to_peer: false,
        };
        let initiators = Initiator::new(&offer).and_then(|first| Ok((first, Initiator::basic(&offer)?)));
        let initiators = initiators.map_err(|_| too_long(private))?;
        engine.flush_all();
        let socket = port.take()?;
        let connected = sockopt::set_tcp_nodelay(&socket, true)
            .and_then(|()| rustix::net::connect(&socket, &destination));
        match connected {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR | Errno::CONNREFUSED) => {}
            Err(errno) => {
                port.put_back(socket);
                return Err(errno.into());
            }
        }
        let mut connecting = Connecting::new(&shared, params.qpn, socket, destination, initiators);
        if connected == Err(Errno::CONNREFUSED) {
            connecting.rest(clock::now());
        }
        let number = manager.number();
        shared.sets_up(number);
        manager.add(number, Box::new(connecting)).map_err(|(errno, _)| errno)?;
        Ok(Self(shared))
    }
}

/// The active end, before TCP has connected.
struct Connecting {
    shared: Arc<Shared>,
    qpn: Qpn,
    socket: Guarded<OwnedFd>,
    destination: SocketAddr,
    initiator: Initiator,
    /// The request for a peer that closes the connection at the first one. `None`: that happened.
    basic: Option<Initiator>,
    until: Instant,
    /// The peer's TCP refused: tries again then.
    rests_until: Option<Instant>,
    /// A refusal counts from then on.
    patient_until: Instant,
}

/// Two programs that agree to connect now race for it: the listener may come a moment later. RoCE's
/// connection management waits for it as long, at the passive end (`broker/src/early_requests.rs`).
const PATIENCE: Duration = Duration::from_millis(100);
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

impl Connecting {
    /// TCP connects `socket` to `destination`. The initiators are those of revision 2 and of revision 1.
    fn new(
        shared: &Arc<Shared>,
        qpn: Qpn,
        socket: Guarded<OwnedFd>,
        destination: SocketAddr,
        (initiator, basic): (Initiator, Initiator),
    ) -> Self {
        let now = clock::now();
        Self {
            shared: Arc::clone(shared),
            qpn,
            socket,
            destination,
            initiator,
            basic: Some(basic),
            until: now + REPLY_TIMEOUT,
            rests_until: None,
            patient_until: now + PATIENCE,
        }
    }

    /// TCP knows how it ended: sends the request.
    fn connected(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        let result = sockopt::socket_error(&self.socket).and_then(|result| result);
        let sent = result.and_then(|()| {
            // The first octets of a connection: TCP takes them all.
            rustix::net::send(
                &self.socket,
                self.initiator.request(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            )
        });
        match sent {
            Ok(_) => {
                let Self { shared, qpn, socket, destination, initiator, basic, .. } = *self;
                let again = basic.map(|basic| (destination, basic));
                let until = now + REPLY_TIMEOUT;
                Some(Box::new(Asking { shared, qpn, socket, initiator, again, heard: false, until }))
            }
            // The readiness was another's.
            Err(Errno::NOTCONN | Errno::INPROGRESS | Errno::AGAIN) => Some(self),
            Err(errno) => self.refused(now, errno, results),
        }
    }

    /// TCP refused: tries again a moment later.
    fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + BETWEEN_TRIES);
    }

    /// TCP could not connect.
    fn refused(mut self: Box<Self>, now: Instant, errno: Errno, results: &mut Results) -> Option<Wait> {
        if errno == Errno::CONNREFUSED && now < self.patient_until {
            self.rest(now);
            return Some(self);
        }
        // The program learns the end of the first connection.
        let errno = if self.basic.is_some() { errno } else { Errno::CONNRESET };
        fail(&self.shared, errno, Vec::new(), results)
    }

    /// The rest is over, or all the time.
    fn tries_again(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        if self.rests_until.take().is_none() {
            if prolong(&mut self.until, now) {
                return Some(self);
            }
            return fail(&self.shared, Errno::TIMEDOUT, Vec::new(), results);
        }
        let connect = || rustix::net::connect(&self.socket, &self.destination);
        // The first call after a refusal may only clear that.
        let connected = match connect() {
            Err(Errno::CONNABORTED) => connect(),
            other => other,
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Some(self),
            Err(errno) => self.refused(now, errno, results),
        }
    }
}

/// The active end, until the peer's reply is here.
pub(super) struct Asking {
    shared: Arc<Shared>,
    qpn: Qpn,
    socket: Guarded<OwnedFd>,
    initiator: Initiator,
    /// The peer's address, and the request of revision 1; `None` if that is the one that was sent.
    again: Option<(SocketAddr, Initiator)>,
    /// The peer sent octets.
    heard: bool,
    until: Instant,
}

impl Asking {
    /// Something arrived.
    fn receive(mut self: Box<Self>, results: &mut Results) -> Option<Wait> {
        let mut piece = [0; PIECE];
        let len = match receive(&self.socket, &mut piece) {
            Ok(0) | Err(Errno::CONNRESET) => return self.closed(results),
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Some(self),
            Err(errno) => return fail(&self.shared, errno, Vec::new(), results),
        };
        self.heard = true;
        match self.initiator.handle(piece.get(..len).unwrap_or_default()) {
            Progress::Wait => Some(self),
            Progress::Agreed(agreement, behind) => {
                let Self { shared, qpn, socket, .. } = *self;
                let setup::Agreement { stream, private, .. } = agreement;
                match shared.replied(qpn, stream, socket, behind) {
                    Ok(()) => {
                        let private = private.into();
                        let (responder_resources, initiator_depth) = (stream.ird, stream.ord);
                        let terms = Terms { responder_resources, initiator_depth, private };
                        let sink = shared.sink();
                        results.deliver(move || sink.deliver(EventKind::Established(terms)));
                        None
                    }
                    Err(errno) => fail(&shared, errno, Vec::new(), results),
                }
            }
            Progress::Rejected { private } => fail(&self.shared, Errno::CONNRESET, private, results),
            // Revision 1 has it so, but some peers answer in the revision that they know.
            Progress::Failed(setup::Failure {
                reason: Reason::Revision { received: REVISION_BASIC, .. },
                ..
            }) if self.again.is_some() => self.again(results),
            Progress::Failed(failure) => {
                tracing::debug!(reason = %failure.reason, "a peer's reply is refused");
                let errno = match failure.reason {
                    // As siw (siw 6.1 siw_cm.c).
                    Reason::Revision { .. } | Reason::NoEnhancedBlock => Errno::CONNRESET,
                    _ => Errno::PROTO,
                };
                let octets = failure.terminate.and_then(|terminate| terminate.fpdu());
                fail(&self.shared, errno, Vec::new(), results);
                results.ends = octets.map(|octets| (Arc::new(self.socket) as Arc<_>, octets));
                None
            }
        }
    }

    /// The peer closed the connection. Without a word it may be a peer that does not know revision 2 (RFC
    /// 5044 7.1.1).
    fn closed(self, results: &mut Results) -> Option<Wait> {
        match self.heard {
            false => self.again(results),
            true => fail(&self.shared, Errno::CONNRESET, Vec::new(), results),
        }
    }

    /// Asks once more, in revision 1, by a new connection from the same port (RFC 6581 10).
    fn again(self, results: &mut Results) -> Option<Wait> {
        let Self { shared, qpn, socket, again, .. } = self;
        let Some((destination, initiator)) = again else {
            return fail(&shared, Errno::CONNRESET, Vec::new(), results);
        };
        tracing::debug!(%destination, "a peer closed the connection at a request of revision 2");
        match connect_again(socket, destination) {
            Ok(socket) => {
                let now = clock::now();
                let until = now + REPLY_TIMEOUT;
                let (rests_until, patient_until) = (None, now);
                let connecting = Connecting {
                    shared,
                    qpn,
                    socket,
                    destination,
                    initiator,
                    basic: None,
                    until,
                    rests_until,
                    patient_until,
                };
                Some(Box::new(connecting))
            }
            Err(error) => {
                tracing::debug!(%error, "no second connection");
                fail(&shared, Errno::CONNRESET, Vec::new(), results)
            }
        }
    }
}

/// A new connection between the same addresses. The old one is reset, so that its port can be used.
fn connect_again(old: Guarded<OwnedFd>, destination: SocketAddr) -> Result<Guarded<OwnedFd>, CmError> {
    let local = SocketAddr::try_from(rustix::net::getsockname(&old)?)?;
    sockopt::set_socket_linger(&old, Some(Duration::ZERO))?;
    drop(old);
    let socket = TcpPort::bind(local, false)?.take()?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &destination) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// The connection does not come about.
fn fail(shared: &Shared, errno: Errno, private: Vec<u8>, results: &mut Results) -> Option<Wait> {
    shared.is_over();
    let (sink, private) = (shared.sink(), private.into());
    let kind = match errno {
        Errno::CONNREFUSED => EventKind::Rejected { reason: RejReason::INVALID_SERVICE_ID, private },
        Errno::CONNRESET => EventKind::Rejected { reason: RejReason::CONSUMER, private },
        Errno::TIMEDOUT => EventKind::Unreachable,
        errno => EventKind::Failed(errno.into()),
    };
    results.deliver(move || sink.deliver(kind));
    None
}

/// The passive end, until the peer's request is here.
pub(super) struct Hearing {
    socket: Guarded<OwnedFd>,
    responder: Responder,
    until: Instant,
    silent: Silent,
    /// The sink of the listener.
    sink: EventSink,
    /// The request, while it waits for a place in the backlog, and when it looks for one again.
    request: Option<(setup::Request, Instant)>,
    local: SocketAddr,
    remote: SocketAddr,
}

/// A request that found no place in the backlog looks for one so often.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

impl Hearing {
    pub(super) fn new(
        socket: Guarded<OwnedFd>,
        silent: Silent,
        sink: EventSink,
        (local, remote): (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Self {
        let (local, remote) = (canonical(local), canonical(remote));
        let until = now + REQUEST_TIMEOUT;
        Self { socket, responder: Responder::new(), until, silent, sink, request: None, local, remote }
    }

    /// Something arrived.
    fn receive(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        let mut piece = [0; PIECE];
        let len = match receive(&self.socket, &mut piece) {
            Ok(0) => return None,
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Some(self),
            Err(_) => return None,
        };
        let request = match self.responder.handle(piece.get(..len).unwrap_or_default()) {
            Heard::Wait => return Some(self),
            Heard::Request(request) => request.clone(),
            Heard::Failed(failure) => {
                tracing::debug!(remote = %self.remote, reason = %failure.reason, "a peer sends no request");
                return None;
            }
        };
        self.present(request, now, results)
    }

    /// Gives the listener the request, once that has a place in the backlog.
    fn present(
        mut self: Box<Self>,
        request: setup::Request,
        now: Instant,
        results: &mut Results,
    ) -> Option<Wait> {
        let listening = Arc::clone(self.silent.listening());
        let Some(place) = listening.place() else {
            self.request = Some((request, now + BETWEEN_LOOKS));
            return Some(self);
        };
        let Self { socket, responder, sink, local, remote, .. } = *self;
        let crc = crc_at(&listening.engine, local);
        // The connection is the listener's for now.
        let shared = Shared::new(&listening.engine, &listening.manager, crc, sink.clone());
        shared.requested(socket, responder, place);
        let depth = |named: Option<u16>| u8::try_from(named.unwrap_or(0)).unwrap_or(u8::MAX);
        let request = Request {
            connection: Connection(Transport::Iwarp(connection::Connection(shared))),
            local,
            remote,
            responder_resources: depth(request.ird()),
            initiator_depth: depth(request.ord()),
            private: request.private.into(),
            roce: None,
        };
        results.deliver(move || sink.deliver(EventKind::Request(Box::new(request))));
        None
    }
}

impl Waiting for Connecting {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Option<EventFlags> {
        self.rests_until.is_none().then_some(EventFlags::OUT)
    }

    fn until(&self) -> Option<Instant> {
        Some(self.rests_until.unwrap_or(self.until))
    }

    fn is_cancelled(&self) -> bool {
        self.shared.is_dropped()
    }

    fn go_on(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.connected(now, results)
    }

    fn expire(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.tries_again(now, results)
    }

    fn unwatched(self: Box<Self>, errno: Errno, _: Instant, results: &mut Results) -> Option<Wait> {
        fail(&self.shared, errno, Vec::new(), results)
    }
}

impl Waiting for Asking {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn until(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn is_cancelled(&self) -> bool {
        self.shared.is_dropped()
    }

    fn go_on(self: Box<Self>, _: Instant, results: &mut Results) -> Option<Wait> {
        self.receive(results)
    }

    fn expire(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        if prolong(&mut self.until, now) {
            return Some(self);
        }
        fail(&self.shared, Errno::TIMEDOUT, Vec::new(), results)
    }

    fn unwatched(self: Box<Self>, errno: Errno, _: Instant, results: &mut Results) -> Option<Wait> {
        fail(&self.shared, errno, Vec::new(), results)
    }
}

impl Waiting for Hearing {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Option<EventFlags> {
        self.request.is_none().then_some(EventFlags::IN)
    }

    fn until(&self) -> Option<Instant> {
        Some(self.request.as_ref().map_or(self.until, |(_, looks_at)| *looks_at))
    }

    fn is_cancelled(&self) -> bool {
        self.silent.is_over()
    }

    fn go_on(self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        self.receive(now, results)
    }

    fn expire(mut self: Box<Self>, now: Instant, results: &mut Results) -> Option<Wait> {
        match self.request.take() {
            Some((request, _)) if now < self.until => self.present(request, now, results),
            None if prolong(&mut self.until, now) => Some(self),
            _ => None,
        }
    }

    fn unwatched(self: Box<Self>, _: Errno, _: Instant, _: &mut Results) -> Option<Wait> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_goes_on_if_this_process_is_late_itself() {
        let begin = Instant::from_nanos(7);
        let mut until = begin;
        assert!(!prolong(&mut until, begin + LATE) && until == begin);
        let late = begin + LATE * 2;
        assert!(prolong(&mut until, late) && until == late + LATE);
        assert!(!prolong(&mut until, late + LATE), "it is not late any more");
    }
}
