//! States of a queue pair: flush, drain and teardown.

use std::time::Duration;

use ferroce_proto::{
    AsyncEventKind, DropReason, ModifyQpError, PostRecvError, PostSendError, QpAttr, QpAttrMask, QpState,
    QueuePair, RecvWr, SendOp, SendTo, SendWr, WcStatus,
};
use ferroce_wire::{Request, Response};

use crate::probe::{ACK, DATA, Probe, aeth, local, remote, reth, send_only, write_only};
use crate::world::{ADDRESSES, Setup};

fn plain() -> Setup {
    Setup { early_resends: false, ..Setup::default() }
}

const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const SUCCESS: WcStatus = WcStatus::Success;

/// With its own queue there is no LAST_WQE_REACHED; the WQE in use is not lost.
#[test]
fn a_receive_in_use_is_flushed_once() {
    let mut probe = Probe::new(plain());
    probe.post_recv(1, &[local(0, 4096)]);
    probe.post_recv(2, &[local(0, 4096)]);
    probe.quiet_request(0, Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    probe.to(QpState::Error);
    assert_eq!(probe.recvs(), [(1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(probe.asyncs(), []);
}

/// The drain idiom: a marker behind everything else comes back flushed, last.
#[test]
fn posts_in_error_are_flushed() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    let unsignaled = SendWr {
        wr_id: 3,
        op: SendOp::Send,
        to: SendTo::Peer,
        sges: &[],
        signaled: false,
        solicited: false,
        fence: false,
        inline: false,
    };
    probe.post_wr(unsignaled);
    probe.post_recv(11, &[]);
    probe.out();
    probe.to(QpState::Error);
    probe.post(4, SendOp::Send, &[]);
    probe.post_recv(12, &[]);
    assert_eq!(probe.sends(), [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED), (4, FLUSHED)]);
    assert_eq!(probe.recvs(), [(11, FLUSHED), (12, FLUSHED)]);
    probe.post(5, SendOp::Send, &[]);
    probe.post_recv(13, &[]);
    assert_eq!(probe.sends(), [(5, FLUSHED)]);
    assert_eq!(probe.recvs(), [(13, FLUSHED)]);
    // Answers that were under way touch nothing any more.
    let response = Response::ReadOnly { aeth: aeth(ACK), payload: &DATA[..4] };
    assert_eq!(probe.response(1, response), Err(DropReason::State));
    assert_eq!(probe.request(0, write_only(reth(0, 4), &DATA[..4])), Err(DropReason::State));
    assert_eq!(probe.bytes()[..4], [0; 4]);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.end.qp.poll_timeout(), None);
}

/// A request that completed before the error keeps its success.
#[test]
fn successes_come_before_flushes() {
    let mut probe = Probe::new(plain());
    probe.post_recv(11, &[local(0, 4)]);
    probe.post_recv(12, &[local(0, 4)]);
    probe.post(1, SendOp::Send, &[]);
    probe.post(2, SendOp::Send, &[]);
    probe.out();
    probe.ack(0, ACK).unwrap();
    probe.request(0, send_only(&DATA[..4])).unwrap();
    probe.to(QpState::Error);
    assert_eq!(probe.sends(), [(1, SUCCESS), (2, FLUSHED)]);
    assert_eq!(probe.recvs(), [(11, SUCCESS), (12, FLUSHED)]);
}

/// Every way to get a modify wrong leaves everything as it was.
#[test]
fn a_failed_modify_changes_nothing() {
    use QpAttrMask as M;
    let attr = Setup::default().attr(0);
    let rtr =
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    let init = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let to = |state| QpAttr { state, ..attr };
    let mut other_family = to(QpState::Rtr);
    other_family.path.source = "::1".parse().unwrap();
    let mut nowhere = to(QpState::Rtr);
    nowhere.path.destination = "0.0.0.0".parse().unwrap();
    let value = |attribute, value, range| ModifyQpError::Value { attribute, value, range };
    let unusable = |attribute, why| ModifyQpError::Unusable { attribute, why };
    let alone = "the addresses are not those of two hosts, of one family";
    let cases = [
        (QpState::Reset, QpAttr { port_num: 2, ..to(QpState::Init) }, init, value(M::PORT, 2, "1 only")),
        (
            QpState::Reset,
            QpAttr { pkey_index: 1, ..to(QpState::Init) },
            init,
            value(M::PKEY_INDEX, 1, "0 only"),
        ),
        (
            QpState::Reset,
            to(QpState::Init),
            init.difference(M::PORT),
            ModifyQpError::Missing { from: QpState::Reset, to: QpState::Init, missing: M::PORT },
        ),
        (
            QpState::Reset,
            to(QpState::Error),
            M::STATE,
            ModifyQpError::Transition { from: QpState::Reset, to: QpState::Error },
        ),
        (
            QpState::Init,
            to(QpState::Rts),
            rts,
            ModifyQpError::Transition { from: QpState::Init, to: QpState::Rts },
        ),
        (
            QpState::Init,
            to(QpState::Rtr),
            rtr | M::SQ_PSN,
            ModifyQpError::NotAllowed { from: QpState::Init, to: QpState::Rtr, extra: M::SQ_PSN },
        ),
        (
            QpState::Init,
            to(QpState::Rtr),
            rtr | M::ALT_PATH,
            unusable(M::ALT_PATH, "RoCE has no alternate paths"),
        ),
        (
            QpState::Init,
            QpAttr { min_rnr_timer: 32, ..to(QpState::Rtr) },
            rtr,
            value(M::MIN_RNR_TIMER, 32, "0 to 31"),
        ),
        (
            QpState::Init,
            QpAttr { max_dest_rd_atomic: 129, ..to(QpState::Rtr) },
            rtr,
            value(M::MAX_DEST_RD_ATOMIC, 129, "0 to 128"),
        ),
        (QpState::Init, other_family, rtr, unusable(M::AV, alone)),
        (QpState::Init, nowhere, rtr, unusable(M::AV, alone)),
        (QpState::Rtr, QpAttr { timeout: 32, ..to(QpState::Rts) }, rts, value(M::TIMEOUT, 32, "0 to 31")),
        (QpState::Rtr, QpAttr { retry_cnt: 8, ..to(QpState::Rts) }, rts, value(M::RETRY_CNT, 8, "0 to 7")),
        (QpState::Rtr, QpAttr { rnr_retry: 8, ..to(QpState::Rts) }, rts, value(M::RNR_RETRY, 8, "0 to 7")),
        (
            QpState::Rtr,
            QpAttr { max_rd_atomic: 129, ..to(QpState::Rts) },
            rts,
            value(M::MAX_QP_RD_ATOMIC, 129, "0 to 128"),
        ),
        (
            QpState::Rtr,
            QpAttr { cur_state: QpState::Rts, ..to(QpState::Rts) },
            rts | M::CUR_STATE,
            ModifyQpError::CurrentState { actual: QpState::Rtr, claimed: QpState::Rts },
        ),
        (
            QpState::Rts,
            QpAttr { timeout: 3, ..to(QpState::Rts) },
            M::TIMEOUT,
            ModifyQpError::NotAllowed { from: QpState::Rts, to: QpState::Rts, extra: M::TIMEOUT },
        ),
        (
            QpState::Rtr,
            to(QpState::Rtr),
            M::ACCESS_FLAGS,
            ModifyQpError::Transition { from: QpState::Rtr, to: QpState::Rtr },
        ),
    ];
    for (state, attr, mask, want) in cases {
        let setup = Setup::default();
        let mut qp = setup.queue_pair(0);
        setup.bring(&mut qp, 0, state);
        let before = (qp.query(), format!("{qp:?}"));
        assert_eq!(qp.modify(&attr, mask), Err(want));
        assert_eq!((qp.query(), format!("{qp:?}")), before);
    }
}

#[test]
fn sq_drained_comes_only_when_asked_for() {
    for asked in [false, true] {
        let mut probe = Probe::new(plain());
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.out();
        let mask =
            if asked { QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY } else { QpAttrMask::STATE };
        let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..probe.setup.attr(0) };
        probe.modify(attr, mask);
        assert_eq!(probe.asyncs(), []);
        assert!(probe.end.qp.query().sq_draining);
        probe.ack(0, ACK).unwrap();
        assert!(!probe.end.qp.query().sq_draining);
        let want: &[AsyncEventKind] = if asked { &[AsyncEventKind::SqDrained] } else { &[] };
        assert_eq!(probe.asyncs(), want);
    }
}

