//! Requester and completer; silence, NAKs and gaps are in `retries`.

use std::time::Duration;

use ferroce_proto::{
    AsyncEventKind, DropReason, PostSendError, QpAttr, QpAttrMask, QpState, SendOp, SendTo, SendWr, WcStatus,
};
use ferroce_wire::{Aeth, CreditCode, Imm, Lkey, Msn, NakCode, Response, Rkey, RnrTimer, Syndrome};

use crate::probe::{ACK, DATA, KEY, Probe, aeth, local, nak, remote, rnr};
use crate::world::Setup;

const MS: Duration = Duration::from_millis(1);
/// Of timeout code 14.
const T: Duration = Duration::from_nanos(4096 << 14);
const STALE: Result<(), DropReason> = Err(DropReason::StaleResponse);

/// Resends only when the ACK timeout expires.
fn plain() -> Setup {
    Setup { early_resends: false, ..Setup::default() }
}

fn read_only(payload: &[u8]) -> Response<'_> {
    Response::ReadOnly { aeth: aeth(ACK), payload }
}

#[test]
fn psns_wrap() {
    let mut probe = Probe::new(Setup { psn: [0xff_fffe, 0xff_ffff], ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4000)]);
    probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 3000)]);
    assert_eq!(
        probe.out(),
        [
            "send_first 0 [1024]",
            "send_middle 1 [1024]",
            "send_middle 2 [1024]",
            "send_last 3 [928] A",
            "read 4 @0x0+3000"
        ]
    );
    assert_eq!(probe.ack(0x80_0000, ACK), STALE);
    assert_eq!(probe.ack(0xff_ffff, ACK), STALE, "before the first");
    assert_eq!(probe.ack(7, ACK), STALE, "behind the last");
    probe.ack(2, nak(NakCode::PsnSequenceError)).unwrap();
    assert_eq!(probe.out(), ["send_middle 2 [1024]", "send_last 3 [928] A", "read 4 @0x0+3000"]);
    probe.response(4, Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..1024] }).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)], "a response acknowledges the send before it");
}

#[test]
fn reads_without_depth_are_refused() {
    let mut probe = Probe::new(Setup { rd_atomic: 0, ..plain() });
    let wr = |op| SendWr::signaled(1, op, &[]);
    let result = probe.end.qp.post_send(&wr(SendOp::Read { remote: remote(0) }), &probe.end.mem);
    assert_eq!(result, Err(PostSendError::NoReadAtomicDepth));
    // Taken away while it waits.
    let mut probe = Probe::new(plain());
    probe.to(QpState::Sqd);
    probe.post(1, SendOp::Send, &[]);
    probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    probe.modify(QpAttr { max_rd_atomic: 0, ..probe.setup.attr(0) }, QpAttrMask::MAX_QP_RD_ATOMIC);
    probe.to(QpState::Rts);
    assert_eq!(probe.out(), ["send_only 0 [0] A"]);
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr)]);
}

