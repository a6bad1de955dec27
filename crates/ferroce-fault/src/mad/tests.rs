use std::net::Ipv4Addr;

use ferroce_wire::cm::{Drep, PrivateData, Rtu};
use proptest::prelude::*;

use super::*;
use crate::effect::Release;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const T0: Instant = Instant::from_nanos(5_000);

fn judge(text: &str) -> MadJudge {
    MadJudge::new(text.parse().unwrap())
}

fn facts(dir: Dir, op: Op, ours: u32, theirs: u32) -> MadFacts {
    MadFacts { dir, op, peer: PEER, ours: CommId(ours), theirs: CommId(theirs) }
}

/// A connection of the active end, from REQ to DREP.
const ACTIVE: [(Dir, Op, u32, u32); 5] = [
    (Dir::Tx, Op::Req, 7, 0),
    (Dir::Rx, Op::Rep, 7, 9),
    (Dir::Tx, Op::Rtu, 7, 9),
    (Dir::Tx, Op::Dreq, 7, 9),
    (Dir::Rx, Op::Drep, 7, 9),
];

/// The datagrams of a connection in their order, as the passive end sees them: direction, attribute, its own
/// id, the peer's.
const PASSIVE: [(Dir, Op, u32, u32); 5] = [
    (Dir::Rx, Op::Req, 0, 9),
    (Dir::Tx, Op::Rep, 7, 9),
    (Dir::Rx, Op::Rtu, 7, 9),
    (Dir::Rx, Op::Dreq, 7, 9),
    (Dir::Tx, Op::Drep, 7, 9),
];

/// The datagrams that are dropped, by their place.
fn dropped(judge: &mut MadJudge, all: &[(Dir, Op, u32, u32)]) -> Vec<usize> {
    let drops = |(_, (dir, op, ours, theirs)): &(usize, &(Dir, Op, u32, u32))| {
        judge.decide(T0, &facts(*dir, *op, *ours, *theirs)).drop
    };
    all.iter().enumerate().filter(drops).map(|(place, _)| place).collect()
}

fn hits(judge: &mut MadJudge) -> Vec<String> {
    judge.take_hits(usize::MAX).iter().map(Hit::to_string).collect()
}

#[test]
fn attributes_directions_and_connections() {
    for (text, from_active, from_passive) in [
        ("drop if op=mad", &[0, 1, 2, 3, 4][..], &[0, 1, 2, 3, 4][..]),
        ("drop if op=req", &[0], &[0]),
        ("drop if op=rep|rtu", &[1, 2], &[1, 2]),
        ("cut if op=mad,dir=rx", &[1, 4], &[0, 2, 3]),
        ("drop if op=mad,conn=1", &[], &[]),
        ("drop if op=mad,conn!=1,nth=2", &[2, 4], &[2, 4]),
        ("drop if op=mad,count=1", &[0, 1], &[0, 1]),
        ("drop if op=mad,peer=192.0.2.9", &[], &[]),
        ("drop if op=drep,peer!=192.0.2.9", &[4], &[4]),
        ("drop if op=mad,time=1s..", &[], &[]),
        // No rule for management datagrams.
        ("drop", &[], &[]),
        ("drop if op=send", &[], &[]),
        ("drop if op!=send", &[], &[]),
    ] {
        assert_eq!(dropped(&mut judge(text), &ACTIVE), from_active, "{text}");
        assert_eq!(dropped(&mut judge(text), &PASSIVE), from_passive, "{text}");
    }
}

#[test]
fn each_connection_counts_for_itself() {
    let mut judge = judge("first: drop if op=req,iter=1..2; dup 0% if op=rep");
    let req = |judge: &mut MadJudge, ours| judge.decide(T0, &facts(Dir::Tx, Op::Req, ours, 0)).drop;
    assert_eq!([7, 7, 8, 7, 8, 8].map(|ours| req(&mut judge, ours)), [true, true, true, false, true, false]);
    assert_eq!(
        hits(&mut judge),
        [
            "drop if dir=tx,conn=0,op=req,iter=1",
            "drop if dir=tx,conn=0,op=req,iter=2",
            "drop if dir=tx,conn=1,op=req,iter=1",
            "drop if dir=tx,conn=1,op=req,iter=2",
        ]
    );
    assert_eq!(judge.counts(), [(4, 4), (0, 0)]);
}

/// Both ends in one program: the ids of one end are those of the other end's peer.
#[test]
fn the_ends_of_a_connection_within_a_program_are_two() {
    let mut judge = judge("dup if op=mad");
    for (dir, op, ours, theirs) in [
        (Dir::Tx, Op::Req, 7, 0),
        (Dir::Rx, Op::Req, 0, 7),
        (Dir::Tx, Op::Rep, 9, 7),
        (Dir::Rx, Op::Rep, 7, 9),
        (Dir::Tx, Op::Rtu, 7, 9),
        (Dir::Rx, Op::Rtu, 9, 7),
    ] {
        assert!(judge.decide(T0, &facts(dir, op, ours, theirs)).duplicate);
    }
    let connections: Vec<String> =
        hits(&mut judge).iter().filter_map(|hit| Some(hit.split_once("conn=")?.1[..1].to_owned())).collect();
    assert_eq!(connections, ["0", "1", "1", "0", "0", "1"]);
}