/// SQD: a message that started is finished, with its retries; the others wait for RTS (IBTA 10.3.1.4).
#[test]
fn sqd_finishes_what_started_and_holds_the_rest() {
    let mut probe = Probe::new(plain());
    probe.batch = 2;
    probe.post(1, SendOp::Send, &[local(0, 3000)]);
    probe.post(2, SendOp::Send, &[local(0, 4)]);
    assert_eq!(probe.out_batch().unwrap().len(), 2);
    probe.to(QpState::Sqd);
    assert_eq!(probe.out(), ["send_last 2 [952] A"]);
    probe.post(3, SendOp::Send, &[]);
    let attr = QpAttr { state: QpState::Rts, ..probe.setup.attr(0) };
    let result = probe.end.qp.modify(&attr, QpAttrMask::STATE);
    assert_eq!(result, Err(ModifyQpError::Draining));
    assert_eq!(probe.wait(Duration::from_millis(70)).len(), 1, "retried");
    probe.request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1"], "the peer is served");
    probe.ack(2, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, SUCCESS)]);
    assert_eq!(probe.out(), [""; 0]);
    probe.modify(QpAttr { timeout: 10, ..probe.setup.attr(0) }, QpAttrMask::TIMEOUT);
    assert_eq!(probe.end.qp.query().timeout, 10);
    probe.to(QpState::Rts);
    assert_eq!(probe.out(), ["send_only 3 [4] A", "send_only 4 [0] A"]);
}

