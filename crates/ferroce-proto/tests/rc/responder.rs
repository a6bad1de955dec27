//! The responder: gaps, duplicates and replays; refusals are in `refusals`.

use std::time::Duration;

use ferroce_proto::{AsyncEventKind, DropReason, QpState, SelectiveRepeat, SendOp, WcStatus};
use ferroce_wire::{AtomicEth, Psn, Request, Response, Reth, Rkey};

use crate::probe::{ACK, BASE, DATA, KEY, Probe, aeth, local, remote, reth, rnr, send_only, write_only};
use crate::world::Setup;

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
fn a_replayed_read_leaves_a_write_in_progress_alone() {
    let mut probe = Probe::new(Setup::default());
    probe.request(0, read(0, 8)).unwrap();
    probe.quiet_request(1, Request::WriteFirst { reth: reth(100, 2058), payload: &DATA[..1024] }).unwrap();
    assert_eq!(probe.request(0, read(0, 8)), DUPLICATE);
    probe.quiet_request(2, Request::WriteMiddle { payload: &DATA[1024..2048] }).unwrap();
    assert_eq!(probe.out(), ["read_only 0 [8] msn 1"], "still to be answered when its duplicate came");
    assert_eq!(probe.request(0, read(0, 8)), DUPLICATE);
    probe.request(3, Request::WriteLast { payload: &DATA[2048..2058], imm: None }).unwrap();
    assert_eq!(probe.out(), ["read_only 0 [8] msn 1", "ack 3 msn 2"]);
    assert_eq!(probe.bytes()[100..2158], DATA[..2058]);
}

#[test]
fn the_ack_of_a_duplicate_does_not_pass_an_unanswered_read() {
    let mut probe = Probe::new(Setup::default());
    let write = write_only(reth(0, 4), &DATA[..4]);
    probe.request(0, write).unwrap();
    probe.request(1, read(0, 4)).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1", "read_only 1 [4] msn 2"]);
    assert_eq!(probe.request(0, write), DUPLICATE);
    assert_eq!(probe.out(), ["ack 0 msn 2"]);
    // Nor does it when more was executed behind the read.
    probe.request(2, write).unwrap();
    assert_eq!(probe.out(), ["ack 2 msn 3"]);
    assert_eq!(probe.request(0, write), DUPLICATE);
    assert_eq!(probe.out(), ["ack 0 msn 3"]);
    assert_eq!(probe.request(2, write), DUPLICATE);
    assert_eq!(probe.out(), ["ack 2 msn 3"]);
}

#[test]
fn duplicates_are_acknowledged_once_a_batch() {
    let mut probe = Probe::new(Setup::default());
    let write = |psn: u32| write_only(reth(u64::from(psn) * 4, 4), &DATA[..4]);
    for psn in 0..5 {
        probe.request(psn, write(psn)).unwrap();
    }
    assert_eq!(probe.out(), ["ack 4 msn 5"], "one for the batch");
    probe.fill(0);
    for psn in 0..5 {
        assert_eq!(probe.request(psn, write(psn)), DUPLICATE);
    }
    assert_eq!(probe.out(), ["ack 4 msn 5"]);
    assert_eq!(probe.quiet_request(1, write(1)), DUPLICATE);
    assert_eq!(probe.out(), ["ack 4 msn 5"]);
    assert!(probe.bytes().iter().all(|byte| *byte == 0), "not executed again");
    assert_eq!(probe.end.qp.counters().duplicate_request, 6);
}

