//! Forged packets by the hundred thousand at a transfer of two processes over real sockets, and as many forged MADs at their broker:
//! from an ordinary user of the host, and from another network namespace. Three forgers lack the peer's address or its PSNs, and change
//! nothing. The fourth has both, and takes away no more than the queue pairs that it attacks, beside the transfer in the same process.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod forger;
mod victims;

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use ferroce_engine::{QpState, Remote, SendOp, WcOpcode, WcStatus};
use ferroce_ipc::{BROKER_NAME, Client, CmStatus, Message as ToBroker};
use ferroce_wire::{Gid, PathMtu, Qpn, Rkey};
use forger::{FORGED, Forger, TASK};
use victims::{ATTACKS, Victim};

const NAME: &str = "forged_packets_and_mads_change_nothing";
const ROLE: &str = "FERROCE_TEST_ROLE";
/// The victims' address, that of the other namespace, and one of the host that is no device's.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 3);
const NOBODY: &str = "65534";
/// The first PSN of both directions, as [`to_rts`] sets it.
const FIRST_PSN: u32 = 0x00ff_fff0;
/// No direction uses as many PSNs: [`ROUNDS`] times twelve.
const USED_PSNS: u32 = 1 << 18;
const ROUNDS: u64 = 20_000;
const SEND_LEN: usize = 3000;
const BLOCK: usize = 4096;
const REGION: usize = 256 * BLOCK;
/// Where a driver keeps what it sends, what it reads back, and the result of atomics; where its peer keeps what arrives.
const OUT: usize = 0;
const BACK: usize = BLOCK;
const OLD: usize = 2 * BLOCK;
const INBOX: usize = 3 * BLOCK;
const WORD: usize = 64 * BLOCK;
const RECEIVES: u64 = 16;
const PATIENT: Duration = Duration::from_secs(30);

/// `unshare` runs this test again, and so do the broker, the peer and the forgers.
#[test]
fn forged_packets_and_mads_change_nothing() {
    match std::env::var(ROLE).as_deref() {
        Ok("inside") => inside(),
        Ok("broker") => {
            let _context = open();
            println!("the broker runs");
            std::thread::sleep(Duration::from_secs(120));
        }
        Ok("peer") => peer(),
        Ok("far") => far(),
        Ok("forger") => Forger::from_task().forge(),
        Ok("victims' forger") => victims::attack(),
        _ => outside(),
    }
}

