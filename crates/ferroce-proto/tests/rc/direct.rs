//! Requests that the caller executes itself, without packets.

use std::time::Duration;

use ferroce_proto::{
    AsyncEventKind, DirectKind, DirectLocal, DirectRequest, DirectTarget, QpAccess, QpAttr, QpAttrMask,
    QpState, SendOp, SendWr, Sge, WcStatus,
};
use ferroce_wire::{Imm, NakCode, Response};

use crate::probe::{ACK, DATA, Probe, aeth, local, nak, remote, rnr, send_only};
use crate::ram::inline_addr;
use crate::world::{QPNS, Setup};

const WRITE: SendOp = SendOp::Write { remote: remote(512) };
const READ: SendOp = SendOp::Read { remote: remote(1024) };

/// The kind and the length of the request at the head, as far as it may be executed directly.
fn head(probe: &Probe) -> Option<(DirectKind, u32)> {
    at(probe, 0)
}

fn at(probe: &Probe, ahead: u32) -> Option<(DirectKind, u32)> {
    probe.end.qp.direct_request(ahead).map(|DirectRequest { kind, length, .. }| (kind, length))
}

#[test]
fn a_request_completes_without_a_packet_or_a_psn() {
    let mut probe = Probe::new(Setup::default());
    assert_eq!(head(&probe), None, "nothing is posted");
    probe.post(1, WRITE, &[local(0, 100), local(200, 0), local(300, 28)]);
    let request = probe.end.qp.direct_request(0).unwrap();
    assert_eq!((request.kind, request.length, request.remote), (DirectKind::Write, 128, remote(512)));
    let DirectLocal::Sges(sges) = request.local else { panic!("{request:?}") };
    assert_eq!(sges, [local(0, 100), local(200, 0), local(300, 28)]);
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.end.qp.poll_timeout(), None);
    // The next packet has the first PSN.
    probe.post(2, SendOp::Send, &[local(0, 4)]);
    assert_eq!(probe.out(), ["send_only 0 [4] A"]);
    assert_eq!(probe.end.qp.counters().rdma_sends, 2);
}

#[test]
fn completions_come_in_order_and_unsignaled_ones_stay_away() {
    let mut probe = Probe::new(Setup::default());
    probe.post_wr(SendWr { signaled: false, ..SendWr::signaled(1, WRITE, &[local(0, 8)]) });
    probe.post(2, READ, &[local(0, 16)]);
    probe.post_wr(SendWr { fence: true, ..SendWr::signaled(3, WRITE, &[local(0, 24)]) });
    let kinds: Vec<_> = (0..4).map(|ahead| at(&probe, ahead)).collect();
    let (write, read) = (DirectKind::Write, DirectKind::Read);
    assert_eq!(kinds, [Some((write, 8)), Some((read, 16)), Some((write, 24)), None]);
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), []);
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), [(2, WcStatus::Success)]);
    // The caller stops here: what is left leaves by a packet.
    assert_eq!(probe.out(), ["write_only 0 @0x200+24 [24] A"]);
    assert_eq!(head(&probe), None);
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), [], "there was none to complete");
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.sends(), [(3, WcStatus::Success)]);
}

#[test]
fn nothing_passes_what_is_under_way() {
    let mut probe = Probe::new(Setup::default());
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.post(2, WRITE, &[local(0, 8)]);
    assert_eq!(head(&probe), None, "a SEND is before it");
    assert_eq!(probe.out(), ["send_only 0 [4] A", "write_only 1 @0x200+8 [8] A"]);
    probe.ack(0, ACK).unwrap();
    probe.post(3, WRITE, &[local(0, 8)]);
    assert_eq!(head(&probe), None, "a WRITE by a packet is not acknowledged");
    probe.out();
    probe.ack(2, ACK).unwrap();
    probe.post(4, READ, &[local(0, 8)]);
    assert_eq!(head(&probe), Some((DirectKind::Read, 8)));
    assert_eq!(probe.out(), ["read 3 @0x400+8"]);
    probe.post(5, WRITE, &[local(0, 8)]);
    assert_eq!(head(&probe), None, "a READ by packets has no answer");
    probe.out();
    probe.response(3, Response::ReadOnly { aeth: aeth(ACK), payload: &DATA[..8] }).unwrap();
    assert_eq!(head(&probe), None, "the WRITE behind it left");
    probe.ack(4, ACK).unwrap();
    probe.post(6, WRITE, &[local(0, 8)]);
    assert_eq!(head(&probe), Some((DirectKind::Write, 8)));
}