/// Only requests that ask for it are acknowledged.
#[test]
fn quiet_requests_are_not_acknowledged() {
    let mut probe = Probe::new(Setup::default());
    probe.quiet_request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    assert_eq!(probe.out(), [""; 0]);
    probe.request(1, write_only(reth(0, 4), &DATA[..4])).unwrap();
    probe.quiet_request(2, write_only(reth(0, 4), &DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["ack 1 msn 2"]);
}

/// Behind a request, which is longer, an ACK shares its system call.
#[test]
fn a_lone_ack_rides_behind_a_request() {
    let mut probe = Probe::new(Setup::default());
    probe.request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    probe.post(1, SendOp::Send, &[local(0, 8)]);
    assert_eq!(probe.out_batch().unwrap(), ["send_only 0 [8] A", "ack 0 msn 1"]);
    assert_eq!(probe.out_batch(), None);
}

/// Where packets may arrive one by one, the peer sees the ACK before what answers its message, as with a card.
#[test]
fn a_lone_ack_leaves_first_where_it_shall() {
    let mut probe = Probe::new(Setup::default());
    probe.end.qp.put_ack_first(true);
    probe.request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    probe.post(1, SendOp::Send, &[local(0, 8)]);
    assert_eq!(probe.out(), ["ack 0 msn 1", "send_only 0 [8] A"]);
}

/// A delayed ACK covers later requests too, and any other answer replaces it.
#[test]
fn an_ack_that_is_held_stays_behind() {
    let mut probe = Probe::new(Setup::default());
    let write = write_only(reth(0, 4), &DATA[..4]);
    probe.request(0, write).unwrap();
    assert!(!probe.end.qp.delays_ack());
    probe.end.qp.delay_ack(true);
    assert!(probe.end.qp.delays_ack());
    probe.post(1, SendOp::Send, &[local(0, 8)]);
    assert_eq!(probe.out(), ["send_only 0 [8] A"]);
    probe.request(1, write).unwrap();
    assert_eq!(probe.out(), [""; 0]);
    probe.end.qp.delay_ack(false);
    assert_eq!(probe.out(), ["ack 1 msn 2"]);
    probe.end.qp.delay_ack(true);
    assert!(!probe.end.qp.delays_ack(), "none is owed");
    probe.request(2, write).unwrap();
    probe.request(4, write).unwrap();
    assert_eq!(probe.out(), ["ack 2 msn 3", "nak 0x60 3 msn 3"]);
}

/// A program is about to end the queue pair; its last ACK may get lost. The answer to a READ is no ACK, and other peers get no copies.
#[test]
fn copies_of_the_last_ack_go_to_a_peer_that_agreed_to_selective_repeat() {
    let setup = |selective_repeat| Setup { selective_repeat, ..Setup::default() };
    let mut probe = Probe::new(setup(SelectiveRepeat::Agreed));
    let write = write_only(reth(0, 4), &DATA[..4]);
    assert!(!probe.end.qp.repeat_ack(probe.now), "nothing was received");
    for psn in 0..2 {
        probe.request(psn, write).unwrap();
    }
    assert_eq!(probe.out(), ["ack 1 msn 2"]);
    assert!(probe.end.qp.repeat_ack(probe.now));
    assert_eq!(probe.out(), ["ack 1 msn 2", "ack 1 msn 2"]);
    probe.request(2, read(0, 4)).unwrap();
    assert_eq!(probe.out().len(), 1);
    assert!(!probe.end.qp.repeat_ack(probe.now), "the last answer was a READ response");
    probe.request(3, write).unwrap();
    probe.out();
    probe.now += Duration::from_secs(1);
    assert!(!probe.end.qp.repeat_ack(probe.now), "the peer has the ACK by now");
    probe.request(4, write).unwrap();
    probe.out();
    probe.to(QpState::Error);
    assert!(!probe.end.qp.repeat_ack(probe.now), "it has ended");
    let mut probe = Probe::new(setup(SelectiveRepeat::Off));
    probe.request(0, write).unwrap();
    probe.out();
    assert!(!probe.end.qp.repeat_ack(probe.now), "no agreement");
}

#[test]
fn one_nak_for_each_gap() {
    let mut probe = Probe::new(Setup::default());
    let write = write_only(reth(0, 4), &DATA[..4]);
    probe.request(0, write).unwrap();
    for psn in 3..7 {
        probe.request(psn, write).unwrap();
    }
    assert_eq!(probe.out(), ["ack 0 msn 1", "nak 0x60 1 msn 1"]);
    assert_eq!(probe.request(3, write), Err(DropReason::OutOfSequence));
    assert_eq!(probe.request(0, write), DUPLICATE, "a duplicate is no recovery");
    assert_eq!(probe.request(3, write), Err(DropReason::OutOfSequence));
    assert_eq!(probe.out(), ["ack 0 msn 1"]);
    probe.request(1, write).unwrap();
    assert_eq!(probe.request(3, write), Err(DropReason::OutOfSequence));
    assert_eq!(probe.request(4, write), Err(DropReason::OutOfSequence));
    assert_eq!(probe.out(), ["ack 1 msn 2", "nak 0x60 2 msn 2"], "what is held comes again, and 2 does not");
    assert_eq!(probe.end.qp.counters().sent_seq_err, 2);
    assert_eq!(probe.end.qp.query().rq_psn, Psn::new(probe.setup.psn[1]).add(2));
}

#[test]
fn a_partial_read_request_is_answered_as_a_new_one() {
    let mut probe = Probe::new(Setup::default());
    probe.request(0, read(0, 3000)).unwrap();
    assert_eq!(probe.out(), ["read_first 0 [1024] msn 1", "read_middle 1 [1024]", "read_last 2 [952] msn 1"]);
    assert_eq!(probe.request(1, read(1024, 1976)), DUPLICATE);
    assert_eq!(probe.out(), ["read_first 1 [1024] msn 1", "read_last 2 [952] msn 1"]);
    assert_eq!(probe.request(2, read(2048, 952)), DUPLICATE);
    assert_eq!(probe.out(), ["read_only 2 [952] msn 1"]);
}

/// As requester: whichever opcodes the responder chooses for the rest of a READ.
#[test]
fn the_rest_of_a_read_may_come_as_first_or_as_middle() {
    let payload = &DATA[1024..2048];
    let end = &DATA[2048..3000];
    let middle = Response::ReadMiddle { payload };
    let first = Response::ReadFirst { aeth: aeth(ACK), payload };
    let last = Response::ReadLast { aeth: aeth(ACK), payload: end };
    let only = Response::ReadOnly { aeth: aeth(ACK), payload: end };
    for (second, third) in [(middle, last), (first, last), (middle, only), (first, only)] {
        let mut probe = Probe::new(Setup { early_resends: false, ..Setup::default() });
        probe.post(1, SendOp::Read { remote: remote(0) }, &[local(10_000, 3000)]);
        assert_eq!(probe.out(), ["read 0 @0x0+3000"]);
        probe.response(0, Response::ReadFirst { aeth: aeth(ACK), payload: &DATA[..1024] }).unwrap();
        // The second is lost.
        probe.response(2, last).unwrap();
        assert_eq!(probe.out(), ["read 1 @0x400+1976"]);
        probe.response(1, second).unwrap();
        assert_eq!(probe.sends(), [(1, WcStatus::Success)], "what came behind the gap is kept");
        assert_eq!(probe.response(2, third), Err(DropReason::StaleResponse));
        assert_eq!(probe.bytes()[10_000..13_000], DATA[..3000]);
    }
}

#[test]
fn replay_of_a_read_through_a_zero_based_window() {
    let mut probe = Probe::new(Setup::default());
    probe.end.mem.register(9, 0, DATA[..3000].to_vec());
    let reth = |va, dma_len| Reth { va, rkey: Rkey::new(9), dma_len };
    probe.request(0, Request::ReadRequest { reth: reth(0, 3000) }).unwrap();
    assert_eq!(probe.out().len(), 3);
    assert_eq!(probe.request(0, Request::ReadRequest { reth: reth(0, 3000) }), DUPLICATE);
    assert_eq!(probe.request(1, Request::ReadRequest { reth: reth(1024, 1976) }), DUPLICATE);
    assert_eq!(
        probe.out(),
        // The peer needs the second replay now.
        ["read_first 0 [1024] msn 1", "read_middle 1 [1024]", "read_last 2 [952] msn 1"]
    );
    assert_eq!(probe.request(1, Request::ReadRequest { reth: reth(1024, 1976) }), DUPLICATE);
    assert_eq!(probe.out(), ["read_first 1 [1024] msn 1", "read_last 2 [952] msn 1"]);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut probe = Probe::new(Setup { rd_atomic: 2, ..Setup::default() });
    probe.request(0, read(0, 4)).unwrap();
    probe.request(1, fetch_add(0, 1)).unwrap();
    assert_eq!(probe.request(2, read(0, 4)), REFUSED);
    assert_eq!(probe.out(), ["read_only 0 [4] msn 1", "atomic 1 = 0 msn 2", "nak 0x61 2 msn 2"]);
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpReqErr]);
}

