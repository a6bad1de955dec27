extern crate std;

use core::time::Duration;

use super::*;
use crate::icrc::seal;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Judges the IDs one after the other; all must be believed.
fn believe(tracker: &mut IdTracker, ids: impl IntoIterator<Item = u16>) {
    for id in ids {
        assert_eq!(tracker.judge(NOW, id), IdVerdict::Believed, "{id}");
    }
}

fn refuse(tracker: &mut IdTracker, ids: impl IntoIterator<Item = u16>) {
    for id in ids {
        assert_eq!(tracker.judge(NOW, id), IdVerdict::Refused, "{id}");
    }
}

fn tracker(ids: impl IntoIterator<Item = u16>, state: IdState) -> IdTracker {
    let mut tracker = IdTracker::new();
    believe(&mut tracker, ids);
    assert_eq!(tracker.state(), state);
    tracker
}

/// IDs without a habit.
fn scattered(count: u16) -> impl Iterator<Item = u16> {
    (0..count).map(|k| k.wrapping_mul(0x9e37) | 0x0100)
}

#[test]
fn sixteen_zeros_show_zero() {
    tracker([0; 15], IdState::Unknown);
    let mut zero = tracker([0; 16], IdState::Zero);
    believe(&mut zero, 0..64);
    refuse(&mut zero, [4660, 128]);
    believe(&mut zero, [0]);
    refuse(&mut zero, [4660, 4660]);
    assert_eq!(zero.state(), IdState::Zero);
}

/// Batches that the kernel cut and nobody merged again: IDs 0, 1, 2, … and over again.
#[test]
fn segment_indices_show_zero() {
    let batches = (0..20).flat_map(|_| 0..15);
    tracker(batches, IdState::Zero);
}

#[test]
fn e3_seventeen_in_order_show_counting() {
    tracker((500..).take(16), IdState::Unknown);
    let mut counting = tracker((500..).step_by(100).take(17), IdState::Counting);
    // 2100 was the last; up to 4096 ahead, and 64 behind for packets that overtook each other.
    believe(&mut counting, [2101, 2100, 2099, 6197, 10293]);
    refuse(&mut counting, [10293u16 + 4097, 10293 - 65]);
    believe(&mut counting, [10294]);
    assert_eq!(counting.state(), IdState::Counting);
}

#[test]
fn counters_wrap() {
    let ids = (0..40u16).map(|k| 65_000u16.wrapping_add(k * 30));
    tracker(ids, IdState::Counting);
}

/// An ID that never changes is a counter that stands still.
#[test]
fn constant_ids_show_counting() {
    let mut constant = tracker([4660; 17], IdState::Counting);
    refuse(&mut constant, [30_000]);
    believe(&mut constant, [4660]);
}

/// 1000 IDs more per idle second.
#[test]
fn idle_sources_may_be_further_ahead() {
    for (idle_ms, ahead, verdict) in [
        (0, 4096, IdVerdict::Believed),
        (0, 4097, IdVerdict::Refused),
        (1000, 5096, IdVerdict::Believed),
        (1000, 5097, IdVerdict::Refused),
        (100_000, 40_000, IdVerdict::Believed),
    ] {
        let mut counting = tracker(500..517, IdState::Counting);
        let later = NOW + Duration::from_millis(idle_ms);
        assert_eq!(counting.judge(later, 516 + ahead), verdict, "{ahead} after {idle_ms} ms");
    }
}

#[test]
fn three_misses_in_a_row_reset() {
    for mut habit in [tracker([0; 16], IdState::Zero), tracker(500..517, IdState::Counting)] {
        let before = habit.state();
        refuse(&mut habit, [30_000, 30_000]);
        assert_eq!(habit.state(), before);
        believe(&mut habit, [30_000]);
        assert_eq!(habit.state(), IdState::Unknown);
    }
}

/// A host that stops counting and starts again elsewhere loses two packets, and must then show more.
#[test]
fn proof_doubles_with_each_reset() {
    let mut source = tracker(500..517, IdState::Counting);
    refuse(&mut source, [30_000, 30_001]);
    believe(&mut source, 30_002..30_002 + 32);
    assert_eq!(source.state(), IdState::Unknown, "sixteen are no longer enough");
    believe(&mut source, [30_034]);
    assert_eq!(source.state(), IdState::Counting);
}

#[test]
fn no_habit_in_64_packets_is_free() {
    let mut free = tracker(scattered(64), IdState::Free);
    tracker(scattered(63), IdState::Unknown);
    believe(&mut free, scattered(1000));
    assert_eq!(free.state(), IdState::Free);
    // It may still find one.
    believe(&mut free, (0..16).map(|_| 0));
    assert_eq!(free.state(), IdState::Zero);
}

/// Two counters of one address, as cards have one a queue pair, end in `Free` after few refusals.
#[test]
fn two_counters_settle() {
    let mut source = IdTracker::new();
    let mut refused = 0;
    for k in 0..2000u16 {
        // Bursts of 40, each from the other counter.
        let id = if k / 40 % 2 == 0 { 1000 + k } else { 40_000 + k };
        refused += u16::from(source.judge(NOW, id) == IdVerdict::Refused);
    }
    assert!(refused <= 4, "{refused}");
}

