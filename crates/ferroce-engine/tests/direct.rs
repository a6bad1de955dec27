//! Direct copies between two processes with queue pairs of their own.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{
    Bind, MrChange, MwType, QpAccess, QpAttr, QpAttrMask, QpState, Remote, SendOp, Service, WcOpcode,
    WcStatus, WindowAccess,
};
use ferroce_wire::{Gid, PathMtu, Qpn, Rkey};

const ROLE: &str = "FERROCE_TEST_ROLE";
const LEN: usize = 1 << 20;

/// A process whose memory this one writes to and reads.
struct Target {
    process: Child,
    output: BufReader<ChildStdout>,
    end: End,
    remote: Remote,
}

impl Target {
    fn start(service: Service, environment: &[(&str, &str)]) -> Self {
        let end = End::new(Wanted { service, ..Wanted::default() });
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, if service == Service::Uc { "uc" } else { "rc" })
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let remote = Remote { addr: 0, rkey: Rkey::new(0) };
        let mut target = Self { process, output, end, remote };
        let [qpn, addr, rkey] = target.answer()[..] else { panic!() };
        target.remote = Remote { addr, rkey: Rkey::new(rkey as u32) };
        target.ask(&format!("connect {}", target.end.qp.qpn().value()));
        to_init(&target.end.qp);
        to_rts(&target.end.qp, here(qpn as u32), 0, PathMtu::B1024);
        target
    }

    fn answer(&mut self) -> Vec<u64> {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some((_, numbers)) = line.split_once("ferroce ") {
                return numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
            }
        }
    }

    fn ask(&mut self, command: &str) -> u64 {
        writeln!(self.process.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.answer()[0]
    }

    fn write(&self, len: usize) -> WcStatus {
        self.write_by(self.remote, len)
    }

    fn write_by(&self, remote: Remote, len: usize) -> WcStatus {
        self.end.post(7, SendOp::Write { remote }, self.end.sge(0, len));
        self.end.complete().status
    }

    /// Operations of this process that took no packets so far, for a test that runs [`alone`].
    fn direct_ops(&self) -> u64 {
        self.end.context.counters().direct_ops.load(Ordering::Relaxed)
    }

    /// The first WRITE makes the target's queue pair ready; whether the second one took no packets.
    fn is_direct(&self) -> bool {
        assert_eq!(self.write(8), WcStatus::Success);
        let packets = self.end.qp.counters().sent_pkts;
        assert_eq!(self.write(8), WcStatus::Success);
        self.end.qp.counters().sent_pkts == packets
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn here(qpn: u32) -> Address {
    Address { qpn: Qpn::new(qpn), gid: Gid::from_ip([127, 0, 0, 1].into()) }
}

/// Does what the first process says.
#[test]
#[ignore = "a part of other tests"]
fn other_process() {
    let role = std::env::var(ROLE).unwrap();
    let service = if role == "uc" { Service::Uc } else { Service::Rc };
    let end = End::new(Wanted { service, ..Wanted::default() });
    let (addr, rkey) = (end.memory.addr(), end.mr.rkey());
    to_init(&end.qp);
    println!("ferroce {} {addr} {}", end.qp.qpn().value(), rkey.value());
    let mut window = None;
    let mut device = None;
    for line in std::io::stdin().lines().map(Result::unwrap) {
        let (command, number) = line.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        let answer = match command {
            "connect" => {
                to_rts(&end.qp, here(number as u32), 0, PathMtu::B1024);
                0
            }
            "check" => {
                end.memory.check(number, LEN);
                0
            }
            "await" => {
                let start = Instant::now();
                while !end.memory.holds(number, LEN) && start.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(1));
                }
                end.memory.check(number, LEN);
                0
            }
            "fill" => {
                end.memory.fill(number, LEN);
                0
            }
            "ops" => end.context.counters().direct_ops.load(Ordering::Relaxed),
            "dereg" => {
                end.mr.dereg().unwrap();
                0
            }
            "rereg" => {
                let access = Some(ferroce_engine::Access::LOCAL_WRITE);
                end.mr.rereg(&MrChange { access, ..MrChange::default() }).unwrap();
                0
            }
            "access" => {
                let attr = QpAttr { access: QpAccess::empty(), ..QpAttr::default() };
                end.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
                0
            }
            "error" => {
                let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
                end.qp.modify(&attr, QpAttrMask::STATE).unwrap();
                0
            }
            "bind" => {
                let access = ferroce_engine::Access::MW_BIND | all_access();
                let mr = end.pd.reg_mr(addr, LEN, addr, access).unwrap();
                let made = end.pd.alloc_mw(MwType::Two).unwrap();
                let bind = Bind {
                    window: made.name(),
                    rkey: Rkey::new(made.name().value() + 1),
                    region: mr.lkey(),
                    addr: addr + 4096,
                    length: 64,
                    access: WindowAccess::REMOTE_WRITE,
                };
                end.qp.post_send([send(1, SendOp::BindMw(bind), &[])]).unwrap();
                end.expect(1, WcOpcode::BindMw);
                let rkey = made.rkey(bind.rkey.value());
                window = Some((rkey, made, mr));
                u64::from(rkey.value())
            }
            "device" => {
                let dm = end.pd.context().alloc_dm(2 * 4096, 0).unwrap();
                let access = ferroce_engine::Access::ZERO_BASED | all_access();
                let mr = end.pd.reg_dm_mr(&dm, 4096, number, access).unwrap();
                let rkey = mr.rkey().value();
                device = Some((dm, mr));
                u64::from(rkey)
            }
            "word" => {
                let (dm, _) = device.as_ref().unwrap();
                let mut octets = [0; 8];
                dm.read(4096 + number as u64, &mut octets).unwrap();
                u64::from_ne_bytes(octets)
            }
            "free" => {
                let (dm, mr) = device.take().unwrap();
                assert!(dm.free().is_err());
                mr.dereg().unwrap();
                dm.free().unwrap();
                0
            }
            "invalidate" => {
                let (rkey, ..) = window.as_ref().unwrap();
                end.qp.post_send([send(1, SendOp::LocalInvalidate(*rkey), &[])]).unwrap();
                end.expect(1, WcOpcode::LocalInv);
                0
            }
            _ => panic!("{line}"),
        };
        println!("ferroce {answer}");
    }
}

