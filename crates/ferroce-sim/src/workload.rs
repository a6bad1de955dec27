//! Mixed messages between two queue pairs, whose every octet and completion is checked.
//!
//! A [`Direction`] posts messages at one end and checks both. A wrong octet, and a completion that is wrong,
//! missing, doubled or out of order, is a panic: the caller is a test.

use std::collections::VecDeque;

use ferroce_proto::{RecvWr, Remote, SendOp, SendTo, SendWr, Sge, WcOpcode, WcStatus};
use ferroce_wire::{Feth, Imm, Instant, Lkey, Rkey};

use crate::ram::Ram;
use crate::{End, Rng};

/// Longest message.
pub const MAX_LEN: u32 = 40_000;
/// Messages of one direction that have memory of their own; at least as many as may be outstanding.
const SLOTS: u64 = 64;
const SLOT: u64 = MAX_LEN as u64;

// Regions of each end. Each direction has its regions at both ends.
/// Source of sends and writes, target of reads and atomics.
const LOCAL: u32 = 0x100;
/// Target of the peer's writes.
const TARGET: u32 = 0x200;
/// The region that the peer reads.
const SOURCE: u32 = 0x300;
/// Target of receives.
const RECEIVE: u32 = 0x400;
/// The peer's counter.
const COUNTER: u32 = 0x500;
/// Windows that sends invalidate: a key each.
const WINDOW: u32 = 0x1_0000;

/// Receives posted at a time: fewer than sends may be outstanding, so some come too early.
const RECEIVES: usize = 12;

/// The memory of an end: regions for both directions.
pub fn memory() -> Ram {
    let mut ram = Ram { late: Some(Vec::new()), ..Ram::default() };
    for key in [LOCAL, TARGET, RECEIVE] {
        ram.register(key, 0, vec![0; (SLOTS * SLOT) as usize]);
    }
    let source: Vec<u8> = (0..MAX_LEN + 256).map(|i| (i * 31 + (i >> 8)) as u8).collect();
    ram.register(SOURCE, 0, source);
    ram.register(COUNTER, 0, vec![0; 8]);
    ram
}

/// The octets of a message.
fn pattern(message: u64, len: u32) -> impl Iterator<Item = u8> {
    let mut rng = Rng::new(message);
    let salt = rng.next_u64();
    (0..len).map(move |i| (salt >> (i % 56)) as u8 ^ i as u8)
}

/// A message that was posted and not completed.
#[derive(Clone, Copy, Debug)]
struct Posted {
    message: u64,
    op: SendOp,
    len: u32,
    signaled: bool,
    /// The value of the peer's counter before the atomic.
    counter: u64,
}

/// A message that the peer will receive.
#[derive(Clone, Copy, Debug)]
struct Expected {
    message: u64,
    len: u32,
    op: SendOp,
    solicited: bool,
}

/// The messages of one direction.
#[derive(Debug)]
pub struct Direction {
    rng: Rng,
    total: u64,
    next: u64,
    posted: VecDeque<Posted>,
    expected: VecDeque<Expected>,
    receives_posted: u64,
    receives_completed: u64,
    counter: u64,
    depth: usize,
    largest: u32,
    /// A hash of everything that completed, with its time.
    pub trace: u64,
}

impl Direction {
    /// For `total` messages of at most `largest` octets, which is at most [`MAX_LEN`].
    pub fn new(rng: Rng, total: u64, largest: u32) -> Self {
        Self {
            rng,
            total,
            next: 0,
            posted: VecDeque::new(),
            expected: VecDeque::new(),
            receives_posted: 0,
            receives_completed: 0,
            counter: 0,
            depth: 48,
            largest: largest.min(MAX_LEN),
            trace: 0,
        }
    }

    /// Whether all messages have completed at both ends.
    pub fn is_done(&self) -> bool {
        self.next == self.total && self.posted.is_empty() && self.expected.is_empty()
    }

    /// Messages that were posted.
    pub const fn posted(&self) -> u64 {
        self.next
    }