/// Nothing outstanding: SQD is reached at once.
#[test]
fn an_idle_queue_drains_at_once() {
    let mut probe = Probe::new(plain());
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..probe.setup.attr(0) };
    probe.modify(attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY);
    assert_eq!(probe.asyncs(), [AsyncEventKind::SqDrained]);
    probe.to(QpState::Rts);
    assert_eq!(probe.asyncs(), []);
}

#[test]
fn a_fatal_queue_pair_raises_one_event() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[]);
    probe.out();
    probe.end.qp.set_fatal();
    probe.end.qp.set_fatal();
    assert_eq!(probe.sends(), [(1, FLUSHED)]);
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpFatal]);
    assert_eq!(probe.end.qp.state(), QpState::Error);
}

/// A dropped queue pair frees its packets in flight for the others.
#[test]
fn dropping_a_queue_pair_returns_its_share() {
    let setup = plain();
    let budget = std::sync::Arc::new(ferroce_proto::Budget::new(setup.rcvbuf));
    for how in 0..3 {
        let mut probe = Probe::new(setup);
        let mut qp = setup.with_budget(0, budget.clone());
        setup.bring(&mut qp, 0, QpState::Rts);
        let old = std::mem::replace(&mut probe.end.qp, qp);
        drop(old);
        probe.post(1, SendOp::Write { remote: remote(0) }, &[local(0, 10_000)]);
        probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 10_000)]);
        probe.out();
        assert!(budget.reads_in_use() >= 10_000);
        assert!(budget.destination_in_use(ADDRESSES[1]) >= 10_000);
        match how {
            0 => drop(probe),
            1 => probe.to(QpState::Error),
            _ => probe.to(QpState::Reset),
        }
        assert_eq!((budget.reads_in_use(), budget.destination_in_use(ADDRESSES[1])), (0, 0), "{how}");
    }
}

