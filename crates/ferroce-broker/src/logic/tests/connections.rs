mod faults;

use ferroce_cm::{
    AcceptParams, CmConfig, CmEvent, CmEventKind, ConnectParams, ConnectionManager, Disconnect, ListenerId,
    Route,
};
use ferroce_ipc::{CmBind, CmDone, CmRequest};
use ferroce_wire::cm::{CommId, IpCmHeader, PortSpace, PrivateData, RejReason, Req};
use ferroce_wire::{Psn, Qpn};

use std::fs::File;

use super::*;
use crate::early_requests::EarlyRequests;

const PORT: u16 = 7471;
/// How long a request waits for somebody to listen.
const GRACE: Duration = Duration::from_millis(100);

impl Bench {
    /// Clients 1 and 2, each with a slot of its number.
    fn with_programs() -> Self {
        let mut bench = Self::loopback();
        for client in [1, 2] {
            bench.connect(client, 100 + client as u32);
            assert_eq!(bench.lease(client, 1).unwrap().0, [client as u8]);
        }
        bench
    }

    pub(super) fn ask(&mut self, client: u64, request: CmRequest) -> Result<CmDone, RefusalCode> {
        self.broker.message(self.now, ClientId(client), 5, Message::Cm(request), vec![]);
        let mut answer = None;
        // Everything else stays where it is.
        self.broker.clients.output().retain(|output| match output {
            Output::Send { client: to, id: 5, message, .. } if to.0 == client => {
                answer = Some(message.clone());
                false
            }
            _ => true,
        });
        match answer {
            Some(Message::CmDone(done)) => Ok(done),
            Some(Message::Refused(refusal)) => Err(refusal.code),
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.broker.tick(self.now);
    }

    fn listen(&mut self, client: u64, handle: u64) {
        self.ask(client, CmRequest::Bind(bind(handle))).unwrap();
        self.ask(client, CmRequest::Listen { handle, backlog: 0 }).unwrap();
    }

    /// Lets all MADs arrive, and returns the events of each client with the records that came along.
    pub(super) fn run(&mut self) -> Vec<(u64, CmEvent, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(output) = self.broker.poll_output() {
            match output {
                Output::Mad(transmit) => {
                    let Route { local, remote, interface } = transmit.route;
                    let from = Route { local: remote, remote: local, interface };
                    self.broker.mad(self.now, from, &transmit.mad[..]);
                }
                Output::Send { client, message: Message::CmEvent(notice), .. } => {
                    all.push((client.0, notice.event, notice.record));
                }
                Output::Send { .. }
                | Output::Close(_)
                | Output::OpenRings { .. }
                | Output::SettleRings { .. }
                | Output::OpenPipe { .. } => {}
            }
        }
        all
    }

    /// Client 2 is connected to client 1: the ids of 1 and 2, and the last records.
    pub(super) fn connected(&mut self) -> [(CommId, Vec<u8>); 2] {
        self.listen(1, 7);
        let active = self.ask(2, connect()).unwrap().id;
        let passive = match &self.run()[..] {
            [
                (1, CmEvent { id, kind: CmEventKind::Request { listener: Some(ListenerId(7)), .. }, .. }, _),
            ] => *id,
            other => panic!("{other:?}"),
        };
        self.ask(1, accept(passive)).unwrap();
        assert!(matches!(&self.run()[..], [(2, CmEvent { kind: CmEventKind::Reply { .. }, .. }, _)]));
        let ours = self.ask(2, CmRequest::Establish(active)).unwrap().record;
        match &self.run()[..] {
            [(1, CmEvent { kind: CmEventKind::Established, .. }, record)] => {
                [(passive, record.clone()), (active, ours)]
            }
            other => panic!("{other:?}"),
        }
    }
}

fn bind(handle: u64) -> CmBind {
    CmBind {
        handle,
        space: PortSpace::Tcp,
        port: PORT,
        address: "0.0.0.0".parse().unwrap(),
        interface: 0,
        reuse: false,
        v6_only: false,
    }
}

fn params() -> ConnectParams {
    let ip = [127, 0, 0, 1].into();
    let route = Route { local: ip, remote: ip, interface: 0 };
    let header = IpCmHeader { source_port: 1, source: ip, destination: ip }.emit();
    let service_id = PortSpace::Tcp.service_id(PORT);
    let params = ConnectParams::new(route, service_id, 1, Qpn::new(8));
    ConnectParams { private: PrivateData::new(&header).unwrap(), ..params }
}

pub(super) fn req() -> Req {
    params().req(CommId::NONE, Psn::new(3))
}

fn connect() -> CmRequest {
    CmRequest::Connect(Box::new(params()))
}

fn accept(id: CommId) -> CmRequest {
    CmRequest::Accept { id, params: Box::new(AcceptParams::new(1, Qpn::new(9))) }
}

#[test]
fn ids_carry_the_slot_and_are_their_owners_alone() {
    let mut bench = Bench::with_programs();
    let [(passive, _), (active, _)] = bench.connected();
    assert_eq!((passive.0 >> 20, active.0 >> 20), (0x10, 0x20));
    for request in [
        CmRequest::Disconnect(passive),
        CmRequest::Close(passive),
        CmRequest::Establish(passive),
        CmRequest::Restore { id: passive, record: vec![] },
    ] {
        assert_eq!(bench.ask(2, request), Err(RefusalCode::UnknownId));
    }
    assert!(bench.run().is_empty(), "nothing happened to it");
    bench.ask(2, CmRequest::Unbind { handle: 7 }).unwrap();
    assert_eq!(bench.ask(2, CmRequest::Bind(bind(7))), Err(RefusalCode::WildcardInUse), "it is the other's");
    bench.ask(2, CmRequest::Disconnect(active)).unwrap();
    assert!(matches!(
        &bench.run()[..],
        [(1, CmEvent { kind: CmEventKind::Disconnected(Disconnect::ByPeer), .. }, _)]
    ));
}

#[test]
fn without_a_slot_or_from_a_foreign_address_nothing() {
    let mut bench = Bench::with_programs();
    bench.connect(3, 103);
    assert_eq!(bench.ask(3, connect()), Err(RefusalCode::BadRequest));
    let elsewhere = CmBind { address: [192, 0, 2, 1].into(), ..bind(1) };
    assert_eq!(bench.ask(1, CmRequest::Bind(elsewhere)), Err(RefusalCode::NoAddress));
    let loopback = CmBind { address: [127, 0, 0, 2].into(), ..bind(2) };
    assert!(bench.ask(1, CmRequest::Bind(loopback)).is_ok(), "as in Linux");
    let CmRequest::Connect(mut foreign) = connect() else { panic!() };
    foreign.route.local = [192, 0, 2, 1].into();
    assert_eq!(bench.ask(1, CmRequest::Connect(foreign)), Err(RefusalCode::NoAddress));
    assert_eq!(bench.ask(1, CmRequest::Bind(CmBind { port: 80, ..bind(1) })), Err(RefusalCode::Permission));
    assert_eq!(bench.ask(1, CmRequest::Listen { handle: 1, backlog: 0 }), Err(RefusalCode::UnknownId));
}

#[test]
fn the_next_holder_of_a_slot_inherits_nothing() {
    let mut bench = Bench::with_programs();
    let [(passive, record), (active, _)] = bench.connected();
    bench.broker.died(bench.now, ProcessId(101));
    let news = bench.run();
    assert!(
        matches!(&news[..], [(2, CmEvent { kind: CmEventKind::Disconnected(Disconnect::ByPeer), .. }, _)]),
        "{news:?}"
    );
    // Its port is free, its connection is not to be had, and what still happens to it is told nobody.
    bench.connect(3, 103);
    assert_eq!(bench.lease(3, 1).unwrap().0, [1]);
    assert_eq!(bench.ask(3, CmRequest::Disconnect(passive)), Err(RefusalCode::UnknownId));
    bench.listen(3, 1);
    bench.ask(2, CmRequest::Disconnect(active)).unwrap();
    assert!(bench.run().is_empty());
    bench.now += Duration::from_secs(10);
    bench.broker.tick(bench.now);
    let news = bench.run();
    assert!(matches!(&news[..], [(2, CmEvent { kind: CmEventKind::TimeWaitOver, .. }, _)]), "{news:?}");
    assert!(bench.broker.connections.cm.is_idle());
    assert!(!record.is_empty());
}

#[test]
fn news_wait_for_a_program_whose_connection_broke() {
    let mut bench = Bench::with_programs();
    let [_, (active, _)] = bench.connected();
    bench.broker.lost(ClientId(1));
    bench.ask(2, CmRequest::Disconnect(active)).unwrap();
    assert!(bench.run().is_empty(), "there is nobody to tell");
    bench.connect(3, 101);
    let parked = File::open("/dev/null").unwrap().into();
    let heard = bench.say(3, Message::Resume(slots(&[1])), vec![parked]);
    let news = heard.iter().filter_map(|(_, message, _)| match message {
        Message::CmEvent(notice) => Some(&notice.event.kind),
        _ => None,
    });
    assert_eq!(news.collect::<Vec<_>>(), [&CmEventKind::Disconnected(Disconnect::ByPeer)]);
}

#[test]
fn a_link_answers_although_no_program_runs() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]);
    bench.connect(1, 101);
    let add = Message::LinkAdd {
        name: "fr1".to_owned(),
        kind: LinkKind::Rxe,
        netdev: "eth0".to_owned(),
        transient: false,
    };
    bench.say(1, add, vec![]);
    assert_eq!(
        bench.broker.addresses.groups.addresses(),
        [Address { ip: [192, 0, 2, 1].into(), scope_id: 0 }]
    );
    let from = Route { local: [192, 0, 2, 1].into(), remote: [192, 0, 2, 9].into(), interface: 0 };
    let mad = ferroce_wire::cm::Mad {
        transaction_id: 1,
        message: ferroce_wire::cm::Message::Req(Req { local_id: CommId(5), ..req() }),
    };
    bench.broker.mad(bench.now, from, &mad.emit());
    bench.wait(GRACE);
    let Some(Output::Mad(transmit)) = bench.broker.poll_output() else { panic!("no answer") };
    match ferroce_wire::cm::Mad::parse(&transmit.mad[..]).unwrap().message {
        ferroce_wire::cm::Message::Rej(rej) => assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID),
        other => panic!("{other:?}"),
    }
    // Leases go on as if it had not been so.
    assert_eq!(bench.lease(1, 1).unwrap().0, [1]);
}