#[test]
fn other_requests_take_packets() {
    let others = [
        SendOp::Send,
        SendOp::WriteImm { remote: remote(0), imm: Imm([0; 4]) },
        SendOp::FetchAdd { remote: remote(0), add: 1 },
        SendOp::CompareSwap { remote: remote(0), compare: 0, swap: 1 },
        SendOp::AtomicWrite { remote: remote(0), octets: None },
    ];
    for op in others {
        let mut probe = Probe::new(Setup::default());
        probe.post(1, op, &[local(0, 8)]);
        assert_eq!(head(&probe), None, "{op:?}");
        probe.end.qp.complete_direct();
        assert_eq!(probe.out().len(), 1);
    }
    let mut probe = Probe::new(Setup::default());
    probe.post(1, WRITE, &[]);
    assert_eq!(head(&probe), None, "no octets, no key");
}

#[test]
fn retries_and_waits_come_first() {
    let mut probe = Probe::new(Setup { early_resends: false, ..Setup::default() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    probe.post(2, WRITE, &[local(0, 8)]);
    probe.ack(0, rnr(14)).unwrap();
    assert_eq!(head(&probe), None, "the receiver is not ready for the SEND before it");
    assert_eq!(probe.wait(Duration::from_millis(2)).len(), 2);
    probe.ack(1, ACK).unwrap();
    probe.sends();
    probe.post(3, WRITE, &[local(0, 8)]);
    probe.out();
    let resent = probe.wait(Duration::from_millis(100));
    assert_eq!(resent.len(), 1, "{resent:?}");
    assert_eq!(head(&probe), None, "it is being retried");
}

#[test]
fn only_rts_executes() {
    let mut probe = Probe::new(Setup::default());
    probe.to(QpState::Sqd);
    probe.post(1, WRITE, &[local(0, 8)]);
    assert_eq!(head(&probe), None, "SQD");
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), []);
    probe.to(QpState::Rts);
    assert_eq!(head(&probe), Some((DirectKind::Write, 8)));
    // A queue pair that drains: what completed directly does not hold it up.
    probe.end.qp.complete_direct();
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..probe.setup.attr(0) };
    probe.modify(attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY);
    assert_eq!(probe.asyncs(), [AsyncEventKind::SqDrained]);
    probe.post(2, WRITE, &[local(0, 8)]);
    probe.to(QpState::Error);
    assert_eq!(head(&probe), None);
    assert_eq!(probe.sends(), [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)]);
    let mut probe = Probe::in_state(Setup::default(), QpState::Rtr);
    assert_eq!(head(&probe), None);
    probe.to(QpState::Reset);
    assert_eq!(head(&probe), None);
}

#[test]
fn a_failed_request_is_not_executed() {
    let mut probe = Probe::new(Setup::default());
    let mut bad = local(0, 8);
    bad.lkey = ferroce_wire::Lkey::new(0x777);
    probe.post(1, WRITE, &[bad]);
    assert_eq!(head(&probe), Some((DirectKind::Write, 8)), "the caller checks the local side");
    probe.out();
    assert_eq!(head(&probe), None);
    assert_eq!(probe.sends(), [(1, WcStatus::LocProtErr)]);
    let mut probe = Probe::new(Setup::default());
    probe.post(1, WRITE, &[local(0, 8)]);
    probe.out();
    probe.ack(0, nak(NakCode::RemoteAccessError)).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(head(&probe), None);
}