#[test]
fn within_the_depth_everything_can_be_replayed() {
    let mut probe = Probe::new(Setup { rd_atomic: 4, ..Setup::default() });
    for psn in 0..10 {
        probe.request(psn, read(u64::from(psn), 4)).unwrap();
        probe.out();
    }
    for psn in 6..10 {
        assert_eq!(probe.request(psn, read(u64::from(psn), 4)), DUPLICATE);
        assert_eq!(probe.out(), [format!("read_only {psn} [4] msn 10")]);
    }
    assert_eq!(probe.request(5, read(5, 4)), Err(DropReason::DuplicateNotFound));
    assert_eq!(probe.out(), [""; 0]);
    let mut probe = Probe::new(Setup { rd_atomic: 0, ..Setup::default() });
    assert_eq!(probe.request(0, read(0, 4)), REFUSED);
    assert_eq!(probe.out(), ["nak 0x61 0 msn 0"]);
}

/// rxe rounds the depth up to a power of two and, as requester, uses all of it.
#[test]
fn the_depth_is_rounded_up_as_rxe_does() {
    let mut probe = Probe::new(Setup { rd_atomic: 3, ..Setup::default() });
    for psn in 0..4 {
        probe.request(psn, read(0, 4)).unwrap();
    }
    assert_eq!(probe.request(4, read(0, 4)), REFUSED);
}

