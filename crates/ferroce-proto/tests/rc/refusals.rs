//! The responder where it refuses, waits or fails; gaps and replays are in `responder`.

use std::time::Duration;

use ferroce_proto::{
    AsyncEventKind, DropReason, QpAccess, QpAttr, QpAttrMask, QpState, SendOp, WcOpcode, WcStatus,
};
use ferroce_wire::{AtomicEth, Bth, Imm, NakCode, PathMtu, Psn, RcPacket, Request, Reth, Rkey, SendTail};

use crate::probe::{BASE, DATA, KEY, Probe, local, nak, reth, rnr, send_only, write_only};
use crate::ram::Remote;
use crate::world::{QPNS, Setup};

fn read(offset: u64, len: u32) -> Request<'static> {
    Request::ReadRequest { reth: reth(offset, len) }
}

fn fetch_add(offset: u64, add: u64) -> Request<'static> {
    let atomic = AtomicEth { va: BASE + offset, rkey: Rkey::new(KEY), swap_or_add: add, compare: 0 };
    Request::FetchAdd { atomic }
}

const DUPLICATE: Result<(), DropReason> = Err(DropReason::DuplicateRequest);
const REFUSED: Result<(), DropReason> = Err(DropReason::Refused);

#[test]
fn a_message_too_long_for_its_receive_is_an_error_at_both_ends() {
    let first = Request::SendFirst { payload: &DATA[..1024] };
    let middle = Request::SendMiddle { payload: &DATA[1024..2048] };
    let last = Request::SendLast { payload: &DATA[2048..2100], tail: SendTail::None };
    // Room, the packets, and which of them is too much.
    let cases: [(u32, &[Request<'_>], u32); 4] = [
        (100, &[send_only(&DATA[..101])], 0),
        (1000, &[first], 0),
        (2047, &[first, middle], 1),
        (2099, &[first, middle, last], 2),
    ];
    for (room, packets, culprit) in cases {
        let mut probe = Probe::new(Setup::default());
        probe.post_recv(7, &[local(0, room)]);
        probe.post_recv(8, &[local(0, 4000)]);
        for (psn, request) in packets.iter().enumerate() {
            let result = probe.quiet_request(psn as u32, *request);
            assert_eq!(result.is_err(), psn as u32 == culprit, "{room} {psn}");
        }
        assert_eq!(probe.out(), [format!("nak 0x61 {culprit} msn 0")]);
        assert_eq!(probe.recvs(), [(7, WcStatus::LocLenErr), (8, WcStatus::WrFlushErr)]);
        assert!(probe.bytes()[room as usize..].iter().all(|byte| *byte == 0));
        assert_eq!(probe.asyncs(), [], "the completion says it");
    }
}

/// As requester: rxe says 0x63, cards 0x61.
#[test]
fn either_nak_for_a_message_too_long_is_understood() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteOperationalError, WcStatus::RemOpErr),
    ] {
        let mut probe = Probe::new(Setup::default());
        probe.post(1, SendOp::Send, &[local(0, 200)]);
        probe.out();
        probe.ack(0, nak(code)).unwrap();
        assert_eq!(probe.sends(), [(1, status)]);
        assert_eq!(probe.end.qp.state(), QpState::Error);
    }
}

/// Our choice: NAK 0x62, and the receive ends in LOC_ACCESS_ERR although its data is there.
#[test]
fn send_with_invalidate_of_a_bad_key_is_no_success() {
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[local(0, 16)]);
    probe.post_recv(2, &[local(0, 16)]);
    let tail = SendTail::Invalidate(Rkey::new(KEY));
    assert_eq!(probe.request(0, Request::SendOnly { payload: &DATA[..16], tail }), REFUSED);
    assert_eq!(probe.out(), ["nak 0x62 0 msn 0"]);
    assert_eq!(probe.recvs(), [(1, WcStatus::LocAccessErr), (2, WcStatus::WrFlushErr)]);
    // A good one.
    let mut probe = Probe::new(Setup::default());
    probe.end.mem.register(9, 0, vec![0; 8]).window = true;
    probe.post_recv(1, &[local(0, 16)]);
    let tail = SendTail::Invalidate(Rkey::new(9));
    probe.request(0, Request::SendOnly { payload: &DATA[..16], tail }).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1"]);
    assert_eq!(probe.end.recvs[0].invalidated, Some(Rkey::new(9)));
    let use_it = write_only(Reth { va: 0, rkey: Rkey::new(9), dma_len: 1 }, &DATA[..1]);
    assert_eq!(probe.request(1, use_it), REFUSED);
    assert_eq!(probe.out(), ["nak 0x62 1 msn 1"]);
}

