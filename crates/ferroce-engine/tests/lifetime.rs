//! Making and ending objects: order, waiting, limits, leaks.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::error::{Busy, CqError, CreateQpError, EventError, ModifyQpError, Overrun};
use ferroce_engine::{
    AsyncElement, AsyncEventKind, QpAttr, QpAttrMask, QpState, RecvWr, SendOp, WcOpcode, WcStatus,
};
use ferroce_wire::PathMtu;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

#[test]
fn what_is_used_is_not_ended() {
    let end = End::new(Wanted { events: true, ..Wanted::default() });
    assert_eq!(end.cq.destroy(), Err(Busy { users: 2 }));
    assert_eq!(end.pd.dealloc(), Err(Busy { users: 2 }));
    assert_eq!(end.channel.as_ref().unwrap().destroy(), Err(Busy { users: 1 }));
    end.qp.destroy();
    end.qp.destroy();
    assert_eq!(end.pd.dealloc(), Err(Busy { users: 1 }));
    end.mr.dereg().unwrap();
    end.mr.dereg().unwrap();
    end.pd.dealloc().unwrap();
    end.cq.destroy().unwrap();
    end.channel.as_ref().unwrap().destroy().unwrap();
    assert!(end.qp.post_recv([RecvWr { wr_id: 1, sges: &[] }]).is_err());
}

#[test]
fn destroying_a_queue_pair_takes_its_completions() {
    let (a, b) = pair();
    b.receive(1, b.sge(0, 64));
    a.post(1, SendOp::Send, a.sge(0, 64));
    a.expect(1, WcOpcode::Send);
    b.qp.destroy();
    assert_eq!(b.cq.poll(&mut [blank()]).unwrap(), 0);
}

#[test]
fn a_dead_device_carries_nothing() {
    let (a, b) = pair();
    b.receive(1, b.sge(0, 64));
    b.context.report_fatal();
    assert_eq!(b.qp.state(), QpState::Error);
    assert_eq!(b.complete().status, WcStatus::WrFlushErr);
    // The peer gets no answer any more.
    b.memory.set(0, 1);
    a.memory.set(0, 2);
    a.post(1, SendOp::Write { remote: b.remote(0) }, a.sge(0, 64));
    assert_eq!((a.complete().status, b.memory.get(0)), (WcStatus::RetryExcErr, 1));
    // Nothing brings its queue pairs back, old or new.
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    b.qp.modify(&reset, QpAttrMask::STATE).unwrap();
    let late = b.pd.create_qp(init(&b.cq, &b.cq, 8)).unwrap();
    for qp in [&b.qp, &late] {
        let init = QpAttr { state: QpState::Init, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        assert!(matches!(qp.modify(&init, mask), Err(ModifyQpError::Destroyed)));
    }
    // It is told once.
    b.context.report_fatal();
    let events = b.context.async_events();
    fcntl(events.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    assert_eq!(events.get().unwrap().kind, AsyncEventKind::DeviceFatal);
    assert!(is_ended(&events.get().map(drop).unwrap_err()));
}

fn is_ended(error: &EventError) -> bool {
    matches!(error, EventError::Io(error) if error.raw_os_error() == Some(libc::EIO))
}

#[test]
fn the_death_of_a_device_wakes_each_wait() {
    let end = End::new(Wanted { events: true, ..Wanted::default() });
    let channel = end.channel.as_ref().unwrap();
    let about_to_wait = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        let waits = [
            scope.spawn(|| {
                about_to_wait.wait();
                channel.get_event().map(drop)
            }),
            scope.spawn(|| {
                about_to_wait.wait();
                let events = end.context.async_events();
                assert_eq!(events.get()?.kind, AsyncEventKind::DeviceFatal);
                events.get().map(drop)
            }),
            scope.spawn(|| {
                about_to_wait.wait();
                // A sleep may end early.
                loop {
                    end.cq.sleep()?;
                }
            }),
        ];
        about_to_wait.wait();
        end.context.report_fatal();
        for wait in waits {
            assert!(is_ended(&wait.join().unwrap().unwrap_err()));
        }
    });
    let late = end.context.create_channel().unwrap();
    assert!(is_ended(&late.get_event().map(drop).unwrap_err()));
}

