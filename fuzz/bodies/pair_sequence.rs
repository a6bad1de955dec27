// Applies one input to two RC queue pairs that are connected with each other: work requests at both, and a network that loses, doubles,
// reorders and marks packets. A simple model knows what each end must receive. Included by the fuzz target and by the test that replays
// its corpus, so it has no doc comment of its own.

#[allow(dead_code, clippy::duplicate_mod, reason = "tests use more of it, and so does another target")]
#[path = "../../crates/ferroce-sim/src/ram.rs"]
mod ram;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ferroce_proto::{
    Budget, CongestionControl, NoSharedQueue, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, QpEvent,
    QpState, QueuePair, RecvWr, Remote, SelectiveRepeat, SendOp, SendTo, SendWr, Service, Sge, WcOpcode,
    WcStatus, WorkCompletion,
};
use ferroce_wire::{
    BatchLimits, Flow, IcrcStatus, Imm, Instant, Lkey, Packet, PathMtu, Psn, Qpn, Rkey, TxBatch,
};

use ram::Ram;

const QPNS: [Qpn; 2] = [Qpn::new(0x01_0011), Qpn::new(0x02_0022)];
const DEPTH: u32 = 12;
/// Octets that nobody changes: the sources of all messages.
const SOURCE: u32 = 1;
/// The target of the peer's WRITEs.
const TARGET: u32 = 2;
/// A slot for each receive work request.
const SLOTS: u32 = 3;
/// A slot for each READ and atomic.
const ANSWERS: u32 = 4;
/// A number that the peer's atomics increase.
const COUNTER: u32 = 5;
const SIZE: usize = 12_000;
const SLOT: usize = 6000;
/// The most packets under way in a direction.
const MOST: usize = 400;

/// A message that an end must receive.
#[derive(PartialEq, Debug)]
struct Message {
    /// Its octets in the source; a WRITE leaves none in a receive buffer.
    octets: Option<(usize, usize)>,
    imm: Option<Imm>,
}

/// The effect of a work request that its completion promises.
#[derive(Clone, Copy, Debug)]
enum Promise {
    Send,
    Read { from: usize, len: usize, slot: usize },
    Add { before: u64, slot: usize },
}

struct End {
    qp: QueuePair,
    mem: Ram,
    budget: Arc<Budget>,
    next_send: u64,
    next_receive: u64,
    /// Work requests that have not completed.
    sends: VecDeque<(u64, Promise)>,
    receives: VecDeque<u64>,
    /// What the peer sent and this end has not received.
    expected: VecDeque<Message>,
    /// What the peer's WRITEs make of the target, once all of them are executed.
    target: Vec<u8>,
    /// Atomics of the peer's that were posted.
    adds: u64,
}

struct World {
    ends: [End; 2],
    /// Packets under way to each end.
    network: [VecDeque<(Flow, Vec<u8>)>; 2],
    now: Instant,
    buffer: Vec<u8>,
    mtu: PathMtu,
    successes: u64,
}

/// First octets: the connection; then one step after the other; then a network without faults until all is done. Panics on a broken
/// promise. Returns the number of work requests that succeeded.
pub fn run(data: &[u8]) -> u64 {
    let Some((head, mut steps)) = data.split_first_chunk::<8>() else { return 0 };
    let mut world = World::new(head);
    while let Some((step, rest)) = steps.split_first_chunk::<4>() {
        steps = rest;
        world.step(*step);
    }
    world.finish();
    world.successes
}

/// Octets without a period that is a power of 2.
fn pattern() -> Vec<u8> {
    (0..SIZE as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (at % 251) as u8).collect()
}

fn flow(from: usize, capable: bool) -> Flow {
    let addresses = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
    Flow {
        source: addresses[from],
        destination: addresses[1 - from],
        source_port: 0xc000,
        traffic_class: if capable { Flow::ECN_CAPABLE } else { 0 },
        hop_limit: 64,
        link: ferroce_wire::LinkLayer::UDP,
    }
}