/// A program that listens holds the address for longer than its device lives.
#[test]
fn nobody_answers_at_the_address_of_a_deleted_link() {
    let mut bench = Bench::new(vec![netdev(1, &["127.0.0.1"]), netdev(2, &["192.0.2.1"])]);
    let (name, netdev) = ("fr1".to_owned(), "eth0".to_owned());
    bench.connect(1, 101);
    let add = Message::LinkAdd { name: name.clone(), kind: LinkKind::Rxe, netdev, transient: false };
    bench.say(1, add.clone(), vec![]);
    bench.lease(1, 1).unwrap();
    bench.listen(1, 7);
    let from = Route { local: [192, 0, 2, 1].into(), remote: [192, 0, 2, 9].into(), interface: 0 };
    let header = IpCmHeader { source_port: 1, source: from.remote, destination: from.local }.emit();
    let params = ConnectParams { route: from, private: PrivateData::new(&header).unwrap(), ..params() };
    let ask = |bench: &mut Bench, id| {
        let message = ferroce_wire::cm::Message::Req(params.req(CommId(id), Psn::new(3)));
        bench.broker.mad(bench.now, from, &ferroce_wire::cm::Mad { transaction_id: 1, message }.emit());
        bench.wait(GRACE);
        let outputs = std::iter::from_fn(|| bench.broker.poll_output());
        outputs
            .filter(|output| {
                matches!(output, Output::Mad(_) | Output::Send { message: Message::CmEvent(_), .. })
            })
            .count()
    };
    assert_eq!(ask(&mut bench, 5), 1, "the listener is told");
    bench.say(1, Message::LinkDel { name, transient: false }, vec![]);
    assert!(bench.broker.addresses.groups.addresses().contains(&Address { ip: from.local, scope_id: 0 }));
    assert_eq!(ask(&mut bench, 6), 0);
    bench.say(1, add, vec![]);
    assert_eq!(ask(&mut bench, 7), 1);
}

