//! Marks of the network become CNPs, and CNPs slow the sender down (RoCEv2 annex A17.9).

use std::time::Duration;

use ferroce_proto::{
    CongestionControl, Counters, NoSharedQueue, QpAttr, QpAttrMask, QpState, QueuePair, Remote, SendOp,
    SendWr, Sge,
};
use ferroce_wire::{
    BatchLimits, Bth, Flow, IcrcStatus, Instant, Lkey, Operation, Packet, PathMtu, Pkey, Psn, RcPacket,
    Request, Reth, Rkey, TxBatch,
};

use crate::probe::{ACK, Probe, local, remote, reth};
use crate::ram::Ram;
use crate::world::{Bottleneck, QPNS, Setup, World, flow};

const KEY: u32 = 1;
const LEN: u32 = 64 << 10;
const DEPTH: u64 = 16;
/// 1 Gbit/s: what the windows allow fills its queue.
const RATE: u64 = 125_000_000;
const MARK_ABOVE: Duration = Duration::from_micros(100);

/// A queue pair whose packets say that marks are understood.
fn capable(setup: &Setup, side: usize, mode: CongestionControl) -> QueuePair {
    let mut qp = setup.queue_pair(side);
    qp.set_congestion_control(mode);
    Setup { ecn: true, ..*setup }.bring(&mut qp, side, QpState::Rts);
    qp
}

struct Outcome {
    /// Of the path's rate, payload alone, in the second half.
    share: f64,
    /// Longest wait for the link in the second half.
    longest: Duration,
    marked: u64,
    /// Counters of the end that sends the data, and of the other.
    sender: Counters,
    receiver: Counters,
}

/// 40 MB by WRITE or READ over a link that marks.
fn transfer(op: SendOp, mode: CongestionControl) -> Outcome {
    let setup = Setup { mtu: PathMtu::B1024, rcvbuf: 4 << 20, ..Setup::default() };
    let memory = |fill| {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![fill; LEN as usize]);
        ram
    };
    let mut world = World::connected(&setup, [memory(1), memory(2)]);
    for side in 0..2 {
        world.ends[side].qp = capable(&setup, side, mode);
    }
    world.quiet = true;
    world.bottleneck = Some(Bottleneck::new(RATE, MARK_ABOVE));
    let sges = [Sge { addr: 0, length: LEN, lkey: Lkey::new(KEY) }];
    let (mut posted, mut completed, total) = (0, 0, 640);
    let data = usize::from(matches!(op, SendOp::Read { .. }));
    let mut half = Instant::ZERO;
    while completed < total {
        while posted < total && posted - completed < DEPTH {
            let end = &mut world.ends[0];
            end.qp.post_send(&SendWr::signaled(posted, op, &sges), &end.mem).unwrap();
            posted += 1;
        }
        world.drain(0);
        assert!(world.step());
        let before = completed;
        for completion in world.ends[0].sends.drain(..) {
            assert_eq!((completion.wr_id, completion.status), (completed, ferroce_proto::WcStatus::Success));
            completed += 1;
        }
        if before < total / 2 && completed >= total / 2 {
            half = world.now;
            world.bottleneck.as_mut().unwrap().longest = Default::default();
        }
    }
    let bottleneck = world.bottleneck.take().unwrap();
    let counters = [0, 1].map(|side| *world.ends[side].qp.counters());
    let octets = (total / 2 * u64::from(LEN)) as f64;
    Outcome {
        share: octets / (world.now.saturating_since(half).as_secs_f64() * RATE as f64),
        longest: bottleneck.longest[1 - data],
        marked: bottleneck.marked,
        sender: counters[data],
        receiver: counters[1 - data],
    }
}

fn write() -> SendOp {
    SendOp::Write { remote: Remote { addr: 0, rkey: Rkey::new(KEY) } }
}

fn read() -> SendOp {
    SendOp::Read { remote: Remote { addr: 0, rkey: Rkey::new(KEY) } }
}

