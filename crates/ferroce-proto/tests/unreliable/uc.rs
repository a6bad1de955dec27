//! The responder of UC: whole messages, and nothing said about the others.

use ferroce_proto::{AsyncEventKind, DropReason, QpState, WcOpcode, WcStatus};
use ferroce_wire::{Imm, Request, Rkey, SendTail};

use crate::probe::{DATA, KEY, Probe, UC, local, reth, send_only, write_only};

const IMM: Imm = Imm([9, 8, 7, 6]);

fn first(at: usize) -> Request<'static> {
    Request::SendFirst { payload: &DATA[at..at + 1024] }
}

fn middle(at: usize) -> Request<'static> {
    Request::SendMiddle { payload: &DATA[at..at + 1024] }
}

fn last(at: usize, len: usize) -> Request<'static> {
    Request::SendLast { payload: &DATA[at..at + len], tail: SendTail::Imm(IMM) }
}

#[test]
fn whole_messages_arrive() {
    let mut probe = Probe::in_state(UC, QpState::Rtr);
    probe.post_recv(1, &[local(0, 100), local(200, 3000)]);
    probe.post_recv(2, &[]);
    for (psn, request) in [first(0), middle(1024), last(2048, 30)].into_iter().enumerate() {
        assert_eq!(probe.request(psn as u32, request), Ok(()));
    }
    probe.end.events();
    let got = probe.end.recvs[0];
    assert_eq!((got.wr_id, got.byte_len, got.imm), (1, 2078, Some(IMM)));
    assert_eq!((got.opcode, got.grh, got.header), (WcOpcode::Recv, true, None));
    assert_eq!(probe.bytes()[..100], DATA[..100]);
    assert_eq!(probe.bytes()[200..2178], DATA[100..2078]);
    // The PSN wraps in the middle of all this: it began two below.
    assert_eq!(probe.end.qp.query().rq_psn.value(), 1);
    let write = Request::WriteFirst { reth: reth(5000, 1025), payload: &DATA[..1024] };
    assert_eq!(probe.request(3, write), Ok(()));
    assert_eq!(probe.request(4, Request::WriteLast { payload: &DATA[1024..1025], imm: Some(IMM) }), Ok(()));
    probe.end.events();
    let got = probe.end.recvs[1];
    assert_eq!((got.wr_id, got.byte_len, got.opcode), (2, 1025, WcOpcode::RecvRdmaWithImm));
    assert_eq!(probe.bytes()[5000..6025], DATA[..1025]);
    assert_eq!(probe.request(5, write_only(reth(0, 0), &[])), Ok(()), "of no length, so no key is looked at");
    assert_eq!(probe.asyncs(), [AsyncEventKind::CommEst]);
    assert_eq!(probe.out(), [""; 0], "no answer to anything");
}

/// A gap ends the message; the next one begins with its first packet, whatever its PSN (IBTA 9.8.2.2.1).
#[test]
fn a_gap_ends_the_message_and_no_more() {
    let mut probe = Probe::new(UC);
    probe.post_recv(1, &[local(0, 4000)]);
    assert_eq!(probe.request(0, first(0)), Ok(()));
    for psn in [2, 3] {
        assert_eq!(probe.request(psn, middle(0)), Err(DropReason::OutOfSequence));
    }
    // The missing one comes late.
    assert_eq!(probe.request(1, middle(0)), Err(DropReason::OutOfSequence));
    assert_eq!(probe.request(4, last(0, 5)), Err(DropReason::OutOfSequence));
    assert_eq!(probe.recvs(), []);
    // The buffer that it had waits for the next, which may begin anywhere.
    assert_eq!(probe.request(100, first(1024)), Ok(()));
    assert_eq!(probe.request(101, last(2048, 5)), Ok(()));
    assert_eq!(probe.recvs(), [(1, WcStatus::Success)]);
    assert_eq!(probe.bytes()[..1029], DATA[1024..2053]);
    assert_eq!(probe.end.qp.counters().out_of_seq_request, 4);
    // Even before the expected one.
    probe.post_recv(2, &[local(0, 10)]);
    assert_eq!(probe.request(3, send_only(&[1])), Ok(()));
    assert_eq!(probe.recvs(), [(2, WcStatus::Success)]);
}

