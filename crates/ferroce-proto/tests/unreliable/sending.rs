//! Tests of packets sent, completions, and the end and restart of a send queue.

use ferroce_proto::{
    AsyncEventKind, PostSendError, QpAttr, QpAttrMask, QpState, SendOp, SendTo, SendWr, Service, WcOpcode,
    WcStatus,
};
use ferroce_wire::{Imm, Lkey, Qkey, Rkey};

use crate::probe::{Probe, UC, UD, datagram, local, remote};
use crate::world::{ADDRESSES, QKEY, QPNS};

const IMM: Imm = Imm([1, 2, 3, 4]);

/// No ACK, no timer: a message is complete with its last packet (IBTA 9.8.2).
#[test]
fn uc_messages_complete_when_they_left() {
    let mut probe = Probe::new(UC);
    probe.post(1, SendOp::SendImm(IMM), &[local(0, 2500)]);
    probe.post(2, SendOp::Write { remote: remote(64) }, &[local(0, 1024)]);
    probe.post(3, SendOp::WriteImm { remote: remote(64), imm: IMM }, &[local(0, 1025)]);
    probe.post(4, SendOp::Send, &[]);
    assert_eq!(probe.sends(), [], "nothing left yet");
    assert_eq!(
        probe.out(),
        [
            "send_first 0 [1024]",
            "send_middle 1 [1024]",
            "send_last 2 [452] imm [1, 2, 3, 4]",
            "write_only 3 @0x40+1024 [1024]",
            "write_first 4 @0x40+1025 [1024]",
            "write_last 5 [1] imm [1, 2, 3, 4]",
            "send_only 6 [0]",
        ]
    );
    let opcodes: Vec<_> = probe.end.sends.iter().map(|c| (c.opcode, c.byte_len)).collect();
    assert_eq!(
        opcodes,
        [
            (WcOpcode::Send, 2500),
            (WcOpcode::RdmaWrite, 1024),
            (WcOpcode::RdmaWrite, 1025),
            (WcOpcode::Send, 0)
        ]
    );
    assert_eq!(probe.end.qp.query().sq_psn.since(ferroce_wire::Psn::new(UC.psn[0])), 7);
    assert_eq!(probe.end.qp.counters().rdma_sends, 4);
}

#[test]
fn solicited_is_said_where_it_means_something() {
    let mut probe = Probe::new(UC);
    for op in
        [SendOp::Send, SendOp::Write { remote: remote(0) }, SendOp::WriteImm { remote: remote(0), imm: IMM }]
    {
        let wr = SendWr { solicited: true, ..probe.wr(1, op, &[]) };
        probe.end.qp.post_send(&wr, &probe.end.mem).unwrap();
    }
    assert_eq!(
        probe.out(),
        ["send_only 0 [0] S", "write_only 1 @0x0+0 [0]", "write_only 2 @0x0+0 [0] imm [1, 2, 3, 4] S"]
    );
}

/// Nothing is charged, so nothing can leak: a flow without answers never gives back.
#[test]
fn the_budget_is_left_alone() {
    for setup in [UC, UD] {
        let budget = std::sync::Arc::new(ferroce_proto::Budget::new(1 << 16));
        let mut qp = setup.with_budget(0, budget.clone());
        setup.bring(&mut qp, 0, QpState::Rts);
        let mut probe = Probe::new(setup);
        probe.end.qp = qp;
        for round in 0..1000 {
            probe.post(round, SendOp::Send, &[local(0, 1000)]);
            assert_eq!(probe.out().len(), 1);
            assert_eq!((budget.destination_in_use(ADDRESSES[1]), budget.reads_in_use()), (0, 0));
        }
        assert_eq!(probe.sends().len(), 1000);
    }
}

