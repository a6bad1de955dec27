//! Requester and completer when answers are missing: silence, NAKs and gaps.

use std::time::Duration;

use ferroce_proto::{DropReason, QpState, SendOp, Sge, WcStatus};
use ferroce_wire::{Lkey, NakCode, Response};

use crate::probe::{ACK, DATA, KEY, Probe, aeth, local, nak, remote, rnr};
use crate::world::Setup;

const MS: Duration = Duration::from_millis(1);
/// Of timeout code 14.
const T: Duration = Duration::from_nanos(4096 << 14);

/// Resends only when the ACK timeout expires.
fn plain() -> Setup {
    Setup { early_resends: false, ..Setup::default() }
}

fn read_only(payload: &[u8]) -> Response<'_> {
    Response::ReadOnly { aeth: aeth(ACK), payload }
}

#[test]
fn retry_cnt_7_is_seven_retries() {
    for retry_cnt in [0, 1, 7] {
        let mut probe = Probe::new(Setup { retry_cnt, ..plain() });
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        assert_eq!(probe.out(), ["send_only 0 [4] A"]);
        let resends = probe.wait(T * 100);
        let step = T.as_micros() as u64;
        let times: Vec<u64> = resends.iter().map(|(at, _)| at / step).collect();
        assert_eq!(times, (1..=u64::from(retry_cnt)).collect::<Vec<_>>(), "a retry each T");
        assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(probe.end.qp.counters().timeouts, u64::from(retry_cnt) + 1);
        assert_eq!(probe.end.qp.state(), QpState::Error);
    }
}

/// The end comes between (1 + retry_cnt) T and four times that, with at most four early resends a T.
#[test]
fn silence_ends_within_its_bounds() {
    for retry_cnt in [0, 3, 7] {
        let mut probe = Probe::new(Setup { retry_cnt, ..Setup::default() });
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.out();
        let least = T * (1 + u32::from(retry_cnt));
        let resends = probe.wait(least - Duration::from_nanos(1));
        assert_eq!(probe.sends(), [], "not before");
        for period in 0..=u64::from(retry_cnt) {
            let within = |at: u64| at * 1000 / T.as_nanos() as u64 == period;
            let early = resends.iter().filter(|(at, _)| within(*at)).count();
            assert!((1..=5).contains(&early), "{early} in period {period}");
        }
        probe.wait(least * 3);
        assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr)]);
    }
}

/// However late the timer is looked at, it expired once.
#[test]
fn a_late_look_at_the_timer_is_one_expiry() {
    let mut probe = Probe::new(Setup { retry_cnt: 2, ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    for _ in 0..2 {
        probe.now += T * 5 / 4;
        probe.end.qp.handle_timeout(probe.now);
        probe.end.qp.handle_timeout(probe.now);
        assert_eq!(probe.out().len(), 1);
        assert_eq!(probe.sends(), []);
    }
    probe.now += T * 5 / 4;
    probe.end.qp.handle_timeout(probe.now);
    assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr)]);
}

/// A process that looks at its timer far too late had no processor, so the peer may have had none. The packet
/// is sent again, but the retry does not count. The end comes all the same.
#[test]
fn an_expiry_that_a_starved_process_notices_late_does_not_count() {
    let mut probe = Probe::new(Setup { retry_cnt: 0, ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    let look_late = |probe: &mut Probe| {
        probe.now += T * 2;
        probe.end.qp.handle_timeout(probe.now);
        probe.out().len()
    };
    for _ in 0..64 {
        assert_eq!((look_late(&mut probe), probe.sends()), (1, vec![]));
    }
    assert_eq!(look_late(&mut probe), 0);
    assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr)]);
}

