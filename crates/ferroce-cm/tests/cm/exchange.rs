//! Rules that one message shows: give this, expect that.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ferroce_cm::{
    AcceptParams, CmDropReason, CmError, CmEventKind, ConnectParams, ConnectionManager, Disconnect, Route,
    attributes,
};
use ferroce_wire::cm::{
    About, AprStatus, CmTime, CommId, Ece, Info, IpCmHeader, Lap, Mad, Message, Mra, PortSpace, PrivateData,
    Rej, RejReason, Req, Rtu, Transport,
};
use ferroce_wire::{Pkey, Psn, Qpn};

use crate::probe::{Probe, THEIRS, TID, drep, dreq, lap, rej, rep, req, rtu};
use crate::world::{MS, SECOND, SERVICE, connect_params, guid, manager, qpn, route, sidr_params};

/// Where the peer is not.
pub const ELSEWHERE: Route = Route {
    local: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
    remote: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    interface: 0,
};

pub fn accept() -> AcceptParams {
    AcceptParams {
        responder_resources: 2,
        initiator_depth: 3,
        private: PrivateData([8; 196]),
        ece: Ece { vendor_id: 0x1234, options: 5 },
        ..AcceptParams::new(guid(1), qpn(1))
    }
}

#[test]
fn what_is_agreed_reaches_both_ends() {
    let mut probe = Probe::new();
    let id = probe.request(Req { ece: Ece { vendor_id: 1, options: 2 }, ..req() });
    assert_eq!(ConnectionManager::owner(id), 9);
    let (seen, none) = probe.cm.messages(id).unwrap();
    assert_eq!((seen.ece.options, none), (2, None));
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    let Message::Rep(sent) = probe.only() else { panic!() };
    assert_eq!((sent.local_id, sent.remote_id), (id, THEIRS));
    assert_eq!((sent.private.0, sent.ece), ([8; 196], accept().ece));
    let (seen, ours) = probe.cm.messages(id).unwrap();
    assert_eq!(ours, Some(&sent));

    let passive = attributes::passive(seen, sent.starting_psn, 3, 2).unwrap();
    let active = attributes::active(seen, &sent, CmTime::saturating(16)).unwrap();
    assert_eq!((active.dest_qp, passive.dest_qp), (qpn(1), qpn(0)));
    assert_eq!((active.sq_psn, passive.sq_psn), (passive.rq_psn, active.rq_psn));
    assert_eq!(active.rq_psn, Psn::new(0x1d38dd));
    assert_eq!((active.max_rd_atomic, active.max_dest_rd_atomic), (2, 3));
    assert_eq!((passive.max_rd_atomic, passive.max_dest_rd_atomic), (3, 2));
    assert_eq!((active.timeout, passive.timeout), (17, 17));
    assert_eq!((active.retry_cnt, passive.retry_cnt), (5, 5));
    assert_eq!((active.rnr_retry, passive.rnr_retry), (7, 6));
    assert_eq!(active.path_mtu, passive.path_mtu);
    assert!(active.remote_reads && passive.remote_reads);
}

#[test]
fn a_req_says_what_the_program_asked_for() {
    let mut cm = manager(1);
    let id = cm.connect(ferroce_wire::Instant::ZERO, 200, &connect_params(0)).unwrap();
    let sent = cm.poll_transmit().unwrap();
    assert_eq!(sent.route, route(0));
    let Message::Req(req) = Mad::parse(&sent.mad[..]).unwrap().message else { panic!() };
    assert_eq!((req.local_id, id.0 >> 20), (id, 200));
    // As captured from kernel 6.12: routed, hop limit 64, ACK timeout 17.
    assert_eq!((req.primary.local_lid, req.primary.hop_limit, req.primary.subnet_local), (0xffff, 64, false));
    assert_eq!(req.primary.ack_timeout.code(), 17);
    assert_eq!((req.remote_timeout.code(), req.local_timeout.code(), req.max_cm_retries), (20, 20, 15));
    assert_eq!((req.pkey, req.service_id), (Pkey::DEFAULT, SERVICE));
    assert_eq!(req.private, connect_params(0).private);
}