#[test]
fn lateness_and_corruption() {
    let late = judge("delay=50ms + dup if op=rtu").decide(T0, &facts(Dir::Tx, Op::Rtu, 7, 9));
    assert_eq!(late.release, Some(Release { at: T0 + std::time::Duration::from_millis(50), behind: 0 }));
    assert!(late.duplicate && !late.drop);
    let mut bad = judge("corrupt icrc=bad if op=rep");
    assert!(bad.decide(T0, &facts(Dir::Tx, Op::Rep, 7, 9)).drop);
    assert!(hits(&mut bad)[0].starts_with("corrupt icrc=bad at="));
    let mut named = judge("corrupt icrc=ok at=24/3 if op=rep,dir=rx");
    let corrupt = named.decide(T0, &facts(Dir::Rx, Op::Rep, 7, 9)).corrupt.unwrap();
    assert_eq!((corrupt.octet, corrupt.bit), (24, 3));
    let mut anywhere = judge("corrupt icrc=ok if op=mad,dir=rx");
    for ours in 1..500 {
        let corrupt = anywhere.decide(T0, &facts(Dir::Rx, Op::Dreq, ours, 9)).corrupt.unwrap();
        assert!(usize::from(corrupt.octet) < MAD_LEN && corrupt.bit < 8);
    }
}

/// The log of a run is a plan that does the same.
#[test]
fn hits_are_a_plan_that_repeats_them() {
    let rules = "seed=9; drop 20% if op=mad; dup 30% if op=mad; delay=1ms~1ms if op=rep|dreq; \
                 corrupt 20% icrc=ok if dir=rx,op=mad; named: drop 5% if op=mad";
    let all: Vec<MadFacts> = (1..40)
        .flat_map(|n| {
            let active = ACTIVE.iter().map(move |(dir, op, ours, theirs)| {
                facts(*dir, *op, ours + 100 * n, if *theirs == 0 { 0 } else { theirs + 100 * n })
            });
            active.chain([facts(Dir::Tx, Op::Req, 7 + 100 * n, 0)])
        })
        .collect();
    let run = |text: &str| {
        let mut judge = judge(text);
        let actions: Vec<Actions> = all.iter().map(|facts| judge.decide(T0, facts)).collect();
        (actions, hits(&mut judge))
    };
    let (actions, log) = run(rules);
    assert!(log.len() > 40, "{}", log.len());
    assert_eq!(run(rules), (actions.clone(), log.clone()), "the same seed");
    assert_ne!(run(&rules.replace("seed=9", "seed=8")).0, actions);
    assert_eq!(run(&log.join("\n")), (actions, log));
}

#[test]
fn memory_is_bounded() {
    let mut judge = judge("dup if op=mad");
    for ours in 1..=(MOST_MAD_CONNECTIONS + MOST_MAD_HITS) as u32 {
        judge.decide(T0, &facts(Dir::Tx, Op::Req, ours, 0));
        judge.decide(T0, &facts(Dir::Rx, Op::Req, 0, ours));
    }
    let sizes = [judge.connections.len(), judge.by_ours.len() + judge.by_theirs.len()];
    assert_eq!(sizes, [MOST_MAD_CONNECTIONS; 2]);
    assert_eq!(judge.hits.waiting.len(), MOST_MAD_HITS);
    assert_eq!(judge.forgotten(), (2 * MOST_MAD_CONNECTIONS + MOST_MAD_HITS) as u64);
    assert_eq!(judge.take_hits(3).len(), 3);
    assert_eq!(judge.take_hits(usize::MAX).len(), MOST_MAD_HITS - 3);
    let mut counting = self::judge(&vec!["dup if op=mad,nth=1"; 1000].join("\n"));
    for ours in 1..500 {
        counting.decide(T0, &facts(Dir::Tx, Op::Req, ours, 0));
    }
    let states = counting.connections.values().map(|connection| connection.rules.len()).sum::<usize>();
    // Connections are forgotten whole.
    assert_eq!((states, counting.states), (MOST_STATES / 1000 * 1000, states));
    // Rules that do not count need no state.
    let mut stateless = self::judge("dup if op=mad");
    stateless.decide(T0, &facts(Dir::Tx, Op::Req, 1, 0));
    assert_eq!(stateless.states, 0);
}

#[test]
fn the_facts_of_messages() {
    let private = PrivateData::EMPTY;
    let rtu = Message::Rtu(Rtu { local_id: CommId(7), remote_id: CommId(9), private });
    assert_eq!(MadFacts::of(&rtu, Dir::Tx, PEER), facts(Dir::Tx, Op::Rtu, 7, 9));
    let drep = Message::Drep(Drep { local_id: CommId(7), remote_id: CommId(9), private });
    assert_eq!(MadFacts::of(&drep, Dir::Rx, PEER), facts(Dir::Rx, Op::Drep, 9, 7));
}

proptest! {
    /// No datagram harms the judge, and its tables agree.
    #[test]
    fn any_datagrams(all in proptest::collection::vec((any::<bool>(), 13..25usize, 0..6u32, 0..6u32), 0..200)) {
        let mut judge = judge("drop 30% if op=mad,iter=every/2; dup if op=req|rep,nth=1..3; delay=1s if op=mad,conn=1..5");
        for (sent, op, ours, theirs) in all {
            let dir = if sent { Dir::Tx } else { Dir::Rx };
            judge.decide(T0, &facts(dir, Op::WORDS[op].1, ours, theirs));
        }
        for (id, number) in &judge.by_ours {
            prop_assert_eq!(judge.connections[number].ours, Some(*id));
        }
        for (seen, hits) in judge.counts() {
            prop_assert!(hits <= seen);
        }
    }
}
