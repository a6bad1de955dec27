//! The peer's probe: one scripted verbs exchange at a time, each with a checked outcome on both ends.

use std::path::PathBuf;

use anyhow::Result;

use ferroce_harness::cc;
use ferroce_harness::debian::Programs;
use ferroce_harness::dist::Dist;

/// The scenarios of the RC service.
pub const RC: &[&str] = &[
    "send",
    "send_imm",
    "send_many",
    "write",
    "write_imm",
    "read",
    "read_many",
    "atomic",
    "send_inv",
    "psn_wrap",
    "bad_rkey_write",
    "bad_rkey_read",
    "no_perm",
    "out_of_range",
    "short_recv",
    "bad_atomic",
    "rnr",
    "rnr_exc",
    "retry_exc",
];

/// Exchanges of UC and UD.
pub const UNRELIABLE: &[&str] = &["uc_send", "uc_write", "ud_send"];

/// Exchanges that fail on the wire on purpose, so error counters move.
pub const ERRORS: &[&str] = &[
    "send_inv",
    "bad_rkey_write",
    "bad_rkey_read",
    "no_perm",
    "out_of_range",
    "short_recv",
    "bad_atomic",
    "rnr",
    "rnr_exc",
    "retry_exc",
];

/// Compiles the probe.
pub fn build(dist: &Dist, programs: &Programs) -> Result<PathBuf> {
    cc::ours("vprobe", dist, programs)
}