/// Each of these processes has counters and a first device of its own.
fn alone(test: &str) -> bool {
    if std::env::var_os("FERROCE_TEST_INSIDE").is_some() {
        return true;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("FERROCE_TEST_INSIDE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test}");
    false
}

#[test]
fn writes_and_reads_need_no_packets() {
    if !alone("writes_and_reads_need_no_packets") {
        return;
    }
    let mut target = Target::start(Service::Rc, &[]);
    if !target.is_direct() {
        eprintln!("skipped: this system permits no direct copies");
        return;
    }
    let before = target.direct_ops();
    let packets = target.end.qp.counters().sent_pkts;
    target.end.memory.fill(1, LEN);
    assert_eq!(target.write(LEN), WcStatus::Success);
    target.ask("check 1");
    target.ask("fill 2");
    target.end.post(2, SendOp::Read { remote: target.remote }, target.end.sge(0, LEN));
    assert_eq!(target.end.expect(2, WcOpcode::RdmaRead).byte_len as usize, LEN);
    target.end.memory.check(2, LEN);
    assert_eq!(target.direct_ops() - before, 2);
    assert_eq!(target.end.qp.counters().sent_pkts, packets);
    assert_eq!(target.ask("ops 0"), 0, "the target did nothing");
    // An atomic takes packets, and what follows comes behind it.
    let (end, remote) = (&target.end, target.remote);
    end.memory.fill(3, LEN);
    let all = [end.sge(0, LEN)];
    let word = [end.sge(0, 8)];
    let add = SendOp::FetchAdd { remote, add: 5 };
    end.qp.post_send([send(1, add, &word), send(2, SendOp::Write { remote }, &all)]).unwrap();
    end.expect(1, WcOpcode::FetchAdd);
    end.expect(2, WcOpcode::RdmaWrite);
    end.post(3, SendOp::Read { remote }, all[0]);
    end.expect(3, WcOpcode::RdmaRead);
    assert!(end.qp.counters().sent_pkts > packets);
}

/// A stream that began with packets, before the target was ready, goes on without them.
#[test]
fn a_full_queue_returns_to_copies() {
    if !alone("a_full_queue_returns_to_copies") {
        return;
    }
    let target = Target::start(Service::Rc, &[]);
    let (end, remote) = (&target.end, target.remote);
    let sges = [end.sge(0, 4096)];
    let mut posted = 0;
    for _ in 0..100 {
        end.qp.post_send([send(1, SendOp::Write { remote }, &sges)]).unwrap();
        posted += 1;
    }
    for _ in 0..5000 {
        assert_eq!(end.complete().status, WcStatus::Success);
        end.qp.post_send([send(1, SendOp::Write { remote }, &sges)]).unwrap();
        posted += 1;
    }
    (0..100).for_each(|_| assert_eq!(end.complete().status, WcStatus::Success));
    if !target.is_direct() {
        eprintln!("skipped: this system permits no direct copies");
        return;
    }
    assert!(target.direct_ops() > posted / 2, "{} of {posted}", target.direct_ops());
}

#[test]
fn either_side_can_refuse() {
    if std::env::var_os("FERROCE_DIRECT").is_none() {
        let target = Target::start(Service::Rc, &[("FERROCE_DIRECT", "off")]);
        assert!(!target.is_direct(), "the target");
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "either_side_can_refuse", "--nocapture", "--test-threads=1"])
            .env("FERROCE_DIRECT", "off")
            .status();
        assert!(status.unwrap().success());
    } else {
        let target = Target::start(Service::Rc, &[("FERROCE_DIRECT", "on")]);
        assert!(!target.is_direct(), "the initiator");
    }
}

