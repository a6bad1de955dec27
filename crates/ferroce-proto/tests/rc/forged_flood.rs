//! Forged packets by the hundred thousand while real ones flow: of every opcode, with an ICRC that holds.

use std::rc::Rc;
use std::time::Duration;

use ferroce_proto::{Counters, NoSharedQueue, QpState, RecvWr, Remote, SelectiveRepeat, SendOp, SendWr, Sge};
use ferroce_sim::{Rng, Seed, rules};
use ferroce_wire::{
    BatchLimits, Flow, IcrcStatus, Instant, Lkey, Operation, Packet, Psn, RcPacket, Response, Rkey, TxBatch,
};

use crate::ram::{Ram, Remote as Access};
use crate::workload::{Direction, memory};
use crate::world::{End, Frame, QPNS, Setup, World, flow};

/// Octets of a BTH.
const BTH_LEN: usize = 12;
/// Keys of the workload's regions, which a forger may know.
const KEYS: [u32; 6] = [0x100, 0x200, 0x300, 0x400, 0x500, 0xdead];
/// A responder holds requests so far ahead.
const HOLD: u32 = 128;
/// More packets than the workload ever has outstanding.
const OUTSTANDING: u32 = 1 << 13;

/// A packet to end `to` as a forger makes it: any opcode, sensible headers, this PSN.
fn forge(rng: &mut Rng, to: usize, opcode: u8, psn: Psn) -> Vec<u8> {
    let mut bytes = vec![0; BTH_LEN];
    bytes[0] = opcode;
    bytes[1] = (rng.next_u64() as u8 & 0xf0) & !0x0f;
    bytes[2..4].copy_from_slice(&[0xff, 0xff]);
    bytes[4..8].copy_from_slice(&QPNS[to].value().to_be_bytes());
    // A and the bit of the extension.
    bytes[8..12].copy_from_slice(&psn.value().to_be_bytes());
    bytes[8] = rng.next_u64() as u8;
    let len = [0, 4, 8, 16, 20, 28, 64, 100, 1024, 1040, 1068][rng.below(11) as usize];
    let key = KEYS[rng.below(6) as usize];
    let mut body: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
    match opcode & 0x1f {
        // Requests with a RETH or an AtomicETH.
        0x06 | 0x0a..=0x0c | 0x13 | 0x14 | 0x1d if body.len() >= 16 => {
            body[..8].copy_from_slice(&rng.below(200).to_be_bytes());
            body[8..12].copy_from_slice(&key.to_be_bytes());
            let payload = if rng.chance(500_000) { len as u32 - 16 } else { rng.below(4096) as u32 };
            body[12..16].copy_from_slice(&payload.to_be_bytes());
        }
        // Answers: all syndromes, MSNs near and far.
        0x0d | 0x0f..=0x12 if body.len() >= 4 => {
            body[0] = [0x00, 0x1f, 0x20, 0x2e, 0x60, 0x61, 0x62, 0x63, 0x64][rng.below(9) as usize];
            let msn = if rng.chance(500_000) { rng.below(2000) } else { rng.next_u64() };
            body[1..4].copy_from_slice(&(msn as u32).to_be_bytes()[1..]);
        }
        _ => {}
    }
    bytes.extend(body);
    bytes.extend([0; 4]);
    bytes
}

/// Opcodes, those that mean something more often. Without CNPs, which need no PSN.
fn opcode(rng: &mut Rng) -> u8 {
    match rng.below(100) {
        0..80 => rng.below(0x1e) as u8,
        80..84 => 0xc1,
        _ => match rng.next_u64() as u8 {
            0x81 => 0x80,
            other => other,
        },
    }
}

/// A PSN outside of `from..to`: near it or anywhere.
fn psn_outside(rng: &mut Rng, from: Psn, to: Psn) -> Psn {
    let inside = to.since(from) as u32;
    let outside = (1 << 24) - inside;
    let distance = match rng.below(3) {
        0 => rng.below(64) as u32,
        1 => outside - 1 - rng.below(64) as u32,
        _ => rng.below(u64::from(outside)) as u32,
    };
    to.add(distance)
}

/// The answers to a forged packet. Requests do not count: the end would send them anyway, for example when a CNP makes it look at its
/// rate again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Answers {
    packets: u64,
    octets: u64,
    /// Of these, packets of READ responses.
    reads: u64,
}

