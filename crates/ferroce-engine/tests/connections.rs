//! Connections by the CM over real sockets on lo: QP1 is the broker's, in this process.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use common::*;
use ferroce_engine::cm::{
    AcceptParams, Bind, CmError, ConnectParams, Connection, Disconnect, Event, EventKind, EventSink, Port,
    Queue, Request, Route, SidrAnswer, SidrParams, SidrRequest, attributes, resolve, steps,
};
use ferroce_engine::{AhAttr, QpState, SendOp, Service, WcOpcode};
use ferroce_wire::cm::{
    CmTime, Ece, IpCmHeader, PortSpace, PrivateData, RejReason, Req, ServiceId, SidrStatus,
};
use ferroce_wire::{Gid, Qkey, Qpn};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The context of every listener here.
const LISTENER: u64 = 1;

fn next(queue: &Queue) -> Event {
    let mut fds = [PollFd::new(queue.fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::try_from(PATIENCE).unwrap()).unwrap(), 1, "no event");
    queue.poll().unwrap()
}

fn sink(queue: &Arc<Queue>, context: u64) -> EventSink {
    EventSink::queue(queue, context)
}

fn loopback(address: &str) -> Route {
    let ip: IpAddr = address.parse().unwrap();
    Route { local: ip, remote: ip, interface: 0 }
}

fn listen(queue: &Arc<Queue>, space: PortSpace, address: &str, backlog: u16) -> Port {
    let address = SocketAddr::new(address.parse().unwrap(), 0);
    let port = Port::bind(&Bind::new(space, address)).unwrap();
    port.listen(backlog, sink(queue, LISTENER)).unwrap();
    port
}

fn header(route: Route) -> [u8; IpCmHeader::LEN] {
    IpCmHeader { source_port: 5, source: route.local, destination: route.remote }.emit()
}

/// A request from `route` to a port, with private data.
fn request(route: Route, service_id: ServiceId, qpn: Qpn, private: &[u8]) -> ConnectParams {
    let private = PrivateData::concat(&header(route), private).unwrap();
    ConnectParams {
        private,
        responder_resources: 4,
        initiator_depth: 3,
        ..ConnectParams::new(route, service_id, 7, qpn)
    }
}

fn to_rts(end: &End, attr: &attributes::ConnectedAttr, route: Route) {
    let gids = end.context.gid_table();
    let entry = gids.iter().find(|entry| entry.gid == Gid::from_ip(route.local)).unwrap();
    let ah = AhAttr { dgid: Gid::from_ip(route.remote), sgid_index: entry.index as u8, ..AhAttr::default() };
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attr, mask) = steps::step(Service::Rc, to, attr, ah);
        end.qp.modify(&attr, mask).unwrap();
    }
}

/// Two queue pairs that the CM connected.
struct Pair {
    active: (End, Connection),
    passive: (End, Connection),
    events: Arc<Queue>,
}

fn connect(address: &str) -> Pair {
    open();
    let route = loopback(address);
    let events = Queue::new().unwrap();
    let port = listen(&events, PortSpace::Tcp, address, 0);
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    let params = request(route, port.service_id(), a.qp.qpn(), b"hello");
    let (active, asked) = Connection::send(&params, sink(&events, 2)).unwrap();

    let Event { context: LISTENER, kind: EventKind::Request(came) } = next(&events) else {
        panic!("no request")
    };
    let Request { connection: passive, remote, private, roce, .. } = *came;
    let roce = roce.unwrap();
    assert_eq!(roce.route, loopback(address));
    assert_eq!(roce.req, asked);
    assert_eq!((remote, &private[..6]), ((route.remote, 5).into(), &b"hello\0"[..]));
    passive.set_sink(sink(&events, 3));
    let accept =
        AcceptParams { responder_resources: 4, initiator_depth: 2, ..AcceptParams::new(8, b.qp.qpn()) };
    to_rts(&b, &roce.attributes(&accept).unwrap(), roce.route);
    passive.accept(&accept, b"welcome").unwrap();
    assert!(matches!(passive.accept(&accept, b""), Err(CmError::State(_))));

    let Event { context: 2, kind: EventKind::Reply { rep }, .. } = next(&events) else { panic!("no reply") };
    assert_eq!(
        (&rep.private.0[..8], rep.qpn, rep.starting_psn),
        (&b"welcome\0"[..], b.qp.qpn(), roce.starting_psn)
    );
    to_rts(&a, &attributes::active(&asked, &rep, params.packet_life).unwrap(), route);
    active.establish().unwrap();
    assert!(matches!(next(&events), Event { context: 3, kind: EventKind::Established(_), .. }));
    Pair { active: (a, active), passive: (b, passive), events }
}

