//! A bad network: exactly the right octets, every completion once and in order, and the same run from the same seed.

use std::cell::Cell;
use std::time::{Duration, Instant as WallClock};

use ferroce_proto::{Counters, Remote, SelectiveRepeat, SendOp, SendWr, Sge};
use ferroce_sim::{Rng, Seed, Stats, Verdict, rules};
use ferroce_wire::{Lkey, PathMtu, Rkey};

use crate::ram::Ram;
use crate::workload::{Direction, MAX_LEN, memory};
use crate::world::{Frame, QPNS, Setup, World};

const KEY: u32 = 1;

/// How a run went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Outcome {
    simulated: Duration,
    counters: [Counters; 2],
    network: Stats,
    trace: [u64; 2],
    bad_icrc: [u64; 2],
}

/// Parts of a million.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss: u32,
    bursts: u32,
    duplication: u32,
    reordering: u32,
    corruption: u32,
}

const BAD: Faults =
    Faults { loss: 50_000, bursts: 1_000, duplication: 10_000, reordering: 10_000, corruption: 1_000 };

fn run(setup: &Setup, faults: Faults, seed: u64, messages: u64, largest: u32) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut world = World::connected(setup, [memory(), memory()]);
    world.quiet = true;
    let us = Duration::from_micros;
    world.network.rule(rules::bursts(rng.fork(), faults.bursts, 8));
    world.network.rule(rules::loss(rng.fork(), faults.loss));
    world.network.rule(rules::duplication(rng.fork(), faults.duplication, us(200)));
    world.network.rule(rules::reordering(rng.fork(), faults.reordering, us(60)));
    world.network.rule(rules::corruption(rng.fork(), faults.corruption));
    let mut directions = [0, 1].map(|_| Direction::new(rng.fork(), messages / 2, largest));
    loop {
        for (side, direction) in directions.iter_mut().enumerate() {
            let [one, other] = &mut world.ends;
            direction.pump(world.now, if side == 0 { [one, other] } else { [other, one] });
            world.drain(side);
        }
        if directions.iter().all(Direction::is_done) {
            break;
        }
        assert!(world.step(), "stuck");
    }
    Outcome {
        simulated: Duration::from_nanos(world.now.as_nanos()),
        counters: [0, 1].map(|side| *world.ends[side].qp.counters()),
        network: world.network.stats(),
        trace: [0, 1].map(|side| directions[side].trace),
        bad_icrc: [0, 1].map(|side| world.ends[side].bad_icrc),
    }
}