#[test]
fn refusals_have_their_reasons() {
    let nobody = PortSpace::Tcp.service_id(1);
    let cases: [(&str, Req, RejReason); 5] = [
        ("nobody listens", Req { service_id: nobody, ..req() }, RejReason::INVALID_SERVICE_ID),
        (
            "another port space",
            Req { service_id: PortSpace::Udp.service_id(7174), ..req() },
            RejReason::INVALID_SERVICE_ID,
        ),
        ("RD", Req { transport: Transport::Rd, ..req() }, RejReason::INVALID_TRANSPORT_TYPE),
        ("unknown", Req { transport: Transport::Extended(2), ..req() }, RejReason::INVALID_TRANSPORT_TYPE),
        ("P_Key", Req { pkey: Pkey::new(0x8001), ..req() }, RejReason::UNSUPPORTED),
    ];
    for (name, req, reason) in cases {
        let mut probe = Probe::new();
        assert_eq!(probe.give(Message::Req(req)), Err(CmDropReason::Refused), "{name}");
        assert_eq!(probe.rejected(), (CommId::NONE, THEIRS, About::REQ, reason), "{name}");
        assert!(probe.events().is_empty() && probe.cm.in_use() == 0, "{name}");
    }
}

/// Private data reach no listener on another address, and no peer can take another one's address with them.
#[test]
fn addresses_that_are_not_the_packets_find_no_listener() {
    let [source, destination] = [0, 1].map(crate::world::address);
    for (source, destination) in [(destination, source), (source, source), (destination, destination)] {
        let mut probe = Probe::new();
        let header = IpCmHeader { source_port: 999, source, destination }.emit();
        let private = PrivateData::new(&header).unwrap();
        assert_eq!(probe.give(Message::Req(Req { private, ..req() })), Err(CmDropReason::Refused));
        assert_eq!(probe.rejected().3, RejReason::INVALID_SERVICE_ID);
        assert!(probe.events().is_empty() && probe.cm.in_use() == 0);
    }
}

/// The refusal gives the peer the largest MTU (IBTA 12.6.7).
#[test]
fn an_invalid_path_mtu_is_refused() {
    for path_mtu in [0, 6, 7] {
        let mut probe = Probe::new();
        assert_eq!(probe.give(Message::Req(Req { path_mtu, ..req() })), Err(CmDropReason::Refused));
        let Message::Rej(rej) = probe.only() else { panic!() };
        assert_eq!((rej.reason, rej.info.get()), (RejReason::INVALID_MTU, &[5][..]));
        assert!(probe.events().is_empty() && probe.cm.in_use() == 0);
    }
}

#[test]
fn nonsense_is_ignored() {
    let mut probe = Probe::new();
    for (at, value) in [(0, 1), (0, 0x10), (1, 0x50)] {
        let mut private = req().private;
        private.0[at] = value;
        assert_eq!(probe.give(Message::Req(Req { private, ..req() })), Err(CmDropReason::Invalid));
    }
    assert_eq!(probe.give(Message::Req(Req { local_id: CommId::NONE, ..req() })), Err(CmDropReason::Invalid));
    assert!(probe.out().is_empty() && probe.events().is_empty());
    assert_eq!((probe.cm.counters().rx_msgs.total(), probe.cm.counters().dropped()), (4, 4));
}

#[test]
fn a_req_of_another_class_version_is_rejected() {
    let mut probe = Probe::new();
    let mut bytes = Mad { transaction_id: TID, message: Message::Req(req()) }.emit();
    bytes[2] = 3;
    assert!(matches!(probe.cm.handle_mad(probe.now, route(1), &bytes), Err(CmDropReason::Malformed(_))));
    assert_eq!(probe.rejected(), (CommId::NONE, THEIRS, About::REQ, RejReason::CLASS_VERSION));
}

