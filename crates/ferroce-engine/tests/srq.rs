//! Shared receive queues over real sockets: several queue pairs and threads, events, life cycle.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::{
    End, PATIENCE, Wanted, address, blank, connect_qps, init, open, poll_one, send, to_init, to_rts,
};
use ferroce_engine::error::{Busy, CreateQpError, CreateSrqError, EventError, ModifySrqError};
use ferroce_engine::{
    AsyncElement, AsyncEventKind, Context, MAX_SRQ_SGE, MAX_SRQ_WR, Qp, QpAttr, QpAttrMask, QpInit, QpState,
    RecvWr, SendOp, Srq, SrqAttr, SrqAttrMask, SrqInit, WcOpcode, WcStatus,
};
use ferroce_proto::PostRecvError;
use ferroce_wire::PathMtu;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

const SIZE: usize = 64;

fn shared(end: &End, max_wr: u32) -> Arc<Srq> {
    end.pd.create_srq(SrqInit { max_wr, max_sge: 2, user: 11 }).unwrap()
}

fn with_srq(end: &End, srq: &Arc<Srq>) -> Arc<Qp> {
    end.pd.create_qp(QpInit { srq: Some(Arc::clone(srq)), ..init(&end.cq, &end.cq, 64) }).unwrap()
}

fn post(end: &End, srq: &Srq, wr_id: u64) -> Result<(), (usize, PostRecvError)> {
    let sge = end.sge(wr_id as usize * SIZE, SIZE);
    srq.post_recv([RecvWr { wr_id, sges: &[sge] }])
}

