//! Requests that came too early: held, and executed in order, once, when what is missing before them has come.

use std::sync::Arc;
use std::time::Duration;

use ferroce_proto::{Budget, DropReason, QpState, SendOp, WcStatus};
use ferroce_wire::{AtomicEth, PathMtu, Request, Rkey};

use crate::probe::{BASE, DATA, KEY, Probe, local, reth, send_only, write_only};
use crate::world::Setup;

const EARLY: Result<(), DropReason> = Err(DropReason::OutOfSequence);
const BLOCKS: usize = 128;

fn word(index: u32) -> Request<'static> {
    write_only(reth(u64::from(index) * 4, 4), &DATA[index as usize * 4..][..4])
}

fn fetch_add(offset: u64, add: u64) -> Request<'static> {
    let atomic = AtomicEth { va: BASE + offset, rkey: Rkey::new(KEY), swap_or_add: add, compare: 0 };
    Request::FetchAdd { atomic }
}

fn budgeted(setup: &Setup, budget: &Arc<Budget>) -> Probe {
    Probe::with_queue_pair(*setup, setup.with_budget(0, Arc::clone(budget)))
}

/// One NAK for the gap; when it closes, one ACK for all that was held.
#[test]
fn a_gap_that_closes_is_acknowledged_as_a_whole() {
    let budget = Arc::new(Budget::new(1 << 20));
    // The PSNs wrap inside of what is held.
    let setup = Setup { psn: [7, 0xff_fffe], ..Setup::default() };
    let mut probe = budgeted(&setup, &budget);
    for psn in [1, 3, 4, 2] {
        probe.quiet_request(psn, word(psn)).unwrap();
    }
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    assert!(probe.bytes().iter().all(|byte| *byte == 0), "nothing is written before its turn");
    assert_eq!(budget.hold_blocks_available(), BLOCKS - 1);
    probe.quiet_request(0, word(0)).unwrap();
    assert_eq!(probe.out(), ["ack 4 msn 5"]);
    assert_eq!(probe.bytes()[..20], DATA[..20]);
    assert_eq!(budget.hold_blocks_available(), BLOCKS);
    let counters = probe.end.qp.counters();
    assert_eq!((counters.held_request, counters.held_executed, counters.held_no_room), (4, 4, 0));
    assert_eq!((counters.out_of_seq_request, counters.dropped_pkts), (4, 0));
    // The peer sends all of it again, as a standard requester does.
    for psn in 0..5 {
        assert_eq!(probe.request(psn, word(psn)), Err(DropReason::DuplicateRequest));
    }
    assert_eq!(probe.out(), ["ack 4 msn 5"]);
}

/// Of two packets with one PSN the first counts.
#[test]
fn the_first_copy_counts() {
    let mut probe = Probe::new(Setup::default());
    probe.request(1, word(1)).unwrap();
    assert_eq!(probe.request(1, write_only(reth(4, 4), &DATA[100..104])), EARLY);
    probe.request(0, word(0)).unwrap();
    assert_eq!(probe.out().len(), 2, "a NAK and an ACK");
    assert_eq!(probe.bytes()[..8], DATA[..8]);
}

/// A packet with the middle of a message is no error before the first one has come.
#[test]
fn a_message_in_the_wrong_order_is_put_together() {
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(9, &[local(0, 4096)]);
    let middle = Request::SendMiddle { payload: &DATA[1024..2048] };
    let last = Request::SendLast { payload: &DATA[2048..2050], tail: ferroce_wire::SendTail::None };
    probe.request(2, last).unwrap();
    probe.request(1, middle).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    probe.request(0, Request::SendFirst { payload: &DATA[..1024] }).unwrap();
    assert_eq!(probe.out(), ["ack 2 msn 1"]);
    assert_eq!(probe.end.recvs.len(), 1);
    assert_eq!((probe.end.recvs[0].wr_id, probe.end.recvs[0].byte_len), (9, 2050));
    assert_eq!(probe.bytes()[..2050], DATA[..2050]);
}

