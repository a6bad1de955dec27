//! Answers on their way to the peer, in order.

use alloc::collections::VecDeque;

use ferroce_wire::{
    Aeth, Bth, CreditCode, IcrcStatus, Instant, Msn, NakCode, Operation, Packet, Psn, PushError, RcPacket,
    Response, Rkey, RnrTimer, Sink, Syndrome, TxBatch,
};

use super::super::common::Common;
use super::super::congestion::Kind;
use super::super::pipeline::PACKET_OVERHEAD;
use crate::counting::CountedOp;
use crate::{Domain, Memory};

/// An answer. It carries the MSN of when it was due, so that an ACK never speaks for what came after it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// Sends and writes up to this PSN; replaced by a later one while nothing stands behind it.
    Ack {
        psn: Psn,
        msn: Msn,
    },
    Nak {
        psn: Psn,
        msn: Msn,
        syndrome: Syndrome,
    },
    Read(ReadReply),
    Atomic {
        psn: Psn,
        msn: Msn,
        original: u64,
        replay: bool,
    },
}

/// The part of a READ that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadReply {
    /// The request's PSN as first seen: names it.
    pub request: Psn,
    /// The PSN of the next response.
    pub psn: Psn,
    pub msn: Msn,
    pub rkey: Rkey,
    pub addr: u64,
    pub remaining: u32,
    /// Octets of the request behind this part, which is all that is asked for again. 0: the part reaches to
    /// the end.
    pub beyond: u32,
    /// Nothing of this answer was sent.
    pub fresh: bool,
    /// The request was answered before.
    pub replay: bool,
    /// Octets that a completion counter counts with the last packet of the answer; `None` for a replay, and
    /// for the answer to an atomic write or a flush.
    pub counts: Option<u32>,
    /// The domain whose memory it reads, if not the queue pair's: XRC.
    pub domain: Option<Domain>,
}

impl ReadReply {
    /// The answer to an atomic write or a flush.
    pub const fn of_nothing(psn: Psn, msn: Msn, replay: bool) -> Self {
        let rkey = Rkey::new(0);
        Self {
            request: psn,
            psn,
            msn,
            rkey,
            addr: 0,
            remaining: 0,
            beyond: 0,
            fresh: true,
            replay,
            counts: None,
            domain: None,
        }
    }
}

/// How draining the answers ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drained {
    Empty,
    /// The batch takes no more.
    Full,
    /// The answer to a READ waits for the reaction point.
    Paced,
    /// Memory of a READ went away under it: a NAK stands in its place, the queue pair must go to the error
    /// state.
    MemoryGone,
}

/// A bounded queue of answers.
#[derive(Debug)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
    capacity: usize,
}

impl Replies {
    /// Room for the answers to `depth` reads and atomics, as many replays, and the ACKs between.
    pub fn new(depth: usize) -> Self {
        let capacity = 4 * depth + 8;
        Self { queue: VecDeque::with_capacity(capacity), capacity }
    }

    /// Changes the capacity to another depth. Queued replies stay.
    pub fn resize(&mut self, depth: usize) {
        self.capacity = (4 * depth + 8).max(self.queue.len());
        self.queue.reserve_exact(self.capacity - self.queue.len());
    }