#[test]
fn an_id_names_one_request() {
    let mut probe = Probe::new();
    probe.request(req());
    assert_eq!(probe.give(Message::Req(req())), Err(CmDropReason::Duplicate));
    assert!(probe.out().is_empty());
    for other in [Req { qpn: Qpn::new(9), ..req() }, Req { starting_psn: Psn::new(9), ..req() }] {
        assert_eq!(probe.give(Message::Req(other)), Err(CmDropReason::Refused));
        assert_eq!(probe.rejected().3, RejReason::DUPLICATE_COMM_ID);
    }
    assert_eq!(probe.cm.in_use(), 1);
}

#[test]
fn a_queue_pair_that_turns_up_again_ends_its_old_connection() {
    let mut probe = Probe::new();
    let old = probe.established();
    let again = Req { local_id: CommId(77), ..req() };
    assert_eq!(probe.give(Message::Req(again)), Err(CmDropReason::Refused));
    let out = probe.out();
    assert!(matches!(out[0], Message::Dreq(dreq) if (dreq.local_id, dreq.remote_qpn) == (old, qpn(0))));
    assert!(matches!(out[1], Message::Rej(rej) if rej.reason == RejReason::STALE_CONNECTION));

    probe.give(drep(old)).unwrap();
    assert_eq!(probe.event().kind, CmEventKind::Disconnected(Disconnect::ByUs));
    assert_eq!(probe.cm.state(old), Some("time-wait"));
    // Reserved during time-wait: refused, and nothing to end.
    assert_eq!(probe.give(Message::Req(again)), Err(CmDropReason::Refused));
    assert_eq!(probe.rejected().3, RejReason::STALE_CONNECTION);
    // The same number at another address is another queue pair.
    assert_eq!(probe.cm.poll_timeout().map(|at| at > probe.now), Some(true));
    probe.later(1);
    assert_eq!(probe.event().kind, CmEventKind::TimeWaitOver);
    probe.request(again);
}

/// A sender with the peer's address guesses queue pair numbers: only a limited number of guesses counts.
#[test]
fn only_so_many_connections_end_as_stale_in_a_while() {
    const ALL: u32 = 300;
    const AT_ONCE: u32 = 256;
    let mut probe = Probe::new();
    let of = |base: u32, n: u32| Req { local_id: CommId(base + n), qpn: Qpn::new(0x100 + n), ..req() };
    for n in 0..ALL {
        let id = probe.request(of(1000, n));
        probe.cm.accept(probe.now, id, &AcceptParams::new(guid(1), Qpn::new(0x9000 + n))).unwrap();
        let rtu = Rtu { local_id: CommId(1000 + n), remote_id: id, private: PrivateData::EMPTY };
        probe.give(Message::Rtu(rtu)).unwrap();
        assert_eq!(probe.event().kind, CmEventKind::Established);
        probe.out();
    }
    let ended =
        |out: &[Message]| out.iter().filter(|message| matches!(message, Message::Dreq(_))).count() as u32;
    let mut sum = 0;
    for n in 0..ALL {
        let verdict = probe.give(Message::Req(of(5000, n)));
        let out = probe.out();
        sum += ended(&out);
        let (want, answers) =
            if n < AT_ONCE { (CmDropReason::Refused, 2) } else { (CmDropReason::Backlog, 0) };
        assert_eq!((verdict, out.len()), (Err(want), answers), "{n}");
    }
    assert_eq!(sum, AT_ONCE);
    // A peer that did start anew repeats its REQ, which is then accepted.
    probe.now += SECOND;
    assert_eq!(probe.give(Message::Req(of(5000, ALL - 1))), Err(CmDropReason::Refused));
    assert_eq!(ended(&probe.out()), 1);
}

