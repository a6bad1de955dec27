//! The straight way beside the state machine alone: two pairs of queue pairs go through the same events, and
//! everything that comes out of them is compared.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use ferroce_proto::{
    Counters, DirectTarget, DropReason, NoSharedQueue, QpAttr, QpAttrMask, QpState, RecvWr, Remote,
    SelectiveRepeat, SendOp, SendTo, SendWr, Sge,
};
use ferroce_sim::{Rng, Seed, ram};
use ferroce_wire::{BatchLimits, Flow, IcrcStatus, Instant, Lkey, Packet, PathMtu, Rkey, Slot, TxBatch};

use crate::ram::Ram;
use crate::world::{End, Frame, Setup};

/// Both keys of the region that everything is in.
const KEY: u32 = 1;
const OCTETS: u64 = 4096;
/// A key that nothing has.
const NO_KEY: u32 = 9;
/// Steps of the short test, and of each pair of pairs.
const STEPS: u64 = if cfg!(miri) { 1_000 } else { 400_000 };
const RUN: u64 = STEPS / 20;
/// The address of inline data.
const INLINE: u64 = 1 << 32;

/// Two ends that are connected, and the packets on their way to each.
struct Pair {
    ends: [End<Ram>; 2],
    wires: [VecDeque<Frame>; 2],
    setup: Setup,
    /// Packets that left by a slot.
    slots: u64,
}

/// A step, which both pairs take.
#[derive(Clone, Copy, Debug)]
enum Step {
    Post {
        op: SendOp,
        sges: [Sge; 2],
        signaled: bool,
        solicited: bool,
        fence: bool,
        inline: bool,
    },
    Receive {
        sges: [Sge; 2],
    },
    /// The packet at this place of the wire arrives; a copy may follow. It may have met congestion.
    Arrive {
        place: usize,
        stays: bool,
        marked: bool,
    },
    Lose {
        place: usize,
    },
    /// Packets and completions leave, with `slot` by one packet on the straight way, if there is one.
    Drain {
        slot: bool,
    },
    Timeout,
    DelayAck(bool),
    AckFirst(bool),
    PreferDirect(bool),
    Gone(bool),
    Register(bool),
    Remote(ram::Remote),
    State(QpState),
    Access(bool),
    /// Both ends begin anew.
    Again,
}

/// The effects of a step that a caller sees.
#[derive(Debug, PartialEq)]
struct Shown {
    result: Result<(), DropReason>,
    refused: bool,
    /// Octets of each packet that left.
    left: Vec<Vec<u8>>,
    timeouts: [Option<Instant>; 2],
    silent: [bool; 2],
    rights: [Option<DirectTarget>; 2],
}

impl Pair {
    fn new(setup: Setup, straight: bool) -> Self {
        let ends = [0, 1].map(|side| {
            let mut qp = setup.queue_pair(side);
            qp.use_straight_way(straight);
            setup.bring(&mut qp, side, QpState::Rts);
            let mut mem = Ram::default();
            mem.register(KEY, 0, vec![side as u8; OCTETS as usize]);
            End::new(qp, mem)
        });
        Self { ends, wires: Default::default(), setup, slots: 0 }
    }

