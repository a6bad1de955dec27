//! Two queue pairs of one process, over real sockets on lo.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use ferroce_engine::{SendOp, WcOpcode, WcStatus};
use ferroce_wire::{Imm, PathMtu};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

#[test]
fn sends_of_every_size_arrive() {
    for gid_index in [0, 1] {
        let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
        connect(&a, &b, gid_index, PathMtu::B4096);
        for (id, len) in [0, 1, 3, 8, 1023, 1024, 4096, 4097, 65_536, 1 << 20].into_iter().enumerate() {
            a.memory.fill(id, len);
            b.receive(id as u64, b.sge(0, 1 << 20));
            a.post(100, SendOp::SendImm(Imm([1, 2, 3, id as u8])), a.sge(0, len));
            let received = b.expect(id as u64, WcOpcode::Recv);
            assert_eq!((received.byte_len as usize, received.imm), (len, Some(Imm([1, 2, 3, id as u8]))));
            b.memory.check(id, len);
            a.expect(100, WcOpcode::Send);
        }
    }
}

#[test]
fn writes_reads_and_atomics() {
    let (a, b) = pair();
    a.memory.fill(1, 300_000);
    a.post(1, SendOp::Write { remote: b.remote(0) }, a.sge(0, 300_000));
    a.expect(1, WcOpcode::RdmaWrite);
    b.memory.check(1, 300_000);
    a.memory.fill(2, 300_000);
    a.post(2, SendOp::Read { remote: b.remote(0) }, a.sge(0, 300_000));
    a.expect(2, WcOpcode::RdmaRead);
    a.memory.check(1, 300_000);
    (0..8).for_each(|i| b.memory.set(i, 0));
    a.post(3, SendOp::FetchAdd { remote: b.remote(0), add: 5 }, a.sge(512, 8));
    a.expect(3, WcOpcode::FetchAdd);
    a.post(4, SendOp::CompareSwap { remote: b.remote(0), compare: 5, swap: 77 }, a.sge(512, 8));
    a.expect(4, WcOpcode::CompSwap);
    assert_eq!((a.memory.get(512), b.memory.get(0)), (5, 77));
}

/// Must-show 8: packets are dispatched in the order of arrival, whichever thread receives them.
#[test]
fn two_threads_on_two_queues_cause_no_sequence_nak() {
    let pairs: Vec<_> = (0..2).map(|_| pair()).collect();
    std::thread::scope(|scope| {
        for (a, b) in &pairs {
            scope.spawn(move || {
                for round in 0..2000_u64 {
                    b.receive(round, b.sge(0, 4096));
                    a.post(round, SendOp::Send, a.sge(0, 4096));
                    b.expect(round, WcOpcode::Recv);
                    a.expect(round, WcOpcode::Send);
                }
            });
        }
    });
    for (a, b) in &pairs {
        for end in [a, b] {
            let counters = end.qp.counters();
            assert_eq!((counters.out_of_seq_request, counters.rcvd_seq_err), (0, 0), "{counters:?}");
        }
    }
}

/// READs of memory that changes all the time, and as many WRITEs of it; the numbers in flight are per operation.
const HOT_READS: u64 = 100_000;
const HOT_IN_FLIGHT: u64 = 16;

/// Must-show 8: the octets that are hashed are the octets that are sent, even if another thread writes meanwhile. So
/// nothing is sent twice, neither for a NAK nor after a timeout; and a thread without the CPU has not waited.
#[test]
fn hot_memory_is_sent_whole() {
    let (a, b) = pair();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u8;
            while !done.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                (0..64).for_each(|i| b.memory.set(i, value));
                (0..64).for_each(|i| a.memory.set(4096 + i, value));
            }
        });
        let _stop = SetOnDrop(&done);
        for round in 0..HOT_READS / HOT_IN_FLIGHT {
            for _ in 0..HOT_IN_FLIGHT {
                a.post(round, SendOp::Read { remote: b.remote(0) }, a.sge(0, 64));
                a.post(round, SendOp::Write { remote: b.remote(8192) }, a.sge(4096, 64));
            }
            for _ in 0..HOT_IN_FLIGHT {
                a.expect(round, WcOpcode::RdmaRead);
                a.expect(round, WcOpcode::RdmaWrite);
            }
        }
    });
    let (mine, theirs) = (a.qp.counters(), b.qp.counters());
    assert_eq!(a.context.counters().rx_icrc_errors.load(Ordering::Relaxed), 0);
    assert_eq!(
        (mine.resent_pkts, mine.timeouts, mine.early_resends, mine.rcvd_seq_err),
        (0, 0, 0, 0),
        "{mine:?}"
    );
    assert_eq!((theirs.sent_seq_err, theirs.duplicate_request), (0, 0), "{theirs:?}");
}