#[test]
fn marks_shorten_the_queue_and_the_link_stays_in_use() {
    for op in [write(), read()] {
        let [without, with] =
            [CongestionControl::Off, CongestionControl::Full].map(|mode| transfer(op, mode));
        assert_eq!(without.receiver.np_cnp_sent, 0);
        assert!(with.marked > 0 && with.receiver.np_cnp_sent > 0, "{op:?}");
        assert!(with.longest * 2 < without.longest, "{op:?}: {:?} of {:?}", with.longest, without.longest);
        assert!(with.share > 0.8, "{op:?}: {} of {}", with.share, without.share);
    }
}

#[test]
fn each_notification_is_counted_by_both_ends() {
    let outcome = transfer(write(), CongestionControl::Full);
    let sent = outcome.receiver.np_cnp_sent;
    assert_eq!(outcome.sender.rcvd_cnps, sent);
    assert_eq!(outcome.sender.rp_cnp_handled + outcome.sender.rp_cnp_ignored, sent);
    assert!(outcome.sender.rp_cnp_handled > 0);
    assert_eq!(outcome.receiver.rcvd_ecn_marked, outcome.marked);
    assert!(sent < outcome.marked, "not one for each mark");
    assert_eq!(outcome.sender.resent_pkts, 0);
}

#[test]
fn without_the_reaction_notifications_change_nothing() {
    let quiet = transfer(write(), CongestionControl::Off);
    assert_eq!((quiet.sender.rcvd_cnps, quiet.receiver.np_cnp_sent), (0, 0));
    assert!(quiet.receiver.rcvd_ecn_marked > 0);
}

/// The receiver answers no mark with a CNP, so only longer round trips show the queue.
#[test]
fn a_queue_slows_down_the_growth_of_the_window_unless_that_is_off() {
    let [off, react] =
        [CongestionControl::Off, CongestionControl::React].map(|mode| transfer(write(), mode).longest);
    assert!(react * 2 < off, "{react:?} of {off:?}");
}

/// The octets that 64 KiB WRITEs over a link of 1 Gbit/s bring in the second half of a second, while a forger
/// sends a CNP in the peer's name in each period of `every`. Also the counters of the sender.
fn flooded(ecn: bool, every: Option<Duration>) -> (u64, Counters) {
    let setup = Setup { mtu: PathMtu::B1024, rcvbuf: 4 << 20, ecn, ..Setup::default() };
    let memory = || {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; LEN as usize]);
        ram
    };
    let mut world = World::connected(&setup, [memory(), memory()]);
    world.quiet = true;
    world.bottleneck = Some(Bottleneck::new(RATE, Duration::from_secs(1)));
    let cnp = Packet { bth: Bth::new(QPNS[0], Psn::new(0)), op: Operation::Cnp, icrc: IcrcStatus::Checked };
    let sges = [Sge { addr: 0, length: LEN, lkey: Lkey::new(KEY) }];
    let (start, end) = (Instant::from_nanos(500_000_000), Instant::from_nanos(1_000_000_000));
    let (mut outstanding, mut octets, mut next) = (0, 0, Instant::from_nanos(50_000_000));
    while world.now < end {
        while outstanding < DEPTH {
            let end = &mut world.ends[0];
            end.qp.post_send(&SendWr::signaled(0, write(), &sges), &end.mem).unwrap();
            outstanding += 1;
        }
        world.drain(0);
        assert!(world.step());
        if let Some(every) = every
            && world.now >= next
        {
            next = world.now + every;
            let end = &mut world.ends[0];
            end.qp.handle_datagram(world.now, &flow(1), &cnp, &mut NoSharedQueue, &mut end.mem).unwrap();
        }
        let done = std::mem::take(&mut world.ends[0].sends).len() as u64;
        outstanding -= done;
        octets += if world.now >= start { done * u64::from(LEN) } else { 0 };
    }
    (octets, *world.ends[0].qp.counters())
}

