//! Early resends where nothing was lost: a peer that pauses, and one that is slow.

use std::cell::Cell;
use std::time::Duration;

use ferroce_proto::{Counters, Remote, SendOp, SendTo, SendWr, Sge};
use ferroce_sim::{Rng, Seed, Verdict, rules};
use ferroce_wire::{Lkey, Rkey};

use crate::ram::Ram;
use crate::world::{Frame, QPNS, Setup, World};

const KEY: u32 = 1;
const LEN: u32 = 64;

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A world in which end 0 writes, and the peer handles each packet by itself: it answers a duplicate with an ACK of its
/// own, as kernel rxe does.
fn world<'r>(network: impl FnOnce(&mut World<'r, Ram>)) -> World<'r, Ram> {
    let memory = || {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; LEN as usize]);
        ram
    };
    let mut world = World::connected(&Setup::default(), [memory(), memory()]);
    world.quiet = true;
    network(&mut world);
    let turn = Cell::new(0);
    world.network.rule(move |frame: &Frame| {
        let to_peer = frame.packet().is_some_and(|packet| packet.bth.dest_qp == QPNS[1]);
        turn.set((turn.get() + 1) % 16);
        if to_peer { Verdict::Delay(Duration::from_nanos(turn.get() * 100)) } else { Verdict::Pass }
    });
    world
}

/// Writes `messages`, one after the other; the peer is busy before each as long as `busy` says. Returns the counters of
/// end 0 and the time that each message took.
fn write(
    world: &mut World<'_, Ram>,
    messages: u64,
    mut busy: impl FnMut(u64) -> Duration,
) -> (Counters, Vec<Duration>) {
    let before = *world.ends[0].qp.counters();
    let mut took = Vec::new();
    for wr_id in 0..messages {
        let sges = [Sge { addr: 0, length: LEN, lkey: Lkey::new(KEY) }];
        let op = SendOp::Write { remote: Remote { addr: 0, rkey: Rkey::new(KEY) } };
        let to = SendTo::Peer;
        let wr = SendWr {
            wr_id,
            op,
            to,
            sges: &sges,
            signaled: true,
            solicited: false,
            fence: false,
            inline: false,
        };
        let (start, end) = (world.now, &mut world.ends[0]);
        end.qp.post_send(&wr, &end.mem).unwrap();
        world.asleep_until[1] = start + busy(wr_id);
        world.run_until(Duration::from_secs(10), |world| !world.ends[0].sends.is_empty());
        world.ends[0].sends.clear();
        took.push(world.now.saturating_since(start));
        // All packets under way arrive, so that each message begins in silence.
        world.now += us(50);
        world.run(us(5));
    }
    let after = *world.ends[0].qp.counters();
    let counted = Counters {
        early_resends: after.early_resends - before.early_resends,
        spurious_resends: after.spurious_resends - before.spurious_resends,
        ..after
    };
    (counted, took)
}

/// A process on a full machine loses its core now and then for some milliseconds.
#[test]
fn a_peer_that_pauses_is_resent_to_a_few_times() {
    let seed = Seed::for_test("a_peer_that_pauses_is_resent_to_a_few_times", 5);
    let mut rng = Rng::new(seed.value);
    let mut world = world(|_| {});
    let mut pauses = 0;
    let (counted, _) = write(&mut world, 5000, |_| {
        if !rng.chance(30_000) {
            return Duration::ZERO;
        }
        pauses += 1;
        us(300 + rng.below(7000))
    });
    println!(
        "{pauses} pauses, {} early resends, {} spurious",
        counted.early_resends, counted.spurious_resends
    );
    assert!(pauses > 100);
    assert!(counted.early_resends * 4 < pauses, "{} at {pauses} pauses", counted.early_resends);
    assert!(counted.spurious_resends * 2 > counted.early_resends, "nothing was lost");
}

/// An emulated peer: most answers take some hundred microseconds, some of them milliseconds.
#[test]
fn a_slow_peer_is_resent_to_seldom() {
    let seed = Seed::for_test("a_slow_peer_is_resent_to_seldom", 6);
    let mut rng = Rng::new(seed.value);
    let mut world = world(|_| {});
    let (counted, _) = write(&mut world, 5000, |_| {
        let slow = if rng.chance(100_000) { rng.below(5000) } else { 0 };
        us(50 + rng.below(200) + slow)
    });
    println!("{} early resends, {} spurious", counted.early_resends, counted.spurious_resends);
    assert!(counted.early_resends < 50, "{} of 5000 messages", counted.early_resends);
}

/// Messages that take longer than two early resends need where one packet of ten is lost. With `pauses` the peer was late
/// before that, and early resends were needless.
fn slow_messages(pauses: bool) -> usize {
    let mut rng = Rng::new(7);
    let (losing, dropped) = (Cell::new(false), Cell::new(0));
    let mut world = world(|world| {
        let mut loss = rules::loss(rng.fork(), 100_000);
        let (losing, dropped) = (&losing, &dropped);
        world.network.rule(move |frame: &Frame| {
            let verdict = if losing.get() { loss(frame) } else { Verdict::Pass };
            dropped.set(dropped.get() + u32::from(verdict == Verdict::Drop));
            verdict
        });
    });
    let pause = |at| if pauses && at % 20 == 10 { us(6000) } else { Duration::ZERO };
    let (counted, _) = write(&mut world, 500, pause);
    assert_eq!(counted.spurious_resends > 0, pauses);
    losing.set(true);
    let (counted, took) = write(&mut world, 2000, |_| Duration::ZERO);
    let slow = took.iter().filter(|took| **took > us(1500)).count();
    println!("{} lost, {} early resends, {slow} messages above 1.5 ms", dropped.get(), counted.early_resends);
    assert!(dropped.get() > 200);
    assert!(counted.spurious_resends * 10 < counted.early_resends, "{}", counted.spurious_resends);
    slow
}

/// The requester forgets what it learned of pauses when packets are lost: recovery is soon as quick as at first.
#[test]
fn losses_behind_pauses_are_recovered_quickly() {
    let [before, behind] = [false, true].map(slow_messages);
    assert!(behind <= before + 6, "{behind}, without pauses {before}");
}
