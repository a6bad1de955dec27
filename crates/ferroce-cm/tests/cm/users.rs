//! One table for all users: what one has there decides nothing for another.

use ferroce_cm::{AcceptParams, CmDropReason, CmEventKind, ConnectParams, ImportError, ListenParams, Route};
use ferroce_wire::cm::{CommId, Message, PortSpace, PrivateData, RejReason, Req, Rtu, ServiceId, SidrReq};
use ferroce_wire::{Psn, Qpn};

use crate::probe::{Probe, rep, req, rtu, sidr_req};
use crate::world::{connect_params, guid, listen, qpn, route};

/// The service of owner 8. Owner 9 listens at another one.
const OTHERS: ServiceId = PortSpace::Tcp.service_id(7175);
const ANN: u32 = 2001;
const BOB: u32 = 2002;

/// Owner 9 is Ann's, and owner 8 of `user`.
fn probe(user: u32) -> Probe {
    let mut probe = Probe::new();
    probe.cm.set_user(9, ANN);
    probe.cm.set_user(8, user);
    probe.cm.listen(8, ListenParams { service_id: OTHERS, ..listen(0) }).unwrap();
    probe
}

/// The reason of the REJ to the last message.
fn reason(probe: &mut Probe) -> Option<RejReason> {
    probe.out().iter().rev().find_map(|message| match message {
        Message::Rej(rej) => Some(rej.reason),
        _ => None,
    })
}

/// The same queue pair of a peer, by a REQ and by a REP.
#[test]
fn a_connection_is_stale_for_its_own_user_alone() {
    let to_others = Req { local_id: CommId(77), service_id: OTHERS, ..req() };
    for (user, stale) in [(ANN, true), (BOB, false)] {
        let mut probe = probe(user);
        let old = probe.established();
        let taken = probe.give(Message::Req(to_others));
        assert_eq!(taken, if stale { Err(CmDropReason::Refused) } else { Ok(()) });
        assert_eq!(reason(&mut probe), stale.then_some(RejReason::STALE_CONNECTION));
        assert_eq!(probe.cm.state(old), Some(if stale { "DREQ sent" } else { "established" }));
    }
    for (user, stale) in [(ANN, true), (BOB, false)] {
        let mut probe = probe(user);
        let old = probe.established();
        let id = probe.cm.connect(probe.now, 8, &connect_params(1)).unwrap();
        probe.out();
        let taken = probe.give(Message::Rep(rep(id)));
        assert_eq!(taken, if stale { Err(CmDropReason::Refused) } else { Ok(()) });
        assert_eq!(matches!(probe.event().kind, CmEventKind::Reply { .. }), !stale);
        assert_eq!(probe.cm.state(old), Some(if stale { "DREQ sent" } else { "established" }));
    }
}

/// A user with a peer of its own could end its connections by REQs until no connection of the host may end
/// so.
#[test]
fn a_user_uses_up_its_own_allowance_of_stale_connections() {
    let mut probe = probe(BOB);
    let of = |n: u32, base: u32, service_id| Req {
        local_id: CommId(base + n),
        qpn: Qpn::new(0x100 + n),
        service_id,
        ..req()
    };
    let ann = probe.established();
    for n in 0..300 {
        let id = probe.request(of(n, 1000, OTHERS));
        probe.cm.accept(probe.now, id, &AcceptParams::new(guid(1), Qpn::new(0x9000 + n))).unwrap();
        let rtu = Rtu { local_id: CommId(1000 + n), remote_id: id, private: PrivateData::EMPTY };
        probe.give(Message::Rtu(rtu)).unwrap();
        probe.event();
    }
    probe.out();
    let last = (0..300).map(|n| probe.give(Message::Req(of(n, 5000, OTHERS)))).last();
    assert_eq!(last, Some(Err(CmDropReason::Backlog)), "it is used up");
    assert_eq!(probe.give(Message::Req(Req { local_id: CommId(77), ..req() })), Err(CmDropReason::Refused));
    assert_eq!(probe.cm.state(ann), Some("DREQ sent"));
}

