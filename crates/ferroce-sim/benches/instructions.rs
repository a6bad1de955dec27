//! The packet path as `cargo xtask test --only instructions` counts its instructions, under valgrind: `instructions CASE COUNT`.
//!
//! Two queue pairs of one thread exchange packets. Only the functions [`post`], [`receive`] and [`complete`] are counted, each by
//! a run of its own. The ICRC is computed and checked as on a socket.

// Of this crate, so that the compiler can inline the memory: a tenth of the instructions of a small message.
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../src/ram.rs"]
mod ram;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../ferroce-proto/tests/rc/world.rs"]
mod world;

use std::time::Duration;

use ferroce_proto::{NoSharedQueue, QpState, QueuePair, RecvWr, Remote, SendOp, SendWr, Sge};
use ferroce_wire::icrc::{IcrcChecker, Starts, Verdict};
use ferroce_wire::{BatchLimits, IcrcStatus, Instant, Lkey, Packet, PathMtu, Rkey, TxBatch};

use crate::ram::Ram;
use crate::world::{Setup, flow};

const KEY: u32 = 7;
const MAX: usize = 64 << 10;

struct End {
    qp: QueuePair,
    ram: Ram,
    icrc: IcrcChecker,
}

/// Packets under way: the segments of a batch.
struct Wire {
    bytes: Vec<u8>,
    segment: usize,
}

/// Posts work requests and makes their packets.
#[inline(never)]
fn post(end: &mut End, now: Instant, wr: &SendWr<'_>, count: usize, batch: &mut TxBatch<'_>) {
    for _ in 0..count {
        end.qp.post_send(wr, &end.ram).expect("a free place in the send queue");
    }
    assert!(end.qp.poll_transmit(now, &mut end.ram, batch));
}

/// Takes packets of requests: afterwards the message is there, its completion is read, and the answer is made.
#[inline(never)]
fn receive(end: &mut End, now: Instant, wire: &Wire, batch: &mut TxBatch<'_>) {
    take(end, now, 0, wire);
    while end.qp.poll_event().is_some() {}
    end.qp.poll_transmit(now, &mut end.ram, batch);
}

/// Takes the answers, and the completions that they make.
#[inline(never)]
fn complete(end: &mut End, now: Instant, wire: &Wire) -> usize {
    take(end, now, 1, wire);
    std::iter::from_fn(|| end.qp.poll_event()).count()
}

fn take(end: &mut End, now: Instant, from: usize, wire: &Wire) {
    let flow = flow(from);
    for segment in wire.bytes.chunks(wire.segment) {
        assert!(!matches!(end.icrc.check(&flow, segment), Verdict::Bad));
        let mut packet = Packet::parse(segment).expect("a packet of our own");
        packet.icrc = IcrcStatus::Checked;
        end.qp
            .handle_datagram(now, &flow, &packet, &mut NoSharedQueue, &mut end.ram)
            .expect("no packet is dropped");
    }
}

/// The bytes of a batch, which the receiver has in a buffer of its own.
fn sent(batch: &TxBatch<'_>, wire: &mut Wire) {
    wire.bytes.clear();
    wire.bytes.extend_from_slice(batch.bytes());
    wire.segment = batch.segment_size().max(1);
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (Some(case), Some(count)) = (arguments.next(), arguments.next()) else {
        eprintln!("instructions CASE COUNT; `cargo xtask test --only instructions` runs it");
        return;
    };
    let count: usize = count.parse().expect("a number");
    let remote = Remote { addr: 0, rkey: Rkey::new(KEY) };
    let (op, length, at_once) = match case.as_str() {
        "write-8" => (SendOp::Write { remote }, 8, 1),
        "write-8-32" => (SendOp::Write { remote }, 8, 32),
        "send-8" => (SendOp::Send, 8, 1),
        "write-4096" => (SendOp::Write { remote }, 4096, 1),
        "send-4096" => (SendOp::Send, 4096, 1),
        "read-4096" => (SendOp::Read { remote }, 4096, 1),
        other => panic!("no case {other}"),
    };
    exchange(op, length, at_once, count);
}

fn exchange(op: SendOp, length: u32, at_once: usize, count: usize) {
    let setup = Setup { mtu: PathMtu::B4096, rcvbuf: 4 << 20, ..Setup::default() };
    let [mut a, mut b] = [0, 1].map(|side| {
        let mut qp = setup.queue_pair(side);
        setup.bring(&mut qp, side, QpState::Rts);
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; MAX]);
        End { qp, ram, icrc: IcrcChecker::new() }
    });
    let sges = [Sge { addr: 0, length, lkey: Lkey::new(KEY) }];
    let wr = SendWr::signaled(0, op, &sges);
    let (mut requests, mut answers) = (vec![0; MAX], vec![0; MAX]);
    let mut wire = Wire { bytes: Vec::with_capacity(MAX), segment: 1 };
    let mut starts = [Starts::new(), Starts::new()];
    let mut now = Instant::ZERO;
    let mut done = 0;
    while done < count {
        now += Duration::from_micros(10);
        if op == SendOp::Send {
            for _ in 0..at_once {
                b.qp.post_recv(&RecvWr { wr_id: 0, sges: &sges }).expect("a free place in the receive queue");
            }
        }
        let limits = BatchLimits { max_segments: 64, gso: true };
        let mut batch = TxBatch::with_starts(&mut requests, limits, &mut starts[0]);
        post(&mut a, now, &wr, at_once, &mut batch);
        sent(&batch, &mut wire);
        let mut batch = TxBatch::with_starts(&mut answers, limits, &mut starts[1]);
        receive(&mut b, now, &wire, &mut batch);
        sent(&batch, &mut wire);
        let completed = complete(&mut a, now, &wire);
        assert_eq!(completed, at_once);
        done += completed;
    }
}
