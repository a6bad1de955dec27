//! Many queue pairs of one process share its budget: nobody exceeds it for long, and nobody is forgotten.

use std::sync::Arc;

use ferroce_proto::{Budget, QpState, Remote, SendOp, SendTo, SendWr, Sge, WcStatus};
use ferroce_sim::{Rng, rules};
use ferroce_wire::{Instant, Lkey, Rkey};

use crate::ram::Ram;
use crate::world::{ADDRESSES, Setup, World};

const KEY: u32 = 1;
const LEN: u32 = 30_000;
const CROWD: usize = 24;
const MESSAGES: u64 = 20;

/// The greatest use of the budget for reads and of that for the destination, and when all was done.
fn run(op: SendOp, loss: u32, dead: usize) -> (u64, u64, Instant) {
    let setup = Setup { rcvbuf: 64 << 10, timeout: 16, ..Setup::default() };
    let budget = Arc::new(Budget::new(setup.rcvbuf));
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
                let wr = SendWr {
                    wr_id,
                    op,
                    to: SendTo::Peer,
                    sges: &sges,
                    signaled: true,
                    solicited: false,
                    fence: false,
                    inline: false,
                };
                let end = &mut world.ends[0];
                end.qp.post_send(&wr, &end.mem).unwrap();
            }
            world.drain(0);
            world
        })
        .collect();
    let (mut reads, mut destination) = (0, 0);
    loop {
        reads = reads.max(budget.reads_in_use());
        destination = destination.max(budget.destination_in_use(ADDRESSES[1]));
        // The world with the earliest event comes next.
        let next = worlds.iter().enumerate().filter_map(|(index, world)| Some((world.next()?, index))).min();
        let Some((now, index)) = next else { panic!("everybody sleeps") };
        worlds[index].step();
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
    for loss in [0, 20_000] {
        let (reads, _, done) = run(SendOp::Read { remote: remote() }, loss, 0);
        assert!(reads <= 16 << 10, "{reads}");
        assert!(done.as_nanos() < 5_000_000_000, "{done:?}");
    }
}

#[test]
fn writes_to_one_address_share_half_of_the_buffer() {
    for loss in [0, 20_000] {
        let (_, destination, done) = run(SendOp::Write { remote: remote() }, loss, 0);
        assert!(destination <= 32 << 10, "{destination}");
        assert!(done.as_nanos() < 5_000_000_000, "{done:?}");
    }
}

/// Packets to peers that never answer do not stop the other queue pairs.
#[test]
fn dead_peers_do_not_hold_the_budget() {
    for op in [SendOp::Read { remote: remote() }, SendOp::Write { remote: remote() }] {
        let (_, _, done) = run(op, 0, CROWD / 2);
        assert!(done.as_nanos() < 5_000_000_000, "{op:?} {done:?}");
    }
}
