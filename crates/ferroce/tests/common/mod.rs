//! What the tests of this crate share.

use std::process::Command;

/// Runs the test of that name again, where `lo` is its own. Whether this is that run.
pub fn in_namespace(test: &str) -> bool {
    if std::env::var_os("FERROCE_TEST_INSIDE").is_some() {
        return true;
    }
    let me = std::env::current_exe().expect("a test has a path");
    for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
        let unshare = |command: &[&str]| {
            let mut all = Command::new("unshare");
            all.args(flags).arg("--").args(command).env("FERROCE_TEST_INSIDE", "1");
            all.env("FERROCE_BROKER", "embedded").status().is_ok_and(|status| status.success())
        };
        if !unshare(&["true"]) {
            continue;
        }
        let script = "ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture";
        assert!(unshare(&["sh", "-c", script, &me.to_string_lossy(), test]), "{test} failed inside");
        return false;
    }
    println!("skipped: no network namespace can be made here");
    false
}
