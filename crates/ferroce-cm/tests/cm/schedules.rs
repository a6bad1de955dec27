//! Each message lost, duplicated, delayed or overtaken, alone and together with others, at both ends.

use std::time::Duration;

use ferroce_sim::{Seed, Verdict, rules};

use crate::world::{Answer, MS, PLAIN, Packet, SECOND, Script, World};

/// Before the first REQ arrives.
const CROSSING: Duration = Duration::from_micros(500);

pub const SCRIPTS: [(&str, Script); 15] = [
    ("connect, disconnect", PLAIN),
    ("the passive end disconnects", Script { disconnects: [false, true], ..PLAIN }),
    ("both disconnect", Script { disconnects: [true, true], ..PLAIN }),
    ("data after the connection", Script { data: true, ..PLAIN }),
    ("the active end closes", Script { closes: true, ..PLAIN }),
    ("accept late", Script { answer: Answer::AcceptLate, ..PLAIN }),
    ("reject", Script { answer: Answer::Reject, ..PLAIN }),
    ("nobody listens", Script { listens: false, ..PLAIN }),
    ("peer to peer", Script { peer_to_peer: Some(CROSSING), listens: false, ..PLAIN }),
    (
        "peer to peer, both disconnect",
        Script { peer_to_peer: Some(CROSSING), listens: false, disconnects: [true, true], ..PLAIN },
    ),
    ("peer to peer, the other end later", Script { peer_to_peer: Some(SECOND), listens: false, ..PLAIN }),
    ("datagrams", Script { datagrams: true, ..PLAIN }),
    ("a restart, a stale connection", Script { restarts: Some(Duration::from_millis(500)), ..PLAIN }),
    ("a restart, a stale reply", Script { restarts: Some(Duration::from_micros(1500)), ..PLAIN }),
    ("datagrams, rejected", Script { datagrams: true, answer: Answer::Reject, ..PLAIN }),
];

fn can_connect(script: &Script) -> bool {
    script.answer != Answer::Reject && (script.listens || script.peer_to_peer.is_some())
}

/// Faults for the messages of these numbers, in order of sending.
fn run(script: Script, faults: &[(usize, Verdict)]) -> World<'static> {
    let faults = faults.to_vec();
    let mut sent = 0;
    let mut world = World::new(script, 1);
    world.network.rule(move |_: &Packet| {
        let number = sent;
        sent += 1;
        faults.iter().find(|(at, _)| *at == number).map_or(Verdict::Pass, |(_, verdict)| *verdict)
    });
    world.run();
    world.check_end();
    world
}

const FAULTS: [Verdict; 6] = [
    Verdict::Drop,
    Verdict::Duplicate(Duration::ZERO),
    // Overtaken by whatever follows at once.
    Verdict::Delay(Duration::from_millis(3)),
    // Behind its own repetition.
    Verdict::Delay(Duration::from_secs(7)),
    // When all is over, time-wait included.
    Verdict::Duplicate(Duration::from_secs(20)),
    Verdict::Delay(Duration::from_secs(100)),
];

#[test]
fn without_faults() {
    for (name, script) in SCRIPTS {
        let world = run(script, &[]);
        assert_eq!(world.connected(), can_connect(&script), "{name}");
        let took = world.last_sent.saturating_since(ferroce_wire::Instant::ZERO);
        // To be not there yet is noticed by asking again.
        assert!(took < SECOND * if script.peer_to_peer.is_some() { 10 } else { 5 }, "{name}: {took:?}");
    }
}

/// One fault is always survived.
#[test]
fn any_one_fault() {
    for (name, script) in SCRIPTS {
        let messages = run(script, &[]).sent.len();
        assert!(messages >= 2, "{name}");
        for number in 0..messages + 2 {
            for fault in FAULTS {
                let world = run(script, &[(number, fault)]);
                let late = script.answer == Answer::AcceptLate && fault == Verdict::Delay(SECOND * 100);
                assert!(
                    world.connected() == can_connect(&script) || late,
                    "{name}: {fault:?} of message {number}: {:?}",
                    world.sent
                );
            }
        }
    }
}

