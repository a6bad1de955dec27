//! A program that writes whatever it likes into the memory that it shares with the broker, while others exchange messages of
//! RoCE v1 by the same broker: it loses its own packets, or its rings, and that is all.

mod common;

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{brokers, connect, isolated, program};
use ferroce_engine::{
    Access, AhAttr, CompletionQueue, Context, GidEntry, GidType, Mr, Pd, Qp, QpAccess, QpAttr, QpAttrMask,
    QpCaps, QpInit, QpState, RecvWr, SendOp, SendWr, Service, Sge, WcStatus, WorkCompletion,
};
use ferroce_ipc::ring::{ENTRIES, MAX_PACKET, Rings};
use ferroce_ipc::{
    BROKER_NAME, Client, ClientError, DeviceInfo, Message, Refusal, RefusalCode, RoceMode, Setting, Shared,
};
use ferroce_wire::{Flow, Gid, LinkLayer, PathMtu, Psn, Qpn, RoceVersion};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::net::{RecvFlags, SendFlags, recv, send};

const NAME: &str = "a_program_that_scribbles_harms_itself_alone";
/// For what needs other threads and processes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rings that the hostile program opens, one after the other.
const ROUNDS: u64 = 60;
/// Messages that the others exchange at least, before, while and after.
const MESSAGES: usize = 100;
/// Octets of a message: three packets.
const MESSAGE: usize = 3000;

/// Words of the shared memory, as `ferroce_ipc::ring` lays them out: indices of a cache line each, then the entries.
const TAIL_TO_BROKER: usize = 0;
const HEAD_TO_BROKER: usize = 8;
const HEAD_TO_PROGRAM: usize = 24;
const FIRST_ENTRY: usize = 32;
const ENTRY: usize = 2 + MAX_PACKET / 8;

#[test]
fn a_program_that_scribbles_harms_itself_alone() {
    if std::env::var("FERROCE_TEST_ROLE").is_ok() {
        return hostile();
    }
    isolated(NAME, || {
        let lease = connect();
        if let Err(refusal) = serve_both_versions() {
            return println!("skipped {NAME}: {refusal}");
        }
        let broker = brokers();
        assert_eq!(broker.len(), 1);
        let mut honest = Pair::new();
        honest.exchange(MESSAGES);
        let before = Counts::now();
        let mut other = program(NAME, &honest.a.qp.qpn().value().to_string());
        while other.try_wait().unwrap().is_none() {
            honest.exchange(1);
        }
        let status = other.wait().unwrap();
        let mut said = String::new();
        other.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(status.success(), "the hostile program: {status}\n{said}");
        honest.exchange(MESSAGES);
        assert_eq!(brokers(), broker, "the broker lives");
        let after = Counts::now();
        for (reason, least) in [
            ("frame_malformed", 3 * ROUNDS),
            ("frame_forged_source", ROUNDS),
            ("frame_forbidden_qp", ROUNDS),
            ("frame_no_interface", ROUNDS / 6),
            ("frame_no_qp", ROUNDS / 6),
            ("frame_rings_broken", ROUNDS / 3),
            // The other programs drop the packets that do reach them.
            ("rx_icrc_errors", 1),
        ] {
            let more = after.of(reason).wrapping_sub(before.of(reason));
            assert!(more >= least, "{reason}: {more} more, wanted {least} at least");
        }
        drop(lease);
    });
}

