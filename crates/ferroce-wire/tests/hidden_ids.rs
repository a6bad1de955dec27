//! Packets whose IPv4 identification and DF bit a UDP socket hides: no honest sender's is refused, and how many corrupt ones are
//! taken.

use ferroce_wire::icrc::{self, Verdict};
use ferroce_wire::{Flow, IcrcChecker};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn flow(host: u8, source_port: u16) -> Flow {
    Flow {
        source: [192, 0, 2, host].into(),
        destination: [192, 0, 2, 100].into(),
        source_port,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(cases)
    }
}

/// A packet as its sender prepares it.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    host: u8,
    /// The queue pair, by its source port.
    port: u16,
    /// Identifications that other traffic of the host takes before it.
    others: u16,
    /// How many packets leave before it although they were prepared later.
    late: usize,
}

fn any_packet(hosts: u8, lateness: usize) -> impl Strategy<Value = Prepared> {
    let others = prop_oneof![20 => Just(0u16), 3 => 0u16..8, 1 => any::<u16>()];
    let late = prop_oneof![3 => Just(0usize), 2 => 0..lateness];
    (0..hosts, 0u16..6, others, late).prop_map(|(host, port, others, late)| Prepared {
        host,
        port: 0xc000 + port,
        others,
        late,
    })
}

proptest! {
    #![proptest_config(config(16))]

    /// Kernel rxe takes the identification when it prepares a packet, from one counter for all queue pairs of two hosts.
    /// Until it leaves, a queueing discipline such as fq_codel lets those of other queue pairs pass, and so does another
    /// CPU. Counters wrap, begin anywhere, and a host changes its habit when it runs something else.
    #[test]
    fn no_honest_packet_is_refused(
        starts in prop::collection::vec(prop_oneof![Just(0u16), Just(0xfff0), any::<u16>()], 3),
        constant in prop::collection::vec(prop::option::of(any::<u16>()), 3),
        lateness in prop_oneof![Just(10usize), Just(400), Just(9000)],
        packets in prop::collection::vec(any_packet(3, 9000), 20_000),
    ) {
        let mut counters = starts;
        let mut prepared: Vec<(usize, u16, Prepared)> = Vec::new();
        for (at, packet) in packets.into_iter().enumerate() {
            let host = usize::from(packet.host);
            counters[host] = counters[host].wrapping_add(1).wrapping_add(packet.others);
            // Other hosts send the same identification for half of the time.
            let id = constant[host].filter(|_| at < 10_000).unwrap_or(counters[host]);
            prepared.push((at + packet.late.min(lateness), id, packet));
        }
        prepared.sort_by_key(|(leaves, ..)| *leaves);
        let mut checker = IcrcChecker::new();
        for (leaves, id, Prepared { host, port, .. }) in prepared {
            let flow = flow(host, port);
            let mut octets = [leaves as u8; 32];
            icrc::seal(&flow, id, &mut octets);
            let want = if id == 0 { Verdict::Good } else { Verdict::Solved(id) };
            prop_assert_eq!(checker.check(&flow, &octets), want, "identification {}", id);
        }
    }
}

/// The worth of the check where the identification is hidden: 15 of 32 bits.
#[test]
fn one_corrupt_packet_in_32768_is_taken() {
    let mut checker = IcrcChecker::new();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 32
    };
    let (packets, mut taken) = (1u32 << 20, 0u32);
    for k in 0..packets {
        let flow = flow(1, 0xc000);
        let mut octets = [k as u8; 64];
        icrc::seal(&flow, random() as u16, &mut octets);
        // Behind the octet of the BTH that is not covered.
        let at = 5 + random() as usize % 50;
        octets[at..at + 4].iter_mut().for_each(|octet| *octet ^= random() as u8);
        octets[at] ^= 1;
        taken += u32::from(checker.check(&flow, &octets) != Verdict::Bad);
    }
    // The expectation is 32, and its deviation 5.7.
    assert!((10..=56).contains(&taken), "{taken} of {packets}");
}
