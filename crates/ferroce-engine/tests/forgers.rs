//! Forged packets by the hundred thousand at a transfer of two processes over real sockets, and as many forged MADs at their broker:
//! from an ordinary user of the host, and from another network namespace.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use ferroce_datapath::udp::TxSocket;
use ferroce_engine::cm::{ConnectParams, Route};
use ferroce_engine::{Remote, SendOp, WcOpcode, WcStatus};
use ferroce_ipc::{BROKER_NAME, Client, CmStatus, Message as ToBroker};
use ferroce_wire::cm::{
    About, CommId, Dreq, Info, IpCmHeader, Mad, Message, PortSpace, PrivateData, Rej, RejReason, Rtu,
};
use ferroce_wire::{Flow, Gid, PathMtu, Psn, Qkey, Qpn, Rkey, icrc};

const NAME: &str = "forged_packets_and_mads_change_nothing";
const ROLE: &str = "FERROCE_TEST_ROLE";
/// What a forger has to know: words.
const TASK: &str = "FERROCE_TEST_TASK";
/// The victims' address, that of the other namespace, and one of the host that is no device's.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 3);
const NOBODY: &str = "65534";
/// Packets of each forger, and as many MADs.
const FORGED: u32 = 34_000;
/// The first PSN of both directions, as [`to_rts`] sets it.
const FIRST_PSN: u32 = 0x00ff_fff0;
/// No direction uses as many PSNs: [`ROUNDS`] times twelve.
const USED_PSNS: u32 = 1 << 18;
const ROUNDS: u64 = 20_000;
const SEND_LEN: usize = 3000;
const BLOCK: usize = 4096;
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
    if !nix::unistd::geteuid().is_root()
        || !maps_users
        || !succeeds(&["unshare", "-n", "sh", "-c", has_veth])
        || !succeeds(&["setpriv", "--version"])
    {
        println!(
            "skipped {NAME}: it needs root, setpriv, ip, and the right to make network namespaces and veth"
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

fn as_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"]);
    command.arg(std::env::current_exe().unwrap());
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
    let mut broker = Other::start(this(), "broker");
    broker.hears("the broker runs");
    let mut peer = Other::start(this(), "peer");
    let [qpn, addr, rkey] = peer.hears("address ")[..] else { panic!() };
    let end = End::new(Wanted::default());
    peer.says(&end.qp.qpn().value().to_string());
    up(&end, Qpn::new(qpn as u32));
    let mut driver = Driver { end, addr, rkey: Rkey::new(rkey as u32), round: 0 };
    (0..RECEIVES).for_each(|id| driver.end.receive(id, driver.end.sge(INBOX, 64)));
    peer.hears("connected");

    let before = status();
    let qpns = [driver.end.qp.qpn().value(), qpn as u32];
    let task = |source: Ipv4Addr, port: u16, near: bool| {
        let seed = u32::from(port);
        format!("{source} {port} {seed} {} {rkey} {} {}", u8::from(near), qpns[0], qpns[1])
    };
    let start = Instant::now();
    let forger = |source, port, near| {
        let mut command = as_nobody();
        command.env(TASK, task(source, port, near));
        Other::start(command, "forger")
    };
    // From the peer's own address, which every user of the host may use; from another one, by somebody who knows the PSNs.
    let mut forgers = vec![forger(HERE, 50_001, false), forger(ELSEWHERE, 50_002, true)];
    far.says(&task(FAR, 50_003, true));
    forgers.push(far);
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
    let end = End::new(Wanted::default());
    println!("address {} {} {}", end.qp.qpn().value(), end.memory.addr(), end.mr.rkey().value());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let slot = |id: u64| INBOX + id as usize * BLOCK;
    to_init(&end.qp);
    (0..RECEIVES).for_each(|id| end.receive(id, end.sge(slot(id), BLOCK)));
    up(&end, Qpn::new(line.trim().parse().unwrap()));
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
    println!("counted {round} {}", end.qp.counters().dropped_pkts);
}

/// The other namespace: its end of the link, and a forger without privileges.
fn far() {
    println!("a namespace");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    ip("link set vb up");
    ip(&format!("addr add {FAR}/24 dev vb"));
    let mut forger = as_nobody();
    forger.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
    let status = forger.env(ROLE, "forger").env(TASK, line.trim()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// Somebody who sends what the peer would, and does not know all of it.
struct Forger {
    socket: TxSocket,
    flow: Flow,
    rng: u64,
    /// It knows the PSNs. Otherwise it has the peer's address.
    near: bool,
    rkey: u32,
    qpns: [u32; 2],
}

impl Forger {
    fn from_task() -> Self {
        let task = std::env::var(TASK).unwrap();
        let (source, numbers) = task.split_once(' ').unwrap();
        let source: IpAddr = source.parse().unwrap();
        let numbers: Vec<u32> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let [port, seed, near, rkey, a, b] = numbers[..] else { panic!("{task}") };
        let socket = TxSocket::bind(source, 0, port as u16).unwrap();
        let flow = Flow {
            source,
            destination: HERE.into(),
            source_port: socket.port(),
            traffic_class: 0,
            hop_limit: 0,
            link: Default::default(),
        };
        Self { socket, flow, rng: u64::from(seed) << 20 | 1, near: near == 1, rkey, qpns: [a, b] }
    }

    fn next(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 8) as u32 % limit
    }

    fn forge(mut self) {
        for number in 0..FORGED {
            let packet = self.packet();
            self.send(&packet);
            let mad = self.mad();
            self.send(&mad);
            if number % 32 == 31 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// One of ten has a wrong ICRC.
    fn send(&mut self, packet: &[u8]) {
        let mut octets = [packet, &[0; 4]].concat();
        if self.below(10) > 0 {
            icrc::seal(&self.flow, 0, &mut octets);
        }
        // What the network refuses is lost, and nobody's concern.
        let _ = self.socket.send_datagram(&self.flow, &octets);
    }

    fn head(&mut self, opcode: u8, qpn: u32, psn: u32) -> Vec<u8> {
        let ack_req = self.below(256) as u8 & 0x80;
        let mut head = vec![opcode, 0, 0xff, 0xff];
        head.extend((qpn & 0x00ff_ffff).to_be_bytes());
        head.extend((psn & 0x00ff_ffff).to_be_bytes());
        head[8] = ack_req;
        head
    }

    /// A packet at a queue pair, or at none, or no packet at all.
    fn packet(&mut self) -> Vec<u8> {
        const OPCODES: [u8; 20] = [
            0x00, 0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11,
            0x12, 0x13, 0x14, 0x81,
        ];
        let kind = self.below(10);
        if kind == 0 {
            let length = self.below(1400);
            return (0..length).map(|_| self.next() as u8).collect();
        }
        let qpn = if kind == 1 { self.next() as u32 } else { self.qpns[self.below(2) as usize] };
        // A forger with the peer's address that guesses a PSN in use is the peer, so this one never does.
        let distance = match self.near {
            true => self.below(USED_PSNS),
            false => 2 * USED_PSNS + self.below((1 << 24) - 4 * USED_PSNS),
        };
        let random = self.next() as u8;
        let opcode = if kind == 2 { random } else { OPCODES[self.below(20) as usize] };
        let mut packet = self.head(opcode, qpn, FIRST_PSN.wrapping_add(distance));
        let key = if self.below(2) == 0 { self.rkey } else { self.next() as u32 };
        let payload = [0, 4, 64, 1024][self.below(4) as usize];
        match opcode {
            // RETH: address, key, length.
            0x06 | 0x0a | 0x0b | 0x0c => {
                packet.extend(self.next().to_be_bytes());
                packet.extend(key.to_be_bytes());
                packet.extend((if opcode == 0x0c { 4096 } else { payload as u32 }).to_be_bytes());
            }
            // AtomicETH.
            0x13 | 0x14 => {
                packet.extend(self.next().to_be_bytes());
                packet.extend(key.to_be_bytes());
                packet.extend([0xff; 16]);
                return packet;
            }
            // AETH: ACK, RNR NAK or NAK, and an MSN.
            0x0d | 0x0f..=0x12 => {
                let syndrome = [0x1f, 0x20, 0x60, 0x61, 0x62][self.below(5) as usize];
                packet.extend([syndrome, 0, 0, self.next() as u8]);
                if opcode == 0x12 {
                    packet.extend(self.next().to_be_bytes());
                }
                if opcode >= 0x11 {
                    return packet;
                }
            }
            0x81 => {
                packet.extend([0; 16]);
                return packet;
            }
            _ => {}
        }
        packet.extend((0..payload).map(|_| 0xee));
        packet
    }

    /// A message of connection management: of connections that it guesses, spoilt at times.
    fn mad(&mut self) -> Vec<u8> {
        let (local_id, remote_id) = (CommId(self.next() as u32), CommId(self.next() as u32 & 0x01ff_ffff));
        let (private, remote_qpn) = (PrivateData::EMPTY, Qpn::new(self.qpns[self.below(2) as usize]));
        let message = match self.below(4) {
            0 => Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private }),
            1 => Message::Rtu(Rtu { local_id, remote_id, private }),
            2 => {
                let (about, reason, info) = (About::OTHER, RejReason::CONSUMER, Info::NONE);
                Message::Rej(Rej { local_id, remote_id, about, reason, info, private })
            }
            _ => {
                let header =
                    IpCmHeader { source_port: 5, source: self.flow.source, destination: HERE.into() };
                let route = Route { local: self.flow.source, remote: HERE.into(), interface: 0 };
                let port = self.next() as u16;
                let params = ConnectParams {
                    private: PrivateData::new(&header.emit()).unwrap(),
                    ..ConnectParams::new(route, PortSpace::Tcp.service_id(port), 9, remote_qpn)
                };
                Message::Req(params.req(local_id, Psn::new(1)))
            }
        };
        let mut mad = Mad { transaction_id: self.next(), message }.emit();
        if self.below(4) == 0 {
            let at = self.below(mad.len() as u32) as usize;
            mad[at] = self.next() as u8;
        }
        let mut packet = self.head(0x64, Qpn::GSI.value(), 0);
        packet.extend(Qkey::GSI.value().to_be_bytes());
        packet.extend(Qpn::GSI.value().to_be_bytes());
        packet.extend(mad);
        packet
    }
}
