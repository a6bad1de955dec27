//! Scenarios of loss and congestion between two queue pairs that no other test plays; the book's fault matrix names them.

use std::cell::Cell;
use std::time::Duration;

use ferroce_proto::{
    CongestionControl, DropReason, NoSharedQueue, QpState, Remote, SelectiveRepeat, SendOp, SendWr, Sge,
    WcStatus,
};
use ferroce_wire::{
    Bth, Flow, IcrcStatus, Instant, Lkey, Operation, Packet, Psn, RcPacket, Request, Response, Rkey, Syndrome,
};

use crate::probe::{DATA, Probe, reth, write_only};
use crate::ram::Ram;
use crate::world::{Frame, QPNS, Setup, Tamper, World, flow};

const MODES: [SelectiveRepeat; 2] = [SelectiveRepeat::Off, SelectiveRepeat::Agreed];
/// Of the requester's memory.
const LOCAL: u32 = 0x11;
/// Of the responder's memory.
const TARGET: u32 = 0x22;
const SIZE: usize = 1 << 20;
const MTU: usize = 1024;

fn octet(at: usize, salt: u8) -> u8 {
    (at * 7 + (at >> 8)) as u8 ^ salt
}

fn memory(salt: u8) -> Ram {
    let mut ram = Ram::default();
    for key in [LOCAL, TARGET] {
        ram.register(key, 0, (0..SIZE).map(|at| octet(at, salt)).collect::<Vec<_>>());
    }
    ram
}

fn world<'r>(setup: &Setup, tamper: Tamper<'r>) -> World<'r, Ram> {
    let mut world = World::connected(setup, [memory(0x40), memory(0x80)]);
    world.quiet = true;
    world.tamper = Some(tamper);
    world
}

fn post(world: &mut World<'_, Ram>, wr_id: u64, op: SendOp, at: usize, length: usize) {
    let sge = [Sge { addr: at as u64, length: length as u32, lkey: Lkey::new(LOCAL) }];
    let end = &mut world.ends[0];
    end.qp.post_send(&SendWr::signaled(wr_id, op, &sge), &end.mem).unwrap();
}

fn remote(at: usize) -> Remote {
    Remote { addr: at as u64, rkey: Rkey::new(TARGET) }
}

/// Runs to the end. All requests have succeeded in order, and both ends are in RTS.
fn finish(world: &mut World<'_, Ram>, requests: u64) {
    world.run(Duration::from_secs(10));
    assert_eq!(world.next(), None, "something goes on for ever");
    let sends: Vec<_> = world.ends[0].sends.iter().map(|sent| (sent.wr_id, sent.status)).collect();
    assert_eq!(sends, (0..requests).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    for end in &world.ends {
        assert_eq!(end.qp.state(), QpState::Rts);
        assert!(end.asyncs.is_empty(), "{:?}", end.asyncs);
    }
}

fn rc<'a>(packet: &Packet<'a>) -> Option<RcPacket<'a>> {
    match packet.op {
        Operation::Rc(rc) => Some(rc),
        _ => None,
    }
}

/// Distance of a packet to the requester from its first PSN.
fn behind(setup: &Setup, packet: &Packet<'_>) -> i32 {
    packet.bth.psn.since(Psn::new(setup.psn[0]))
}

fn pass(to: usize, frame: Frame) -> Vec<(Duration, usize, Frame)> {
    vec![(Duration::ZERO, to, frame)]
}

/// Scenario 4: the duplicate is acknowledged and not executed.
#[test]
fn a_lost_ack_is_given_again() {
    for selective_repeat in MODES {
        let setup = Setup { selective_repeat, ..Setup::default() };
        let lost = Cell::new(false);
        let mut world = world(
            &setup,
            Box::new(|_, to, frame| {
                let ack = matches!(frame.packet().as_ref().and_then(rc), Some(RcPacket::Response(Response::Acknowledge { aeth })) if matches!(aeth.syndrome, Syndrome::Ack { .. }));
                if ack && !lost.replace(true) { vec![] } else { pass(to, frame) }
            }),
        );
        post(&mut world, 0, SendOp::FetchAdd { remote: remote(0), add: 7 }, 64, 8);
        post(&mut world, 1, SendOp::Write { remote: remote(8) }, 8, 100);
        finish(&mut world, 2);
        let counters = world.ends[1].qp.counters();
        assert!(counters.duplicate_request > 0, "{counters:?}");
        let old = u64::from_ne_bytes(std::array::from_fn(|at| octet(at, 0x80)));
        let now = &world.ends[1].mem.bytes(TARGET)[..8];
        assert_eq!(u64::from_ne_bytes(now.try_into().unwrap()), old + 7, "executed once");
        drop(world);
        assert!(lost.get());
    }
}

