//! Completion counters on reliable and unreliable connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_proto::{
    AttachCounterError, COUNTED_OPS, CompletionCounter, CounterUnit, QpAttr, QpAttrMask, QpState, QueuePair,
    RecvWr, Remote, SendOp, SendWr, Service, Sge, WcStatus,
};
use ferroce_wire::{Imm, Lkey, PathMtu, Rkey};

use crate::ram::Ram;
use crate::world::{Setup, World};

const SECOND: Duration = Duration::from_secs(1);
const KEY: u32 = 1;
const OCTETS: u32 = 10_000;

/// The bits of `ibv_qp_attach_comp_cntr_op`.
const SEND: u32 = 1;
const RECV: u32 = 2;
const RDMA_READ: u32 = 4;
const REMOTE_READ: u32 = 8;
const RDMA_WRITE: u32 = 16;
const REMOTE_WRITE: u32 = 32;

fn memory() -> Ram {
    let mut ram = Ram::default();
    ram.register(KEY, 0, vec![7; OCTETS as usize]);
    ram
}

fn counter(unit: CounterUnit) -> Arc<CompletionCounter> {
    Arc::new(CompletionCounter::new(unit))
}

/// The successes and the failures.
fn counted(counter: &CompletionCounter) -> (u64, u64) {
    (counter.completed().load(Ordering::Acquire), counter.failed().load(Ordering::Acquire))
}

const fn sge(length: u32) -> Sge {
    Sge { addr: 0, length, lkey: Lkey::new(KEY) }
}

const fn remote(key: u32) -> Remote {
    Remote { addr: 0, rkey: Rkey::new(key) }
}