    /// Whether any request can be answered now.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.queue.len() + 2 <= self.capacity
    }

    /// Whether no answer waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether an ACK waits, and nothing else.
    #[inline]
    pub fn is_one_ack(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue.front(), Some(Reply::Ack { .. }))
    }

    pub fn clear(&mut self) {
        self.queue.clear();
    }

    #[cfg(test)]
    pub fn pop(&mut self) -> Option<Reply> {
        self.queue.pop_front()
    }

    /// Reads and atomics accepted and not wholly answered.
    pub fn reads_pending(&self) -> usize {
        let pending = |reply: &&Reply| {
            matches!(
                reply,
                Reply::Read(ReadReply { replay: false, .. }) | Reply::Atomic { replay: false, .. }
            )
        };
        self.queue.iter().filter(pending).count()
    }

    /// Queues an ACK. An ACK also acknowledges all requests before it (IBTA 9.7.5.1.2), but not across the
    /// answer to a read.
    #[inline(always)]
    pub fn acknowledge(&mut self, psn: Psn, msn: Msn) {
        match self.queue.back_mut() {
            Some(Reply::Ack { psn: newest, msn: completed }) => {
                if psn.since(*newest) > 0 {
                    (*newest, *completed) = (psn, msn);
                }
            }
            _ => self.push(Reply::Ack { psn, msn }),
        }
    }

    #[inline]
    pub fn push(&mut self, reply: Reply) {
        if self.queue.len() < self.capacity {
            self.queue.push_back(reply);
        }
    }

    /// Answers a READ, or a part of it, again. If a queued answer will bring all of it, there is nothing to
    /// do; if a replay of no more than that is under way, it starts over.
    pub fn replay(&mut self, reply: ReadReply) {
        for pending in &mut self.queue {
            match pending {
                Reply::Read(read) if read.request == reply.request => {
                    if reply.psn.since(read.psn) >= 0 && reply.beyond >= read.beyond {
                        return;
                    }
                    if read.replay && reply.psn.since(read.psn) <= 0 && reply.beyond <= read.beyond {
                        *read = reply;
                        return;
                    }
                }
                _ => {}
            }
        }
        self.push(Reply::Read(reply));
    }

    /// Moves answers into the batch; the number of packets added.
    pub fn transmit(
        &mut self,
        now: Instant,
        common: &mut Common,
        mem: &mut impl Memory,
        out: &mut TxBatch<'_>,
    ) -> (u32, Drained) {
        let mut sent = 0;
        while let Some(reply) = self.queue.front_mut() {
            let charge = charge(reply, common);
            if let Some(limiter) = &mut common.limiter
                && charge > 0
                && !limiter.admits(now, Kind::Answer, charge, 0)
            {
                common.paced = limiter.timeout();
                return (sent, Drained::Paced);
            }
            match push(reply, common, mem, out) {
                Ok(finished) => {
                    sent += 1;
                    common.counters.sent_pkts += 1;
                    match reply {
                        Reply::Ack { .. } => common.counters.sent_acks += 1,
                        Reply::Nak { .. } | Reply::Read(_) | Reply::Atomic { .. } => {}
                    }
                    if finished
                        && let Some(Reply::Read(ReadReply { counts: Some(octets), .. })) =
                            self.queue.pop_front()
                    {
                        common.counting.completed(CountedOp::RemoteRdmaRead, octets);
                    }
                }
                Err(PushError::Full) => {
                    if let Some(limiter) = &mut common.limiter {
                        limiter.give_back(charge);
                    }
                    return (sent, Drained::Full);
                }
                Err(PushError::Fill(_)) => {
                    if self.memory_gone() {
                        common.counting.failed(CountedOp::RemoteRdmaRead);
                        return (sent, Drained::MemoryGone);
                    }
                }
                // A buffer too small for the path MTU: the peer's timer will tell it.
                Err(PushError::Wire(_)) => {
                    self.queue.pop_front();
                }
            }
        }
        (sent, Drained::Empty)
    }

    /// As [`Self::transmit`] for RC, where an ACK is all there is.
    #[inline(always)]
    pub fn transmit_ack(&mut self, common: &mut Common, out: &mut impl Sink) -> bool {
        let Some(Reply::Ack { psn, msn }) = self.queue.front() else { return false };
        let op = Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth: ack(*msn) }));
        let head = head(*psn, op, common);
        let pushed = out.push(&common.attr.path, &head, 0, |_| Ok::<(), crate::MemoryError>(()));
        if pushed.is_ok() {
            common.counters.sent_pkts += 1;
            common.counters.sent_acks += 1;
            self.queue.pop_front();
        }
        pushed.is_ok()
    }

    /// The READ at the front cannot go on: NAK with the PSN that cannot be delivered. `true` if that is
    /// fatal.
    ///
    /// A replay is not: it may be a duplicate that the network made long after the peer had its data, and by
    /// now the application may rightly have deregistered the memory. The peer's requester ignores the NAK in
    /// that case.
    fn memory_gone(&mut self) -> bool {
        let Some(Reply::Read(ReadReply { psn, msn, replay, .. })) = self.queue.front().copied() else {
            self.queue.pop_front();
            return false;
        };
        let syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
        if let Some(front) = self.queue.front_mut() {
            *front = Reply::Nak { psn, msn, syndrome };
        }
        if !replay {
            self.queue.truncate(1);
        }
        !replay
    }
}

