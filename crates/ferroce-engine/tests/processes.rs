//! Tests with more than one process: a peer that sleeps, a peer that is killed.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{AhAttr, QpAttr, Remote, SendOp, SendWr, Service, Sge, WcOpcode, WcStatus};
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
        Self::start_under("", role)
    }

    /// Starts it under these rules of faults.
    fn start_under(faults: &str, role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("FERROCE_FAULT", faults)
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
        self.connect_by(end, false);
    }

    /// Connects; with selective repeat, if both ends agree to it.
    fn connect_by(&mut self, end: &End, selective_repeat: bool) {
        writeln!(self.input, "{:x}", end.qp.qpn().value()).unwrap();
        to_init(&end.qp);
        bring_up(&end.qp, &QpAttr { selective_repeat, ..rtr(self.address, 0, PathMtu::B1024) });
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
#[ignore = "a part of other tests"]
fn other_process() {
    let role = std::env::var(ROLE).unwrap();
    match role.as_str() {
        "stop" => return be_stopped(),
        "ping-pong" => return play_ping_pong(),
        "echo" => return echo(),
        "resolve" => return resolve(),
        "write" => return write_and_exit(),
        _ => {}
    }
    let end = End::new(Wanted::default());
    end.memory.fill(3, 1 << 20);
    to_init(&end.qp);
    println!("address {:x} {:x} {:x}", end.qp.qpn().value(), end.memory.addr(), end.mr.rkey().value());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let qpn = Qpn::new(u32::from_str_radix(line.trim(), 16).unwrap());
    let peer = Address { qpn, gid: Gid::from_ip([127, 0, 0, 1].into()) };
    let attr = rtr(peer, 0, PathMtu::B1024);
    bring_up(&end.qp, &QpAttr { selective_repeat: role == "exit after two", ..attr });
    if role == "exit after two" {
        (0..2).for_each(|wr_id| end.receive(wr_id, end.sge(0, 64)));
        for wr_id in 0..2 {
            end.expect(wr_id, WcOpcode::Recv);
        }
        std::process::exit(0);
    }
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

/// Messages that a process posts one by one before it exits.
const WRITES: usize = 40;

/// Writes to the other end, message by message, and exits without a look at what became of it.
fn write_and_exit() {
    force_udp();
    let end = End::new(Wanted::default());
    end.memory.fill(3, 8 * WRITES);
    to_init(&end.qp);
    println!("address {:x} {:x} {:x}", end.qp.qpn().value(), end.memory.addr(), end.mr.rkey().value());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let numbers: Vec<u64> =
        line.trim().split(' ').map(|number| u64::from_str_radix(number, 16).unwrap()).collect();
    let peer = Address { qpn: Qpn::new(numbers[0] as u32), gid: Gid::from_ip([127, 0, 0, 1].into()) };
    to_rts(&end.qp, peer, 0, PathMtu::B1024);
    for place in 0..WRITES {
        let remote = Remote { addr: numbers[1] + 8 * place as u64, rkey: Rkey::new(numbers[2] as u32) };
        end.post(place as u64, SendOp::Write { remote }, end.sge(8 * place, 8));
    }
    std::process::exit(0);
}

#[test]
fn messages_that_wait_to_fill_a_batch_leave_before_the_process_ends() {
    let end = End::new(Wanted::default());
    let mut peer = Peer::start("write");
    to_init(&end.qp);
    to_rts(&end.qp, peer.address, 0, PathMtu::B1024);
    writeln!(peer.input, "{:x} {:x} {:x}", end.qp.qpn().value(), end.memory.addr(), end.mr.rkey().value())
        .unwrap();
    let expected = Memory::new(8 * WRITES);
    expected.fill(3, 8 * WRITES);
    let start = Instant::now();
    while (0..8 * WRITES).any(|at| end.memory.get(at) != expected.get(at)) {
        assert!(start.elapsed() < PATIENCE, "the last messages of a process are lost");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends every datagram back to where it came from, from the queue pair that it came to: three of them.
fn echo() {
    let ends: [End; 3] = std::array::from_fn(|_| {
        let end = End::new(Wanted { service: Service::Ud, ..Wanted::default() });
        ud_to_rts(&end.qp);
        (0..8).for_each(|place| end.receive(place, end.sge(100 * place as usize, 100)));
        end
    });
    let [a, b, c] = ends.each_ref().map(|end| end.qp.qpn().value());
    println!("address {a:x} {b:x} {c:x}");
    let mut one = [blank()];
    loop {
        for end in &ends {
            if end.cq.poll(&mut one).unwrap() == 0 || one[0].opcode != WcOpcode::Recv {
                continue;
            }
            let (at, len) = (100 * one[0].wr_id as usize, one[0].byte_len as usize);
            let header = std::array::from_fn(|i| end.memory.get(at + i));
            let back = end.pd.create_ah(end.context.answering(&header).unwrap()).unwrap();
            let to = back.to(one[0].src_qp, QKEY).unwrap();
            let answer = [end.sge(at + 40, len - 40)];
            end.qp.post_send([SendWr { to, ..send(9, SendOp::Send, &answer) }]).unwrap();
            back.destroy();
            end.receive(one[0].wr_id, end.sge(at, 100));
        }
    }
}

/// Each queue pair of each process gets what is for it, and nothing else.
#[test]
fn datagrams_to_several_queue_pairs_of_several_processes() {
    let end = End::new(Wanted { service: Service::Ud, ..Wanted::default() });
    ud_to_rts(&end.qp);
    let peers = [Peer::start("echo"), Peer::start("echo")];
    let qpns: Vec<Qpn> = peers
        .iter()
        .flat_map(|peer| {
            [peer.address.qpn, Qpn::new(peer.remote.addr as u32), Qpn::new(peer.remote.rkey.value())]
        })
        .chain([end.qp.qpn()])
        .collect();
    for gid_index in [0, 1] {
        let dgid = end.context.gid(u32::from(gid_index)).unwrap().unwrap().gid;
        let attr = AhAttr { dgid, sgid_index: gid_index, ..AhAttr::default() };
        let ah = end.pd.create_ah(attr).unwrap();
        for round in 0..50 {
            for (place, qpn) in qpns.iter().enumerate() {
                end.receive(place as u64, end.sge(100 * place, 100));
                end.memory.set(10_000 + place, (round + place) as u8);
                let (to, sges) = (ah.to(*qpn, QKEY).unwrap(), [end.sge(10_000 + place, 1)]);
                end.qp.post_send([SendWr { to, signaled: false, ..send(1, SendOp::Send, &sges) }]).unwrap();
            }
            let mut answered = Vec::new();
            for _ in &qpns {
                let got = end.complete();
                assert_eq!((got.status, got.byte_len), (WcStatus::Success, 41));
                let place = qpns.iter().position(|qpn| *qpn == got.src_qp).expect("one of them");
                assert_eq!(end.memory.get(100 * got.wr_id as usize + 40), (round + place) as u8);
                answered.push(place);
            }
            answered.sort_unstable();
            assert_eq!(answered, (0..qpns.len()).collect::<Vec<_>>(), "each once");
        }
    }
}

/// Enough for the other end to find out that we do not wait for its acknowledgements.
const ANSWERS: u64 = 500;

/// A SEND without a completion.
fn quiet(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    SendWr { signaled: false, ..send(wr_id, SendOp::Send, sges) }
}

/// Requests that a process received before it exited are acknowledged, although it destroyed nothing.
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
    // A peer without a processor may have let the ACK timeout pass before.
    let before = end.qp.counters().timeouts;
    end.post(1, SendOp::Send, end.sge(0, 64));
    end.expect(1, WcOpcode::Send);
    assert!(peer.process.wait().unwrap().success());
    assert_eq!(end.qp.counters().timeouts, before);
}

/// The last ACK of a process that destroyed nothing is lost, and no repeat of the request arrives before the process has ended.
#[test]
fn the_last_ack_of_a_process_that_exits_may_get_lost() {
    let end = End::new(Wanted::default());
    let lost = "drop if dir=tx,op=ack,psn=1,nth=1; drop if dir=rx,op=send,psn=1,iter=2..255";
    let mut peer = Peer::start_under(lost, "exit after two");
    peer.connect_by(&end, true);
    // The first message may come before its receiver is ready, and is repeated then.
    for wr_id in 0..2 {
        end.post(wr_id, SendOp::Send, end.sge(0, 64));
        end.expect(wr_id, WcOpcode::Send);
    }
    assert!(peer.process.wait().unwrap().success());
}

/// Plays with itself.
fn play_ping_pong() {
    let (a, b) = pair();
    let calls = || a.context.counters().tx_calls.load(Ordering::Relaxed);
    // Two a round, and up to four where the background thread was quicker than a thread that had no CPU: on a machine that
    // others keep busy it may be so for a while.
    let tries: Vec<u64> = (0..20)
        .map(|_| {
            let before = calls();
            for round in 0..ANSWERS {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    to.receive(round, to.sge(0, 64));
                    from.qp.post_send([quiet(round, &[from.sge(64, 8)])]).unwrap();
                    to.expect(round, WcOpcode::Recv);
                }
            }
            calls() - before
        })
        .take_while(|calls| *calls >= 3 * ANSWERS)
        .collect();
    assert!(tries.len() < 20, "{tries:?} calls for {} messages each", 2 * ANSWERS);
    std::process::exit(0);
}

/// In a ping-pong an ACK costs no system call: it rides with the answer, or a later one speaks for it.
#[test]
fn an_ack_rides_with_the_answer() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, "ping-pong")
        .env("FERROCE_DATAPATH", "udp")
        .spawn()
        .unwrap();
    assert!(process.wait().unwrap().success());
}

/// Receives a message in a verb, and turns to connection management instead of answering.
fn resolve() {
    let (a, b) = pair();
    let packets = || a.context.counters().pipe_sent_pkts.load(Ordering::Relaxed);
    for round in 0..50 {
        b.receive(round, b.sge(0, 64));
        let before = packets();
        a.post(round, SendOp::Send, a.sge(64, 8));
        b.expect(round, WcOpcode::Recv);
        ferroce_engine::cm::resolve::route(None, "127.0.0.1:7471".parse().unwrap()).unwrap();
        // The message's and the acknowledgement's, whichever thread sent that.
        assert!(packets() >= before + 2, "round {round}: the acknowledgement still waits");
        a.expect(round, WcOpcode::Send);
    }
    std::process::exit(0);
}

/// perftest -R: the server's wait for its last acknowledgement must not be longer than the client's way to its next
/// request.
#[test]
fn who_turns_to_connection_management_has_acknowledged() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, "resolve")
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
    assert!(start.elapsed() >= expiries && start.elapsed() < PATIENCE, "{:?}", start.elapsed());
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

/// A stopped process has not waited: it handles the packets that arrived meanwhile before a timer expires.
#[test]
fn a_process_that_was_stopped_sends_nothing_again() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"])
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