#[test]
fn overflow_is_an_event_and_the_end() {
    let a = End::new(Wanted::default());
    let b = End::new(Wanted { cqe: 2, ..Wanted::default() });
    connect(&a, &b, 0, PathMtu::B1024);
    (0..4).for_each(|id| b.receive(id, b.sge(0, 64)));
    (0..3).for_each(|id| a.post(id, SendOp::Send, a.sge(0, 64)));
    // Two fit, the third does not.
    let start = Instant::now();
    while b.qp.state() != QpState::Error {
        assert!(start.elapsed() < PATIENCE);
        a.cq.poll(&mut [blank()]).unwrap();
        std::thread::yield_now();
    }
    let mut kinds = Vec::new();
    let events = b.context.async_events();
    fcntl(events.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    loop {
        match events.get() {
            Ok(event) => {
                match &event.element {
                    AsyncElement::Qp(qp) => assert_eq!(qp.user(), 9),
                    AsyncElement::Cq(cq) => assert_eq!(cq.user(), 7),
                    AsyncElement::SharedQp(_)
                    | AsyncElement::Srq(_)
                    | AsyncElement::Port(_)
                    | AsyncElement::Device => {}
                }
                kinds.push(event.kind);
                events.ack(&event);
            }
            Err(EventError::WouldBlock) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(kinds.contains(&AsyncEventKind::CqErr), "{kinds:?}");
    assert!(kinds.contains(&AsyncEventKind::QpFatal), "{kinds:?}");
    let mut many = [blank(); 4];
    assert_eq!(b.cq.poll(&mut many).unwrap(), 2);
    assert_eq!(many[0].status, WcStatus::Success);
    assert_eq!(b.cq.poll(&mut many), Err(Overrun));
    b.qp.destroy();
    b.cq.destroy().unwrap();
}

#[test]
fn destroying_waits_for_acknowledgements() {
    let (a, b) = pair();
    let channel = b.context.create_channel().unwrap();
    let cq = b.context.create_cq(4, 0, Some(&channel), 0).unwrap();
    let receiver = b.pd.create_qp(init(&cq, &cq, 4)).unwrap();
    to_init(&a.qp.pd().create_qp(init(&a.cq, &a.cq, 1)).unwrap());
    let sender = a.pd.create_qp(init(&a.cq, &a.cq, 4)).unwrap();
    connect_qps(&a.context, &sender, &receiver, 0, PathMtu::B1024);
    receiver.post_recv([RecvWr { wr_id: 1, sges: &[b.sge(0, 8)] }]).unwrap();
    cq.req_notify(false);
    sender.post_send([send(1, SendOp::Send, &[a.sge(0, 8)])]).unwrap();
    let event = channel.get_event().unwrap();
    receiver.destroy();
    let acknowledged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            acknowledged.store(true, Ordering::SeqCst);
            event.ack_events(1);
        });
        cq.destroy().unwrap();
        assert!(acknowledged.load(Ordering::SeqCst));
    });
    channel.destroy().unwrap();
}

#[test]
fn a_non_blocking_channel_says_so() {
    let end = End::new(Wanted { events: true, ..Wanted::default() });
    let channel = end.channel.as_ref().unwrap();
    fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    assert!(matches!(channel.get_event(), Err(EventError::WouldBlock)));
}

/// Solicited or unsuccessful completions fire a solicited request, others do not; completions that
/// are there already fire nothing.
#[test]
fn events_are_as_asked_for() {
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted { events: true, ..Wanted::default() }));
    connect(&a, &b, 0, PathMtu::B1024);
    let channel = b.channel.as_ref().unwrap();
    fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let exchange = |solicited: bool| {
        b.receive(1, b.sge(0, 8));
        let sges = [a.sge(0, 8)];
        let wr = ferroce_engine::SendWr { solicited, ..send(1, SendOp::Send, &sges) };
        a.qp.post_send([wr]).unwrap();
        a.expect(1, WcOpcode::Send);
    };
    let fired = || match channel.get_event() {
        Ok(cq) => {
            cq.ack_events(1);
            true
        }
        Err(EventError::WouldBlock) => false,
        Err(error) => panic!("{error}"),
    };
    exchange(false);
    assert!(!fired(), "not armed");
    b.cq.req_notify(false);
    assert!(!fired(), "what was there before does not count");
    exchange(false);
    assert!(fired());
    exchange(false);
    assert!(!fired(), "one request, one event");
    b.cq.req_notify(true);
    exchange(false);
    assert!(!fired(), "not solicited");
    exchange(true);
    assert!(fired());
    b.cq.req_notify(false);
    b.cq.req_notify(true);
    exchange(false);
    assert!(fired(), "any wins over solicited");
    b.cq.req_notify(true);
    b.receive(2, b.sge(0, 8));
    b.qp.modify(
        &ferroce_engine::QpAttr { state: QpState::Error, ..Default::default() },
        ferroce_engine::QpAttrMask::STATE,
    )
    .unwrap();
    assert!(fired(), "a flushed receive is unsuccessful");
}

