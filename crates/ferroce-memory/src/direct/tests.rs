//! Copies between real processes: this test binary again, in the roles of [`target::other_process`].
#![allow(unsafe_code)]

mod target;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferroce_ipc::pipe::{Pipe, Side};
use ferroce_ipc::published;
use ferroce_proto::{
    Budget, QpAttr, QpCaps, QpConfig, QpEvent, QpState, Remote, SendOp, SendTo, SendWr, Service, Sge,
    WcStatus, bring_up_mask,
};
use ferroce_wire::{Lkey, PathMtu};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use self::target::Target;
use super::*;
use crate::publisher::{Copier, Publisher};
use crate::{Change, Key, MemoryTable, PdId};

const ROLE: &str = "FERROCE_TEST_ROLE";
const OURS: Qpn = Qpn::new(0x01_1111);
const THEIRS: Qpn = Qpn::new(0x02_2222);
const PD: PdId = PdId::new(5);
/// Octets of the memory at both ends.
const LEN: usize = 12 << 20;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

fn flow(from: u8, to: u8) -> Flow {
    Flow {
        source: [127, 0, 0, from].into(),
        destination: [127, 0, 0, to].into(),
        source_port: 1,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

/// Memory that is only looked at as atomics.
fn memory() -> &'static [AtomicU64] {
    Vec::leak((0..LEN / 8).map(|_| AtomicU64::new(0)).collect())
}

fn register(table: &MemoryTable, memory: &[AtomicU64]) -> Key {
    let addr = memory.as_ptr() as u64;
    table.register(PD, addr, LEN, addr, ALL).unwrap()
}

/// Starts this binary again.
fn spawn(role: &str, hazards: &OwnedFd) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "direct::tests::target::other_process",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, format!("{role} {} {}", std::process::id(), hazards.as_raw_fd()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// The numbers of the next line that begins with `ferroce`.
fn numbers(output: &mut impl BufRead) -> Vec<u64> {
    loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "the other process ended");
        // The harness writes without a line feed before.
        if let Some((_, numbers)) = line.split_once("ferroce") {
            return numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
        }
    }
}

/// This process as the one that copies.
struct Initiator {
    child: Child,
    output: BufReader<ChildStdout>,
    direct: Direct,
    transport: QueuePair,
    view: View,
    memory: &'static [AtomicU64],
    lkey: Lkey,
    remote: Remote,
    counters: Arc<DeviceCounters>,
    progress: Progress,
    _table: MemoryTable,
}

/// The words in which the other process or this one announces copies, and the file for the other process.
fn hazards(side: Side) -> (Hazards, OwnedFd) {
    let fd = Pipe::create().unwrap();
    let (pipe, ..) = Pipe::join(&fd, Side::First).unwrap();
    (Hazards::of(&pipe, side), fd)
}

fn queue_pair() -> QueuePair {
    let config = QpConfig {
        qpn: OURS,
        service: Service::Rc,
        caps: QpCaps { max_send_wr: 2048, max_send_sge: 4, max_inline: 64, ..QpCaps::default() },
        srq: None,
        sq_sig_all: false,
        port_mtu: PathMtu::B1024,
        seed: 1,
        early_resends: true,
        budget: Arc::new(Budget::new(1 << 20)),
    };
    let mut transport = QueuePair::new(config).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = QpAttr {
            state,
            dest_qp: THEIRS,
            path: flow(1, 2),
            max_rd_atomic: 4,
            path_mtu: PathMtu::B1024,
            ..QpAttr::default()
        };
        transport.modify(&attr, bring_up_mask(Service::Rc, state)).unwrap();
    }
    transport
}

impl Initiator {
    fn new() -> Self {
        let (hazards, fd) = hazards(Side::First);
        let (child, mut output) = spawn("target", &fd);
        let [file, addr, rkey] = numbers(&mut output)[..] else { panic!() };
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let file = std::fs::File::open(format!("/proc/{}/fd/{file}", child.id())).unwrap();
        let direct = Direct::open(pidfd.as_fd(), &file, hazards).unwrap();
        let table = MemoryTable::new().unwrap();
        let memory = memory();
        let lkey = Lkey::new(register(&table, memory).value());
        Self {
            child,
            output,
            direct,
            transport: queue_pair(),
            view: table.view(PD).of(OURS),
            memory,
            lkey,
            remote: Remote { addr, rkey: Rkey::new(rkey as u32) },
            counters: Arc::default(),
            progress: Progress::default(),
            _table: table,
        }
    }

