//! What the tests of this crate share.
#![allow(dead_code, reason = "each test program uses its part")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

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

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Until a descriptor is readable.
pub fn readable(fd: &impl AsFd) {
    let start = Instant::now();
    while !ready(fd) {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing happens");
        thread::yield_now();
    }
}

/// Whether a descriptor, an eventfd, is readable.
pub fn ready(fd: &impl AsFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:")).expect("an eventfd");
    u64::from_str_radix(count.trim(), 16).unwrap() > 0
}
