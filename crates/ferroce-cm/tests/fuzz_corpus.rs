//! Runs the findings of fuzzing and a few thousand random sequences through the body of the fuzz target, on stable Rust.

#[path = "../../../fuzz/bodies/cm_sequence.rs"]
mod cm_sequence;

use std::path::Path;

use ferroce_sim::Seed;

#[test]
fn cm_sequence_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/cm_sequence");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        cm_sequence::run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus in {}", folder.display());
}

#[test]
fn cm_sequences_of_chance() {
    let seed = Seed::for_test("cm_sequences_of_chance", 2);
    let mut rng = seed.rng();
    for _ in 0..3000 {
        let len = 20 + rng.below(600);
        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        cm_sequence::run(&data);
    }
}
