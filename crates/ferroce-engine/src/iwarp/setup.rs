//! The set-up of connections, on the background thread.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ferroce_host::fork::Guarded;
use ferroce_proto::iwarp::setup::{
    self, Heard, Initiator, Progress, REPLY_TIMEOUT, REQUEST_TIMEOUT, Reason, Responder,
};
use ferroce_wire::iwarp::crc::Crc32c;
use ferroce_wire::iwarp::mpa::{Enhanced, NOT_NEGOTIATED};
use ferroce_wire::{Instant, Qpn};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::connection::Shared;
use super::listener::{Listening, Place};
use super::manager::{Step, Wait};
use super::port::canonical;
use super::{Event, Request, Sink};
use crate::clock;

/// Octets that are read at once. A request has at most 532.
const PIECE: usize = 4096;

/// Receives on a socket; 0 octets at the end of the stream.
fn receive(socket: &Guarded<OwnedFd>, piece: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, piece, RecvFlags::DONTWAIT).map(|(len, _)| len)
}

/// An event for the receiver.
pub(super) type Delivery = (Sink, Event);

/// The active end, before TCP has connected.
pub(super) struct Connecting {
    shared: Arc<Shared>,
    qpn: Qpn,
    pub(super) socket: Guarded<OwnedFd>,
    destination: SocketAddr,
    initiator: Initiator,
    pub(super) until: Instant,
    /// The peer's TCP refused: tries again then.
    pub(super) rests_until: Option<Instant>,
    /// A refusal counts from then on.
    patient_until: Instant,
}

/// Two programs that agree to connect now race for it: the listener may come a moment later. RoCE's connection management waits for it as
/// long, at the passive end (`broker/src/early_requests.rs`).
const PATIENCE: Duration = Duration::from_millis(100);
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

impl Connecting {
    /// TCP connects `socket` to `destination`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        qpn: Qpn,
        socket: Guarded<OwnedFd>,
        destination: SocketAddr,
        initiator: Initiator,
    ) -> Self {
        let now = clock::now();
        Self {
            shared: Arc::clone(shared),
            qpn,
            socket,
            destination,
            initiator,
            until: now + REPLY_TIMEOUT,
            rests_until: None,
            patient_until: now + PATIENCE,
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.shared.is_dropped()
    }

    /// TCP knows how it ended: sends the request.
    pub(super) fn go_on(self, now: Instant, deliveries: &mut Vec<Delivery>) -> Step {
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
                let Self { shared, qpn, socket, initiator, .. } = self;
                Step::Wait(Asking { shared, qpn, socket, initiator, until: now + REPLY_TIMEOUT }.into())
            }
            // The readiness was another's.
            Err(Errno::NOTCONN | Errno::INPROGRESS | Errno::AGAIN) => Step::Wait(self.into()),
            Err(errno) => self.refused(now, errno, deliveries),
        }
    }

    /// TCP refused at once: tries again a moment later.
    pub(super) fn rest(&mut self) {
        self.rests_until = Some(clock::now() + BETWEEN_TRIES);
    }

    /// TCP could not connect.
    fn refused(mut self, now: Instant, errno: Errno, deliveries: &mut Vec<Delivery>) -> Step {
        if errno == Errno::CONNREFUSED && now < self.patient_until {
            self.rests_until = Some(now + BETWEEN_TRIES);
            return Step::Wait(self.into());
        }
        fail(&self.shared, errno, Vec::new(), deliveries)
    }

    /// The rest is over, or all the time.
    pub(super) fn expire(mut self, now: Instant, deliveries: &mut Vec<Delivery>) -> Step {
        if self.rests_until.take().is_none() {
            return fail(&self.shared, Errno::TIMEDOUT, Vec::new(), deliveries);
        }
        let connect = || rustix::net::connect(&self.socket, &self.destination);
        // The first call after a refusal may only clear that.
        let connected = match connect() {
            Err(Errno::CONNABORTED) => connect(),
            other => other,
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Step::Wait(self.into()),
            Err(errno) => self.refused(now, errno, deliveries),
        }
    }
}

/// The active end, until the peer's reply is here.
pub(super) struct Asking {
    shared: Arc<Shared>,
    qpn: Qpn,
    pub(super) socket: Guarded<OwnedFd>,
    initiator: Initiator,
    pub(super) until: Instant,
}

impl Asking {
    pub(super) fn is_cancelled(&self) -> bool {
        self.shared.is_dropped()
    }

