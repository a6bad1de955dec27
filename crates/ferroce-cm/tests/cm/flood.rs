//! Forged MADs by the hundred thousand at a host with connections in every state.

use std::collections::BTreeSet;

use ferroce_cm::{CmEventKind, ConnectParams, Disconnect, Route};
use ferroce_sim::{Rng, Seed};
use ferroce_wire::cm::{CommId, Mad, Message, PortSpace, PrivateData, Req};
use ferroce_wire::{Instant, Qpn};

use crate::hostile::{Victims, message};
use crate::probe::req;
use crate::states::STATES;
use crate::world::{SECOND, SERVICE, connect_params, header, manager, route};

/// A forger and what it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Forger {
    /// It has the peer's address and knows no ids.
    WithoutIds,
    /// It knows all ids, and has another address.
    Elsewhere,
    /// It asks for connections: from the peer's address or another.
    Asking,
    /// It sends octets that are no CM message, or only a part of one.
    Nonsense,
}

const FORGERS: [Forger; 4] = [Forger::WithoutIds, Forger::Elsewhere, Forger::Asking, Forger::Nonsense];

fn elsewhere(rng: &mut Rng) -> Route {
    Route { remote: [198, 51, 100, rng.next_u64() as u8].into(), ..route(1) }
}

/// A MAD of the forger, and the way it comes.
fn forge(rng: &mut Rng, forger: Forger, victims: &Victims) -> (Route, Vec<u8>) {
    let (ours, theirs, their_req) = victims.names(rng.below(STATES.len() as u64) as usize);
    let random = |rng: &mut Rng| CommId(rng.next_u64() as u32);
    // A queue pair that nobody has.
    let stranger =
        Req { ca_guid: rng.next_u64() | 1 << 63, qpn: Qpn::new(rng.next_u64() as u32), ..their_req };
    match forger {
        Forger::WithoutIds => {
            let (ours, theirs) = (random(rng), random(rng));
            (route(1), message(rng, ours, theirs, &Req { local_id: theirs, ..stranger }).to_vec())
        }
        Forger::Elsewhere => {
            let req = if rng.chance(500_000) { their_req } else { stranger };
            (elsewhere(rng), message(rng, ours, theirs, &req).to_vec())
        }
        Forger::Asking => {
            let service_id = match rng.below(3) {
                0 => SERVICE,
                1 => PortSpace::Tcp.service_id(rng.next_u64() as u16),
                _ => req().service_id,
            };
            let private = PrivateData::new(&header(0)).unwrap();
            let local_id = random(rng);
            let asks = Req {
                local_id,
                service_id,
                private,
                ..Req { ca_guid: stranger.ca_guid, qpn: stranger.qpn, ..req() }
            };
            let from = if rng.chance(500_000) { route(1) } else { elsewhere(rng) };
            (from, Mad { transaction_id: rng.next_u64(), message: Message::Req(asks) }.emit().to_vec())
        }
        Forger::Nonsense => {
            let mut bytes = message(rng, ours, theirs, &stranger).to_vec();
            match rng.below(3) {
                // Base version, class, class version or method.
                0 => bytes[rng.below(4) as usize] = rng.next_u64() as u8 | 0x08,
                1 => bytes.truncate(rng.below(256) as usize),
                _ => bytes.iter_mut().for_each(|octet| *octet = rng.next_u64() as u8),
            }
            if bytes.len() == 256 && bytes[..4] == [1, 7, 2, 3] {
                // By chance it remained a message that names both ids.
                bytes[1] = 4;
            }
            (route(1), bytes)
        }
    }
}

