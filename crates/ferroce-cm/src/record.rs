//! Connections as octets, so that another broker can continue them.
//!
//! The program that owns the connection keeps the record and returns it, so the record is untrusted.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use ferroce_wire::cm::{CmTime, CommId, Mad, Message, Rep, Req};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Gid, Instant, PathMtu, Psn};

use super::connection::{CmState, Connection, LONGEST_WAIT, Retry, Role, bounded};
use super::sidr::Sidr;
use super::types::Route;
use super::{CmError, ConnectionManager, ImportError};

const VERSION: u8 = 1;
/// Marks a record of a SIDR request, in the place of the version.
const QUESTION: u8 = 2;
const PASSIVE: u8 = 1;
const PEER_TO_PEER: u8 = 2;
const HAS_REP: u8 = 4;
/// The beginning of each MAD of this class, up to the attribute: the transaction id stands in the record
/// itself.
const HEADER: [u8; 16] = [1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl ConnectionManager {
    /// Writes a connection or one of our SIDR requests as at most [`Self::MAX_RECORD`] octets. The program
    /// keeps the record after each event and command. An older record works too, because the peer repeats
    /// unanswered messages. SIDR requests of peers have no record: the peer repeats them.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownId`].
    pub fn export(&self, now: Instant, id: CommId) -> Result<Vec<u8>, CmError> {
        if let Some(question) = self.sidr.get(&id) {
            return write_question(question, now).ok_or(CmError::UnknownId(id));
        }
        Ok(write(self.get(id)?, now))
    }

    /// The octets of a record that say nothing, and that [`Self::import`] does not read: room for a mark of
    /// the caller.
    pub const SEAL: Range<usize> = 72..88;

    /// Maximum octets of a record.
    pub const MAX_RECORD: usize = 72 + 2 * MAD_LEN;

    /// Restores a connection of this owner that [`export`](Self::export) wrote. `is_ours` says whether the
    /// local end of a route is one of our addresses. No event is reported again; pending repetitions
    /// continue.
    ///
    /// # Errors
    ///
    /// [`ImportError`]; nothing was changed.
    pub fn import(
        &mut self,
        now: Instant,
        owner: u16,
        record: &[u8],
        is_ours: impl FnOnce(&Route) -> bool,
    ) -> Result<CommId, ImportError> {
        if record.first() == Some(&QUESTION) {
            return self.import_question(now, owner, record, is_ours);
        }
        let mut connection = read(record, now).ok_or(ImportError::Invalid)?;
        connection.user = self.user(owner);
        if Self::owner(connection.id) != owner {
            return Err(ImportError::Owner);
        }
        if !is_ours(&connection.route) {
            return Err(ImportError::Invalid);
        }
        self.admits(&connection)?;
        let id = connection.id;
        self.insert(connection);
        Ok(id)
    }

    fn import_question(
        &mut self,
        now: Instant,
        owner: u16,
        record: &[u8],
        is_ours: impl FnOnce(&Route) -> bool,
    ) -> Result<CommId, ImportError> {
        let (id, question, retry) = read_question(record, now).ok_or(ImportError::Invalid)?;
        if Self::owner(id) != owner {
            return Err(ImportError::Owner);
        }
        let Sidr::Asking { route, .. } = &question else { return Err(ImportError::Invalid) };
        if !is_ours(route) {
            return Err(ImportError::Invalid);
        }
        self.has_place(id)?;
        self.count_in(id, self.user(owner));
        self.timers.insert((retry.at, id));
        self.sidr.insert(id, question);
        Ok(id)
    }
}

fn write(connection: &Connection, now: Instant) -> Vec<u8> {
    let (state, number) = match connection.state {
        CmState::ReqSent(retry) => (0, retry.left),
        CmState::MraReqRcvd(retry) => (1, retry.left),
        CmState::RepRcvd => (2, 0),
        CmState::MraRepSent(time) => (3, time.code()),
        CmState::ReqRcvd => (4, 0),
        CmState::MraReqSent(time) => (5, time.code()),
        CmState::RepSent(retry) => (6, retry.left),
        CmState::MraRepRcvd(retry) => (7, retry.left),
        CmState::Established => (8, 0),
        CmState::DreqSent(retry) => (9, retry.left),
        CmState::DreqRcvd => (10, 0),
        CmState::TimeWait(_) => (11, 0),
    };
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let flags = flag(connection.role == Role::Passive, PASSIVE)
        | flag(connection.peer_to_peer, PEER_TO_PEER)
        | flag(connection.rep.is_some(), HAS_REP);
    let left = connection.state.deadline().map_or(Duration::ZERO, |at| at.saturating_since(now));
    let mut out = Vec::with_capacity(ConnectionManager::MAX_RECORD);
    out.extend([VERSION, flags, state, number]);
    out.extend(nanos(left));
    out.extend(nanos(connection.response_time));
    out.extend(connection.transaction_id.to_le_bytes());
    out.extend(connection.route.interface.to_le_bytes());
    out.extend(Gid::from_ip(connection.route.local).0);
    out.extend(Gid::from_ip(connection.route.remote).0);
    out.extend(connection.id.0.to_le_bytes());
    out.extend(connection.psn.value().to_le_bytes());
    out.extend(connection.mad(Message::Req(connection.req)).emit());
    if let Some(rep) = connection.rep {
        out.extend(connection.mad(Message::Rep(rep)).emit());
    }
    out
}

/// Returns `None` for a SIDR request of a peer.
fn write_question(question: &Sidr, now: Instant) -> Option<Vec<u8>> {
    let Sidr::Asking { route, traffic_class, mad, response_time, retry } = question else { return None };
    let mut out = Vec::with_capacity(ConnectionManager::MAX_RECORD);
    out.extend([QUESTION, *traffic_class, 0, retry.left]);
    out.extend(nanos(retry.at.saturating_since(now)));
    out.extend(nanos(*response_time));
    out.extend(mad.transaction_id.to_le_bytes());
    out.extend(route.interface.to_le_bytes());
    out.extend(Gid::from_ip(route.local).0);
    out.extend(Gid::from_ip(route.remote).0);
    out.extend(mad.emit());
    Some(out)
}

fn read_question(record: &[u8], now: Instant) -> Option<(CommId, Sidr, Retry)> {
    let mut reader = Reader(record);
    let [QUESTION, traffic_class, 0, number] = reader.take()? else { return None };
    let left = reader.nanos()?;
    let response_time = bounded(reader.nanos()?);
    let transaction_id = u64::from_le_bytes(reader.take()?);
    let interface = u32::from_le_bytes(reader.take()?);
    let local = Gid(reader.take()?).to_ip();
    let remote = Gid(reader.take()?).to_ip();
    let message = reader.message()?;
    let Message::SidrReq(req) = message else { return None };
    if !reader.0.is_empty() || local.is_ipv4() != remote.is_ipv4() || req.request_id == CommId::NONE {
        return None;
    }
    let route = Route { local, remote, interface };
    let retry = Retry { at: now + left.min(response_time), left: number.min(15) };
    let mad = Mad { transaction_id, message };
    Some((req.request_id, Sidr::Asking { route, traffic_class, mad, response_time, retry }, retry))
}

fn nanos(duration: Duration) -> [u8; 8] {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).to_le_bytes()
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn nanos(&mut self) -> Option<Duration> {
        Some(Duration::from_nanos(u64::from_le_bytes(self.take()?)))
    }

    fn message(&mut self) -> Option<Message> {
        let mut mad = self.take::<MAD_LEN>()?;
        *mad.first_chunk_mut()? = HEADER;
        Mad::parse(&mad).ok().map(|mad| mad.message)
    }
}