    fn take(&mut self, now: Instant, side: usize, step: &Step) -> Shown {
        let end = &mut self.ends[side];
        let (mut result, mut refused, mut left) = (Ok(()), false, Vec::new());
        match *step {
            Step::Post { op, sges, signaled, solicited, fence, inline } => {
                let (wr_id, to) = (end.qp.counters().rdma_sends, SendTo::Peer);
                let sges = if matches!(op, SendOp::LocalInvalidate(_)) { &[] } else { used(&sges) };
                let wr = SendWr { wr_id, op, to, sges, signaled, solicited, fence, inline };
                refused = end.qp.post_send(&wr, &end.mem).is_err();
            }
            Step::Receive { sges } => {
                refused = end.qp.post_recv(&RecvWr { wr_id: sges[0].addr, sges: used(&sges) }).is_err();
            }
            Step::Arrive { place, stays, marked } => {
                let frame = self.wires[side][place].clone();
                if !stays {
                    self.wires[side].remove(place);
                }
                let mut packet = Packet::parse(&frame.bytes).unwrap();
                packet.icrc = IcrcStatus::Checked;
                let mut flow = frame.flow;
                flow.traffic_class |= if marked { Flow::CONGESTION_EXPERIENCED } else { 0 };
                result = end.qp.handle_datagram(now, &flow, &packet, &mut NoSharedQueue, &mut end.mem);
            }
            Step::Lose { place } => _ = self.wires[side].remove(place),
            Step::Drain { slot } => {
                let mut buffer = [0; 2048];
                let mut one = Slot::new(&mut buffer[..128]);
                let mut frame = |flow, bytes: &[u8]| {
                    left.push(bytes.to_vec());
                    Frame { flow, ip_id: 0, bytes: Rc::new(bytes.to_vec()) }
                };
                if slot && end.qp.transmit_straight(now, &mut end.mem, &mut one) {
                    self.slots += 1;
                    self.wires[1 - side].push_back(frame(end.qp.query().path, one.bytes()));
                } else {
                    let limits = BatchLimits { max_segments: 8, gso: true };
                    let mut batch = TxBatch::new(&mut buffer, limits);
                    batch.leave_icrc_out();
                    while end.qp.poll_transmit(now, &mut end.mem, &mut batch) {
                        let flow = *batch.flow().unwrap();
                        self.wires[1 - side].extend(batch.segments().map(|bytes| frame(flow, bytes)));
                        batch.clear();
                    }
                }
                end.events();
            }
            Step::Timeout => end.qp.handle_timeout(now),
            Step::DelayAck(hold) => end.qp.delay_ack(hold),
            Step::AckFirst(first) => end.qp.put_ack_first(first),
            Step::PreferDirect(prefer) => end.qp.prefer_direct(prefer),
            Step::Gone(gone) => end.mem.regions.iter_mut().for_each(|region| region.gone = gone),
            Step::Register(true) if end.mem.regions.is_empty() => {
                end.mem.register(KEY, 0, vec![7; OCTETS as usize]);
            }
            Step::Register(true) => {}
            Step::Register(false) => end.mem.deregister(KEY),
            Step::Remote(remote) => end.mem.regions.iter_mut().for_each(|region| region.remote = remote),
            Step::State(state) => {
                let attr = QpAttr { state, ..end.qp.query() };
                refused = end.qp.modify(&attr, QpAttrMask::STATE).is_err();
            }
            Step::Access(all) => {
                let access = if all { self.setup.access } else { Default::default() };
                let attr = QpAttr { access, ..end.qp.query() };
                refused = end.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).is_err();
            }
            Step::Again => {
                for (side, end) in self.ends.iter_mut().enumerate() {
                    let attr = QpAttr { state: QpState::Reset, ..end.qp.query() };
                    end.qp.modify(&attr, QpAttrMask::STATE).unwrap();
                    self.setup.bring(&mut end.qp, side, QpState::Rts);
                    end.mem.regions.clear();
                    end.mem.register(KEY, 0, vec![side as u8; OCTETS as usize]);
                }
                self.wires = Default::default();
            }
        }
        let qps = self.ends.each_ref().map(|end| &end.qp);
        let (timeouts, silent) = (qps.map(|qp| qp.poll_timeout()), qps.map(|qp| qp.is_silent()));
        let rights = qps.map(|qp| qp.direct_target());
        Shown { result, refused, left, timeouts, silent, rights }
    }

    /// All of the state.
    fn state(&self) -> String {
        format!("{:#?}", self.ends)
            .replace("straight: false", "straight: true")
            .replace("strayed: false", "strayed: true")
    }
}

/// A list, without a second element of no length.
fn used(sges: &[Sge; 2]) -> &[Sge] {
    if sges[1].length == 0 { &sges[..1] } else { sges }
}

/// Cuts an element in two.
fn cut(rng: &mut Rng, sge: Sge) -> [Sge; 2] {
    let rest = if rng.chance(800_000) || sge.length < 16 { 0 } else { 8 };
    let first = Sge { length: sge.length - rest, ..sge };
    [first, Sge { addr: sge.addr + 64, length: rest, ..sge }]
}