/// Reads and atomics together never exceed max_rd_atomic, and everything behind waits too.
#[test]
fn the_depth_limits_reads_and_atomics() {
    let mut probe = Probe::new(Setup { rd_atomic: 2, ..plain() });
    for wr_id in 0..3 {
        probe.post(wr_id, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    }
    probe.post(3, SendOp::FetchAdd { remote: remote(0), add: 1 }, &[local(0, 8)]);
    probe.post(4, SendOp::Send, &[]);
    assert_eq!(probe.out(), ["read 0 @0x0+4", "read 1 @0x0+4"]);
    probe.response(0, read_only(&DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["read 2 @0x0+4"]);
    probe.response(1, read_only(&DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["fetch_add 3 1", "send_only 4 [0] A"]);
}

/// No error path ends in success, and each ends the queue pair and flushes the rest.
#[test]
fn every_error_has_its_status() {
    let read = SendOp::Read { remote: remote(0) };
    let add = SendOp::FetchAdd { remote: remote(0), add: 1 };
    let answer = |syndrome| Response::Acknowledge { aeth: aeth(syndrome) };
    let first = Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..1024] };
    let atomic = Response::AtomicAcknowledge { aeth: aeth(ACK), original: 1 };
    let cases = [
        (SendOp::Send, answer(nak(NakCode::InvalidRequest)), WcStatus::RemInvReqErr),
        (SendOp::Send, answer(nak(NakCode::RemoteAccessError)), WcStatus::RemAccessErr),
        (SendOp::Send, answer(nak(NakCode::RemoteOperationalError)), WcStatus::RemOpErr),
        (SendOp::Send, answer(nak(NakCode::InvalidRdRequest)), WcStatus::BadRespErr),
        (SendOp::Send, answer(nak(NakCode::Reserved(9))), WcStatus::BadRespErr),
        (read, answer(nak(NakCode::RemoteAccessError)), WcStatus::RemAccessErr),
        (SendOp::Send, read_only(&[]), WcStatus::BadRespErr),
        (SendOp::Send, atomic, WcStatus::BadRespErr),
        (read, atomic, WcStatus::BadRespErr),
        (add, read_only(&DATA[..8]), WcStatus::BadRespErr),
        (add, first, WcStatus::BadRespErr),
        (read, first, WcStatus::BadRespErr),
    ];
    for (op, response, status) in cases {
        let mut probe = Probe::new(plain());
        probe.post(1, op, &[local(0, 8)]);
        probe.post(2, SendOp::Send, &[]);
        probe.out();
        probe.response(0, response).unwrap();
        assert_eq!(probe.sends(), [(1, status), (2, WcStatus::WrFlushErr)], "{op:?} {response:?}");
        assert_eq!(probe.end.qp.state(), QpState::Error);
        assert_eq!(probe.out(), [""; 0]);
        assert_eq!(probe.end.qp.poll_timeout(), None);
    }
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[]);
    probe.out();
    assert_eq!(probe.ack(0, Syndrome::Reserved(0x80)), Err(DropReason::ReservedSyndrome));
    assert_eq!(probe.sends(), []);
}

/// The refused request keeps its own status although an older read is still unanswered.
#[test]
fn a_nak_behind_an_unanswered_read() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Read { remote: remote(0) }, &[local(0, 8)]);
    probe.post(2, SendOp::Send, &[]);
    probe.post(3, SendOp::Send, &[]);
    probe.out();
    probe.ack(2, nak(NakCode::RemoteOperationalError)).unwrap();
    let want = [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr), (3, WcStatus::RemOpErr)];
    assert_eq!(probe.sends(), want);
}

