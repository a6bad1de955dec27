//! Any packets to queue pair 1: no panic, no harm to others, bounded memory.

use ferroce_cm::{AcceptParams, ConnectionManager, Route, SidrAnswer};
use ferroce_sim::Rng;
use ferroce_wire::cm::{CmTime, CommId, Ece, Info, Mad, Message, PrivateData, RejReason, Req, SidrStatus};
use ferroce_wire::{Instant, Qkey, Qpn};
use proptest::prelude::*;

use crate::probe::{Probe, THEIRS, req};
use crate::states::{STATES, prepare};
use crate::world::{address, connect_params, guid, listen, qpn, route, sidr_params};

/// Connections in every state, all of one owner, as they would be of one program.
pub struct Victims {
    pub probe: Probe,
    pub ids: Vec<CommId>,
}

impl Victims {
    pub fn new() -> Self {
        let mut probe = Probe::new();
        let mut ids = Vec::new();
        for (n, state) in STATES.into_iter().enumerate() {
            let (other, id) = prepare(state);
            let mut record = other.cm.export(other.now, id).unwrap();
            // Each with a peer's queue pair and id of its own.
            let unique = (n as u32 + 1) << 8;
            let passive = record[1] & 1 != 0;
            let theirs = if passive { 72 + 24 } else { 72 + 256 + 24 };
            if record.len() > theirs {
                record[theirs..theirs + 4].copy_from_slice(&unique.to_be_bytes());
                let qpn = theirs + if passive { 32 } else { 12 };
                record[qpn..qpn + 3].copy_from_slice(&unique.to_be_bytes()[1..]);
            }
            if passive && record.len() > 72 + 256 {
                let answered = 72 + 256 + 24 + 4;
                record[answered..answered + 4].copy_from_slice(&unique.to_be_bytes());
            }
            // Ids are drawn alike in each of these managers.
            let fresh = CommId((9 << 20) | (n as u32 + 1));
            record[64..68].copy_from_slice(&fresh.0.to_le_bytes());
            if passive {
                if record.len() > 72 + 256 {
                    record[72 + 256 + 24..][..4].copy_from_slice(&fresh.0.to_be_bytes());
                }
            } else {
                record[72 + 24..][..4].copy_from_slice(&fresh.0.to_be_bytes());
                if record.len() > 72 + 256 {
                    record[72 + 256 + 24 + 4..][..4].copy_from_slice(&fresh.0.to_be_bytes());
                }
            }
            assert_eq!(probe.cm.import(probe.now, 9, &record, |_| true), Ok(fresh), "{state}");
            ids.push(fresh);
        }
        Self { probe, ids }
    }

    pub fn records(&self) -> Vec<Vec<u8>> {
        self.ids.iter().map(|id| self.probe.cm.export(self.probe.now, *id).unwrap()).collect()
    }

    /// Both ids, GUID and queue pair numbers of a victim.
    pub fn names(&self, which: usize) -> (CommId, CommId, Req) {
        let id = self.ids[which % self.ids.len()];
        let (req, rep) = self.probe.cm.messages(id).unwrap();
        let theirs = if req.local_id == id { rep.map_or(THEIRS, |rep| rep.local_id) } else { req.local_id };
        (id, theirs, *req)
    }
}

