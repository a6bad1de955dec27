//! Memory windows, atomic write and flush: what the state machines of a queue pair make of them.

use ferroce_proto::{
    AsyncEventKind, Bind, DropReason, PostSendError, QpState, SendOp, SendTo, SendWr, Sge, WcOpcode,
    WcStatus, WindowAccess,
};
use ferroce_wire::{BatchLimits, Feth, Lkey, Operation, Packet, RcPacket, Request, Response, Rkey, TxBatch};

use crate::probe::{ACK, BASE, DATA, KEY, Probe, aeth, local, remote, reth, write_only};
use crate::ram::inline_addr;
use crate::world::Setup;

const DUPLICATE: Result<(), DropReason> = Err(DropReason::DuplicateRequest);

/// Resends only when the ACK timeout expires.
fn plain() -> Setup {
    Setup { early_resends: false, ..Setup::default() }
}

/// Binding takes effect in the order of the queue, behind what may still be sent again.
#[test]
fn a_bind_takes_effect_in_its_turn() {
    let bind = |window: u32, octet: u32, region: u32, length: u64| {
        SendOp::BindMw(Bind {
            window: Rkey::new(window),
            rkey: Rkey::new(window & !0xff | octet),
            region: Lkey::new(region),
            addr: BASE,
            length,
            access: WindowAccess::REMOTE_WRITE,
        })
    };
    let mut probe = Probe::new(plain());
    let is_bound = |probe: &Probe, key: u32| probe.end.mem.regions.iter().any(|region| region.key == key);
    probe.post(1, SendOp::Send, &[]);
    probe.post(2, bind(0xabc00, 7, KEY, 64), &[]);
    probe.post(3, SendOp::Send, &[]);
    probe.post(4, SendOp::LocalInvalidate(Rkey::new(0xabc07)), &[]);
    probe.post(5, bind(0xabc00, 8, KEY, 64), &[]);
    assert_eq!(probe.out(), ["send_only 0 [0] A"]);
    assert!(!is_bound(&probe, 0xabc07));
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.out(), ["send_only 1 [0] A"]);
    assert!(is_bound(&probe, 0xabc07));
    let completed = probe.end.sends.last().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len));
    assert_eq!(completed, Some((2, WcOpcode::BindMw, 0)));
    probe.ack(1, ACK).unwrap();
    probe.out();
    assert!(!is_bound(&probe, 0xabc07) && is_bound(&probe, 0xabc08));
    probe.sends();
    // A region that is not there; inline makes no sense.
    let inline = SendWr {
        wr_id: 6,
        op: bind(0xdef00, 1, KEY, 1),
        to: SendTo::Peer,
        sges: &[],
        signaled: true,
        solicited: false,
        fence: false,
        inline: true,
    };
    let refused = probe.end.qp.post_send(&inline, &probe.end.mem);
    assert_eq!(refused, Err(PostSendError::InlineNotAllowed));
    probe.post(7, bind(0xdef00, 1, 77, 64), &[]);
    probe.post(8, SendOp::Send, &[]);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.sends(), [(7, WcStatus::MwBindErr), (8, WcStatus::WrFlushErr)]);
    assert_eq!(probe.end.qp.state(), QpState::Error);
}

const GLOBAL: Feth = Feth { placement: Feth::GLOBAL_VISIBILITY, selectivity: Feth::RANGE };
const WORD: [u8; 8] = *b"one word";

fn atomic_write(offset: u64, payload: &[u8]) -> Request<'_> {
    Request::AtomicWrite { reth: reth(offset, 8), payload }
}

fn flush(offset: u64, len: u32, feth: Feth) -> Request<'static> {
    Request::Flush { feth, reth: reth(offset, len) }
}

#[test]
fn an_atomic_write_and_a_flush_are_answered_by_a_read_response_of_nothing() {
    let mut probe = Probe::new(Setup::default());
    probe.quiet_request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    probe.quiet_request(1, atomic_write(64, &WORD)).unwrap();
    probe.quiet_request(2, flush(0, 72, GLOBAL)).unwrap();
    assert_eq!(probe.out(), ["read_only 1 [0] msn 2", "read_only 2 [0] msn 3"], "without being asked for");
    assert_eq!(probe.bytes()[64..72], WORD);
    assert_eq!(probe.end.mem.flushes, [(BASE, 72, GLOBAL)]);
}