    /// Takes the completions of the end that sends and of its peer, checks them, and posts more. The caller
    /// then sends what the two queue pairs have to send.
    ///
    /// # Panics
    ///
    /// If a completion or an octet is not as it must be.
    pub fn pump(&mut self, now: Instant, [mine, theirs]: [&mut End<Ram>; 2]) {
        for completion in std::mem::take(&mut mine.sends) {
            self.note(now, completion.wr_id ^ (completion.status as u64) << 56);
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            loop {
                let posted = self.posted.pop_front().expect("a completion of nothing posted");
                self.check_done(&posted, &mine.mem, &theirs.mem);
                if posted.signaled {
                    assert_eq!(posted.message, completion.wr_id, "in order, and none left out");
                    assert_eq!(completion.byte_len, posted.len);
                    break;
                }
            }
        }
        for completion in std::mem::take(&mut theirs.recvs) {
            self.note(now, !completion.wr_id ^ u64::from(completion.byte_len) << 32);
            assert_eq!(completion.status, WcStatus::Success);
            assert_eq!(completion.wr_id, self.receives_completed, "in order");
            self.receives_completed += 1;
            let expected = self.expected.pop_front().expect("a message that nobody sent");
            assert_eq!(completion.byte_len, expected.len);
            assert_eq!(completion.solicited, expected.solicited);
            let (imm, opcode) = match expected.op {
                SendOp::SendImm(imm) => (Some(imm), WcOpcode::Recv),
                SendOp::WriteImm { imm, .. } => (Some(imm), WcOpcode::RecvRdmaWithImm),
                _ => (None, WcOpcode::Recv),
            };
            assert_eq!((completion.imm, completion.opcode), (imm, opcode));
            let (region, at) = match expected.op {
                SendOp::WriteImm { .. } => (TARGET, expected.message % SLOTS * SLOT),
                _ => (RECEIVE, completion.wr_id % SLOTS * SLOT),
            };
            same(theirs.mem.bytes(region), at, expected.message, expected.len);
        }
        self.post_receives(theirs);
        self.post_sends(mine, theirs);
    }

    fn note(&mut self, now: Instant, what: u64) {
        self.trace = Rng::new(self.trace ^ what ^ now.as_nanos()).next_u64();
    }