#[test]
fn who_asked_is_answered_before_anybody_hears_of_it() {
    let mut bench = Bench::with_programs();
    bench.listen(1, 7);
    let said = |bench: &mut Bench, client, request| {
        bench.broker.message(bench.now, ClientId(client), 5, Message::Cm(request), vec![]);
        let first = bench.broker.poll_output();
        assert!(matches!(first, Some(Output::Send { id: 5, message: Message::CmDone(_), .. })), "{first:?}");
    };
    said(&mut bench, 2, connect());
    let passive = bench.run()[0].1.id;
    said(&mut bench, 1, accept(passive));
    let active = bench.run()[0].1.id;
    said(&mut bench, 2, CmRequest::Establish(active));
    bench.run();
    said(&mut bench, 2, CmRequest::Disconnect(active));
}

#[test]
fn who_wants_no_answer_gets_none() {
    let mut bench = Bench::with_programs();
    bench.listen(1, 7);
    bench.output();
    for request in [CmRequest::Unbind { handle: 7 }, CmRequest::Close(CommId(0x0200_0001))] {
        bench.broker.message(bench.now, ClientId(1), 0, Message::Cm(request), vec![]);
        assert!(bench.broker.poll_output().is_none());
    }
    assert_eq!(bench.status().cm.listeners, 0);
}