#[test]
fn two_hundred_thousand_mixed_messages() {
    let seed = Seed::for_test("two_hundred_thousand_mixed_messages", 7);
    let setup = Setup { min_rnr_timer: 1, rnr_retry: 7, psn: [0xff_0000, 0x12_3456], ..Setup::default() };
    let started = WallClock::now();
    let outcome = run(&setup, BAD, seed.value, 200_000, MAX_LEN);
    println!("seed {}, simulated {:?}, took {:?}", seed.value, outcome.simulated, started.elapsed());
    println!("network {:?}", outcome.network);
    for (side, counters) in outcome.counters.iter().enumerate() {
        println!("end {side}: {counters:?}");
        for (name, count) in [
            ("resends", counters.resent_pkts),
            ("sequence NAKs sent", counters.sent_seq_err),
            ("sequence NAKs acted upon", counters.rcvd_seq_err),
            ("implied NAKs", counters.implied_nak),
            ("RNR NAKs", counters.send_rnr_err),
            ("duplicates", counters.duplicate_request),
            ("early resends", counters.early_resends),
            ("out of sequence", counters.out_of_seq_request),
            ("bad ICRCs", outcome.bad_icrc[side]),
        ] {
            assert_ne!(count, 0, "{name}");
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let seed = Seed::for_test("the_same_seed_is_the_same_run", 11);
    let setup = Setup { min_rnr_timer: 1, ..Setup::default() };
    let runs = [0, 0, 1].map(|offset| run(&setup, BAD, seed.value + offset, 200_000, MAX_LEN));
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}

/// Small retry budgets and small buffers, every path MTU, without early resends too.
#[test]
fn every_setup_gets_through() {
    let seed = Seed::for_test("every_setup_gets_through", 3);
    for mtu in PathMtu::ALL {
        for rd_atomic in [1, 4] {
            for rcvbuf in [2048, 208 << 10] {
                for timeout in [0, 8] {
                    let setup =
                        Setup { mtu, rd_atomic, rcvbuf, timeout, min_rnr_timer: 1, ..Setup::default() };
                    let faults = Faults { loss: 20_000, ..BAD };
                    run(&setup, faults, seed.value, 400, 20_000);
                }
            }
        }
    }
}

/// Selective repeat, offered by the bit or agreed upon before, on the same bad network, with little memory to hold packets too.
#[test]
fn mixed_messages_with_selective_repeat() {
    let seed = Seed::for_test("mixed_messages_with_selective_repeat", 13);
    for selective_repeat in [SelectiveRepeat::Offered, SelectiveRepeat::Agreed] {
        let setup =
            Setup { min_rnr_timer: 1, psn: [0xff_f000, 0x12_3456], selective_repeat, ..Setup::default() };
        let outcome = run(&setup, BAD, seed.value, 20_000, MAX_LEN);
        println!("seed {}, simulated {:?}", seed.value, outcome.simulated);
        for counters in outcome.counters {
            println!("{counters:?}");
            for (name, count) in [
                ("reports sent", counters.sent_sacks),
                ("reports received", counters.rcvd_sacks),
                ("selective resends", counters.selective_resends),
                ("held", counters.held_request),
                ("executed from hold", counters.held_executed),
                ("duplicates", counters.duplicate_request),
            ] {
                assert_ne!(count, 0, "{name}");
            }
        }
    }
    for mtu in PathMtu::ALL {
        let selective_repeat = SelectiveRepeat::Agreed;
        let setup = Setup { mtu, min_rnr_timer: 1, timeout: 8, selective_repeat, ..Setup::default() };
        run(&setup, BAD, seed.value, 400, 20_000);
    }
}

/// Messages make progress at a fifth of all packets lost, both ways.
#[test]
fn progress_at_twenty_percent_loss() {
    let seed = Seed::for_test("progress_at_twenty_percent_loss", 5);
    let faults = Faults { loss: 200_000, ..Faults::default() };
    run(&Setup::default(), faults, seed.value, 4_000, 20_000);
}

/// A READ response is lost, and then a later READ request. The NAK names the request only once, so the requester must act on it although
/// it has asked for the lost response already: no timer is needed for either.
#[test]
fn a_lost_request_behind_a_lost_response_needs_no_timer() {
    const READS: u64 = 48;
    for selective_repeat in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
        let memory = || {
            let mut ram = Ram::default();
            ram.register(KEY, 0, vec![0; 64]);
            ram
        };
        let setup = Setup { rcvbuf: 4 << 20, selective_repeat, ..Setup::default() };
        let mut world = World::connected(&setup, [memory(), memory()]);
        let seen = Cell::new([0; 2]);
        world.network.rule(move |frame: &Frame| {
            let Some(packet) = frame.packet() else { return Verdict::Pass };
            let to = usize::from(packet.bth.dest_qp == QPNS[1]);
            let mut counts = seen.get();
            counts[to] += 1;
            seen.set(counts);
            // The response of the 20th READ and the request of the 24th.
            if counts[to] == [20, 24][to] { Verdict::Drop } else { Verdict::Pass }
        });
        let sges = [Sge { addr: 0, length: 64, lkey: Lkey::new(KEY) }];
        let op = SendOp::Read { remote: Remote { addr: 0, rkey: Rkey::new(KEY) } };
        for wr_id in 0..READS {
            let end = &mut world.ends[0];
            end.qp.post_send(&SendWr::signaled(wr_id, op, &sges), &end.mem).unwrap();
        }
        world.drain(0);
        world.run_until(Duration::from_secs(1), |world| world.ends[0].sends.len() as u64 == READS);
        let counters = world.ends[0].qp.counters();
        assert_eq!((counters.early_resends, counters.timeouts), (0, 0), "{selective_repeat:?}");
    }
}
