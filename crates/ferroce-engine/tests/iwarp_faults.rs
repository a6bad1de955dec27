//! Rules of faults that act on queue pairs of iWARP as on those of RoCE.
//!
//! Each test runs in a network namespace of its own, where the test makes the device.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use common::orders::*;
use common::streams::{Pair, inside, next, pair};
use common::*;
use ferroce_engine::cm::EventKind;
use ferroce_engine::faults::Verb;
use ferroce_engine::{QpState, SendOp, WcOpcode, WcStatus};

/// Set for a process that dies by its rules.
const DOOMED: &str = "IWARP_TEST_DOOMED";

/// The connection ends too: its peer sees the end, and both ends are told.
#[test]
fn a_work_request_that_fails_ends_the_connection() {
    inside("a_work_request_that_fails_ends_the_connection", || {
        let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } = pair(16, 1 << 16);
        apply("wc=RETRY_EXC_ERR if msg=1,dev=iw0,qp=0; wc=REM_OP_ERR if dev!=iw0").unwrap();
        exchange(&a, &b);
        b.receive(3, b.sge(0, 4096));
        b.receive(4, b.sge(0, 4096));
        a.receive(5, a.sge(0, 4096));
        a.post(6, SendOp::Send, a.sge(0, 64));
        let failed = a.complete();
        assert_eq!((failed.wr_id, failed.status), (6, WcStatus::RetryExcErr), "{failed:?}");
        let flushed = a.complete();
        assert_eq!((flushed.wr_id, flushed.status), (5, WcStatus::WrFlushErr), "{flushed:?}");
        assert!(
            matches!(next(&events), EventKind::Disconnected(_))
                && matches!(next(&others), EventKind::Disconnected(_))
        );
        // TCP had taken the message before.
        b.expect(3, WcOpcode::Recv);
        let flushed = b.complete();
        assert_eq!((flushed.wr_id, flushed.status), (4, WcStatus::WrFlushErr), "{flushed:?}");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        assert_eq!(clear(), [1, 0]);
    });
}

#[test]
fn calls_fail_by_device_and_queue_pair() {
    inside("calls_fail_by_device_and_queue_pair", || {
        let Pair { active: (a, ..), passive: (b, ..), .. } = pair(16, 1 << 16);
        let rules = "fail=ENOMEM if verb=reg_mr,dev=iw0; fail=EIO if verb=reg_mr,dev!=iw0; fail=EAGAIN if verb=post_send,qp=1";
        apply(rules).unwrap();
        assert_eq!(a.context.judge(Verb::RegMr), Some(12));
        assert_eq!(open().judge(Verb::RegMr), Some(5));
        assert_eq!((a.qp.judge(Verb::PostSend), b.qp.judge(Verb::PostSend)), (None, Some(11)));
        assert_eq!(clear(), [1, 1, 1]);
    });
}

/// A process that dies says which rule killed it.
#[test]
fn processes_die_at_moments_of_queue_pairs() {
    inside("processes_die_at_moments_of_queue_pairs", || {
        if std::env::var_os(DOOMED).is_some() {
            let pair = pair(16, 1 << 16);
            (0..9).for_each(|_| exchange(&pair.active.0, &pair.passive.0));
            std::process::exit(0);
        }
        for rule in ["kill=self if at=rts,nth=2,dev=iw0", "kill=self if at=completion,qp=0,msg=7"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "processes_die_at_moments_of_queue_pairs", "--nocapture"]);
            let ended = command.env(DOOMED, "1").env("FERROCE_FAULT", rule).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.signal(), Some(9), "{rule}: {}\n{said}", ended.status);
            assert!(said.contains(&format!("1 hits, 1 matched: {rule}")), "{said}");
        }
    });
}