#[test]
fn reported_limits_can_be_created() {
    let context = open();
    let attr = context.attr();
    let cq = context.create_cq(attr.max_cqe, 0, None, attr.num_comp_vectors - 1).unwrap();
    assert!(cq.capacity() >= attr.max_cqe);
    assert!(matches!(context.create_cq(attr.max_cqe + 1, 0, None, 0), Err(CqError::Entries { .. })));
    assert!(matches!(context.create_cq(0, 0, None, 0), Err(CqError::Entries { .. })));
    assert!(matches!(context.create_cq(1, 0, None, attr.num_comp_vectors), Err(CqError::Vector { .. })));
    cq.resize(16).unwrap();
    assert_eq!(cq.capacity(), 16);
    assert!(matches!(cq.resize(0), Err(CqError::Entries { .. })));
    let pd = context.alloc_pd().unwrap();
    let mut largest = init(&cq, &cq, attr.max_qp_wr);
    largest.caps.max_send_sge = attr.max_sge;
    largest.caps.max_recv_sge = attr.max_sge;
    largest.caps.max_inline = attr.max_inline;
    let qp = pd.create_qp(largest.clone()).unwrap();
    largest.caps.max_send_wr += 1;
    assert!(matches!(pd.create_qp(largest), Err(CreateQpError::Capability { what: "max_send_wr", .. })));
    qp.destroy();
    let pds: Vec<_> = std::iter::from_fn(|| context.alloc_pd().ok()).take(1000).collect();
    assert_eq!(pds.len(), 1000);
    pds.iter().for_each(|pd| pd.dealloc().unwrap());
    pd.dealloc().unwrap();
    cq.destroy().unwrap();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Must-show 9.
#[test]
fn a_thousand_queue_pairs_leak_nothing() {
    let (a, b) = pair();
    let round = || {
        let qps =
            [a.pd.create_qp(init(&a.cq, &a.cq, 4)).unwrap(), b.pd.create_qp(init(&b.cq, &b.cq, 4)).unwrap()];
        connect_qps(&a.context, &qps[0], &qps[1], 0, PathMtu::B1024);
        qps[1].post_recv([RecvWr { wr_id: 1, sges: &[b.sge(0, 8)] }]).unwrap();
        qps[0].post_send([send(1, SendOp::Send, &[a.sge(0, 8)])]).unwrap();
        // Destroyed with a request in flight, sometimes before its answer.
        qps.iter().for_each(|qp| qp.destroy());
        std::sync::Arc::downgrade(&qps[0])
    };
    round();
    let before = descriptors();
    let weak: Vec<_> = (0..500).map(|_| round()).collect();
    // The background thread may be busy with the last packet of one.
    let start = Instant::now();
    while weak.iter().any(|qp| qp.strong_count() > 0) {
        assert!(start.elapsed() < PATIENCE, "a queue pair lives on");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Other tests of this process open and close devices meanwhile.
    assert!(descriptors() < before + 40, "{} descriptors, {before} before", descriptors());
}

/// Posts, polls and destroys at once.
#[test]
fn objects_are_destroyed_under_traffic() {
    for _ in 0..20 {
        let (a, b) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0..2000 {
                    let _ = b.qp.post_recv([RecvWr { wr_id: id, sges: &[b.sge(0, 64)] }]);
                    if a.qp.post_send([send(id, SendOp::Send, &[a.sge(0, 64)])]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(|| {
                for _ in 0..2000 {
                    let _ = a.cq.poll(&mut [blank(); 4]);
                    let _ = b.cq.poll(&mut [blank(); 4]);
                }
            });
            std::thread::sleep(Duration::from_millis(1));
            b.qp.destroy();
            a.qp.destroy();
        });
        a.cq.destroy().unwrap();
        b.cq.destroy().unwrap();
    }
}
