//! The bad network of the transport's simulation, over real sockets: a plan of faults judges what is received.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::VecDeque;
use std::time::Instant;

use common::*;
use ferroce_engine::{SendOp, SendWr, WcOpcode, WcStatus};
use ferroce_wire::{Imm, PathMtu};

/// Loss of 5 % in bursts, with duplicates and late datagrams.
const FAULT: &str = "seed=7; burst(5%,50%) if dir=rx; dup 1% if dir=rx; reorder 2% if dir=rx";
const MESSAGES: u64 = 200_000;
/// Requests of one direction in flight.
const WINDOW: u64 = 16;
const RECEIVES: u64 = 32;
const SLOT: usize = 8 << 10;
const LONGEST: u64 = 6_000;
/// The memory that peers write to and read from, after the slots of our own requests.
const TARGETS: usize = WINDOW as usize * SLOT;
const INBOX: usize = 2 * TARGETS;
const WORD: usize = INBOX + RECEIVES as usize * SLOT;
const MEMORY: usize = WORD + 8;

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    id: u64,
    kind: Kind,
    len: usize,
    signaled: bool,
}

/// Requests from one end to the other, and what the other end is to receive.
struct Direction {
    rng: Rng,
    total: u64,
    next: u64,
    open: VecDeque<Request>,
    arriving: VecDeque<Request>,
    received: u64,
    added: u64,
}

fn octet(id: u64, i: usize) -> u8 {
    (i.wrapping_mul(31) ^ (i >> 8)) as u8 ^ id as u8 ^ (id >> 8) as u8
}

fn fill(memory: &Memory, at: usize, id: u64, len: usize) {
    (0..len).for_each(|i| memory.set(at + i, octet(id, i)));
}

fn check(memory: &Memory, at: usize, request: Request) {
    let Request { id, len, .. } = request;
    if let Some(i) = (0..len).find(|&i| memory.get(at + i) != octet(id, i)) {
        panic!("{request:?}: octet {i} is {:#x}, not {:#x}", memory.get(at + i), octet(id, i));
    }
}

fn word(memory: &Memory, at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| memory.get(at + i)))
}

fn place(id: u64) -> usize {
    (id % WINDOW) as usize * SLOT
}

fn inbox(receive: u64) -> usize {
    INBOX + (receive % RECEIVES) as usize * SLOT
}

impl Direction {
    fn new(seed: u64, total: u64) -> Self {
        let (open, arriving) = (VecDeque::new(), VecDeque::new());
        Self { rng: Rng(seed), total, next: 0, open, arriving, received: 0, added: 0 }
    }

    fn is_done(&self) -> bool {
        self.next == self.total && self.open.is_empty() && self.arriving.is_empty()
    }

    /// Posts as many requests as the window allows, as one list.
    fn pump(&mut self, from: &End, to: &End) {
        while self.next < self.total && (self.open.len() as u64) < WINDOW {
            let id = self.next;
            self.next += 1;
            let kind = [Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm, Kind::Read, Kind::FetchAdd]
                [self.rng.below(6) as usize];
            // Half of them are small: these may wait to fill a batch.
            let longest = [LONGEST, 64][self.rng.below(2) as usize];
            let len = if kind == Kind::FetchAdd { 8 } else { self.rng.below(longest + 1) as usize };
            let signaled = id % 8 == 7 || id + 1 == self.total || self.rng.below(3) > 0;
            let request = Request { id, kind, len, signaled };
            match kind {
                Kind::Read => fill(&to.memory, TARGETS + place(id), id, len),
                Kind::FetchAdd => {}
                Kind::Send | Kind::SendImm | Kind::Write | Kind::WriteImm => {
                    fill(&from.memory, place(id), id, len)
                }
            }
            let (imm, remote) = (Imm((id as u32).to_be_bytes()), to.remote(TARGETS + place(id)));
            let op = match kind {
                Kind::Send => SendOp::Send,
                Kind::SendImm => SendOp::SendImm(imm),
                Kind::Write => SendOp::Write { remote },
                Kind::WriteImm => SendOp::WriteImm { remote, imm },
                Kind::Read => SendOp::Read { remote },
                Kind::FetchAdd => SendOp::FetchAdd { remote: to.remote(WORD), add: id + 1 },
            };
            if matches!(kind, Kind::Send | Kind::SendImm | Kind::WriteImm) {
                self.arriving.push_back(request);
            }
            self.open.push_back(request);
            let sge = [from.sge(place(id), len)];
            from.qp.post_send([SendWr { signaled, ..send(id, op, &sge) }]).unwrap();
        }
    }