/// The broker looks into the rings because a program asks it to: nobody rings a doorbell in this test.
#[test]
fn packets_that_were_in_a_ring_have_arrived_when_the_broker_answers() {
    isolated("packets_that_were_in_a_ring_have_arrived_when_the_broker_answers", || {
        let lease = connect();
        let open = || {
            let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
            let (Message::Leased(leased), _) = client.request(&Message::Lease(1), PATIENCE).unwrap() else {
                panic!("no slot")
            };
            for _ in 0..leased.addresses {
                client.more(PATIENCE).unwrap();
            }
            let (bell, far) = ferroce_ipc::packet::pair().unwrap();
            let ask = Message::OpenRings { v2: true };
            let (_, descriptors) = client.request_with(&ask, &[far.as_fd()], PATIENCE).unwrap();
            // The end of a doorbell would end the rings.
            (client, leased.slots[0], Rings::join(&descriptors[0]).unwrap(), (bell, descriptors))
        };
        let (_sender, _, mut from, _bells) = open();
        let (mut receiver, slot, mut to, _other_bells) = open();
        let devices = ferroce_engine::devices().unwrap();
        let gids = devices.iter().find(|device| device.name == "fr0").unwrap().gids.iter();
        let is_v2 = |entry: &&GidEntry| entry.gid_type == GidType::RoceV2 && entry.gid.to_ip().is_ipv4();
        let gid = gids.clone().find(is_v2).unwrap();
        let link = LinkLayer { version: RoceVersion::V2, sl: 0, ifindex: gid.ifindex };
        let address = gid.gid.to_ip();
        let flow = Flow {
            source: address,
            destination: address,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            link,
        };
        let mut headers = [0; 48];
        let mut popped = Box::new([0; MAX_PACKET]);
        for round in 0..100_u8 {
            let count = 1 + u32::from(round) * 7 % ENTRIES;
            for number in 0..count {
                let mut transport = [round; 64];
                (transport[0], transport[32]) = (4, number as u8);
                transport[5..8].copy_from_slice(&(u32::from(slot) << 12 | 0x11).to_be_bytes()[1..]);
                let len = flow.write_headers(0, transport.len(), &mut headers);
                from.tx.push(link, &headers[..len], &transport).unwrap();
            }
            from.tx.publish().unwrap();
            let (answer, _) = receiver.request(&Message::SettleRings, PATIENCE).unwrap();
            assert_eq!(answer, Message::Done);
            for number in 0..count {
                let packet = to.rx.pop(&mut popped).unwrap().expect("all packets have arrived");
                assert_eq!((popped[packet.len - 1], popped[packet.len - 32]), (round, number as u8));
            }
            assert_eq!(to.rx.pop(&mut popped).unwrap(), None);
        }
        drop(lease);
    });
}

/// A queue pair is reset while its broker is stopped: nobody answers that packets have arrived.
#[test]
fn a_stopped_broker_holds_up_no_reset() {
    const NAME: &str = "a_stopped_broker_holds_up_no_reset";
    isolated(NAME, || {
        let lease = connect();
        if let Err(refusal) = serve_both_versions() {
            return println!("skipped {NAME}: {refusal}");
        }
        let mut pair = Pair::new();
        pair.exchange(1);
        let broker = brokers();
        assert_eq!(broker.len(), 1);
        let send = |signal| kill(Pid::from_raw(broker[0]), signal).unwrap();
        send(Signal::SIGSTOP);
        pair.reset();
        send(Signal::SIGCONT);
        pair.exchange(1);
        pair.reset();
        pair.exchange(1);
        drop(lease);
    });
}

/// Has `fr0` serve RoCE v1 as well.
fn serve_both_versions() -> Result<(), Refusal> {
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    let settings = vec![Setting::RoceMode(RoceMode::Both)];
    let set = Message::LinkSet { name: "fr0".to_owned(), settings, transient: true, force: false };
    match client.request(&set, PATIENCE) {
        Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::Permission => Err(refusal),
        done => {
            done.unwrap();
            Ok(())
        }
    }
}

struct Counts(Vec<(String, u64)>);

impl Counts {
    fn now() -> Self {
        Self(ferroce_engine::device_statistics("fr0").unwrap())
    }

    fn of(&self, name: &str) -> u64 {
        self.0.iter().find(|(known, _)| known == name).unwrap().1
    }
}

/// Two queue pairs, connected by RoCE v1.
struct Pair {
    a: End,
    b: End,
    next: u8,
    gid: GidEntry,
}

struct End {
    cq: Arc<CompletionQueue>,
    memory: &'static [AtomicU8],
    mr: Arc<Mr>,
    qp: Arc<Qp>,
    _pd: Arc<Pd>,
}

