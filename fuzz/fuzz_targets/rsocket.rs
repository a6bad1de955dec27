//! Private data, headers, messages and calls on one rsocket.

#![no_main]

#[path = "../bodies/rsocket.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
