//! READ responses that were lost and are asked for again: one gap at a time with selective repeat, the rest of the request without.

use std::time::Duration;

use ferroce_proto::{DropReason, NoSharedQueue, SelectiveRepeat, SendOp, WcStatus};
use ferroce_wire::{Bth, IcrcStatus, Operation, Packet, PathMtu, Psn, Request, Response, RnrTimer};

use crate::probe::{ACK, DATA, Probe, aeth, local, remote, reth, rnr};
use crate::world::{QPNS, Setup, flow};

const DUPLICATE: Result<(), DropReason> = Err(DropReason::DuplicateRequest);
/// Eight packets, the last of 832 octets.
const LEN: u32 = 8000;

fn read(offset: u64, len: u32) -> Request<'static> {
    Request::ReadRequest { reth: reth(offset, len) }
}

/// A requester that has sent a READ of eight packets.
fn requester(selective_repeat: SelectiveRepeat) -> Probe {
    let mut probe = Probe::new(Setup { selective_repeat, ..Setup::default() });
    probe.post(1, SendOp::Read { remote: remote(0) }, &[local(10_000, LEN)]);
    assert_eq!(probe.out(), ["read 0 @0x0+8000"]);
    probe
}

/// Gives it the response of packet `n`.
fn answer(probe: &mut Probe, n: u32) -> Result<(), DropReason> {
    let from = n as usize * 1024;
    let payload = &DATA[from..(from + 1024).min(LEN as usize)];
    let response = match n {
        0 => Response::ReadFirst { aeth: aeth(ACK), payload },
        7 => Response::ReadLast { aeth: aeth(ACK), payload },
        _ => Response::ReadMiddle { payload },
    };
    probe.response(n, response)
}

/// What it sends when nothing comes for a while, once.
fn silence(probe: &mut Probe) -> Vec<String> {
    probe.wait(Duration::from_micros(200)).into_iter().map(|(_, text)| text).collect()
}

/// All responses came: the READ completes once, with the right octets.
fn completes(probe: &mut Probe) {
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
    assert_eq!(probe.bytes()[10_000..][..LEN as usize], DATA[..LEN as usize]);
    assert_eq!(probe.wait(Duration::from_secs(1)), []);
}

/// As responder. Last and Only stay the end of the request.
#[test]
fn a_part_of_a_read_is_answered_alone() {
    let mut probe = Probe::new(Setup::default());
    probe.request(0, read(0, LEN)).unwrap();
    assert_eq!(probe.out().len(), 8);
    assert_eq!(probe.request(2, read(2048, 2048)), DUPLICATE);
    assert_eq!(probe.out(), ["read_first 2 [1024] msn 1", "read_middle 3 [1024]"]);
    assert_eq!(probe.request(5, read(5120, 1024)), DUPLICATE);
    assert_eq!(probe.out(), ["read_first 5 [1024] msn 1"]);
    assert_eq!(probe.request(7, read(7168, 832)), DUPLICATE);
    assert_eq!(probe.out(), ["read_only 7 [832] msn 1"]);
}

#[test]
fn parts_that_wait_are_answered_once() {
    let mut probe = Probe::new(Setup::default());
    probe.request(0, read(0, LEN)).unwrap();
    probe.out();
    // Two parts, one of them twice, and one that is inside of another.
    for (psn, request) in
        [(1, read(1024, 2048)), (5, read(5120, 1024)), (1, read(1024, 2048)), (2, read(2048, 1024))]
    {
        assert_eq!(probe.request(psn, request), DUPLICATE);
    }
    assert_eq!(
        probe.out(),
        ["read_first 1 [1024] msn 1", "read_middle 2 [1024]", "read_first 5 [1024] msn 1"]
    );
    // The rest of the request, which has the part in it.
    assert_eq!(probe.request(5, read(5120, 1024)), DUPLICATE);
    assert_eq!(probe.request(4, read(4096, LEN - 4096)), DUPLICATE);
    assert_eq!(
        probe.out(),
        [
            "read_first 4 [1024] msn 1",
            "read_middle 5 [1024]",
            "read_middle 6 [1024]",
            "read_last 7 [832] msn 1"
        ]
    );
}

#[test]
fn each_gap_is_asked_for_alone() {
    let mut probe = requester(SelectiveRepeat::Agreed);
    answer(&mut probe, 0).unwrap();
    answer(&mut probe, 2).unwrap();
    assert_eq!(probe.out(), ["read 1 @0x400+1024"]);
    answer(&mut probe, 5).unwrap();
    assert_eq!(probe.out(), ["read 3 @0xc00+2048"]);
    for n in [6, 7, 1, 3] {
        answer(&mut probe, n).unwrap();
        assert_eq!(probe.out(), [""; 0], "{n}");
    }
    answer(&mut probe, 4).unwrap();
    completes(&mut probe);
}

