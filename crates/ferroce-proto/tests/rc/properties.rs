//! Properties that hold for any numbers.

use std::time::Duration;

use ferroce_proto::{DropReason, RecvWr, Remote, SendOp, SendWr, Sge, WcStatus};
use ferroce_sim::{Rng, rules};
use ferroce_wire::{Lkey, PathMtu, Psn, Rkey};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::probe::{DATA, Probe, reth, write_only};
use crate::ram::Ram;
use crate::workload::{Direction, memory};
use crate::world::{Setup, World};

/// The same cases in every run, or those of `FERROCE_SEED`.
fn config(cases: u32) -> ProptestConfig {
    let seed = std::env::var("FERROCE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::with_cases(cases)
    }
}

fn any_mtu() -> impl Strategy<Value = PathMtu> {
    prop::sample::select(PathMtu::ALL.to_vec())
}

fn any_psn() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..0x100_0000, 0xff_fff0u32..0x100_0000]
}

/// Cuts `len` octets into at most `parts` pieces.
fn any_cuts(len: u32, parts: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..=len, 0..parts).prop_map(move |mut cuts| {
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    })
}

/// SGEs of these lengths over region `key`, each somewhere else than the one before.
fn scattered(key: u32, lengths: &[u32]) -> Vec<Sge> {
    let mut addr = 0;
    lengths
        .iter()
        .map(|&length| {
            let sge = Sge { addr, length, lkey: Lkey::new(key) };
            addr += u64::from(length) + 3;
            sge
        })
        .collect()
}

proptest! {
    #![proptest_config(config(256))]

    /// IBTA 9.7.2: the half of the circle before the expected PSN is duplicates, the other half is too early.
    #[test]
    fn psn_window(start in any_psn(), distance in 0u32..0x100_0000) {
        let mut probe = Probe::new(Setup { psn: [0, start], ..Setup::default() });
        let result = probe.request(distance, write_only(reth(0, 4), &DATA[..4]));
        let want = match distance {
            0 => Ok(()),
            1..0x80_0000 => Err(DropReason::OutOfSequence),
            _ => Err(DropReason::DuplicateRequest),
        };
        prop_assert_eq!(result, want);
        let expected = Psn::new(start).add(u32::from(distance == 0));
        prop_assert_eq!(probe.end.qp.query().rq_psn, expected);
    }

    /// The message arrives as it was, however it is cut into packets and SGEs on either side.
    #[test]
    fn reassembly_equals_input(
        mtu in any_mtu(),
        (from, into) in (0u32..20_000).prop_flat_map(|len| (any_cuts(len, 8), any_cuts(len, 8))),
        psn in any_psn(),
        kind in 0..3,
    ) {
        let caps = ferroce_proto::QpCaps { max_send_sge: 10, max_recv_sge: 10, ..Setup::default().caps };
        let setup = Setup { mtu, caps, psn: [psn, 77], ..Setup::default() };
        let len: u32 = from.iter().sum();
        let input: Vec<u8> = (0..30_000u32).map(|i| ((i * 131) >> 3) as u8).collect();
        let [mut a, mut b] = [Ram::default(), Ram::default()];
        for ram in [&mut a, &mut b] {
            ram.register(1, 0, input.clone());
            ram.register(2, 0, vec![0; 30_000]);
        }
        let mut world = World::connected(&setup, [a, b]);
        // Key 1 is read, key 2 written; only one side of an operation can be scattered, unless it is a send.
        let (from, into) = (scattered(1, &from), scattered(2, &into));
        let remote = |key| Remote { addr: 0, rkey: Rkey::new(key) };
        let (op, sges) = match kind {
            0 => (SendOp::Send, &from),
            1 => (SendOp::Write { remote: remote(2) }, &from),
            _ => (SendOp::Read { remote: remote(1) }, &into),
        };
        if kind == 0 {
            world.ends[1].qp.post_recv(&RecvWr { wr_id: 2, sges: &into }).unwrap();
        }
        let wr = SendWr::signaled(1, op, sges);
        let end = &mut world.ends[0];
        end.qp.post_send(&wr, &end.mem).unwrap();
        world.run_until(Duration::from_secs(1), |world| !world.ends[0].sends.is_empty());
        prop_assert_eq!(world.ends[0].sends[0].status, WcStatus::Success);
        let collect = |ram: &Ram, key, sges: &[Sge]| -> Vec<u8> {
            let piece = |sge: &Sge| ram.bytes(key)[sge.addr as usize..][..sge.length as usize].to_vec();
            sges.iter().flat_map(piece).collect()
        };
        let straight = [Sge { addr: 0, length: len, lkey: Lkey::new(0) }];
        let (sent, got) = match kind {
            0 => (collect(&world.ends[0].mem, 1, &from), collect(&world.ends[1].mem, 2, &into)),
            1 => (collect(&world.ends[0].mem, 1, &from), collect(&world.ends[1].mem, 2, &straight)),
            _ => (collect(&world.ends[1].mem, 1, &straight), collect(&world.ends[0].mem, 2, &into)),
        };
        prop_assert!(sent == got);
        prop_assert_eq!(got.len(), len as usize);
    }
}

proptest! {
    #![proptest_config(config(64))]

    /// The model of `workload` (order, octets, counters, completions) holds for any two queue pairs and any network.
    #[test]
    fn the_model_of_rc_holds(
        mtu in any_mtu(),
        psns in [any_psn(), any_psn()],
        rd_atomic in 1u8..17,
        rcvbuf in prop::sample::select(vec![1000usize, 20_000, 208 << 10, 8 << 20]),
        timeout in prop::sample::select(vec![0u8, 6, 10, 14]),
        early_resends in any::<bool>(),
        faults in [0u32..100_000, 0..5_000, 0..50_000, 0..50_000, 0..10_000],
        seed in any::<u64>(),
    ) {
        let setup = Setup {
            mtu,
            psn: psns,
            rd_atomic,
            rcvbuf,
            timeout,
            // Something must send again when nothing answers.
            early_resends: early_resends || timeout == 0,
            min_rnr_timer: 1,
            ..Setup::default()
        };
        let mut rng = Rng::new(seed);
        let mut world = World::connected(&setup, [memory(), memory()]);
        world.quiet = true;
        let us = Duration::from_micros;
        world.network.rule(rules::loss(rng.fork(), faults[0]));
        world.network.rule(rules::bursts(rng.fork(), faults[1], 5));
        world.network.rule(rules::duplication(rng.fork(), faults[2], us(300)));
        world.network.rule(rules::reordering(rng.fork(), faults[3], us(100)));
        world.network.rule(rules::corruption(rng.fork(), faults[4]));
        let mut directions = [0, 1].map(|_| Direction::new(rng.fork(), 60, 10_000));
        loop {
            for (side, direction) in directions.iter_mut().enumerate() {
                let [one, other] = &mut world.ends;
                direction.pump(world.now, if side == 0 { [one, other] } else { [other, one] });
                world.drain(side);
            }
            if directions.iter().all(Direction::is_done) {
                break;
            }
            prop_assert!(world.step(), "stuck");
        }
    }
}