/// Octets for which the reaction point is asked: those of the next packet of a READ's answer.
fn charge(reply: &Reply, common: &Common) -> u64 {
    match reply {
        Reply::Read(read) if read.remaining > 0 => {
            u64::from(read.remaining.min(common.mtu())) + PACKET_OVERHEAD
        }
        _ => 0,
    }
}

/// Pushes the next packet of an answer; whether it was the last.
fn push(
    reply: &mut Reply,
    common: &Common,
    mem: &mut impl Memory,
    out: &mut impl Sink,
) -> Result<bool, PushError<crate::MemoryError>> {
    if let Reply::Read(ReadReply { domain: domain @ Some(_), .. }) = reply {
        mem.enter(*domain);
    }
    let mut send = |psn, response: Response<'_>, len: u32, addr: u64, rkey, rest: u32| {
        let op = common.reliable(RcPacket::Response(response), None);
        out.push(&common.attr.path, &head(psn, op, common), len as usize, |payload| {
            if payload.is_empty() { Ok(()) } else { mem.read_remote(rkey, addr, payload, rest.into()) }
        })
    };
    let none = Rkey::new(0);
    match reply {
        Reply::Ack { psn, msn } => {
            send(*psn, Response::Acknowledge { aeth: ack(*msn) }, 0, 0, none, 0)?;
            Ok(true)
        }
        Reply::Nak { psn, msn, syndrome } => {
            let aeth = Aeth { syndrome: *syndrome, msn: *msn };
            send(*psn, Response::Acknowledge { aeth }, 0, 0, none, 0)?;
            Ok(true)
        }
        Reply::Atomic { psn, msn, original, .. } => {
            let response = Response::AtomicAcknowledge { aeth: ack(*msn), original: *original };
            send(*psn, response, 0, 0, none, 0)?;
            Ok(true)
        }
        Reply::Read(read) => {
            let len = read.remaining.min(common.mtu());
            let ends = len == read.remaining;
            // Last and Only are the end of the request, not of a part that is sent again.
            let last = ends && read.beyond == 0;
            let (aeth, payload) = (ack(read.msn), &[][..]);
            let response = match (read.fresh, last) {
                (true, true) => Response::ReadOnly { aeth, payload },
                (true, false) => Response::ReadFirst { aeth, payload },
                (false, false) => Response::ReadMiddle { payload },
                (false, true) => Response::ReadLast { aeth, payload },
            };
            send(read.psn, response, len, read.addr, read.rkey, read.remaining - len)?;
            read.fresh = false;
            read.psn = read.psn.next();
            read.addr = read.addr.wrapping_add(u64::from(len));
            read.remaining -= len;
            Ok(ends)
        }
    }
}

/// An answer's headers.
#[inline]
fn head<'a>(psn: Psn, op: Operation<'a>, common: &Common) -> Packet<'a> {
    let bth = Bth { extended: common.announces, ..common.bth(psn) };
    Packet { bth, op, icrc: IcrcStatus::Checked }
}

/// Pushes the report of what is held behind the expected PSN.
pub(super) fn push_report(
    expected: Psn,
    msn: Msn,
    held: u128,
    common: &Common,
    out: &mut TxBatch<'_>,
) -> Result<(), PushError<crate::MemoryError>> {
    let op = Operation::Sack { aeth: ack(msn), held };
    let head = Packet { bth: common.bth(expected), op, icrc: IcrcStatus::Checked };
    out.push(&common.attr.path, &head, 0, |_| Ok(()))
}

/// Positive, without credits: RNR NAKs are the flow control, as rxe's.
fn ack(msn: Msn) -> Aeth {
    Aeth { syndrome: Syndrome::Ack { credits: CreditCode::UNLIMITED }, msn }
}

/// The syndrome that asks the peer to come back after the time of this code.
pub(crate) fn rnr(code: u8) -> Syndrome {
    Syndrome::RnrNak(RnrTimer::new(code).unwrap_or_default())
}