#[test]
fn read_responses_of_wrong_length_are_bad_responses() {
    let cases: [(u32, Response<'_>); 8] = [
        (100, read_only(&DATA[..99])),
        (100, read_only(&DATA[..101])),
        (0, read_only(&DATA[..1])),
        (100, Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..1024] }),
        (3000, read_only(&DATA[..1024])),
        (3000, Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..1020] }),
        (3000, Response::ReadMiddle { payload: &DATA[..1028] }),
        (3000, Response::ReadLast { aeth: aeth(ACK), payload: &DATA[..3000] }),
    ];
    for (len, response) in cases {
        let mut probe = Probe::new(plain());
        probe.post(1, SendOp::Read { remote: remote(0) }, &[local(0, len)]);
        probe.out();
        probe.response(0, response).unwrap();
        assert_eq!(probe.sends(), [(1, WcStatus::BadRespErr)], "{len} {response:?}");
        assert!(probe.bytes().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_bad_local_key_is_a_protection_error() {
    let foreign = ferroce_proto::Sge { lkey: Lkey::new(0xbad), ..local(0, 2000) };
    let beyond = local((64 << 10) - 10, 2000);
    for sge in [foreign, beyond] {
        for len in [10, 2000] {
            let sge = ferroce_proto::Sge { length: len, ..sge };
            if sge == local((64 << 10) - 10, 10) {
                continue;
            }
            for op in [SendOp::Send, SendOp::Write { remote: remote(0) }, SendOp::Read { remote: remote(0) }]
            {
                let mut probe = Probe::new(plain());
                probe.post(1, op, &[sge]);
                probe.post(2, op, &[]);
                assert_eq!(probe.out(), [""; 0], "not a part of it leaves");
                assert_eq!(probe.sends(), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
            }
        }
    }
    // The target of a read may not be written.
    let mut probe = Probe::new(plain());
    probe.end.mem.region(KEY).local_write = false;
    probe.post(1, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.sends(), [(1, WcStatus::LocProtErr)]);
    // It went while the answer was under way.
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    probe.out();
    probe.end.mem.deregister(KEY);
    probe.response(0, read_only(&DATA[..4])).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    let fenced = |wr_id, op| SendWr {
        wr_id,
        op,
        to: SendTo::Peer,
        sges: &[],
        signaled: true,
        solicited: false,
        fence: true,
        inline: false,
    };
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[]);
    probe.post_wr(fenced(2, SendOp::Write { remote: remote(0) }));
    assert_eq!(probe.out().len(), 2, "sends and writes are not waited for");
    probe.post(3, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    probe.post_wr(fenced(4, SendOp::Write { remote: remote(0) }));
    probe.post(5, SendOp::Send, &[]);
    assert_eq!(probe.out(), ["read 2 @0x0+4"]);
    probe.ack(1, ACK).unwrap();
    assert_eq!(probe.out(), [""; 0]);
    probe.response(2, read_only(&DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["write_only 3 @0x0+0 [0] A", "send_only 4 [0] A"]);
}

#[test]
fn a_local_invalidate_waits_for_everything_before_it() {
    let mut probe = Probe::new(plain());
    probe.end.mem.register(9, 0, vec![0; 8]).window = true;
    probe.post(1, SendOp::Send, &[]);
    probe.post(2, SendOp::LocalInvalidate(Rkey::new(9)), &[]);
    probe.post(3, SendOp::Send, &[]);
    assert_eq!(probe.out(), ["send_only 0 [0] A"]);
    assert_eq!(probe.sends(), []);
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.out(), ["send_only 1 [0] A"]);
    assert_eq!(probe.sends(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // A key that cannot be invalidated.
    probe.post(4, SendOp::LocalInvalidate(Rkey::new(9)), &[]);
    probe.out();
    assert_eq!(probe.sends(), []);
    probe.ack(1, ACK).unwrap();
    probe.out();
    assert_eq!(probe.sends(), [(3, WcStatus::Success), (4, WcStatus::LocQpOpErr)]);
}

#[test]
fn a_later_ack_completes_everything_before_it() {
    let mut probe = Probe::new(plain());
    for wr_id in 0..6 {
        let op = if wr_id == 3 { SendOp::SendImm(Imm([0; 4])) } else { SendOp::Write { remote: remote(0) } };
        let signaled = wr_id % 2 == 1;
        probe.post_wr(SendWr {
            wr_id,
            op,
            to: SendTo::Peer,
            sges: &[],
            signaled,
            solicited: false,
            fence: false,
            inline: false,
        });
    }
    probe.out();
    probe.ack(4, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(probe.ack(2, ACK), STALE);
    assert_eq!(probe.ack(4, ACK), STALE);
    probe.ack(5, ACK).unwrap();
    assert_eq!(probe.sends(), [(5, WcStatus::Success)]);
}

#[test]
fn late_answers_do_not_touch_a_new_connection() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[]);
    probe.post(2, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    probe.out();
    probe.to(QpState::Reset);
    assert_eq!(probe.sends(), [], "RESET forgets");
    let old = probe.setup;
    probe.setup.psn[0] = 0x700_0000 >> 4;
    probe.setup.bring(&mut probe.end.qp, 0, QpState::Rts);
    probe.post(3, SendOp::Send, &[]);
    assert_eq!(probe.out(), ["send_only 0 [0] A"]);
    let new = std::mem::replace(&mut probe.setup, old);
    assert_eq!(probe.ack(0, ACK), STALE);
    assert_eq!(probe.response(1, read_only(&DATA[..4])), STALE);
    assert_eq!(probe.ack(0, nak(NakCode::RemoteAccessError)), STALE);
    probe.setup = new;
    assert_eq!(probe.bytes()[..4], [0; 4]);
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.sends(), [(3, WcStatus::Success)]);
}

/// A packet that the socket refuses counts as lost: no error, no loop.
#[test]
fn a_batch_that_was_not_sent_is_a_loss() {
    let mut probe = Probe::new(Setup::default());
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    // Dropped.
    probe.out();
    assert_eq!(probe.out(), [""; 0], "not again at once");
    let resent = probe.wait(T);
    assert!((1..=4).contains(&resent.len()), "{resent:?}");
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
}

#[test]
fn an_error_does_not_hold_up_good_requests_before_it() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.post(2, SendOp::Send, &[ferroce_proto::Sge { lkey: Lkey::new(0xbad), ..local(0, 4) }]);
    probe.post(3, SendOp::Send, &[local(0, 4)]);
    assert_eq!(probe.out(), ["send_only 0 [4] A"]);
    assert_eq!(probe.sends(), []);
    // Even if it has to be sent again.
    assert_eq!(probe.wait(T).len(), 1);
    probe.ack(0, ACK).unwrap();
    let want = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(probe.sends(), want);
    assert_eq!(probe.asyncs(), [] as [AsyncEventKind; 0]);
}

#[test]
fn rnr_delays_are_never_shorter_than_the_table() {
    // IBTA table 45, in units of 10 µs.
    let table = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    for (code, units) in (0..32).zip(table) {
        let mut probe = Probe::new(plain());
        probe.post(1, SendOp::Send, &[]);
        probe.out();
        probe.ack(0, rnr(code)).unwrap();
        let delay = RnrTimer::new(code).unwrap().delay();
        let resent = probe.wait(delay * 2 + MS);
        assert_eq!(resent[0].0, units * 10, "{code}");
    }
}

/// End-to-end credits, where a card uses them: one message at a time beyond them (IBTA 9.7.7.2).
#[test]
fn credits_of_the_responder_are_honoured() {
    let granted = |code, msn| {
        let syndrome = Syndrome::Ack { credits: CreditCode::new(code).unwrap() };
        Response::Acknowledge { aeth: Aeth { syndrome, msn: Msn::new(msn) } }
    };
    let mut probe = Probe::new(plain());
    probe.post(0, SendOp::Send, &[]);
    assert_eq!(probe.out().len(), 1, "nothing is known yet");
    for wr_id in 1..6 {
        probe.post(wr_id, SendOp::Send, &[]);
    }
    // One message done, two more may come.
    probe.response(0, granted(2, 1)).unwrap();
    assert_eq!(probe.out(), ["send_only 1 [0] A", "send_only 2 [0] A"]);
    // The same again, only later: no more.
    probe.response(1, granted(1, 2)).unwrap();
    assert_eq!(probe.out(), [""; 0]);
    // None left: one message at a time.
    probe.response(2, granted(0, 3)).unwrap();
    assert_eq!(probe.out(), ["send_only 3 [0] A"]);
    assert_eq!(probe.ack(3, rnr(1)), Ok(()));
    assert_eq!(probe.wait(MS).len(), 1);
    // A receive was posted: an acknowledgement comes for the credits alone.
    assert_eq!(probe.response(2, granted(2, 3)), STALE);
    assert_eq!(probe.out(), ["send_only 4 [0] A"]);
    // An older one changes nothing.
    assert_eq!(probe.response(1, granted(31, 2)), STALE);
    assert_eq!(probe.out(), [""; 0]);
    // Writes and reads are not limited, nor is anything once the limit is lifted.
    probe.response(4, granted(31, 5)).unwrap();
    assert_eq!(probe.out(), ["send_only 5 [0] A"]);
    probe.response(5, granted(0, 6)).unwrap();
    probe.post(6, SendOp::Write { remote: remote(0) }, &[]);
    probe.post(7, SendOp::Write { remote: remote(0) }, &[]);
    assert_eq!(probe.out().len(), 2);
    probe.post(8, SendOp::WriteImm { remote: remote(0), imm: Imm([0; 4]) }, &[]);
    assert_eq!(probe.out(), [""; 0]);
}