#[test]
fn a_thread_that_sleeps_is_woken() {
    let events = || Wanted { events: true, ..Wanted::default() };
    let (a, b) = (End::new(events()), End::new(events()));
    connect(&a, &b, 0, PathMtu::B1024);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut received = 0;
            while received < 100 {
                let channel = b.channel.as_ref().unwrap();
                let cq = channel.get_event().unwrap();
                assert!(Arc::ptr_eq(&cq, &b.cq));
                cq.ack_events(1);
                b.cq.req_notify(false);
                let mut many = [blank(); 8];
                loop {
                    let count = b.cq.poll(&mut many).unwrap();
                    if count == 0 {
                        break;
                    }
                    received += count;
                }
            }
        });
        (0..100).for_each(|id| b.receive(id, b.sge(0, 64)));
        b.cq.req_notify(false);
        for id in 0..100 {
            a.post(id, SendOp::Send, a.sge(0, 64));
            a.expect(id, WcOpcode::Send);
            if id % 10 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        sleeper.join().unwrap();
    });
}

/// No thread of the program is inside a call: the background thread receives, and wakes the thread that sleeps on the
/// descriptor.
#[test]
fn completes_while_the_program_computes() {
    let events = || Wanted { events: true, ..Wanted::default() };
    let (a, b) = (End::new(events()), End::new(events()));
    connect(&a, &b, 0, PathMtu::B1024);
    let mut one = [blank()];
    for round in 0..20 {
        b.receive(round, b.sge(0, 64));
        a.cq.req_notify(false);
        b.cq.req_notify(false);
        a.post(round, SendOp::Send, a.sge(0, 64));
        for end in [&a, &b] {
            let channel = end.channel.as_ref().unwrap();
            let mut fds = [PollFd::new(channel.fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(5000_u16)).unwrap(), 1, "round {round}");
            channel.get_event().unwrap().ack_events(1);
            assert_eq!(end.cq.poll(&mut one).unwrap(), 1);
            assert_eq!((one[0].wr_id, one[0].status), (round, WcStatus::Success));
        }
    }
}

#[test]
fn batches_post_all_or_nothing() {
    let (a, b) = pair();
    (0..4).for_each(|id| b.receive(id, b.sge(0, 64)));
    let mut batch = a.qp.sender();
    let text = *b"inline data is copied at once...";
    let inline = ferroce_engine::Sge { addr: text.as_ptr() as u64, length: 32, lkey: a.mr.lkey() };
    let inline = [inline];
    let first = ferroce_engine::SendWr { inline: true, ..send(1, SendOp::Send, &inline) };
    batch.push(&first).unwrap();
    batch.push(&send(2, SendOp::Send, &[a.sge(0, 8)])).unwrap();
    batch.commit().unwrap();
    a.expect(1, WcOpcode::Send);
    a.expect(2, WcOpcode::Send);
    assert_eq!(b.expect(0, WcOpcode::Recv).byte_len, 32);
    assert_eq!(b.expect(1, WcOpcode::Recv).byte_len, 8);
    assert_eq!(b.memory.get(31), b'.');
    // The second is refused, so the first is not posted either.
    let mut batch = a.qp.sender();
    batch.push(&send(3, SendOp::Send, &[a.sge(0, 8)])).unwrap();
    batch.push(&send(4, SendOp::FetchAdd { remote: b.remote(1), add: 1 }, &[a.sge(0, 8)])).unwrap();
    assert!(batch.commit().is_err());
    let mut batch = a.qp.sender();
    batch.push(&send(5, SendOp::Send, &[a.sge(0, 8)])).unwrap();
    batch.abort();
    a.post(6, SendOp::Send, a.sge(0, 8));
    a.expect(6, WcOpcode::Send);
    b.expect(2, WcOpcode::Recv);
}
