//! A program's connections, ports and listeners at the broker: what the next broker is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ferroce_cm::{AcceptParams, CmEventKind, ConnectionManager};
use ferroce_ipc::{CmBind, CmDone, CmNotice, CmRequest};
use ferroce_wire::cm::{CommId, PortSpace};

/// How long a broker may take to read that a connection is closed. If it ends before, the next one is told.
const CLOSED: Duration = Duration::from_secs(1);
/// The most closed connections that are kept so long.
const MOST_CLOSED: usize = 64;

/// This program's objects at the broker, as the next broker needs them.
#[derive(Debug, Default)]
pub(super) struct Book {
    blocks: BTreeSet<(PortSpace, u16)>,
    binds: BTreeMap<u64, Bound>,
    records: BTreeMap<CommId, Record>,
    /// Closed by the program, and no broker was told. The next one needs the record, to tell the peer.
    closing: BTreeMap<CommId, Record>,
    /// Closed, and the broker was told just now.
    closed: VecDeque<(Instant, CommId, Record)>,
    /// To be said to the new broker before anything else.
    pub(super) outbox: VecDeque<CmRequest>,
    /// Connections that the new broker was told of and has not answered for, by request.
    pub(super) restoring: BTreeMap<u32, CommId>,
}

#[derive(Debug)]
struct Bound {
    bind: CmBind,
    backlog: Option<u16>,
}

#[derive(Debug)]
struct Record {
    serial: u64,
    octets: Vec<u8>,
    /// Commands after this record, until an answer brings a newer one. A repeated command does no harm.
    then: Then,
}

/// The commands that [`BrokerClient::go_on`](crate::BrokerClient::go_on) sent.
#[derive(Clone, Debug, Default)]
struct Then {
    /// The connection is a request that was not answered.
    asked: bool,
    accept: Option<Box<AcceptParams>>,
    establish: bool,
    disconnect: bool,
    /// The peer and this program both know that it is over.
    over: bool,
}

impl Book {
    /// A request was done.
    pub(super) fn done(&mut self, request: &CmRequest, done: &CmDone) {
        match request {
            CmRequest::Bind(bind) => {
                let bind = CmBind { port: done.port, ..*bind };
                self.binds.insert(bind.handle, Bound { bind, backlog: None });
            }
            CmRequest::Listen { handle, backlog } => {
                if let Some(bound) = self.binds.get_mut(handle) {
                    bound.backlog = Some(*backlog);
                }
            }
            CmRequest::Unbind { handle } => {
                self.binds.remove(handle);
            }
            CmRequest::PortBlock { space, .. } => {
                self.blocks.insert((*space, done.port));
            }
            CmRequest::PortBlockReturn { space, first } => {
                self.blocks.remove(&(*space, *first));
            }
            CmRequest::Close(id) => {
                // If it was over, its peer knows.
                let record = self.records.remove(id).filter(|record| !record.then.over);
                self.closing.extend(record.map(|record| (*id, record)));
            }
            CmRequest::Accept { id, params } if done.record.is_empty() => {
                if let Some(record) = self.records.get_mut(id) {
                    record.then = Then { accept: Some(params.clone()), ..Then::default() };
                }
            }
            CmRequest::Establish(id) | CmRequest::Disconnect(id) if done.record.is_empty() => {
                if let Some(record) = self.records.get_mut(id) {
                    let ends = matches!(request, CmRequest::Disconnect(_));
                    record.then.disconnect |= ends;
                    record.then.establish |= !ends;
                }
            }
            _ => self.record(done.id, done.serial, &done.record),
        }
    }

    /// Whether there is such a connection or SIDR request.
    pub(super) fn knows(&self, id: CommId) -> bool {
        self.records.contains_key(&id)
    }

    /// An event came.
    pub(super) fn event(&mut self, notice: &CmNotice) {
        let CmNotice { event, serial, record } = notice;
        // The event may have been under way when the program closed the connection.
        let begins = matches!(event.kind, CmEventKind::Request { listener: Some(_), .. });
        if begins || self.records.contains_key(&event.id) {
            self.record(event.id, *serial, record);
        }
        if let Some(record) = self.records.get_mut(&event.id) {
            record.then.asked |= begins;
            let ends = matches!(event.kind, CmEventKind::Disconnected(_) | CmEventKind::Rejected { .. });
            record.then.over |= ends;
        }
    }

    /// Whether it is a request that waits for its answer.
    pub(super) fn is_asked(&self, id: CommId) -> bool {
        self.records.get(&id).is_some_and(|record| record.then.asked)
    }

    /// Answers and events may overtake each other: the newer record stays.
    fn record(&mut self, id: CommId, serial: u64, octets: &[u8]) {
        let known = self.records.get_mut(&id);
        let newer = known.as_ref().is_none_or(|known| serial >= known.serial);
        match (newer, octets.is_empty()) {
            (true, false) => {
                let then = known.map(|known| std::mem::take(&mut known.then)).unwrap_or_default();
                // The steps after a request follow from its answer.
                let then = Then { asked: false, accept: None, ..then };
                self.records.insert(id, Record { serial, octets: octets.to_vec(), then });
            }
            (true, true) => {
                self.records.remove(&id);
            }
            (false, _) => {}
        }
    }