/// As [`World::drain`], and counts.
fn drain(world: &mut World<'_, Ram>, side: usize) -> Answers {
    let mut buffer = vec![0; 64 << 10];
    let mut answers = Answers::default();
    let now = world.now;
    let end = &mut world.ends[side];
    let mut batch = TxBatch::new(&mut buffer, BatchLimits { max_segments: 64, gso: true });
    while end.qp.poll_transmit(now, &mut end.mem, &mut batch) {
        let flow = *batch.flow().unwrap();
        for (index, segment) in batch.segments().enumerate() {
            let op = Packet::parse(segment).unwrap().op;
            if !matches!(op, Operation::Rc(RcPacket::Request(_))) {
                answers.packets += 1;
                answers.octets += segment.len() as u64;
            }
            let acknowledges =
                matches!(op, Operation::Rc(RcPacket::Response(Response::Acknowledge { .. }))) || is_sack(&op);
            let answers_read = matches!(op, Operation::Rc(RcPacket::Response(_))) && !acknowledges;
            answers.reads += u64::from(answers_read);
            let frame = Frame { flow, ip_id: index as u16, bytes: Rc::new(segment.to_vec()) };
            world.network.send(now, 1 - side, frame);
        }
        batch.clear();
    }
    end.events();
    answers
}

const fn is_sack(op: &Operation<'_>) -> bool {
    matches!(op, Operation::Sack { .. })
}

/// Gives an end the forged octets. `None` if they are no packet.
fn give(world: &mut World<'_, Ram>, to: usize, from: &Flow, bytes: &[u8]) -> Option<Answers> {
    let mut packet = Packet::parse(bytes).ok()?;
    packet.icrc = IcrcStatus::Checked;
    let now = world.now;
    let end: &mut End<Ram> = &mut world.ends[to];
    let _ = end.qp.handle_datagram(now, from, &packet, &mut NoSharedQueue, &mut end.mem);
    Some(drain(world, to))
}

/// The counts of a flood.
#[derive(Clone, Copy, Debug, Default)]
struct Flood {
    forged: u64,
    /// Those that were packets at all.
    parsed: u64,
    /// Those with an answer.
    answered: u64,
    octets_in: u64,
    octets_out: u64,
    /// The most packets, and the most octets beyond those of the forged packet, that one was answered with.
    most_packets: u64,
    most_octets: i64,
    reads: u64,
}

/// Messages in both directions, and packets from the peer's address whose sender knows everything but the window of PSNs.
fn flood(mode: SelectiveRepeat, seed: u64, least: u64) -> (Flood, [Counters; 2]) {
    let setup =
        Setup { min_rnr_timer: 1, psn: [0xff_f000, 0x12_3456], selective_repeat: mode, ..Setup::default() };
    let mut rng = Rng::new(seed);
    let mut world = World::connected(&setup, [memory(), memory()]);
    world.quiet = true;
    // Gaps are open at times.
    world.network.rule(rules::loss(rng.fork(), 5_000));
    let mut directions = [0, 1].map(|_| Direction::new(rng.fork(), 60_000, 4_000));
    let mut flood = Flood::default();
    loop {
        for (side, direction) in directions.iter_mut().enumerate() {
            let [one, other] = &mut world.ends;
            direction.pump(world.now, if side == 0 { [one, other] } else { [other, one] });
            drain(&mut world, side);
        }
        if directions.iter().all(Direction::is_done) {
            break;
        }
        for _ in 0..if flood.forged < least { 10 } else { 0 } {
            let to = rng.below(2) as usize;
            let (_, expected, next) = world.ends[to].qp.progress();
            let opcode = opcode(&mut rng);
            let is_answer = matches!(opcode, 0xc1 | 0x0d..=0x12);
            let psn = match is_answer {
                true => psn_outside(&mut rng, next.add((1 << 24) - OUTSTANDING), next),
                false => psn_outside(&mut rng, expected, expected.add(HOLD)),
            };
            let bytes = forge(&mut rng, to, opcode, psn);
            flood.forged += 1;
            let Some(answers) = give(&mut world, to, &flow(1 - to), &bytes) else { continue };
            flood.parsed += 1;
            flood.octets_in += bytes.len() as u64;
            flood.octets_out += answers.octets;
            flood.answered += u64::from(answers.packets > 0);
            flood.reads += answers.reads;
            if answers.reads == 0 {
                flood.most_packets = flood.most_packets.max(answers.packets);
                flood.most_octets = flood.most_octets.max(answers.octets as i64 - bytes.len() as i64);
            }
        }
        assert!(world.step(), "stuck");
    }
    assert!(flood.forged >= least, "{flood:?}");
    for end in &world.ends {
        assert_eq!(end.qp.state(), QpState::Rts);
        assert!(end.asyncs.is_empty(), "{:?}", end.asyncs);
    }
    (flood, [0, 1].map(|side| *world.ends[side].qp.counters()))
}

