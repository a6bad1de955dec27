//! Messages of iWARP that arrive before the program posts a receive for them.
//!
//! Each test runs in a network namespace of its own, where the test makes the device.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::streams::{CRC, Pair, inside, next, pair};
use ferroce_engine::cm::EventKind;
use ferroce_engine::{QpState, SendOp, WcOpcode, WcStatus};

const LEN: usize = 60_000;

/// The receiver posts one receive at a time, and late. Small and large messages come in order, and the reader's pause slows the sender down.
#[test]
fn receives_that_are_late() {
    inside("receives_that_are_late", || {
        let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } = pair(256, 1 << 20);
        let lengths: Vec<usize> = (0..200).map(|n| if n % 3 == 0 { LEN } else { n }).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                a.memory.fill(9, LEN);
                for (number, len) in lengths.iter().enumerate() {
                    a.post(number as u64, SendOp::Send, a.sge(0, *len));
                }
                for number in 0..lengths.len() {
                    a.expect(number as u64, WcOpcode::Send);
                }
            });
            for (number, len) in lengths.iter().enumerate() {
                if number % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(100));
                }
                b.receive(number as u64, b.sge(0, LEN));
                assert_eq!(b.expect(number as u64, WcOpcode::Recv).byte_len as usize, *len);
                b.memory.check(9, *len);
            }
        });
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    });
}

/// Without a CRC, where payload arrives in place.
#[test]
fn receives_that_are_late_without_crc() {
    CRC.store(false, std::sync::atomic::Ordering::Relaxed);
    inside("receives_that_are_late_without_crc", || {
        let Pair { active: (a, _connection, _), passive: (b, _other, _), .. } = pair(64, 1 << 20);
        a.memory.fill(5, 500_000);
        for number in 0..10 {
            a.post(number, SendOp::Send, a.sge(0, 500_000));
            // A WRITE behind it waits with it, and both directions go on afterwards.
            a.post(100, SendOp::Write { remote: b.remote(600_000) }, a.sge(0, 8));
            std::thread::sleep(Duration::from_millis(20));
            b.receive(number, b.sge(0, 500_000));
            assert_eq!(b.expect(number, WcOpcode::Recv).byte_len, 500_000);
            b.memory.check(5, 500_000);
            a.expect(number, WcOpcode::Send);
            a.expect(100, WcOpcode::RdmaWrite);
            a.receive(7, a.sge(700_000, 8));
            b.post(8, SendOp::Send, b.sge(0, 8));
            b.expect(8, WcOpcode::Send);
            a.expect(7, WcOpcode::Recv);
        }
    });
}

/// The stream ends if no receive comes at all (RFC 5041 section 7.2), for both ends.
#[test]
fn no_receive_ends_the_connection() {
    inside("no_receive_ends_the_connection", || {
        let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } = pair(8, 1 << 20);
        a.post(1, SendOp::Send, a.sge(0, LEN));
        a.expect(1, WcOpcode::Send);
        a.receive(2, a.sge(0, LEN));
        let begin = Instant::now();
        assert!(
            matches!(next(&others), EventKind::Disconnected(_))
                && matches!(next(&events), EventKind::Disconnected(_))
        );
        assert!(begin.elapsed() > Duration::from_millis(500), "the message waited");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        let flushed = a.complete();
        assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
    });
}

/// A program may give up while a message waits, and so may the peer.
#[test]
fn a_connection_ends_while_a_message_waits() {
    inside("a_connection_ends_while_a_message_waits", || {
        let Pair { active: (a, connection, events), passive: (b, other, others), .. } = pair(8, 1 << 20);
        a.post(1, SendOp::Send, a.sge(0, LEN));
        a.expect(1, WcOpcode::Send);
        std::thread::sleep(Duration::from_millis(50));
        other.disconnect().unwrap();
        assert!(
            matches!(next(&others), EventKind::Disconnected(_))
                && matches!(next(&events), EventKind::Disconnected(_))
        );
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        drop((connection, other));
    });
}
