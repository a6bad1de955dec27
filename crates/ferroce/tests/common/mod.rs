#![allow(dead_code, reason = "each test program uses its part")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ferroce::{
    Access, CompletionQueue, Connection, Init, ProtectionDomain, QpOptions, QueuePair, ReadyToSend,
};
use ferroce_ipc::{BROKER_NAME, Client, LinkKind, Message};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the named test again in a new network namespace. Returns whether this is that run.
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

/// Adds the iWARP device `iw0` on lo, the only device then.
pub fn add_iwarp_device() {
    ferroce::devices().unwrap();
    let (name, netdev) = ("iw0".to_owned(), "lo".to_owned());
    ask_broker(&Message::LinkAdd { name, kind: LinkKind::Siw, netdev, transient: true });
    let start = Instant::now();
    while !ferroce::devices().unwrap().iter().any(|device| device.name == "iw0") {
        assert!(start.elapsed() < PATIENCE, "no device");
    }
}

pub fn ask_broker(message: &Message) {
    Client::connect(BROKER_NAME, "", PATIENCE).unwrap().request(message, PATIENCE).unwrap();
}

/// Waits until a descriptor is readable.
pub fn readable(fd: &impl AsFd) {
    let start = Instant::now();
    while !ready(fd) {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing happens");
        thread::yield_now();
    }
}

/// Returns whether a descriptor is readable. This crate has no `poll`; the kernel shows EPOLLIN in the interest mask of
/// the descriptor's epoll member while an event is queued.
pub fn ready(fd: &impl AsFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let member = text.lines().find(|line| line.starts_with("tfd:")).expect("an epoll descriptor");
    let interest = member.split_whitespace().nth(3).expect("it has a mask");
    u32::from_str_radix(interest, 16).unwrap() & 1 != 0
}

pub type Ready = QueuePair<ReadyToSend>;

/// Two connected queue pairs of this process. All completions of end `i` are in `queues[i]`.
pub fn pair(domain: &ProtectionDomain, queues: [&CompletionQueue; 2]) -> (Ready, Ready) {
    pair_of(domain, queues, QpOptions::default())
}

/// As [`pair`], with queues of these sizes.
pub fn pair_of(
    domain: &ProtectionDomain,
    queues: [&CompletionQueue; 2],
    options: QpOptions,
) -> (Ready, Ready) {
    let make = |queue| {
        let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        domain.rc_queue_pair(queue, queue, options).unwrap().init(access).unwrap()
    };
    let (a, b) = (make(queues[0]), make(queues[1]));
    let (at_a, at_b) = (a.address(0).unwrap(), b.address(0).unwrap());
    let ready = |qp: QueuePair<Init>, to: Connection| {
        qp.ready_to_receive(&to).unwrap().ready_to_send(Default::default()).unwrap()
    };
    (ready(a, Connection::to(at_a, at_b)), ready(b, Connection::to(at_b, at_a)))
}