#[test]
fn any_two_faults() {
    for (name, script) in SCRIPTS {
        let messages = run(script, &[]).sent.len() + 2;
        for first in 0..messages {
            for second in first + 1..messages + 2 {
                for a in FAULTS {
                    for b in FAULTS {
                        let world = run(script, &[(first, a), (second, b)]);
                        assert!(world.sent.len() < 200, "{name}: {a:?} of {first}, {b:?} of {second}");
                    }
                }
            }
        }
    }
}

#[test]
fn any_three_of_loss_duplication_and_delay() {
    let faults = [Verdict::Drop, Verdict::Duplicate(SECOND * 20), Verdict::Delay(SECOND * 7)];
    for (_, script) in SCRIPTS {
        let messages = run(script, &[]).sent.len() + 3;
        for first in 0..messages {
            for second in first + 1..messages {
                for third in second + 1..messages {
                    for which in 0..27 {
                        let [a, b, c] = [which % 3, which / 3 % 3, which / 9].map(|k| faults[k]);
                        run(script, &[(first, a), (second, b), (third, c)]);
                    }
                }
            }
        }
    }
}

/// From some message on one direction, or both, is dead.
#[test]
fn a_link_that_dies() {
    for (name, script) in SCRIPTS {
        let messages = run(script, &[]).sent.len();
        for from in 0..messages {
            for dead in [[true, false], [false, true], [true, true]] {
                let mut sent = 0;
                let mut world = World::new(script, 2);
                world.network.rule(move |packet: &Packet| {
                    sent += 1;
                    let to = usize::from(packet.route == crate::world::route(1));
                    if sent > from && dead[to] { Verdict::Drop } else { Verdict::Pass }
                });
                world.run();
                world.check_end();
                if from == 0 && dead[1] {
                    assert!(!world.connected(), "{name}");
                    assert!(world.stories[0].values().all(|story| story.unreachable), "{name}");
                }
            }
        }
    }
}

/// Every message of one kind is lost, the first `n` times or always.
#[test]
fn all_messages_of_a_kind_lost() {
    for (name, script) in SCRIPTS {
        for kind in ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"] {
            for times in [1, 3, 15, usize::MAX] {
                let mut lost = 0;
                let mut world = World::new(script, 3);
                world.network.rule(move |packet: &Packet| {
                    if packet.name() != kind || lost >= times {
                        return Verdict::Pass;
                    }
                    lost += 1;
                    Verdict::Drop
                });
                world.run();
                world.check_end();
                // Fifteen repetitions make up for fifteen losses, and a peer that sends data needs no RTU.
                let needed = match kind {
                    "REQ" | "REP" | "SIDR_REQ" | "SIDR_REP" => times <= 15,
                    "RTU" => times <= 15 || script.data,
                    _ => true,
                };
                if needed && can_connect(&script) && kind != "REJ" {
                    assert!(world.connected(), "{name}: {times} {kind} lost: {:?}", world.sent);
                }
            }
        }
    }
}

#[test]
fn at_random() {
    let seed = Seed::for_test("at_random", 4);
    let mut rng = seed.rng();
    let mut connected = 0;
    for round in 0..1200_usize {
        let (_, script) = SCRIPTS[round % SCRIPTS.len()];
        let mut world = World::new(script, rng.next_u64());
        let loss = [0, 100_000, 300_000, 600_000][round / SCRIPTS.len() % 4];
        world.network.rule(rules::loss(rng.fork(), loss));
        world.network.rule(rules::duplication(rng.fork(), 200_000, SECOND * 10));
        world.network.rule(rules::reordering(rng.fork(), 300_000, SECOND * 6));
        world.network.rule(rules::reordering(rng.fork(), 300_000, MS * 3));
        world.run();
        world.check_end();
        connected += usize::from(world.connected());
    }
    assert!(connected > 700, "{connected}");
}
