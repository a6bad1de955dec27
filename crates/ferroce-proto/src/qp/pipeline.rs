//! How far the send queue was sent and answered.

mod placed;

use ferroce_wire::{AtomicEth, Psn, Request, Reth, SendTail};

use self::placed::Placed;

use super::send_queue::{Extent, SendQueue, SendWqe, packets};
use crate::budget::{Account, Accounts};
use crate::{Budget, Memory, Remote, SendOp};

/// Charged for each packet beside its payload: headers, and what a receive buffer spends on a datagram.
pub(super) const PACKET_OVERHEAD: u64 = 256;
/// A PSN window is half of the circle (IBTA 9.7.2).
const MAX_OUTSTANDING: u32 = 1 << 23;

/// Octets of a packet beside its payload, at most, if that is a SEND or WRITE: BTH, RETH, pad and ICRC.
const LONGEST_HEADERS: usize = 12 + 16 + 3 + 4;

/// Requests in flight whose end [`Pipeline::ends_in_direct`] awaits.
const MAX_AWAITED: u64 = 1024;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Position {
    pub wqe: u64,
    pub packet: u32,
}

/// The next piece to send: one packet, or a READ request for several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub index: u64,
    pub wqe: SendWqe,
    pub psn: Psn,
    /// First packet of the WQE that it covers.
    pub packet: u32,
    /// Packets (PSNs) that it covers.
    pub count: u32,
    /// Packets of the whole WQE.
    pub total: u32,
    /// First octet of the message that it covers.
    pub offset: u32,
    pub len: u32,
    /// Nothing of the WQE was sent before.
    pub starts: bool,
    /// The budget that the packet, or its answer, uses while it is under way.
    pub charge: u64,
}

impl Piece {
    pub const fn is_last(&self) -> bool {
        self.packet + self.count == self.total
    }

    /// The headers of the request; the batch writes the payload.
    #[inline]
    pub fn request(&self) -> Request<'static> {
        let payload: &[u8] = &[];
        let (first, last) = (self.packet == 0, self.is_last());
        let send = |tail| match (first, last) {
            (true, true) => Request::SendOnly { payload, tail },
            (true, false) => Request::SendFirst { payload },
            (false, false) => Request::SendMiddle { payload },
            (false, true) => Request::SendLast { payload, tail },
        };
        let write = |remote: Remote, imm| {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: self.wqe.length };
            match (first, last) {
                (true, true) => Request::WriteOnly { reth, payload, imm },
                (true, false) => Request::WriteFirst { reth, payload },
                (false, false) => Request::WriteMiddle { payload },
                (false, true) => Request::WriteLast { payload, imm },
            }
        };
        let atomic = |remote: Remote, swap_or_add, compare| AtomicEth {
            va: remote.addr,
            rkey: remote.rkey,
            swap_or_add,
            compare,
        };
        match self.wqe.op {
            // A local operation never gets here; see [`Pipeline::run_local`].
            SendOp::Send | SendOp::LocalInvalidate(_) | SendOp::BindMw(_) => send(SendTail::None),
            SendOp::SendImm(imm) => send(SendTail::Imm(imm)),
            SendOp::SendInvalidate(rkey) => send(SendTail::Invalidate(rkey)),
            SendOp::Write { remote } => write(remote, None),
            SendOp::WriteImm { remote, imm } => write(remote, Some(imm)),
            SendOp::Read { remote } => Request::ReadRequest {
                reth: Reth {
                    va: remote.addr.wrapping_add(u64::from(self.offset)),
                    rkey: remote.rkey,
                    dma_len: self.len,
                },
            },
            SendOp::CompareSwap { remote, compare, swap } => {
                Request::CompareSwap { atomic: atomic(remote, swap, compare) }
            }
            SendOp::AtomicWrite { remote, .. } => {
                let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: self.wqe.length };
                Request::AtomicWrite { reth, payload }
            }
            SendOp::Flush { remote, length, feth } => {
                let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: length };
                Request::Flush { feth, reth }
            }
            SendOp::FetchAdd { remote, add } => Request::FetchAdd { atomic: atomic(remote, add, 0) },
        }
    }
}