    /// The requester says that it is done: so it must be at the responder.
    fn check_done(&self, posted: &Posted, mine: &Ram, theirs: &Ram) {
        let Posted { message, op, len, counter, .. } = *posted;
        let at = message % SLOTS * SLOT;
        let mine = mine.bytes(LOCAL);
        match op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } | SendOp::AtomicWrite { .. } => {
                same(theirs.bytes(TARGET), at, message, len);
            }
            SendOp::Flush { remote, .. } => {
                let its = |&&(addr, ..): &&(u64, u64, Feth)| addr == remote.addr;
                assert_eq!(theirs.flushes.iter().filter(its).count(), 1, "message {message}");
            }
            SendOp::Read { remote } => {
                let source = &theirs.bytes(SOURCE)[remote.addr as usize..][..len as usize];
                assert!(mine[at as usize..][..len as usize] == *source, "message {message}");
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                assert_eq!(mine[at as usize..][..8], counter.to_ne_bytes(), "done once and in order");
            }
            SendOp::SendInvalidate(rkey) => {
                assert!(theirs.regions.iter().all(|region| region.key != rkey.value()));
            }
            SendOp::Send | SendOp::SendImm(_) | SendOp::LocalInvalidate(_) | SendOp::BindMw(_) => {}
        }
    }

    fn post_receives(&mut self, end: &mut End<Ram>) {
        let outstanding = (self.receives_posted - self.receives_completed) as usize;
        // Posts late at times, so that the responder sends an RNR NAK.
        if outstanding > 0 && !self.rng.chance(300_000) {
            return;
        }
        for _ in outstanding..RECEIVES {
            let wr_id = self.receives_posted;
            let at = wr_id % SLOTS * SLOT;
            let cut = self.rng.below(u64::from(MAX_LEN)) as u32;
            let sge = |addr, length| Sge { addr, length, lkey: Lkey::new(RECEIVE) };
            let sges = [sge(at, cut), sge(at + u64::from(cut), MAX_LEN - cut)];
            end.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
            self.receives_posted += 1;
        }
    }

    fn post_sends(&mut self, mine: &mut End<Ram>, theirs: &mut End<Ram>) {
        while self.next < self.total && self.posted.len() < self.depth {
            let message = self.next;
            self.next += 1;
            let len = self.length();
            let at = message % SLOTS * SLOT;
            let (op, len) = self.operation(message, len, theirs);
            let sge = |addr, length| Sge { addr, length, lkey: Lkey::new(LOCAL) };
            let cut = self.rng.below(u64::from(len) + 1) as u32;
            let sges = [sge(at, cut), sge(at + u64::from(cut), len - cut)];
            // The last is signaled, and often enough that the queue does not fill.
            let signaled =
                self.rng.chance(600_000) || message + 1 == self.total || message.is_multiple_of(16);
            let solicited = self.rng.chance(200_000);
            let fence = self.rng.chance(50_000);
            let counter = self.counter;
            match op {
                SendOp::FetchAdd { add, .. } => self.counter = self.counter.wrapping_add(add),
                SendOp::CompareSwap { compare, swap, .. } if compare == self.counter => self.counter = swap,
                SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::LocalInvalidate(_) => {}
                _ => fill(mine.mem.region(LOCAL).bytes.as_mut_slice(), at, message, len),
            }
            self.posted.push_back(Posted { message, op, len, signaled, counter });
            if matches!(
                op,
                SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::WriteImm { .. }
            ) {
                self.expected.push_back(Expected { message, len, op, solicited });
            }
            let wr = SendWr {
                wr_id: message,
                op,
                to: SendTo::Peer,
                sges: &sges,
                signaled,
                solicited,
                fence,
                inline: false,
            };
            mine.qp.post_send(&wr, &mine.mem).unwrap();
        }
    }

    fn length(&mut self) -> u32 {
        let largest = match self.rng.below(100) {
            0..5 => return 0,
            5..60 => 64,
            60..90 => 2048,
            90..98 => 8192,
            _ => self.largest,
        };
        self.rng.below(u64::from(largest.min(self.largest)) + 1) as u32
    }

    fn operation(&mut self, message: u64, len: u32, theirs: &mut End<Ram>) -> (SendOp, u32) {
        let imm = Imm((message as u32).to_be_bytes());
        let target = Remote { addr: message % SLOTS * SLOT, rkey: Rkey::new(TARGET) };
        let counter = Remote { addr: 0, rkey: Rkey::new(COUNTER) };
        match self.rng.below(100) {
            0..22 => (SendOp::Send, len),
            22..32 => (SendOp::SendImm(imm), len),
            32..34 => {
                let key = WINDOW + message as u32;
                theirs.mem.register(key, 0, vec![]).window = true;
                (SendOp::SendInvalidate(Rkey::new(key)), len)
            }
            34..36 => (SendOp::AtomicWrite { remote: target, octets: None }, 8),
            36..38 => {
                let feth = Feth { placement: Feth::GLOBAL_VISIBILITY, selectivity: Feth::WHOLE_REGION };
                // The flush covers the whole region, so that the address is free to tell it from others.
                let remote = Remote { addr: message, ..target };
                (SendOp::Flush { remote, length: 0, feth }, 0)
            }
            38..58 => (SendOp::Write { remote: target }, len),
            58..68 => (SendOp::WriteImm { remote: target, imm }, len),
            68..88 => {
                let remote = Remote { addr: self.rng.below(200), rkey: Rkey::new(SOURCE) };
                (SendOp::Read { remote }, len)
            }
            88..94 => (SendOp::FetchAdd { remote: counter, add: self.rng.next_u64() }, 8),
            _ => {
                let hit = self.rng.chance(500_000);
                let compare = if hit { self.counter } else { !self.counter };
                (SendOp::CompareSwap { remote: counter, compare, swap: self.rng.next_u64() }, 8)
            }
        }
    }
}

fn fill(bytes: &mut [u8], at: u64, message: u64, len: u32) {
    for (byte, value) in bytes[at as usize..].iter_mut().zip(pattern(message, len)) {
        *byte = value;
    }
}

fn same(bytes: &[u8], at: u64, message: u64, len: u32) {
    let equal = bytes[at as usize..][..len as usize].iter().copied().eq(pattern(message, len));
    assert!(equal, "message {message} of {len} octets");
}