/// An expiry that is noticed in time does not count either if threads of the process waited for a processor
/// meanwhile: one of them may hold the lock behind which the answer lies. The end comes all the same.
#[test]
fn an_expiry_of_a_starved_process_does_not_count() {
    let mut probe = Probe::new(Setup { retry_cnt: 0, ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    let mut expire = |starved: bool| {
        probe.now += T;
        probe.end.qp.ask_if_starved(probe.now, |within| {
            assert_eq!(within, T);
            starved
        });
        probe.end.qp.handle_timeout(probe.now);
        (probe.out().len(), probe.sends())
    };
    for _ in 0..64 {
        assert_eq!(expire(true), (1, vec![]));
    }
    assert_eq!(expire(true), (0, vec![(1, WcStatus::RetryExcErr)]));
}

/// A queue pair asks whether its process was starved when the timeout is over, not before, and each expiry
/// needs an excuse of its own.
#[test]
fn starvation_is_asked_for_at_an_expiry() {
    let mut probe = Probe::new(Setup { retry_cnt: 0, ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    probe.end.qp.ask_if_starved(probe.now + T / 2, |_| panic!("the timeout is not over"));
    probe.now += T;
    probe.end.qp.ask_if_starved(probe.now, |_| true);
    probe.end.qp.handle_timeout(probe.now);
    probe.now += T;
    probe.end.qp.ask_if_starved(probe.now, |_| false);
    probe.end.qp.handle_timeout(probe.now);
    assert_eq!(probe.sends(), vec![(1, WcStatus::RetryExcErr)]);
}

/// The packet lies unread where it cannot get lost: no resend, no retry.
#[test]
fn a_peer_that_has_not_received_yet_is_excused() {
    for setup in [plain(), Setup::default()] {
        let mut probe = Probe::new(Setup { retry_cnt: 0, ..setup });
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.out();
        let begin = probe.now;
        for _ in 0..100 {
            probe.now = probe.end.qp.poll_timeout().unwrap();
            probe.end.qp.excuse_peer(probe.now);
            probe.end.qp.handle_timeout(probe.now);
            assert_eq!((probe.out().len(), probe.sends()), (0, vec![]));
        }
        assert!(probe.now >= begin + T * 40, "the timer may not run often");
        assert_eq!(probe.end.qp.counters().timeouts, 0);
        probe.wait(T * 3);
        assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr)], "the peer received and does not answer");
    }
}

/// Without an outstanding request no timer starts.
#[test]
fn an_excuse_for_nothing_starts_no_timer() {
    let mut probe = Probe::new(Setup::default());
    probe.end.qp.excuse_peer(probe.now);
    assert_eq!(probe.end.qp.poll_timeout(), None);
}

/// Progress reloads the counter.
#[test]
fn progress_gives_all_retries_back() {
    let mut probe = Probe::new(Setup { retry_cnt: 1, ..plain() });
    for wr_id in 0..3 {
        probe.post(wr_id, SendOp::Send, &[local(0, 4)]);
    }
    probe.out();
    for psn in 0..3 {
        assert_eq!(probe.wait(T + MS).len(), 1, "one packet, then an answer is awaited");
        probe.ack(psn, ACK).unwrap();
        probe.out();
    }
    let success = |wr_id| (wr_id, WcStatus::Success);
    assert_eq!(probe.sends(), [success(0), success(1), success(2)]);
    assert_eq!(probe.end.qp.poll_timeout(), None);
}

/// No ACK timeout: early resends go on, and nothing ever fails.
#[test]
fn without_a_timeout_silence_is_forever() {
    let mut probe = Probe::new(Setup { timeout: 0, retry_cnt: 0, ..Setup::default() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    let resends = probe.wait(Duration::from_secs(100)).len();
    assert!((100..120).contains(&resends), "{resends}: about one a second");
    assert_eq!(probe.sends(), []);
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
}

#[test]
fn rnr_retry_counts_rnr_naks() {
    for rnr_retry in [0, 2, 6, 7] {
        let mut probe = Probe::new(Setup { rnr_retry, ..plain() });
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        let mut sends = probe.out().len();
        for _ in 0..100 {
            if probe.ack(0, rnr(1)).is_err() {
                break;
            }
            sends += probe.wait(Duration::from_micros(11)).len();
        }
        if rnr_retry == 7 {
            assert_eq!(sends, 101, "without end");
            assert_eq!(probe.sends(), []);
        } else {
            assert_eq!(sends, usize::from(rnr_retry) + 1);
            assert_eq!(probe.sends(), [(1, WcStatus::RnrRetryExcErr)]);
            assert_eq!(probe.end.qp.counters().retry_rnr_exceeded_err, 1);
        }
    }
}

/// RNR NAKs do not count against retry_cnt, nor the reverse.
#[test]
fn the_two_counters_are_apart() {
    let mut probe = Probe::new(Setup { rnr_retry: 1, retry_cnt: 1, ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.out();
    probe.ack(0, rnr(1)).unwrap();
    assert_eq!(probe.wait(MS).len(), 1);
    assert_eq!(probe.wait(T).len(), 1, "the one retry of retry_cnt");
    probe.ack(0, ACK).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
}

#[test]
fn the_ack_timeout_rests_while_waiting_for_the_receiver() {
    // 655 ms against 67 ms.
    for setup in [plain(), Setup::default()] {
        let mut probe = Probe::new(Setup { retry_cnt: 0, ..setup });
        probe.post(1, SendOp::Send, &[local(0, 4)]);
        probe.out();
        probe.ack(0, rnr(0)).unwrap();
        assert_eq!(probe.ack(0, rnr(0)), Err(DropReason::DuplicateNak));
        assert_eq!(probe.ack(0, nak(NakCode::PsnSequenceError)), Err(DropReason::DuplicateNak));
        assert_eq!(probe.wait(Duration::from_millis(655)), []);
        assert_eq!(probe.wait(MS).len(), 1);
        assert_eq!(probe.end.qp.counters().timeouts, 0);
        assert_eq!(probe.sends(), []);
        probe.ack(0, ACK).unwrap();
        assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
    }
}

#[test]
fn a_storm_of_the_same_nak_causes_one_resend() {
    let mut probe = Probe::new(plain());
    for wr_id in 0..4 {
        probe.post(wr_id, SendOp::Send, &[local(0, 4)]);
    }
    assert_eq!(probe.out().len(), 4);
    let gap = nak(NakCode::PsnSequenceError);
    probe.ack(1, gap).unwrap();
    for _ in 0..100 {
        assert_eq!(probe.ack(1, gap), Err(DropReason::DuplicateNak));
    }
    assert_eq!(probe.out(), ["send_only 1 [4] A", "send_only 2 [4] A", "send_only 3 [4] A"]);
    assert_eq!(probe.ack(1, gap), Err(DropReason::DuplicateNak));
    assert_eq!(probe.out(), [""; 0]);
    // Another gap is another NAK.
    probe.ack(2, gap).unwrap();
    assert_eq!(probe.out(), ["send_only 2 [4] A", "send_only 3 [4] A"]);
    // An answer that comes during the resend after a timeout.
    assert_eq!(probe.wait(T).len(), 1);
    assert_eq!(probe.ack(2, gap), Err(DropReason::DuplicateNak));
    assert_eq!(probe.out(), [""; 0]);
    probe.ack(3, ACK).unwrap();
    assert_eq!(probe.sends().len(), 4);
    assert_eq!(probe.end.qp.counters().rcvd_seq_err, 2);
}

/// NAKs that come without progress count against retry_cnt, but never end it before its time.
#[test]
fn naks_alone_do_not_end_a_connection_early() {
    let mut probe = Probe::new(Setup { retry_cnt: 0, ..plain() });
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    probe.post(2, SendOp::Send, &[local(0, 4)]);
    probe.out();
    probe.ack(0, nak(NakCode::PsnSequenceError)).unwrap();
    assert_eq!(probe.out().len(), 2);
    assert_eq!(probe.sends(), []);
    assert_eq!(probe.wait(T), []);
    assert_eq!(probe.sends(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn responses_behind_a_gap_cause_one_new_request() {
    let mut probe = Probe::new(plain());
    probe.post(1, SendOp::Read { remote: remote(0) }, &[local(20_000, 5000)]);
    probe.out();
    probe.response(0, Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..1024] }).unwrap();
    let middle = |psn: usize| Response::ReadMiddle { payload: &DATA[psn * 1024..(psn + 1) * 1024] };
    let last = Response::ReadLast { aeth: aeth(ACK), payload: &DATA[4096..5000] };
    // 1 is lost.
    probe.response(2, middle(2)).unwrap();
    probe.response(3, middle(3)).unwrap();
    probe.response(4, last).unwrap();
    assert_eq!(probe.out(), ["read 1 @0x400+3976"]);
    probe.response(1, middle(1)).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)], "what came behind the gap is kept");
    assert_eq!(probe.response(2, middle(2)), Err(DropReason::StaleResponse));
    assert_eq!(probe.bytes()[20_000..25_000], DATA[..5000]);
    assert_eq!(probe.end.qp.counters().implied_nak, 1);
}

/// An ACK for what stands behind a READ shows that its response is lost.
#[test]
fn an_ack_past_an_unanswered_read_asks_again() {
    for (op, request) in [
        (SendOp::Read { remote: remote(0) }, "read 1 @0x0+8"),
        (SendOp::FetchAdd { remote: remote(0), add: 1 }, "fetch_add 1 1"),
        (SendOp::CompareSwap { remote: remote(0), compare: 1, swap: 2 }, "compare_swap 1 1->2"),
    ] {
        let mut probe = Probe::new(plain());
        probe.post(1, SendOp::Send, &[]);
        probe.post(2, op, &[local(0, 8)]);
        probe.post(3, SendOp::Send, &[]);
        assert_eq!(probe.out(), ["send_only 0 [0] A", request, "send_only 2 [0] A"]);
        probe.ack(2, ACK).unwrap();
        assert_eq!(probe.out(), [request, "send_only 2 [0] A"]);
        assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
        let answer = match op {
            SendOp::Read { .. } => read_only(&DATA[..8]),
            _ => Response::AtomicAcknowledge { aeth: aeth(ACK), original: 7 },
        };
        probe.response(1, answer).unwrap();
        probe.ack(2, ACK).unwrap();
        assert_eq!(probe.sends(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    }
}

/// Responses behind a missing one are kept: only the rest of its own request is asked for again (16 packets of 1024 octets).
#[test]
fn responses_behind_a_gap_are_kept() {
    const PACKETS: usize = 40;
    let chunk = 16;
    let mut probe = Probe::new(Setup { rcvbuf: 256 << 10, ..plain() });
    let data: Vec<u8> = (0..PACKETS * 1024).map(|i| (i * 7 + (i >> 10)) as u8).collect();
    probe.end.mem.register(KEY + 1, 0, vec![0; data.len()]);
    let sge = Sge { addr: 0, length: data.len() as u32, lkey: Lkey::new(KEY + 1) };
    probe.post(1, SendOp::Read { remote: remote(0) }, &[sge]);
    probe.post(2, SendOp::Write { remote: remote(0) }, &[local(0, 8)]);
    let asked = probe.out();
    assert_eq!(asked.len(), 4, "three requests for the READ: {asked:?}");
    let answer = |probe: &mut Probe, psn: usize| {
        let payload = &data[psn * 1024..][..1024];
        let aeth = aeth(ACK);
        let last = psn % chunk == chunk - 1 || psn == PACKETS - 1;
        let response = match (psn.is_multiple_of(chunk), last) {
            (true, _) => Response::ReadFirst { aeth, payload },
            (_, true) => Response::ReadLast { aeth, payload },
            _ => Response::ReadMiddle { payload },
        };
        probe.response(psn as u32, response)
    };
    for psn in (0..PACKETS).filter(|psn| ![3, 5, 18].contains(psn)) {
        answer(&mut probe, psn).unwrap();
        let said = probe.out();
        match psn {
            4 => assert_eq!(said, [format!("read 3 @{:#x}+{}", 3 * 1024, 13 * 1024)]),
            19 => assert_eq!(said, [format!("read 18 @{:#x}+{}", 18 * 1024, 14 * 1024)]),
            _ => assert_eq!(said, [""; 0], "{psn}"),
        }
    }
    probe.ack(40, ACK).unwrap_err();
    assert_eq!(probe.sends(), []);
    // All that was asked for again comes; most of it is in its place already.
    for psn in (3..16).chain(18..32) {
        let _ = answer(&mut probe, psn);
    }
    // The acknowledgement of the WRITE came before.
    assert_eq!(probe.sends(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(probe.end.mem.bytes(KEY + 1), data);
    assert_eq!(probe.end.qp.counters().resent_pkts, 2);
    assert_eq!(probe.end.qp.counters().implied_nak, 2);
}