/// Octets in flight; equals the charges of everything from the oldest unanswered PSN to the cursor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flight {
    /// Octets of sends and writes.
    pub data: u64,
    /// Octets that reads and atomics will bring.
    pub reads: u64,
    /// Requests of reads and atomics.
    pub read_requests: u32,
}

/// The state that requester and completer share: the queue, and three places in it: the oldest unanswered
/// PSN, the next never sent before, and the cursor between them where the next packet comes from. A retry is
/// a cursor put back.
///
/// A READ of more than `read_chunk` packets goes out as several READ requests, so that what is on its way to
/// us stays below our receive buffer. To the responder they are messages of their own; a request sent again
/// therefore never crosses their bounds, which follow from the packet's number alone.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub queue: SendQueue,
    oldest: Psn,
    next: Psn,
    cursor: Position,
    flight: Flight,
    /// READs and atomics started and not completed.
    reads_pending: u32,
    /// A packet left since `begin`.
    has_sent: bool,
    mtu: u32,
    read_chunk: u32,
    accounts: Accounts,
    /// Responses that came behind a gap.
    placed: Placed,
}

/// The messages of a requester that are on their way, and those that have not begun to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Messages that left and are not answered.
    pub in_flight: u64,
    /// Messages of which nothing left.
    pub waiting: u64,
    /// Octets of payload in the packet of the message that was posted last.
    pub payload: u32,
}

/// Octets of packets that were answered, as charged to the budget.
#[derive(Clone, Copy, Debug)]
struct Charge {
    /// Octets of all these packets.
    all: u64,
    /// Octets of those of the answered packets that still counted as in flight, or did so again: packets that
    /// a retry gave up count once they were sent again.
    in_flight: u64,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledged {
    pub packets: u32,
    /// Octets of sends and writes newly answered, as charged.
    pub data: u64,
    /// Octets of responses that are in their place already and were not counted before.
    pub reads: u64,
    /// A READ or atomic at or before the acknowledged PSN is still unanswered.
    pub read_missing: bool,
}

impl Pipeline {
    pub fn new(queue: SendQueue) -> Self {
        let start = Position { wqe: 0, packet: 0 };
        Self {
            queue,
            oldest: Psn::new(0),
            next: Psn::new(0),
            cursor: start,
            flight: Flight::default(),
            reads_pending: 0,
            has_sent: false,
            mtu: 256,
            read_chunk: 1,
            accounts: Accounts { reads: Account::Reads, data: Account::Destination(0) },
            placed: Placed::new(),
        }
    }

    /// Begins to send: the first PSN, the path MTU, and the packets that one READ request may ask for.
    pub fn begin(&mut self, psn: Psn, mtu: u32, read_chunk: u32, accounts: Accounts) {
        (self.oldest, self.next) = (psn, psn);
        self.has_sent = false;
        self.placed.clear();
        (self.mtu, self.read_chunk, self.accounts) = (mtu, read_chunk.max(1), accounts);
        self.cursor = self.oldest_position();
    }

    /// The oldest unanswered PSN, or the next if all are answered.
    pub const fn oldest(&self) -> Psn {
        self.oldest
    }

    /// The next PSN never sent before.
    pub const fn next(&self) -> Psn {
        self.next
    }

    pub const fn flight(&self) -> Flight {
        self.flight
    }

    /// The counter that a request is charged to.
    pub const fn account(&self, op: &SendOp) -> Account {
        if op.is_answered() { self.accounts.reads } else { self.accounts.data }
    }

    /// The counter that sends and writes are charged to.
    pub const fn data_account(&self) -> Account {
        self.accounts.data
    }

    pub const fn reads_pending(&self) -> u32 {
        self.reads_pending
    }