/// IBTA 11.6.2: a Local Access Error is exactly this, whichever packet carries the immediate data.
#[test]
fn write_with_immediate_and_a_bad_key() {
    let imm = Some(Imm([1, 2, 3, 4]));
    // A key that never was.
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[]);
    probe.post_recv(2, &[]);
    let bad = Reth { va: BASE, rkey: Rkey::new(0xbad), dma_len: 8 };
    assert_eq!(probe.request(0, Request::WriteOnly { reth: bad, payload: &DATA[..8], imm }), REFUSED);
    assert_eq!(probe.out(), ["nak 0x62 0 msn 0"]);
    assert_eq!(probe.recvs(), [(1, WcStatus::LocAccessErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(probe.asyncs(), [], "the completion says it");
    // A region that ends between the first packet and the last.
    let mut probe = Probe::new(Setup::default());
    probe.end.mem.register(9, 0, vec![0; 2048]);
    probe.post_recv(1, &[]);
    probe.post_recv(2, &[]);
    let reth = Reth { va: 0, rkey: Rkey::new(9), dma_len: 1032 };
    probe.quiet_request(0, Request::WriteFirst { reth, payload: &DATA[..1024] }).unwrap();
    probe.end.mem.deregister(9);
    assert_eq!(probe.request(1, Request::WriteLast { payload: &DATA[..8], imm }), REFUSED);
    assert_eq!(probe.out(), ["nak 0x62 1 msn 0"]);
    assert_eq!(probe.recvs(), [(1, WcStatus::LocAccessErr), (2, WcStatus::WrFlushErr)]);
    // Without immediate data no receive is in use, and an event says it.
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[]);
    assert_eq!(probe.request(0, write_only(bad, &DATA[..8])), REFUSED);
    assert_eq!(probe.recvs(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpAccessErr]);
}

#[test]
fn an_error_completes_one_receive_and_flushes_the_rest_once() {
    let mut probe = Probe::new(Setup::default());
    for wr_id in 0..5 {
        probe.post_recv(wr_id, &[local(0, 100)]);
    }
    probe.request(0, send_only(&DATA[..100])).unwrap();
    assert_eq!(probe.request(1, send_only(&DATA[..101])), REFUSED);
    for psn in [1, 2] {
        assert_eq!(probe.request(psn, send_only(&DATA[..1])), Err(DropReason::State));
    }
    assert_eq!(probe.out(), ["ack 0 msn 1", "nak 0x61 1 msn 1"]);
    use WcStatus::{LocLenErr, Success, WrFlushErr};
    let want = [(0, Success), (1, LocLenErr), (2, WrFlushErr), (3, WrFlushErr), (4, WrFlushErr)];
    assert_eq!(probe.recvs(), want);
    assert_eq!(probe.recvs(), []);
}

/// An error in the middle of a message: its receive is flushed first.
#[test]
fn a_receive_in_use_is_flushed_in_its_order() {
    let mut probe = Probe::new(Setup::default());
    for wr_id in 0..3 {
        probe.post_recv(wr_id, &[local(0, 4096)]);
    }
    probe.quiet_request(0, Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    assert_eq!(probe.request(1, send_only(&[])), REFUSED);
    assert_eq!(probe.out(), ["nak 0x61 1 msn 0"]);
    use WcStatus::WrFlushErr;
    assert_eq!(probe.recvs(), [(0, WrFlushErr), (1, WrFlushErr), (2, WrFlushErr)]);
}

#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    let send_first = Request::SendFirst { payload: &DATA[..1024] };
    let write_first = Request::WriteFirst { reth: reth(0, 4096), payload: &DATA[..1024] };
    let send_middle = Request::SendMiddle { payload: &DATA[..1024] };
    let send_last = Request::SendLast { payload: &DATA[..1], tail: SendTail::None };
    let write_middle = Request::WriteMiddle { payload: &DATA[..1024] };
    let write_last = Request::WriteLast { payload: &DATA[..1], imm: None };
    for first in [send_middle, send_last, write_middle, write_last] {
        let mut probe = Probe::new(Setup::default());
        assert_eq!(probe.request(0, first), REFUSED);
        assert_eq!(probe.out(), ["nak 0x61 0 msn 0"]);
    }
    let starts =
        [send_first, write_first, send_only(&[]), write_only(reth(0, 0), &[]), read(0, 0), fetch_add(0, 1)];
    let foreign = |in_send| if in_send { [write_middle, write_last] } else { [send_middle, send_last] };
    for (first, in_send) in [(send_first, true), (write_first, false)] {
        for second in starts.into_iter().chain(foreign(in_send)) {
            let mut probe = Probe::new(Setup::default());
            probe.post_recv(1, &[local(0, 4096)]);
            probe.post_recv(2, &[local(0, 4096)]);
            probe.quiet_request(0, first).unwrap();
            assert_eq!(probe.request(1, second), REFUSED, "{first:?} {second:?}");
            assert_eq!(probe.out(), ["nak 0x61 1 msn 0"]);
        }
    }
}

#[test]
fn a_permission_missing_at_the_queue_pair_or_at_the_memory() {
    let write = write_only(reth(0, 4), &DATA[..4]);
    let all = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC;
    for (request, needs) in [
        (write, QpAccess::REMOTE_WRITE),
        (read(0, 4), QpAccess::REMOTE_READ),
        (fetch_add(0, 1), QpAccess::REMOTE_ATOMIC),
    ] {
        let mut probe = Probe::new(Setup { access: all.difference(needs), ..Setup::default() });
        assert_eq!(probe.request(0, request), REFUSED);
        assert_eq!(probe.out(), ["nak 0x61 0 msn 0"]);
        assert_eq!(probe.asyncs(), [AsyncEventKind::QpReqErr]);

        let mut probe = Probe::new(Setup::default());
        probe.end.mem.region(KEY).remote = Remote::NONE;
        assert_eq!(probe.request(0, request), REFUSED);
        assert_eq!(probe.out(), ["nak 0x62 0 msn 0"]);
        assert_eq!(probe.asyncs(), [AsyncEventKind::QpAccessErr]);

        let mut probe = Probe::new(Setup { access: needs, ..Setup::default() });
        probe.request(0, request).unwrap();
    }
}

#[test]
fn atomics_are_aligned() {
    let mut probe = Probe::new(Setup::default());
    assert_eq!(probe.request(0, fetch_add(4, 1)), REFUSED);
    assert_eq!(probe.out(), ["nak 0x61 0 msn 0"]);
}

/// The receive buffer is the responder's own fault.
#[test]
fn a_bad_receive_buffer_is_an_operational_error() {
    let mut probe = Probe::new(Setup::default());
    let foreign = ferroce_proto::Sge { lkey: ferroce_wire::Lkey::new(0xbad), ..local(0, 100) };
    probe.post_recv(1, &[foreign]);
    probe.post_recv(2, &[local(0, 100)]);
    assert_eq!(probe.request(0, send_only(&DATA[..10])), REFUSED);
    assert_eq!(probe.out(), ["nak 0x63 0 msn 0"]);
    assert_eq!(probe.recvs(), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn a_write_out_of_range_is_refused_at_its_first_packet() {
    let mut probe = Probe::new(Setup::default());
    let reth = reth((64 << 10) - 2000, 2058);
    assert_eq!(probe.request(0, Request::WriteFirst { reth, payload: &DATA[..1024] }), REFUSED);
    assert_eq!(probe.out(), ["nak 0x62 0 msn 0"]);
    assert!(probe.bytes().iter().all(|byte| *byte == 0));
}

/// The memory went behind the First.
#[test]
fn memory_that_goes_in_the_middle_of_a_write() {
    for deregistered in [true, false] {
        let mut probe = Probe::new(Setup::default());
        probe.request(0, Request::WriteFirst { reth: reth(0, 2058), payload: &DATA[..1024] }).unwrap();
        if deregistered {
            probe.end.mem.deregister(KEY);
        } else {
            probe.end.mem.region(KEY).gone = true;
        }
        assert_eq!(probe.request(1, Request::WriteMiddle { payload: &DATA[..1024] }), REFUSED);
        assert_eq!(probe.out(), ["ack 0 msn 0", "nak 0x62 1 msn 0"]);
        assert_eq!(probe.asyncs(), [AsyncEventKind::QpAccessErr]);
    }
}

/// That it wraps is tested beside the responder's code.
#[test]
fn the_msn_counts_completed_messages() {
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[local(0, 4096)]);
    probe.batch = 1;
    probe.request(0, Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 0"], "not in the middle");
    probe.request(1, Request::SendLast { payload: &DATA[..1], tail: SendTail::None }).unwrap();
    probe.request(2, read(0, 2048)).unwrap();
    probe.request(4, write_only(reth(0, 0), &[])).unwrap();
    assert_eq!(
        probe.out(),
        ["ack 1 msn 1", "read_first 2 [1024] msn 2", "read_last 3 [1024] msn 2", "ack 4 msn 3"],
        "a read when it is accepted"
    );
    assert_eq!(probe.request(4, write_only(reth(0, 0), &[])), DUPLICATE);
    probe.request(6, write_only(reth(0, 0), &[])).unwrap();
    assert_eq!(probe.out(), ["ack 4 msn 3", "nak 0x60 5 msn 3"], "not while it is held");
    probe.request(5, fetch_add(8000, 1)).unwrap();
    assert_eq!(probe.request(7, read(1 << 20, 1)), REFUSED);
    assert_eq!(probe.out(), ["atomic 5 = 0 msn 4", "ack 6 msn 5", "nak 0x62 7 msn 5"]);
}

#[test]
fn an_atomic_is_done_once() {
    let mut probe = Probe::new(Setup::default());
    let cas = AtomicEth { va: BASE + 8, rkey: Rkey::new(KEY), swap_or_add: 77, compare: 0 };
    probe.request(0, fetch_add(0, 5)).unwrap();
    probe.request(1, Request::CompareSwap { atomic: cas }).unwrap();
    assert_eq!(probe.out(), ["atomic 0 = 0 msn 1", "atomic 1 = 0 msn 2"]);
    for _ in 0..3 {
        assert_eq!(probe.request(0, fetch_add(0, 5)), DUPLICATE);
        assert_eq!(probe.request(1, Request::CompareSwap { atomic: cas }), DUPLICATE);
        assert_eq!(probe.out(), ["atomic 0 = 0 msn 2", "atomic 1 = 0 msn 2"]);
    }
    assert_eq!(probe.bytes()[..8], 5u64.to_ne_bytes());
    assert_eq!(probe.bytes()[8..16], 77u64.to_ne_bytes());
    probe.request(2, Request::CompareSwap { atomic: cas }).unwrap();
    assert_eq!(probe.out(), ["atomic 2 = 77 msn 3"]);
    // A duplicate of another kind is nothing that was asked.
    assert_eq!(probe.request(2, read(0, 8)), Err(DropReason::DuplicateNotFound));
    assert_eq!(probe.request(2, send_only(&[])), Err(DropReason::DuplicateNotFound));
    assert_eq!(probe.out(), [""; 0]);
}

#[test]
fn events_where_no_completion_can_tell() {
    let write = write_only(reth(0, 4), &DATA[..4]);
    let mut probe = Probe::in_state(Setup::default(), QpState::Rtr);
    probe.request(0, write).unwrap();
    probe.request(1, write).unwrap();
    assert_eq!(probe.asyncs(), [AsyncEventKind::CommEst], "once");
    assert_eq!(probe.request(2, write_only(reth(0, 5), &DATA[..4])), REFUSED);
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpReqErr]);

    let mut probe = Probe::new(Setup::default());
    probe.request(0, write).unwrap();
    assert_eq!(probe.asyncs(), [], "established long ago");
    assert_eq!(probe.request(1, write_only(reth(1 << 20, 4), &DATA[..4])), REFUSED);
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpAccessErr]);
    assert_eq!(probe.end.qp.state(), QpState::Error);
}

