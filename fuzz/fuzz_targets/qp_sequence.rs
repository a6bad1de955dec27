//! Verbs calls, packets and time on one RC queue pair.

#![no_main]

#[path = "../bodies/qp_sequence.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