    pub const fn outstanding(&self) -> u32 {
        self.next.since(self.oldest) as u32
    }

    /// Whether a PSN was sent and is not answered.
    #[inline]
    pub fn is_outstanding(&self, psn: Psn) -> bool {
        (0..self.outstanding() as i32).contains(&psn.since(self.oldest))
    }

    /// Whether everything that was sent is answered.
    pub const fn is_quiet(&self) -> bool {
        self.outstanding() == 0
    }

    /// Whether nothing that was started is unfinished.
    pub fn is_idle(&self) -> bool {
        let head = Position { wqe: self.queue.done(), packet: 0 };
        self.is_quiet() && self.queue.started() == head.wqe && self.cursor == head
    }

    /// Whether something is unfinished, and all of it is such as the caller may be able to execute without
    /// packets.
    pub fn ends_in_direct(&self) -> bool {
        let (done, started) = (self.queue.done(), self.queue.started());
        let fits = |index| self.queue.get(index).is_some_and(SendWqe::may_be_direct);
        !self.is_idle() && started - done <= MAX_AWAITED && (done..started).all(fits)
    }

    /// Whether a packet of a request left since sending began.
    pub const fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Whether the cursor stands where a retry would put it.
    pub fn is_rewound(&self) -> bool {
        self.cursor == self.oldest_position()
    }

    fn oldest_position(&self) -> Position {
        let packet = self.queue.oldest().map_or(0, |wqe| self.oldest.since(wqe.first_psn) as u32);
        Position { wqe: self.queue.done(), packet }
    }

    /// Whether all posted requests have left.
    #[inline]
    pub const fn is_at_tail(&self) -> bool {
        self.cursor.wqe >= self.queue.tail()
    }

    pub fn at_cursor(&self) -> Option<(u64, &SendWqe)> {
        Some((self.cursor.wqe, self.queue.get(self.cursor.wqe)?))
    }

    /// `None` if a packet other than the first one of a new message is to be sent next, or if the request
    /// that was posted last is no message of one packet.
    pub fn backlog(&self) -> Option<Backlog> {
        let started = self.queue.started();
        let last = self.queue.get(self.queue.tail().checked_sub(1)?)?;
        let payload = if last.op.writes_local() { 0 } else { last.length };
        if self.cursor != (Position { wqe: started, packet: 0 }) || payload > self.mtu || last.op.is_local() {
            return None;
        }
        let in_flight = started - self.queue.done();
        Some(Backlog { in_flight, waiting: self.queue.tail() - started, payload })
    }

    /// The piece to send at the cursor; `None` at the end of the queue or of the PSN window.
    pub fn piece(&self) -> Option<Piece> {
        let Position { wqe: index, packet } = self.cursor;
        let wqe = *self.queue.get(index)?;
        let starts = index >= self.queue.started();
        let psn = if starts { self.next } else { wqe.first_psn.add(packet) };
        let total = packets(wqe.length, self.mtu);
        let end = match wqe.op {
            SendOp::Read { .. } => self.chunk_end(packet, total),
            _ => packet + 1,
        };
        let is_new = psn == self.next;
        if is_new && self.outstanding() + (end - packet) >= MAX_OUTSTANDING {
            return None;
        }
        Some(self.cut(index, wqe, psn, packet, end))
    }

    /// Whether one request is left to send, from its beginning on.
    pub const fn is_at_last(&self) -> bool {
        self.cursor.wqe + 1 == self.queue.tail()
    }

