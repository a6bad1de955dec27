//! The broker and its programs, with messages of any content.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroce_broker::fuzzing::run(data));