fn exchange(pair: &Pair) {
    let (a, b) = (&pair.active.0, &pair.passive.0);
    for (from, to, seed) in [(a, b, 1), (b, a, 2)] {
        from.memory.fill(seed, 10_000);
        to.receive(5, to.sge(0, 10_000));
        from.post(6, SendOp::Send, from.sge(0, 10_000));
        to.expect(5, WcOpcode::Recv);
        to.memory.check(seed, 10_000);
        from.expect(6, WcOpcode::Send);
        from.post(7, SendOp::Read { remote: to.remote(0) }, from.sge(20_000, 10_000));
        from.expect(7, WcOpcode::RdmaRead);
        from.memory.check_at(20_000, seed, 10_000);
    }
}

#[test]
fn connect_exchange_disconnect() {
    for address in ["127.0.0.1", "::1"] {
        let pair = connect(address);
        exchange(&pair);
        let Pair { active: (_a, active), passive: (_b, passive), events } = pair;
        active.disconnect().unwrap();
        let Event { context: 3, kind: EventKind::Disconnected(Disconnect::ByPeer), .. } = next(&events)
        else {
            panic!("not disconnected")
        };
        passive.disconnect().unwrap();
        let mut left = vec![2, 2, 3];
        while !left.is_empty() {
            let Event { context, kind, .. } = next(&events);
            match kind {
                EventKind::Disconnected(Disconnect::ByUs) => assert_eq!(context, 2),
                EventKind::TimeWaitOver => {}
                other => panic!("{other:?}"),
            }
            left.remove(left.iter().position(|known| *known == context).unwrap());
        }
        assert!(matches!(active.disconnect(), Err(CmError::Gone(_))));
    }
}

#[test]
fn reject_with_private_data() {
    open();
    let route = loopback("127.0.0.1");
    let events = Queue::new().unwrap();
    let port = listen(&events, PortSpace::Tcp, "0.0.0.0", 0);
    // Each test has a number of its own: a second request of one number makes the first connection stale.
    let params = request(route, port.service_id(), Qpn::new(17), &[9; 56]);
    let (_active, _) = Connection::send(&params, sink(&events, 2)).unwrap();
    let EventKind::Request(request) = next(&events).kind else { panic!("no request") };
    assert_eq!(*request.private, [9; 56]);
    request.connection.reject(RejReason::CONSUMER, &[3; 148]).unwrap();
    let Event { context: 2, kind: EventKind::Rejected { reason, private, .. }, .. } = next(&events) else {
        panic!("not rejected")
    };
    assert_eq!((reason, &*private), (RejReason::CONSUMER, &[3; 148][..]));
    // A dropped request is rejected as well.
    let (_active, _) = Connection::send(&params, sink(&events, 4)).unwrap();
    let dropped = next(&events);
    assert!(matches!(dropped.kind, EventKind::Request(_)), "{:?} of {}", dropped.kind, dropped.context);
    drop(dropped);
    let rejected = next(&events);
    let EventKind::Rejected { reason, .. } = rejected.kind else {
        panic!("{:?} of {}", rejected.kind, rejected.context)
    };
    assert_eq!((rejected.context, reason), (4, RejReason::CONSUMER));
}

#[test]
fn nobody_listens() {
    open();
    let events = Queue::new().unwrap();
    for address in ["127.0.0.1", "::1"] {
        let params = request(loopback(address), PortSpace::Tcp.service_id(4), Qpn::new(18), b"");
        let (_connection, _) = Connection::send(&params, sink(&events, 2)).unwrap();
        let EventKind::Rejected { reason, .. } = next(&events).kind else { panic!("not rejected") };
        assert_eq!(reason, RejReason::INVALID_SERVICE_ID, "by an answer, not by silence");
    }
}

#[test]
fn ports_are_taken_once() {
    open();
    let address: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let first = Port::bind(&Bind::new(PortSpace::Tcp, address)).unwrap();
    let same = |address: &str| format!("{address}:{}", first.number()).parse().unwrap();
    let taken = Port::bind(&Bind::new(PortSpace::Tcp, same("127.0.0.1")));
    assert!(matches!(taken, Err(CmError::WildcardInUse(_))), "{taken:?}");
    Port::bind(&Bind::new(PortSpace::Udp, same("127.0.0.1"))).unwrap();
    let foreign = Port::bind(&Bind::new(PortSpace::Tcp, "192.0.2.1:0".parse().unwrap()));
    assert!(matches!(foreign, Err(CmError::NoAddress(_))), "{foreign:?}");
    drop(first);
}

