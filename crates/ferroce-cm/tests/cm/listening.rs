//! Listeners, their backlog, and questions for queue pairs of datagrams.

use ferroce_cm::{Bind, CmDropReason, CmError, CmEventKind, Kind, ListenParams, SidrAnswer};
use ferroce_wire::cm::{
    CmTime, CommId, Ece, Info, Mad, Message, PortSpace, PrivateData, RejReason, Req, SidrReq, SidrStatus,
};
use ferroce_wire::{Qkey, Qpn};

use crate::exchange::{ELSEWHERE, accept};
use crate::probe::{Probe, THEIRS, TID, dreq, req, sidr_req};
use crate::world::{SECOND, SERVICE, address, connect_params, manager, qpn, route, sidr_params};

#[test]
fn requests_beyond_the_backlog_come_again() {
    let mut probe = Probe::new();
    let asks = |n: u32| Req { local_id: CommId(n), qpn: Qpn::new(n), ..req() };
    let first = probe.request(asks(1));
    for n in 2..=4 {
        probe.request(asks(n));
    }
    assert_eq!(probe.give(Message::Req(asks(5))), Err(CmDropReason::Backlog));
    assert!(probe.out().is_empty() && probe.events().is_empty());
    let no = PrivateData::EMPTY;
    probe.cm.reject(probe.now, first, RejReason::CONSUMER, Info::NONE, no).unwrap();
    assert_eq!(probe.rejected().3, RejReason::CONSUMER);
    probe.request(asks(5));
    // An accepted one waits no longer either.
    let last = probe.cm.in_use();
    assert_eq!(probe.give(Message::Req(asks(6))), Err(CmDropReason::Backlog));
    assert_eq!(probe.cm.in_use(), last);
    // The program has fetched one, and decides later.
    let second = probe.cm.connections_of(9).next().unwrap();
    probe.cm.send_mra(second, CmTime::saturating(24), false).unwrap();
    probe.request(asks(6));
    assert_eq!(probe.give(Message::Req(asks(7))), Err(CmDropReason::Backlog));
}

/// As [`requests_beyond_the_backlog_come_again`], for datagrams: a request leaves the backlog when the
/// program has fetched it.
#[test]
fn sidr_requests_leave_the_backlog_when_they_are_fetched() {
    let mut probe = Probe::new();
    let asks = |n: u32| Message::SidrReq(SidrReq { request_id: CommId(n), ..sidr_req() });
    let mut ids = Vec::new();
    for n in 1..=4 {
        probe.give(asks(n)).unwrap();
        ids.push(probe.event().id);
    }
    assert_eq!(probe.give(asks(5)), Err(CmDropReason::Backlog));
    // A second message changes nothing, and no MRA is sent.
    for _ in 0..2 {
        probe.cm.send_mra(ids[0], CmTime::saturating(24), false).unwrap();
    }
    assert!(probe.out().is_empty());
    probe.give(asks(5)).unwrap();
    ids.push(probe.event().id);
    assert_eq!(probe.give(asks(6)), Err(CmDropReason::Backlog));
    // The first one's place was given away before its answer.
    for (id, places) in [(ids[0], 0), (ids[4], 1)] {
        let answer = SidrAnswer {
            status: SidrStatus::REJECTED,
            qpn: Qpn::new(0),
            qkey: Qkey::new(0),
            ece: Ece::default(),
            private: PrivateData::EMPTY,
        };
        probe.cm.answer_sidr(id, &answer).unwrap();
        probe.only();
        assert_eq!(probe.give(asks(7)).is_ok(), places == 1);
    }
}

/// A REP is repeated for seconds, whatever the sender of the REQ asks for.
#[test]
fn half_open_connections_end_soon() {
    let mut probe = Probe::new();
    for (n, max_cm_retries) in [(1, 15), (2, 0)] {
        let local_timeout = CmTime::saturating(31);
        let id = probe.request(Req {
            local_id: CommId(n),
            qpn: Qpn::new(n),
            local_timeout,
            max_cm_retries,
            ..req()
        });
        let start = probe.now;
        probe.cm.accept(start, id, &accept()).unwrap();
        while probe.tick() {}
        assert_eq!(probe.event().kind, CmEventKind::Unreachable);
        assert!(probe.now <= start + SECOND * 10, "{:?}", probe.now);
    }
}

#[test]
fn a_flood_is_bounded() {
    let mut probe = Probe::new();
    for n in 1..50_000 {
        let _ = probe.give(Message::Req(Req { local_id: CommId(n), qpn: Qpn::new(n), ..req() }));
        let nobody = PortSpace::Tcp.service_id(n as u16);
        let _ = probe.give(Message::Req(Req { service_id: nobody, ..req() }));
        let _ = probe.give(dreq(CommId(n)));
    }
    assert_eq!(probe.cm.in_use(), 4);
    assert!(probe.out().len() <= 4096);
    assert_eq!(probe.events().len(), 4);
}

