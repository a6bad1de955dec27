//! The recent history of a queue pair, as the flight recorder keeps it. Each [`Event`] is two words, and
//! [`Cause`] is the reason that they tell for a work request that failed.

mod cause;

pub use cause::Cause;

use crate::{DropReason, QpState, SendWr, WcOpcode, WcStatus};
use ferroce_wire::{Headers, Instant, NakCode, Psn, Syndrome, WireOpcode};

/// An event of the past. Its time is in units of [`Event::UNIT`] nanoseconds, modulo [`Event::TURN`]; 0 for a
/// post, which is as old as the event behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    pub time: u64,
    pub what: What,
}

/// The kind of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Send work requests were posted by one call: the operation of the first, by `ibv_wc_opcode`, its
    /// `wr_id`, and their number, up to 2,047.
    Posted { opcode: u8, wr_id: u64, count: u16 },
    /// A packet left that is no ACK.
    Sent(Head),
    /// A packet arrived and was processed.
    Received(Head),
    /// A packet arrived and had no effect; the number is that of a [`DropReason`].
    Dropped(Head, u8),
    /// A work request completed with an error; the numbers are those of `ibv_wc_status` and `ibv_wc_opcode`.
    Failed { status: u8, opcode: u8, wr_id: u64 },
    /// The queue pair entered a state, by `ibv_qp_state`.
    State(u8),
    /// The last event before it that is no timeout happened again, as often.
    Again { count: u16 },
    /// The ACK timeout passed, as often, so that packets are sent again.
    TimedOut { count: u16 },
    /// A WRITE or READ was executed by a direct copy, without packets.
    Copied,
}

/// A packet, as far as the recorder keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub opcode: WireOpcode,
    pub psn: Psn,
    /// From BTH to ICRC, in octets, up to 8,188; 0 of a packet that was dropped.
    pub len: u16,
    /// The sender asks for an acknowledgement.
    pub asks: bool,
    /// The first four octets behind the BTH: the AETH of an answer.
    extension: u32,
}

impl Head {
    /// The AETH's syndrome, if the packet has one.
    pub fn syndrome(&self) -> Option<Syndrome> {
        let headers = self.opcode.info()?.headers;
        headers.contains(Headers::AETH).then(|| Syndrome::from_byte((self.extension >> 24) as u8))
    }

    /// Whether the sender of the packet asks for something: a SEND, WRITE, READ, atomic or flush.
    pub fn is_request(&self) -> bool {
        !matches!(self.opcode.0 & 0x1f, 0x0d..=0x12) && self.opcode != WireOpcode::CNP
    }

    /// The code of a NAK.
    pub fn nak(&self) -> Option<NakCode> {
        if let Some(Syndrome::Nak(code)) = self.syndrome() { Some(code) } else { None }
    }

    fn is_rnr(&self) -> bool {
        matches!(self.syndrome(), Some(Syndrome::RnrNak(_)))
    }
}

const POSTED: u64 = 1;
const SENT: u64 = 3;
const RECEIVED: u64 = 4;
const DROPPED: u64 = 5;
const FAILED: u64 = 6;
const STATE: u64 = 7;
const TIMED_OUT: u64 = 8;
const COPIED: u64 = 9;
/// Added to the kind of a packet's event: the same again. Its low bits are a count.
const AGAIN: u64 = 8;

/// Places in the first word: the time above, the kind, an octet, and eleven bits.
const TIME_AT: u32 = 23;
const KIND_AT: u32 = 19;
const OCTET_AT: u32 = 11;
const LOW: u64 = 0x7ff;

impl Event {
    /// Nanoseconds of a unit of time.
    pub const UNIT: u64 = 1024;
    /// Units after which the time begins anew: 26 days.
    pub const TURN: u64 = 1 << (u64::BITS - TIME_AT);