/// Nobody marks packets that do not carry ECT, so the peer sends no CNP: those that come are forged.
#[test]
fn a_path_without_ect_ignores_notifications() {
    let ((quiet, _), (flooded, counters)) =
        (flooded(false, None), flooded(false, Some(Duration::from_millis(1))));
    assert_eq!(flooded, quiet);
    assert!(counters.rcvd_cnps > 500 && counters.rp_cnp_handled == 0, "{counters:?}");
    assert_eq!(counters.rp_cnp_ignored, counters.rcvd_cnps);
}

/// On a path with ECT a flood of CNPs takes the rate to the 64th part at worst. Without that bound 0.1 % were left.
#[test]
fn a_flood_of_notifications_leaves_a_64th_of_the_rate() {
    let (quiet, _) = flooded(true, None);
    for micros in [10_000, 1000, 100] {
        let (flooded, counters) = flooded(true, Some(Duration::from_micros(micros)));
        println!("a CNP in {micros} us: {flooded} octets of {quiet}");
        assert!(counters.rp_cnp_handled > 50, "{counters:?}");
        assert!(flooded >= quiet / 64, "{flooded} of {quiet}");
    }
}

/// RESET forgets a CNP that is due, which had no queue pair to go to, and the rate of the connection that has ended. Found by `qp_sequence`.
#[test]
fn reset_forgets_congestion() {
    let setup = Setup { ecn: true, ..Setup::default() };
    let mut qp = capable(&setup, 0, CongestionControl::Full);
    let mut mem = Ram::default();
    mem.register(KEY, 0, vec![0; LEN as usize]);
    let from = Flow { traffic_class: Flow::CONGESTION_EXPERIENCED, ..flow(1) };
    let packet = |psn, op| {
        let bth = Bth {
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: QPNS[0],
            ack_req: false,
            extended: false,
            psn: Psn::new(psn),
        };
        Packet { bth, op, icrc: IcrcStatus::Checked }
    };
    let reth = Reth { va: 0, rkey: Rkey::new(KEY), dma_len: 1 };
    let write = Request::WriteOnly { reth, payload: &[1], imm: None };
    let marked = packet(setup.psn[1], Operation::Rc(RcPacket::Request(write)));
    let notice = packet(0, Operation::Cnp);
    for packet in [&marked, &notice] {
        qp.handle_datagram(Instant::ZERO, &from, packet, &mut NoSharedQueue, &mut mem).unwrap();
    }
    assert_eq!(qp.counters().rp_cnp_handled, 1);

    qp.modify(&QpAttr::default(), QpAttrMask::STATE).unwrap();
    let mut buffer = vec![0; 8192];
    let mut batch = TxBatch::new(&mut buffer, BatchLimits { max_segments: 64, gso: false });
    assert!(!qp.poll_transmit(Instant::ZERO, &mut mem, &mut batch), "there is nobody to send to");
    setup.bring(&mut qp, 0, QpState::Rts);
    assert!(!qp.poll_transmit(Instant::ZERO, &mut mem, &mut batch), "the peer is another one");
    // Two CNPs of one round trip would slow one connection down once.
    qp.handle_datagram(Instant::ZERO, &from, &notice, &mut NoSharedQueue, &mut mem).unwrap();
    assert_eq!(qp.counters().rp_cnp_handled, 2);
}

/// A queue pair that CNPs have slowed down to the least rate, 8 us an octet, as a round trip of 50 ms lets them.
/// One packet was sent before.
fn slow() -> Probe {
    let setup = Setup { early_resends: false, timeout: 0, ecn: true, ..Setup::default() };
    let mut qp = setup.queue_pair(0);
    qp.set_congestion_control(CongestionControl::React);
    let mut probe = Probe::with_queue_pair(setup, qp);
    probe.post(0, SendOp::Write { remote: remote(0) }, &[local(0, 8)]);
    probe.out();
    probe.wait(Duration::from_millis(50));
    probe.ack(0, ACK).unwrap();
    probe.sends();
    for _ in 0..12 {
        notify(&mut probe);
        probe.wait(Duration::from_millis(50));
    }
    probe
}