/// Returns `None` if the record contradicts itself.
fn read(record: &[u8], now: Instant) -> Option<Connection> {
    let mut reader = Reader(record);
    let [VERSION, flags, state, number] = reader.take()? else { return None };
    let left = reader.nanos()?;
    let response_time = bounded(reader.nanos()?);
    let transaction_id = u64::from_le_bytes(reader.take()?);
    let interface = u32::from_le_bytes(reader.take()?);
    let local = Gid(reader.take()?).to_ip();
    let remote = Gid(reader.take()?).to_ip();
    let id = CommId(u32::from_le_bytes(reader.take()?));
    let psn = Psn::new(u32::from_le_bytes(reader.take()?));
    let Message::Req(req) = reader.message()? else { return None };
    let rep = match flags & HAS_REP {
        0 => None,
        _ => match reader.message()? {
            Message::Rep(rep) => Some(rep),
            _ => return None,
        },
    };
    let role = if flags & PASSIVE == 0 { Role::Active } else { Role::Passive };
    let whole = reader.0.is_empty() && flags & !(PASSIVE | PEER_TO_PEER | HAS_REP) == 0;
    let sound = id != CommId::NONE && PathMtu::try_from(req.path_mtu).is_ok();
    if !whole || !sound || local.is_ipv4() != remote.is_ipv4() || !agree(role, id, psn, &req, rep.as_ref()) {
        return None;
    }
    let state = read_state(state, number, left, response_time, now)?;
    if !possible(role, &state, rep.is_some()) {
        return None;
    }
    Some(Connection {
        id,
        user: 0,
        role,
        peer_to_peer: flags & PEER_TO_PEER != 0,
        route: Route { local, remote, interface },
        listener: None,
        transaction_id,
        req,
        rep,
        psn,
        response_time,
        orphaned: false,
        state,
    })
}

