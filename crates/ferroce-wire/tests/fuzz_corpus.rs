//! The fuzzer's corpus, on stable Rust and without the fuzzer.

use std::path::Path;

#[path = "../../../fuzz/bodies/frame.rs"]
mod body;

#[test]
fn frame() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/frame");
    let mut seeds = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        // Each seed as every kind of input, whole and cut.
        for kind in 0..3 {
            for len in 1..=seed.len() {
                let mut input = seed[..len].to_vec();
                input[0] = kind;
                body::run(&input);
            }
        }
        seeds += 1;
    }
    assert!(seeds >= 10, "{seeds}");
}