    fn ask(&mut self, command: &str) -> u64 {
        self.tell(command);
        numbers(&mut self.output)[0]
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    fn at(&self, word: usize) -> Remote {
        Remote { addr: self.remote.addr + 8 * word as u64, ..self.remote }
    }

    fn sge(&self, word: usize, length: u32) -> Sge {
        Sge { addr: self.memory[word..].as_ptr() as u64, length, lkey: self.lkey }
    }

    fn post(&mut self, op: SendOp, sges: &[Sge]) {
        self.post_wr(op, sges, false);
    }

    fn post_wr(&mut self, op: SendOp, sges: &[Sge], inline: bool) {
        let (signaled, solicited, fence) = (true, false, false);
        let wr = SendWr { wr_id: 1, op, to: SendTo::Peer, sges, signaled, solicited, fence, inline };
        self.transport.post_send(&wr, &self.view).unwrap();
    }

    fn drain(&mut self) -> bool {
        let (transport, view) = (&mut self.transport, &self.view);
        let flow = flow(1, 2);
        let ends = Ends { local: OURS, remote: THEIRS, flow: &flow, target: &TargetConnection::default() };
        self.direct.drain(transport, view, &ends, &mut self.progress, &self.counters)
    }

    /// Drains; the number of successful completions. All else is left to packets.
    fn executed(&mut self) -> usize {
        while self.drain() {}
        let mut count = 0;
        while let Some(QpEvent::Send(completion)) = self.transport.poll_event() {
            assert_eq!(completion.status, WcStatus::Success);
            count += 1;
        }
        count
    }

    /// Posts a WRITE of 8 octets and executes it, or takes it back.
    fn try_write(&mut self, remote: Remote) -> bool {
        self.try_op(SendOp::Write { remote })
    }

    fn try_op(&mut self, op: SendOp) -> bool {
        let mark = self.transport.sq_mark();
        let sge = self.sge(0, 8);
        self.post(op, &[sge]);
        let executed = self.executed() == 1;
        assert_eq!(executed, self.transport.direct_request(0).is_none(), "left as it was");
        self.transport.sq_rollback(mark);
        executed
    }

    /// Writes to the target until it cannot, with its own copy of everything.
    fn write_steadily(&mut self, stop: &AtomicBool) -> u64 {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let (sge, remote) = (self.sge(0, 8192), self.at(0));
            let mark = self.transport.sq_mark();
            self.post(SendOp::Write { remote }, &[sge]);
            count += self.executed() as u64;
            self.transport.sq_rollback(mark);
        }
        count
    }

    /// Lets the target do something while this process writes to it; the answer, and whether writes got
    /// through before.
    fn ask_while_writing(&mut self, command: &str) -> u64 {
        let stop = Arc::new(AtomicBool::new(false));
        self.tell(command);
        let mut output = std::mem::replace(&mut self.output, dummy());
        let reader = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let answer = numbers(&mut output)[0];
                stop.store(true, Ordering::Relaxed);
                (answer, output)
            }
        });
        let written = self.write_steadily(&stop);
        let (answer, output) = reader.join().unwrap();
        self.output = output;
        assert!(written > 0, "{command}");
        answer
    }
}

fn dummy() -> BufReader<ChildStdout> {
    let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    BufReader::new(child.stdout.take().unwrap())
}

impl Drop for Initiator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count(from: u64, len: usize) -> u64 {
    (from..from + len as u64).sum()
}