fn notify(probe: &mut Probe) {
    let packet =
        Packet { bth: Bth::new(QPNS[0], Psn::new(0)), op: Operation::Cnp, icrc: IcrcStatus::Checked };
    let end = &mut probe.end;
    end.qp.handle_datagram(probe.now, &flow(1), &packet, &mut NoSharedQueue, &mut end.mem).unwrap();
}

/// Returns the packets that leave within `time`. `each` answers every one of them, and CNPs keep the queue pair slow.
fn sends_slowly(probe: &mut Probe, time: Duration, each: impl Fn(&mut Probe, &str)) -> Vec<String> {
    let (until, mut noticed, mut all) = (probe.now + time, probe.now, Vec::new());
    let mut said = probe.out();
    while probe.now < until {
        while !said.is_empty() {
            said.iter().for_each(|text| each(probe, text));
            all.append(&mut said);
            said = probe.out();
        }
        if probe.now.saturating_since(noticed) >= Duration::from_millis(10) {
            notify(probe);
            noticed = probe.now;
        }
        said = probe.wait(Duration::from_micros(100)).into_iter().map(|(_, text)| text).collect();
    }
    all.append(&mut said);
    all
}

/// An answer to a READ is longer than the requests of this end. They take turns: otherwise each small request would take the octets that
/// the answer waits for, and all the ACKs that wait behind the answer would come too late for the peer.
#[test]
fn requests_leave_octets_for_the_answer_to_a_read() {
    let mut probe = slow();
    for wr_id in 0..60 {
        probe.post(wr_id, SendOp::Write { remote: remote(0) }, &[local(0, 8)]);
    }
    probe.request(0, Request::ReadRequest { reth: reth(0, 1024) }).unwrap();
    let said = sends_slowly(&mut probe, Duration::from_millis(400), |probe, text| {
        if let Some(rest) = text.strip_prefix("write_only ") {
            probe.ack(rest.split(' ').next().unwrap().parse().unwrap(), ACK).unwrap();
        }
    });
    let answer = said.iter().position(|text| text.starts_with("read_only 0 ")).expect("it leaves");
    assert!(answer < 8, "behind {answer} requests");
    assert_eq!(said.len(), 61, "all leave");
    assert_eq!(probe.sends().len(), 60);
}

/// Nor do small answers take the octets that a longer request waits for.
#[test]
fn answers_to_reads_leave_octets_for_requests() {
    let mut probe = slow();
    let read = Request::ReadRequest { reth: reth(0, 8) };
    (0..4).for_each(|psn| probe.request(psn, read).unwrap());
    probe.post(1, SendOp::Write { remote: remote(0) }, &[local(0, 1024)]);
    let said = sends_slowly(&mut probe, Duration::from_millis(400), |probe, text| {
        // For each answer the peer asks once more.
        if let Some(rest) = text.strip_prefix("read_only ") {
            let psn: u32 = rest.split(' ').next().unwrap().parse().unwrap();
            if psn < 56 {
                probe.request(psn + 4, read).unwrap();
            }
        }
    });
    let request = said.iter().position(|text| text.starts_with("write_only 1 ")).expect("it leaves");
    assert!(request < 8, "behind {request} answers");
    assert_eq!(said.len(), 61, "all leave");
}

/// A request whose turn it is may not leave any more. The answers behind it do not wait for it.
#[test]
fn a_turn_that_is_not_used_passes() {
    let mut probe = slow();
    (0..3).for_each(|psn| probe.request(psn, Request::ReadRequest { reth: reth(0, 1024) }).unwrap());
    probe.post(1, SendOp::Write { remote: remote(0) }, &[local(0, 1024)]);
    // The first answer takes the octets that there are.
    let mut said = Vec::new();
    while said.is_empty() {
        said = sends_slowly(&mut probe, Duration::from_micros(100), |_, _| {});
    }
    assert_eq!(said, ["read_only 0 [1024] msn 1"]);
    probe.to(QpState::Sqd);
    let said = sends_slowly(&mut probe, Duration::from_millis(100), |_, _| {});
    assert_eq!(said, ["read_only 1 [1024] msn 2", "read_only 2 [1024] msn 3"]);
}
