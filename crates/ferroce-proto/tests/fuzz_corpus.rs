//! Runs the findings of fuzzing and a few thousand random sequences through the bodies of the fuzz targets, on stable
//! Rust.

#[path = "../../../fuzz/bodies/iwarp_setup.rs"]
mod iwarp_setup;
#[path = "../../../fuzz/bodies/iwarp_stream.rs"]
mod iwarp_stream;
#[path = "../../../fuzz/bodies/pair_sequence.rs"]
mod pair_sequence;
#[path = "../../../fuzz/bodies/qp_sequence.rs"]
mod qp_sequence;

use std::path::Path;

use ferroce_sim::{Rng, Seed};

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus in {}", folder.display());
}

#[test]
fn qp_sequence_corpus() {
    replay("qp_sequence", |seed| {
        qp_sequence::run(seed);
        // Also with each choice of selective repeat and congestion control; with the first one it is the sequence that was found.
        for choice in (0..64).step_by(2) {
            let mut seed = seed.to_vec();
            if let Some(octet) = seed.get_mut(qp_sequence::CHOICES) {
                *octet = *octet & 1 | choice;
            }
            qp_sequence::run(&seed);
        }
    });
}

#[test]
fn iwarp_setup_corpus() {
    replay("iwarp_setup", iwarp_setup::run);
}

#[test]
fn iwarp_setups_of_chance() {
    let seed = Seed::for_test("iwarp_setups_of_chance", 3);
    let mut rng = seed.rng();
    for _ in 0..10_000 {
        let mut data: Vec<u8> = (0..12 + rng.below(300)).map(|_| rng.next_u64() as u8).collect();
        // A length field that is often right, and a revision that is often known.
        (data[9], data[10]) = (data[9] % 4, data[10] % 2);
        iwarp_setup::run(&data);
    }
}

#[test]
fn qp_sequences_of_chance() {
    let seed = Seed::for_test("qp_sequences_of_chance", 1);
    let mut rng = seed.rng();
    for _ in 0..3000 {
        let mut rng: Rng = rng.fork();
        let len = 50 + rng.below(1500);
        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        qp_sequence::run(&data);
    }
}

#[test]
fn pair_sequence_corpus() {
    let successes = std::cell::Cell::new(0);
    replay("pair_sequence", |seed| successes.set(successes.get() + pair_sequence::run(seed)));
    assert!(successes.get() > 100, "{successes:?}");
}

#[test]
fn pair_sequences_of_chance() {
    let seed = Seed::for_test("pair_sequences_of_chance", 1);
    let (mut rng, mut successes) = (seed.rng(), 0);
    for _ in 0..1000 {
        let mut rng: Rng = rng.fork();
        let len = 50 + rng.below(1500);
        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        successes += pair_sequence::run(&data);
    }
    assert!(successes > 1000, "{successes}");
}

#[test]
fn iwarp_stream_corpus() {
    replay("iwarp_stream", iwarp_stream::run);
}

#[test]
fn iwarp_streams_of_chance() {
    let seed = Seed::for_test("iwarp_streams_of_chance", 3);
    let mut rng = seed.rng();
    for _ in 0..3000 {
        let mut rng: Rng = rng.fork();
        let len = 50 + rng.below(1500);
        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        iwarp_stream::run(&data);
    }
}