#[test]
fn a_rep_with_a_connected_queue_pair_is_stale() {
    let mut probe = Probe::new();
    let old = probe.established();
    let id = probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    probe.out();
    assert_eq!(probe.give(Message::Rep(rep(id))), Err(CmDropReason::Refused));
    let out = probe.out();
    assert!(matches!(out[0], Message::Rej(rej)
        if (rej.reason, rej.about, rej.remote_id) == (RejReason::STALE_CONNECTION, About::REP, THEIRS)));
    assert!(matches!(out[1], Message::Dreq(dreq) if dreq.local_id == old));
    let event = probe.event();
    assert!(matches!(event.kind, CmEventKind::Rejected { reason: RejReason::STALE_CONNECTION, .. }));
    assert_eq!((event.id, probe.cm.state(id)), (id, None));
}

#[test]
fn strangers_get_their_answers() {
    let mut probe = Probe::new();
    let unknown = CommId(0x0900_0001);
    assert_eq!(probe.give(Message::Rep(rep(unknown))), Err(CmDropReason::UnknownId));
    assert_eq!(probe.rejected(), (CommId::NONE, THEIRS, About::REP, RejReason::INVALID_COMM_ID));
    assert_eq!(probe.give(dreq(unknown)), Err(CmDropReason::UnknownId));
    let Message::Drep(drep_) = probe.only() else { panic!() };
    assert_eq!((drep_.local_id, drep_.remote_id), (unknown, THEIRS));
    for message in [rtu(unknown), drep(unknown), rej(unknown, About::REP, RejReason::CONSUMER)] {
        assert_eq!(probe.give(message), Err(CmDropReason::UnknownId));
    }
    assert!(probe.out().is_empty() && probe.events().is_empty());
}

/// Refuses a sender that knows everything but cannot send from the peer's address, and the peer about an unknown
/// connection.
#[test]
fn only_the_peer_can_touch_a_connection() {
    let mut probe = Probe::new();
    let id = probe.established();
    let messages = [
        rtu(id),
        dreq(id),
        drep(id),
        rej(id, About::REP, RejReason::CONSUMER),
        rej(id, About::OTHER, RejReason::TIMEOUT),
        Message::Rep(rep(id)),
    ];
    for message in messages {
        for from in [ELSEWHERE, Route { interface: 3, ..route(1) }] {
            assert!(probe.give_from(from, message).is_err(), "{message:?}");
        }
    }
    // From the right address, with another id of theirs.
    for mut message in messages {
        match &mut message {
            Message::Rtu(m) => m.local_id.0 += 1,
            Message::Dreq(m) => m.local_id.0 += 1,
            Message::Drep(m) => m.local_id.0 += 1,
            Message::Rej(m) => m.local_id.0 += 1,
            Message::Rep(m) => m.local_id.0 += 1,
            _ => unreachable!(),
        }
        assert_eq!(probe.give(message), Err(CmDropReason::WrongPeer), "{message:?}");
    }
    // For another queue pair.
    let Message::Dreq(mut wrong) = dreq(id) else { unreachable!() };
    wrong.remote_qpn = Qpn::new(5);
    assert_eq!(probe.give(Message::Dreq(wrong)), Err(CmDropReason::WrongPeer));
    assert!(probe.events().is_empty());
    assert_eq!(probe.cm.state(id), Some("established"));
    probe.give(dreq(id)).unwrap();
    assert_eq!(probe.event().kind, CmEventKind::Disconnected(Disconnect::ByPeer));
}

#[test]
fn only_the_peer_that_was_asked_can_answer() {
    let mut probe = Probe::new();
    let id = probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    probe.out();
    for message in [Message::Rep(rep(id)), rej(id, About::REQ, RejReason::CONSUMER)] {
        for from in [ELSEWHERE, Route { interface: 3, ..route(1) }] {
            assert_eq!(probe.give_from(from, message), Err(CmDropReason::WrongPeer), "{message:?}");
        }
    }
    assert!(probe.out().is_empty() && probe.events().is_empty());
    probe.give(Message::Rep(rep(id))).unwrap();
}