    /// The piece at the cursor, if that is the whole of a request of which nothing was sent, a message of one
    /// packet that the peer answers by an ACK alone; with the headers of its request. `room`: octets that its
    /// packet may have.
    #[inline(always)]
    pub fn single(&self, room: usize) -> Option<(Piece, Request<'static>)> {
        let Position { wqe: index, packet } = self.cursor;
        let wqe = self.queue.get(index)?;
        let payload: &[u8] = &[];
        let request = match wqe.op {
            SendOp::Send => Request::SendOnly { payload, tail: SendTail::None },
            SendOp::Write { remote } => {
                let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: wqe.length };
                Request::WriteOnly { reth, payload, imm: None }
            }
            _ => return None,
        };
        let fits = packet == 0
            && index == self.queue.started()
            && wqe.length <= self.mtu
            && wqe.length as usize + LONGEST_HEADERS <= room
            && wqe.failure.is_none()
            && self.outstanding() + 1 < MAX_OUTSTANDING;
        let charge = u64::from(wqe.length) + PACKET_OVERHEAD;
        if !fits {
            return None;
        }
        let piece = Piece {
            index,
            psn: self.next,
            packet: 0,
            count: 1,
            total: 1,
            offset: 0,
            len: wqe.length,
            starts: true,
            charge,
            wqe: *wqe,
        };
        Some((piece, request))
    }

    /// The PSN at the cursor.
    pub fn cursor_psn(&self) -> Psn {
        match self.queue.get(self.cursor.wqe) {
            Some(wqe) if self.cursor.wqe < self.queue.started() => wqe.first_psn.add(self.cursor.packet),
            _ => self.next,
        }
    }

    /// Whether everything that was sent counts as on its way: no retry puts packets between.
    pub fn is_at_end(&self) -> bool {
        self.cursor_psn() == self.next
    }

    /// The request that covers a PSN which was sent, to be sent once more: of a READ what is unanswered from
    /// the beginning of its request on.
    pub fn covering(&self, psn: Psn) -> Option<Piece> {
        if psn.since(self.oldest) < 0 || psn.since(self.next) >= 0 {
            return None;
        }
        let index = self.owner(psn)?;
        let wqe = *self.queue.get(index)?;
        let packet = psn.since(wqe.first_psn) as u32;
        let (from, end) = match wqe.op {
            SendOp::Read { .. } => {
                let start = packet / self.read_chunk * self.read_chunk;
                let answered = self.oldest.since(wqe.first_psn).max(0) as u32;
                (start.max(answered), self.chunk_end(packet, wqe.packets))
            }
            _ => (packet, packet + 1),
        };
        Some(self.cut(index, wqe, wqe.first_psn.add(from), from, end))
    }

    /// The newest request, to be sent once more. With `alone` it asks for the newest response alone, if the
    /// responder has the request for it, because others of its responses came.
    pub fn newest(&self, alone: bool) -> Option<Piece> {
        let psn = self.next.add(u32::MAX);
        let request = self.covering(psn)?;
        let answered = || (1..request.count).any(|packet| self.is_placed(request.psn.add(packet)));
        let is_known = request.packet % self.read_chunk != 0 || answered();
        if alone && request.count > 1 && is_known {
            let packet = request.packet + request.count - 1;
            return Some(self.cut(request.index, request.wqe, psn, packet, packet + 1));
        }
        Some(request)
    }

    /// The piece of a WQE from packet `packet` to before `end`.
    #[inline]
    fn cut(&self, index: u64, wqe: SendWqe, psn: Psn, packet: u32, end: u32) -> Piece {
        let octets = |packet: u32| (u64::from(packet) * u64::from(self.mtu)).min(u64::from(wqe.length));
        Piece {
            index,
            psn,
            packet,
            count: end - packet,
            total: packets(wqe.length, self.mtu),
            offset: octets(packet) as u32,
            len: (octets(end) - octets(packet)) as u32,
            starts: index >= self.queue.started(),
            charge: self.charge(wqe.length, packet, end),
            wqe,
        }
    }

    /// The packet after the last one of the READ request that covers `packet`.
    fn chunk_end(&self, packet: u32, total: u32) -> u32 {
        (packet / self.read_chunk).saturating_add(1).saturating_mul(self.read_chunk).min(total)
    }