    /// Something arrived.
    pub(super) fn go_on(mut self, deliveries: &mut Vec<Delivery>) -> Step {
        let mut piece = [0; PIECE];
        let len = match receive(&self.socket, &mut piece) {
            Ok(0) => return fail(&self.shared, Errno::CONNRESET, Vec::new(), deliveries),
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Step::Wait(self.into()),
            Err(errno) => return fail(&self.shared, errno, Vec::new(), deliveries),
        };
        match self.initiator.handle(piece.get(..len).unwrap_or_default()) {
            Progress::Wait => Step::Wait(self.into()),
            Progress::Agreed(agreement, behind) => {
                let Self { shared, qpn, socket, .. } = self;
                let setup::Agreement { stream, private, .. } = agreement;
                match shared.replied(qpn, stream, socket, behind) {
                    Ok(()) => {
                        let established = Event::Established { ird: stream.ird, ord: stream.ord, private };
                        deliveries.push((shared.sink(), established));
                        Step::Done
                    }
                    Err(errno) => fail(&shared, errno, Vec::new(), deliveries),
                }
            }
            Progress::Rejected { private } => fail(&self.shared, Errno::CONNRESET, private, deliveries),
            Progress::Failed(failure) => {
                tracing::debug!(reason = %failure.reason, "a peer's reply is refused");
                let errno = match failure.reason {
                    // As siw (siw 6.1 siw_cm.c).
                    Reason::Revision { .. } | Reason::NoEnhancedBlock => Errno::CONNRESET,
                    _ => Errno::PROTO,
                };
                let octets = failure.terminate.as_ref().and_then(terminate);
                let after = fail(&self.shared, errno, Vec::new(), deliveries);
                match octets {
                    Some(octets) => Step::Linger(Arc::new(self.socket), octets),
                    None => after,
                }
            }
        }
    }

    /// The time is over.
    pub(super) fn expire(self, deliveries: &mut Vec<Delivery>) -> Step {
        fail(&self.shared, Errno::TIMEDOUT, Vec::new(), deliveries)
    }
}

/// The FPDU of a Terminate message (RFC 5040 4.8): the first of the stream. Before it stands a marker if the peer asked for those; then
/// there is none, since FIN says as much.
fn terminate(of: &setup::Terminate) -> Option<Vec<u8>> {
    let mut octets = vec![0, 22, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    octets.extend([of.layer << 4 | of.error_type & 0xf, of.code, 0, 0]);
    let mut crc = Crc32c::new();
    crc.update(&octets);
    octets.extend(if of.crc { crc.octets() } else { [0; 4] });
    (!of.send_markers).then_some(octets)
}

/// The connection does not come about.
fn fail(shared: &Shared, errno: Errno, private: Vec<u8>, deliveries: &mut Vec<Delivery>) -> Step {
    shared.is_over();
    deliveries.push((shared.sink(), Event::Failed { errno: errno.raw_os_error(), private }));
    Step::Done
}

/// The passive end, until the peer's request is here.
pub(super) struct Hearing {
    pub(super) socket: Guarded<OwnedFd>,
    responder: Responder,
    pub(super) until: Instant,
    listening: Arc<Listening>,
    place: Place,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Hearing {
    pub(super) fn new(
        socket: Guarded<OwnedFd>,
        listening: &Arc<Listening>,
        place: Place,
        (local, remote): (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Self {
        let (local, remote) = (canonical(local), canonical(remote));
        let until = now + REQUEST_TIMEOUT;
        let listening = Arc::clone(listening);
        Self { socket, responder: Responder::new(), until, listening, place, local, remote }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.listening.is_closed()
    }

    /// Something arrived.
    pub(super) fn go_on(mut self, deliveries: &mut Vec<Delivery>) -> Step {
        let mut piece = [0; PIECE];
        let len = match receive(&self.socket, &mut piece) {
            Ok(0) => return Step::Done,
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Step::Wait(Wait::Hearing(Box::new(self))),
            Err(_) => return Step::Done,
        };
        let request = match self.responder.handle(piece.get(..len).unwrap_or_default()) {
            Heard::Wait => return Step::Wait(Wait::Hearing(Box::new(self))),
            Heard::Request(request) => request.clone(),
            Heard::Failed(failure) => {
                tracing::debug!(remote = %self.remote, reason = %failure.reason, "a peer sends no request");
                return Step::Done;
            }
        };
        let Self { socket, responder, listening, place, local, remote, .. } = self;
        let connection = listening.connection(local);
        connection.0.requested(socket, responder, place);
        let depth = |of: fn(&Enhanced) -> u16| {
            let depth = request.enhanced.as_ref().map(of);
            depth.filter(|depth| *depth != NOT_NEGOTIATED).unwrap_or(0)
        };
        let (ird, ord) = (depth(|block| block.ird), depth(|block| block.ord));
        let private = request.private;
        let request = Request { connection, local, remote, ird, ord, private };
        deliveries.push((listening.sink(), Event::Request(Box::new(request))));
        Step::Done
    }
}

impl From<Connecting> for Wait {
    fn from(connecting: Connecting) -> Self {
        Self::Connecting(Box::new(connecting))
    }
}

impl From<Asking> for Wait {
    fn from(asking: Asking) -> Self {
        Self::Asking(Box::new(asking))
    }
}