fn flow(source: [u8; 4]) -> Flow {
    Flow {
        source: source.into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 0xc123,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

/// DESIGN.md section 6: a corrupt packet is believed with probability 2^-16 while nothing is known of its source, and far
/// more rarely afterwards: 2^-25 from a socket like ours, 2^-20 from a counter.
#[test]
fn corruption_is_believed_rarely() {
    const TRIALS: u32 = 1 << 22;
    let mut solver = IdSolver::new();
    let mut random = Random(1);
    let zero = tracker([0; 16], IdState::Zero);
    let counting = tracker(500..517, IdState::Counting);
    let mut believed = [0; 3];
    for _ in 0..TRIALS {
        // What corruption does to a CRC of 32 bits: anything but nothing.
        let Some(id) = solver.solve(random.next().max(1), 1040) else { continue };
        for (count, tracker) in believed.iter_mut().zip([IdTracker::new(), zero, counting]) {
            let mut tracker = tracker;
            *count += u32::from(tracker.judge(NOW, id) == IdVerdict::Believed);
        }
    }
    let [unknown, zero, counting] = believed;
    assert!((32..=96).contains(&unknown), "expected 64, got {unknown}");
    assert!(zero <= 1, "expected 0.1, got {zero}");
    assert!((1..=12).contains(&counting), "expected 4, got {counting}");
}

/// The same with real packets through the table: nothing bad gets through, everything good does.
#[test]
fn e3_table_refuses_corrupt_packets() {
    for first_id in [0u16, 777] {
        let mut table = SourceTable::<8>::new();
        let mut random = Random(2);
        let flow = flow([192, 0, 2, 1]);
        let counts = first_id != 0;
        for k in 0..20_000u16 {
            let id = if counts { first_id.wrapping_add(k) } else { 0 };
            let mut packet = [k as u8; 64];
            seal(&flow, id, &mut packet);
            let good = if counts && id != 0 { Verdict::Solved(id) } else { Verdict::Good };
            assert_eq!(table.check(NOW, &flow, &packet), good);
            // Octet 4 of the BTH is not covered.
            let at = 5 + random.next() as usize % 59;
            packet[at] ^= (random.next() % 255 + 1) as u8;
            assert_eq!(table.check(NOW, &flow, &packet), Verdict::Bad);
        }
        let state = if counts { IdState::Counting } else { IdState::Zero };
        assert_eq!(table.state([192, 0, 2, 1]), state);
    }
}

/// A counter's host may be replaced by one like ours: not a packet of it is lost.
#[test]
fn id_zero_always_holds() {
    let mut table = SourceTable::<4>::new();
    let flow = flow([192, 0, 2, 1]);
    let mut packet = [7; 64];
    for id in 500..517 {
        seal(&flow, id, &mut packet);
        assert_eq!(table.check(NOW, &flow, &packet), Verdict::Solved(id));
    }
    assert_eq!(table.state([192, 0, 2, 1]), IdState::Counting);
    seal(&flow, 0, &mut packet);
    for _ in 0..40 {
        assert_eq!(table.check(NOW, &flow, &packet), Verdict::Good);
    }
    assert_eq!(table.state([192, 0, 2, 1]), IdState::Zero);
}

#[test]
fn ipv6_has_no_id_to_solve() {
    let mut table = SourceTable::<4>::new();
    let flow = Flow {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
        ..flow([0; 4])
    };
    let mut packet = [7; 64];
    seal(&flow, 0, &mut packet);
    assert_eq!(table.check(NOW, &flow, &packet), Verdict::Good);
    packet[60] ^= 1;
    assert_eq!(table.check(NOW, &flow, &packet), Verdict::Bad);
    assert_eq!(table.check(NOW, &flow, &[]), Verdict::Bad);
}

/// bugs.md A2 for this module: any length is judged, none read beyond.
#[test]
fn a2_every_length_is_judged() {
    let mut table = SourceTable::<4>::new();
    for len in 0..100 {
        let mut packet = [3; 100];
        assert_eq!(table.check(NOW, &flow([1, 2, 3, 4]), &packet[..len]), Verdict::Bad, "{len}");
        seal(&flow([1, 2, 3, 4]), 0, &mut packet[..len]);
        let good = if len < 4 { Verdict::Bad } else { Verdict::Good };
        assert_eq!(table.check(NOW, &flow([1, 2, 3, 4]), &packet[..len]), good, "{len}");
    }
}

#[test]
fn the_least_recently_heard_is_forgotten() {
    let mut table = SourceTable::<4>::new();
    let source = |k: u8| [10, 0, 0, k];
    let mut packet = [7; 64];
    let hear = |table: &mut SourceTable<4>, k: u8, packet: &mut [u8; 64]| {
        seal(&flow(source(k)), 0, packet);
        assert_eq!(table.check(NOW, &flow(source(k)), packet), Verdict::Good);
    };
    for _ in 0..16 {
        for k in 0..4 {
            hear(&mut table, k, &mut packet);
        }
    }
    assert!((0..4).all(|k| table.state(source(k)) == IdState::Zero));
    hear(&mut table, 0, &mut packet);
    hear(&mut table, 9, &mut packet);
    assert_eq!(table.state(source(1)), IdState::Unknown, "oldest");
    assert_eq!(table.state(source(0)), IdState::Zero);
    assert_eq!(table.state(source(9)), IdState::Unknown, "new");
    assert!(table.slots.iter().any(|slot| slot.source == Some(source(9))));
}
