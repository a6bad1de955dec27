//! Runs the findings of fuzzing, and packets of chance for the plans among them, through the body of the fuzz target, on stable Rust.

#[path = "../../../fuzz/bodies/fault_plan.rs"]
mod fault_plan;

use std::path::Path;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/fault_plan");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn fault_plan_corpus() {
    let seeds = corpus();
    assert!(seeds.len() >= 20, "{}", seeds.len());
    for seed in seeds {
        for len in 0..=seed.len() {
            fault_plan::run(&seed[..len]);
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(20))]

    #[test]
    fn packets_of_chance(steps in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..1600)) {
        for seed in corpus() {
            let plan = seed.split(|octet| *octet == 0).next().unwrap();
            fault_plan::run(&[plan, &[0], &steps].concat());
        }
    }
}
