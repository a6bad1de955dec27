//! Two RC queue pairs on a network with faults.

#![no_main]

#[path = "../bodies/pair_sequence.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| { body::run(data); });