/// A READ sees the writes before it, an atomic is executed once, and both are answered in order.
#[test]
fn reads_and_atomics_wait_for_their_turn() {
    let mut probe = Probe::new(Setup::default());
    let read = Request::ReadRequest { reth: reth(0, 2048) };
    probe.request(1, read).unwrap();
    probe.request(3, fetch_add(4096, 5)).unwrap();
    assert_eq!(probe.request(3, fetch_add(4096, 5)), EARLY);
    probe.request(4, word(1)).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    probe.request(0, write_only(reth(0, 4), &DATA[..4])).unwrap();
    let said = probe.out();
    assert_eq!(said.first().map(String::as_str), Some("ack 0 msn 1"));
    assert!(said.iter().any(|line| line.starts_with("read_last 2")), "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("ack 4 msn 4"), "{said:?}");
    assert_eq!(probe.bytes()[4096..4104], 5u64.to_ne_bytes());
}

/// The key of a held WRITE is looked at in its turn: what is before it was executed.
#[test]
fn an_error_is_reported_in_its_turn() {
    let budget = Arc::new(Budget::new(1 << 20));
    let mut probe = budgeted(&Setup::default(), &budget);
    let mut bad = reth(0, 4);
    bad.rkey = Rkey::new(KEY + 1);
    probe.request(1, word(1)).unwrap();
    probe.request(2, write_only(bad, &DATA[..4])).unwrap();
    probe.request(3, word(3)).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    assert_eq!(probe.end.qp.state(), QpState::Rts);
    probe.request(0, word(0)).unwrap();
    assert_eq!(probe.out(), ["ack 1 msn 2", "nak 0x62 2 msn 2"]);
    assert_eq!(probe.end.qp.state(), QpState::Error);
    assert_eq!(probe.bytes()[..16], [&DATA[..8], &[0; 8]].concat());
    assert_eq!(budget.hold_blocks_available(), BLOCKS, "freed with the queue pair's end");
}

/// No receive WQE: one RNR NAK in its turn. The requests behind it stay held.
#[test]
fn a_held_send_meets_its_rnr_nak_in_its_turn() {
    let mut probe = Probe::new(Setup::default());
    probe.request(1, send_only(&DATA[..4])).unwrap();
    probe.request(2, word(2)).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    probe.request(0, word(0)).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1", "rnr 1 timer 12 msn 1"]);
    probe.post_recv(1, &[local(1024, 64)]);
    probe.post_recv(2, &[local(2048, 64)]);
    probe.request(1, send_only(&DATA[..4])).unwrap();
    assert_eq!(probe.out(), ["ack 2 msn 3"]);
    assert_eq!(probe.end.recvs.len(), 1, "one WQE");
    assert_eq!(probe.end.recvs[0].status, WcStatus::Success);
}

/// 127 PSNs behind the expected one at most, and 256 KiB.
#[test]
fn no_more_is_held_than_a_queue_pairs_share() {
    let mut probe = Probe::new(Setup::default());
    probe.request(127, word(127)).unwrap();
    assert_eq!(probe.request(128, word(128)), EARLY);
    assert_eq!(probe.request(1 << 22, word(1)), EARLY);
    assert_eq!(probe.end.qp.counters().held_no_room, 2);

    let budget = Arc::new(Budget::new(1 << 20));
    let setup = Setup { mtu: ferroce_wire::PathMtu::B4096, ..Setup::default() };
    let mut probe = budgeted(&setup, &budget);
    let held = (1..128).filter(|psn| probe.request(*psn, word(*psn)).is_ok()).count();
    assert_eq!(held, 60);
    assert_eq!(budget.hold_blocks_available(), BLOCKS - 4);
    drop(probe);
    assert_eq!(budget.hold_blocks_available(), BLOCKS, "freed with the queue pair");
}

/// A queue pair that holds much leaves others what they need; without room, requests are dropped as a standard responder does.
#[test]
fn a_pool_without_room_is_as_if_nothing_were_held() {
    let budget = Arc::new(Budget::new(1 << 20).with_hold_blocks(1));
    let [mut first, mut second] = [0, 1].map(|_| budgeted(&Setup::default(), &budget));
    first.request(1, word(1)).unwrap();
    assert_eq!(second.request(1, word(1)), EARLY);
    assert_eq!(second.out(), ["nak 0x60 0 msn 0"]);
    second.request(0, word(0)).unwrap();
    assert_eq!(second.out(), ["ack 0 msn 1"]);
    second.request(1, word(1)).unwrap();
    assert_eq!(second.out(), ["ack 1 msn 2"]);
    assert_eq!(second.end.qp.counters().held_no_room, 1);
    first.request(0, word(0)).unwrap();
    assert_eq!(first.out(), ["nak 0x60 0 msn 0", "ack 1 msn 2"]);
    assert_eq!(budget.hold_blocks_available(), 1);
}

/// A peer that never sends what is missing does not keep the memory: four ACK timeouts, of 4.096 us times 2^14.
#[test]
fn what_is_held_is_given_up_after_four_timeouts() {
    let budget = Arc::new(Budget::new(1 << 20));
    let mut probe = budgeted(&Setup::default(), &budget);
    probe.request(1, word(1)).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    probe.wait(Duration::from_millis(268));
    assert_eq!(budget.hold_blocks_available(), BLOCKS - 1);
    probe.wait(Duration::from_millis(1));
    assert_eq!(budget.hold_blocks_available(), BLOCKS);
    assert_eq!(probe.end.qp.poll_timeout(), None);
    // The peer sends everything again.
    probe.request(0, word(0)).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1"]);
    probe.request(1, word(1)).unwrap();
    assert_eq!(probe.out(), ["ack 1 msn 2"]);
}

/// RESET and ERROR free everything.
#[test]
fn states_without_service_hold_nothing() {
    for state in [QpState::Reset, QpState::Error] {
        let budget = Arc::new(Budget::new(1 << 20));
        let mut probe = budgeted(&Setup::default(), &budget);
        probe.request(1, word(1)).unwrap();
        probe.to(state);
        assert_eq!(budget.hold_blocks_available(), BLOCKS, "{state:?}");
        assert_eq!(probe.end.qp.poll_timeout(), None);
    }
}

/// A gap behind a gap: the NAK for the second one leaves with the next request behind it, and only then.
#[test]
fn each_gap_has_one_nak() {
    let mut probe = Probe::new(Setup::default());
    for psn in [1, 3] {
        probe.quiet_request(psn, word(psn)).unwrap();
    }
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    probe.quiet_request(0, word(0)).unwrap();
    assert_eq!(probe.out(), ["ack 1 msn 2"]);
    probe.quiet_request(4, word(4)).unwrap();
    probe.quiet_request(5, word(5)).unwrap();
    assert_eq!(probe.out(), ["nak 0x60 2 msn 2"]);
    probe.quiet_request(2, word(2)).unwrap();
    assert_eq!(probe.out(), ["ack 5 msn 6"]);
    probe.post(1, SendOp::Send, &[local(0, 8)]);
    assert_eq!(probe.out(), ["send_only 0 [8] A"]);
}

/// A request that no path MTU permits is not held, and takes no memory: nothing would give that back while the gap stays.
#[test]
fn a_request_longer_than_the_path_mtu_takes_no_memory() {
    let budget = Arc::new(Budget::new(1 << 20));
    let mut probe = budgeted(&Setup { mtu: PathMtu::B256, ..Setup::default() }, &budget);
    let long = write_only(reth(0, 1024), &DATA[..1024]);
    assert_eq!(probe.request(1, long), EARLY);
    assert_eq!(probe.out(), ["nak 0x60 0 msn 0"]);
    assert_eq!(budget.hold_blocks_available(), BLOCKS);
    // One that is permitted is held, and the other one is refused in its turn.
    probe.request(1, word(1)).unwrap();
    assert_eq!(budget.hold_blocks_available(), BLOCKS - 1);
    assert_eq!(probe.request(2, long), EARLY);
    probe.request(0, word(0)).unwrap();
    assert_eq!(probe.out(), ["ack 1 msn 2"]);
    assert_eq!(budget.hold_blocks_available(), BLOCKS);
    assert_eq!(probe.request(2, long), Err(DropReason::Refused));
    assert_eq!(probe.out(), ["nak 0x61 2 msn 2"]);
}
