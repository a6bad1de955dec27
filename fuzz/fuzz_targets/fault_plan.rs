//! Plans of faults of any text, and packets, calls and time for the judge of each.

#![no_main]

#[path = "../bodies/fault_plan.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