#[test]
fn data_arrives_whole_in_either_direction() {
    let mut this = Initiator::new();
    this.memory.iter().enumerate().for_each(|(i, word)| word.store(i as u64, Ordering::Relaxed));
    // More than one system call takes, from three pieces of which one is empty.
    let words = LEN / 8;
    let sges = [this.sge(0, 80), this.sge(0, 0), this.sge(10, LEN as u32 - 80)];
    this.post(SendOp::Write { remote: this.at(0) }, &sges);
    assert_eq!(this.executed(), 1);
    assert_eq!(this.ask(&format!("sum 0 {words}")), count(0, words));
    // Back, from the middle into two places.
    let sges = [this.sge(words / 2, 16), this.sge(0, LEN as u32 / 2)];
    this.post(SendOp::Read { remote: this.at(100) }, &sges);
    assert_eq!(this.executed(), 1);
    let word = |at: usize| this.memory[at].load(Ordering::Relaxed);
    assert_eq!([word(words / 2), word(words / 2 + 1), word(0), word(1)], [100, 101, 102, 103]);
    assert_eq!(word(words / 2 - 1), words as u64 / 2 + 101);
    // A list, of which the kernel takes 1024 pieces at a time; then inline data.
    let before = this.counters.direct_ops.load(Ordering::Relaxed);
    for i in 0..1500 {
        this.memory[i].store(7 * i as u64, Ordering::Relaxed);
        let sge = this.sge(i, 8);
        this.post(SendOp::Write { remote: this.at(2 * i) }, &[sge]);
    }
    assert_eq!(this.executed(), 1500);
    assert_eq!(this.counters.direct_ops.load(Ordering::Relaxed) - before, 1500);
    assert_eq!(this.ask("sum 2 1"), 7);
    assert_eq!(this.ask("sum 2998 1"), 7 * 1499);
    let sge = this.sge(5, 24);
    this.post_wr(SendOp::Write { remote: this.at(0) }, &[sge], true);
    this.memory[5].store(0, Ordering::Relaxed);
    assert_eq!(this.executed(), 1);
    assert_eq!(this.ask("sum 0 3"), 7 * (5 + 6 + 7));
    assert_eq!(
        this.counters.direct_octets.load(Ordering::Relaxed),
        (LEN + LEN / 2 + 16 + 12_000 + 24) as u64
    );
}

#[test]
fn a_request_without_right_is_left_alone() {
    let mut this = Initiator::new();
    let whole = this.remote;
    assert!(this.try_write(whole));
    assert!(!this.try_write(Remote { rkey: Rkey::new(whole.rkey.value() ^ 1), ..whole }), "a wrong key");
    assert!(!this.try_write(Remote { rkey: Rkey::new(0), ..whole }), "no key");
    assert!(!this.try_write(Remote { addr: whole.addr - 1, ..whole }), "before the region");
    assert!(!this.try_write(Remote { addr: whole.addr + LEN as u64 - 7, ..whole }), "behind it");
    assert!(!this.try_write(Remote { addr: u64::MAX, ..whole }), "far behind it");
    assert!(this.try_write(Remote { addr: whole.addr + LEN as u64 - 8, ..whole }));
    this.ask("serve 0 1");
    assert!(!this.try_write(whole), "the queue pair admits no WRITE");
    assert!(this.try_op(SendOp::Read { remote: whole }));
    this.ask("serve 1 0");
    assert!(!this.try_op(SendOp::Read { remote: whole }), "nor READ");
    assert!(this.try_write(whole));
    this.ask("end");
    assert!(!this.try_write(whole), "it does not serve");
    this.ask("serve 1 1");
    this.lkey = Lkey::new(this.lkey.value() ^ 1);
    assert!(!this.try_write(whole), "a wrong local key");
    this.lkey = Lkey::new(this.lkey.value() ^ 1);
    assert!(this.try_write(whole));
    let (right, other) = (flow(1, 2), flow(1, 3));
    let admits = |local, flow| {
        let ends = Ends { local, remote: THEIRS, flow, target: &TargetConnection::default() };
        this.direct.admit(&ends, DirectKind::Write, whole.rkey).is_some()
    };
    assert!(admits(OURS, &right));
    assert!(!admits(Qpn::new(0x01_1112), &right), "not its peer");
    assert!(!admits(OURS, &other), "another address");
}

/// Copies have no PSNs, by which a card knows what an earlier connection of the same queue pairs sends.
#[test]
fn a_target_that_begins_another_connection_is_known() {
    let told = |count, first| Connection::new(count, Psn::new(first));
    let target = TargetConnection::new(Psn::new(7));
    assert!(!target.is(told(1, 6)) && !target.is_over(), "it may begin ours yet");
    assert!(target.is(told(2, 7)) && target.is(told(2, 7)) && !target.is_over());
    assert!(!target.is(told(3, 7)) && target.is_over());
}