/// A REQ that came twice and late, when the listener was gone.
#[test]
fn a_refused_duplicate_req_does_not_end_what_the_first_began() {
    let mut probe = Probe::new();
    let id = probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    probe.give(Message::Rep(rep(id))).unwrap();
    let refusal = Message::Rej(Rej {
        local_id: CommId::NONE,
        remote_id: id,
        about: About::REQ,
        reason: RejReason::INVALID_SERVICE_ID,
        info: Info::NONE,
        private: PrivateData::EMPTY,
    });
    assert_eq!(probe.give(refusal), Err(CmDropReason::Duplicate));
    probe.cm.establish(id).unwrap();
    assert_eq!(probe.give(refusal), Err(CmDropReason::Duplicate));
    assert_eq!(probe.cm.state(id), Some("established"));
}

/// A REJ without an id says only that its sender does not know our id. About a REQ or REP it answers a message older
/// than our DREQ, or is forged: the DREQ still needs its answer.
#[test]
fn a_refusal_of_older_messages_does_not_answer_the_dreq() {
    let mut probe = Probe::new();
    let id = probe.established();
    probe.cm.disconnect(probe.now, id).unwrap();
    let refusal = |about| {
        Message::Rej(Rej {
            local_id: CommId::NONE,
            remote_id: id,
            about,
            reason: RejReason::INVALID_COMM_ID,
            info: Info::NONE,
            private: PrivateData::EMPTY,
        })
    };
    assert_eq!(probe.give(refusal(About::REQ)), Err(CmDropReason::WrongPeer));
    assert_eq!(probe.give(refusal(About::REP)), Err(CmDropReason::WrongPeer));
    assert_eq!(probe.cm.state(id), Some("DREQ sent"));
    assert!(probe.events().is_empty());
    probe.give(refusal(About::OTHER)).unwrap();
    assert_eq!(probe.event().kind, CmEventKind::Disconnected(Disconnect::ByUs));
}

#[test]
fn who_gave_up_takes_its_request_back() {
    let mut probe = Probe::new();
    let id = probe.request(req());
    let info = Info::new(&guid(0).to_be_bytes());
    let timeout = Rej {
        local_id: THEIRS,
        remote_id: CommId::NONE,
        about: About::REQ,
        reason: RejReason::TIMEOUT,
        info,
        private: PrivateData::EMPTY,
    };
    assert_eq!(probe.give(Message::Rej(Rej { info: Info::NONE, ..timeout })), Err(CmDropReason::Invalid));
    assert!(probe.give_from(ELSEWHERE, Message::Rej(timeout)).is_err());
    probe.give(Message::Rej(timeout)).unwrap();
    let event = probe.event();
    assert!(matches!(event.kind, CmEventKind::Rejected { reason: RejReason::TIMEOUT, .. }));
    assert_eq!((event.id, probe.cm.in_use()), (id, 0));
    assert_eq!(probe.cm.accept(probe.now, id, &accept()), Err(CmError::UnknownId(id)));
}

#[test]
fn alternate_paths_are_refused() {
    let mut probe = Probe::new();
    let id = probe.established();
    let lap = lap(id);
    assert_eq!(probe.give(Message::Lap(lap)), Err(CmDropReason::Refused));
    assert!(
        matches!(probe.only(), Message::Apr(apr) if (apr.status, apr.remote_id) == (AprStatus::UNSUPPORTED, THEIRS))
    );
    assert_eq!(probe.give(Message::Lap(Lap { remote_id: CommId(9), ..lap })), Err(CmDropReason::UnknownId));
    assert!(probe.out().is_empty());
    let mut alternate = req();
    (alternate.local_id, alternate.qpn) = (CommId(5), Qpn::new(5));
    alternate.alternate.remote_gid.0[15] = 1;
    let id = probe.request(alternate);
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    assert!(matches!(probe.only(), Message::Rep(rep) if rep.failover == 1));
}