fn error_state(qp: &Qp) {
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

/// The events that are there, each acknowledged, but those of ports.
fn events(context: &Context) -> Vec<AsyncEventKind> {
    let events = context.async_events();
    fcntl(events.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut kinds = Vec::new();
    loop {
        match events.get() {
            Ok(event) => {
                if !matches!(event.element, AsyncElement::Port(_) | AsyncElement::Device) {
                    kinds.push(event.kind);
                }
                events.ack(&event);
            }
            Err(EventError::WouldBlock) => return kinds,
            Err(error) => panic!("{error}"),
        }
    }
}

fn wait_for(context: &Context, kind: AsyncEventKind) {
    let start = Instant::now();
    loop {
        let seen = events(context);
        if seen.contains(&kind) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{seen:?}");
        std::thread::yield_now();
    }
}

/// Eight connections in four threads on one queue, over IPv4 and IPv6: each message arrives once, whole, with the
/// queue pair's own number, and every WQE is used once.
#[test]
fn several_queue_pairs_and_threads_share_one_queue() {
    const PAIRS: usize = 8;
    const MESSAGES: u64 = 2000;
    let end = End::new(Wanted { cqe: 4096, memory: 512 * SIZE, ..Wanted::default() });
    let srq = shared(&end, 256);
    (0..256).for_each(|wr_id| post(&end, &srq, wr_id).unwrap());
    let receivers: Vec<_> = (0..PAIRS).map(|_| with_srq(&end, &srq)).collect();
    let senders: Vec<_> = (0..PAIRS).map(|_| End::new(Wanted::default())).collect();
    for (index, (sender, receiver)) in senders.iter().zip(&receivers).enumerate() {
        connect_qps(&end.context, &sender.qp, receiver, (index % 2) as u8, PathMtu::B1024);
        sender.memory.fill(index, SIZE);
    }
    let received = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(move || {
                for wr_id in 0..MESSAGES {
                    sender.post(
                        wr_id,
                        SendOp::SendImm(ferroce_wire::Imm((wr_id as u32).to_be_bytes())),
                        sender.sge(0, SIZE),
                    );
                    sender.expect(wr_id, WcOpcode::Send);
                }
            });
        }
        // Two threads poll the queue, one of them posts again.
        for _ in 0..2 {
            let (end, srq, receivers, received) = (&end, &srq, &receivers, &received);
            scope.spawn(move || {
                let start = Instant::now();
                let mut next = [0_u32; PAIRS];
                while received.load(Ordering::Relaxed) < PAIRS as u64 * MESSAGES {
                    assert!(start.elapsed() < 10 * PATIENCE, "messages were lost");
                    let mut some = [blank(); 16];
                    let polled = end.cq.poll(&mut some).unwrap();
                    for completion in &some[..polled] {
                        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
                        assert_eq!(completion.byte_len as usize, SIZE);
                        let who = receivers.iter().position(|qp| qp.qpn() == completion.qpn).unwrap();
                        let sequence = u32::from_be_bytes(completion.imm.unwrap().0);
                        assert!(sequence >= next[who], "in order on each queue pair");
                        next[who] = sequence + 1;
                        let at = completion.wr_id as usize * SIZE;
                        let wanted = |i: usize| (i.wrapping_mul(31) ^ (i >> 8) ^ who) as u8;
                        assert!((0..SIZE).all(|i| end.memory.get(at + i) == wanted(i)), "octets of another");
                        post(end, srq, completion.wr_id).unwrap();
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(received.into_inner(), PAIRS as u64 * MESSAGES);
    assert!(matches!(post(&end, &srq, 0), Err((0, PostRecvError::QueueFull { max: 256 }))), "all came back");
    assert_eq!(srq.destroy(), Err(Busy { users: PAIRS }));
    receivers.iter().for_each(|qp| qp.destroy());
    srq.destroy().unwrap();
}

/// The limit's event comes once, is acknowledged before destroy returns, and a resize keeps what is outstanding while
/// messages take from it.
#[test]
fn limit_and_resize_under_load() {
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    let srq = shared(&b, 64);
    let qp = with_srq(&b, &srq);
    connect_qps(&a.context, &a.qp, &qp, 0, PathMtu::B1024);
    (0..8).for_each(|wr_id| post(&b, &srq, wr_id).unwrap());
    srq.modify(&SrqAttr { limit: 6, ..SrqAttr::default() }, SrqAttrMask::LIMIT).unwrap();
    assert_eq!(srq.query().limit, 6);
    for wr_id in 0..4 {
        a.post(wr_id, SendOp::Send, a.sge(0, SIZE));
        assert_eq!(poll_one(&b.cq).wr_id, wr_id);
        a.expect(wr_id, WcOpcode::Send);
    }
    assert_eq!(srq.query().limit, 0);
    wait_for(&b.context, AsyncEventKind::SrqLimitReached);
    assert!(!events(&b.context).contains(&AsyncEventKind::SrqLimitReached), "one-shot");
    let resize = |max_wr| srq.modify(&SrqAttr { max_wr, ..SrqAttr::default() }, SrqAttrMask::MAX_WR);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..500 {
                resize(8 + round % 60).unwrap();
            }
        });
        for wr_id in 4..500 {
            assert_eq!(post(&b, &srq, wr_id + 4), Ok(()), "at most 5 of at least 8 are outstanding");
            a.post(wr_id, SendOp::Send, a.sge(0, SIZE));
            assert_eq!(poll_one(&b.cq).wr_id, wr_id, "in the order of posting");
            a.expect(wr_id, WcOpcode::Send);
        }
    });
    assert!(matches!(resize(3), Err(ModifySrqError::Transport(_))), "four are outstanding");
    assert_eq!(
        resize(MAX_SRQ_WR + 1),
        Err(ModifySrqError::TooLarge { asked: MAX_SRQ_WR + 1, max: MAX_SRQ_WR })
    );
    resize(MAX_SRQ_WR).unwrap();
    resize(4).unwrap();
    assert!(matches!(post(&b, &srq, 0), Err((0, PostRecvError::QueueFull { max: 4 }))));
    qp.destroy();
    srq.destroy().unwrap();
}

/// LAST_WQE_REACHED follows the flush of the WQE in use; the other WQEs stay for other queue pairs.
#[test]
fn last_wqe_reached_is_reported_once() {
    let (a, b, c) = (End::new(Wanted::default()), End::new(Wanted::default()), End::new(Wanted::default()));
    let srq = shared(&b, 64);
    let (dying, living) = (with_srq(&b, &srq), with_srq(&b, &srq));
    connect_qps(&a.context, &a.qp, &dying, 0, PathMtu::B1024);
    connect_qps(&c.context, &c.qp, &living, 0, PathMtu::B1024);
    (0..4).for_each(|wr_id| post(&b, &srq, wr_id).unwrap());
    a.post(0, SendOp::Send, a.sge(0, SIZE));
    assert_eq!(poll_one(&b.cq).wr_id, 0);
    a.expect(0, WcOpcode::Send);
    error_state(&dying);
    error_state(&dying);
    wait_for(&b.context, AsyncEventKind::QpLastWqeReached);
    assert!(!events(&b.context).contains(&AsyncEventKind::QpLastWqeReached), "exactly one");
    assert_eq!(b.cq.poll(&mut [blank()]), Ok(0), "nothing was in use, nothing flushes");
    c.post(0, SendOp::Send, c.sge(0, SIZE));
    let completion = poll_one(&b.cq);
    assert_eq!((completion.wr_id, completion.qpn), (1, living.qpn()));
    c.expect(0, WcOpcode::Send);
    // A new life of the queue pair has its own event.
    dying.modify(&QpAttr::default(), QpAttrMask::STATE).unwrap();
    to_init(&dying);
    to_rts(&dying, address(&a.context, &a.qp, 0), 0, PathMtu::B1024);
    error_state(&dying);
    wait_for(&b.context, AsyncEventKind::QpLastWqeReached);
    let pd = &b.pd;
    assert!(matches!(pd.dealloc(), Err(Busy { .. })));
    dying.destroy();
    assert_eq!(srq.destroy(), Err(Busy { users: 1 }));
    living.destroy();
    srq.destroy().unwrap();
    srq.destroy().unwrap();
}

/// The queue is empty: the sender waits until the receiver posts.
#[test]
fn an_empty_queue_makes_the_peer_wait() {
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    let srq = shared(&b, 4);
    let qp = with_srq(&b, &srq);
    connect_qps(&a.context, &a.qp, &qp, 1, PathMtu::B1024);
    a.memory.fill(5, SIZE);
    a.post(1, SendOp::Send, a.sge(0, SIZE));
    while b.context.statistics().iter().all(|(name, count)| *name != "rcvd_rnr_err" || *count == 0) {
        assert_eq!(b.cq.poll(&mut [blank()]), Ok(0));
    }
    post(&b, &srq, 3).unwrap();
    assert_eq!(poll_one(&b.cq).wr_id, 3);
    b.memory.check_at(3 * SIZE, 5, SIZE);
    a.expect(1, WcOpcode::Send);
}

/// The queue's own domain, not the queue pair's, holds the memory of its work requests.
#[test]
fn its_memory_is_of_its_own_domain() {
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    let other = b.context.alloc_pd().unwrap();
    let foreign = other.create_srq(SrqInit { max_wr: 4, max_sge: 1, user: 0 }).unwrap();
    let qp = with_srq(&b, &foreign);
    connect_qps(&a.context, &a.qp, &qp, 0, PathMtu::B1024);
    let mr = other.reg_mr(b.memory.addr(), 1 << 20, b.memory.addr(), common::all_access()).unwrap();
    let mut sge = b.sge(0, SIZE);
    sge.lkey = mr.lkey();
    foreign.post_recv([RecvWr { wr_id: 1, sges: &[sge] }]).unwrap();
    // A key of the queue pair's domain is none of the queue's.
    foreign.post_recv([RecvWr { wr_id: 2, sges: &[b.sge(0, SIZE)] }]).unwrap();
    a.post(1, SendOp::Send, a.sge(0, SIZE));
    assert_eq!(poll_one(&b.cq).status, WcStatus::Success);
    a.expect(1, WcOpcode::Send);
    // READs of the queue pair still use its own.
    qp.post_send([send(7, SendOp::Read { remote: a.remote(0) }, &[b.sge(0, SIZE)])]).unwrap();
    assert_eq!(poll_one(&b.cq).status, WcStatus::Success);
    a.post(2, SendOp::Send, a.sge(0, SIZE));
    let completion = poll_one(&b.cq);
    assert_eq!((completion.wr_id, completion.status), (2, WcStatus::LocProtErr));
    assert_eq!(a.complete().status, WcStatus::RemOpErr);
    wait_for(&b.context, AsyncEventKind::QpLastWqeReached);
    assert_eq!(other.dealloc(), Err(Busy { users: 2 }), "the queue and the region");
}

#[test]
fn what_cannot_be() {
    let b = End::new(Wanted::default());
    let create = |max_wr, max_sge| b.pd.create_srq(SrqInit { max_wr, max_sge, user: 0 }).err();
    assert_eq!(create(0, 1), Some(CreateSrqError::Empty));
    let over = |what, asked, max| Some(CreateSrqError::Capability { what, asked, max });
    assert_eq!(create(MAX_SRQ_WR + 1, 1), over("max_wr", MAX_SRQ_WR + 1, MAX_SRQ_WR));
    assert_eq!(create(1, MAX_SRQ_SGE + 1), over("max_sge", MAX_SRQ_SGE + 1, MAX_SRQ_SGE));
    let largest = SrqInit { max_wr: MAX_SRQ_WR, max_sge: MAX_SRQ_SGE, user: 0 };
    let srq = b.pd.create_srq(largest).unwrap();
    assert_eq!(srq.query(), SrqAttr { max_wr: MAX_SRQ_WR, max_sge: MAX_SRQ_SGE, limit: 0 });
    let qp = with_srq(&b, &srq);
    assert_eq!((qp.caps().max_recv_wr, qp.caps().max_recv_sge), (0, 0));
    to_init(&qp);
    let recv = RecvWr { wr_id: 0, sges: &[] };
    assert_eq!(qp.post_recv([recv]), Err((0, PostRecvError::Shared)));
    qp.destroy();
    srq.destroy().unwrap();
    assert_eq!(srq.post_recv([recv]), Err((0, PostRecvError::QueueFull { max: 0 })));
    assert_eq!(srq.modify(&SrqAttr::default(), SrqAttrMask::LIMIT), Err(ModifySrqError::Destroyed));
    let late = QpInit { srq: Some(srq), ..init(&b.cq, &b.cq, 4) };
    assert_eq!(
        b.pd.create_qp(late).err().map(|error| error.to_string()),
        Some(CreateQpError::ForeignSrq.to_string())
    );
    let elsewhere =
        open().alloc_pd().unwrap().create_srq(SrqInit { max_wr: 1, max_sge: 1, user: 0 }).unwrap();
    let foreign = QpInit { srq: Some(elsewhere), ..init(&b.cq, &b.cq, 4) };
    assert!(matches!(b.pd.create_qp(foreign), Err(CreateQpError::ForeignSrq)));
    b.qp.destroy();
    b.cq.destroy().unwrap();
}