fn random_sge(rng: &mut Rng, lengths: [u32; 8]) -> Sge {
    let length = lengths[rng.below(8) as usize];
    let lkey = Lkey::new(if rng.chance(1_000) { NO_KEY } else { KEY });
    Sge { addr: rng.below(64) * 8, length, lkey }
}

fn random_receive(rng: &mut Rng) -> Step {
    let least = if rng.chance(5_000) { 0 } else { 600 };
    let sge = random_sge(rng, [least, 600, 600, 600, 600, 700, 800, 1000]);
    Step::Receive { sges: cut(rng, sge) }
}

fn random_post(rng: &mut Rng) -> Step {
    let rkey = Rkey::new(if rng.chance(1_000) { NO_KEY } else { KEY });
    let remote = Remote { addr: 2048 + rng.below(64) * 8, rkey };
    let mut sge = random_sge(rng, [0, 8, 8, 8, 64, 256, 257, 600]);
    let op = match rng.below(16) {
        0..6 => SendOp::Send,
        6 => SendOp::SendImm(ferroce_wire::Imm([1, 2, 3, 4])),
        7..12 => SendOp::Write { remote },
        12 => SendOp::WriteImm { remote, imm: ferroce_wire::Imm([5; 4]) },
        13 => SendOp::Read { remote },
        14 => SendOp::FetchAdd { remote, add: 3 },
        _ => SendOp::LocalInvalidate(Rkey::new(if rng.chance(100_000) { KEY } else { NO_KEY })),
    };
    if let SendOp::FetchAdd { .. } = op {
        sge.length = 8;
    }
    // A local invalidation without a window ends the queue pair: seldom.
    let op = if matches!(op, SendOp::LocalInvalidate(_)) && !rng.chance(2_000) { SendOp::Send } else { op };
    let inline = matches!(op, SendOp::Send | SendOp::Write { .. }) && sge.length <= 64 && rng.chance(100_000);
    let sges = if inline { [Sge { addr: INLINE, ..sge }, Sge::default()] } else { cut(rng, sge) };
    let sges = if sge.length == 8 { [Sge { ..sges[0] }, Sge::default()] } else { sges };
    Step::Post {
        op,
        sges,
        signaled: rng.chance(700_000),
        solicited: rng.chance(200_000),
        fence: rng.chance(100_000),
        inline,
    }
}

/// A step for this side. `waiting` packets are on their way to it.
fn random_step(rng: &mut Rng, waiting: usize, is_over: bool) -> Step {
    if is_over && rng.chance(100_000) {
        return Step::Again;
    }
    let place = |rng: &mut Rng| if rng.chance(900_000) { 0 } else { rng.below(waiting as u64) as usize };
    match rng.below(1000) {
        0..230 => random_post(rng),
        230..400 => random_receive(rng),
        400..650 if waiting > 0 => {
            let place = place(rng);
            Step::Arrive { place, stays: rng.chance(10_000), marked: rng.chance(1_000) }
        }
        650..655 if waiting > 0 => Step::Lose { place: place(rng) },
        655..970 => Step::Drain { slot: rng.chance(800_000) },
        970..980 => Step::Timeout,
        980..986 => Step::DelayAck(rng.chance(500_000)),
        986..990 => Step::AckFirst(rng.chance(500_000)),
        990..992 => Step::PreferDirect(rng.chance(500_000)),
        992 => Step::Gone(rng.chance(10_000)),
        993 => Step::Register(rng.chance(980_000)),
        994 => Step::Remote(if rng.chance(980_000) { ram::Remote::ALL } else { ram::Remote::NONE }),
        995 => Step::State(if rng.chance(900_000) { QpState::Rts } else { QpState::Sqd }),
        996 => Step::Access(rng.chance(980_000)),
        997 if rng.chance(100_000) => Step::State(QpState::Error),
        _ => Step::Drain { slot: false },
    }
}

