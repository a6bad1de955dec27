//! XRC over real sockets: domains, targets that several have open, queues by number, and the order of destruction.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use common::{End, PATIENCE, Wanted, address, blank, open, poll_one};
use ferroce_engine::error::{Busy, CreateSrqError, EventError, OpenXrcdError};
use ferroce_engine::{
    AhAttr, AsyncElement, AsyncEventKind, CompletionQueue, Context, Inode, Qp, QpAccess, QpAttr, QpAttrMask,
    QpInit, QpState, RecvWr, SendOp, SendTo, SendWr, Service, Sge, Srq, SrqInit, WcOpcode, WcStatus, Xrcd,
    XrcdInit,
};
use ferroce_wire::{PathMtu, Psn, SrqNumber};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

const SIZE: usize = 64;

fn domain(context: &Arc<Context>) -> Arc<Xrcd> {
    context.open_xrcd(&XrcdInit { create: true, ..XrcdInit::default() }).unwrap()
}

fn queue(xrcd: &Arc<Xrcd>, end: &End, cq: &Arc<CompletionQueue>) -> Arc<Srq> {
    xrcd.create_srq(&end.pd, cq, SrqInit { max_wr: 256, max_sge: 2, user: 0 }).unwrap()
}

fn initiator(end: &End) -> Arc<Qp> {
    let init = common::init(&end.cq, &end.cq, 64);
    end.pd.create_qp(QpInit { service: Service::XrcInitiator, sq_sig_all: true, ..init }).unwrap()
}

/// Connects an initiator and a target, both of this process. Programs name RC's attributes for both.
fn connect(context: &Context, initiator: &Qp, target: &Qp, gid: u8) {
    use QpAttrMask as M;
    for (qp, peer) in [(initiator, target), (target, initiator)] {
        let attr = QpAttr {
            ah: AhAttr { dgid: address(context, peer, gid).gid, sgid_index: gid, ..AhAttr::default() },
            dest_qp: peer.qpn(),
            path_mtu: PathMtu::B1024,
            access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC,
            rq_psn: Psn::new(0xff_fff0),
            sq_psn: Psn::new(0xff_fff0),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for (state, mask) in [
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                QpState::Rtr,
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            ),
            (QpState::Rts, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC),
        ] {
            qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
        }
    }
}

fn send(qp: &Qp, wr_id: u64, op: SendOp, number: SrqNumber, sge: Sge) {
    let wr = SendWr {
        wr_id,
        op,
        to: SendTo::XrcSrq(number),
        sges: &[sge],
        signaled: true,
        solicited: false,
        fence: false,
        inline: false,
    };
    qp.post_send([wr]).unwrap();
}

fn post(srq: &Srq, wr_id: u64, sge: Sge) {
    srq.post_recv([RecvWr { wr_id, sges: &[sge] }]).unwrap();
}