/// A queue pair on a path that stops the sender by itself takes no share. In SQD it may get another path, and with that
/// a share for what is on its way.
#[test]
fn a_path_without_limits_takes_no_share_and_the_next_one_does() {
    let setup = plain();
    let budget = std::sync::Arc::new(ferroce_proto::Budget::new(setup.rcvbuf));
    let mut probe = Probe::new(setup);
    let mut qp = setup.with_budget(0, budget.clone());
    qp.set_limited(false);
    setup.bring(&mut qp, 0, QpState::Rts);
    probe.end.qp = qp;
    let in_use = || (budget.reads_in_use(), budget.destination_in_use(ADDRESSES[1]));
    probe.post(1, SendOp::Write { remote: remote(0) }, &[local(0, 10_000)]);
    probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 10_000)]);
    probe.out();
    assert_eq!(in_use(), (0, 0));
    probe.to(QpState::Sqd);
    probe.end.qp.set_limited(true);
    let attr = probe.setup.attr(0);
    probe.modify(QpAttr { state: QpState::Sqd, ..attr }, QpAttrMask::STATE | QpAttrMask::AV);
    assert!(in_use().0 >= 10_000 && in_use().1 >= 10_000, "{:?}", in_use());
    probe.to(QpState::Reset);
    assert_eq!(in_use(), (0, 0));
}

/// RESET forgets work requests without completions.
#[test]
fn reset_forgets() {
    let mut probe = Probe::new(plain());
    probe.post_recv(11, &[local(0, 4)]);
    probe.post(1, SendOp::Send, &[]);
    probe.to(QpState::Error);
    probe.to(QpState::Reset);
    assert_eq!((probe.sends(), probe.recvs(), probe.asyncs()), (vec![], vec![], vec![]));
    assert_eq!(probe.end.qp.query(), QpAttr::default());
    probe.setup.bring(&mut probe.end.qp, 0, QpState::Rts);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.request(0, send_only(&[])), Err(DropReason::ReceiverNotReady));
}

#[test]
fn posts_that_are_refused_take_nothing() {
    let setup = plain();
    let caps = ferroce_proto::QpCaps {
        max_send_wr: 2,
        max_recv_wr: 2,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline: 8,
    };
    let mut probe = Probe::new(Setup { caps, ..setup });
    let mut post = |op, sges: &[ferroce_proto::Sge], inline| {
        let wr = SendWr {
            wr_id: 1,
            op,
            to: SendTo::Peer,
            sges,
            signaled: true,
            solicited: false,
            fence: false,
            inline,
        };
        probe.end.qp.post_send(&wr, &probe.end.mem)
    };
    let one = local(0, 1);
    let add = SendOp::FetchAdd { remote: remote(0), add: 1 };
    let cases = [
        (SendOp::Send, &[one, one, one][..], false, PostSendError::TooManySges { given: 3, max: 2 }),
        (
            SendOp::Send,
            &[local(0, 1 << 31), one],
            false,
            PostSendError::MessageTooLong { given: (1 << 31) + 1 },
        ),
        (SendOp::Send, &[local(0, 9)], true, PostSendError::InlineTooLong { given: 9, max: 8 }),
        (SendOp::Read { remote: remote(0) }, &[one], true, PostSendError::InlineNotAllowed),
        (add, &[local(0, 4)], false, PostSendError::AtomicLength { given: 4 }),
        (add, &[local(0, 4), local(8, 4), one], false, PostSendError::TooManySges { given: 3, max: 2 }),
        (
            SendOp::FetchAdd { remote: remote(4), add: 1 },
            &[local(0, 8)],
            false,
            PostSendError::AtomicMisaligned,
        ),
        (SendOp::Send, &[local(0, 8)], true, PostSendError::Inline(ferroce_proto::MemoryError::Fault)),
    ];
    for (op, sges, inline, want) in cases {
        assert_eq!(post(op, sges, inline), Err(want));
    }
    assert_eq!(post(SendOp::Send, &[], false), Ok(()));
    assert_eq!(post(SendOp::Send, &[], false), Ok(()));
    assert_eq!(post(SendOp::Send, &[], false), Err(PostSendError::QueueFull { max: 2 }));

    let too_many = RecvWr { wr_id: 1, sges: &[one, one] };
    assert_eq!(probe.end.qp.post_recv(&too_many), Err(PostRecvError::TooManySges { given: 2, max: 1 }));
    for wr_id in 0..2 {
        probe.post_recv(wr_id, &[one]);
    }
    let full = RecvWr { wr_id: 1, sges: &[] };
    assert_eq!(probe.end.qp.post_recv(&full), Err(PostRecvError::QueueFull { max: 2 }));
}

