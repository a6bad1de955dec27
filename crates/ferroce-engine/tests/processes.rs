//! What needs more than one process: a peer that sleeps, a peer that is killed.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use ferroce_wire::{Gid, PathMtu, Qpn, Rkey};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const ROLE: &str = "FERROCE_TEST_ROLE";

/// The other process: this test binary again, doing only [`other_process`].
struct Peer {
    process: Child,
    input: ChildStdin,
    address: Address,
    remote: Remote,
}

impl Peer {
    fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let line = output.lines().map(Result::unwrap).find(|line| line.contains("address ")).unwrap();
        let numbers: Vec<u64> = line
            .split("address ")
            .nth(1)
            .unwrap()
            .split(' ')
            .map(|number| u64::from_str_radix(number, 16).unwrap())
            .collect();
        let address = Address { qpn: Qpn::new(numbers[0] as u32), gid: Gid::from_ip([127, 0, 0, 1].into()) };
        let remote = Remote { addr: numbers[1], rkey: Rkey::new(numbers[2] as u32) };
        Self { process, input, address, remote }
    }

    fn connect(&mut self, end: &End) {
        writeln!(self.input, "{:x}", end.qp.qpn().value()).unwrap();
        to_init(&end.qp);
        to_rts(&end.qp, self.address, 0, PathMtu::B1024);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The role of the other process: connects, and then sleeps, or exits with its first completion; or talks to itself.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "stop" => return be_stopped(),
        "ping-pong" => return play_ping_pong(),
        _ => {}
    }
    let end = End::new(Wanted::default());
    end.memory.fill(3, 1 << 20);
    to_init(&end.qp);
    println!("address {:x} {:x} {:x}", end.qp.qpn().value(), end.memory.addr(), end.mr.rkey().value());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let qpn = Qpn::new(u32::from_str_radix(line.trim(), 16).unwrap());
    to_rts(&end.qp, Address { qpn, gid: Gid::from_ip([127, 0, 0, 1].into()) }, 0, PathMtu::B1024);
    if role == "exit" {
        for round in 0..ANSWERS {
            end.receive(round, end.sge(0, 64));
            end.expect(round, WcOpcode::Recv);
            end.qp.post_send([quiet(round, &[end.sge(0, 8)])]).unwrap();
        }
        end.receive(ANSWERS, end.sge(0, 64));
        end.expect(ANSWERS, WcOpcode::Recv);
        std::process::exit(0);
    }
    std::thread::sleep(Duration::from_secs(60));
}

/// Enough for the other end to find out that we do not wait for its acknowledgements.
const ANSWERS: u64 = 500;

/// A SEND without a completion.
fn quiet(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    SendWr { signaled: false, ..send(wr_id, SendOp::Send, sges) }
}

/// What a process took before it exited is acknowledged, although it destroyed nothing.
#[test]
fn a_process_that_exits_has_acknowledged() {
    let end = End::new(Wanted::default());
    let mut peer = Peer::start("exit");
    peer.connect(&end);
    for round in 0..ANSWERS {
        end.receive(round, end.sge(0, 64));
        end.qp.post_send([quiet(round, &[end.sge(64, 8)])]).unwrap();
        end.expect(round, WcOpcode::Recv);
    }
    end.post(1, SendOp::Send, end.sge(0, 64));
    end.expect(1, WcOpcode::Send);
    assert!(peer.process.wait().unwrap().success());
    assert_eq!(end.qp.counters().timeouts, 0);
}

/// Plays with itself.
fn play_ping_pong() {
    let (a, b) = pair();
    for round in 0..ANSWERS {
        for (from, to) in [(&a, &b), (&b, &a)] {
            to.receive(round, to.sge(0, 64));
            from.qp.post_send([quiet(round, &[from.sge(64, 8)])]).unwrap();
            to.expect(round, WcOpcode::Recv);
        }
    }
    let calls = a.context.counters().tx_calls.load(Ordering::Relaxed);
    // Two a round, and some more where the background thread was quicker than a thread that had no CPU.
    assert!(calls < 3 * ANSWERS, "{calls} calls for {} messages", 2 * ANSWERS);
    std::process::exit(0);
}

/// In a ping-pong an ACK costs no system call: it rides with the answer, or a later one speaks for it.
#[test]
fn an_ack_rides_with_the_answer() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, "ping-pong")
        .spawn()
        .unwrap();
    assert!(process.wait().unwrap().success());
}

/// Must-show 9: a process that only sleeps serves READs and WRITEs.
#[test]
fn a_process_that_sleeps_is_served() {
    let end = End::new(Wanted::default());
    let mut peer = Peer::start("sleep");
    peer.connect(&end);
    let all = end.sge(0, 1 << 20);
    end.post(1, SendOp::Read { remote: peer.remote }, all);
    end.expect(1, WcOpcode::RdmaRead);
    end.memory.check(3, 1 << 20);
    end.memory.fill(4, 1 << 20);
    end.post(2, SendOp::Write { remote: peer.remote }, all);
    end.expect(2, WcOpcode::RdmaWrite);
    end.memory.fill(5, 1 << 20);
    end.post(3, SendOp::Read { remote: peer.remote }, all);
    end.expect(3, WcOpcode::RdmaRead);
    end.memory.check(4, 1 << 20);
}

/// Must-show 9: within (1 + retry_cnt) T and 4 (1 + retry_cnt) T, T = 67 ms, retry_cnt = 7.
#[test]
fn a_killed_peer_is_retry_exceeded() {
    let end = End::new(Wanted::default());
    let mut peer = Peer::start("sleep");
    peer.connect(&end);
    end.post(1, SendOp::Read { remote: peer.remote }, end.sge(0, 64));
    end.expect(1, WcOpcode::RdmaRead);
    peer.process.kill().unwrap();
    peer.process.wait().unwrap();
    let start = Instant::now();
    end.post(2, SendOp::Write { remote: peer.remote }, end.sge(0, 64));
    end.post(3, SendOp::Write { remote: peer.remote }, end.sge(0, 64));
    let (first, second) = (end.complete(), end.complete());
    assert_eq!((first.wr_id, first.status), (2, WcStatus::RetryExcErr));
    assert_eq!((second.wr_id, second.status), (3, WcStatus::WrFlushErr));
    let expiries = Duration::from_micros(67_109 * 8);
    assert!(start.elapsed() >= expiries && start.elapsed() < 4 * expiries, "{:?}", start.elapsed());
}

/// Times that it is stopped, each for longer than the ACK timeout of 67 ms.
const STOPS: u64 = 10;
const STOPPED_FOR: Duration = Duration::from_millis(100);

/// Reads from itself, and is stopped when the request has left and nobody has looked for the answer.
fn be_stopped() {
    let (a, b) = pair();
    for round in 0..STOPS {
        a.post(round, SendOp::Read { remote: b.remote(0) }, a.sge(0, 64));
        raise(Signal::SIGSTOP).unwrap();
        a.expect(round, WcOpcode::RdmaRead);
    }
    let counters = a.qp.counters();
    assert_eq!((counters.timeouts, counters.early_resends, counters.resent_pkts), (0, 0, 0), "{counters:?}");
    std::process::exit(0);
}

/// Whoever did not run has not waited: what arrived meanwhile is looked at before a timer says that it did not.
#[test]
fn a_process_that_was_stopped_sends_nothing_again() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, "stop")
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(process.id() as i32);
    for _ in 0..STOPS {
        assert_eq!(waitpid(pid, Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
        std::thread::sleep(STOPPED_FOR);
        kill(pid, Signal::SIGCONT).unwrap();
    }
    assert!(process.wait().unwrap().success());
}