/// Ports of connections are of blocks that this process gives out, of which the broker knows little.
#[test]
fn a_connections_port_is_taken_as_any_other() {
    open();
    let bind = |address: &str| Port::bind(&Bind::new(PortSpace::Tcp, address.parse().unwrap()));
    let ports: Vec<Port> = (0..200).map(|_| bind("127.0.0.1:0").unwrap()).collect();
    let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
    assert_eq!(numbers.len(), ports.len());
    for port in &ports {
        let number = port.number();
        let taken = bind(&format!("127.0.0.1:{number}"));
        assert!(matches!(taken, Err(CmError::InUse(_))), "{taken:?}");
        let other = bind(&format!("[::1]:{number}")).unwrap();
        let wildcard = bind(&format!("0.0.0.0:{number}"));
        assert!(matches!(wildcard, Err(CmError::WildcardInUse(_))), "{wildcard:?}");
        drop(other);
    }
    // One can be listened at, as any other.
    let (events, answers) = (Queue::new().unwrap(), Queue::new().unwrap());
    let fresh = bind("127.0.0.1:0").unwrap();
    for listening in [&ports[150], &fresh] {
        listening.listen(0, sink(&events, LISTENER)).unwrap();
        let params = request(loopback("127.0.0.1"), listening.service_id(), Qpn::new(19), b"");
        let _connection = Connection::send(&params, sink(&answers, 2)).unwrap();
        let EventKind::Request(_) = next(&events).kind else { panic!("no request") };
        let EventKind::Rejected { .. } = next(&answers).kind else { panic!("not refused") };
    }
    drop(ports);
    // Tests in other threads may have taken some by now, and give them back.
    for number in numbers {
        let start = Instant::now();
        while let Err(error) = bind(&format!("0.0.0.0:{number}")) {
            assert!(start.elapsed() < PATIENCE, "{error}");
        }
    }
}

/// A flood of requests: as many as the backlog wait, the others are not even told.
#[test]
fn the_backlog_is_honoured() {
    open();
    let route = loopback("127.0.0.1");
    let (events, answers) = (Queue::new().unwrap(), Queue::new().unwrap());
    let port = listen(&events, PortSpace::Tcp, "127.0.0.1", 3);
    let asked: Vec<(Connection, Req)> = (0..10)
        .map(|n| {
            let params = request(route, port.service_id(), Qpn::new(100 + n), b"");
            Connection::send(&params, sink(&answers, n.into())).unwrap()
        })
        .collect();
    let requests: Vec<Event> = (0..3).map(|_| next(&events)).collect();
    let mut fds = [PollFd::new(events.fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::from(100_u8)).unwrap(), 0, "more than the backlog");
    drop(requests);
    for _ in 0..3 {
        assert!(matches!(next(&answers).kind, EventKind::Rejected { .. }));
    }
    drop(asked);
}

#[test]
fn sidr_requests_for_ud_queue_pairs() {
    open();
    let route = loopback("127.0.0.1");
    let events = Queue::new().unwrap();
    let port = listen(&events, PortSpace::Udp, "127.0.0.1", 0);
    let params = SidrParams {
        route,
        service_id: port.service_id(),
        response_timeout: CmTime::saturating(20),
        max_cm_retries: 15,
        traffic_class: 0,
        private: PrivateData::concat(&header(route), b"who").unwrap(),
    };
    let asked = SidrRequest::send(&params, sink(&events, 2)).unwrap();
    let Event { context: LISTENER, kind: EventKind::SidrRequest { request: theirs, private, .. } } =
        next(&events)
    else {
        panic!("not asked")
    };
    assert_eq!(&private[..3], b"who");
    let answer = SidrAnswer {
        status: SidrStatus::VALID,
        qpn: Qpn::new(77),
        qkey: Qkey::new(5),
        ece: Ece::default(),
        private: PrivateData::new(b"me").unwrap(),
    };
    theirs.answer(&answer).unwrap();
    let Event { context: 2, kind: EventKind::SidrReply { rep }, .. } = next(&events) else {
        panic!("no answer")
    };
    assert_eq!((rep.qpn, rep.qkey, &rep.private.0[..3]), (Qpn::new(77), Qkey::new(5), &b"me\0"[..]));
    drop(asked);
    let nobody = SidrParams { service_id: PortSpace::Udp.service_id(4), ..params };
    let _request = SidrRequest::send(&nobody, sink(&events, 3)).unwrap();
    let Event { context: 3, kind: EventKind::SidrReply { rep }, .. } = next(&events) else {
        panic!("no answer")
    };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED);
}

/// A group is reached from the device that has the source, whatever routes there are.
#[test]
fn groups_have_a_way() {
    open();
    for (source, group) in [("127.0.0.1:5", "239.1.2.3:7"), ("[::1]:5", "[ff0e::1]:7")] {
        let (source, group): (SocketAddr, SocketAddr) = (source.parse().unwrap(), group.parse().unwrap());
        let route = resolve::route(Some(source), group).unwrap();
        assert_eq!(route.local.gid.gid, Gid::from_ip(source.ip()));
        assert_eq!((route.source, route.destination), (SocketAddr::new(source.ip(), 0), group));
        assert_eq!(route.hop_limit, 64);
    }
    let foreign = resolve::route(Some("192.0.2.1:0".parse().unwrap()), "239.1.2.3:7".parse().unwrap());
    assert!(matches!(foreign, Err(resolve::ResolveError::NotLocal(_))), "{foreign:?}");
    let mixed = resolve::route(Some("[::1]:0".parse().unwrap()), "239.1.2.3:7".parse().unwrap());
    assert!(matches!(mixed, Err(resolve::ResolveError::Families { .. })), "{mixed:?}");
}
