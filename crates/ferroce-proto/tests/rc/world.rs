//! Two queue pairs, one clock, a network between them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ferroce_fault::pcapng::{self, Captured};
use ferroce_proto::{
    Budget, Memory, NoSharedQueue, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, QpState, QueuePair,
    SelectiveRepeat, Service,
};
use ferroce_sim::{Datagram, Network};
pub use ferroce_sim::{End, Frame};
use ferroce_wire::{BatchLimits, Flow, Instant, PathMtu, Psn, Qkey, Qpn, TxBatch};

/// The configuration of a test's queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub mtu: PathMtu,
    pub caps: QpCaps,
    pub rd_atomic: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub psn: [u32; 2],
    pub rcvbuf: usize,
    pub early_resends: bool,
    pub access: QpAccess,
    pub service: Service,
    pub selective_repeat: SelectiveRepeat,
    /// Packets carry ECT(0).
    pub ecn: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            mtu: PathMtu::B1024,
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 256,
            },
            rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            psn: [0x123456, 0x654321],
            rcvbuf: 1 << 20,
            early_resends: true,
            access: QpAccess::REMOTE_WRITE
                | QpAccess::REMOTE_READ
                | QpAccess::REMOTE_ATOMIC
                | QpAccess::FLUSH_GLOBAL
                | QpAccess::FLUSH_PERSISTENT,
            service: Service::Rc,
            selective_repeat: SelectiveRepeat::Off,
            ecn: false,
        }
    }
}

pub const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2))];
/// Of every queue pair of datagrams.
pub const QKEY: Qkey = Qkey::new(0x1234_5678);
pub const QPNS: [Qpn; 2] = [Qpn::new(0x01_0011), Qpn::new(0x02_0022)];

