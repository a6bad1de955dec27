//! Selective repeat with a peer that has no memory to hold requests in.

use std::sync::Arc;
use std::time::Duration;

use ferroce_proto::{Budget, QpState, Remote, SelectiveRepeat, SendOp, SendWr, Sge, WcStatus};
use ferroce_sim::Verdict;
use ferroce_wire::{Lkey, Rkey};

use crate::ram::Ram;
use crate::world::{Setup, World};

const KEY: u32 = 1;
const COUNT: u64 = 40;

/// Forty WRITEs of a packet each, the first of which is lost: how long they take, and how many packets are sent again.
fn first_of_forty_lost(hold_blocks: usize) -> (Duration, u64) {
    let setup = Setup { selective_repeat: SelectiveRepeat::Agreed, ..Setup::default() };
    let memory = || {
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![7; 1000]);
        ram
    };
    let mut world = World::connected(&setup, [memory(), memory()]);
    let budget = Budget::new(setup.rcvbuf).with_hold_blocks(hold_blocks);
    world.ends[1].qp = setup.with_budget(1, Arc::new(budget));
    setup.bring(&mut world.ends[1].qp, 1, QpState::Rts);
    let sges = [Sge { addr: 0, length: 1000, lkey: Lkey::new(KEY) }];
    let op = SendOp::Write { remote: Remote { addr: 0, rkey: Rkey::new(KEY) } };
    let post = |world: &mut World<'_, Ram>, first: u64, count: u64| {
        let end = &mut world.ends[0];
        (first..first + count)
            .for_each(|wr_id| end.qp.post_send(&SendWr::signaled(wr_id, op, &sges), &end.mem).unwrap());
        world.run_until(Duration::from_secs(1), |world| world.ends[0].sends.len() as u64 == first + count);
    };
    // The round trip is known then.
    post(&mut world, 0, 1);
    let started = world.now;
    let mut packets = 0;
    world.network.rule(move |_| {
        packets += 1;
        if packets == 1 { Verdict::Drop } else { Verdict::Pass }
    });
    post(&mut world, 1, COUNT);
    assert!(world.ends[0].sends.iter().all(|completion| completion.status == WcStatus::Success));
    (world.now.saturating_since(started), world.ends[0].qp.counters().resent_pkts)
}

#[test]
fn what_the_peer_holds_is_not_sent_again() {
    let (took, resent) = first_of_forty_lost(8);
    assert!(took < Duration::from_micros(250), "{took:?}");
    assert_eq!(resent, 1);
}

/// All that left before the packet that closed the gap was dropped, so that it is sent again at once, and not each after a timeout.
#[test]
fn what_the_peer_dropped_is_sent_again_together() {
    let (took, resent) = first_of_forty_lost(0);
    assert!(took < Duration::from_micros(250), "{took:?}");
    assert_eq!(resent, COUNT);
}
