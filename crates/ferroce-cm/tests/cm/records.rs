//! Another broker goes on where the first one ended.

use ferroce_cm::{CmError, CmEventKind, ConnectionManager, Disconnect, ImportError, Route, SidrParams};
use ferroce_sim::{Rng, Verdict};
use ferroce_wire::Instant;
use ferroce_wire::cm::{CommId, Message};
use proptest::prelude::*;

use crate::probe::{Probe, dreq, sidr_req};
use crate::schedules::SCRIPTS;
use crate::states::{STATES, prepare};
use crate::world::{Packet, SECOND, World, manager, route, sidr_params};

fn ours(at: &Route) -> bool {
    *at == route(1)
}

/// At every point of every exchange, at either end, alone and with one loss.
#[test]
fn brokers_die_at_any_time() {
    for (name, script) in SCRIPTS {
        for messages in 0..10 {
            for end in 0..2 {
                for lost in 0..10 {
                    let mut world = World::new(script, 1);
                    world.restart = Some((messages, end));
                    let mut sent = 0;
                    world.network.rule(move |_: &Packet| {
                        sent += 1;
                        if sent == lost { Verdict::Drop } else { Verdict::Pass }
                    });
                    world.run();
                    assert!(world.restart.is_none() || world.sent.len() < messages, "{name}");
                    world.check_end();
                }
            }
        }
    }
}

#[test]
fn a_record_is_the_connection() {
    for state in STATES {
        let (probe, id) = prepare(state);
        let record = probe.cm.export(probe.now, id).unwrap();
        let later = Instant::from_nanos(77_000_000_000);
        let mut heir = manager(99);
        let mut marked = record.clone();
        marked[ConnectionManager::SEAL].fill(0xff);
        assert_eq!(heir.import(later, 9, &marked, ours), Ok(id), "{state}");
        assert_eq!(heir.state(id), probe.cm.state(id));
        assert_eq!(heir.messages(id), probe.cm.messages(id));
        // Deadlines are as far away as they were.
        let left =
            |cm: &ConnectionManager, now: Instant| cm.poll_timeout().map(|at| at.saturating_since(now));
        assert_eq!(left(&heir, later), left(&probe.cm, probe.now), "{state}");
        assert_eq!(heir.export(later, id), Ok(record.clone()));
        assert!(heir.poll_transmit().is_none() && heir.poll_event().is_none());

        assert_eq!(heir.import(later, 9, &record, ours), Err(ImportError::InUse));
        assert_eq!(heir.import(later, 8, &record, ours), Err(ImportError::Owner));
        assert_eq!(manager(1).import(later, 9, &record, |_| false), Err(ImportError::Invalid));
        for len in 0..record.len() {
            assert_eq!(manager(1).import(later, 9, &record[..len], ours), Err(ImportError::Invalid));
        }
        let longer = [&record[..], &[0]].concat();
        assert_eq!(manager(1).import(later, 9, &longer, ours), Err(ImportError::Invalid));
    }
}

#[test]
fn a_record_is_the_question() {
    let mut probe = Probe::new();
    let id = probe.cm.resolve(probe.now, 9, &SidrParams { traffic_class: 0x20, ..sidr_params(1) }).unwrap();
    let asked = probe.cm.poll_transmit().unwrap();
    let record = probe.cm.export(probe.now, id).unwrap();
    let later = Instant::from_nanos(77_000_000_000);
    let import = |record: &[u8]| {
        let mut heir = manager(99);
        heir.import(later, 9, record, ours).map(|_| heir)
    };
    let mut heir = import(&record).unwrap();
    assert!(heir.knows(id) && heir.state(id).is_none() && heir.poll_transmit().is_none());
    assert_eq!(heir.export(later, id), Ok(record.clone()));
    assert_eq!(heir.import(later, 9, &record, ours), Err(ImportError::InUse));
    assert_eq!(heir.import(later, 8, &record, ours), Err(ImportError::Owner));
    assert_eq!(manager(1).import(later, 9, &record, |_| false).err(), Some(ImportError::Invalid));
    for len in 0..record.len() {
        assert_eq!(import(&record[..len]).err(), Some(ImportError::Invalid), "{len}");
    }
    assert_eq!(import(&[&record[..], &[0]].concat()).err(), Some(ImportError::Invalid));

    // It is repeated as it was, when it would have been, and answered.
    let at = heir.poll_timeout().unwrap();
    let left = probe.cm.poll_timeout().unwrap().saturating_since(probe.now);
    assert_eq!(at.saturating_since(later), left);
    heir.handle_timeout(at);
    assert_eq!(heir.poll_transmit(), Some(asked));
    heir.close_owner(at, 9, usize::MAX);
    assert!(heir.is_empty());

    // However far away and often a record says that it is to be repeated.
    let mut forged = record;
    forged[3] = 0xff;
    forged[4..20].fill(0xff);
    let mut heir = import(&forged).unwrap();
    let mut sent = 0;
    while let Some(at) = heir.poll_timeout() {
        assert!(at.saturating_since(later) <= SECOND * 20 * 17);
        heir.handle_timeout(at);
        sent += std::iter::from_fn(|| heir.poll_transmit()).count();
    }
    assert_eq!(sent, 15);
    assert!(matches!(heir.poll_event().unwrap().kind, CmEventKind::Unreachable) && heir.is_empty());
}