/// No forged MAD has an effect on a connection, none is answered with more octets than it has, and what they leave behind is bounded by
/// the listener's backlog.
#[test]
fn a_hundred_thousand_forged_mads() {
    let seed = Seed::for_test("a_hundred_thousand_forged_mads", 61);
    let mut rng = seed.rng();
    let mut victims = Victims::new();
    let before = victims.records();
    let (mut octets_in, mut octets_out, mut events) = (0, 0, 0);
    let mut answers = [0; FORGERS.len()];
    for n in 0..100_000 {
        let which = n % FORGERS.len();
        let (from, bytes) = forge(&mut rng, FORGERS[which], &victims);
        octets_in += bytes.len();
        let probe = &mut victims.probe;
        let _ = probe.cm.handle_mad(probe.now, from, &bytes);
        let mut out = 0;
        while let Some(sent) = probe.cm.poll_transmit() {
            assert_eq!(sent.route, from, "an answer goes to where the MAD came from");
            out += sent.mad.len();
            answers[which] += 1;
        }
        assert!(out <= bytes.len(), "{} octets are answered with {out}", bytes.len());
        octets_out += out;
        for event in probe.events() {
            assert!(!victims.ids.contains(&event.id), "{event:?}");
            assert!(matches!(event.kind, CmEventKind::Request { .. }), "{event:?}");
            events += 1;
        }
        assert!(probe.cm.in_use() <= STATES.len() + 4, "the listener's backlog");
        if n % 1000 == 0 {
            assert_eq!(victims.records(), before, "{n}");
        }
    }
    println!("answers {answers:?}, {octets_in} octets in, {octets_out} octets out");
    assert_eq!(victims.records(), before);
    assert!(events <= 4, "{events}");
    assert!(answers[0] > 0 && answers[1] > 0 && answers[2] > 1000, "{answers:?}");
    // The connections live: the real peer ends one.
    let established = STATES.iter().position(|state| *state == "established, passive").unwrap();
    let (ours, theirs, their_req) = victims.names(established);
    let local = victims.probe.cm.messages(ours).and_then(|(_, rep)| rep.map(|rep| rep.qpn)).unwrap();
    let dreq = ferroce_wire::cm::Dreq {
        local_id: theirs,
        remote_id: ours,
        remote_qpn: local,
        private: PrivateData::EMPTY,
    };
    assert_eq!(their_req.local_id, theirs);
    victims.probe.give(Message::Dreq(dreq)).unwrap();
    let event = victims.probe.event();
    assert_eq!((event.id, event.kind), (ours, CmEventKind::Disconnected(Disconnect::ByPeer)));
}

/// Draws of the first number, as [`even`] expects them.
const DRAWS: usize = 8000;

/// Panics unless the draws of so many bits look as chance would have them: each bit is set in about half of them, and about as many
/// coincide as of random numbers. Both bounds are five standard deviations.
fn even(name: &str, draws: &[u64], bits: u32) {
    let count = draws.len() as f64;
    for bit in 0..bits {
        let set = draws.iter().filter(|draw| **draw >> bit & 1 == 1).count() as f64;
        assert!(
            (set - count / 2.0).abs() < 5.0 * (count / 4.0).sqrt(),
            "{name}, bit {bit}: {set} of {count}"
        );
    }
    let different = draws.iter().collect::<BTreeSet<_>>().len() as f64;
    let places = 2f64.powi(bits as i32);
    let expected = count * count / 2.0 / places;
    let found = count - different;
    println!("{name}: {bits} bits, {found} of {count} coincide, by chance {expected:.1}");
    assert!((found - expected).abs() < 5.0 * expected.sqrt().max(1.0), "{name}: {found}, not {expected}");
    let steps = draws.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & ((1 << bits) - 1));
    let most = steps.fold(std::collections::BTreeMap::new(), |mut counts, step| {
        *counts.entry(step).or_insert(0) += 1;
        counts
    });
    assert!(most.values().all(|count| *count < 12), "{name}: a step that comes again and again");
}

/// Communication ids (20 bits beside the owner), first PSNs of the passive end and transaction ids.
#[test]
fn numbers_of_connections_are_even() {
    let mut cm = manager(0x5eed);
    let (mut ids, mut psns, mut transactions) = (vec![], vec![], vec![]);
    for n in 0..DRAWS as u32 {
        let params = ConnectParams { qpn: Qpn::new(n), ..connect_params(0) };
        let id = cm.connect(Instant::ZERO, 254, &params).unwrap();
        assert_eq!(id.0 >> 20, 254);
        ids.push(u64::from(id.0 & 0xf_ffff));
        let (req, _) = cm.messages(id).unwrap();
        psns.push(u64::from(req.starting_psn.value()));
        let sent = cm.poll_transmit().unwrap();
        transactions.push(Mad::parse(&sent.mad[..]).unwrap().transaction_id >> 32);
        cm.close(Instant::ZERO, id);
        while cm.poll_transmit().is_some() {}
        cm.close_owner(Instant::ZERO, 254, usize::MAX);
    }
    even("communication ids", &ids, 20);
    even("first PSNs", &psns, 24);
    even("transaction ids", &transactions, 32);
}

/// All connections of programs may be due at once, and the caller serves others in between.
#[test]
fn timers_that_are_due_together_are_handled_in_steps() {
    let mut cm = manager(7);
    for n in 0..600 {
        let params = ConnectParams { qpn: Qpn::new(n), ..connect_params(0) };
        cm.connect(Instant::ZERO, 253 + n as u16 % 2, &params).unwrap();
    }
    while cm.poll_transmit().is_some() {}
    let now = Instant::ZERO + SECOND * 100;
    let mut steps = Vec::new();
    while cm.poll_timeout().is_some_and(|at| at <= now) {
        cm.handle_timeout(now);
        steps.push(std::iter::from_fn(|| cm.poll_transmit()).count());
    }
    assert_eq!(steps, [256, 256, 88]);
}