/// A sender that can forge the peer's address and knows the queue pair's number, keys and addresses, but not the PSNs. All data are exact,
/// all completions come once and in order, and no packet is answered with more than it brought but for a few octets.
#[test]
fn a_hundred_thousand_forged_packets() {
    let seed = Seed::for_test("a_hundred_thousand_forged_packets", 41);
    for mode in [SelectiveRepeat::Off, SelectiveRepeat::Offered, SelectiveRepeat::Agreed] {
        let (flood, counters) = flood(mode, seed.value, 100_000);
        println!("{mode:?}: {flood:?}");
        assert!(flood.parsed > flood.forged / 4 && flood.answered > 1000, "{flood:?}");
        // An ACK or NAK has four octets more than the shortest request; a report of what is held goes with it.
        let most = if mode == SelectiveRepeat::Off { (1, 4) } else { (2, 40) };
        assert!((flood.most_packets, flood.most_octets) <= most, "{flood:?}");
        assert!(flood.most_octets <= most.1, "{flood:?}");
        assert!(flood.octets_out < flood.octets_in / 2, "{flood:?}");
        for counters in counters {
            assert!(counters.dropped_pkts > 10_000, "{counters:?}");
        }
    }
}

/// A CNP needs no PSN. A thousand at once are one cut of the rate, they are not answered, and the data arrive.
#[test]
fn forged_notifications_of_congestion_slow_down_and_do_no_harm() {
    let mut rng = Rng::new(53);
    let setup = Setup { ecn: true, ..Setup::default() };
    let mut world = World::connected(&setup, [memory(), memory()]);
    let mut direction = Direction::new(rng.fork(), 60, 4_000);
    let mut forged = 0;
    while !direction.is_done() {
        let [sender, receiver] = &mut world.ends;
        direction.pump(world.now, [sender, receiver]);
        drain(&mut world, 0);
        drain(&mut world, 1);
        for _ in 0..if forged < 1000 && world.now > Instant::ZERO { 1000 } else { 0 } {
            let bytes = forge(&mut rng, 0, 0x81, Psn::new(0));
            let mut cnp = [&bytes[..BTH_LEN], &[0; 20]].concat();
            cnp[1] = 0;
            let answers = give(&mut world, 0, &flow(1), &cnp);
            assert_eq!(answers, Some(Answers::default()));
            forged += 1;
        }
        assert!(direction.is_done() || world.step(), "stuck");
    }
    let counters = world.ends[0].qp.counters();
    assert_eq!((counters.rcvd_cnps, counters.rp_cnp_handled, counters.rp_cnp_ignored), (1000, 1, 999));
    assert_eq!(world.ends[0].qp.state(), QpState::Rts);
}

/// The counters that a packet of any sender changes.
fn but_arrivals(counters: &Counters) -> Counters {
    Counters { rcvd_pkts: 0, dropped_pkts: 0, rcvd_ecn_marked: 0, ..*counters }
}

/// A sender that knows everything, the PSNs too, but cannot forge the peer's address.
#[test]
fn another_address_changes_nothing() {
    let mut rng = Seed::for_test("another_address_changes_nothing", 43).rng();
    for mode in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
        let setup = Setup { selective_repeat: mode, ..Setup::default() };
        let mut world = World::connected(&setup, [memory(), memory()]);
        let sge = [Sge { addr: 0, length: 9000, lkey: Lkey::new(KEYS[0]) }];
        world.ends[1].qp.post_recv(&RecvWr { wr_id: 1, sges: &sge }).unwrap();
        let remote = Remote { addr: 0, rkey: Rkey::new(KEYS[2]) };
        for (wr_id, op) in [(1, SendOp::Send), (2, SendOp::Read { remote })] {
            let end = &mut world.ends[0];
            end.qp.post_send(&SendWr::signaled(wr_id, op, &sge), &end.mem).unwrap();
        }
        drain(&mut world, 0);
        let before = [0, 1].map(|side| state(&world, side));
        for _ in 0..20_000 {
            let to = rng.below(2) as usize;
            let (_, expected, next) = world.ends[to].qp.progress();
            let near = if rng.chance(500_000) { expected } else { next };
            let opcode = opcode(&mut rng);
            let psn = near.add((1 << 24) - 16 + rng.below(32) as u32);
            let bytes = forge(&mut rng, to, opcode, psn);
            let from = Flow { source: [198, 51, 100, 7].into(), ..flow(1 - to) };
            let marked = Flow { traffic_class: Flow::CONGESTION_EXPERIENCED, ..from };
            let from = if rng.chance(100_000) { marked } else { from };
            let answers = give(&mut world, to, &from, &bytes);
            assert!(answers.is_none_or(|answers| answers == Answers::default()), "{answers:?}");
        }
        assert_eq!([0, 1].map(|side| state(&world, side)), before);
        assert!(world.ends[1].qp.counters().dropped_pkts > 1000);
        // What was on its way arrives.
        world.run(Duration::from_secs(1));
        assert_eq!(world.ends[0].sends.len(), 2);
        assert!(world.ends[0].sends.iter().all(|sent| sent.status == ferroce_proto::WcStatus::Success));
    }
}