#[test]
fn an_mra_puts_off_the_end_once() {
    let mut probe = Probe::new();
    let id = probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    let mra = |code| {
        Message::Mra(Mra {
            local_id: THEIRS,
            remote_id: id,
            about: About::REQ,
            service_timeout: CmTime::saturating(code),
            private: PrivateData::EMPTY,
        })
    };
    assert!(probe.give_from(ELSEWHERE, mra(24)).is_err());
    // 8796 s are asked for, 69 s are given.
    probe.give(mra(31)).unwrap();
    let until = probe.cm.poll_timeout().unwrap();
    assert!(until > probe.now + SECOND * 68 && until < probe.now + SECOND * 80, "{until:?}");
    assert_eq!(probe.give(mra(31)), Err(CmDropReason::Duplicate));
    assert_eq!(probe.cm.poll_timeout(), Some(until));
    while probe.tick() {}
    let event = probe.event();
    assert_eq!((event.id, event.kind), (id, CmEventKind::Unreachable));
    assert!(probe.now < ferroce_wire::Instant::ZERO + SECOND * 160, "{:?}", probe.now);
}

#[test]
fn an_mra_can_wait_for_a_second_req() {
    let mut probe = Probe::new();
    let id = probe.request(req());
    probe.cm.send_mra(id, CmTime::saturating(24), false).unwrap();
    assert!(probe.out().is_empty());
    assert_eq!(probe.give(Message::Req(req())), Err(CmDropReason::Duplicate));
    assert!(matches!(probe.only(), Message::Mra(mra)
        if (mra.about, mra.service_timeout.code(), mra.remote_id) == (About::REQ, 24, THEIRS)));
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    assert_eq!(probe.cm.send_mra(id, CmTime::saturating(24), false), Err(CmError::State("REP sent")));
}

#[test]
fn sixteen_reqs_and_an_end() {
    let mut probe = Probe::new();
    probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    while probe.tick() {}
    let out = probe.out();
    let Some((Message::Rej(last), reqs)) = out.split_last() else { panic!("{out:?}") };
    assert_eq!((last.reason, last.about, last.remote_id), (RejReason::TIMEOUT, About::REQ, CommId::NONE));
    assert_eq!(last.info.get(), guid(1).to_be_bytes());
    assert_eq!(reqs.len(), 16);
    assert!(reqs.iter().all(|req| *req == reqs[0]));
    assert_eq!(probe.event().kind, CmEventKind::Unreachable);
    // Linux counts 74 s.
    let took = probe.now.saturating_since(ferroce_wire::Instant::ZERO);
    assert!((74..80).contains(&took.as_secs()), "{took:?}");
    assert_eq!(probe.cm.in_use(), 0);
}

/// A process that had no processor notices its timers late. That is no silence of the peer, which may have had none either: the last
/// message is repeated until an expiry is noticed in time.
#[test]
fn expiries_that_are_noticed_late_end_nothing() {
    let begin: [(fn(&mut Probe), _); 3] = [
        (|probe| assert!(probe.cm.connect(probe.now, 9, &connect_params(1)).is_ok()), 1),
        (|probe| assert!(probe.cm.resolve(probe.now, 9, &sidr_params(1)).is_ok()), 0),
        (
            |probe| {
                let id = probe.request(req());
                probe.cm.accept(probe.now, id, &accept()).unwrap();
            },
            1,
        ),
    ];
    for (begin, rejects) in begin {
        let mut probe = Probe::new();
        begin(&mut probe);
        assert_eq!(probe.out().len(), 1);
        for _ in 0..100 {
            probe.now = probe.cm.poll_timeout().unwrap() + SECOND * 2;
            probe.cm.handle_timeout(probe.now);
            assert_eq!(probe.out().len(), 1);
        }
        probe.tick();
        assert_eq!((probe.out().len(), probe.event().kind), (rejects, CmEventKind::Unreachable));
    }
}