#[test]
fn questions_of_peers_have_no_record() {
    let mut probe = Probe::new();
    probe.give(Message::SidrReq(sidr_req())).unwrap();
    let id = probe.event().id;
    assert!(probe.cm.knows(id));
    assert_eq!(probe.cm.export(probe.now, id), Err(CmError::UnknownId(id)));
}

#[test]
fn an_adopted_connection_is_disconnected_by_its_peer() {
    let mut old = Probe::new();
    let id = old.established();
    let record = old.cm.export(old.now, id).unwrap();
    let mut probe = Probe::new();
    probe.cm.import(probe.now, 9, &record, ours).unwrap();
    probe.give(dreq(id)).unwrap();
    assert_eq!(probe.event().kind, CmEventKind::Disconnected(Disconnect::ByPeer));
    probe.cm.disconnect(probe.now, id).unwrap();
    assert!(matches!(probe.only(), Message::Drep(_)));
}

#[test]
fn records_do_not_take_what_others_have() {
    let mut probe = Probe::new();
    let id = probe.established();
    let record = probe.cm.export(probe.now, id).unwrap();
    // Another id, but the same remote queue pair and request.
    let other = CommId(id.0 ^ 1);
    let mut forged = record.clone();
    forged[64..68].copy_from_slice(&other.0.to_le_bytes());
    assert_eq!(
        probe.cm.import(probe.now, 9, &forged, ours),
        Err(ImportError::Invalid),
        "the REP has the other id"
    );
    // In the REP of the record, too.
    let at = 72 + 256 + 24;
    forged[at..at + 4].copy_from_slice(&other.0.to_be_bytes());
    assert_eq!(probe.cm.import(probe.now, 9, &forged, ours), Err(ImportError::InUse));
    assert_eq!(probe.cm.in_use(), 1);
}

/// Far deadlines, many repetitions, states that the role does not have, an MTU that is none.
#[test]
fn forged_fields_are_bounded_or_refused() {
    let later = Instant::from_nanos(77);
    let forge = |state: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let (probe, id) = prepare(state);
        let mut record = probe.cm.export(probe.now, id).unwrap();
        change(&mut record);
        let mut heir = manager(99);
        heir.import(later, 9, &record, ours).map(|_| heir)
    };
    for state in STATES {
        let Ok(mut heir) = forge(state, &|record| {
            record[4..20].fill(0xff);
            if !state.starts_with("MRA") {
                record[3] = 0xff;
            }
        }) else {
            panic!("{state}")
        };
        let far = heir.poll_timeout().map_or(0, |at| at.saturating_since(later).as_secs());
        let most = if state.starts_with("MRA") {
            90
        } else if state.starts_with("time") {
            69
        } else {
            20
        };
        assert!(far <= most, "{state}: {far} s");
        let mut sent = 0;
        while let Some(at) = heir.poll_timeout() {
            heir.handle_timeout(at);
            sent += std::iter::from_fn(|| heir.poll_transmit()).count();
        }
        assert!(sent <= 17, "{state}: {sent}");

        for code in 0..=255 {
            let allowed = match state {
                "REQ sent" | "MRA(REQ) received" => &[0, 1, 11][..],
                "REQ received" | "MRA(REQ) sent" => &[4, 5, 11],
                "REP sent" | "MRA(REP) received" | "established, passive" => &[6, 7, 8, 9, 10, 11],
                "DREQ received" | "time-wait, passive" => &[6, 7, 8, 9, 10, 11],
                _ => &[2, 3, 8, 9, 10, 11],
            };
            let got = forge(state, &|record| (record[2], record[3]) = (code, 1)).is_ok();
            assert_eq!(got, allowed.contains(&code), "{state}: {code}");
        }
        let mtu = 72 + 24 + 50;
        assert!(forge(state, &|record| record[mtu] = 0).is_err(), "{state}");
    }
}

proptest! {
    /// A record with any octets changed is refused, or its connection ends as any other does.
    #[test]
    fn forged_records_do_no_harm(
        state in 0..STATES.len(), flips in prop::collection::vec((0..600_usize, any::<u8>()), 0..6), seed: u64,
    ) {
        let (probe, id) = prepare(STATES[state]);
        let mut record = probe.cm.export(probe.now, id).unwrap();
        for (at, value) in flips {
            let len = record.len();
            // The front is where the state is.
            let at = if at % 3 == 0 { at % 72 } else { at % len };
            record[at] = value;
        }
        let mut victim = Probe::new();
        let before = victim.established();
        let untouched = victim.cm.export(victim.now, before).unwrap();
        let mut rng = Rng::new(seed);
        let _ = victim.cm.import(victim.now, 9, &record, |_| true);
        prop_assert_eq!(victim.cm.export(victim.now, before), Ok(untouched));
        for _ in 0..rng.below(40) {
            victim.tick();
        }
        victim.cm.close_owner(victim.now, 9, usize::MAX);
        while victim.tick() {}
        prop_assert!(victim.cm.is_empty());
        prop_assert!(victim.now < Instant::ZERO + SECOND * 2000);
    }

    #[test]
    fn arbitrary_records_are_refused(record in prop::collection::vec(any::<u8>(), 0..700)) {
        prop_assert_eq!(manager(1).import(Instant::ZERO, 9, &record, |_| true), Err(ImportError::Invalid));
    }
}