/// All that can be seen of an end.
fn state(world: &World<'_, Ram>, side: usize) -> String {
    let end = &world.ends[side];
    let counters = but_arrivals(end.qp.counters());
    let seen = (end.qp.query(), end.qp.progress(), end.qp.poll_timeout(), end.qp.backlog());
    format!("{seen:?} {counters:?} {} {} {}", end.sends.len(), end.recvs.len(), end.asyncs.len())
}

/// How connections fared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fates {
    unharmed: u32,
    /// All completions say success, and memory or a receive is not as the peer wrote it.
    wrong_data: u32,
    ended: u32,
}

/// A sender that knows the PSNs as well can do what the peer could do: end the connection, and write where the peer's keys permit. It can
/// do no more: no panic, no hang, nothing outside of the keys.
#[test]
fn a_sender_that_knows_the_psn_is_the_peer() {
    const GUARDED: u32 = 0x999;
    let seed = Seed::for_test("a_sender_that_knows_the_psn_is_the_peer", 47);
    for mode in [SelectiveRepeat::Off, SelectiveRepeat::Agreed] {
        let mut fates = Fates::default();
        for round in 0..1000 {
            let mut rng = Rng::new(seed.value + round);
            let setup = Setup { selective_repeat: mode, timeout: 8, ..Setup::default() };
            let mut memories = [memory(), memory()];
            for ram in &mut memories {
                ram.register(GUARDED, 0, vec![0x77; 4096]).remote = Access::NONE;
            }
            let mut world = World::connected(&setup, memories);
            world.quiet = true;
            let sge = |addr| [Sge { addr, length: 3000, lkey: Lkey::new(KEYS[0]) }];
            world.ends[0].mem.region(KEYS[0]).bytes[..48_000].fill(0x5a);
            for wr_id in 0..16 {
                let to = &mut world.ends[1];
                to.qp.post_recv(&RecvWr { wr_id, sges: &sge(wr_id * 3000) }).unwrap();
                let from = &mut world.ends[0];
                from.qp
                    .post_send(&SendWr::signaled(wr_id, SendOp::Send, &sge(wr_id * 3000)), &from.mem)
                    .unwrap();
            }
            drain(&mut world, 0);
            for _ in 0..2 {
                for _ in 0..rng.below(4) {
                    let to = rng.below(2) as usize;
                    let (_, expected, next) = world.ends[to].qp.progress();
                    let opcode = opcode(&mut rng);
                    let psn = match matches!(opcode, 0xc1 | 0x0d..=0x12) {
                        true => next.add((1 << 24) - 1 - rng.below(48) as u32),
                        false => expected.add(rng.below(4) as u32),
                    };
                    let mut bytes = forge(&mut rng, to, opcode, psn);
                    if rng.chance(100_000) && bytes.len() > BTH_LEN + 16 {
                        bytes[BTH_LEN + 8..BTH_LEN + 12].copy_from_slice(&GUARDED.to_be_bytes());
                    }
                    let _ = give(&mut world, to, &flow(1 - to), &bytes);
                }
                world.step();
            }
            world.run(Duration::from_secs(5));
            assert_eq!(world.next(), None, "round {round}");
            for end in &world.ends {
                assert!(end.mem.bytes(GUARDED).iter().all(|octet| *octet == 0x77), "round {round}");
            }
            let all = |world: &World<'_, Ram>| {
                world.ends.iter().all(|end| end.qp.state() == QpState::Rts)
                    && world.ends[0].sends.len() == 16
                    && world.ends[0].sends.iter().all(|sent| sent.status == ferroce_proto::WcStatus::Success)
            };
            if !all(&world) {
                fates.ended += 1;
                continue;
            }
            let received = &world.ends[1].recvs;
            let lengths = received.len() == 16 && received.iter().all(|it| it.byte_len == 3000);
            match lengths && world.ends[1].mem.bytes(KEYS[0])[..48_000].iter().all(|octet| *octet == 0x5a) {
                true => fates.unharmed += 1,
                false => fates.wrong_data += 1,
            }
        }
        println!("{mode:?}: {fates:?}");
        assert!(fates.unharmed > 100 && fates.ended > 100, "{fates:?}");
    }
}