impl End {
    fn new(context: &Arc<Context>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, 0, None, 0).unwrap();
        let memory: Vec<AtomicU8> = (0..MESSAGE).map(|_| AtomicU8::new(0)).collect();
        let memory: &'static [AtomicU8] = memory.leak();
        let addr = memory.as_ptr() as u64;
        let mr = pd.reg_mr(addr, MESSAGE, addr, Access::LOCAL_WRITE).unwrap();
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit {
            service: Service::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps,
            sq_sig_all: true,
            user: 0,
        };
        let qp = pd.create_qp(init).unwrap();
        Self { cq, memory, mr, qp, _pd: pd }
    }

    fn connect(&self, peer: &Self, gid: &GidEntry) {
        let step = |attr: &QpAttr, mask| self.qp.modify(attr, QpAttrMask::STATE | mask).unwrap();
        let init = QpAttr { state: QpState::Init, access: QpAccess::LOCAL_WRITE, ..QpAttr::default() };
        step(&init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS);
        let ready = QpAttr {
            state: QpState::Rtr,
            ah: AhAttr { dgid: gid.gid, sgid_index: gid.index as u8, ..AhAttr::default() },
            dest_qp: peer.qp.qpn(),
            path_mtu: PathMtu::B1024,
            rq_psn: Psn::new(7),
            ..QpAttr::default()
        };
        let way = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        step(&ready, way | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER);
        // No timeout: however long somebody has no core, nothing is given up.
        let rts = QpAttr {
            state: QpState::Rts,
            sq_psn: Psn::new(7),
            timeout: 0,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let retries = QpAttrMask::TIMEOUT | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY;
        step(&rts, QpAttrMask::SQ_PSN | QpAttrMask::MAX_QP_RD_ATOMIC | retries);
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.memory.as_ptr() as u64, length: MESSAGE as u32, lkey: self.mr.lkey() }
    }

    fn completes(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut one = [WorkCompletion::BLANK];
        while self.cq.poll(&mut one).unwrap() == 0 {
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
        assert_eq!(one[0].status, WcStatus::Success);
    }
}

impl Pair {
    fn new() -> Self {
        let context = Context::open("fr0").unwrap();
        let gid = v1_of(&ferroce_engine::devices().unwrap());
        let (a, b) = (End::new(&context), End::new(&context));
        a.connect(&b, &gid);
        b.connect(&a, &gid);
        Self { a, b, next: 0, gid }
    }

    /// Connects it anew.
    fn reset(&self) {
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        for end in [&self.a, &self.b] {
            end.qp.modify(&reset, QpAttrMask::STATE).unwrap();
        }
        self.a.connect(&self.b, &self.gid);
        self.b.connect(&self.a, &self.gid);
    }

    /// Sends messages to and fro, each another one, and looks at every octet.
    fn exchange(&mut self, count: usize) {
        for _ in 0..count {
            let octet = |at: usize| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ self.next;
            for (at, to) in self.a.memory.iter().enumerate() {
                to.store(octet(at), Ordering::Relaxed);
            }
            self.b.qp.post_recv([RecvWr { wr_id: 1, sges: &[self.b.sge()] }]).unwrap();
            self.a.qp.post_send([SendWr::signaled(2, SendOp::Send, &[self.a.sge()])]).unwrap();
            self.b.completes();
            self.a.completes();
            let wrong = (0..MESSAGE).find(|at| self.b.memory[*at].load(Ordering::Relaxed) != octet(*at));
            assert_eq!(wrong, None, "an octet that is not the sender's");
            self.next = self.next.wrapping_add(1);
            std::mem::swap(&mut self.a, &mut self.b);
        }
    }
}

