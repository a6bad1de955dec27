//! What fuzzing found, and a few thousand sequences of chance: the same body as the fuzz target, on stable Rust.

#[path = "../../../fuzz/bodies/qp_sequence.rs"]
mod qp_sequence;

use std::path::Path;

use ferroce_sim::{Rng, Seed};

#[test]
fn qp_sequence_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/qp_sequence");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        qp_sequence::run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus in {}", folder.display());
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