    /// A new broker greeted: it is to be told everything.
    pub(super) fn tell_all(&mut self) {
        self.outbox.clear();
        self.restoring.clear();
        // Before binds, which may be of their ports.
        self.outbox.extend(
            self.blocks.iter().map(|(space, first)| CmRequest::PortBlock { space: *space, first: *first }),
        );
        for Bound { bind, backlog } in self.binds.values() {
            self.outbox.push_back(CmRequest::Bind(*bind));
            if let Some(backlog) = *backlog {
                self.outbox.push_back(CmRequest::Listen { handle: bind.handle, backlog });
            }
        }
        let late = self.closed.drain(..).filter(|(told, ..)| told.elapsed() < CLOSED);
        self.closing.extend(late.map(|(_, id, record)| (id, record)));
        let open = self.records.iter_mut().map(|(id, record)| (id, record, false));
        for (id, record, ends) in open.chain(self.closing.iter_mut().map(|(id, record)| (id, record, true))) {
            // The new broker counts the records anew.
            record.serial = 0;
            self.outbox.push_back(CmRequest::Restore { id: *id, record: record.octets.clone() });
            let accept = |params| CmRequest::Accept { id: *id, params };
            self.outbox.extend(record.then.accept.clone().map(accept));
            self.outbox.extend(record.then.establish.then_some(CmRequest::Establish(*id)));
            self.outbox.extend(record.then.disconnect.then_some(CmRequest::Disconnect(*id)));
            self.outbox.extend(ends.then_some(CmRequest::Close(*id)));
        }
        self.outbox.push_back(CmRequest::Restored);
    }

    /// Something of the outbox was sent as request `id`.
    pub(super) fn told(&mut self, id: u32, request: &CmRequest) {
        match request {
            CmRequest::Restore { id: connection, .. } => {
                self.restoring.insert(id, *connection);
            }
            CmRequest::Close(connection) => {
                if let Some(record) = self.closing.remove(connection) {
                    self.closed.truncate(MOST_CLOSED - 1);
                    self.closed.push_front((Instant::now(), *connection, record));
                }
            }
            _ => {}
        }
    }

    /// Whether there is no connection of which a peer may have to be told.
    pub(super) fn is_settled(&self) -> bool {
        let late = self.closed.front().is_some_and(|(told, ..)| told.elapsed() < CLOSED);
        self.records.is_empty() && self.closing.is_empty() && !late
    }

    /// The answer to request `id`: whether it was about a connection, which is lost if it was refused.
    pub(super) fn answered(&mut self, id: u32) -> Option<CommId> {
        self.restoring.remove(&id)
    }

    /// The new broker does not know it.
    pub(super) fn lost(&mut self, id: CommId) {
        self.records.remove(&id);
        self.closing.remove(&id);
    }