/// A communication id of a peer that is in use, here known to its sender by chance.
#[test]
fn an_id_names_one_request_to_each_user() {
    let first = Req { service_id: OTHERS, qpn: Qpn::new(5), starting_psn: Psn::new(5), ..req() };
    for (user, refused) in [(ANN, Some(RejReason::DUPLICATE_COMM_ID)), (BOB, None)] {
        let mut probe = probe(user);
        probe.request(first);
        let taken = probe.give(Message::Req(req()));
        assert_eq!((taken.is_err(), reason(&mut probe)), (refused.is_some(), refused));
        if refused.is_none() {
            let id = probe.event().id;
            // Both are known when they come again, and by whom.
            for (again, owner) in [(first, 8), (req(), 9)] {
                assert_eq!(probe.cm.recipient(route(1), &Message::Req(again)), Some(owner));
                assert_eq!(probe.give(Message::Req(again)), Err(CmDropReason::Duplicate));
            }
            probe.cm.accept(probe.now, id, &AcceptParams::new(guid(1), qpn(1))).unwrap();
            probe.give(rtu(id)).unwrap();
            // Without a listener, too.
            probe.cm.unlisten(probe.listener);
            assert_eq!(probe.give(Message::Req(req())), Err(CmDropReason::Duplicate));
        }
        probe.cm.close_owner(probe.now, 8, usize::MAX);
        probe.cm.close_owner(probe.now, 9, usize::MAX);
        while probe.tick() {}
        assert!(probe.cm.is_empty());
    }
}

#[test]
fn an_id_names_one_sidr_request_to_each_user() {
    for (user, second) in [(ANN, Err(CmDropReason::Duplicate)), (BOB, Ok(()))] {
        let mut probe = probe(user);
        probe.give(Message::SidrReq(SidrReq { service_id: OTHERS, ..sidr_req() })).unwrap();
        assert_eq!(probe.event().owner, 8);
        assert_eq!(probe.give(Message::SidrReq(sidr_req())), second);
        assert_eq!(probe.events().first().map(|event| event.owner), second.is_ok().then_some(9));
        probe.cm.close_owner(probe.now, 8, usize::MAX);
        probe.cm.close_owner(probe.now, 9, usize::MAX);
        assert!(probe.cm.is_empty());
    }
}

/// Peers' requests count for the user of the listener, whichever of its programs has it, and so does what is left of them.
#[test]
fn a_user_has_one_share_of_connections() {
    for (own, taken) in [(BOB, Ok(())), (ANN, Err(CmDropReason::Backlog))] {
        let mut probe = probe(BOB);
        probe.cm.bound_users(own, 2);
        probe.cm.set_user(7, BOB);
        let of_seven = ServiceId(OTHERS.0 + 1);
        probe.cm.listen(7, ListenParams { service_id: of_seven, ..listen(0) }).unwrap();
        let mut number = 10;
        let mut ask = |probe: &mut Probe, service_id| {
            number += 1;
            let ids = Req { local_id: CommId(number), qpn: Qpn::new(number), ..req() };
            probe.give(Message::Req(Req { service_id, ..ids }))
        };
        assert_eq!(ask(&mut probe, OTHERS), Ok(()));
        assert_eq!(ask(&mut probe, of_seven), Ok(()));
        assert_eq!((probe.cm.in_use_by(BOB), probe.cm.in_use_by(ANN)), (2, 0));
        assert_eq!(ask(&mut probe, OTHERS), taken);
        assert_eq!(probe.give(Message::Req(req())), Ok(()), "Ann has a share of her own");
    }
}

/// The slot of a program that ended is another user's program's.
#[test]
fn what_is_left_of_connections_counts_for_their_user() {
    let mut probe = probe(BOB);
    probe.established();
    probe.cm.close_owner(probe.now, 9, usize::MAX);
    probe.cm.set_user(9, BOB);
    assert_eq!((probe.cm.in_use_by(ANN), probe.cm.in_use_by(BOB)), (1, 0));
    while probe.tick() {}
    assert_eq!((probe.cm.in_use(), probe.cm.in_use_by(ANN)), (0, 0));
}

/// A peer-to-peer REQ for a service at which another user listens.
#[test]
fn nobody_crosses_the_requests_to_another_users_listener() {
    let greedy = ConnectParams { peer_to_peer: true, ca_guid: u64::MAX, ..connect_params(1) };
    for (user, taken) in [(ANN, Err(CmDropReason::Duplicate)), (BOB, Ok(()))] {
        let mut probe = probe(user);
        probe.cm.connect(probe.now, 8, &greedy).unwrap();
        probe.out();
        assert_eq!(probe.give(Message::Req(req())), taken);
        assert_eq!(probe.events().first().map(|event| event.owner), taken.is_ok().then_some(9));
    }
}

#[test]
fn a_record_takes_what_another_user_has() {
    for (user, taken) in [(ANN, false), (BOB, true)] {
        let mut bobs = probe(user);
        let id = bobs.request(Req { service_id: OTHERS, ..req() });
        let record = bobs.cm.export(bobs.now, id).unwrap();
        let mut heir = probe(user);
        heir.established();
        let want = if taken { Ok(id) } else { Err(ImportError::InUse) };
        assert_eq!(heir.cm.import(heir.now, 8, &record, |at: &Route| *at == route(1)), want);
    }
}