/// The peer may be a card, which knows the rest of a request alone.
#[test]
fn without_selective_repeat_the_rest_is_asked_for() {
    let mut probe = requester(SelectiveRepeat::Off);
    answer(&mut probe, 0).unwrap();
    answer(&mut probe, 2).unwrap();
    assert_eq!(probe.out(), ["read 1 @0x400+6976"]);
    answer(&mut probe, 5).unwrap();
    assert_eq!(probe.out(), [""; 0], "that is on its way");
    for n in [1, 3, 4, 6, 7] {
        answer(&mut probe, n).unwrap();
    }
    completes(&mut probe);
}

/// The responder answers in order: an answer to a later request for a gap shows that those before it were lost.
#[test]
fn a_gap_that_stays_is_asked_for_again() {
    let mut probe = requester(SelectiveRepeat::Agreed);
    for n in [0, 2, 4, 6] {
        answer(&mut probe, n).unwrap();
    }
    assert_eq!(probe.out(), ["read 1 @0x400+1024", "read 3 @0xc00+1024", "read 5 @0x1400+1024"]);
    answer(&mut probe, 3).unwrap();
    assert_eq!(probe.out(), ["read 1 @0x400+1024"]);
    answer(&mut probe, 5).unwrap();
    assert_eq!(probe.out(), [""; 0], "asked for already");
    for n in [1, 7] {
        answer(&mut probe, n).unwrap();
    }
    completes(&mut probe);
}

/// Silence behind a gap: one packet asks whether the peer is there, and its answer has all gaps asked for.
#[test]
fn silence_asks_for_the_newest_response_alone() {
    let mut probe = requester(SelectiveRepeat::Agreed);
    for n in [0, 2, 4] {
        answer(&mut probe, n).unwrap();
    }
    assert_eq!(probe.out(), ["read 1 @0x400+1024", "read 3 @0xc00+1024"]);
    assert_eq!(silence(&mut probe), ["read 7 @0x1c00+832"]);
    answer(&mut probe, 7).unwrap();
    assert_eq!(probe.out(), ["read 1 @0x400+1024", "read 3 @0xc00+1024", "read 5 @0x1400+2048"]);
    for n in [1, 3, 5, 6] {
        answer(&mut probe, n).unwrap();
    }
    completes(&mut probe);
}

/// The newest response is there: what is missing before it is asked for at once.
#[test]
fn silence_behind_the_newest_response_asks_for_the_gaps() {
    let mut probe = requester(SelectiveRepeat::Agreed);
    for n in [0, 2, 3, 4, 6, 7] {
        answer(&mut probe, n).unwrap();
    }
    assert_eq!(probe.out(), ["read 1 @0x400+1024", "read 5 @0x1400+1024"]);
    assert_eq!(silence(&mut probe), ["read 1 @0x400+1024", "read 5 @0x1400+1024"]);
    for n in [1, 5] {
        answer(&mut probe, n).unwrap();
    }
    completes(&mut probe);
}

/// Nothing of the newest request came: the responder may not have it, so all of it is sent again.
#[test]
fn silence_sends_a_request_again_that_has_no_answer() {
    let mut probe = requester(SelectiveRepeat::Agreed);
    let said = probe.wait(Duration::from_millis(21));
    assert_eq!(said.first().map(|(_, text)| text.as_str()), Some("read 0 @0x0+8000"));
}

/// More than 1024 PSNs are on their way, and the newest request was lost. The responses that came are known by the low bits of their PSNs,
/// and none of them stands for a response that is 1024 PSNs further on: the responder may not have that request, so it is sent again whole.
#[test]
fn a_response_that_came_stands_for_no_later_one() {
    const REQUEST: u32 = 64 << 10;
    const PACKETS: u32 = REQUEST / 256;
    let setup = Setup {
        mtu: PathMtu::B256,
        rcvbuf: 16 << 20,
        selective_repeat: SelectiveRepeat::Agreed,
        ..Setup::default()
    };
    let mut probe = Probe::new(setup);
    let post = |probe: &mut Probe| probe.post(1, SendOp::Read { remote: remote(0) }, &[local(0, REQUEST)]);
    let answer = |probe: &mut Probe, request: u32, n: u32| {
        let payload = &DATA[..256];
        let response = match n {
            0 => Response::ReadFirst { aeth: aeth(ACK), payload },
            _ if n == PACKETS - 1 => Response::ReadLast { aeth: aeth(ACK), payload },
            _ => Response::ReadMiddle { payload },
        };
        probe.response(request * PACKETS + n, response).unwrap();
    };
    // Until the window admits five such requests.
    for request in 0..12 {
        post(&mut probe);
        assert_eq!(probe.out().len(), 1);
        (0..PACKETS).for_each(|n| answer(&mut probe, request, n));
    }
    (0..5).for_each(|_| post(&mut probe));
    assert_eq!(probe.out().len(), 5);
    (1..PACKETS).for_each(|n| answer(&mut probe, 12, n));
    assert_eq!(probe.out(), [format!("read {} @0x0+256", 12 * PACKETS)]);
    assert_eq!(silence(&mut probe), [format!("read {} @0x0+65536", 16 * PACKETS)]);
    // In the end all responses come.
    for request in 12..17 {
        let from = u32::from(request == 12);
        (0..PACKETS).filter(|n| request > 12 || *n < from).for_each(|n| answer(&mut probe, request, n));
    }
    assert_eq!(probe.sends().len(), 17);
}