fn outside() {
    let succeeds = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let maps_users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default().contains("4294967295");
    let has_veth = "ip link add v0 type veth peer name v1";
    let nobody_runs_it =
        || as_nobody(None).arg("--list").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !nix::unistd::geteuid().is_root()
        || !maps_users
        || !succeeds(&["unshare", "-n", "sh", "-c", has_veth])
        || !succeeds(&["nsenter", "--version"])
        || !nobody_runs_it().is_ok_and(|status| status.success())
    {
        println!(
            "skipped {NAME}: it needs root, setpriv, nsenter, ip, the right to make network namespaces and veth, and a target directory that \
             user {NOBODY} may read"
        );
        return;
    }
    let runtime = std::env::temp_dir().join(format!("ferroce-forgers-{}", std::process::id()));
    let mut inside = Command::new("unshare");
    // With a pid namespace nothing outlives the test.
    inside
        .args(["-n", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().unwrap());
    inside.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
    inside.env(ROLE, "inside").env("FERROCE_RUNTIME_DIR", &runtime).env("FERROCE_DATAPATH", "udp");
    inside.env("FERROCE_NETDEV", "va").env(DEVICE, "fr1");
    let status = inside.status().unwrap();
    let _ = std::fs::remove_dir_all(&runtime);
    assert!(status.success(), "inside the namespace, see above");
}

/// Another process of this test.
struct Other {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(mut command: Command, role: &str) -> Self {
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env(ROLE, role);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { input: process.stdin.take(), process, output }
    }

    /// The words behind `word` in the first line that has it.
    fn hears(&mut self, word: &str) -> Vec<u64> {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended without a word of {word:?}");
        }
        let (_, rest) = line.split_once(word).unwrap();
        rest.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    fn says(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn has_ended(&mut self) -> bool {
        match self.process.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                true
            }
            None => false,
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn this() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// An ordinary user; in the network namespace of another process, if one is named.
fn as_nobody(beside: Option<u32>) -> Command {
    const SETPRIV: [&str; 7] =
        ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"];
    let mut command = match beside {
        Some(process) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{process}/ns/net")).arg(SETPRIV[0]);
            command
        }
        None => Command::new(SETPRIV[0]),
    };
    command.args(&SETPRIV[1..]).arg(std::env::current_exe().unwrap());
    command
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

fn inside() {
    ip("link set lo up");
    let mut unshare = Command::new("unshare");
    unshare.arg("-n").arg(std::env::current_exe().unwrap());
    let mut far = Other::start(unshare, "far");
    far.hears("a namespace");
    ip(&format!("link add va type veth peer name vb netns {}", far.process.id()));
    ip(&format!("addr add {HERE}/24 dev va"));
    ip(&format!("addr add {ELSEWHERE}/32 dev lo"));
    ip("link set va up");
    far.says("the link is here");
    far.hears("the link is up");
    let mut broker = Other::start(this(), "broker");
    broker.hears("the broker runs");
    let mut peer = Other::start(this(), "peer");
    let numbers = peer.hears("address ");
    let (&[qpn, addr, rkey], victims) = numbers.split_first_chunk().unwrap();
    let end = End::new(Wanted::default());
    let partners = Victim::all(&end.context);
    let ends = std::iter::once(&end).chain(partners.iter().map(|partner| &partner.end));
    let qpns: Vec<String> = ends.map(|end| end.qp.qpn().value().to_string()).collect();
    peer.says(&qpns.join(" "));
    up(&end, Qpn::new(qpn as u32));
    for (partner, victim) in partners.iter().zip(victims.as_chunks::<3>().0) {
        up(&partner.end, Qpn::new(victim[0] as u32));
    }
    let mut driver = Driver { end, addr, rkey: Rkey::new(rkey as u32), round: 0 };
    (0..RECEIVES).for_each(|id| driver.end.receive(id, driver.end.sge(INBOX, 64)));
    peer.hears("connected");

    let before = status();
    let qpns = [driver.end.qp.qpn().value(), qpn as u32];
    let task = |source, port, knows_psns| Forger::task(source, port, knows_psns, addr, rkey as u32, qpns);
    let start = Instant::now();
    let forger = |beside, role, task: &str| {
        let mut command = as_nobody(beside);
        command.env(TASK, task);
        Other::start(command, role)
    };
    // From the peer's own address, which every user of the host may use; from other ones, by senders that know the PSNs; with both.
    let task_of_fourth = victims::task(HERE, 50_004, [addr, rkey], victims);
    let mut forgers = [
        forger(None, "forger", &task(HERE, 50_001, false)),
        forger(None, "forger", &task(ELSEWHERE, 50_002, true)),
        forger(Some(far.process.id()), "forger", &task(FAR, 50_003, true)),
        forger(None, "victims' forger", &task_of_fourth),
    ];
    let mut left = forgers.iter_mut().collect::<Vec<_>>();
    while !left.is_empty() {
        assert!(start.elapsed() < 4 * PATIENT, "the forgers do not end");
        if driver.round < ROUNDS {
            driver.play();
        }
        std::thread::sleep(Duration::from_micros(500));
        left.retain_mut(|forger| !forger.has_ended());
    }
    (0..100).for_each(|_| driver.play());
    let rounds = driver.round;
    assert!(rounds > 100);
    driver.end.post(u64::MAX, SendOp::Send, driver.end.sge(OUT, 1));
    driver.end.expect(u64::MAX, WcOpcode::Send);
    let counted = peer.hears("counted ");
    assert_eq!(counted[0], rounds, "messages that the peer received");
    assert_eq!(driver.end.cq.poll(&mut [blank(); 4]).unwrap(), 0, "one completion for each request");
    let dropped = driver.end.qp.counters().dropped_pkts + counted[1];
    let after = status();
    let mads = after.no_mad - before.no_mad + sum(&after) - sum(&before);
    println!(
        "{rounds} rounds in {:?}; queue pairs dropped {dropped} packets, the broker {mads} MADs",
        start.elapsed()
    );
    // A socket that is full drops the rest, and the kernel counts that.
    assert!(dropped > u64::from(FORGED) / 10 && mads > u64::from(FORGED) / 10);
    for partner in &partners {
        assert_eq!(partner.end.qp.state(), QpState::Rts, "a NAK of what it did not send ends no queue pair");
    }
    // A broker that lives serves others.
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    up(&a, b.qp.qpn());
    up(&b, a.qp.qpn());
    b.receive(1, b.sge(0, 64));
    a.post(2, SendOp::Send, a.sge(0, 64));
    a.expect(2, WcOpcode::Send);
    b.expect(1, WcOpcode::Recv);
    assert!(!broker.has_ended(), "the broker ended");
}

fn status() -> CmStatus {
    let mut client = Client::connect(BROKER_NAME, "", PATIENT).unwrap();
    match client.request(&ToBroker::GetStatus, PATIENT).unwrap().0 {
        ToBroker::Status(status) => *status.cm,
        other => panic!("{other:?}"),
    }
}

fn sum(status: &CmStatus) -> u64 {
    status.counters.drops.iter().sum()
}

/// Connects an end to a queue pair of the same host.
fn up(end: &End, to: Qpn) {
    let gid = Gid::from_ip(HERE.into());
    let is_ours =
        |index: &u8| end.context.gid(u32::from(*index)).ok().flatten().is_some_and(|entry| entry.gid == gid);
    let index = (0..16).find(is_ours).expect("a GID of the address");
    to_init(&end.qp);
    to_rts(&end.qp, Address { qpn: to, gid }, index, PathMtu::B1024);
}

/// The requester of the checked transfer.
struct Driver {
    end: End,
    addr: u64,
    rkey: Rkey,
    round: u64,
}

impl Driver {
    fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr + offset as u64, rkey: self.rkey }
    }

    /// A SEND that the peer checks and answers, a WRITE, a READ of the same memory, an atomic.
    fn play(&mut self) {
        let (end, round) = (&self.end, self.round);
        end.memory.fill(round as usize, BLOCK);
        let id = 4 * round;
        end.post(id, SendOp::Send, end.sge(OUT, SEND_LEN));
        end.post(id + 1, SendOp::Write { remote: self.remote(BACK) }, end.sge(OUT, BLOCK));
        end.post(id + 2, SendOp::Read { remote: self.remote(BACK) }, end.sge(BACK, BLOCK));
        end.post(id + 3, SendOp::FetchAdd { remote: self.remote(WORD), add: 1 }, end.sge(OLD, 8));
        let (mut sends, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let completion = end.complete();
            assert_eq!(completion.status, WcStatus::Success, "round {round}: {completion:?}");
            let is_answer = completion.opcode == WcOpcode::Recv;
            if is_answer { &mut answers } else { &mut sends }.push(completion.wr_id);
        }
        assert_eq!((&sends[..], &answers[..]), (&[id, id + 1, id + 2, id + 3][..], &[round % RECEIVES][..]));
        end.memory.check_at(BACK, round as usize, BLOCK);
        let old: [u8; 8] = std::array::from_fn(|at| end.memory.get(OLD + at));
        assert_eq!(u64::from_ne_bytes(old), round, "atomics before this one");
        end.receive(round % RECEIVES, end.sge(INBOX, 64));
        self.round += 1;
    }
}

/// The responder: it checks each message and answers it.
fn peer() {
    let end = End::new(Wanted { memory: REGION, ..Wanted::default() });
    let victims = Victim::all(&end.context);
    let own = [end.qp.qpn().value().into(), end.memory.addr(), end.mr.rkey().value().into()];
    let secrets = std::iter::once(own).chain(victims.iter().map(Victim::secrets)).flatten();
    let words: Vec<String> = secrets.map(|number: u64| number.to_string()).collect();
    println!("address {}", words.join(" "));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let qpns: Vec<Qpn> = line.split_whitespace().map(|word| Qpn::new(word.parse().unwrap())).collect();
    assert_eq!(qpns.len(), 1 + ATTACKS);
    to_init(&end.qp);
    (0..RECEIVES).for_each(|id| end.receive(id, end.sge(slot(id), BLOCK)));
    up(&end, qpns[0]);
    victims.iter().zip(&qpns[1..]).for_each(|(victim, partner)| up(&victim.end, *partner));
    println!("connected");
    let mut round = 0;
    loop {
        let mut completion = end.complete();
        while completion.opcode == WcOpcode::Send {
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            completion = end.complete();
        }
        let id = round % RECEIVES;
        assert_eq!((completion.wr_id, completion.status), (id, WcStatus::Success), "{completion:?}");
        if completion.byte_len == 1 {
            break;
        }
        assert_eq!(completion.byte_len as usize, SEND_LEN);
        end.memory.check_at(slot(id), round as usize, SEND_LEN);
        end.receive(id, end.sge(slot(id), BLOCK));
        end.post(round, SendOp::Send, end.sge(WORD, 64));
        round += 1;
    }
    victims.iter().enumerate().for_each(|(number, victim)| victim.check(number));
    // The rest of the region that every forger knows the key of.
    let driven = [BACK..BACK + BLOCK, slot(0)..slot(RECEIVES), WORD..WORD + 8];
    for at in (0..REGION).filter(|at| !driven.iter().any(|range| range.contains(at))) {
        assert_eq!(end.memory.get(at), 0, "octet {at}");
    }
    println!("counted {round} {}", end.qp.counters().dropped_pkts);
}

/// Where the receive with this id begins.
fn slot(id: u64) -> usize {
    INBOX + id as usize * BLOCK
}

/// Holds the other namespace, and with it the link, until the test ends.
fn far() {
    println!("a namespace");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    ip("link set vb up");
    ip(&format!("addr add {FAR}/24 dev vb"));
    println!("the link is up");
    std::io::stdin().read_line(&mut line).unwrap();
}