#[test]
fn a_first_packet_abandons_the_message_before_it() {
    let mut probe = Probe::new(UC);
    probe.post_recv(1, &[local(0, 4000)]);
    assert_eq!(probe.request(0, first(0)), Ok(()));
    assert_eq!(probe.request(1, write_only(reth(8000, 4), &DATA[..4])), Ok(()));
    assert_eq!(probe.request(2, last(0, 5)), Err(DropReason::OutOfSequence), "of a message that is over");
    assert_eq!(probe.request(3, send_only(&DATA[..9])), Ok(()));
    assert_eq!(probe.recvs(), [(1, WcStatus::Success)], "one WQE, one message");
    assert_eq!(probe.request(4, send_only(&[])), Err(DropReason::NoReceiveWqe));
    assert_eq!(probe.end.qp.state(), QpState::Rts);
}

/// Every error drops the message and leaves everything else as it is: state, WQE, PSN of the next.
#[test]
fn what_is_wrong_drops_the_message_silently() {
    let short = &DATA[..1000];
    let long = &DATA[..1025];
    let full = &DATA[..1024];
    let nobody = ferroce_wire::Reth { rkey: Rkey::new(0x999), ..reth(0, 4) };
    let wrapping = ferroce_wire::Reth { va: u64::MAX, ..reth(0, 4) };
    let cases: &[(&str, &[Request<'_>], DropReason)] = &[
        (
            "a first packet that is not full",
            &[Request::SendFirst { payload: short }],
            DropReason::InvalidRequest,
        ),
        ("a middle one", &[first(0), Request::SendMiddle { payload: short }], DropReason::InvalidRequest),
        ("too long for one packet", &[send_only(long)], DropReason::InvalidRequest),
        (
            "a last one without octets",
            &[first(0), Request::SendLast { payload: &[], tail: SendTail::None }],
            DropReason::InvalidRequest,
        ),
        (
            "a middle of the other kind",
            &[first(0), Request::WriteMiddle { payload: full }],
            DropReason::InvalidRequest,
        ),
        ("longer than the WQE", &[first(0), middle(0), middle(0)], DropReason::TooLong),
        ("longer than the WQE, at its end", &[first(0), middle(0), last(0, 453)], DropReason::TooLong),
        ("beyond the memory", &[write_only(reth(65_533, 4), &DATA[..4])], DropReason::AccessDenied),
        ("a range that wraps", &[write_only(wrapping, &DATA[..4])], DropReason::AccessDenied),
        ("no such key", &[write_only(nobody, &DATA[..4])], DropReason::AccessDenied),
        (
            "the whole range, at the first packet",
            &[Request::WriteFirst { reth: reth(64_000, 2048), payload: full }],
            DropReason::AccessDenied,
        ),
        (
            "more than 2^31",
            &[Request::WriteFirst { reth: reth(0, (1 << 31) + 1), payload: full }],
            DropReason::InvalidRequest,
        ),
        ("longer than declared", &[write_only(reth(0, 3), &DATA[..4])], DropReason::InvalidRequest),
        ("shorter than declared", &[write_only(reth(0, 5), &DATA[..4])], DropReason::InvalidRequest),
        (
            "the middle fills what is declared",
            &[
                Request::WriteFirst { reth: reth(0, 2048), payload: full },
                Request::WriteMiddle { payload: full },
            ],
            DropReason::InvalidRequest,
        ),
        (
            "ends too soon",
            &[
                Request::WriteFirst { reth: reth(0, 2048), payload: full },
                Request::WriteLast { payload: short, imm: None },
            ],
            DropReason::InvalidRequest,
        ),
        (
            "a key to end, which UC does not have",
            &[Request::SendOnly { payload: &[], tail: SendTail::Invalidate(Rkey::new(KEY)) }],
            DropReason::InvalidRequest,
        ),
    ];
    for (what, requests, want) in cases {
        let mut probe = Probe::new(UC);
        probe.post_recv(1, &[local(10_000, 2500)]);
        let (wrong, good) = requests.split_last().unwrap();
        for (psn, request) in good.iter().enumerate() {
            assert_eq!(probe.request(psn as u32, *request), Ok(()), "{what}");
        }
        let psn = good.len() as u32;
        let before = probe.bytes()[..10_000].to_vec();
        assert_eq!(probe.request(psn, *wrong), Err(*want), "{what}");
        assert_eq!(probe.bytes()[..10_000], before, "{what}: not an octet of the packet");
        assert_eq!(
            probe.request(psn + 1, last(0, 3)),
            Err(DropReason::OutOfSequence),
            "{what}: nor of the rest"
        );
        assert_eq!((probe.out(), probe.recvs(), probe.asyncs()), (vec![], vec![], vec![]), "{what}");
        assert_eq!(probe.end.qp.state(), QpState::Rts, "{what}");
        assert_eq!(probe.request(psn + 2, send_only(&DATA[..8])), Ok(()), "{what}");
        assert_eq!(probe.recvs(), [(1, WcStatus::Success)], "{what}: the WQE is still there");
        assert_eq!(probe.bytes()[10_000..10_008], DATA[..8]);
    }
}

#[test]
fn without_permission_or_without_a_receive() {
    let mut probe = Probe::new(crate::world::Setup { access: ferroce_proto::QpAccess::empty(), ..UC });
    assert_eq!(probe.request(0, write_only(reth(0, 4), &DATA[..4])), Err(DropReason::InvalidRequest));
    assert_eq!(probe.bytes()[..4], [0; 4]);
    let mut probe = Probe::new(UC);
    assert_eq!(probe.request(0, first(0)), Err(DropReason::NoReceiveWqe));
    probe.post_recv(1, &[local(0, 4000)]);
    assert_eq!(probe.request(1, last(0, 4)), Err(DropReason::OutOfSequence), "its message is lost already");
    // A write that finds no WQE for its immediate data: that is lost, what was placed before stays.
    let mut probe = Probe::new(UC);
    assert_eq!(probe.request(0, Request::WriteFirst { reth: reth(0, 1028), payload: &DATA[..1024] }), Ok(()));
    let end = Request::WriteLast { payload: &DATA[..4], imm: Some(IMM) };
    assert_eq!(probe.request(1, end), Err(DropReason::NoReceiveWqe));
    assert_eq!(probe.bytes()[..1024], DATA[..1024]);
    assert_eq!(probe.bytes()[1024..1028], [0; 4]);
}

/// The program's own fault ends the queue pair, with the WQE saying why.
#[test]
fn a_receive_buffer_that_cannot_be_written() {
    let mut probe = Probe::new(UC);
    probe.post_recv(1, &[ferroce_proto::Sge { lkey: ferroce_wire::Lkey::new(0xbad), ..local(0, 10) }]);
    probe.post_recv(2, &[]);
    assert_eq!(probe.request(0, send_only(&[1])), Err(DropReason::LocalFault));
    assert_eq!(probe.end.qp.state(), QpState::Error);
    assert_eq!(probe.recvs(), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
}

/// A WQE that a message holds when the queue pair ends is flushed, once and before the others.
#[test]
fn a_wqe_in_use_is_flushed() {
    let mut probe = Probe::new(UC);
    probe.post_recv(1, &[local(0, 4000)]);
    probe.post_recv(2, &[]);
    assert_eq!(probe.request(0, first(0)), Ok(()));
    probe.end.qp.set_fatal();
    assert_eq!(probe.recvs(), [1, 2].map(|id| (id, WcStatus::WrFlushErr)));
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpFatal]);
}