pub fn flow(from: usize) -> Flow {
    Flow {
        source: ADDRESSES[from],
        destination: ADDRESSES[1 - from],
        source_port: 0xc000 + from as u16,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

impl Setup {
    /// A queue pair in RESET: number 0 or 1 of a pair.
    pub fn queue_pair(&self, side: usize) -> QueuePair {
        self.with_budget(side, Arc::new(Budget::new(self.rcvbuf)))
    }

    pub fn with_budget(&self, side: usize, budget: Arc<Budget>) -> QueuePair {
        let mut qp = QueuePair::new(QpConfig {
            qpn: QPNS[side],
            service: self.service,
            caps: self.caps,
            srq: None,
            sq_sig_all: false,
            port_mtu: PathMtu::B4096,
            seed: 0x5eed + side as u64,
            early_resends: self.early_resends,
            budget,
        })
        .unwrap();
        qp.set_selective_repeat(self.selective_repeat);
        qp
    }

    /// The attributes that connect queue pair `side` to the other.
    pub fn attr(&self, side: usize) -> QpAttr {
        let traffic_class = if self.ecn { Flow::ECN_CAPABLE } else { 0 };
        QpAttr {
            path_mtu: self.mtu,
            rq_psn: Psn::new(self.psn[1 - side]),
            sq_psn: Psn::new(self.psn[side]),
            dest_qp: QPNS[1 - side],
            access: self.access,
            qkey: QKEY,
            path: Flow { traffic_class, ..flow(side) },
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        }
    }

    /// The attributes that the step to a state needs.
    pub fn mask(&self, to: QpState) -> QpAttrMask {
        use QpAttrMask as M;
        let connection = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let reliable = self.service == Service::Rc;
        match (to, self.service) {
            (QpState::Init, Service::Ud) => M::PKEY_INDEX | M::PORT | M::QKEY,
            (QpState::Init, _) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            (QpState::Rtr, Service::Ud) => M::empty(),
            (QpState::Rtr, _) if reliable => connection | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            (QpState::Rtr, _) => connection,
            (QpState::Rts, _) if reliable => {
                M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC
            }
            (QpState::Rts, _) => M::SQ_PSN,
            _ => M::empty(),
        }
    }

    /// Takes a queue pair from RESET to `state`.
    pub fn bring(&self, qp: &mut QueuePair, side: usize, state: QpState) {
        let steps = [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd].map(|to| (to, self.mask(to)));
        for (next, mask) in steps {
            if qp.state() == state {
                return;
            }
            let attr = QpAttr { state: next, ..self.attr(side) };
            qp.modify(&attr, mask | QpAttrMask::STATE).unwrap();
        }
        assert_eq!(qp.state(), state);
    }
}

/// A link with a queue without end, which marks packets that wait long.
#[derive(Debug)]
pub struct Bottleneck {
    octets_per_second: u64,
    /// Packets of a capable sender that wait longer come marked.
    mark_above: Duration,
    busy_until: [Instant; 2],
    /// The longest wait in each direction since it was last set.
    pub longest: [Duration; 2],
    pub marked: u64,
}

impl Bottleneck {
    pub fn new(octets_per_second: u64, mark_above: Duration) -> Self {
        Self {
            octets_per_second,
            mark_above,
            busy_until: [Instant::ZERO; 2],
            longest: [Duration::ZERO; 2],
            marked: 0,
        }
    }

    /// When the packet has crossed.
    fn cross(&mut self, now: Instant, to: usize, frame: &mut Frame) -> Instant {
        let free = self.busy_until[to].max(now);
        let wait = free.saturating_since(now);
        self.longest[to] = self.longest[to].max(wait);
        if wait > self.mark_above && frame.flow.traffic_class & 3 != 0 {
            frame.flow.traffic_class |= Flow::CONGESTION_EXPERIENCED;
            self.marked += 1;
        }
        let transit = frame.wire_len() as u64 * 1_000_000_000 / self.octets_per_second;
        self.busy_until[to] = free + Duration::from_nanos(transit);
        self.busy_until[to]
    }
}

/// See [`World::tamper`].
pub type Tamper<'r> = Box<dyn FnMut(Instant, usize, Frame) -> Vec<(Duration, usize, Frame)> + 'r>;

/// Two ends and what is between them.
pub struct World<'r, M> {
    pub now: Instant,
    pub ends: [End<M>; 2],
    pub network: Network<'r, Frame>,
    buffer: Vec<u8>,
    /// Packets to an end that is asleep arrive when it has woken.
    pub asleep_until: [Instant; 2],
    /// A link that all packets cross before the network, in both directions each its own.
    pub bottleneck: Option<Bottleneck>,
    /// Decides what becomes of a packet to an end: which packets leave in its place, so much later and to which ends.
    pub tamper: Option<Tamper<'r>>,
    /// Forget refusals: long runs have many.
    pub quiet: bool,
    /// The newest packets, for a capture if the test fails.
    log: VecDeque<(Instant, Frame)>,
}

/// Packets that a capture of a failed test holds.
const LOG: usize = 10_000;

impl<'r, M: Memory> World<'r, M> {
    /// Both ends in RTS.
    pub fn connected(setup: &Setup, memories: [M; 2]) -> Self {
        let mut side = 0;
        let ends = memories.map(|mem| {
            let mut qp = setup.queue_pair(side);
            setup.bring(&mut qp, side, QpState::Rts);
            side += 1;
            End::new(qp, mem)
        });
        Self {
            now: Instant::ZERO,
            ends,
            network: Network::new(Duration::from_micros(10)),
            buffer: vec![0; 64 << 10],
            asleep_until: [Instant::ZERO; 2],
            bottleneck: None,
            tamper: None,
            quiet: false,
            log: VecDeque::new(),
        }
    }

    /// Fetches the packets and completions of an end.
    pub fn drain(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let limits = BatchLimits { max_segments: 64, gso: true };
        let mut batch = TxBatch::new(&mut self.buffer, limits);
        while end.qp.poll_transmit(self.now, &mut end.mem, &mut batch) {
            let flow = *batch.flow().unwrap();
            for (index, segment) in batch.segments().enumerate() {
                let mut frame = Frame { flow, ip_id: index as u16, bytes: Rc::new(segment.to_vec()) };
                if self.log.len() == LOG {
                    self.log.pop_front();
                }
                self.log.push_back((self.now, frame.clone()));
                let to = 1 - side;
                let mut leaves = self.now.max(self.asleep_until[to]);
                if let Some(bottleneck) = &mut self.bottleneck {
                    leaves = bottleneck.cross(leaves, to, &mut frame);
                }
                let Some(tamper) = &mut self.tamper else {
                    self.network.send(leaves, to, frame);
                    continue;
                };
                for (later, to, frame) in tamper(self.now, to, frame) {
                    self.network.send(leaves + later, to, frame);
                }
            }
            batch.clear();
        }
        end.events();
    }

    /// The next thing that will happen.
    pub fn next(&self) -> Option<Instant> {
        let timers = self.ends.iter().filter_map(|end| end.qp.poll_timeout());
        timers.chain(self.network.next_arrival()).min()
    }

    /// Moves the clock to the next arrival or timer and handles all that is due. `false` if nothing will ever happen.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        let mut touched = [false; 2];
        while let Some((to, frame)) = self.network.receive(self.now) {
            touched[to] = true;
            let end = &mut self.ends[to];
            match frame.packet() {
                None => end.bad_icrc += 1,
                Some(packet) => {
                    let result = end.qp.handle_datagram(
                        self.now,
                        &frame.flow,
                        &packet,
                        &mut NoSharedQueue,
                        &mut end.mem,
                    );
                    if let Err(reason) = result
                        && !self.quiet
                    {
                        end.drops.push(reason);
                    }
                }
            }
        }
        for (side, touched) in touched.into_iter().enumerate() {
            let qp = &mut self.ends[side].qp;
            if qp.poll_timeout().is_some_and(|due| due <= self.now) {
                qp.handle_timeout(self.now);
            } else if !touched {
                continue;
            }
            self.drain(side);
            let due = self.ends[side].qp.poll_timeout();
            assert!(due.is_none_or(|due| due > self.now), "a timer that is due after it was handled");
        }
        true
    }

    /// Steps until no timer or packet is left, or the limit has passed.
    pub fn run(&mut self, limit: Duration) {
        self.drain(0);
        self.drain(1);
        let end = self.now + limit;
        while self.next().is_some_and(|next| next <= end) {
            self.step();
        }
    }

    /// Steps until `done`; panics if that takes longer than `limit` of simulated time.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) {
        self.drain(0);
        self.drain(1);
        let end = self.now + limit;
        while !done(self) {
            assert!(
                self.next().is_some_and(|next| next <= end),
                "not done after {limit:?}: {:?}",
                self.ends[0].qp
            );
            self.step();
        }
    }
}

impl<M> Drop for World<'_, M> {
    /// A failed test leaves a capture of what was sent last.
    fn drop(&mut self) {
        if !std::thread::panicking() || self.log.is_empty() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("test").replace("::", "-");
        let path = std::env::temp_dir().join(format!("ferroce-{name}.pcapng"));
        let mut file = pcapng::head(name.as_str(), "simulation");
        for (at, frame) in &self.log {
            let mut octets = Vec::new();
            let link = pcapng::put_frame(&mut octets, &frame.flow, frame.ip_id, &frame.bytes);
            let (nanos, octets) = (at.as_nanos(), &octets[..]);
            pcapng::put(&mut file, &Captured { nanos, link, dir: None, octets, comment: &[] });
        }
        match std::fs::write(&path, file) {
            Ok(()) => eprintln!("what was sent last: {}", path.display()),
            Err(error) => eprintln!("no capture in {}: {error}", path.display()),
        }
    }
}