impl World {
    fn new(head: &[u8; 8]) -> Self {
        let [choices, mtu, budget, depth, timeout, psn_high, psn_low, rnr] = *head;
        let mtu = PathMtu::ALL[usize::from(mtu % 5)];
        let ends = [0, 1].map(|side| {
            let caps = QpCaps {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            };
            let budget = Arc::new(Budget::new(1 << (14 + budget % 8)));
            let mut qp = QueuePair::new(QpConfig {
                qpn: QPNS[side],
                service: Service::Rc,
                caps,
                srq: None,
                sq_sig_all: false,
                port_mtu: PathMtu::B4096,
                seed: 1 + side as u64,
                early_resends: choices & 1 != 0,
                budget: budget.clone(),
            })
            .unwrap();
            let repeats = [SelectiveRepeat::Agreed, SelectiveRepeat::Offered, SelectiveRepeat::Off];
            qp.set_selective_repeat(
                repeats[usize::from(choices >> (1 + side) & 1) + usize::from(choices >> 3 & 1)],
            );
            qp.set_congestion_control(match choices >> 4 & 3 {
                0 => CongestionControl::Off,
                1 => CongestionControl::React,
                _ => CongestionControl::Full,
            });
            let psn = |side: usize| Psn::new(u32::from_be_bytes([0, psn_high, 0xff, psn_low]) + side as u32);
            let attr = QpAttr {
                path_mtu: mtu,
                rq_psn: psn(1 - side),
                sq_psn: psn(side),
                dest_qp: QPNS[1 - side],
                access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC,
                path: flow(side, choices & 0x40 != 0),
                max_rd_atomic: depth % 16 + 1,
                max_dest_rd_atomic: depth % 16 + 1,
                min_rnr_timer: rnr % 32,
                timeout: 8 + timeout % 12,
                retry_cnt: 7,
                rnr_retry: 7,
                ..QpAttr::default()
            };
            use QpAttrMask as M;
            for (state, mask) in [
                (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
                (
                    QpState::Rtr,
                    M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
                ),
                (QpState::Rts, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC),
            ] {
                qp.modify(&QpAttr { state, ..attr }, mask | M::STATE).unwrap();
            }
            let mut mem = Ram::default();
            mem.register(SOURCE, 0, pattern());
            mem.register(TARGET, 0, vec![0; SIZE]);
            mem.register(SLOTS, 0, vec![0; SLOT * DEPTH as usize]);
            mem.register(ANSWERS, 0, vec![0; SLOT * DEPTH as usize]);
            mem.register(COUNTER, 0, vec![0; 8]);
            End {
                qp,
                mem,
                budget,
                next_send: 0,
                next_receive: 0,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                expected: VecDeque::new(),
                target: vec![0; SIZE],
                adds: 0,
            }
        });
        Self {
            ends,
            network: Default::default(),
            now: Instant::from_nanos(1),
            buffer: vec![0; 64 << 10],
            mtu,
            successes: 0,
        }
    }

    fn step(&mut self, [kind, a, b, c]: [u8; 4]) {
        let side = usize::from(kind >> 7);
        match kind % 16 {
            0..4 => self.post(side, a, u16::from_be_bytes([b, c])),
            4 => self.post_recv(side),
            5 | 6 => self.transmit(side, usize::from(a), b),
            7..12 => {
                // One or several packets, of which the fate is the same.
                for _ in 0..=a % 16 {
                    self.arrive(side, usize::from(b), c);
                }
            }
            12 => self.transmit(1 - side, 0, 0),
            13 => {
                let nanos = u64::from(u16::from_be_bytes([b, c])) << (a % 12);
                self.pass(self.now + Duration::from_nanos(nanos));
            }
            _ => {
                let due = self.ends[side].qp.poll_timeout().unwrap_or(self.now);
                self.pass(self.now.max(due));
            }
        }
    }

    fn post(&mut self, side: usize, what: u8, number: u16) {
        let len = match what >> 4 & 3 {
            0 => usize::from(number % 65),
            1 => self.mtu.bytes() * usize::from(number % 4),
            _ => usize::from(number) % SLOT,
        }
        .min(SLOT);
        let at = usize::from(number).wrapping_mul(7) % (SIZE - len + 1);
        let id = self.ends[side].next_send;
        let slot = id as usize % DEPTH as usize * SLOT;
        let remote = |key, addr: usize| Remote { addr: addr as u64, rkey: Rkey::new(key) };
        let imm = Imm((id as u32).to_be_bytes());
        let before = self.ends[1 - side].adds;
        let (op, key, local, len, promise) = match what % 8 {
            0 | 1 => (SendOp::Send, SOURCE, at, len, Promise::Send),
            2 => (SendOp::SendImm(imm), SOURCE, at, len, Promise::Send),
            // Overlapping with others, and from another place.
            3 | 4 => {
                (SendOp::Write { remote: remote(TARGET, SIZE - at - len) }, SOURCE, at, len, Promise::Send)
            }
            5 => {
                let remote = remote(TARGET, SIZE - at - len);
                (SendOp::WriteImm { remote, imm }, SOURCE, at, len, Promise::Send)
            }
            6 => (
                SendOp::Read { remote: remote(SOURCE, at) },
                ANSWERS,
                slot,
                len,
                Promise::Read { from: at, len, slot },
            ),
            _ => (
                SendOp::FetchAdd { remote: remote(COUNTER, 0), add: 1 },
                ANSWERS,
                slot,
                8,
                Promise::Add { before, slot },
            ),
        };
        let sges = [Sge { addr: local as u64, length: len as u32, lkey: Lkey::new(key) }];
        let wr = SendWr {
            wr_id: id,
            op,
            to: SendTo::Peer,
            sges: &sges,
            signaled: true,
            solicited: false,
            fence: what & 8 != 0,
            inline: false,
        };
        let end = &mut self.ends[side];
        if end.qp.post_send(&wr, &end.mem).is_err() {
            assert!(end.sends.len() == DEPTH as usize || end.qp.state() != QpState::Rts, "there is room");
            return;
        }
        end.next_send += 1;
        end.sends.push_back((id, promise));
        let peer = &mut self.ends[1 - side];
        match op {
            SendOp::Send => peer.expected.push_back(Message { octets: Some((at, len)), imm: None }),
            SendOp::SendImm(imm) => {
                peer.expected.push_back(Message { octets: Some((at, len)), imm: Some(imm) });
            }
            SendOp::Write { .. } | SendOp::WriteImm { .. } => {
                peer.target[SIZE - at - len..][..len].copy_from_slice(&pattern()[at..][..len]);
                if let SendOp::WriteImm { imm, .. } = op {
                    peer.expected.push_back(Message { octets: None, imm: Some(imm) });
                }
            }
            SendOp::FetchAdd { .. } => peer.adds += 1,
            _ => {}
        }
    }

    fn post_recv(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let id = end.next_receive;
        let slot = id % u64::from(DEPTH) * SLOT as u64;
        let sges = [Sge { addr: slot, length: SLOT as u32, lkey: Lkey::new(SLOTS) }];
        if end.qp.post_recv(&RecvWr { wr_id: id, sges: &sges }).is_ok() {
            end.receives.push_back(id);
            end.next_receive += 1;
        }
    }

    /// Sends, in batches of the size `room` asks for.
    fn transmit(&mut self, side: usize, room: usize, segments: u8) {
        let size = if room == 0 { self.buffer.len() } else { (room << 8).clamp(5000, self.buffer.len()) };
        let limits = BatchLimits { max_segments: 64 - usize::from(segments % 64), gso: room & 1 == 0 };
        for batches in 0.. {
            assert!(batches < 100_000, "there is no end to what it sends");
            let end = &mut self.ends[side];
            let mut batch = TxBatch::new(&mut self.buffer[..size], limits);
            if !end.qp.poll_transmit(self.now, &mut end.mem, &mut batch) {
                break;
            }
            let flow = *batch.flow().unwrap();
            let queue = &mut self.network[1 - side];
            for segment in batch.segments() {
                if queue.len() < MOST {
                    queue.push_back((flow, segment.to_vec()));
                }
            }
        }
        self.events(side);
    }

    /// A packet to this end arrives, or meets its fate.
    fn arrive(&mut self, side: usize, which: usize, fate: u8) {
        let queue = &mut self.network[side];
        let index = if fate & 0x80 == 0 || queue.is_empty() { 0 } else { which % queue.len() };
        let Some((mut flow, octets)) = queue.remove(index) else { return };
        match fate % 8 {
            0 => return,
            1 => queue.push_back((flow, octets.clone())),
            2 => return queue.push_back((flow, octets)),
            3 if flow.traffic_class & 3 != 0 => flow.traffic_class |= Flow::CONGESTION_EXPERIENCED,
            _ => {}
        }
        let mut packet = Packet::parse(&octets).unwrap();
        packet.icrc = IcrcStatus::Checked;
        let end = &mut self.ends[side];
        let _ = end.qp.handle_datagram(self.now, &flow, &packet, &mut NoSharedQueue, &mut end.mem);
        self.events(side);
    }

    fn pass(&mut self, to: Instant) {
        self.now = to;
        for side in 0..2 {
            let qp = &mut self.ends[side].qp;
            if qp.poll_timeout().is_some_and(|due| due <= to) {
                qp.handle_timeout(to);
                self.transmit(side, 0, 0);
                let due = self.ends[side].qp.poll_timeout();
                assert!(due.is_none_or(|due| due > to), "time stands still: {due:?} at {to:?}");
            }
        }
    }

    fn events(&mut self, side: usize) {
        while let Some(event) = self.ends[side].qp.poll_event() {
            match event {
                QpEvent::Send(completion) => self.sent(side, &completion),
                QpEvent::Recv(completion) => self.received(side, &completion),
                QpEvent::RecvXrc(..) => panic!("no XRC"),
                QpEvent::Async(_) => {}
            }
        }
    }

    fn sent(&mut self, side: usize, completion: &WorkCompletion) {
        let end = &mut self.ends[side];
        let (id, promise) = end.sends.pop_front().expect("a work request");
        assert_eq!(id, completion.wr_id, "in order");
        match completion.status {
            WcStatus::Success => {}
            // Nothing that is asked for is wrong, so only the path can fail.
            WcStatus::RetryExcErr | WcStatus::WrFlushErr => {
                assert_eq!(end.qp.state(), QpState::Error);
                return;
            }
            other => panic!("{other:?}: {promise:?}"),
        }
        self.successes += 1;
        match promise {
            Promise::Send => {}
            Promise::Read { from, len, slot } => {
                assert_eq!(end.mem.bytes(ANSWERS)[slot..][..len], end.mem.bytes(SOURCE)[from..][..len]);
            }
            Promise::Add { before, slot } => {
                let octets = end.mem.bytes(ANSWERS)[slot..][..8].try_into().unwrap();
                assert_eq!(u64::from_ne_bytes(octets), before, "executed once, in its turn");
            }
        }
    }

    fn received(&mut self, side: usize, completion: &WorkCompletion) {
        let end = &mut self.ends[side];
        assert_eq!(end.receives.pop_front(), Some(completion.wr_id), "in order");
        if completion.status != WcStatus::Success {
            assert_eq!((completion.status, end.qp.state()), (WcStatus::WrFlushErr, QpState::Error));
            return;
        }
        let Message { octets, imm } = end.expected.pop_front().expect("a message that was sent");
        assert_eq!(completion.imm, imm);
        match octets {
            Some((from, len)) => {
                assert_eq!((completion.byte_len as usize, completion.opcode), (len, WcOpcode::Recv));
                let slot = (completion.wr_id % u64::from(DEPTH)) as usize * SLOT;
                assert_eq!(end.mem.bytes(SLOTS)[slot..][..len], end.mem.bytes(SOURCE)[from..][..len]);
            }
            None => assert_eq!(completion.opcode, WcOpcode::RecvRdmaWithImm),
        }
    }

    /// The network loses nothing any more. All work requests complete, or the connection has failed.
    fn finish(&mut self) {
        for rounds in 0.. {
            assert!(
                rounds < 20_000,
                "it does not come to an end: {:?}",
                self.ends.each_ref().map(|end| &end.qp)
            );
            for side in 0..2 {
                while self.ends[side].receives.len() < DEPTH as usize / 2
                    && self.ends[side].qp.state() == QpState::Rts
                {
                    self.post_recv(side);
                }
                self.transmit(side, 0, 0);
            }
            if self.network.iter().all(VecDeque::is_empty) {
                let due = self.ends.iter().filter_map(|end| end.qp.poll_timeout()).min();
                let Some(due) = due else { break };
                self.pass(self.now.max(due));
            }
            for side in 0..2 {
                for _ in 0..self.network[side].len() {
                    self.arrive(side, 0, 7);
                }
            }
        }
        let failed = self.ends.iter().any(|end| end.qp.state() != QpState::Rts);
        for (side, end) in self.ends.iter().enumerate() {
            if end.qp.state() == QpState::Rts && !failed {
                assert!(end.sends.is_empty() && end.expected.is_empty(), "{side}: {:?}", end.sends);
                assert!(end.mem.bytes(TARGET) == end.target, "{side}: WRITEs in order, each once");
                assert_eq!(end.mem.bytes(COUNTER), end.adds.to_ne_bytes());
            }
            assert!(end.qp.state() == QpState::Rts || end.sends.is_empty() && end.receives.is_empty());
            assert_eq!(end.mem.bytes(SOURCE), pattern(), "nobody writes there");
            assert_eq!(end.budget.reads_in_use(), 0);
        }
    }
}