    #[inline(always)]
    fn charge(&self, length: u32, from: u32, to: u32) -> u64 {
        if (from, to) == (0, 1) {
            return u64::from(length.min(self.mtu)) + PACKET_OVERHEAD;
        }
        let octets = |packet: u32| (u64::from(packet) * u64::from(self.mtu)).min(u64::from(length));
        octets(to) - octets(from) + u64::from(to - from) * PACKET_OVERHEAD
    }

    /// Notes that a piece left; its charge was taken from the budget. `is_read`: the request is answered as
    /// READs are, see [`SendOp::is_answered`]. Returns whether it was new.
    #[inline(always)]
    pub fn sent(&mut self, piece: &Piece, is_read: bool) -> bool {
        self.has_sent = true;
        if piece.starts {
            self.queue.start(piece.psn, piece.total);
            self.reads_pending += u32::from(is_read);
        }
        let is_new = piece.psn == self.next;
        if is_new {
            self.next = piece.psn.add(piece.count);
        }
        if is_read {
            self.flight.reads += piece.charge;
            self.flight.read_requests += 1;
        } else {
            self.flight.data += piece.charge;
        }
        self.cursor = if piece.is_last() {
            Position { wqe: piece.index + 1, packet: 0 }
        } else {
            Position { wqe: piece.index, packet: piece.packet + piece.count }
        };
        is_new
    }

    /// Notes that a piece of an unreliable service left: no answer comes, so it counts as answered.
    pub fn handed_over(&mut self, piece: &Piece) {
        if piece.starts {
            self.queue.start(piece.psn, piece.total);
        }
        self.has_sent = true;
        self.next = piece.psn.next();
        self.oldest = self.next;
        self.cursor = if piece.is_last() {
            self.queue.complete_oldest();
            Position { wqe: piece.index + 1, packet: 0 }
        } else {
            Position { wqe: piece.index, packet: piece.packet + 1 }
        };
    }

    /// Goes on behind what was flushed.
    pub fn restart(&mut self) {
        self.oldest = self.next;
        self.cursor = Position { wqe: self.queue.done(), packet: 0 };
    }

    /// Executes local operations at the cursor: work requests that end in this queue pair, so that no packet
    /// leaves for them. `in_rts`: the queue pair is in RTS. `false` if one must wait or failed.
    pub fn run_local(&mut self, in_rts: bool, mem: &mut impl Memory) -> bool {
        while let Some((index, wqe)) = self.at_cursor() {
            if !wqe.op.is_local() {
                return true;
            }
            // A local operation waits for everything before it, as with rxe: a program that posts it after
            // the last use of a key need not consider retries.
            if !in_rts || wqe.failure.is_some() || self.queue.done() != index {
                return false;
            }
            match wqe.execute(mem) {
                Ok(()) => self.executed_locally(),
                Err(status) => {
                    self.queue.fail(index, status);
                    return false;
                }
            }
        }
        true
    }

    /// Notes that the WQE at the cursor took effect without a packet. Everything before it is completed.
    pub fn executed_locally(&mut self) {
        self.queue.start(self.next, 0);
        self.queue.complete_oldest();
        self.cursor = self.oldest_position();
    }