#[test]
fn data_are_as_good_as_an_rtu() {
    let mut probe = Probe::new();
    let id = probe.request(req());
    assert_eq!(probe.cm.establish(id), Err(CmError::State("REQ received")));
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    probe.cm.establish(id).unwrap();
    assert_eq!(probe.event().kind, CmEventKind::Established);
    assert_eq!(probe.give(rtu(id)), Err(CmDropReason::Duplicate));
    assert_eq!(probe.cm.establish(id), Ok(()));
    assert!(probe.events().is_empty());
    assert_eq!(probe.cm.poll_timeout(), None);
}

#[test]
fn a_dead_program_leaves_nothing() {
    let mut probe = Probe::new();
    let connected = probe.established();
    let asked = probe.request(Req { local_id: CommId(2), qpn: Qpn::new(2), ..req() });
    let replied = probe.request(Req { local_id: CommId(3), qpn: Qpn::new(3), ..req() });
    probe.cm.accept(probe.now, replied, &accept()).unwrap();
    let asking = probe.cm.connect(probe.now, 9, &connect_params(1)).unwrap();
    probe.cm.resolve(probe.now, 9, &sidr_params(1)).unwrap();
    let other = probe.cm.connect(probe.now, 8, &connect_params(1)).unwrap();
    probe.out();
    let mut theirs = vec![connected, asked, replied, asking];
    theirs.sort();
    assert_eq!(probe.cm.connections_of(9).collect::<Vec<_>>(), theirs);
    assert_eq!((probe.cm.route(asked), probe.cm.route(CommId(1))), (Some(route(1)), None));

    probe.cm.close_owner(probe.now, 9, usize::MAX);
    assert_eq!(probe.cm.connections_of(9).count(), 0);
    let mut told = BTreeSet::new();
    for message in probe.out() {
        told.insert(match message {
            Message::Dreq(dreq) => (dreq.local_id, "DREQ"),
            Message::Rej(rej) => (rej.local_id, "REJ"),
            other => panic!("{other:?}"),
        });
    }
    let want = [(connected, "DREQ"), (asked, "REJ"), (replied, "REJ"), (asking, "REJ")];
    assert_eq!(told, want.into_iter().collect());
    assert_eq!(probe.cm.disconnect(probe.now, connected), Err(CmError::UnknownId(connected)));
    assert!(probe.cm.state(other).is_some());
    assert_eq!(probe.give(Message::Req(req())), Err(CmDropReason::Duplicate));
    probe.cm.close(probe.now, other);
    while probe.tick() {}
    assert!(probe.events().is_empty());
    assert!(probe.cm.is_empty(), "{:?}", probe.cm);
}

#[test]
fn ids_carry_their_owner_and_are_not_guessed() {
    let ids = |seed| {
        let mut cm = manager(seed);
        (0..400)
            .map(|n| {
                let params = ConnectParams { qpn: Qpn::new(n), ..connect_params(0) };
                let id = cm.connect(ferroce_wire::Instant::ZERO, 254, &params).unwrap();
                let (req, _) = cm.messages(id).unwrap();
                (id.0, req.starting_psn.value())
            })
            .collect::<Vec<_>>()
    };
    let (a, b) = (ids(1), ids(2));
    assert!(a.iter().all(|(id, _)| id >> 20 == 254));
    assert_eq!(a, ids(1));
    let all: BTreeSet<_> = a.iter().chain(&b).flat_map(|(id, psn)| [*id & 0xff_ffff, *psn]).collect();
    // 1600 draws of 24 bits: few coincide.
    assert!(all.len() > 1590, "{}", all.len());
    let steps: BTreeSet<_> = a.windows(2).map(|pair| pair[1].0.wrapping_sub(pair[0].0)).collect();
    assert!(steps.len() > 390, "{}", steps.len());
}