/// Takes `steps` random steps with a pair that has the straight way and one that has not. Returns how many packets
/// left and arrived on the straight way.
fn compare(seed: u64, steps: u64) -> [u64; 2] {
    let mut rng = Rng::new(seed);
    let setup = Setup {
        mtu: [PathMtu::B256, PathMtu::B1024][rng.below(2) as usize],
        caps: ferroce_proto::QpCaps {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: 64,
        },
        rd_atomic: 4,
        // Small enough to stop it now and then.
        rcvbuf: [1 << 20, 8 << 10][rng.below(2) as usize],
        selective_repeat: [SelectiveRepeat::Off, SelectiveRepeat::Offered, SelectiveRepeat::Agreed]
            [rng.below(3) as usize],
        ecn: rng.chance(300_000),
        min_rnr_timer: 1,
        timeout: 8,
        psn: [0xff_fff0, 5],
        ..Setup::default()
    };
    let mut pairs = [true, false].map(|straight| Pair::new(setup, straight));
    let (mut now, mut arrived) = (Instant::ZERO, 0);
    let mut known = [(Counters::default(), QpState::Reset); 2];
    for number in 0..steps {
        now += Duration::from_nanos(if rng.chance(2_000) { 3_000_000 } else { rng.below(3_000) });
        let side = rng.below(2) as usize;
        let is_over = pairs[0].ends.iter().any(|end| end.qp.state() == QpState::Error);
        let step = random_step(&mut rng, pairs[0].wires[side].len(), is_over);
        let [straight, machine] = pairs.each_mut().map(|pair| pair.take(now, side, &step));
        assert_eq!(straight, machine, "seed {seed}, step {number}: {step:?}");
        let events = pairs.each_mut().map(|pair| {
            pair.ends.each_mut().map(|end| {
                let counters = *end.qp.counters();
                (
                    std::mem::take(&mut end.sends),
                    std::mem::take(&mut end.recvs),
                    std::mem::take(&mut end.asyncs),
                    counters,
                )
            })
        });
        assert_eq!(events[0], events[1], "seed {seed}, step {number}: {step:?}");
        let is_taken = matches!(step, Step::Arrive { .. }) && straight.result.is_ok();
        for (end, known) in pairs[0].ends.iter_mut().zip(&mut known) {
            let (counters, state) = (*end.qp.counters(), end.qp.state());
            let Counters { sent_pkts, rcvd_pkts, sent_acks, rdma_sends, rdma_recvs, .. } = counters;
            if !end.qp.take_strayed() {
                let few = Counters { sent_pkts, rcvd_pkts, sent_acks, rdma_sends, rdma_recvs, ..known.0 };
                assert_eq!((counters, state), (few, known.1), "seed {seed}, step {number}: {step:?}");
                arrived += u64::from(is_taken && counters.rcvd_pkts != known.0.rcvd_pkts);
            }
            *known = (counters, state);
        }
        if number % 1024 == 0 {
            let [straight, machine] = pairs.each_ref().map(Pair::state);
            assert!(straight == machine, "seed {seed}, step {number}: {step:?}\n{straight}\n{machine}");
        }
    }
    [pairs[0].slots, arrived]
}

/// Compares in `steps` steps, of which some go the straight way.
fn compare_all(seed: &Seed, steps: u64) {
    assert_eq!(ram::inline_addr(&[0x5a; 64]), INLINE);
    let mut rng = seed.rng();
    let runs = steps / RUN;
    let sum = |a: [u64; 2], b: [u64; 2]| [a[0] + b[0], a[1] + b[1]];
    let straight = (0..runs).map(|_| compare(rng.next_u64(), RUN)).fold([0; 2], sum);
    assert!(straight[0] > steps / 200 && straight[1] > steps / 50, "left and arrived: {straight:?}");
}

#[test]
fn nothing_tells_the_straight_way_from_the_state_machine() {
    compare_all(&Seed::for_test("nothing_tells_the_straight_way_from_the_state_machine", 31), STEPS);
}

#[test]
#[ignore = "takes a minute or two"]
fn nothing_tells_them_apart_in_ten_million_steps() {
    compare_all(&Seed::for_test("nothing_tells_them_apart_in_ten_million_steps", 32), 10_000_000);
}
