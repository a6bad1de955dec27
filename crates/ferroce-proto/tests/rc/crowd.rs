//! Many queue pairs of one process share its budget: nobody exceeds it for long, and nobody is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_proto::{Budget, QpState, Remote, SendOp, SendWr, Sge, WcStatus};
use ferroce_sim::{Rng, rules};
use ferroce_wire::{Instant, Lkey, Rkey};

use crate::ram::Ram;
use crate::world::{ADDRESSES, Setup, World};

const KEY: u32 = 1;
const LEN: u32 = 30_000;
const CROWD: usize = 24;
const MESSAGES: u64 = 20;

/// The worlds whose queue pairs wait for their turn, in the order in which they began to wait, as the engine gives turns.
#[derive(Default)]
struct Line(VecDeque<usize>);

impl Line {
    /// World `index` may have begun to wait; what came to pass there may have made room.
    fn follow(&mut self, worlds: &mut [World<'_, Ram>], index: usize, now: Instant) {
        if worlds[index].ends[0].qp.waits_for_budget() && !self.0.contains(&index) {
            self.0.push_back(index);
        }
        while let Some(first) = self.0.pop_front() {
            let world = &mut worlds[first];
            world.now = world.now.max(now);
            let before = world.ends[0].qp.counters().sent_pkts;
            world.drain(0);
            let sent = world.ends[0].qp.counters().sent_pkts - before;
            if !world.ends[0].qp.waits_for_budget() {
                continue;
            }
            if sent == 0 {
                self.0.push_front(first);
                return;
            }
            self.0.push_back(first);
        }
    }
}

/// The greatest use of the budget for reads and of that for the destination, and when all was done.
fn run(op: SendOp, loss: u32, dead: usize, turns: bool) -> (u64, u64, Instant) {
    let setup = Setup { rcvbuf: 64 << 10, timeout: 16, ..Setup::default() };
    let budget = if turns { Budget::with_turns(setup.rcvbuf) } else { Budget::new(setup.rcvbuf) };
    let budget = Arc::new(budget);
    let memory = || {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; LEN as usize]);
        ram
    };
    let mut rng = Rng::new(1);
    let mut worlds: Vec<World<'_, Ram>> = (0..CROWD)
        .map(|index| {
            let mut world = World::connected(&setup, [memory(), memory()]);
            let mut qp = setup.with_budget(0, budget.clone());
            setup.bring(&mut qp, 0, QpState::Rts);
            world.ends[0].qp = qp;
            world.quiet = true;
            let loss = if index < dead { 1_000_000 } else { loss };
            world.network.rule(rules::loss(rng.fork(), loss));
            let sges = [Sge { addr: 0, length: LEN, lkey: Lkey::new(KEY) }];
            for wr_id in 0..MESSAGES {
                let wr = SendWr::signaled(wr_id, op, &sges);
                let end = &mut world.ends[0];
                end.qp.post_send(&wr, &end.mem).unwrap();
            }
            world.drain(0);
            world
        })
        .collect();
    let (mut reads, mut destination) = (0, 0);
    let mut line = Line::default();
    if turns {
        (0..CROWD).for_each(|index| line.follow(&mut worlds, index, Instant::ZERO));
    }
    loop {
        reads = reads.max(budget.reads_in_use());
        destination = destination.max(budget.destination_in_use(ADDRESSES[1]));
        // The world with the earliest event comes next.
        let next = worlds.iter().enumerate().filter_map(|(index, world)| Some((world.next()?, index))).min();
        let Some((now, index)) = next else { panic!("everybody sleeps") };
        worlds[index].step();
        if turns {
            line.follow(&mut worlds, index, now);
        }
        if worlds[dead..].iter().all(|world| world.ends[0].sends.len() as u64 == MESSAGES) {
            let completions = worlds[dead..].iter().flat_map(|world| &world.ends[0].sends);
            assert!(completions.into_iter().all(|completion| completion.status == WcStatus::Success));
            drop(worlds);
            assert_eq!((budget.reads_in_use(), budget.destination_in_use(ADDRESSES[1])), (0, 0));
            return (reads, destination, now);
        }
    }
}

fn remote() -> Remote {
    Remote { addr: 0, rkey: Rkey::new(KEY) }
}

#[test]
fn reads_never_exceed_a_quarter_of_the_buffer() {
    for (loss, turns) in [(0, false), (20_000, false), (0, true), (20_000, true)] {
        let (reads, _, done) = run(SendOp::Read { remote: remote() }, loss, 0, turns);
        assert!(reads <= 16 << 10, "{reads}");
        assert!(done.as_nanos() < 5_000_000_000, "{done:?}");
    }
}

#[test]
fn writes_to_one_address_share_half_of_the_buffer() {
    for (loss, turns) in [(0, false), (20_000, false), (0, true), (20_000, true)] {
        let (_, destination, done) = run(SendOp::Write { remote: remote() }, loss, 0, turns);
        assert!(destination <= 32 << 10, "{destination}");
        assert!(done.as_nanos() < 5_000_000_000, "{done:?}");
    }
}

/// Packets to peers that never answer do not stop the other queue pairs.
#[test]
fn dead_peers_do_not_hold_the_budget() {
    for turns in [false, true] {
        for op in [SendOp::Read { remote: remote() }, SendOp::Write { remote: remote() }] {
            let (_, _, done) = run(op, 0, CROWD / 2, turns);
            assert!(done.as_nanos() < 5_000_000_000, "{op:?} {done:?}");
        }
    }
}