#[test]
fn the_end_of_a_registration_waits_for_copies() {
    let mut this = Initiator::new();
    let words = LEN as u64 / 8;
    assert_eq!(this.ask_while_writing("deregister"), words, "nobody wrote behind the end");
    assert!(!this.try_write(this.remote));
}

#[test]
fn a_changed_registration_is_the_old_or_the_new() {
    let mut this = Initiator::new();
    assert_eq!(this.ask_while_writing("reregister"), 0);
}

#[test]
fn nonsense_in_the_publication_harms_its_owner_alone() {
    let mut this = Initiator::new();
    this.ask_while_writing("scribble 200000");
}

/// On this kernel and processor words are not torn, and the end of a message comes last.
#[test]
fn words_are_whole_and_the_end_comes_last() {
    let mut this = Initiator::new();
    this.tell("watch");
    let stop = Instant::now() + Duration::from_millis(2500);
    let mut round = 0_u64;
    while Instant::now() < stop {
        round += 1;
        this.memory[0].store((round & 0xff) * 0x0101_0101_0101_0101, Ordering::Relaxed);
        this.memory[1024..1536].iter().for_each(|word| word.store(round, Ordering::Relaxed));
        let sges = [this.sge(0, 8), this.sge(1024, 4096)];
        this.post(SendOp::Write { remote: this.at(0) }, &sges[..1]);
        this.post(SendOp::Write { remote: this.at(1024) }, &sges[1..]);
        assert_eq!(this.executed(), 2);
    }
    assert_eq!(numbers(&mut this.output), [0]);
}

#[test]
fn a_target_that_ends_or_executes_another_program_is_left_alone() {
    for end in ["kill", "exec"] {
        let mut this = Initiator::new();
        let pid = this.child.id();
        let stop = Arc::new(AtomicBool::new(false));
        let ender = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                std::thread::sleep(Duration::from_millis(100));
                if end == "kill" {
                    let pid = nix::unistd::Pid::from_raw(pid as i32);
                    nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL).unwrap();
                }
                std::thread::sleep(Duration::from_millis(300));
                stop.store(true, Ordering::Relaxed);
            }
        });
        if end == "exec" {
            this.tell("exec");
        }
        assert!(this.write_steadily(&stop) > 0);
        ender.join().unwrap();
        assert_eq!(this.direct.published.owner(), None, "{end}");
        let mut left = false;
        for _ in 0..100 {
            left |= this.try_write(this.remote);
        }
        assert!(!left, "{end}");
    }
}

/// A target may let the thread of its publication end and leave the word as it is. The number of that thread
/// is then another's.
#[test]
fn a_thread_that_ended_is_not_copied_to_whatever_the_target_says() {
    let mut this = Initiator::new();
    assert!(this.try_write(this.remote));
    if !this.direct.target.is_thread {
        println!("skipped: this kernel has no descriptors of threads");
        return;
    }
    let leader = this.child.id();
    this.ask("forge");
    // The owner's number is now that of the first thread, as far as the publication and this process know.
    (this.direct.owner, this.direct.tid) = (leader, leader as libc::pid_t);
    assert_eq!(this.direct.published.owner(), Some(leader));
    assert!(!this.try_write(this.remote));
}

/// The owner does not wait for a process that ended, or executed another program, in the middle of a copy.
#[test]
fn nobody_waits_for_a_copier_that_is_gone() {
    for role in ["stuck", "stuck-exec"] {
        let target = Target::new();
        let (hazards, fd) = hazards(Side::Second);
        let (mut child, mut output) = spawn(role, &fd);
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let copier = Copier::new(pidfd, hazards).unwrap();
        target.publisher.add_copier(Arc::new(copier));
        numbers(&mut output);
        target.publisher.end_region(1, 78); // not the key that is in use
        let publisher = Arc::clone(&target.publisher);
        let ended = Arc::new(AtomicBool::new(false));
        let waiter = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || {
                publisher.end_region(1, 77);
                publisher.end_queue_pair(THEIRS);
                ended.store(true, Ordering::Relaxed);
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!ended.load(Ordering::Relaxed), "the copy is not finished");
        match role {
            "stuck" => child.kill().unwrap(),
            _ => writeln!(child.stdin.as_mut().unwrap()).unwrap(),
        }
        waiter.join().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
    }
}