/// The result of an atomic that comes behind a gap is kept as responses are: it comes only once.
#[test]
fn the_result_of_an_atomic_behind_a_gap_is_kept() {
    for selective_repeat in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
        let mut probe = requester(selective_repeat);
        probe.post(2, SendOp::FetchAdd { remote: remote(8192), add: 1 }, &[local(20_000, 8)]);
        assert_eq!(probe.out(), ["fetch_add 8 1"]);
        for n in [0, 1, 2, 4, 5, 6, 7] {
            answer(&mut probe, n).unwrap();
        }
        assert_eq!(probe.out().len(), 1, "response 3 is asked for");
        let result = Response::AtomicAcknowledge { aeth: aeth(ACK), original: 41 };
        assert_eq!(probe.response(8, result), Ok(()), "{selective_repeat:?}");
        assert_eq!(probe.out(), [""; 0]);
        answer(&mut probe, 3).unwrap();
        assert_eq!(probe.sends(), [(1, WcStatus::Success), (2, WcStatus::Success)], "{selective_repeat:?}");
        assert_eq!(probe.bytes()[10_000..][..LEN as usize], DATA[..LEN as usize]);
        assert_eq!(probe.bytes()[20_000..][..8], 41_u64.to_ne_bytes());
        assert_eq!(probe.wait(Duration::from_secs(1)), []);
    }
}

/// While a lost response is asked for, the peer reports that it misses a request behind the READ: that is sent again as well, at once.
#[test]
fn a_report_behind_a_lost_response_counts() {
    let mut probe = requester(SelectiveRepeat::Agreed);
    (2..4).for_each(|wr_id| probe.post(wr_id, SendOp::Send, &[]));
    assert_eq!(probe.out().len(), 2);
    for n in [0, 1, 2, 4, 5, 6, 7] {
        answer(&mut probe, n).unwrap();
    }
    assert_eq!(probe.out(), ["read 3 @0xc00+1024"]);
    // It waits for PSN 8 and holds PSN 9.
    let op = Operation::Sack { aeth: aeth(ACK), held: 1 };
    let bth = Bth::new(QPNS[0], Psn::new(probe.setup.psn[0]).add(8));
    let report = Packet { bth, op, icrc: IcrcStatus::Checked };
    let end = &mut probe.end;
    end.qp.handle_datagram(probe.now, &flow(1), &report, &mut NoSharedQueue, &mut end.mem).unwrap();
    assert_eq!(probe.out(), ["read 3 @0xc00+4928", "send_only 8 [0] A", "send_only 9 [0] A"]);
    answer(&mut probe, 3).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
    probe.ack(9, ACK).unwrap();
    assert_eq!(probe.sends(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(probe.wait(Duration::from_secs(1)), []);
}

/// The receiver is not ready for a SEND, and its NAK shows that the last response of the READ before it was lost. The READ is sent again at
/// once, and the SEND when the receiver said (IBTA 9.7.5.2.8).
#[test]
fn a_lost_response_is_asked_for_while_the_receiver_is_not_ready() {
    for selective_repeat in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
        // The longest delay is more than all retries take.
        for (code, is_late) in [(12, false), (12, true), (0, false), (0, true)] {
            let mut probe = Probe::new(Setup { selective_repeat, retry_cnt: 1, ..Setup::default() });
            probe.post(1, SendOp::Read { remote: remote(0) }, &[local(10_000, LEN)]);
            probe.post(2, SendOp::Send, &[]);
            assert_eq!(probe.out(), ["read 0 @0x0+8000", "send_only 8 [0] A"]);
            (0..7).for_each(|n| answer(&mut probe, n).unwrap());
            probe.ack(8, rnr(code)).unwrap();
            assert_eq!(probe.out(), ["read 7 @0x1c00+832"]);
            assert_eq!(probe.ack(8, rnr(code)), Err(DropReason::ResponseGap), "twice");
            assert_eq!(probe.out(), [""; 0]);
            let until = probe.now + RnrTimer::new(code).unwrap().delay();
            if is_late {
                // It is lost once more.
                let said = probe.wait(Duration::from_micros(400));
                assert!(!said.is_empty(), "the READ is tried again");
                assert!(said.iter().all(|(_, text)| text == "read 7 @0x1c00+832"), "{said:?}");
            }
            answer(&mut probe, 7).unwrap();
            assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
            assert_eq!(probe.out(), [""; 0]);
            let rest = until.saturating_since(probe.now);
            let said = probe.wait(rest);
            assert_eq!(said, [(until.as_nanos() / 1000, "send_only 8 [0] A".to_owned())]);
            probe.ack(8, ACK).unwrap();
            assert_eq!(probe.sends(), [(2, WcStatus::Success)]);
            assert_eq!(probe.end.qp.counters().rcvd_rnr_err, 1);
            assert_eq!(probe.wait(Duration::from_secs(1)), []);
        }
    }
}