#[test]
fn duplicates_of_atomic_writes_and_flushes_are_answered_and_not_repeated() {
    let mut probe = Probe::new(Setup { rd_atomic: 2, ..Setup::default() });
    probe.request(0, atomic_write(0, &WORD)).unwrap();
    probe.request(1, flush(0, 8, GLOBAL)).unwrap();
    probe.out();
    probe.fill(0);
    assert_eq!(probe.request(0, atomic_write(0, &WORD)), DUPLICATE);
    assert_eq!(probe.request(1, flush(0, 8, GLOBAL)), DUPLICATE);
    assert_eq!(probe.out(), ["read_only 0 [0] msn 2", "read_only 1 [0] msn 2"]);
    assert!(probe.bytes().iter().all(|&byte| byte == 0));
    assert_eq!(probe.end.mem.flushes.len(), 1);
    // Not what was executed there.
    assert_eq!(probe.request(0, flush(0, 8, GLOBAL)), Err(DropReason::DuplicateNotFound));
    assert_eq!(probe.request(1, atomic_write(0, &WORD)), Err(DropReason::DuplicateNotFound));
    // They take places as reads do: the third pushes the first out.
    probe.request(2, flush(0, 8, GLOBAL)).unwrap();
    assert_eq!(probe.out(), ["read_only 2 [0] msn 3"]);
    assert_eq!(probe.request(0, atomic_write(0, &WORD)), Err(DropReason::DuplicateNotFound));
    assert_eq!(probe.request(1, flush(0, 8, GLOBAL)), DUPLICATE);
    assert_eq!(probe.out(), ["read_only 1 [0] msn 3"]);
    // Nor is a lost write acknowledged past them.
    probe.request(3, write_only(reth(0, 4), &DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["ack 3 msn 4"]);
}

#[test]
fn atomic_writes_and_flushes_take_a_place_among_reads() {
    for depth in [0, 2] {
        let mut probe = Probe::new(Setup { rd_atomic: depth, ..Setup::default() });
        for psn in 0..u32::from(depth) {
            let request = if psn == 0 { atomic_write(0, &WORD) } else { flush(0, 8, GLOBAL) };
            probe.request(psn, request).unwrap();
        }
        assert_eq!(probe.request(depth.into(), flush(0, 8, GLOBAL)), Err(DropReason::Refused));
        assert_eq!(probe.out().last().unwrap(), &format!("nak 0x61 {depth} msn {depth}"));
        assert_eq!(probe.end.mem.flushes.len(), usize::from(depth / 2));
    }
}

#[test]
fn a_flush_of_what_is_not_there_or_not_persistent_is_refused() {
    let persistent = Feth { placement: Feth::PERSISTENCE, ..GLOBAL };
    let both = Feth { placement: 3, ..GLOBAL };
    for (request, persists, refused) in [
        (flush(0, 8, persistent), false, true),
        (flush(0, 8, both), false, true),
        (flush(0, 8, persistent), true, false),
        (flush(0, 8, both), true, false),
        (flush(0, 65_537, GLOBAL), false, true),
        (flush(65_536, 1, GLOBAL), false, true),
        (flush(1 << 40, 8, Feth { selectivity: Feth::WHOLE_REGION, ..GLOBAL }), false, false),
    ] {
        let mut probe = Probe::new(Setup::default());
        probe.end.mem.region(KEY).persistent = persists;
        let done = probe.request(0, request);
        let want = if refused { "nak 0x62 0 msn 0" } else { "read_only 0 [0] msn 1" };
        assert_eq!((done.is_err(), probe.out()), (refused, vec![want.to_owned()]), "{request:?}");
        assert_eq!(probe.asyncs(), if refused { vec![AsyncEventKind::QpAccessErr] } else { vec![] });
    }
}

#[test]
fn what_a_requester_sends_and_completes() {
    let mut probe = Probe::new(Setup { rd_atomic: 2, early_resends: false, ..Setup::default() });
    probe.fill(7);
    probe.post(1, SendOp::Write { remote: remote(0) }, &[local(0, 4)]);
    probe.post(2, SendOp::AtomicWrite { remote: remote(64), octets: None }, &[local(0, 8)]);
    probe.post(3, SendOp::Flush { remote: remote(0), length: 72, feth: GLOBAL }, &[]);
    probe.post(4, SendOp::Read { remote: remote(0) }, &[local(8, 4)]);
    // The third waits for a place.
    assert_eq!(
        probe.out(),
        ["write_only 0 @0x0+4 [4] A", "atomic_write 1 @0x40+8 [8]", "flush 2 @0x0+72 to 1 of 0"]
    );
    // An ACK does not answer them.
    probe.ack(2, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
    assert_eq!(probe.out(), ["atomic_write 1 @0x40+8 [8]", "flush 2 @0x0+72 to 1 of 0"], "an implied NAK");
    let nothing = Response::ReadOnly { aeth: aeth(ACK), payload: &[] };
    probe.response(1, nothing).unwrap();
    assert_eq!(probe.out(), ["read 3 @0x0+4"]);
    probe.response(2, nothing).unwrap();
    probe.response(3, Response::ReadOnly { aeth: aeth(ACK), payload: &DATA[..4] }).unwrap();
    probe.end.events();
    let done: Vec<_> =
        probe.end.sends.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)).collect();
    let success = WcStatus::Success;
    assert_eq!(
        done,
        [
            (2, success, WcOpcode::AtomicWrite, 8),
            (3, success, WcOpcode::Flush, 0),
            (4, success, WcOpcode::RdmaRead, 4)
        ]
    );
}

