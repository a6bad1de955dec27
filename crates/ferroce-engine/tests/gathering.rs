//! Over the wire, small messages that are posted one by one may wait to fill a batch. All of them leave, whatever the program does next.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{QpAttr, QpAttrMask, QpState, SendOp, SendWr, WcOpcode, WcStatus};
use ferroce_wire::PathMtu;

/// Enough that some wait, and no full batch.
const SOME: usize = 40;
const LEN: usize = 8;

/// Two ends with room for many requests.
fn ends(events: bool) -> (End, End) {
    force_udp();
    let wanted = || Wanted { cqe: 1024, wr: 512, events, ..Wanted::default() };
    let (a, b) = (End::new(wanted()), End::new(wanted()));
    connect(&a, &b, 0, PathMtu::B1024);
    (a, b)
}

/// Posts `count` writes of 8 octets one by one, each to its own place; only the last one is signaled.
fn write(from: &End, to: &End, seed: usize, count: usize) {
    from.memory.fill(seed, count * LEN);
    for place in 0..count {
        let at = place * LEN;
        let op = SendOp::Write { remote: to.remote(at) };
        let sges = [from.sge(at, LEN)];
        let wr = SendWr { signaled: place + 1 == count, ..send(seed as u64, op, &sges) };
        from.qp.post_send([wr]).unwrap();
    }
}

/// Looks at memory alone until everything is there.
fn wait_for(to: &End, seed: usize, count: usize) {
    let expected = Memory::new(count * LEN);
    expected.fill(seed, count * LEN);
    let start = Instant::now();
    while (0..count * LEN).any(|at| to.memory.get(at) != expected.get(at)) {
        assert!(start.elapsed() < PATIENCE, "a message does not leave");
        std::thread::yield_now();
    }
}

#[test]
fn messages_leave_though_the_program_only_looks_at_its_memory() {
    let (a, b) = ends(false);
    for seed in 1..200 {
        write(&a, &b, seed, 1 + seed);
        wait_for(&b, seed, 1 + seed);
        a.expect(seed as u64, WcOpcode::RdmaWrite);
    }
}

#[test]
fn messages_leave_though_the_program_polled_shortly_before() {
    let (a, b) = ends(false);
    for seed in 1..200 {
        write(&a, &b, seed, SOME);
        // Not enough to be sure that it is empty.
        a.cq.poll(&mut [blank(); 4]).unwrap();
        wait_for(&b, seed, SOME);
    }
}

#[test]
fn messages_leave_before_a_sleep() {
    let (a, b) = ends(true);
    for seed in 1..100 {
        a.cq.req_notify(false);
        write(&a, &b, seed, SOME);
        let queue = a.channel.as_ref().unwrap().get_event().unwrap();
        queue.ack_events(1);
        a.expect(seed as u64, WcOpcode::RdmaWrite);
        wait_for(&b, seed, SOME);
    }
}

#[test]
fn messages_leave_before_the_queue_pair_ends() {
    for seed in 1..40 {
        let (a, b) = ends(false);
        write(&a, &b, seed, SOME);
        a.qp.destroy();
        wait_for(&b, seed, SOME);
    }
}

#[test]
fn messages_leave_before_the_queue_pair_changes() {
    for (seed, state) in
        [QpState::Error, QpState::Sqd, QpState::Reset].into_iter().cycle().take(40).enumerate()
    {
        let (a, b) = ends(false);
        write(&a, &b, seed + 1, SOME);
        a.qp.modify(&QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
        wait_for(&b, seed + 1, SOME);
    }
}

/// The order is that of the posts, whatever the sizes, and every completion comes.
#[test]
fn order_is_kept_through_all_sizes() {
    let (a, b) = ends(false);
    let length = |id: u64| [8, 8, 8, 8, 700, 8, 0, 3000, 1024, 12][(id * 7 % 10) as usize];
    const TOTAL: u64 = 20_000;
    const WINDOW: u64 = 200;
    let (mut posted, mut sent, mut arrived) = (0, 0, 0);
    (0..WINDOW).for_each(|id| b.receive(id, b.sge(0, 4096)));
    let start = Instant::now();
    while sent < TOTAL || arrived < TOTAL {
        assert!(start.elapsed() < 3 * PATIENCE, "{posted} posted, {sent} sent, {arrived} arrived");
        // A burst of posts, now and then one alone.
        let burst = [1, 70, 3, 15, 130][(posted % 5) as usize];
        for _ in 0..burst {
            if posted < TOTAL && posted - arrived.min(sent) < WINDOW {
                a.post(posted, SendOp::Send, a.sge(0, length(posted)));
                posted += 1;
            }
        }
        let mut found = [blank(); 16];
        let count = a.cq.poll(&mut found).unwrap();
        for completion in &found[..count] {
            assert_eq!((completion.wr_id, completion.status), (sent, WcStatus::Success));
            sent += 1;
        }
        let count = b.cq.poll(&mut found).unwrap();
        for completion in &found[..count] {
            assert_eq!(completion.status, WcStatus::Success);
            assert_eq!(completion.byte_len as usize, length(arrived), "message {arrived}");
            b.receive(arrived, b.sge(0, 4096));
            arrived += 1;
        }
    }
}

/// Reads and atomics wait as writes do, and none of them waits for ever.
#[test]
fn reads_and_atomics_leave() {
    let (a, b) = ends(false);
    b.memory.fill(5, SOME * LEN);
    for round in 0..100_u64 {
        for place in 0..SOME {
            let at = place * LEN;
            let remote = b.remote(at);
            let op =
                if place % 3 == 2 { SendOp::FetchAdd { remote, add: 0 } } else { SendOp::Read { remote } };
            let sges = [a.sge(at, LEN)];
            let wr = SendWr { signaled: place + 1 == SOME, ..send(round, op, &sges) };
            a.qp.post_send([wr]).unwrap();
        }
        wait_for(&a, 5, SOME);
        let start = Instant::now();
        while a.cq.poll(&mut [blank()]).unwrap() == 0 {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_micros(50));
        }
        a.memory.fill(round as usize + 6, SOME * LEN);
    }
}