/// Whether the messages belong to this connection.
fn agree(role: Role, id: CommId, psn: Psn, req: &Req, rep: Option<&Rep>) -> bool {
    let rep_is_answer = rep.is_none_or(|rep| rep.local_id != CommId::NONE && rep.remote_id == req.local_id);
    let ours = match role {
        Role::Active => req.local_id == id && req.starting_psn == psn,
        Role::Passive => rep.is_none_or(|rep| rep.local_id == id && rep.starting_psn == psn),
    };
    rep_is_answer && ours && req.local_id != CommId::NONE
}

fn read_state(code: u8, number: u8, left: Duration, response: Duration, now: Instant) -> Option<CmState> {
    let longest = LONGEST_WAIT.duration();
    let retry = |most: Duration| Retry { at: now + left.min(most), left: number.min(15) };
    let patient = || retry(longest.saturating_add(response));
    Some(match code {
        0 => CmState::ReqSent(retry(response)),
        1 => CmState::MraReqRcvd(patient()),
        2 => CmState::RepRcvd,
        3 => CmState::MraRepSent(CmTime::new(number)?),
        4 => CmState::ReqRcvd,
        5 => CmState::MraReqSent(CmTime::new(number)?),
        6 => CmState::RepSent(retry(response)),
        7 => CmState::MraRepRcvd(patient()),
        8 => CmState::Established,
        9 => CmState::DreqSent(retry(response)),
        10 => CmState::DreqRcvd,
        11 => CmState::TimeWait(now + left.min(longest)),
        _ => return None,
    })
}

/// Whether an end of this role can be in this state.
fn possible(role: Role, state: &CmState, has_rep: bool) -> bool {
    match state {
        CmState::ReqSent(_) | CmState::MraReqRcvd(_) => role == Role::Active && !has_rep,
        CmState::RepRcvd | CmState::MraRepSent(_) => role == Role::Active && has_rep,
        CmState::ReqRcvd | CmState::MraReqSent(_) => role == Role::Passive && !has_rep,
        CmState::RepSent(_) | CmState::MraRepRcvd(_) => role == Role::Passive && has_rep,
        CmState::Established | CmState::DreqSent(_) | CmState::DreqRcvd => has_rep,
        CmState::TimeWait(_) => true,
    }
}