fn reset(qp: &mut QueuePair) {
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

/// Six counters, one for each operation: number 0 counts sends.
type Six = [Arc<CompletionCounter>; 6];

/// Two connected ends and six counters of each.
fn counting(setup: &Setup, unit: CounterUnit) -> (World<'static, Ram>, [Six; 2]) {
    let mut world = World::connected(setup, [memory(), memory()]);
    let counters = [0, 1].map(|side| {
        let qp = &mut world.ends[side].qp;
        reset(qp);
        let six: Six = std::array::from_fn(|_| counter(unit));
        for (bit, counter) in six.iter().enumerate() {
            qp.attach_counter(counter, 1 << bit).unwrap();
        }
        setup.bring(qp, side, QpState::Rts);
        six
    });
    (world, counters)
}

fn all(six: &Six) -> [(u64, u64); 6] {
    std::array::from_fn(|index| counted(&six[index]))
}

fn post(world: &mut World<'_, Ram>, op: SendOp, length: u32, signaled: bool) {
    let end = &mut world.ends[0];
    let sges = [sge(length)];
    let wr = SendWr { signaled, ..SendWr::signaled(1, op, &sges) };
    end.qp.post_send(&wr, &end.mem).unwrap();
}

fn receive(world: &mut World<'_, Ram>, count: u64) {
    for wr_id in 0..count {
        world.ends[1].qp.post_recv(&RecvWr { wr_id, sges: &[sge(OCTETS)] }).unwrap();
    }
}

/// Each operation counts at both ends, signaled or not, on the straight way and without it; atomics do not.
#[test]
fn every_operation_counts_once() {
    for (straight, unit) in [true, false]
        .into_iter()
        .flat_map(|straight| [CounterUnit::Requests, CounterUnit::Octets].map(|unit| (straight, unit)))
    {
        let setup = Setup { mtu: PathMtu::B1024, ..Setup::default() };
        let (mut world, [ours, theirs]) = counting(&setup, unit);
        world.ends.iter_mut().for_each(|end| end.qp.use_straight_way(straight));
        receive(&mut world, 4);
        for (op, length) in [
            (SendOp::Send, 10),
            (SendOp::SendImm(Imm([0; 4])), 2000),
            (SendOp::Send, 0),
            (SendOp::Write { remote: remote(KEY) }, 100),
            (SendOp::Write { remote: remote(KEY) }, 5000),
            (SendOp::WriteImm { remote: remote(KEY), imm: Imm([0; 4]) }, 30),
            (SendOp::Read { remote: remote(KEY) }, 7000),
            (SendOp::Read { remote: remote(KEY) }, 8),
            (SendOp::FetchAdd { remote: remote(KEY), add: 1 }, 8),
        ] {
            post(&mut world, op, length, length % 20 != 0);
        }
        world.run(SECOND);
        let amounts = |values: [u64; 6]| values.map(|value| (value, 0));
        let (at_ours, at_theirs) = match unit {
            CounterUnit::Requests => ([3, 0, 2, 0, 3, 0], [0, 4, 0, 2, 0, 3]),
            CounterUnit::Octets => ([2010, 0, 7008, 0, 5130, 0], [0, 2040, 0, 7008, 0, 5130]),
        };
        assert_eq!(all(&ours), amounts(at_ours), "straight: {straight}");
        assert_eq!(all(&theirs), amounts(at_theirs), "straight: {straight}");
    }
}

/// A request that is sent again counts once.
#[test]
fn losses_do_not_count_twice() {
    let setup = Setup { mtu: PathMtu::B1024, ..Setup::default() };
    let (mut world, [ours, theirs]) = counting(&setup, CounterUnit::Requests);
    let mut packets = 0;
    world.tamper = Some(Box::new(move |_, to, frame| {
        packets += 1;
        if packets % 7 == 3 { Vec::new() } else { vec![(Duration::ZERO, to, frame)] }
    }));
    receive(&mut world, 10);
    for _ in 0..10 {
        post(&mut world, SendOp::Send, 3000, false);
        post(&mut world, SendOp::Write { remote: remote(KEY) }, 3000, true);
        post(&mut world, SendOp::Read { remote: remote(KEY) }, 5000, true);
    }
    world.run(SECOND * 20);
    assert_eq!(all(&ours), [(10, 0), (0, 0), (10, 0), (0, 0), (10, 0), (0, 0)]);
    assert_eq!(all(&theirs), [(0, 0), (10, 0), (0, 0), (10, 0), (0, 0), (10, 0)]);
}

#[test]
fn refusals_and_flushes_count_as_errors() {
    for (op, bits) in [
        (SendOp::Write { remote: remote(KEY + 1) }, (RDMA_WRITE, REMOTE_WRITE)),
        (SendOp::Read { remote: remote(KEY + 1) }, (RDMA_READ, REMOTE_READ)),
    ] {
        let (mut world, [ours, theirs]) = counting(&Setup::default(), CounterUnit::Octets);
        receive(&mut world, 2);
        post(&mut world, op, 100, false);
        post(&mut world, SendOp::Send, 100, false);
        world.run(SECOND);
        assert_eq!(world.ends[0].sends[0].status, WcStatus::RemAccessErr);
        let failed = |six: &Six| {
            all(six).iter().enumerate().fold(0, |mask, (bit, &(completed, failed))| {
                assert_eq!(completed, 0);
                mask | u32::from(failed > 0) << bit
            })
        };
        assert_eq!(failed(&ours), bits.0 | SEND);
        assert_eq!(failed(&theirs), bits.1 | RECV);
        assert_eq!(counted(&theirs[1]), (0, 2), "both receives were flushed");
    }
}

#[test]
fn unreliable_connections_count_too() {
    let setup = Setup { service: Service::Uc, mtu: PathMtu::B1024, ..Setup::default() };
    let (mut world, [ours, theirs]) = counting(&setup, CounterUnit::Octets);
    receive(&mut world, 2);
    for length in [0, 12, 3000] {
        post(&mut world, SendOp::Write { remote: remote(KEY) }, length, false);
    }
    post(&mut world, SendOp::WriteImm { remote: remote(KEY), imm: Imm([0; 4]) }, 2000, true);
    post(&mut world, SendOp::Send, 1500, true);
    world.run(SECOND);
    assert_eq!(all(&ours), [(1500, 0), (0, 0), (0, 0), (0, 0), (5012, 0), (0, 0)]);
    assert_eq!(all(&theirs), [(0, 0), (3500, 0), (0, 0), (0, 0), (0, 0), (5012, 0)]);
}

/// The peer's process does not see a direct copy, so what a counter counts at the target takes packets.
#[test]
fn what_is_counted_at_the_target_takes_packets() {
    for (ops, write, read) in [
        (SEND | RECV | RDMA_READ | RDMA_WRITE, true, true),
        (REMOTE_READ, true, false),
        (REMOTE_WRITE, false, true),
    ] {
        let setup = Setup::default();
        let mut qp = setup.queue_pair(0);
        qp.attach_counter(&counter(CounterUnit::Requests), ops).unwrap();
        setup.bring(&mut qp, 0, QpState::Rts);
        let target = qp.direct_target().unwrap();
        assert_eq!((target.write, target.read), (write, read));
    }
}

#[test]
fn counters_are_attached_in_reset_and_init_alone_and_once_for_an_operation() {
    let setup = Setup::default();
    let mut qp = setup.queue_pair(0);
    let (one, two) = (counter(CounterUnit::Requests), counter(CounterUnit::Requests));
    assert_eq!(qp.attach_counter(&one, 0), Err(AttachCounterError::NoOperation));
    let unknown = COUNTED_OPS + 1;
    assert_eq!(qp.attach_counter(&one, unknown | SEND), Err(AttachCounterError::Operations { unknown }));
    qp.attach_counter(&one, SEND | RECV).unwrap();
    assert_eq!(qp.attach_counter(&two, RDMA_READ | RECV), Err(AttachCounterError::Taken { ops: RECV }));
    setup.bring(&mut qp, 0, QpState::Init);
    qp.attach_counter(&two, RDMA_READ).unwrap();
    setup.bring(&mut qp, 0, QpState::Rtr);
    let late = qp.attach_counter(&two, RDMA_WRITE);
    assert_eq!(late, Err(AttachCounterError::State(QpState::Rtr)));
    // RESET detaches nothing.
    reset(&mut qp);
    assert_eq!(qp.attach_counter(&two, SEND), Err(AttachCounterError::Taken { ops: SEND }));
    assert!(!one.end() && !two.end());
    qp.detach_counters();
    assert!(one.end());
    assert_eq!(qp.attach_counter(&one, SEND), Err(AttachCounterError::Ended));
    qp.attach_counter(&two, COUNTED_OPS).unwrap();
    drop(qp);
    assert!(two.end());
}