#[test]
fn the_depth_can_change_under_incoming_reads() {
    let mut probe = Probe::new(Setup::default());
    probe.batch = 1;
    for psn in 0..8 {
        probe.request(psn * 2, read(0, 2048)).unwrap();
    }
    probe.to(QpState::Sqd);
    for depth in [2, 0, 128, 1] {
        probe.out_batch().unwrap();
        let attr = QpAttr { max_dest_rd_atomic: depth, ..probe.setup.attr(0) };
        probe.modify(attr, QpAttrMask::MAX_DEST_RD_ATOMIC);
    }
    assert_eq!(probe.out().len(), 12, "what was accepted is answered");
    assert_eq!(
        probe.request(14, read(0, 2048)),
        Err(DropReason::DuplicateNotFound),
        "forgotten with depth 0"
    );
    probe.request(16, read(0, 4)).unwrap();
    assert_eq!(probe.request(17, read(0, 4)), REFUSED);
}

#[test]
fn a_new_connection_uses_the_same_memory_after_an_error() {
    let mut probe = Probe::new(Setup::default());
    assert_eq!(probe.request(0, write_only(reth(1 << 20, 4), &DATA[..4])), REFUSED);
    probe.out();
    probe.to(QpState::Reset);
    probe.setup.bring(&mut probe.end.qp, 0, QpState::Rts);
    probe.request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1"]);
    assert_eq!(probe.bytes()[..4], DATA[..4]);
}