    const fn word(now: Instant, kind: u64, octet: u8) -> u64 {
        (now.as_nanos() / Self::UNIT) << TIME_AT | kind << KIND_AT | (octet as u64) << OCTET_AT
    }

    /// Whether a packet is inside a message, and tells nothing that those at both ends do not.
    #[inline]
    pub fn is_middle(packet: &[u8]) -> bool {
        // RC and XRC.
        matches!(packet.first(), Some(0x01 | 0x07 | 0x0e | 0xa1 | 0xa7 | 0xae))
    }

    /// A packet, from BTH to ICRC, left. `None` for an ACK: the requests that were processed tell of it.
    #[inline]
    pub fn sent(now: Instant, packet: &[u8]) -> Option<[u64; 2]> {
        // Acknowledge of RC and XRC; the next octet that counts is the syndrome.
        let is_ack =
            matches!(packet.first(), Some(0x11 | 0xb1)) && packet.get(12).is_some_and(|code| code >> 5 == 0);
        (!is_ack).then(|| Self::packet(now, SENT, packet))
    }

    /// A packet, from BTH to ICRC, arrived.
    #[inline]
    pub fn received(now: Instant, packet: &[u8]) -> [u64; 2] {
        Self::packet(now, RECEIVED, packet)
    }

    /// A packet, from BTH to ICRC, arrived and had no effect.
    #[cold]
    pub fn dropped(now: Instant, packet: &[u8], reason: DropReason) -> [u64; 2] {
        let [first, second] = Self::packet(now, DROPPED, packet);
        [first & !LOW | reason as u64, second]
    }

    #[inline(always)]
    fn packet(now: Instant, kind: u64, packet: &[u8]) -> [u64; 2] {
        // Every packet has a BTH and an ICRC, so 16 octets. Of the latter half the reader makes sense.
        let Some((&[opcode, ..], [half, ..])) =
            packet.split_first_chunk::<8>().map(|(first, rest)| (first, rest.as_chunks::<8>().0))
        else {
            return [0; 2];
        };
        let len = (packet.len() as u64 / 4).min(LOW);
        [Self::word(now, kind, opcode) | len, u64::from_ne_bytes(*half)]
    }

    /// A work request completed with an error.
    #[cold]
    pub const fn failed(now: Instant, status: WcStatus, opcode: WcOpcode, wr_id: u64) -> [u64; 2] {
        [Self::word(now, FAILED, status as u8) | opcode as u64, wr_id]
    }

    /// Whether a work request was flushed. One event is enough of many in a row, which would push out the
    /// events that tell why.
    pub fn is_flush(words: [u64; 2]) -> bool {
        let what = Self::from_words(words).map(|event| event.what);
        matches!(what, Some(What::Failed { status, .. }) if status == WcStatus::WrFlushErr as u8)
    }

    /// The queue pair entered a state.
    pub const fn entered(now: Instant, state: QpState) -> [u64; 2] {
        [Self::word(now, STATE, state as u8), 0]
    }

    /// The ACK timeout passed.
    pub const fn timed_out(now: Instant) -> [u64; 2] {
        [Self::word(now, TIMED_OUT, 0) | 1, 0]
    }