fn v1_of(devices: &[DeviceInfo]) -> GidEntry {
    let device = devices.iter().find(|device| device.name == "fr0").unwrap();
    let v1 = |entry: &&GidEntry| entry.gid_type == GidType::RoceV1 && entry.gid.to_ip().is_ipv4();
    *device.gids.iter().find(v1).expect("127.0.0.1 as RoCE v1")
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The hostile program: speaks the protocol well enough to get its rings.
struct Hostile {
    client: Client,
    own: u16,
    victim: Qpn,
    gid: GidEntry,
    random: Random,
}

/// The hostile program's side of its rings to the broker.
struct HostileRings {
    bell: OwnedFd,
    memory: OwnedFd,
    words: Shared,
}

fn hostile() {
    let victim = Qpn::new(std::env::var("FERROCE_TEST_ROLE").unwrap().parse().unwrap());
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    let (Message::Devices(devices), _) = client.request(&Message::ListDevices, PATIENCE).unwrap() else {
        panic!("no devices")
    };
    let (Message::Leased(leased), _) = client.request(&Message::Lease(1), PATIENCE).unwrap() else {
        panic!("no slot")
    };
    for _ in 0..leased.addresses {
        client.more(PATIENCE).unwrap();
    }
    let (own, gid, random) = (leased.slots[0], v1_of(&devices), Random(0x9e37_79b9_7f4a_7c15));
    let mut hostile = Hostile { client, own, victim, gid, random };
    for round in 0..ROUNDS {
        let held = hostile.open(round % 2 == 1);
        hostile.frames(&held);
        match round % 6 {
            0 => hostile.descriptors(&held),
            1 => hostile.tail(&held),
            2 => hostile.head(&held),
            3 => hostile.storm(&held),
            4 => hostile.bells(&held),
            // Goes on with the next ones, and forgets these without a word.
            _ => std::mem::forget(held),
        }
    }
    // The broker has an answer for it still.
    hostile.client.request(&Message::GetStatus, PATIENCE).unwrap();
    // It dies as it lived.
    let held = hostile.open(true);
    hostile.storm(&held);
    println!("done");
    std::process::exit(0);
}

impl HostileRings {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.words()[at]
    }

    /// Has the broker look.
    fn ring(&self) {
        let _ = send(&self.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Whether the broker has closed its end of the bell, and with it the rings.
    fn is_cut_off(&self) -> bool {
        let mut octets = [0_u8; 64];
        loop {
            match recv(&self.bell, octets.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            self.ring();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the broker took all that is there.
    fn until_taken(&self) {
        let index = |at| self.word(at).load(Ordering::SeqCst);
        self.until("the broker does not take packets", || index(HEAD_TO_BROKER) == index(TAIL_TO_BROKER));
    }

    fn until_cut_off(&self) {
        self.until("the broker goes on with rings that make no sense", || self.is_cut_off());
    }
}

impl Hostile {
    fn open(&mut self, v2: bool) -> HostileRings {
        let (_woken, far) = ferroce_ipc::packet::pair().unwrap();
        let ask = Message::OpenRings { v2 };
        let (answer, mut descriptors) = self.client.request_with(&ask, &[far.as_fd()], PATIENCE).unwrap();
        assert_eq!(answer, Message::Rings);
        let (bell, memory) = (descriptors.pop().unwrap(), descriptors.pop().unwrap());
        let size = rustix::fs::fstat(&memory).unwrap().st_size as usize;
        let words = Shared::map(&memory, size / 8).unwrap();
        assert_eq!(words.words().len(), FIRST_ENTRY + 2 * ENTRIES as usize * ENTRY, "another layout");
        HostileRings { bell, memory, words }
    }

    fn link(&self, ifindex: u32) -> LinkLayer {
        LinkLayer { version: RoceVersion::V1, sl: 0, ifindex }
    }

    /// A packet of RoCE v1 with nonsense behind the BTH's number.
    fn packet(&mut self, source: Gid, opcode: u8, qpn: Qpn) -> Vec<u8> {
        let mut transport: Vec<u8> = (0..64).map(|_| self.random.next() as u8).collect();
        transport[0] = opcode;
        transport[5..8].copy_from_slice(&qpn.value().to_be_bytes()[1..]);
        let flow = Flow {
            source: source.to_ip(),
            destination: self.gid.gid.to_ip(),
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            link: self.link(0),
        };
        let mut headers = [0; 48];
        let len = flow.write_headers(0, transport.len(), &mut headers);
        [&headers[..len], &transport].concat()
    }

    /// Whole entries with packets that it may not send, or that nobody takes.
    fn frames(&mut self, held: &HostileRings) {
        const SEND_ONLY: u8 = 4;
        const UD_SEND_ONLY: u8 = 0x64;
        let mut rings = Rings::join(&held.memory).unwrap();
        let own = Qpn::new(u32::from(self.own) << 12 | 0x11);
        let here = self.gid.ifindex;
        let elsewhere = Gid::from_ip([192, 0, 2, 1].into());
        let rubbish: Vec<u8> = (0..300).map(|_| self.random.next() as u8).collect();
        let mut deth = self.packet(self.gid.gid, UD_SEND_ONLY, self.victim);
        deth[40 + 17] = (self.own >> 4) as u8 ^ 0x80;
        for (ifindex, packet) in [
            (here, Vec::new()),
            (here, vec![0; MAX_PACKET]),
            (here, rubbish),
            (here, self.packet(elsewhere, SEND_ONLY, self.victim)),
            (here, self.packet(self.gid.gid, SEND_ONLY, Qpn::new(0))),
            (here, self.packet(self.gid.gid, UD_SEND_ONLY, Qpn::GSI)),
            (here, deth),
            (self.random.next() as u32 | 1 << 31, self.packet(self.gid.gid, SEND_ONLY, self.victim)),
            // These may pass: to a queue pair of nobody, to itself, and to one of the others, with a wrong ICRC.
            (here, self.packet(self.gid.gid, SEND_ONLY, Qpn::new(0xfe_0011))),
            (here, self.packet(self.gid.gid, SEND_ONLY, own)),
            (here, self.packet(self.gid.gid, SEND_ONLY, self.victim)),
        ] {
            rings.tx.push(self.link(ifindex), &packet, &[]).unwrap();
        }
        rings.tx.publish().unwrap();
        held.until_taken();
    }

    /// Entries whose lengths, versions and interfaces are any number.
    fn descriptors(&mut self, held: &HostileRings) {
        let tail = held.word(TAIL_TO_BROKER).load(Ordering::Relaxed);
        for number in tail..tail + u64::from(ENTRIES) {
            let place = FIRST_ENTRY + (number % u64::from(ENTRIES)) as usize * ENTRY;
            for word in 0..ENTRY {
                held.word(place + word).store(self.random.next(), Ordering::Relaxed);
            }
            if number.is_multiple_of(4) {
                // A length that can be, and rubbish behind it.
                let head = u64::from(self.gid.ifindex) << 32 | 1 << 16 | (self.random.next() % 4400);
                held.word(place).store(head, Ordering::Relaxed);
            }
        }
        held.word(TAIL_TO_BROKER).store(tail + u64::from(ENTRIES), Ordering::SeqCst);
        held.until_taken();
    }

    /// An index of its own that cannot be.
    fn tail(&mut self, held: &HostileRings) {
        let tail = held.word(TAIL_TO_BROKER).load(Ordering::Relaxed);
        let wrong =
            [tail + u64::from(ENTRIES) + 1, tail.wrapping_sub(1), u64::MAX, 1 << 32, tail + (1 << 31)];
        held.word(TAIL_TO_BROKER).store(wrong[self.random.below(wrong.len())], Ordering::SeqCst);
        held.until_cut_off();
    }

    /// The index by which the broker knows what was taken of its packets cannot be, and packets come.
    fn head(&mut self, held: &HostileRings) {
        let wrong = [u64::from(ENTRIES), u64::MAX, 1 << 32, 1 << 31];
        held.word(HEAD_TO_PROGRAM).store(wrong[self.random.below(wrong.len())], Ordering::SeqCst);
        let own = Qpn::new(u32::from(self.own) << 12 | 0x11);
        let packet = self.packet(self.gid.gid, 4, own);
        let tail = held.word(TAIL_TO_BROKER).load(Ordering::Relaxed);
        let place = FIRST_ENTRY + (tail % u64::from(ENTRIES)) as usize * ENTRY;
        held.word(place)
            .store(u64::from(self.gid.ifindex) << 32 | 1 << 16 | packet.len() as u64, Ordering::Relaxed);
        let words = packet.chunks(8).map(|chunk| {
            let mut octets = [0; 8];
            octets[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(octets)
        });
        words.enumerate().for_each(|(at, word)| held.word(place + 2 + at).store(word, Ordering::Relaxed));
        held.word(TAIL_TO_BROKER).store(tail + 1, Ordering::SeqCst);
        held.until_cut_off();
    }

    /// Everything is written to at once, indices now and then, while the broker reads.
    fn storm(&mut self, held: &HostileRings) {
        let ended = AtomicBool::new(false);
        let size = held.words.words().len();
        let mut random = Random(self.random.next() | 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    held.ring();
                    std::thread::yield_now();
                }
            });
            for step in 0..200_000_u64 {
                let at = match step % 16 {
                    0 => TAIL_TO_BROKER,
                    1 if step % 512 == 1 => 8 * random.below(4),
                    _ => random.below(size),
                };
                let value = match at {
                    // Mostly a possible index, so that the broker reads the entries.
                    TAIL_TO_BROKER if !step.is_multiple_of(4096) => {
                        let head = held.word(HEAD_TO_BROKER).load(Ordering::Relaxed);
                        head.wrapping_add(random.next() % u64::from(ENTRIES))
                    }
                    _ => random.next(),
                };
                held.word(at).store(value, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
        });
    }

    /// The bell is rung more often than anybody hears, by packets of any length, and taken away.
    fn bells(&mut self, held: &HostileRings) {
        let octets = [7; 4096];
        for _ in 0..2000 {
            let len = self.random.below(octets.len());
            let _ = send(&held.bell, &octets[..len], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        let _ = rustix::net::shutdown(&held.bell, rustix::net::Shutdown::Both);
    }
}