#[test]
fn xrc_names_its_target_elsewhere() {
    let mut probe = Probe::new();
    let id = probe.request(Req { transport: Transport::XRC, ..req() });
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    let Message::Rep(rep) = probe.only() else { panic!() };
    assert_eq!((rep.qpn, rep.eecn, rep.srq), (Qpn::new(0), qpn(1), true));
    probe.give(rtu(id)).unwrap();
    // DREQ names the target.
    probe.give(dreq(id)).unwrap();
}

#[test]
fn a_peer_that_repeats_too_soon_gets_an_mra() {
    let mut probe = Probe::new();
    let id = probe.request(Req { local_timeout: CmTime::saturating(0), ..req() });
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    assert_eq!(probe.cm.poll_timeout(), Some(probe.now + MS));
    let patient =
        Req { local_timeout: CmTime::saturating(31), local_id: CommId(9), qpn: Qpn::new(9), ..req() };
    let id = probe.request(patient);
    probe.later(1);
    probe.cm.accept(probe.now, id, &accept()).unwrap();
    while probe.tick() {}
    assert!(probe.now < ferroce_wire::Instant::ZERO + SECOND * 330, "{:?}", probe.now);
}

#[test]
fn time_wait_is_as_long_as_the_path_says_within_bounds() {
    for (code, millis) in [(0, 1), (8, 1), (17, 536), (24, 68_719), (31, 68_719)] {
        let mut probe = Probe::new();
        let mut req = req();
        req.primary.ack_timeout = CmTime::saturating(code);
        let id = probe.request(req);
        probe.cm.accept(probe.now, id, &accept()).unwrap();
        probe.give(dreq(id)).unwrap();
        probe.cm.disconnect(probe.now, id).unwrap();
        let left = probe.cm.poll_timeout().unwrap().saturating_since(probe.now);
        assert_eq!(left.as_millis(), millis, "{code}");
    }
}

#[test]
fn answers_are_of_the_transaction_they_answer() {
    let mut probe = Probe::new();
    let mut tids = Vec::new();
    let mut give = |probe: &mut Probe, transaction_id, message| {
        let mad = Mad { transaction_id, message };
        let _ = probe.cm.handle_mad(probe.now, route(1), &mad.emit());
        let id = probe.events().first().map(|event| event.id);
        if let Some(id) = id
            && !matches!(message, Message::Rtu(_))
            && probe.cm.accept(probe.now, id, &accept()).is_err()
        {
            let _ = probe.cm.disconnect(probe.now, id);
        }
        while let Some(sent) = probe.cm.poll_transmit() {
            tids.push(Mad::parse(&sent.mad[..]).unwrap().transaction_id);
        }
        id
    };
    let id = give(&mut probe, 11, Message::Req(req())).unwrap();
    give(&mut probe, 11, rtu(id));
    give(&mut probe, 22, dreq(id));
    give(&mut probe, 33, dreq(id));
    give(&mut probe, 44, dreq(CommId(5)));
    give(&mut probe, 55, Message::Rep(rep(CommId(5))));
    assert_eq!(tids, [11, 22, 33, 44, 55]);
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    let mut probe = Probe::new();
    for n in 1..=10_000 {
        let id = probe.request(Req { local_id: CommId(n), qpn: Qpn::new(n), ..req() });
        probe.cm.accept(probe.now, id, &accept()).unwrap();
        let local_id = CommId(n);
        let private = PrivateData::EMPTY;
        probe.give(Message::Rtu(ferroce_wire::cm::Rtu { local_id, remote_id: id, private })).unwrap();
        probe.cm.disconnect(probe.now, id).unwrap();
        let private = PrivateData::EMPTY;
        probe.give(Message::Drep(ferroce_wire::cm::Drep { local_id, remote_id: id, private })).unwrap();
        probe.now += MS * 2;
        probe.cm.handle_timeout(probe.now);
        probe.out();
        probe.events();
        // The connections in time-wait count, for 537 ms each.
        assert!(probe.cm.in_use() < 300, "{}", probe.cm.in_use());
    }
    while probe.tick() {}
    probe.cm.unlisten(probe.listener);
    assert!(probe.cm.is_empty());
}
