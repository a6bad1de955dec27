//! A queue pair of this process is not silent because the thread that would have heard its answer did not run.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{SendOp, WcOpcode};

/// Longer than a requester with a round trip of microseconds waits for an answer, and shorter than the millisecond after which the
/// background thread looks.
const STOPPED: Duration = Duration::from_micros(500);
/// Messages from which the requester learns that round trip.
const QUICK: u64 = 50;
/// Tries with new queue pairs: one that has sent again in vain becomes more patient, and would tell no more.
const TRIES: usize = 20;

/// The thread runs, but does not call ferroce: as if the kernel had stopped it.
fn stopped() {
    let start = Instant::now();
    while start.elapsed() < STOPPED {
        std::hint::spin_loop();
    }
}

fn assert_nothing_sent_twice((a, _): &(End, End)) {
    let counters = a.qp.counters();
    assert_eq!((counters.resent_pkts, counters.early_resends, counters.timeouts), (0, 0, 0), "{counters:?}");
}

fn post_both((a, b): &(End, End), round: u64) {
    a.post(round, SendOp::Read { remote: b.remote(0) }, a.sge(0, 64));
    a.post(round, SendOp::Write { remote: b.remote(8192) }, a.sge(4096, 64));
}

fn expect_both((a, _): &(End, End), round: u64) {
    a.expect(round, WcOpcode::RdmaRead);
    a.expect(round, WcOpcode::RdmaWrite);
}

/// Each request is posted alone and answered alone, so the answer to the first stands behind all requests.
#[test]
fn an_answer_behind_many_small_requests_has_come() {
    const AT_ONCE: u64 = 16;
    for _ in 0..TRIES {
        let pairs: [_; 3] = std::array::from_fn(|_| pair());
        for pair in &pairs {
            for round in 0..QUICK {
                post_both(pair, round);
                expect_both(pair, round);
            }
        }
        pairs.iter().for_each(|pair| (0..AT_ONCE).for_each(|round| post_both(pair, round)));
        stopped();
        pairs.iter().for_each(|pair| (0..AT_ONCE).for_each(|round| expect_both(pair, round)));
        pairs.iter().for_each(assert_nothing_sent_twice);
    }
}

/// The responder of this process has the request and puts off its acknowledgement, for the program's answer.
#[test]
fn an_acknowledgement_that_is_put_off_here_is_no_silence() {
    for _ in 0..TRIES {
        let pair = pair();
        let (a, b) = &pair;
        for round in 0..=QUICK {
            b.receive(round, b.sge(0, 64));
            a.post(round, SendOp::Send, a.sge(0, 64));
            if round == QUICK {
                stopped();
            }
            b.expect(round, WcOpcode::Recv);
            a.expect(round, WcOpcode::Send);
        }
        assert_nothing_sent_twice(&pair);
    }
}