#[test]
fn reads_and_atomics_are_never_answered_with_rnr() {
    let mut probe = Probe::new(Setup::default());
    assert_eq!(probe.request(0, send_only(&[])), Err(DropReason::ReceiverNotReady));
    assert_eq!(probe.out(), ["rnr 0 timer 12 msn 0"]);
    probe.request(0, read(0, 4)).unwrap();
    probe.request(1, fetch_add(0, 1)).unwrap();
    assert_eq!(probe.out(), ["read_only 0 [4] msn 1", "atomic 1 = 0 msn 2"]);
}

/// As requester: rxe answers a READ so when it cannot send.
#[test]
fn an_rnr_nak_for_a_read_is_survived() {
    let mut probe = Probe::new(Setup::default());
    probe.post(1, SendOp::Read { remote: remote(0) }, &[local(0, 4)]);
    assert_eq!(probe.out(), ["read 0 @0x0+4"]);
    probe.ack(0, rnr(12)).unwrap();
    assert_eq!(probe.out(), [""; 0]);
    assert_eq!(probe.wait(Duration::from_micros(640)), [(640, "read 0 @0x0+4".into())]);
    probe.response(0, Response::ReadOnly { aeth: aeth(ACK), payload: &DATA[..4] }).unwrap();
    assert_eq!(probe.sends(), [(1, WcStatus::Success)]);
}

#[test]
fn memory_that_goes_in_the_middle_of_a_read_ends_the_connection() {
    let mut probe = Probe::new(Setup::default());
    probe.batch = 2;
    probe.request(0, read(0, 8192)).unwrap();
    probe.request(8, write_only(reth(0, 4), &DATA[..4])).unwrap();
    assert_eq!(probe.out_batch().unwrap(), ["read_first 0 [1024] msn 1", "read_middle 1 [1024]"]);
    probe.end.mem.deregister(KEY);
    // The PSN that cannot be delivered, and nothing behind it.
    assert_eq!(probe.out(), ["nak 0x62 2 msn 1"]);
    assert_eq!(probe.end.qp.state(), QpState::Error);
    assert_eq!(probe.asyncs(), [AsyncEventKind::QpAccessErr]);
}

/// A duplicate that the network made may come when the memory is rightly gone: that must not end the queue pair.
#[test]
fn memory_that_goes_before_a_replay_does_not_end_the_connection() {
    let mut probe = Probe::new(Setup::default());
    probe.request(0, read(0, 8)).unwrap();
    probe.out();
    probe.end.mem.deregister(KEY);
    assert_eq!(probe.request(0, read(0, 8)), DUPLICATE);
    assert_eq!(probe.out(), ["nak 0x62 0 msn 1"]);
    assert_eq!(probe.end.qp.state(), QpState::Rts);
}