/// Scenario 7: one response to a READ of 1 MiB, the 500th of 1,024, is lost.
#[test]
fn a_hole_in_a_long_read_costs_a_part_of_it() {
    for selective_repeat in MODES {
        let setup = Setup { selective_repeat, ..Setup::default() };
        let (lost, responses, asked) = (Cell::new(false), Cell::new(0), Cell::new(0));
        let mut world = world(
            &setup,
            Box::new(|_, to, frame| {
                let packet = frame.packet().unwrap();
                match rc(&packet) {
                    Some(RcPacket::Request(Request::ReadRequest { reth })) => {
                        asked.set(asked.get() + reth.dma_len as usize);
                    }
                    Some(RcPacket::Response(response)) if !response.payload().is_empty() => {
                        responses.set(responses.get() + 1);
                        if behind(&setup, &packet) == 500 && !lost.replace(true) {
                            return vec![];
                        }
                    }
                    _ => {}
                }
                pass(to, frame)
            }),
        );
        post(&mut world, 0, SendOp::Read { remote: remote(0) }, 0, SIZE);
        finish(&mut world, 1);
        assert_eq!(world.ends[0].mem.bytes(LOCAL), world.ends[1].mem.bytes(TARGET));
        drop(world);
        assert!(lost.get());
        let again = asked.get() - SIZE;
        assert!((MTU..=SIZE / 4).contains(&again), "{again} octets are asked for again");
        assert!(responses.get() <= SIZE / MTU + again / MTU, "{}", responses.get());
    }
}

/// Scenario 8.
#[test]
fn the_first_response_of_two_reads_is_lost() {
    const LEN: usize = 4 * MTU;
    for selective_repeat in MODES {
        let setup = Setup { selective_repeat, ..Setup::default() };
        let lost = Cell::new(false);
        let mut world = world(
            &setup,
            Box::new(|_, to, frame| {
                let packet = frame.packet().unwrap();
                let first = to == 0 && behind(&setup, &packet) == 0;
                if first && !lost.replace(true) { vec![] } else { pass(to, frame) }
            }),
        );
        world.quiet = false;
        post(&mut world, 0, SendOp::Read { remote: remote(0) }, 0, LEN);
        post(&mut world, 1, SendOp::Read { remote: remote(LEN) }, LEN, LEN);
        finish(&mut world, 2);
        assert_eq!(world.ends[0].mem.bytes(LOCAL)[..2 * LEN], world.ends[1].mem.bytes(TARGET)[..2 * LEN]);
        assert!(lost.get());
        // It answered from what it remembers.
        assert!(!world.ends[1].drops.contains(&DropReason::DuplicateNotFound), "{:?}", world.ends[1].drops);
    }
}

/// Scenario 10: each eighth packet is overtaken by the three behind it, at the same moment. Where fewer than three follow at once it waits
/// for those that come later, and is taken for lost once.
#[test]
fn packets_that_are_overtaken_are_not_lost() {
    const MESSAGES: u64 = 50;
    const LEN: usize = 8 * MTU;
    for selective_repeat in MODES {
        let setup = Setup { selective_repeat, ..Setup::default() };
        let (count, late) = (Cell::new(0), Cell::new(None));
        let mut world = world(
            &setup,
            Box::new(|_, to, frame| {
                if to == 0 {
                    return pass(to, frame);
                }
                count.set(count.get() + 1);
                match count.get() % 8 {
                    2 => {
                        late.set(Some(frame));
                        vec![]
                    }
                    5 => [pass(to, frame), late.take().map_or(vec![], |it| pass(to, it))].concat(),
                    _ => pass(to, frame),
                }
            }),
        );
        for wr_id in 0..MESSAGES {
            let at = wr_id as usize * LEN;
            post(&mut world, wr_id, SendOp::Write { remote: remote(at) }, at, LEN);
        }
        finish(&mut world, MESSAGES);
        let all = MESSAGES as usize * LEN;
        assert_eq!(world.ends[1].mem.bytes(TARGET)[..all], world.ends[0].mem.bytes(LOCAL)[..all]);
        let counters = world.ends[0].qp.counters();
        assert_eq!(counters.timeouts, 0);
        if selective_repeat == SelectiveRepeat::Agreed {
            assert!(counters.resent_pkts <= 1, "nothing was lost: {counters:?}");
        }
        assert!(world.ends[1].qp.counters().held_executed > 0);
    }
}

