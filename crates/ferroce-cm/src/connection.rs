//! A connection: its messages, its timers and its state.

use core::net::IpAddr;
use core::time::Duration;

use ferroce_wire::cm::{CmTime, CommId, Mad, Message, Rep, Req, ServiceId};
use ferroce_wire::{Instant, Psn, Qpn};

use super::attributes::replied_qpn;
use super::types::{ListenerId, Route};

/// Bounds for the wait for one answer, whatever a peer or a record says. The CM of Linux waits at least a
/// millisecond.
pub(super) const RESPONSE_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(20));
/// Time for all repetitions of a REP, whatever the REQ says: its sender has shown nothing yet. A peer whose
/// program is slow sends an MRA.
const HALF_OPEN: Duration = Duration::from_secs(8);
/// Longest wait that a peer's MRA, or its ACK timeout in time-wait, can cause: the value that Linux itself
/// requests.
pub(super) const LONGEST_WAIT: CmTime = CmTime::saturating(24);
/// A timer that is looked at so late, or by a quarter of its time, says nothing about the peer. A process
/// that has a processor is not as late.
const LATE: Duration = Duration::from_millis(100);
const SHORTEST_TIME_WAIT: CmTime = CmTime::saturating(8);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Active,
    Passive,
}

/// A message that is repeated until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Retry {
    pub at: Instant,
    /// Repetitions that are left.
    pub left: u8,
}

impl Retry {
    /// The next one; `None` if none is left. An expiry that is noticed late does not end the wait: this
    /// process had no processor, and the peer may have had none either.
    pub fn again(self, now: Instant, response_time: Duration) -> Option<Self> {
        let is_late = now.saturating_since(self.at) > LATE.max(response_time / 4);
        let left = if is_late { self.left.saturating_sub(1) } else { self.left.checked_sub(1)? };
        Some(Self { at: now + response_time, left })
    }
}

/// State of a connection, as IBTA 12.9 names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CmState {
    ReqSent(Retry),
    /// Active: the peer has announced that it will take longer.
    MraReqRcvd(Retry),
    /// Active: the program is setting up its queue pair.
    RepRcvd,
    /// Active: as [`Self::RepRcvd`], and a repeated REP is answered with an MRA.
    MraRepSent(CmTime),
    /// Passive: the program is deciding.
    ReqRcvd,
    /// Passive: as [`Self::ReqRcvd`], and a repeated REQ is answered with an MRA.
    MraReqSent(CmTime),
    RepSent(Retry),
    /// Passive: the peer has announced that it will take longer.
    MraRepRcvd(Retry),
    Established,
    DreqSent(Retry),
    /// The peer has sent a DREQ, and the program has not yet agreed.
    DreqRcvd,
    /// The connection has ended, but its numbers stay reserved while packets may be under way.
    TimeWait(Instant),
}

impl CmState {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::ReqSent(_) => "REQ sent",
            Self::MraReqRcvd(_) => "MRA(REQ) received",
            Self::RepRcvd => "REP received",
            Self::MraRepSent(_) => "MRA(REP) sent",
            Self::ReqRcvd => "REQ received",
            Self::MraReqSent(_) => "MRA(REQ) sent",
            Self::RepSent(_) => "REP sent",
            Self::MraRepRcvd(_) => "MRA(REP) received",
            Self::Established => "established",
            Self::DreqSent(_) => "DREQ sent",
            Self::DreqRcvd => "DREQ received",
            Self::TimeWait(_) => "time-wait",
        }
    }

    /// The time of the next repetition or timeout.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self {
            Self::ReqSent(retry)
            | Self::MraReqRcvd(retry)
            | Self::RepSent(retry)
            | Self::MraRepRcvd(retry)
            | Self::DreqSent(retry) => Some(retry.at),
            Self::TimeWait(until) => Some(*until),
            Self::RepRcvd
            | Self::MraRepSent(_)
            | Self::ReqRcvd
            | Self::MraReqSent(_)
            | Self::Established
            | Self::DreqRcvd => None,
        }
    }

    /// Whether the program can answer the request.
    pub(super) const fn waits_for_program(&self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent(_))
    }

    /// Whether the connection takes a place in its listener's backlog: until the program has fetched the
    /// request (Linux 6.12, `ucma_get_event`), which it says by an MRA.
    pub(super) const fn is_in_backlog(&self) -> bool {
        matches!(self, Self::ReqRcvd)
    }
}