    /// Connections and binds of these slots are no more.
    pub(super) fn lose_slots(&mut self, lost: &[u16], all: bool) {
        let kept = |id: &CommId| !lost.contains(&ConnectionManager::owner(*id));
        self.records.retain(|id, _| kept(id));
        self.closing.retain(|id, _| kept(id));
        self.closed.retain(|(_, id, _)| kept(id));
        if all {
            self.binds.clear();
            self.blocks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroce_cm::{CmEvent, ConnectParams, Disconnect, ListenerId, Route};
    use ferroce_wire::cm::CmTime;
    use ferroce_wire::{Psn, Qpn};

    use super::*;

    const ID: CommId = CommId(0x0100_0001);

    fn notice(kind: CmEventKind, serial: u64, record: &[u8]) -> CmNotice {
        CmNotice { event: CmEvent { owner: 1, id: ID, kind }, serial, record: record.to_vec() }
    }

    fn established(serial: u64, record: &[u8]) -> CmNotice {
        notice(CmEventKind::Established, serial, record)
    }

    fn told(book: &mut Book) -> Vec<CmRequest> {
        book.tell_all();
        book.outbox.drain(..).collect()
    }

    #[test]
    fn the_next_broker_is_told_the_newest_record() {
        let mut book = Book::default();
        let done = |serial, record: &[u8]| CmDone { id: ID, port: 0, serial, record: record.to_vec() };
        book.done(&CmRequest::Establish(ID), &done(3, b"three"));
        book.event(&established(2, b"two"));
        let restore = |record: &[u8]| CmRequest::Restore { id: ID, record: record.to_vec() };
        assert_eq!(told(&mut book), [restore(b"three"), CmRequest::Restored]);
        // The next one counts anew.
        book.event(&established(1, b"one"));
        assert_eq!(told(&mut book), [restore(b"one"), CmRequest::Restored]);
        book.event(&established(2, b""));
        assert_eq!(told(&mut book), [CmRequest::Restored], "it is over");
    }

    #[test]
    fn what_nobody_answered_is_said_again() {
        let mut book = Book::default();
        let done = CmDone { id: ID, port: 0, serial: 1, record: vec![1] };
        book.event(&established(1, &[1]));
        assert!(!book.knows(ID), "news of a connection that we do not have");
        book.done(&CmRequest::Mra { id: ID, service_timeout: CmTime::saturating(1), at_once: true }, &done);
        book.done(&CmRequest::Establish(ID), &CmDone::default());
        let restore = |record: &[u8]| CmRequest::Restore { id: ID, record: record.to_vec() };
        assert_eq!(told(&mut book), [restore(&[1]), CmRequest::Establish(ID), CmRequest::Restored]);
        book.event(&established(2, b"two"));
        book.done(&CmRequest::Disconnect(ID), &CmDone::default());
        assert_eq!(
            told(&mut book),
            [restore(b"two"), CmRequest::Establish(ID), CmRequest::Disconnect(ID), CmRequest::Restored]
        );
        book.event(&established(3, b""));
        book.done(&CmRequest::Disconnect(ID), &CmDone::default());
        assert_eq!(told(&mut book), [CmRequest::Restored]);
    }

    #[test]
    fn a_yes_is_said_again_until_something_came_of_it() {
        let mut book = Book::default();
        let ip = [127, 0, 0, 1].into();
        let route = Route { local: ip, remote: ip, interface: 0 };
        let service = PortSpace::Tcp.service_id(7471);
        let req = ConnectParams::new(route, service, 1, Qpn::new(16)).req(CommId(7), Psn::new(5));
        let request = CmEventKind::Request {
            listener: Some(ListenerId(1)),
            route,
            starting_psn: Psn::new(3),
            req: Box::new(req),
        };
        book.event(&notice(request, 1, &[1]));
        assert!(book.is_asked(ID));
        let yes = CmRequest::Accept { id: ID, params: Box::new(AcceptParams::new(1, Qpn::new(17))) };
        book.done(&yes, &CmDone::default());
        let restore = |record: &[u8]| CmRequest::Restore { id: ID, record: record.to_vec() };
        assert!(!book.is_asked(ID));
        assert_eq!(told(&mut book), [restore(&[1]), yes, CmRequest::Restored]);
        book.event(&established(2, b"established"));
        assert_eq!(told(&mut book), [restore(b"established"), CmRequest::Restored]);
    }

    #[test]
    fn the_next_broker_is_told_of_blocks() {
        let mut book = Book::default();
        let done = |port| CmDone { port, ..CmDone::default() };
        for first in [40_000, 40_064] {
            book.done(&CmRequest::PortBlock { space: PortSpace::Tcp, first: 0 }, &done(first));
        }
        book.done(&CmRequest::PortBlockReturn { space: PortSpace::Tcp, first: 40_000 }, &CmDone::default());
        let block = CmRequest::PortBlock { space: PortSpace::Tcp, first: 40_064 };
        assert_eq!(told(&mut book), [block, CmRequest::Restored]);
    }

    #[test]
    fn what_was_closed_does_not_come_back() {
        let mut book = Book::default();
        let done = CmDone { id: ID, port: 0, serial: 1, record: vec![1] };
        book.done(&CmRequest::Establish(ID), &done);
        book.done(&CmRequest::Close(ID), &CmDone::default());
        book.event(&established(2, b"late"));
        let ends =
            [CmRequest::Restore { id: ID, record: vec![1] }, CmRequest::Close(ID), CmRequest::Restored];
        // The next broker is told, since this one was not.
        assert!(!book.is_settled());
        assert_eq!(told(&mut book), ends);
        book.told(0, &ends[1]);
        assert!(!book.is_settled());
        // That one may have died before it read it.
        assert_eq!(told(&mut book), ends);
        book.told(0, &ends[1]);
        book.closed[0].0 -= CLOSED;
        assert!(book.is_settled());
        assert_eq!(told(&mut book), [CmRequest::Restored]);
    }

    #[test]
    fn nobody_is_told_of_the_end_of_what_was_over() {
        let mut book = Book::default();
        let done = CmDone { id: ID, port: 0, serial: 1, record: vec![1] };
        book.done(&CmRequest::Establish(ID), &done);
        book.event(&notice(CmEventKind::Disconnected(Disconnect::ByPeer), 2, b"time-wait"));
        book.done(&CmRequest::Close(ID), &CmDone::default());
        assert!(book.is_settled());
        assert_eq!(told(&mut book), [CmRequest::Restored]);
    }

    #[test]
    fn few_closed_connections_are_kept() {
        let mut book = Book::default();
        for n in 1..=2 * MOST_CLOSED as u32 {
            let id = CommId(n);
            book.done(&CmRequest::Establish(id), &CmDone { id, port: 0, serial: 1, record: vec![1] });
            book.done(&CmRequest::Close(id), &CmDone::default());
            book.told(0, &CmRequest::Close(id));
        }
        assert_eq!(book.closed.len(), MOST_CLOSED);
        assert_eq!(book.closed[0].1, CommId(2 * MOST_CLOSED as u32), "the newest");
        book.lose_slots(&[0], false);
        assert!(book.closed.is_empty() && book.is_settled());
    }
}