#[test]
fn datagrams_go_where_each_says() {
    let mut probe = Probe::new(UD);
    let inline = [local(0, 200)];
    let wrs = [
        probe.wr(1, SendOp::Send, &[]),
        SendWr { to: datagram(QPNS[0], Qkey::new(5)), ..probe.wr(2, SendOp::SendImm(IMM), &inline) },
        // The sender's own key (IBTA 10.2.5).
        SendWr { to: datagram(QPNS[1], Qkey::new(0x8000_0001)), ..probe.wr(3, SendOp::Send, &[]) },
        SendWr { solicited: true, ..probe.wr(4, SendOp::Send, &inline) },
    ];
    for wr in wrs {
        probe.end.qp.post_send(&wr, &probe.end.mem).unwrap();
    }
    assert_eq!(
        probe.out(),
        [
            "datagram 0 to 0x20022 key 0x12345678 [0]",
            "datagram 1 to 0x10011 key 0x5 [200] imm [1, 2, 3, 4]",
            "datagram 2 to 0x20022 key 0x12345678 [0]",
            "datagram 3 to 0x20022 key 0x12345678 [200] S",
        ]
    );
    assert_eq!(probe.sends(), [1, 2, 3, 4].map(|id| (id, WcStatus::Success)));
}

/// A request that can never succeed is refused by the post, which tells the caller which request it was.
#[test]
fn requests_that_the_service_lacks_cannot_be_posted() {
    let mut uc = Probe::new(UC);
    let mut ud = Probe::new(UD);
    let key = Rkey::new(1);
    let eight = [local(0, 8)];
    for op in [
        SendOp::Read { remote: remote(0) },
        SendOp::FetchAdd { remote: remote(0), add: 1 },
        SendOp::CompareSwap { remote: remote(0), compare: 1, swap: 1 },
        SendOp::SendInvalidate(key),
    ] {
        for (probe, service) in [(&mut uc, Service::Uc), (&mut ud, Service::Ud)] {
            let wr = probe.wr(1, op, &eight);
            let refused = probe.end.qp.post_send(&wr, &probe.end.mem);
            assert_eq!(refused, Err(PostSendError::Operation(service)), "{op:?}");
        }
    }
    for op in [SendOp::Write { remote: remote(0) }, SendOp::LocalInvalidate(key)] {
        let wr = ud.wr(1, op, &[]);
        let refused = ud.end.qp.post_send(&wr, &ud.end.mem);
        assert_eq!(refused, Err(PostSendError::Operation(Service::Ud)), "{op:?}");
    }
    let wr = SendWr { to: SendTo::Peer, ..ud.wr(1, SendOp::Send, &[]) };
    let refused = ud.end.qp.post_send(&wr, &ud.end.mem);
    assert_eq!(refused, Err(PostSendError::Destination(Service::Ud)));
    let wr = SendWr { to: datagram(QPNS[1], QKEY), ..uc.wr(1, SendOp::Send, &[]) };
    let refused = uc.end.qp.post_send(&wr, &uc.end.mem);
    assert_eq!(refused, Err(PostSendError::Destination(Service::Uc)));
    let sges = [local(0, 4096), local(0, 1)];
    let wr = ud.wr(1, SendOp::Send, &sges);
    let refused = ud.end.qp.post_send(&wr, &ud.end.mem);
    assert_eq!(refused, Err(PostSendError::DatagramTooLong { given: 4097, max: 4096 }));
    for probe in [&mut uc, &mut ud] {
        assert_eq!((probe.out(), probe.sends()), (vec![], vec![]));
        assert_eq!(probe.end.qp.state(), QpState::Rts);
    }
    ud.post(2, SendOp::Send, &[local(0, 4096)]);
    assert_eq!(ud.out(), ["datagram 0 to 0x20022 key 0x12345678 [4096]"]);
}

