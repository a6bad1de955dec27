//! Faults that are ordered while the program runs, by way of the broker.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::orders::*;
use common::*;
use ferroce_engine::{QpAttr, QpAttrMask, QpState, SendOp, Service, WcOpcode, WcStatus};
use ferroce_ipc::{ClientError, FaultOrder, FaultReport, RefusalCode};
use ferroce_wire::PathMtu;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LIMIT: Duration = Duration::from_secs(60);

/// The plan belongs to the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    force_udp();
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An end whose completions raise events, without retransmissions.
fn unreliable() -> End {
    End::new(Wanted { service: Service::Uc, events: true, ..Wanted::default() })
}

/// Sleeps, without a look at any queue, until the channel has an event.
fn sleeps_until_event(end: &End) -> bool {
    let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    let channel = end.channel.as_ref().unwrap();
    poll(&mut [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)], Some(&limit)) == Ok(1)
}

#[test]
fn held_packets_go_on_with_the_end_of_the_plan_though_the_program_sleeps() {
    let _alone = alone();
    for (rules, more) in [("hold if dir=tx,op=send", "sender"), ("hold if dir=rx,op=send", "receiver")] {
        let (a, b) = (unreliable(), unreliable());
        connect(&a, &b, 0, PathMtu::B1024);
        let last = apply(rules).unwrap();
        assert_eq!((last.rules.len(), last.rules[0].hits), (1, 0));
        b.receive(1, b.sge(0, 4096));
        b.cq.req_notify(false);
        a.memory.fill(5, 64);
        a.post(2, SendOp::Send, a.sge(0, 64));
        a.expect(2, WcOpcode::Send);
        eventually(more, || hits() == [1]);
        let ended = order(FaultOrder::Clear).unwrap();
        assert_eq!(ended.rules[0].hits, 1, "the last counts");
        assert!(sleeps_until_event(&b), "{rules}: the packet did not arrive");
        b.expect(1, WcOpcode::Recv);
        b.memory.check(5, 64);
        assert_eq!(order(FaultOrder::Show).unwrap(), FaultReport::default());
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_plan_replaces_the_earlier_one_and_a_wrong_one_does_not() {
    let _alone = alone();
    let (a, b) = pair();
    let first = order(FaultOrder::Apply {
        rules: "seed=3\nlate: drop if op=send,count=1 # one\ndup if op=cnp".to_owned(),
        seed: Some(9),
    });
    let first = first.unwrap();
    assert_eq!(first.seed, 9);
    let names: Vec<_> = first.rules.iter().map(|rule| (rule.name.as_str(), rule.text.as_str())).collect();
    assert_eq!(names, [("late", "drop if op=send,count=1"), ("", "dup if op=cnp")]);
    b.receive(1, b.sge(0, 4096));
    a.post(2, SendOp::Send, a.sge(0, 64));
    a.expect(2, WcOpcode::Send);
    // The rule has no direction: the packet was lost on its way out, and its copy on its way in.
    assert_eq!(hits(), [2, 0], "the second never hit");
    for wrong in ["drop 1%; dorp", "log=/proc/none/hits; drop 1%", &"#".repeat(40_000)] {
        match apply(wrong).unwrap_err() {
            ClientError::Refused(refusal) => assert_eq!(refusal.code, RefusalCode::Failed),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(hits(), [2, 0]);
    assert_eq!(apply("drop if op=cnp").unwrap().rules.len(), 1);
    order(FaultOrder::Clear).unwrap();
    assert_eq!(order(FaultOrder::Clear).unwrap(), FaultReport::default(), "twice");
}

#[test]
fn a_rule_for_a_device_acts_on_its_packets_alone() {
    let _alone = alone();
    let (a, b) = pair();
    let rules = "drop if dev=fr0,op=send,count=1; dup if dev!=fr0; dup if dev=fr1|fr2; drop if dev!=fr1,op=ack,count=1";
    apply(rules).unwrap();
    exchange(&a, &b);
    // The rules have no direction: a packet was lost on its way out, and another one on its way in.
    assert_eq!(clear(), [2, 0, 0, 2]);
}

#[test]
fn a_rule_for_a_device_acts_on_its_completions_alone() {
    let _alone = alone();
    let (a, b) = pair();
    apply("wc=REM_OP_ERR if dev!=fr0; wc=RETRY_EXC_ERR if dev=fr0,msg=1; kill=self if at=completion,dev=fr1")
        .unwrap();
    exchange(&a, &b);
    b.receive(3, b.sge(0, 4096));
    a.post(4, SendOp::Send, a.sge(0, 64));
    let completion = a.complete();
    assert_eq!((completion.wr_id, completion.status), (4, WcStatus::RetryExcErr), "{completion:?}");
    assert_eq!(clear(), [0, 1, 0]);
}

/// Two connected ends that agreed to selective repeat, or not.
fn agreed(selective_repeat: bool) -> (End, End) {
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    [&a, &b].into_iter().for_each(|end| to_init(&end.qp));
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let attr = rtr(address(&end.context, &peer.qp, 0), 0, PathMtu::B1024);
        bring_up(&end.qp, &QpAttr { selective_repeat, ..attr });
    }
    (a, b)
}

/// The last ACK of a queue pair is lost, and no repeat of the request arrives before the queue pair is gone. Without copies of that ACK the
/// requester of a message that was received gets `RETRY_EXC_ERR`.
#[test]
fn the_last_ack_may_get_lost_when_the_queue_pair_ends() {
    let _alone = alone();
    // `None`: the queue pair is destroyed.
    for end in [None, Some(QpState::Error), Some(QpState::Reset)] {
        for selective_repeat in [true, false] {
            let (a, b) = agreed(selective_repeat);
            apply("drop if dir=tx,op=ack,nth=1; drop if dir=rx,op=send,iter=2..255").unwrap();
            b.receive(1, b.sge(0, 4096));
            a.post(2, SendOp::Send, a.sge(0, 64));
            b.expect(1, WcOpcode::Recv);
            eventually("the ACK", || hits()[0] == 1);
            match end {
                None => b.qp.destroy(),
                Some(state) => {
                    b.qp.modify(&QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
                }
            }
            let expected = if selective_repeat { WcStatus::Success } else { WcStatus::RetryExcErr };
            let completion = a.complete();
            assert_eq!((completion.wr_id, completion.status), (2, expected), "{end:?}");
            clear();
        }
    }
}