    /// A send completion: of the oldest signaled request, and of the unsignaled ones before it.
    fn completed(&mut self, from: &End, to: &End, id: u64) {
        loop {
            let request = self.open.pop_front().expect("a completion of something posted");
            match request.kind {
                Kind::Write | Kind::WriteImm => check(&to.memory, TARGETS + place(request.id), request),
                Kind::Read => check(&from.memory, place(request.id), request),
                Kind::FetchAdd => {
                    assert_eq!(word(&from.memory, place(request.id)), self.added, "{request:?}");
                    self.added += request.id + 1;
                }
                Kind::Send | Kind::SendImm => {}
            }
            if request.id == id {
                assert!(request.signaled, "{request:?}");
                return;
            }
            assert!(!request.signaled, "{request:?} completed after {id}, or never");
        }
    }

    /// A receive completion at the far end.
    fn arrived(&mut self, to: &End, completion: &ferroce_engine::WorkCompletion) {
        let request = self.arriving.pop_front().expect("a message that was sent");
        assert_eq!(completion.wr_id, RECV | (self.received % RECEIVES), "{request:?}");
        assert_eq!(completion.byte_len as usize, request.len, "{request:?}");
        let imm = Some(Imm((request.id as u32).to_be_bytes()));
        assert_eq!(completion.imm, if request.kind == Kind::Send { None } else { imm }, "{request:?}");
        match request.kind {
            Kind::WriteImm => {
                assert_eq!(completion.opcode, WcOpcode::RecvRdmaWithImm);
                check(&to.memory, TARGETS + place(request.id), request);
            }
            _ => check(&to.memory, inbox(self.received), request),
        }
        receive(to, self.received);
        self.received += 1;
    }
}

/// Marks receives, whose number follows.
const RECV: u64 = 1 << 63;

fn receive(end: &End, number: u64) {
    end.receive(RECV | (number % RECEIVES), end.sge(inbox(number), SLOT));
}

#[test]
fn two_hundred_thousand_mixed_messages_over_sockets() {
    // SAFETY: the only test of this file, before anything else of it runs; the harness's main
    // thread only waits.
    unsafe { std::env::set_var("FERROCE_FAULT", FAULT) };
    let wanted = || Wanted { cqe: 512, wr: 64, memory: MEMORY, ..Wanted::default() };
    let ends = [End::new(wanted()), End::new(wanted())];
    connect(&ends[0], &ends[1], 0, PathMtu::B1024);
    ends.iter().for_each(|end| (0..RECEIVES).for_each(|number| receive(end, number)));
    let mut directions =
        [Direction::new(0x1234_5678_9abc, MESSAGES / 2), Direction::new(0xfeed_beef, MESSAGES / 2)];
    let started = Instant::now();
    let mut progress = (started, 0);
    while !directions.iter().all(Direction::is_done) {
        for side in [0, 1] {
            let (from, to) = (&ends[side], &ends[1 - side]);
            directions[side].pump(from, to);
            let mut found = [blank(); 32];
            let count = from.cq.poll(&mut found).unwrap();
            for completion in &found[..count] {
                assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
                if completion.wr_id & RECV != 0 {
                    directions[1 - side].arrived(from, completion);
                } else {
                    directions[side].completed(from, to, completion.wr_id);
                }
            }
            if count > 0 {
                progress = (Instant::now(), progress.1 + count);
            }
        }
        assert!(progress.0.elapsed() < PATIENCE, "stuck after {} completions", progress.1);
    }
    println!("{MESSAGES} messages in {:?}, {FAULT}", started.elapsed());
    for (side, end) in ends.iter().enumerate() {
        assert_eq!(word(&end.memory, WORD), directions[1 - side].added);
        let counters = end.qp.counters();
        println!("end {side}: {counters:?}");
        for (name, count) in [
            ("resends", counters.resent_pkts),
            ("sequence NAKs sent", counters.sent_seq_err),
            ("sequence NAKs acted upon", counters.rcvd_seq_err),
            ("implied NAKs", counters.implied_nak),
            ("duplicates", counters.duplicate_request),
            ("out of sequence", counters.out_of_seq_request),
        ] {
            assert_ne!(count, 0, "{name}");
        }
    }
}