/// Scenario 13: an atomic that is executed twice, or a completion that comes twice, would show.
#[test]
fn everything_arrives_twice() {
    const ROUNDS: u64 = 10;
    for selective_repeat in MODES {
        let setup = Setup { selective_repeat, ..Setup::default() };
        let mut world = world(
            &setup,
            Box::new(|_, to, frame| vec![(Duration::ZERO, to, frame.clone()), (Duration::ZERO, to, frame)]),
        );
        for round in 0..ROUNDS {
            let at = 64 + round as usize * 4 * MTU;
            post(&mut world, 3 * round, SendOp::Write { remote: remote(at) }, at, 4 * MTU);
            post(&mut world, 3 * round + 1, SendOp::FetchAdd { remote: remote(0), add: 1 }, 0, 8);
            post(&mut world, 3 * round + 2, SendOp::Read { remote: remote(at) }, at, 4 * MTU);
        }
        finish(&mut world, 3 * ROUNDS);
        let [requester, responder] = &world.ends;
        let all = 64..64 + ROUNDS as usize * 4 * MTU;
        assert_eq!(requester.mem.bytes(LOCAL)[all.clone()], responder.mem.bytes(TARGET)[all]);
        let old = u64::from_ne_bytes(std::array::from_fn(|at| octet(at, 0x80)));
        let now = u64::from_ne_bytes(responder.mem.bytes(TARGET)[..8].try_into().unwrap());
        assert_eq!(now, old + ROUNDS, "each atomic was executed once");
        assert!(responder.qp.counters().duplicate_request > 0);
    }
}

/// Scenario 14: the half of the circle before the expected PSN is old, the other half new. Neither end of it moves what is held.
#[test]
fn half_a_circle_divides_old_from_new() {
    let word = |at: u32| write_only(reth(u64::from(at) * 4, 4), &DATA[at as usize * 4..][..4]);
    let mut probe = Probe::new(Setup::default());
    probe.request(0, word(0)).unwrap();
    probe.request(2, word(2)).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1", "nak 0x60 1 msn 1"]);
    // The expected PSN is 1: 2^23 before it is the oldest duplicate, and one further is the newest that is too early.
    assert_eq!(probe.request(0x80_0001, word(8)), Err(DropReason::DuplicateRequest));
    assert_eq!(probe.out(), ["ack 0 msn 1"], "a duplicate is acknowledged");
    assert_eq!(probe.request(0x80_0000, word(9)), Err(DropReason::OutOfSequence));
    assert_eq!(probe.out(), [""; 0], "the gap has its NAK");
    assert_eq!(probe.bytes()[32..40], [0; 8], "neither was executed");
    assert_eq!(probe.end.qp.counters().held_request, 1, "one held request is all");
    probe.request(1, word(1)).unwrap();
    assert_eq!(probe.out(), ["ack 2 msn 3"]);
    assert_eq!(probe.bytes()[..12], DATA[..12]);
}

/// Scenario 22.
#[test]
fn a_strangers_notifications_are_counted_and_ignored() {
    let mut probe = Probe::new(Setup { ecn: true, ..Setup::default() });
    probe.end.qp.set_congestion_control(CongestionControl::Full);
    let stranger = Flow { source: [198, 51, 100, 7].into(), ..flow(1) };
    let cnp = Packet { bth: Bth::new(QPNS[0], Psn::new(0)), op: Operation::Cnp, icrc: IcrcStatus::Checked };
    let before = *probe.end.qp.counters();
    for _ in 0..100 {
        let end = &mut probe.end;
        let taken = end.qp.handle_datagram(probe.now, &stranger, &cnp, &mut NoSharedQueue, &mut end.mem);
        assert!(taken.is_err());
    }
    let counters = *probe.end.qp.counters();
    assert_eq!((counters.rcvd_cnps, counters.rp_cnp_handled), (0, 0));
    assert_eq!(counters.dropped_pkts - before.dropped_pkts, 100);
    // The peer's own is heeded.
    let end = &mut probe.end;
    end.qp.handle_datagram(probe.now, &flow(1), &cnp, &mut NoSharedQueue, &mut end.mem).unwrap();
    assert_eq!(probe.end.qp.counters().rp_cnp_handled, 1);
}

/// Scenario 24: code 14 is 67 ms, so that eight timeouts are 537 ms.
#[test]
fn a_cut_of_300_milliseconds_heals() {
    const LEN: usize = 64 * MTU;
    const CUT: Duration = Duration::from_millis(300);
    for selective_repeat in MODES {
        let setup = Setup { selective_repeat, timeout: 14, retry_cnt: 7, ..Setup::default() };
        let (arrived, cut) = (Cell::new(0), Cell::new(None::<Instant>));
        let mut world = world(
            &setup,
            Box::new(|now, to, frame| {
                arrived.set(arrived.get() + 1);
                if arrived.get() == 100 {
                    cut.set(Some(now));
                }
                if cut.get().is_some_and(|at| now < at + CUT) { vec![] } else { pass(to, frame) }
            }),
        );
        for wr_id in 0..8 {
            let at = wr_id as usize * LEN;
            post(&mut world, wr_id, SendOp::Write { remote: remote(at) }, at, LEN);
        }
        finish(&mut world, 8);
        assert_eq!(world.ends[1].mem.bytes(TARGET)[..8 * LEN], world.ends[0].mem.bytes(LOCAL)[..8 * LEN]);
        let healed = cut.get().unwrap() + CUT;
        assert!(world.now > healed && world.ends[0].qp.counters().timeouts > 0);
        assert_eq!(world.ends[0].qp.counters().retry_exceeded_err, 0);
    }
}