#[test]
fn nothing_is_sent_again_before_the_rnr_delay() {
    for code in [1, 22, 0] {
        let mut probe = Probe::new(Setup::default());
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.out();
        probe.ack(0, rnr(code)).unwrap();
        assert_eq!(probe.out(), [] as [&str; 0], "not at once, code {code}");
        let delay = ferroce_wire::RnrTimer::new(code).unwrap().delay();
        assert_eq!(probe.wait(delay - Duration::from_nanos(1)), []);
        assert_eq!(
            probe.wait(Duration::from_nanos(1)),
            [(delay.as_micros() as u64, "send_only 0 [4] A".into())]
        );
    }
}

/// No receive: RNR NAK with the PSN of the packet, nothing changes, and what follows is dropped in silence.
#[test]
fn a_send_without_a_receive_gets_an_rnr_nak() {
    let mut probe = Probe::new(Setup::default());
    let with_imm = Request::WriteOnly { reth: reth(0, 4), payload: &DATA[..4], imm: Some(Imm([1, 2, 3, 4])) };
    for request in [send_only(&DATA[..4]), Request::SendFirst { payload: &DATA[..1024] }, with_imm] {
        assert_eq!(probe.request(0, request), Err(DropReason::ReceiverNotReady));
        assert_eq!(probe.request(1, request), Err(DropReason::OutOfSequence));
        assert_eq!(probe.out(), ["rnr 0 timer 12 msn 0"]);
    }
    assert!(probe.bytes().iter().all(|byte| *byte == 0));
    assert_eq!(probe.end.qp.counters().send_rnr_err, 3);
    probe.post_recv(1, &[local(0, 4)]);
    probe.request(0, send_only(&DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1"]);
    probe.request(2, send_only(&[])).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 1 msn 1"], "a gap behind it is one again");
}

/// The immediate's packet needs the receive; what was written before stays.
#[test]
fn a_write_with_immediate_gets_an_rnr_nak_at_its_end() {
    let mut probe = Probe::new(Setup::default());
    probe.quiet_request(0, Request::WriteFirst { reth: reth(0, 1030), payload: &DATA[..1024] }).unwrap();
    let last = Request::WriteLast { payload: &DATA[1024..1030], imm: Some(Imm([9; 4])) };
    assert_eq!(probe.request(1, last), Err(DropReason::ReceiverNotReady));
    assert_eq!(probe.out(), ["rnr 1 timer 12 msn 0"]);
    assert_eq!(probe.bytes()[..1024], DATA[..1024]);
    assert_eq!(probe.bytes()[1024..1030], [0; 6]);
    probe.post_recv(1, &[]);
    probe.request(1, last).unwrap();
    assert_eq!(probe.out(), ["ack 1 msn 1"]);
    let completion = probe.end.recvs[0];
    assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::RecvRdmaWithImm, 1030));
    assert_eq!(completion.imm, Some(Imm([9; 4])));
}

/// Solicited events: SE of the packet that ends the message.
#[test]
fn solicited_events_reach_the_completion() {
    for solicited in [false, true] {
        let mut probe = Probe::new(Setup { mtu: PathMtu::B256, ..Setup::default() });
        probe.post_recv(1, &[]);
        let bth = Bth { solicited, ..Bth::new(QPNS[0], Psn::new(probe.setup.psn[1])) };
        probe.give(bth, RcPacket::Request(send_only(&[]))).unwrap();
        probe.out();
        assert_eq!(probe.end.recvs[0].solicited, solicited);
    }
}
