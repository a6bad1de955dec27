//! Ethernet frames, IP packets and RoCE packets of any content.

#![no_main]

#[path = "../bodies/frame.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