#[test]
fn posts_by_state() {
    let setup = plain();
    let post = |qp: &mut QueuePair| {
        let mem = crate::ram::Ram::default();
        let wr = SendWr::signaled(1, SendOp::Send, &[]);
        (qp.post_send(&wr, &mem), qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }))
    };
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let mut qp = setup.queue_pair(0);
        setup.bring(&mut qp, 0, state);
        let sends = if matches!(state, QpState::Rts | QpState::Sqd) {
            Ok(())
        } else {
            Err(PostSendError::State(state))
        };
        let receives = if state == QpState::Reset { Err(PostRecvError::State(state)) } else { Ok(()) };
        assert_eq!(post(&mut qp), (sends, receives), "{state:?}");
    }
}

/// `ibv_wr_abort`: what was posted since the mark is gone, what was before stays.
#[test]
fn rolled_back_posts_were_never_there() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[]);
    let mark = probe.end.qp.sq_mark();
    probe.post(2, SendOp::Send, &[]);
    probe.post(3, SendOp::Send, &[]);
    probe.end.qp.sq_rollback(mark);
    probe.post(4, SendOp::Send, &[]);
    assert_eq!(probe.out().len(), 2);
    // Nothing that was transmitted can be taken back.
    probe.end.qp.sq_rollback(mark);
    probe.ack(1, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, SUCCESS), (4, SUCCESS)]);
}

/// Inline data is captured when it is posted.
#[test]
fn inline_payload_is_a_copy() {
    let mut probe = Probe::new(Setup { mtu: ferroce_wire::PathMtu::B256, ..plain() });
    let addr = crate::ram::inline_addr(&DATA[..300]);
    let sges = [(addr, 100), (addr + 100, 0), (addr + 100, 156)].map(|(addr, length)| ferroce_proto::Sge {
        addr,
        length,
        lkey: ferroce_wire::Lkey::new(0xbad),
    });
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        to: SendTo::Peer,
        sges: &sges,
        signaled: true,
        solicited: true,
        fence: false,
        inline: true,
    };
    probe.post_wr(wr);
    assert_eq!(probe.out(), ["send_only 0 [256] A S"]);
    assert_eq!(probe.end.qp.query().sq_psn.since(ferroce_wire::Psn::new(probe.setup.psn[0])), 1);
}

/// PSNs are the next ones in every state, the error state too.
#[test]
fn query_tells_the_next_psns() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[local(0, 3000)]);
    probe.out();
    probe.request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    let next = |probe: &Probe| {
        let attr = probe.end.qp.query();
        let first = probe.setup.attr(0);
        (attr.sq_psn.since(first.sq_psn), attr.rq_psn.since(first.rq_psn))
    };
    assert_eq!(next(&probe), (3, 1));
    probe.to(QpState::Error);
    assert_eq!(next(&probe), (3, 1));
}
