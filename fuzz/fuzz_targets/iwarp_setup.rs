//! MPA set-up frames of any content, and both ends of the set-up of an iWARP stream.

#![no_main]

#[path = "../bodies/iwarp_setup.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