    /// Makes of an event and the last four before it one that stands for both, if the event is one of them
    /// again, and how many events back its place is. A packet that is sent again and again, with ACK timeouts
    /// between, takes four events at most: so those before it, which tell what happened, are not pushed out.
    #[cold]
    pub fn merged([first, second, before, last]: [[u64; 2]; 4], event: [u64; 2]) -> Option<(u64, [u64; 2])> {
        let kind = |words: [u64; 2]| words[0] >> KIND_AT & 0xf;
        // All but the time, and of what stands for many all but their number.
        let bits = |words: [u64; 2], mask: u64| (words[0] & ((1 << TIME_AT) - 1) & mask, words[1]);
        let again = |count: u64| [event[0] & !LOW | AGAIN << KIND_AT | count.min(LOW), event[1]];
        let one_more = |words: [u64; 2]| again((words[0] & LOW) + 1);
        let is_again = |words| bits(words, !LOW) == bits(again(0), !LOW);
        let is_it = |words| bits(words, LOW | !LOW) == bits(event, LOW | !LOW);
        // Drops of one packet have reasons, which their number replaces.
        let is_drop = kind(event) == DROPPED;
        match kind(event) {
            TIMED_OUT if kind(last) == TIMED_OUT => {
                Some((1, [event[0] & !LOW | ((last[0] & LOW) + 1).min(LOW), 0]))
            }
            SENT | RECEIVED | DROPPED if is_it(last) => Some((0, again(1))),
            SENT | RECEIVED | DROPPED if is_again(last) && (is_it(before) || !is_drop) => {
                Some((1, one_more(last)))
            }
            SENT if kind(last) == TIMED_OUT && is_again(before) => Some((2, one_more(before))),
            SENT if [kind(second), kind(last)] == [TIMED_OUT; 2] && is_it(first) && is_it(before) => {
                Some((2, again(2)))
            }
            _ => None,
        }
    }

    /// The events with those that were merged in their number.
    pub fn each(events: impl Iterator<Item = Self> + Clone) -> impl Iterator<Item = Self> + Clone {
        let mut last = None;
        events.flat_map(move |event| {
            let (event, count) = match (event.what, last) {
                (What::Again { count }, Some(last)) => (Self { time: event.time, what: last }, count),
                (What::TimedOut { count }, _) => (Self { what: What::TimedOut { count: 1 }, ..event }, count),
                _ => (event, 1),
            };
            if !matches!(event.what, What::TimedOut { .. }) {
                last = Some(event.what);
            }
            core::iter::repeat_n(event, count.into())
        })
    }

    /// A WRITE or READ was executed by a direct copy.
    pub const fn copied(now: Instant) -> [u64; 2] {
        [Self::word(now, COPIED, 0), 0]
    }

    /// Reads what one of the functions above has made; `None` for anything else.
    pub fn from_words([first, second]: [u64; 2]) -> Option<Self> {
        let octet = (first >> OCTET_AT) as u8;
        let low = (first & LOW) as u16;
        let half = u64::from_be_bytes(second.to_ne_bytes());
        let head = || Head {
            opcode: WireOpcode(octet),
            psn: Psn::new((half >> 32) as u32),
            len: low * 4,
            asks: half >> 63 != 0,
            extension: half as u32,
        };
        let what = match first >> KIND_AT & 0xf {
            POSTED => What::Posted { opcode: octet, wr_id: second, count: low },
            SENT => What::Sent(head()),
            RECEIVED => What::Received(head()),
            DROPPED => What::Dropped(Head { len: 0, ..head() }, low as u8),
            FAILED => What::Failed { status: octet, opcode: low as u8, wr_id: second },
            STATE => What::State(octet),
            TIMED_OUT => What::TimedOut { count: low },
            COPIED => What::Copied,
            again if [SENT, RECEIVED, DROPPED].contains(&(again ^ AGAIN)) => What::Again { count: low },
            _ => return None,
        };
        Some(Self { time: first >> TIME_AT, what })
    }
}

/// The send work requests of one call, until they are recorded.
#[derive(Default)]
pub struct Posted {
    opcode: u8,
    wr_id: u64,
    count: u64,
}

impl Posted {
    /// Another one was posted.
    #[inline]
    pub fn add(&mut self, wr: &SendWr<'_>) {
        if self.count == 0 {
            (self.opcode, self.wr_id) = (WcOpcode::of(&wr.op) as u8, wr.wr_id);
        }
        self.count += 1;
    }

    /// The event of them; `None` if none was posted.
    #[inline]
    pub fn event(&self) -> Option<[u64; 2]> {
        let word = Event::word(Instant::ZERO, POSTED, self.opcode);
        (self.count > 0).then_some([word | self.count.min(LOW), self.wr_id])
    }
}
