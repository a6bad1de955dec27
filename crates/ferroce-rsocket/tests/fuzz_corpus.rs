//! Replays the inputs that fuzzing found, and some thousand random ones, on stable Rust.

#[path = "../../../fuzz/bodies/rsocket.rs"]
mod rsocket;

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};

#[test]
fn the_corpus_does_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/rsocket");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        rsocket::run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no corpus in {}", folder.display());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_inputs_do_no_harm(data in vec(any::<u8>(), 20..1520)) {
        rsocket::run(&data);
    }
}