/// A message that names `ours` and `theirs`, otherwise of any content.
pub fn message(rng: &mut Rng, ours: CommId, theirs: CommId, their_req: &Req) -> [u8; 256] {
    let mut bytes = Mad { transaction_id: rng.next_u64(), message: Message::Req(*their_req) }.emit();
    bytes[17] = 0x10 + rng.below(12) as u8;
    if bytes[17] != 0x10 {
        for octet in &mut bytes[32..] {
            *octet = rng.next_u64() as u8;
        }
        bytes[24..28].copy_from_slice(&theirs.0.to_be_bytes());
        bytes[28..32].copy_from_slice(&ours.0.to_be_bytes());
        if rng.chance(500_000) {
            // A DREQ for the right queue pair, a REJ of a likely reason.
            bytes[32..35].copy_from_slice(&qpn(1).to_be_bytes());
            bytes[34] = 0;
            bytes[35] = [4, 8, 10, 28][rng.below(4) as usize];
        }
    }
    for _ in 0..rng.below(3) {
        bytes[rng.below(256) as usize] = rng.next_u64() as u8;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// An attacker that knows every number but sends from another address.
    #[test]
    fn knowing_all_is_not_enough(seed: u64) {
        let mut victims = Victims::new();
        let before = victims.records();
        let elsewhere = [
            Route { remote: [198, 51, 100, 7].into(), ..route(1) },
            Route { interface: 9, ..route(1) },
            Route { local: [203, 0, 113, 1].into(), ..route(1) },
        ];
        let mut rng = Rng::new(seed);
        for n in 0..200 {
            let (ours, theirs, req) = victims.names(n);
            let bytes = message(&mut rng, ours, theirs, &req);
            // A queue pair of the peer's that asks another address of ours is still the same queue pair.
            let other = if bytes[17] == 0x10 { 0 } else { rng.below(3) };
            let from = elsewhere[other as usize];
            let probe = &mut victims.probe;
            let _ = probe.cm.handle_mad(probe.now, from, &bytes);
            while let Some(sent) = probe.cm.poll_transmit() {
                prop_assert_eq!(sent.route, from);
            }
        }
        prop_assert!(victims.probe.cm.in_use() <= STATES.len() + 4);
        for event in victims.probe.events() {
            prop_assert!(!victims.ids.contains(&event.id), "{event:?}");
        }
        prop_assert_eq!(victims.records(), before);
    }

    /// The peer's host, where another program guesses: no message without the ids of a connection touches it.
    #[test]
    fn a_neighbour_of_the_peer_cannot_guess(seed: u64) {
        let mut victims = Victims::new();
        let before = victims.records();
        let mut rng = Rng::new(seed);
        for n in 0..200 {
            let (ours, theirs, mut req) = victims.names(n);
            req.ca_guid ^= 1;
            let real = (ours, theirs);
            // One of the two is wrong, and everything else may be right.
            let (ours, theirs) = if rng.chance(500_000) {
                (CommId(ours.0 ^ 1 << 20), theirs)
            } else {
                (ours, CommId(theirs.0 ^ 1 << 20))
            };
            let bytes = message(&mut rng, ours, theirs, &req);
            // A lucky mutation.
            let both = [real.1.0.to_be_bytes(), real.0.0.to_be_bytes()].concat();
            let Some(mad) = Mad::parse(&bytes).ok().filter(|_| bytes[24..32] != both) else { continue };
            let one_id = match &mad.message {
                // A connection without the other end's id can check only our id in these messages.
                Message::Rej(_) | Message::Mra(_) | Message::Rep(_) => true,
                Message::Req(req) => victims.ids.iter().any(|id| {
                    let (victim, rep) = victims.probe.cm.messages(*id).unwrap();
                    victim.ca_guid == req.ca_guid || rep.is_some_and(|rep| rep.ca_guid == req.ca_guid)
                }),
                _ => false,
            };
            if one_id {
                continue;
            }
            let probe = &mut victims.probe;
            let _ = probe.cm.handle_mad(probe.now, route(1), &mad.emit());
            probe.out();
            for (k, (a, b)) in victims.records().iter().zip(&before).enumerate() {
                prop_assert!(a == b, "{} by {mad:?}\n{:?}", STATES[k], victims.probe.cm.messages(victims.ids[k]));
            }
        }
        prop_assert_eq!(victims.records(), before);
    }

    /// Commands and messages in any order: no panic, and in the end nothing is left.
    #[test]
    fn any_sequence_ends(seed: u64) {
        let mut victims = Victims::new();
        let mut rng = Rng::new(seed);
        for n in 0..300 {
            let (ours, theirs, their_req) = match victims.ids.is_empty() {
                true => (CommId(1), THEIRS, req()),
                false => {
                    let known: Vec<_> = victims.ids.iter().filter(|id| victims.probe.cm.messages(**id).is_some()).copied().collect();
                    victims.ids = known;
                    if victims.ids.is_empty() { (CommId(1), THEIRS, req()) } else { victims.names(n) }
                }
            };
            step(&mut victims.probe, &mut rng, ours, theirs, &their_req);
            let probe = &mut victims.probe;
            while probe.cm.poll_transmit().is_some() {}
            for event in probe.events() {
                prop_assert_eq!(ConnectionManager::owner(event.id), event.owner);
                victims.ids.push(event.id);
            }
            prop_assert!(probe.cm.in_use() <= 1000);
        }
        let probe = &mut victims.probe;
        probe.cm.close_owner(probe.now, 9, usize::MAX);
        probe.events();
        while probe.tick() {}
        prop_assert!(probe.cm.is_empty());
        prop_assert!(probe.events().is_empty());
    }

    #[test]
    fn any_bytes(mads in prop::collection::vec(prop::collection::vec(any::<u8>(), 250..260), 1..20)) {
        let mut victims = Victims::new();
        let before = victims.records();
        for mut mad in mads {
            let _ = victims.probe.cm.handle_mad(Instant::ZERO, route(1), &mad);
            if let Some(header) = mad.first_chunk_mut() {
                *header = [1, 7, 2, 3, 0, 0];
            }
            let _ = victims.probe.cm.handle_mad(Instant::ZERO, route(1), &mad);
        }
        prop_assert_eq!(victims.records(), before);
    }
}

fn step(probe: &mut Probe, rng: &mut Rng, ours: CommId, theirs: CommId, their_req: &Req) {
    let now = probe.now;
    let fresh = Qpn::new(rng.next_u64() as u32);
    match rng.below(16) {
        0 => drop(probe.cm.connect(now, 9, &connect_params(1))),
        1 => drop(probe.cm.accept(now, ours, &AcceptParams::new(guid(1), qpn(1)))),
        2 => drop(probe.cm.reject(now, ours, RejReason::CONSUMER, Info::NONE, PrivateData::EMPTY)),
        3 => drop(probe.cm.establish(ours)),
        4 => drop(probe.cm.disconnect(now, ours)),
        5 => probe.cm.close(now, ours),
        6 => drop(probe.cm.send_mra(ours, CmTime::saturating(rng.below(40) as u8), rng.chance(500_000))),
        7 => drop(probe.cm.resolve(now, 9, &sidr_params(1))),
        8 => {
            let answer = SidrAnswer {
                status: SidrStatus::VALID,
                qpn: fresh,
                qkey: Qkey::new(1),
                ece: Ece::default(),
                private: PrivateData::EMPTY,
            };
            let _ = probe.cm.answer_sidr(ours, &answer);
        }
        9 => drop(probe.tick()),
        10 => {
            let peer_to_peer = ferroce_cm::ConnectParams { peer_to_peer: true, ..connect_params(1) };
            let _ = probe.cm.connect(now, 9, &peer_to_peer);
        }
        11 => {
            probe.cm.unlisten(probe.listener);
            probe.listener = probe.cm.listen(9, listen(1 + rng.below(6) as usize)).unwrap();
        }
        12 => {
            let local_id = CommId(1 + rng.below(50) as u32);
            let _ = probe.give(Message::Req(Req { local_id, qpn: fresh, ..req() }));
        }
        _ => {
            let bytes = message(rng, ours, theirs, their_req);
            let from = if rng.chance(900_000) { route(1) } else { Route { remote: address(1), ..route(1) } };
            let _ = probe.cm.handle_mad(now, from, &bytes);
        }
    }
}
