//! Completion counters on iWARP.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_proto::{CompletionCounter, CounterUnit, QpState, Remote, SendOp};
use ferroce_wire::{Imm, Rkey};

use crate::world::{CONFIG, World, remote};

/// The bits of the peer's operations in `ibv_qp_attach_comp_cntr_op`.
const REMOTE_READ: u32 = 8;
const REMOTE_WRITE: u32 = 32;

/// A world whose second end counts the reads and the writes of the first, in octets.
fn counting(in_place: bool) -> (World, [Arc<CompletionCounter>; 2]) {
    let counters = [REMOTE_READ, REMOTE_WRITE].map(|_| Arc::new(CompletionCounter::new(CounterUnit::Octets)));
    let attached = counters.clone();
    let mut world = World::prepared(&CONFIG, 1448, 1448, |ends| {
        for (counter, ops) in attached.iter().zip([REMOTE_READ, REMOTE_WRITE]) {
            ends[1].qp.attach_counter(counter, ops).unwrap();
        }
    });
    world.ends.iter_mut().for_each(|end| end.in_place = in_place);
    (world, counters)
}

fn counted(counter: &CompletionCounter) -> (u64, u64) {
    (counter.completed().load(Ordering::Acquire), counter.failed().load(Ordering::Acquire))
}

#[test]
fn reads_and_writes_count_at_their_target() {
    for in_place in [false, true] {
        let (mut world, [reads, writes]) = counting(in_place);
        let [a, b] = &mut world.ends;
        b.post_recv(1, 0, 100);
        a.post(1, SendOp::Write { remote: remote(0) }, 0, 100_000);
        a.post(2, SendOp::Write { remote: remote(0) }, 0, 0);
        a.post(3, SendOp::WriteImm { remote: remote(0), imm: Imm([0; 4]) }, 0, 23);
        a.post(4, SendOp::Read { remote: remote(0) }, 0, 50_000);
        a.post(5, SendOp::Read { remote: remote(0) }, 0, 7);
        world.run();
        assert_eq!(world.ends[0].completions.len(), 5);
        assert_eq!(counted(&writes), (100_023, 0), "in place: {in_place}");
        assert_eq!(counted(&reads), (50_007, 0), "in place: {in_place}");
    }
}

#[test]
fn refused_ones_count_as_errors() {
    let nowhere = Remote { addr: 0, rkey: Rkey::new(0xdead) };
    for (op, failed) in
        [(SendOp::Read { remote: nowhere }, [1, 0]), (SendOp::Write { remote: nowhere }, [0, 1])]
    {
        let (mut world, counters) = counting(false);
        world.ends[0].post(1, op, 0, 10);
        world.run();
        assert_eq!(world.ends[1].qp.state(), QpState::Error);
        assert_eq!(counters.map(|counter| counted(&counter)), failed.map(|failed| (0, failed)));
    }
}