#[test]
fn limits_are_per_owner_and_for_all() {
    let mut cm = manager(1);
    let now = ferroce_wire::Instant::ZERO;
    for owner in [1, 2] {
        for _ in 0..500 {
            cm.connect(now, owner, &connect_params(0)).unwrap();
        }
    }
    assert_eq!(cm.connect(now, 3, &connect_params(0)), Err(CmError::Full(1000)));
    cm.close_owner(now, 1, usize::MAX);
    assert_eq!(cm.connect(now, 2, &connect_params(0)), Err(CmError::Full(500)));
    assert!(cm.connect(now, 3, &connect_params(0)).is_ok());
}

#[test]
fn the_narrowest_listener_is_asked() {
    let mut cm = manager(1);
    let on = |bind| ListenParams { service_id: SERVICE, bind, kind: Kind::Connections, backlog: 0 };
    let any = cm.listen(1, on(Bind::Any)).unwrap();
    let v4 = cm.listen(2, on(Bind::AnyV4)).unwrap();
    // Written as an IPv6 address, it is still this one.
    let here = cm.listen(3, on(Bind::Address("::ffff:192.0.2.2".parse().unwrap()))).unwrap();
    assert_eq!(cm.listen(7, on(Bind::Address(address(1)))), Err(CmError::InUse(SERVICE)));
    let scoped = cm.listen(4, on(Bind::Scoped(address(1), 0))).unwrap();
    cm.listen(5, on(Bind::AnyV6)).unwrap();
    cm.listen(6, on(Bind::Address(address(0)))).unwrap();
    assert_eq!(cm.listen(7, on(Bind::Any)), Err(CmError::InUse(SERVICE)));
    assert!(cm.listen(7, ListenParams { kind: Kind::Datagrams, ..on(Bind::Any) }).is_ok());
    for (n, (listener, owner)) in [(scoped, 4), (here, 3), (v4, 2), (any, 1)].into_iter().enumerate() {
        let req = Req { local_id: CommId(n as u32 + 1), qpn: Qpn::new(n as u32), ..req() };
        let mad = Mad { transaction_id: TID, message: Message::Req(req) };
        cm.handle_mad(ferroce_wire::Instant::ZERO, route(1), &mad.emit()).unwrap();
        assert_eq!(cm.poll_event().unwrap().owner, owner);
        cm.unlisten(listener);
    }
}

#[test]
fn questions() {
    let mut probe = Probe::new();
    probe.give(Message::SidrReq(sidr_req())).unwrap();
    let event = probe.event();
    assert!(matches!(&event.kind, CmEventKind::SidrRequest { listener, .. } if *listener == probe.listener));
    assert_eq!(probe.give(Message::SidrReq(sidr_req())), Err(CmDropReason::Duplicate));
    let answer = SidrAnswer {
        status: SidrStatus::VALID,
        qpn: qpn(1),
        qkey: Qkey::new(0x0123_4567),
        ece: Ece { vendor_id: 1, options: 2 },
        private: PrivateData([3; 136]),
    };
    probe.cm.answer_sidr(event.id, &answer).unwrap();
    let Message::SidrRep(rep) = probe.only() else { panic!() };
    assert_eq!((rep.request_id, rep.service_id, rep.qpn), (THEIRS, SERVICE, qpn(1)));
    assert_eq!((rep.qkey, rep.private.0, rep.ece), (answer.qkey, [3; 136], answer.ece));
    assert_eq!(probe.cm.answer_sidr(event.id, &answer), Err(CmError::UnknownId(event.id)));

    let mut nobody = sidr_req();
    nobody.service_id = PortSpace::Udp.service_id(5);
    assert_eq!(probe.give(Message::SidrReq(nobody)), Err(CmDropReason::Refused));
    assert!(matches!(probe.only(), Message::SidrRep(rep) if rep.status == SidrStatus::UNSUPPORTED));

    let id = probe.cm.resolve(probe.now, 9, &sidr_params(1)).unwrap();
    probe.out();
    let mut reply = rep;
    assert_eq!(probe.give(Message::SidrRep(reply)), Err(CmDropReason::UnknownId));
    reply.request_id = id;
    assert_eq!(probe.give_from(ELSEWHERE, Message::SidrRep(reply)), Err(CmDropReason::WrongPeer));
    probe.give(Message::SidrRep(reply)).unwrap();
    assert_eq!(probe.event().kind, CmEventKind::SidrReply { rep: Box::new(reply) });
    assert_eq!(probe.cm.in_use(), 0);
}