/// A request whose right the target took back fails with the status that a NAK brings.
#[test]
fn rights_end_when_the_target_takes_them_back() {
    let cases = [
        ("dereg 0", WcStatus::RemAccessErr),
        ("rereg 0", WcStatus::RemAccessErr),
        ("access 0", WcStatus::RemInvReqErr),
        ("error 0", WcStatus::RetryExcErr),
    ];
    for (command, status) in cases {
        let mut target = Target::start(Service::Rc, &[]);
        target.is_direct();
        target.ask(command);
        assert_eq!(target.write(8), status, "{command}");
        assert_eq!(target.write(8), WcStatus::WrFlushErr, "{command}");
    }
}

#[test]
fn a_window_is_its_range_until_it_ends() {
    let mut target = Target::start(Service::Rc, &[]);
    target.is_direct();
    let rkey = Rkey::new(target.ask("bind 0") as u32);
    let window = Remote { addr: target.remote.addr + 4096, rkey };
    assert_eq!(target.write_by(window, 64), WcStatus::Success);
    target.ask("invalidate 0");
    assert_eq!(target.write_by(window, 64), WcStatus::RemAccessErr);
    let mut target = Target::start(Service::Rc, &[]);
    target.is_direct();
    let rkey = Rkey::new(target.ask("bind 0") as u32);
    let behind = Remote { addr: target.remote.addr + 4096 + 1, rkey };
    assert_eq!(target.write_by(behind, 64), WcStatus::RemAccessErr);
}

/// Device memory of the target is a region like any other: for copies, for packets and for atomics.
#[test]
fn device_memory_is_reached_without_packets() {
    let mut target = Target::start(Service::Rc, &[]);
    let rkey = Rkey::new(target.ask("device 64") as u32);
    let region = Remote { addr: 0, rkey };
    let direct = target.is_direct();
    let packets = target.end.qp.counters().sent_pkts;
    (0..16).for_each(|i| target.end.memory.set(i, 1 + i as u8));
    assert_eq!(target.write_by(region, 16), WcStatus::Success);
    let word = |from: u8| u64::from_ne_bytes(std::array::from_fn(|i| from + i as u8));
    assert_eq!((target.ask("word 0"), target.ask("word 8")), (word(1), word(9)));
    let second = Remote { addr: 8, rkey };
    target.end.post(2, SendOp::Read { remote: second }, target.end.sge(100, 8));
    target.end.expect(2, WcOpcode::RdmaRead);
    (0..8).for_each(|i| assert_eq!(target.end.memory.get(100 + i), 9 + i as u8));
    if direct {
        assert_eq!(target.end.qp.counters().sent_pkts, packets);
    }
    target.end.post(3, SendOp::FetchAdd { remote: second, add: 1 }, target.end.sge(0, 8));
    target.end.expect(3, WcOpcode::FetchAdd);
    assert_eq!(target.ask("word 8"), word(9).wrapping_add(1));
    target.ask("free 0");
    assert_eq!(target.write_by(region, 8), WcStatus::RemAccessErr);
    // The first octet behind the region, which is mapped.
    let mut target = Target::start(Service::Rc, &[]);
    let rkey = Rkey::new(target.ask("device 64") as u32);
    target.is_direct();
    assert_eq!(target.write_by(Remote { addr: 57, rkey }, 8), WcStatus::RemAccessErr);
}

#[test]
fn unreliable_writes_arrive_too() {
    let mut target = Target::start(Service::Uc, &[]);
    target.end.memory.fill(6, LEN);
    assert_eq!(target.write(LEN), WcStatus::Success);
    // Packets need a moment.
    target.ask("await 6");
}

/// The target is killed while this process writes: an error in bounded time.
#[test]
fn a_target_that_is_killed_ends_the_queue_pair() {
    let mut target = Target::start(Service::Rc, &[]);
    target.is_direct();
    let pid = nix::unistd::Pid::from_raw(target.process.id() as i32);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    });
    let start = Instant::now();
    let status = loop {
        match target.write(65_536) {
            WcStatus::Success => assert!(start.elapsed() < PATIENCE),
            status => break status,
        }
    };
    assert_eq!(status, WcStatus::RetryExcErr);
    killer.join().unwrap();
    let _ = target.process.wait();
}

/// A stream may leave by packets where these are faster. Without answers nothing would tell when they are not any
/// more.
#[test]
fn a_stream_without_answers_is_copied() {
    let target = Target::start(Service::Uc, &[]);
    // The target becomes ready some time after packets reached it.
    let start = Instant::now();
    while !target.is_direct() {
        if start.elapsed() > PATIENCE {
            eprintln!("skipped: this system permits no direct copies");
            return;
        }
    }
    let packets = target.end.qp.counters().sent_pkts;
    for _ in 0..200 {
        let sges = [target.end.sge(0, 8)];
        let wrs = (0..8).map(|_| send(7, SendOp::Write { remote: target.remote }, &sges));
        target.end.qp.post_send(wrs).unwrap();
        for _ in 0..8 {
            assert_eq!(target.end.complete().status, WcStatus::Success);
        }
    }
    assert_eq!(target.end.qp.counters().sent_pkts, packets);
}