#[test]
fn a_bad_answer_ends_the_connection() {
    let payload: &[u8] = &DATA[..8];
    let bad = [
        Response::ReadOnly { aeth: aeth(ACK), payload },
        Response::ReadFirst { aeth: aeth(ACK), payload: &[] },
        Response::AtomicAcknowledge { aeth: aeth(ACK), original: 0 },
    ];
    for op in [
        SendOp::AtomicWrite { remote: remote(64), octets: None },
        SendOp::Flush { remote: remote(0), length: 72, feth: GLOBAL },
    ] {
        for response in bad {
            let mut probe = Probe::new(plain());
            probe.post(1, op, &[local(0, 8)]);
            probe.out();
            probe.response(0, response).unwrap();
            assert_eq!(probe.sends(), [(1, WcStatus::BadRespErr)], "{op:?} {response:?}");
        }
    }
}

#[test]
fn what_is_no_atomic_write_or_flush_is_not_posted() {
    let mut probe = Probe::new(plain());
    let mut post = |op, sges: &[Sge], inline| {
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
    let write = |offset| SendOp::AtomicWrite { remote: remote(offset), octets: None };
    assert_eq!(post(write(0), &[local(0, 4)], false), Err(PostSendError::AtomicLength { given: 4 }));
    assert_eq!(post(write(0), &[], false), Err(PostSendError::AtomicLength { given: 0 }));
    assert_eq!(post(write(4), &[local(0, 8)], false), Err(PostSendError::AtomicMisaligned));
    let flush = |placement, selectivity, length| SendOp::Flush {
        remote: remote(0),
        length,
        feth: Feth { placement, selectivity },
    };
    for (placement, selectivity) in [(0, 0), (4, 0), (7, 1), (1, 2)] {
        assert_eq!(post(flush(placement, selectivity, 8), &[], false), Err(PostSendError::FlushKind));
    }
    let given = (1 << 31) + 1;
    assert_eq!(
        post(flush(1, 0, given), &[], false),
        Err(PostSendError::MessageTooLong { given: given.into() })
    );
    assert_eq!(post(flush(1, 0, 8), &[], true), Err(PostSendError::InlineNotAllowed));
    let inline = [Sge { addr: inline_addr(&WORD), length: 8, lkey: Lkey::new(0) }];
    assert_eq!(post(write(0), &inline, true), Ok(()), "its payload may be inline");
    let carried = SendOp::AtomicWrite { remote: remote(8), octets: Some(WORD) };
    assert_eq!(post(carried, &[], true), Err(PostSendError::InlineNotAllowed), "there is none");
    assert_eq!(post(carried, &[], false), Ok(()), "or it is part of the request");
    assert_eq!(probe.out(), ["atomic_write 0 @0x0+8 [8]", "atomic_write 1 @0x8+8 [8]"]);
}

#[test]
fn the_octets_of_an_atomic_write_arrive() {
    for octets in [None, Some(WORD)] {
        let mut probe = Probe::new(plain());
        probe.end.mem.region(KEY).bytes[16..24].copy_from_slice(&WORD);
        let op = SendOp::AtomicWrite { remote: remote(64), octets };
        let sges = [local(16, 8)];
        probe.post(1, op, if octets.is_some() { &[] } else { &sges });
        let mut buffer = vec![0; 4096];
        let limits = BatchLimits { max_segments: 1, gso: false };
        let mut batch = TxBatch::new(&mut buffer, limits);
        assert!(probe.end.qp.poll_transmit(probe.now, &mut probe.end.mem, &mut batch));
        let packet = Packet::parse(batch.segments().next().unwrap()).unwrap();
        let Operation::Rc(RcPacket::Request(Request::AtomicWrite { payload, .. })) = packet.op else {
            panic!("{packet:?}")
        };
        assert_eq!(payload, WORD);
    }
}
