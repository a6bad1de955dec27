//! A test in a network namespace of its own, where port 4791 and the broker's name are free.
#![allow(dead_code, reason = "each test program uses its part")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferroce_client::{BrokerClient, BrokerError, BrokerMode};

const INSIDE: &str = "FERROCE_TEST_INSIDE";

/// Longest wait for an answer: the processors may be busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `body` in a fresh user and network namespace: the test program again, with `name`, the test's own name. Where the
/// system refuses namespaces the test says so and passes.
pub fn isolated(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut probe = Command::new("unshare");
    match probe.args(["-Urn", "true"]).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        _ => {
            println!("skipped {name}: this system refuses a user and network namespace (unshare -Urn)");
            return;
        }
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-test-{}-{name}", std::process::id()));
    let output = Command::new("unshare")
        // With a pid namespace nothing outlives the test.
        .args(["-Urn", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("FERROCE_RUNTIME_DIR", &runtime)
        .env("FERROCE_DAEMON", env!("CARGO_BIN_EXE_ferroced"))
        .env("FERROCE_LOG", "debug")
        .env_remove("FERROCE_NETDEV")
        .env_remove("FERROCE_BROKER")
        .output()
        .unwrap();
    let log = std::fs::read_to_string(runtime.join("ferroced.log")).unwrap_or_default();
    let _ = std::fs::remove_dir_all(&runtime);
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "the broker's log:\n{log}\ninside the namespace, {}:\n{said}\n{errors}",
        output.status
    );
}

/// A client of a broker that is started if there is none.
pub fn connect() -> BrokerClient {
    BrokerClient::connect(BrokerMode::Auto).unwrap_or_else(|e| panic!("{}", chain(&e)))
}

/// An error with its causes.
pub fn chain(error: &BrokerError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Waits until `what` holds, for a minute: the processors may be busy with something else.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process ids of all brokers of this pid namespace.
pub fn brokers() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // Field 3 of stat, after the name in parentheses: not a zombie.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        comm.trim() == "ferroced" && !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z')
    })
    .collect()
}

/// `kill -9` of a process of this test.
pub fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// This test program as another process: runs the test `name` with `role` in the environment.
pub fn program(name: &str, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("FERROCE_TEST_ROLE", role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
