//! Verbs calls, FPDUs and any other octets on the stream of an iWARP queue pair.

#![no_main]

#[path = "../bodies/iwarp_stream.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