    /// All sends and writes up to `through` were received. Stops at a READ or atomic: it is answered by its
    /// response alone (IBTA 9.7.5.1.1). Passes responses that came behind a gap.
    pub fn acknowledge(&mut self, through: Psn, budget: &Budget) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        // The counter is the process's: one change for all the messages.
        let mut given_back = 0;
        while let Some(extent) = self.queue.oldest().map(SendWqe::extent) {
            if through.since(self.oldest) < 0 {
                break;
            }
            if extent.is_answered && self.is_placed(self.oldest) {
                acknowledged.packets += 1;
                acknowledged.reads += self.expected_response().map_or(0, |(piece, _)| u64::from(piece.len));
                self.answered(budget);
                continue;
            }
            if extent.is_answered {
                acknowledged.read_missing = true;
                break;
            }
            let last = extent.last_psn();
            let until = if through.since(last) >= 0 { last } else { through };
            let count = until.since(self.oldest) as u32 + 1;
            acknowledged.packets += count;
            let charge = self.retire(extent, count);
            acknowledged.data += charge.all;
            given_back += charge.in_flight;
        }
        budget.give_back(self.accounts.data, given_back);
        acknowledged
    }

    /// As [`Self::acknowledge`], if that completes the oldest request alone, and this has one packet, which
    /// is in flight. `None`: nothing was done.
    #[inline(always)]
    pub fn acknowledge_oldest(&mut self, through: Psn, budget: &Budget) -> Option<Acknowledged> {
        let extent = self.queue.oldest()?.extent();
        let is_whole = through == self.oldest && extent.packets == 1 && !extent.is_answered;
        if !is_whole || self.cursor.wqe <= self.queue.done() {
            return None;
        }
        let charge = self.retire_packets(Extent { packets: 1, is_answered: false, ..extent }, 0, 1);
        budget.give_back(self.accounts.data, charge.in_flight);
        Some(Acknowledged { packets: 1, data: charge.all, ..Acknowledged::default() })
    }

    /// Notes a response behind a gap. `false` if it came before, or is too far ahead.
    pub fn place(&mut self, psn: Psn) -> bool {
        self.placed.put(psn, psn.since(self.oldest) as u32)
    }

    /// Whether a response behind a gap is in its place before the gap has closed.
    pub const fn has_placed(&self) -> bool {
        !self.placed.is_empty()
    }

    /// Whether a response behind a gap is in its place.
    pub fn is_placed(&self, psn: Psn) -> bool {
        self.placed.contains(psn, psn.since(self.oldest) as u32)
    }

    /// The first PSN from `from` to before `to` whose response is missing, and the request for it: for what
    /// follows in the same request as well, or with `alone` for those alone that are missing until the next
    /// one that came, or until `to`.
    pub fn missing_response(&self, from: Psn, to: Psn, alone: bool) -> Option<Piece> {
        let mut psn = from;
        let mut index = if to.since(from) > 0 { self.owner(from)? } else { return None };
        while to.since(psn) > 0 && index < self.queue.started() {
            let wqe = *self.queue.get(index)?;
            if !wqe.op.is_answered() || psn.since(wqe.last_psn()) > 0 {
                psn = wqe.last_psn().next();
                index += 1;
            } else if self.is_placed(psn) {
                psn = psn.next();
            } else {
                let packet = psn.since(wqe.first_psn) as u32;
                let mut end = self.chunk_end(packet, wqe.packets);
                if alone {
                    let came = |packet: &u32| {
                        let psn = wqe.first_psn.add(*packet);
                        to.since(psn) <= 0 || self.is_placed(psn)
                    };
                    end = (packet + 1..end).find(came).unwrap_or(end);
                }
                return Some(self.cut(index, wqe, psn, packet, end));
            }
        }
        None
    }

    /// The next packet of the READ or atomic that is oldest was answered.
    pub fn answered(&mut self, budget: &Budget) {
        if let Some(extent) = self.queue.oldest().map(SendWqe::extent) {
            self.placed.remove(self.oldest);
            let charge = self.retire(extent, 1);
            let account = if extent.is_answered { self.accounts.reads } else { self.accounts.data };
            budget.give_back(account, charge.in_flight);
        }
    }

    /// The oldest `count` packets, all of one WQE, are answered. Their charge; the caller gives the part in
    /// flight back.
    fn retire(&mut self, wqe: Extent, count: u32) -> Charge {
        let from = self.oldest.since(wqe.first_psn) as u32;
        self.retire_packets(wqe, from, from + count)
    }

    /// As [`Self::retire`]: the packets of the WQE from `from` to before `to`.
    #[inline(always)]
    fn retire_packets(&mut self, wqe: Extent, from: u32, to: u32) -> Charge {
        let all = self.charge(wqe.length, from, to);
        // Packets sent again since a retry are in flight; the others were given up then.
        let in_flight = match self.cursor.wqe.cmp(&self.queue.done()) {
            core::cmp::Ordering::Greater => to,
            core::cmp::Ordering::Equal => to.min(self.cursor.packet).max(from),
            core::cmp::Ordering::Less => from,
        };
        let amount = if in_flight == to { all } else { self.charge(wqe.length, from, in_flight) };
        if wqe.is_answered {
            self.flight.reads = self.flight.reads.saturating_sub(amount);
            if in_flight == to && (to == wqe.packets || self.chunk_end(from, wqe.packets) == to) {
                self.flight.read_requests = self.flight.read_requests.saturating_sub(1);
            }
        } else {
            self.flight.data = self.flight.data.saturating_sub(amount);
        }
        self.oldest = self.oldest.add(to - from);
        if to == wqe.packets {
            self.queue.complete_oldest();
            self.reads_pending -= u32::from(wqe.is_answered);
        }
        // A cursor behind everything that was started stays there.
        if self.cursor.wqe < self.queue.started() {
            self.cursor = self.cursor.max(self.oldest_position());
        }
        Charge { all, in_flight: amount }
    }

    /// Whether a read response packet for the oldest PSN ends its READ request, and its length.
    pub fn expected_response(&self) -> Option<(Piece, bool)> {
        self.response(self.queue.done(), self.oldest)
    }

    /// The response expected at `psn` of the WQE `index`, which was sent, and whether it ends its request.
    pub fn response(&self, index: u64, psn: Psn) -> Option<(Piece, bool)> {
        let wqe = *self.queue.get(index)?;
        let packet = psn.since(wqe.first_psn) as u32;
        let piece = self.cut(index, wqe, psn, packet, packet + 1);
        Some((piece, self.chunk_end(packet, wqe.packets) == packet + 1))
    }

    /// Puts the cursor back to the oldest unanswered PSN: everything after it counts as lost.
    pub fn rewind(&mut self, budget: &Budget) {
        self.give_back(budget);
        self.cursor = self.oldest_position();
    }

    /// The index of the WQE that a PSN belongs to, among those started and not completed. Each of them takes
    /// PSNs, behind those of the one before it: what takes none is completed when it starts.
    pub fn owner(&self, psn: Psn) -> Option<u64> {
        let (mut index, mut end) = (self.queue.done(), self.queue.started());
        // Most answers are to the oldest one. It alone may begin more than half of the circle before the PSN.
        if self.queue.oldest()?.has(psn) {
            return Some(index);
        }
        while end - index > 1 {
            let middle = index.midpoint(end);
            if psn.since(self.queue.get(middle)?.first_psn) >= 0 { index = middle } else { end = middle }
        }
        self.queue.get(index)?.has(psn).then_some(index)
    }

    /// Charges go to other counters from now on, with what is in flight.
    pub fn redirect(&mut self, accounts: Accounts, budget: &Budget) {
        budget.give_back(self.accounts.reads, self.flight.reads);
        budget.give_back(self.accounts.data, self.flight.data);
        budget.force(accounts.reads, self.flight.reads);
        budget.force(accounts.data, self.flight.data);
        self.accounts = accounts;
    }

    /// Forgets the queue and everything in flight.
    pub fn clear(&mut self, budget: &Budget) {
        self.give_back(budget);
        self.queue.clear();
        self.reads_pending = 0;
        self.placed.clear();
        self.oldest = self.next;
        self.cursor = self.oldest_position();
    }

    /// Returns what is in flight to the budget.
    pub fn give_back(&mut self, budget: &Budget) {
        budget.give_back(self.accounts.reads, self.flight.reads);
        budget.give_back(self.accounts.data, self.flight.data);
        self.flight = Flight::default();
    }
}

#[cfg(test)]
mod tests;