/// The next event of a queue pair or queue, acknowledged.
fn event(context: &Context) -> Option<(AsyncEventKind, u64)> {
    let events = context.async_events();
    fcntl(events.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    loop {
        match events.get() {
            Ok(event) => {
                events.ack(&event);
                let theirs = matches!(event.element, AsyncElement::Port(_) | AsyncElement::Device);
                if !theirs && event.kind != AsyncEventKind::CommEst {
                    return Some((event.kind, event.user().unwrap()));
                }
            }
            Err(EventError::WouldBlock) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn wait_for(context: &Context, kind: AsyncEventKind) -> u64 {
    let start = Instant::now();
    loop {
        match event(context) {
            Some((seen, user)) if seen == kind => return user,
            _ => std::thread::yield_now(),
        }
        assert!(start.elapsed() < PATIENCE, "no {kind:?}");
    }
}

/// Two targets, two queues with completion queues of their own, four threads: each message arrives once, where it was
/// sent to.
#[test]
fn every_target_reaches_every_queue() {
    const MESSAGES: u64 = 500;
    let end = End::new(Wanted { cqe: 4096, memory: 1024 * SIZE, ..Wanted::default() });
    let xrcd = domain(&end.context);
    let cqs = [(); 2].map(|()| end.context.create_cq(4096, 0, None, 0).unwrap());
    let queues = [queue(&xrcd, &end, &cqs[0]), queue(&xrcd, &end, &cqs[1])];
    let targets = [(); 2].map(|()| xrcd.create_target(None, 0).unwrap());
    let senders = [(); 2].map(|()| End::new(Wanted::default()));
    let initiators = [initiator(&senders[0]), initiator(&senders[1])];
    for index in 0..2 {
        connect(&end.context, &initiators[index], &targets[index], index as u8);
        senders[index].memory.fill(index, SIZE);
    }
    for (index, srq) in queues.iter().enumerate() {
        (0..128).for_each(|n| {
            let at = index * 128 + n;
            post(srq, at as u64, end.sge(at * SIZE, SIZE));
        });
    }
    std::thread::scope(|scope| {
        for (sender, initiator) in senders.iter().zip(&initiators) {
            let numbers = [queues[0].number(), queues[1].number()];
            scope.spawn(move || {
                for wr_id in 0..2 * MESSAGES {
                    send(initiator, wr_id, SendOp::Send, numbers[wr_id as usize % 2], sender.sge(0, SIZE));
                    assert_eq!(poll_one(&sender.cq).status, WcStatus::Success);
                }
            });
        }
        for index in 0..2 {
            let (end, targets, cq, srq) = (&end, &targets, &cqs[index], &queues[index]);
            scope.spawn(move || {
                for _ in 0..2 * MESSAGES {
                    let completion = poll_one(cq);
                    assert_eq!(completion.status, WcStatus::Success);
                    let who = targets.iter().position(|qp| qp.qpn() == completion.qpn).unwrap();
                    let at = completion.wr_id as usize;
                    assert_eq!(at / 128, index, "a WQE of the other queue");
                    end.memory.check_at(at * SIZE, who, SIZE);
                    post(srq, completion.wr_id, end.sge(at * SIZE, SIZE));
                }
            });
        }
    });
    // RDMA is by the queue's protection domain, which is the memory's.
    let remote = end.remote(0);
    send(&initiators[0], 1, SendOp::Write { remote }, queues[0].number(), senders[0].sge(0, SIZE));
    assert_eq!(poll_one(&senders[0].cq).status, WcStatus::Success);
    assert_eq!(xrcd.close(), Err(Busy { users: 4 }));
    assert_eq!(cqs[0].destroy(), Err(Busy { users: 1 }));
    targets.iter().for_each(|qp| qp.destroy());
    assert_eq!(xrcd.close(), Err(Busy { users: 2 }));
    queues.iter().for_each(|srq| srq.destroy().unwrap());
    cqs.iter().for_each(|cq| cq.destroy().unwrap());
    xrcd.close().unwrap();
    xrcd.close().unwrap();
    assert!(matches!(
        xrcd.create_srq(&end.pd, &end.cq, SrqInit { max_wr: 1, max_sge: 1, user: 0 }),
        Err(CreateSrqError::Foreign)
    ));
    assert!(xrcd.create_target(None, 0).is_err());
}

/// `ib_send_lat -c XRC -e` takes the first event of its only channel for that of its own message: the acknowledgement
/// must come before the answer, which a different queue pair sends.
#[test]
fn a_target_acknowledges_before_the_answer() {
    let ends = [(); 2].map(|()| {
        let end = End::new(Wanted::default());
        let xrcd = domain(&end.context);
        let (srq, target) = (queue(&xrcd, &end, &end.cq), xrcd.create_target(None, 0).unwrap());
        let initiator = initiator(&end);
        (end, srq, target, initiator)
    });
    let [(a, a_queue, a_target, a_out), (b, b_queue, b_target, b_out)] = &ends;
    connect(&a.context, a_out, b_target, 0);
    connect(&b.context, b_out, a_target, 0);
    for round in 0..100 {
        post(a_queue, round, a.sge(0, SIZE));
        post(b_queue, round, b.sge(0, SIZE));
        send(a_out, round, SendOp::Send, b_queue.number(), a.sge(SIZE, SIZE));
        assert_eq!(poll_one(&b.cq).opcode, WcOpcode::Recv);
        send(b_out, round, SendOp::Send, a_queue.number(), b.sge(SIZE, SIZE));
        let of_a = [poll_one(&a.cq), poll_one(&a.cq)].map(|completion| completion.opcode);
        assert_eq!(of_a, [WcOpcode::Send, WcOpcode::Recv], "round {round}");
        assert_eq!(poll_one(&b.cq).opcode, WcOpcode::Send);
    }
    for (_, srq, target, _) in &ends {
        target.destroy();
        srq.destroy().unwrap();
    }
}

/// A number of no queue of the domain: of another domain, of nobody, of another process.
#[test]
fn numbers_of_elsewhere_are_refused() {
    let end = End::new(Wanted::default());
    let (xrcd, other) = (domain(&end.context), domain(&end.context));
    let elsewhere = queue(&other, &end, &end.cq);
    let basic = end.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1, user: 0 }).unwrap();
    post(&elsewhere, 1, end.sge(0, SIZE));
    post(&basic, 1, end.sge(0, SIZE));
    let own = queue(&xrcd, &end, &end.cq);
    let of_another_process = SrqNumber::new(own.number().value() ^ 0x7f_0000);
    own.destroy().unwrap();
    for number in [elsewhere.number(), basic.number(), own.number(), of_another_process] {
        let (sender, target) = (End::new(Wanted::default()), xrcd.create_target(None, 3).unwrap());
        let initiator = initiator(&sender);
        connect(&end.context, &initiator, &target, 0);
        send(&initiator, 1, SendOp::Send, number, sender.sge(0, SIZE));
        assert_eq!(poll_one(&sender.cq).status, WcStatus::RemInvReqErr);
        assert_eq!(wait_for(&end.context, AsyncEventKind::QpAccessErr), 3);
        assert_eq!(wait_for(&end.context, AsyncEventKind::QpLastWqeReached), 3);
        assert_eq!(target.state(), QpState::Error);
        target.destroy();
    }
    assert_eq!(end.cq.poll(&mut [blank()]), Ok(0));
}

fn init(file: &std::fs::File, create: bool, exclusive: bool) -> XrcdInit {
    XrcdInit { inode: Some(Inode::of(file.as_fd()).unwrap()), create, exclusive }
}

/// One inode, one domain, whichever descriptor and context; it ends with its last opener.
#[test]
fn a_file_names_a_domain() {
    let (context, again) = (open(), open());
    let path = std::env::temp_dir().join(format!("ferroce-xrcd-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let second = std::fs::File::open(&path).unwrap();
    assert_eq!(context.open_xrcd(&init(&file, false, false)).err(), Some(OpenXrcdError::NotThere));
    let first = context.open_xrcd(&init(&file, true, true)).unwrap();
    assert_eq!(context.open_xrcd(&init(&second, true, true)).err(), Some(OpenXrcdError::Exists));
    let same = again.open_xrcd(&init(&second, false, false)).unwrap();
    assert!(first.is(&same));
    let private = domain(&context);
    assert!(!private.is(&first) && !private.is(&domain(&context)));
    // The file's number stays taken while the domain lives.
    drop((file, second));
    std::fs::remove_file(&path).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    assert_eq!(context.open_xrcd(&init(&file, false, false)).err(), Some(OpenXrcdError::NotThere));
    std::fs::remove_file(&path).unwrap();
    first.close().unwrap();
    same.close().unwrap();
    assert_eq!(context.open_xrcd(&init(&file, false, false)).err(), Some(OpenXrcdError::NotThere));
}

/// A target lives until all that have it open have closed it, and each of them has its events.
#[test]
fn a_target_outlives_its_creator_while_others_have_it() {
    let end = End::new(Wanted::default());
    let xrcd = domain(&end.context);
    let srq = queue(&xrcd, &end, &end.cq);
    let target = xrcd.create_target(None, 1).unwrap();
    let qpn = target.qpn();
    let (second, third) = (xrcd.open_qp(qpn, 2).unwrap(), xrcd.open_qp(qpn, 3).unwrap());
    assert!(domain(&end.context).open_qp(qpn, 0).is_err(), "not of that domain");
    assert!(xrcd.open_qp(end.qp.qpn(), 0).is_err(), "no target");
    let sender = End::new(Wanted::default());
    let initiator = initiator(&sender);
    connect(&end.context, &initiator, second.qp(), 0);
    target.destroy();
    target.destroy();
    post(&srq, 1, end.sge(0, SIZE));
    send(&initiator, 1, SendOp::Send, srq.number(), sender.sge(0, SIZE));
    assert_eq!(poll_one(&end.cq).qpn, qpn);
    assert_eq!(poll_one(&sender.cq).status, WcStatus::Success);
    let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
    third.qp().modify(&attr, QpAttrMask::STATE).unwrap();
    let users = [wait_for(&end.context, AsyncEventKind::QpLastWqeReached), event(&end.context).unwrap().1];
    assert_eq!(users, [2, 3], "the creator is gone");
    assert_eq!(xrcd.close(), Err(Busy { users: 3 }));
    second.close();
    second.close();
    assert!(xrcd.open_qp(qpn, 4).is_ok_and(|share| share.qp().state() == QpState::Error));
    third.close();
    assert!(xrcd.open_qp(qpn, 5).is_err(), "it ended with its last opener");
    srq.destroy().unwrap();
    xrcd.close().unwrap();
}

/// The completion queue of a queue overruns: the queue and its users fail; other queues stay usable.
#[test]
fn an_overrun_fails_the_queue() {
    let end = End::new(Wanted::default());
    let xrcd = domain(&end.context);
    let small = end.context.create_cq(1, 0, None, 0).unwrap();
    let (full, fine) = (queue(&xrcd, &end, &small), queue(&xrcd, &end, &end.cq));
    (0..4).for_each(|wr_id| post(&full, wr_id, end.sge(0, SIZE)));
    post(&fine, 9, end.sge(0, SIZE));
    let ends = [(); 2].map(|()| (End::new(Wanted::default()), xrcd.create_target(None, 0).unwrap()));
    for (sender, target) in &ends {
        let initiator = initiator(sender);
        connect(&end.context, &initiator, target, 0);
        send(&initiator, 1, SendOp::Send, full.number(), sender.sge(0, SIZE));
        let status = poll_one(&sender.cq).status;
        if std::ptr::eq(sender, &ends[0].0) {
            assert_eq!(status, WcStatus::Success);
        }
    }
    wait_for(&end.context, AsyncEventKind::SrqErr);
    let (sender, target) = (End::new(Wanted::default()), xrcd.create_target(None, 0).unwrap());
    let initiator = initiator(&sender);
    connect(&end.context, &initiator, &target, 0);
    send(&initiator, 1, SendOp::Send, fine.number(), sender.sge(0, SIZE));
    assert_eq!(poll_one(&end.cq).wr_id, 9);
    assert_eq!(poll_one(&sender.cq).status, WcStatus::Success);
    send(&initiator, 2, SendOp::Send, full.number(), sender.sge(0, SIZE));
    assert_eq!(poll_one(&sender.cq).status, WcStatus::RemOpErr);
}

/// A context that closes takes its shares along, and no others.
#[test]
fn closing_a_context_ends_its_shares() {
    let (mine, theirs) = (End::new(Wanted::default()), open());
    let file = tempfile();
    let init = XrcdInit { inode: Some(Inode::of(file.as_fd()).unwrap()), create: true, exclusive: false };
    let (xrcd, again) = (mine.context.open_xrcd(&init).unwrap(), theirs.open_xrcd(&init).unwrap());
    let target = xrcd.create_target(None, 1).unwrap();
    let share = again.open_qp(target.qpn(), 2).unwrap();
    theirs.close();
    assert_eq!(again.close(), Ok(()), "the share went with the context");
    assert!(xrcd.open_qp(share.qp().qpn(), 3).is_ok());
    target.destroy();
    xrcd.close().unwrap();
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("ferroce-xrc-share-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}
