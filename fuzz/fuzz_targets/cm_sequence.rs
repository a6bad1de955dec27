//! Commands, CM messages and time on one connection manager.

#![no_main]

#[path = "../bodies/cm_sequence.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
