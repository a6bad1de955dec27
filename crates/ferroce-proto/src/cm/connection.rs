//! One connection: what is known of it, and its state.

use core::net::IpAddr;
use core::time::Duration;

use ferroce_wire::cm::{CmTime, CommId, Mad, Message, Rep, Req};
use ferroce_wire::{Instant, Psn, Qpn};

use super::attributes::replied_qpn;
use super::types::{ListenerId, Route};

/// Bounds of what a peer, or a record, can make us wait for one answer. The CM of Linux counts at least a millisecond.
pub(super) const RESPONSE_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(20));
/// Longest time that a peer's MRA, or its ACK timeout in time-wait, can make us wait: what Linux itself asks for.
pub(super) const LONGEST_WAIT: CmTime = CmTime::saturating(24);
const SHORTEST_TIME_WAIT: CmTime = CmTime::saturating(8);

/// Which end of a connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Active,
    Passive,
}

/// A message that is repeated until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Retry {
    pub at: Instant,
    /// How often that can still be.
    pub left: u8,
}

/// State of a connection, as IBTA 12.9 names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    ReqSent(Retry),
    /// Active: the peer will take longer.
    MraReqRcvd(Retry),
    /// Active: the program sets up its queue pair.
    RepRcvd,
    /// Active: the same, and the peer is told so when it asks again.
    MraRepSent(CmTime),
    /// Passive: the program decides.
    ReqRcvd,
    /// Passive: the same, and the peer is told so when it asks again.
    MraReqSent(CmTime),
    RepSent(Retry),
    /// Passive: the peer will take longer.
    MraRepRcvd(Retry),
    /// Both ends know of each other.
    Established,
    DreqSent(Retry),
    /// The peer wants to end it, the program has not yet agreed.
    DreqRcvd,
    /// Over, but the numbers stay reserved for as long as packets may be under way.
    TimeWait(Instant),
}

impl State {
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

    /// When something is to be done.
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

    /// Occupies a place in its listener's backlog.
    pub(super) const fn waits_for_program(&self) -> bool {
        matches!(self, Self::ReqRcvd | Self::MraReqSent(_))
    }
}

/// Names a REQ: its sender, the sender's communication id and GUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ReqKey {
    pub remote: IpAddr,
    pub id: CommId,
    pub guid: u64,
}

/// Names a queue pair of a peer. The address is part of it, so that nobody elsewhere can claim it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct QpKey {
    pub remote: IpAddr,
    pub guid: u64,
    pub qpn: u32,
}

/// A connection. The two messages that made it hold all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub id: CommId,
    pub role: Role,
    pub peer_to_peer: bool,
    pub route: Route,
    /// Whose backlog it is in.
    pub listener: Option<ListenerId>,
    pub transaction_id: u64,
    /// Ours, or the peer's, by role.
    pub req: Req,
    /// The other end's; passive: `None` until accepted.
    pub rep: Option<Rep>,
    /// The PSN our queue pair expects first.
    pub psn: Psn,
    /// How long to wait for an answer.
    pub response_time: Duration,
    /// Its program is gone: nobody hears of it any more.
    pub orphaned: bool,
    pub state: State,
}

impl Connection {
    pub(super) fn remote_id(&self) -> Option<CommId> {
        match self.role {
            Role::Active => self.rep.as_ref().map(|rep| rep.local_id),
            Role::Passive => Some(self.req.local_id),
        }
    }

    /// Our queue pair, once it is known.
    pub(super) fn local_qpn(&self) -> Option<Qpn> {
        match self.role {
            Role::Active => Some(self.req.qpn),
            Role::Passive => self.rep.as_ref().map(|rep| replied_qpn(self.req.transport, rep)),
        }
    }

    /// The peer's queue pair and GUID, once they are known.
    pub(super) fn qp_key(&self) -> Option<QpKey> {
        let (guid, qpn) = match self.role {
            Role::Active => {
                let rep = self.rep.as_ref()?;
                (rep.ca_guid, replied_qpn(self.req.transport, rep))
            }
            Role::Passive => (self.req.ca_guid, self.req.qpn),
        };
        Some(QpKey { remote: self.route.remote, guid, qpn: qpn.value() })
    }

    pub(super) fn req_key(&self) -> Option<ReqKey> {
        let Req { local_id: id, ca_guid: guid, .. } = self.req;
        (self.role == Role::Passive).then_some(ReqKey { remote: self.route.remote, id, guid })
    }

    pub(super) const fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }

    /// Repeat after the response time, as often as the REQ says.
    pub(super) fn first_try(&self, now: Instant) -> Retry {
        Retry { at: now + self.response_time, left: self.req.max_cm_retries }
    }

    /// From now on for as long as the path's ACK timeout.
    pub(super) fn time_wait(&self, now: Instant) -> State {
        let time = self.req.primary.ack_timeout.clamp(SHORTEST_TIME_WAIT, LONGEST_WAIT);
        State::TimeWait(now + time.duration())
    }
}

/// Within the bounds for one answer.
pub(super) fn bounded(response_time: Duration) -> Duration {
    let (shortest, longest) = RESPONSE_TIME;
    response_time.clamp(shortest, longest)
}