/// SQE (IBTA 10.3.1): the send queue is flushed, the receive queue works on, and RTS resumes.
#[test]
fn a_send_error_stops_the_send_queue_alone() {
    for setup in [UC, UD] {
        let mut probe = Probe::new(setup);
        let bad = ferroce_proto::Sge { lkey: Lkey::new(0xbad), ..local(0, 4) };
        probe.post_recv(10, &[local(0, 2000)]);
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.post(2, SendOp::Send, &[bad]);
        probe.post(3, SendOp::Send, &[local(0, 4)]);
        assert_eq!(probe.out().len(), 1, "the good one before it");
        let ends = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(probe.sends(), ends);
        assert_eq!(probe.end.qp.state(), QpState::Sqe);
        probe.post(4, SendOp::Send, &[]);
        assert_eq!((probe.out(), probe.sends()), (vec![], vec![(4, WcStatus::WrFlushErr)]));
        let received = match setup.service {
            Service::Uc => probe.request(0, crate::probe::send_only(&[1])),
            _ => probe.datagram(QKEY, &[1], None),
        };
        assert_eq!((received, probe.recvs()), (Ok(()), vec![(10, WcStatus::Success)]));
        let attr = QpAttr { state: QpState::Rts, cur_state: QpState::Sqe, ..setup.attr(0) };
        let mask = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
        probe.end.qp.modify(&attr, mask).unwrap();
        probe.post(5, SendOp::Send, &[]);
        assert_eq!(probe.out().len(), 1);
        assert_eq!(probe.sends(), [(5, WcStatus::Success)]);
        assert_eq!(probe.asyncs(), []);
    }
}

/// The whole message is checked before its first packet leaves, so no half of it arrives.
#[test]
fn no_half_of_a_message_is_sent() {
    let mut probe = Probe::new(UC);
    probe.post(
        1,
        SendOp::Send,
        &[local(0, 3000), ferroce_proto::Sge { lkey: Lkey::new(0xbad), ..local(0, 1) }],
    );
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.sends(), [(1, WcStatus::LocProtErr)]);
}

/// Requests that SQD held leave when SQD ends; SQ_DRAINED comes only when it was asked for.
#[test]
fn sqd_holds_what_is_posted() {
    for setup in [UC, UD] {
        for ask in [false, true] {
            let mut probe = Probe::new(setup);
            let mask = if ask { QpAttrMask::EN_SQD_ASYNC_NOTIFY } else { QpAttrMask::empty() };
            let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..setup.attr(0) };
            probe.end.qp.modify(&attr, mask | QpAttrMask::STATE).unwrap();
            probe.post(1, SendOp::Send, &[local(0, 100)]);
            assert_eq!((probe.out(), probe.sends()), (vec![], vec![]));
            let want = if ask { vec![AsyncEventKind::SqDrained] } else { vec![] };
            assert_eq!(probe.asyncs(), want);
            probe.modify(QpState::Rts, QpAttrMask::empty()).unwrap();
            assert_eq!(probe.out().len(), 1);
            assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
        }
    }
}

/// Posts in ERROR complete, flushed; RESET forgets.
#[test]
fn error_flushes_and_reset_forgets() {
    for setup in [UC, UD] {
        let mut probe = Probe::new(setup);
        probe.post_recv(10, &[]);
        probe.post(1, SendOp::Send, &[]);
        probe.modify(QpState::Error, QpAttrMask::empty()).unwrap();
        probe.post(2, SendOp::Send, &[]);
        probe.post_recv(11, &[]);
        assert_eq!(probe.out(), [""; 0]);
        assert_eq!(probe.sends(), [1, 2].map(|id| (id, WcStatus::WrFlushErr)));
        assert_eq!(probe.recvs(), [10, 11].map(|id| (id, WcStatus::WrFlushErr)));
        probe.modify(QpState::Reset, QpAttrMask::empty()).unwrap();
        setup.bring(&mut probe.end.qp, 0, QpState::Rts);
        assert_eq!((probe.out(), probe.sends(), probe.recvs()), (vec![], vec![], vec![]));
        probe.post(3, SendOp::Send, &[]);
        assert_eq!(probe.out().len(), 1, "with a fresh PSN");
    }
}

/// A caller that executes WRITEs without packets does so only while no packet can be on its way: none is acknowledged.
#[test]
fn a_write_is_direct_until_a_packet_left() {
    let mut probe = Probe::new(UC);
    probe.post(1, SendOp::Write { remote: remote(0) }, &[local(0, 8)]);
    assert!(probe.end.qp.direct_request(0).is_some());
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
    probe.post(2, SendOp::Send, &[local(0, 8)]);
    assert!(probe.end.qp.direct_request(0).is_none());
    assert_eq!(probe.out().len(), 1);
    probe.post(3, SendOp::Write { remote: remote(0) }, &[local(0, 8)]);
    assert!(probe.end.qp.direct_request(0).is_none(), "it would overtake the SEND");
}