#[test]
fn a_read_without_depth_is_not_executed() {
    let mut probe = Probe::new(Setup::default());
    probe.to(QpState::Sqd);
    probe.post(1, READ, &[local(0, 4)]);
    probe.modify(QpAttr { max_rd_atomic: 0, ..probe.setup.attr(0) }, QpAttrMask::MAX_QP_RD_ATOMIC);
    probe.to(QpState::Rts);
    assert_eq!(head(&probe), None);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.sends(), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
fn the_queue_has_room_again() {
    let mut probe = Probe::new(Setup::default());
    let depth = probe.end.qp.caps().max_send_wr;
    for round in 0..3 {
        for wr_id in 0..u64::from(depth) {
            probe.post_wr(SendWr { signaled: false, ..SendWr::signaled(wr_id, WRITE, &[local(0, 8)]) });
        }
        let sges = [local(0, 8)];
        let refused = SendWr::signaled(99, WRITE, &sges);
        assert!(probe.end.qp.post_send(&refused, &probe.end.mem).is_err(), "full in round {round}");
        (0..depth).for_each(|_| probe.end.qp.complete_direct());
        assert_eq!(probe.sends(), []);
    }
    assert_eq!(probe.out(), [""; 0]);
}

#[test]
fn inline_data_is_what_was_posted() {
    let mut probe = Probe::new(Setup::default());
    let part = |at: usize, length| Sge { addr: inline_addr(&DATA[at..]), length, ..Sge::default() };
    probe.post_wr(SendWr {
        inline: true,
        ..SendWr::signaled(1, WRITE, &[part(0, 5), part(5, 0), part(5, 6)])
    });
    let request = probe.end.qp.direct_request(0).unwrap();
    let DirectLocal::Inline(octets) = request.local else { panic!("{request:?}") };
    assert_eq!(octets, &DATA[..11]);
}

/// The peer has begun another connection: nothing will be answered.
#[test]
fn requests_to_a_peer_that_is_lost_have_no_answer() {
    let mut probe = Probe::new(Setup::default());
    assert!(!probe.end.qp.lose_peer());
    for wr_id in [1, 2] {
        probe.post_wr(SendWr::signaled(wr_id, WRITE, &[local(0, 8)]));
    }
    assert!(probe.end.qp.lose_peer() && !probe.end.qp.lose_peer());
    assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(probe.end.qp.counters().retry_exceeded_err, 1);
}

#[test]
fn the_target_names_its_peer_and_the_rights() {
    let access = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ;
    let mut probe = Probe::in_state(Setup { access, ..Setup::default() }, QpState::Rtr);
    assert_eq!(probe.end.qp.direct_target(), None, "the first request raises an event");
    probe.post_recv(1, &[local(0, 64)]);
    probe.request(0, send_only(&DATA[..4])).unwrap();
    let both = DirectTarget { remote: QPNS[1], write: true, read: true };
    assert_eq!(probe.end.qp.direct_target(), Some(both));
    let mut probe = Probe::new(Setup { access, ..Setup::default() });
    assert_eq!(probe.end.qp.direct_target(), Some(both));
    probe.modify(QpAttr { access: QpAccess::empty(), ..probe.setup.attr(0) }, QpAttrMask::ACCESS_FLAGS);
    assert_eq!(
        probe.end.qp.direct_target(),
        Some(DirectTarget { remote: QPNS[1], write: false, read: false })
    );
    probe.to(QpState::Error);
    assert_eq!(probe.end.qp.direct_target(), None);
    let probe = Probe::new(Setup { access, rd_atomic: 0, ..Setup::default() });
    assert_eq!(
        probe.end.qp.direct_target(),
        Some(DirectTarget { remote: QPNS[1], write: true, read: false })
    );
}

/// A stream of requests that once took packets comes back to the caller.
#[test]
fn a_stream_returns_to_the_caller() {
    let mut probe = Probe::new(Setup::default());
    probe.end.qp.prefer_direct(true);
    probe.post(1, WRITE, &[local(0, 8)]);
    assert_eq!(probe.out(), ["write_only 0 @0x200+8 [8] A"], "the caller did not take it");
    probe.post(2, READ, &[local(0, 8)]);
    probe.post(3, WRITE, &[local(0, 8)]);
    assert_eq!(probe.out(), [""; 0]);
    probe.ack(0, ACK).unwrap();
    assert_eq!(head(&probe), Some((DirectKind::Read, 8)));
    probe.end.qp.complete_direct();
    probe.end.qp.complete_direct();
    assert_eq!(probe.sends(), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
    // The answer to a SEND may take its time: nothing waits for it.
    probe.post(4, SendOp::Send, &[local(0, 8)]);
    probe.post(5, WRITE, &[local(0, 8)]);
    probe.post(6, SendOp::Send, &[local(0, 8)]);
    assert_eq!(probe.out(), ["send_only 1 [8] A", "write_only 2 @0x200+8 [8] A", "send_only 3 [8] A"]);
    probe.ack(3, ACK).unwrap();
    probe.end.qp.prefer_direct(false);
    probe.post(7, WRITE, &[local(0, 8)]);
    assert_eq!(probe.out().len(), 1);
    probe.post(8, WRITE, &[local(0, 8)]);
    assert_eq!(probe.out().len(), 1);
}