#[test]
fn a_request_may_come_a_moment_before_its_listener() {
    let mut bench = Bench::with_programs();
    let early = bench.ask(2, connect()).unwrap().id;
    assert!(bench.run().is_empty());
    bench.wait(GRACE - Duration::from_millis(1));
    assert!(bench.run().is_empty());
    bench.ask(1, CmRequest::Bind(bind(7))).unwrap();
    bench.broker.message(
        bench.now,
        ClientId(1),
        6,
        Message::Cm(CmRequest::Listen { handle: 7, backlog: 0 }),
        vec![],
    );
    let first = bench.broker.poll_output();
    assert!(
        matches!(first, Some(Output::Send { id: 6, message: Message::CmDone(_), .. })),
        "the answer first"
    );
    assert!(matches!(
        &bench.run()[..],
        [(1, CmEvent { kind: CmEventKind::Request { listener: Some(ListenerId(7)), .. }, .. }, _)]
    ));
    bench.ask(2, CmRequest::Close(early)).unwrap();
}

#[test]
fn where_nobody_listens_one_is_refused_soon() {
    let mut bench = Bench::with_programs();
    bench.listen(1, 7);
    bench.ask(1, CmRequest::Unbind { handle: 7 }).unwrap();
    bench.ask(2, connect()).unwrap();
    assert!(bench.run().is_empty());
    bench.wait(GRACE);
    match &bench.run()[..] {
        [(2, CmEvent { kind: CmEventKind::Rejected { reason, .. }, .. }, _)] => {
            assert_eq!(*reason, RejReason::INVALID_SERVICE_ID)
        }
        other => panic!("{other:?}"),
    }
    assert!(bench.broker.connections.cm.is_idle());
}

#[test]
fn a_sender_with_many_addresses_has_one_share_of_early_requests() {
    let config = CmConfig { key: [1, 2], max_connections: 1, max_per_owner: 1 };
    let (manager, mut early) = (ConnectionManager::new(config), EarlyRequests::default());
    let mut keeps = |from: u128| {
        let remote = std::net::Ipv6Addr::from_bits(from).into();
        let route = Route { local: std::net::Ipv6Addr::LOCALHOST.into(), remote, interface: 0 };
        let mad = ferroce_wire::cm::Mad { transaction_id: 1, message: ferroce_wire::cm::Message::Req(req()) };
        early.keep(ferroce_wire::Instant::ZERO, route, &mad.emit(), &manager)
    };
    let kept = (0..1000).filter(|host| keeps(0x2001_0db8 << 96 | host)).count();
    assert_eq!(kept, 256);
    assert!(keeps(0x2001_0db8 << 96 | 1 << 64), "another network");
}

#[test]
fn a_flood_of_requests_for_nobody_is_refused_at_once() {
    let mut bench = Bench::with_programs();
    let route = Route { local: [127, 0, 0, 1].into(), remote: [127, 0, 0, 1].into(), interface: 0 };
    let mut refused = 0;
    for id in 1..=1000 {
        let message = ferroce_wire::cm::Message::Req(Req { local_id: CommId(id), ..req() });
        bench.broker.mad(bench.now, route, &ferroce_wire::cm::Mad { transaction_id: 1, message }.emit());
        while let Some(output) = bench.broker.poll_output() {
            refused += u32::from(matches!(output, Output::Mad(_)));
        }
    }
    assert_eq!(refused, 1000 - 256);
    // That was one sender. Another one's request has a place.
    let from = Route { remote: [192, 0, 2, 9].into(), ..route };
    let message = ferroce_wire::cm::Message::Req(Req { local_id: CommId(1), ..req() });
    bench.broker.mad(bench.now, from, &ferroce_wire::cm::Mad { transaction_id: 1, message }.emit());
    assert!(bench.broker.poll_output().is_none());
    bench.wait(GRACE);
    assert!(matches!(bench.broker.poll_output(), Some(Output::Mad(_))));
    let status = bench.status().cm;
    let counters = status.counters;
    assert_eq!((counters.rx_msgs.0[0], counters.tx_msgs.0[2], counters.drops[7]), (1001, 1001, 1001));
    assert_eq!(status.connections, 0);
}