/// The end that sends breaks the connection within an FPDU: what it had sent before arrives, and both ends are told.
#[test]
fn a_connection_is_cut_within_a_message() {
    inside("a_connection_is_cut_within_a_message", || {
        let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } = pair(16, 1 << 20);
        apply("cut if dir=tx,op=send,msg=1,pos=last; drop; dup; hold if dev=iw0").unwrap();
        exchange(&a, &b);
        b.receive(3, b.sge(0, 200_000));
        a.post(4, SendOp::Send, a.sge(0, 200_000));
        let failed = a.complete();
        assert_eq!((failed.wr_id, failed.status), (4, WcStatus::WrFlushErr), "{failed:?}");
        assert!(
            matches!(next(&events), EventKind::Disconnected(_))
                && matches!(next(&others), EventKind::Disconnected(_))
        );
        let flushed = b.complete();
        assert_eq!((flushed.wr_id, flushed.status), (3, WcStatus::WrFlushErr), "{flushed:?}");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        assert_eq!(clear(), [1, 0, 0, 0], "TCP repeats what is lost");
    });
}

/// The CRC of MPA finds the octet, and the receiver ends the connection (RFC 5044 section 8); nothing of the message is delivered.
#[test]
fn a_corrupt_octet_ends_the_connection() {
    inside("a_corrupt_octet_ends_the_connection", || {
        for rule in [
            "corrupt if op=send,msg=1",
            "corrupt at=payload if op=send,nth=2",
            "corrupt at=3/0 if op=send,nth=2",
        ] {
            let Pair { active: (a, _connection, events), passive: (b, _other, others), .. } =
                pair(16, 1 << 16);
            apply(rule).unwrap();
            exchange(&a, &b);
            b.receive(3, b.sge(0, 4096));
            a.post(4, SendOp::Send, a.sge(0, 64));
            // TCP has the message.
            a.expect(4, WcOpcode::Send);
            let flushed = b.complete();
            assert_eq!((flushed.wr_id, flushed.status), (3, WcStatus::WrFlushErr), "{rule}: {flushed:?}");
            assert!(
                matches!(next(&others), EventKind::Disconnected(_))
                    && matches!(next(&events), EventKind::Disconnected(_))
            );
            assert_eq!(clear(), [1], "{rule}");
        }
    });
}

/// FPDUs behind a late one wait for it. The wait ends with the plan, with the disconnect, and by itself.
#[test]
fn late_octets_arrive_in_order() {
    inside("late_octets_arrive_in_order", || {
        let Pair { active: (a, connection, events), passive: (b, _other, others), .. } = pair(16, 1 << 20);
        let write = |seed: usize, wr_id| {
            a.memory.fill(seed, 150_000);
            a.post(wr_id, SendOp::Write { remote: b.remote(0) }, a.sge(0, 150_000));
            b.receive(1, b.sge(200_000, 64));
            a.post(wr_id + 1, SendOp::Send, a.sge(0, 64));
        };
        let arrives = |seed: usize, wr_id| {
            a.expect(wr_id, WcOpcode::RdmaWrite);
            a.expect(wr_id + 1, WcOpcode::Send);
            b.expect(1, WcOpcode::Recv);
            b.memory.check(seed, 150_000);
        };
        apply("delay=30ms if op=write,nth=2|3").unwrap();
        write(1, 10);
        arrives(1, 10);
        assert_eq!(clear(), [2]);

        apply("delay=3600s if op=write,pos=middle,count=1").unwrap();
        write(2, 20);
        assert_eq!(hits(), [1]);
        let mut none = [blank()];
        assert_eq!(b.cq.poll(&mut none).unwrap(), 0, "{none:?}");
        assert_eq!(clear(), [1]);
        arrives(2, 20);

        apply("delay=3600s if op=send,count=1").unwrap();
        write(3, 30);
        assert_eq!(hits(), [1]);
        connection.disconnect().unwrap();
        assert!(
            matches!(next(&events), EventKind::Disconnected(_))
                && matches!(next(&others), EventKind::Disconnected(_))
        );
        b.expect(1, WcOpcode::Recv);
        b.memory.check(3, 150_000);
    });
}