/// Names a REQ: its sender, the sender's communication id and GUID, and the user who received it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ReqKey {
    pub remote: IpAddr,
    pub id: CommId,
    pub guid: u64,
    pub user: u32,
}

/// Names a queue pair of a peer, as one user knows it. The address is part of it, so that a sender elsewhere
/// cannot claim it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct QpKey {
    pub remote: IpAddr,
    pub guid: u64,
    pub qpn: u32,
    pub user: u32,
}

/// A connection. The REQ and the REP hold all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub id: CommId,
    /// The user of the owner.
    pub user: u32,
    pub role: Role,
    pub peer_to_peer: bool,
    pub route: Route,
    /// The listener whose backlog counts this request.
    pub listener: Option<ListenerId>,
    pub transaction_id: u64,
    /// Our REQ if active, the peer's if passive.
    pub req: Req,
    /// The REP of the passive end; `None` there until the program accepts.
    pub rep: Option<Rep>,
    /// The first PSN that our queue pair expects.
    pub psn: Psn,
    /// The time to wait for an answer.
    pub response_time: Duration,
    /// The owner has closed the connection: no event is reported any more.
    pub orphaned: bool,
    pub state: CmState,
}

impl Connection {
    pub(super) fn remote_id(&self) -> Option<CommId> {
        match self.role {
            Role::Active => self.rep.as_ref().map(|rep| rep.local_id),
            Role::Passive => Some(self.req.local_id),
        }
    }

    /// Our queue pair; `None` until it is known.
    pub(super) fn local_qpn(&self) -> Option<Qpn> {
        match self.role {
            Role::Active => Some(self.req.qpn),
            Role::Passive => self.rep.as_ref().map(|rep| replied_qpn(self.req.transport, rep)),
        }
    }

    /// The peer's queue pair and GUID; `None` until they are known.
    pub(super) fn qp_key(&self) -> Option<QpKey> {
        let (guid, qpn) = match self.role {
            Role::Active => {
                let rep = self.rep.as_ref()?;
                (rep.ca_guid, replied_qpn(self.req.transport, rep))
            }
            Role::Passive => (self.req.ca_guid, self.req.qpn),
        };
        Some(QpKey { remote: self.route.remote, guid, qpn: qpn.value(), user: self.user })
    }

    pub(super) fn req_key(&self) -> Option<ReqKey> {
        let Req { local_id: id, ca_guid: guid, .. } = self.req;
        let key = ReqKey { remote: self.route.remote, id, guid, user: self.user };
        (self.role == Role::Passive).then_some(key)
    }

    pub(super) fn peer_key(&self) -> Option<(ServiceId, Route, u32)> {
        self.peer_to_peer.then_some((self.req.service_id, self.route, self.user))
    }

    pub(super) const fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }

    /// Starts a [`Retry`]: one repetition per response time, as many as the REQ says.
    pub(super) fn first_try(&self, now: Instant) -> Retry {
        Retry { at: now + self.response_time, left: self.req.max_cm_retries }
    }

    /// Time-wait from now on, as long as the path's ACK timeout.
    pub(super) fn time_wait(&self, now: Instant) -> CmState {
        let time = self.req.primary.ack_timeout.clamp(SHORTEST_TIME_WAIT, LONGEST_WAIT);
        CmState::TimeWait(now + time.duration())
    }
}

/// The response time, limited to [`RESPONSE_TIME`].
pub(super) fn bounded(response_time: Duration) -> Duration {
    let (shortest, longest) = RESPONSE_TIME;
    response_time.clamp(shortest, longest)
}

/// The time between two REPs for a REQ, of which there are as many as it says.
pub(super) fn rep_time(req: &Req) -> Duration {
    bounded(req.local_timeout.duration()).min(HALF_OPEN / (u32::from(req.max_cm_retries) + 1))
}
