//! Programs that do not read the messages of the broker: they keep their events, and the broker keeps its descriptors.

mod common;

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use common::{brokers, connect, eventually, isolated};
use ferroce_ipc::{
    BROKER_NAME, Client, ClientError, CmBind, CmDone, CmRequest, Leased, Message, RefusalCode, RoceMode,
    Setting,
};
use ferroce_proto::cm::{CmEventKind, ConnectParams, Route};
use ferroce_wire::Qpn;
use ferroce_wire::cm::{IpCmHeader, PortSpace, PrivateData};

const PATIENCE: Duration = Duration::from_secs(60);
/// Of listeners; one has a backlog of 1,024 at most.
const PORTS: std::ops::Range<u16> = 7471..7475;
/// More than the broker keeps of other messages, and than a socket holds.
const REQUESTS: u32 = 1500;

/// A client with slots, which reads only when it is told to.
struct Program {
    client: Client,
    slots: Vec<u16>,
    parked: OwnedFd,
}

impl Program {
    fn new() -> Self {
        let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let (answer, mut descriptors) = client.request(&Message::Lease(1), PATIENCE).unwrap();
        let Message::Leased(Leased { slots, addresses, .. }) = answer else { panic!("{answer:?}") };
        for _ in 0..addresses {
            client.more(PATIENCE).unwrap();
        }
        Self { client, slots, parked: descriptors.pop().unwrap() }
    }

    fn ask(&mut self, request: CmRequest) -> CmDone {
        match self.client.request(&Message::Cm(request), PATIENCE).unwrap() {
            (Message::CmDone(done), _) => done,
            other => panic!("{other:?}"),
        }
    }

    fn listen(&mut self) {
        for port in PORTS {
            let handle = port.into();
            self.ask(CmRequest::Bind(CmBind {
                handle,
                space: PortSpace::Tcp,
                port,
                address: Ipv4Addr::LOCALHOST.into(),
                interface: 0,
                reuse: false,
                v6_only: false,
            }));
            self.ask(CmRequest::Listen { handle, backlog: u16::MAX });
        }
    }

    fn connect(&mut self, qpn: u32) {
        let local = Ipv4Addr::LOCALHOST.into();
        let route = Route { local, remote: local, interface: 0 };
        let header = IpCmHeader { source_port: 5, source: local, destination: local };
        let private = PrivateData::concat(&header.emit(), b"").unwrap();
        let port = PORTS.start + qpn as u16 % PORTS.len() as u16;
        let params = ConnectParams::new(route, PortSpace::Tcp.service_id(port), 7, Qpn::new(qpn));
        self.ask(CmRequest::Connect(Box::new(ConnectParams { private, ..params })));
    }

    /// The requests among the messages that arrive until there is none for a second; and whether the connection ended.
    fn requests(&mut self) -> (u32, bool) {
        let mut count = 0;
        loop {
            match self.client.next(Duration::from_secs(1)) {
                Ok((_, Message::CmEvent(notice), _)) => {
                    count += u32::from(matches!(notice.event.kind, CmEventKind::Request { .. }));
                }
                Ok(_) => {}
                Err(ClientError::Timeout { .. }) => return (count, false),
                Err(_) => return (count, true),
            }
        }
    }
}

#[test]
fn a_program_that_was_stopped_gets_its_events() {
    isolated("a_program_that_was_stopped_gets_its_events", || {
        let _broker = connect();
        let (mut stopped, mut peer) = (Program::new(), Program::new());
        stopped.listen();
        for n in 0..REQUESTS {
            peer.connect(100 + n);
        }
        // The limit for other messages is not for events: an answer that waits behind them loses none.
        stopped.client.send(&Message::GetStatus, &[]).unwrap();
        assert_eq!(stopped.requests(), (REQUESTS, false));

        // Too many of the other kind: the broker gives the connection up, and keeps the events.
        for n in 0..REQUESTS {
            peer.connect(100 + REQUESTS + n);
        }
        for _ in 0..3 * REQUESTS {
            if stopped.client.send(&Message::GetStatus, &[]).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let (before, ended) = stopped.requests();
        assert!(ended && before < REQUESTS, "{before} requests; ended: {ended}");
        stopped.client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let resume = Message::Resume(stopped.slots.clone());
        let (answer, _) = stopped.client.request_with(&resume, &[stopped.parked.as_fd()], PATIENCE).unwrap();
        assert!(matches!(answer, Message::Leased(_)), "{answer:?}");
        let (after, _) = stopped.requests();
        assert_eq!(before + after, REQUESTS);
    });
}

#[test]
fn rings_that_nobody_takes_are_not_kept_open() {
    isolated("rings_that_nobody_takes_are_not_kept_open", || {
        let _broker = connect();
        let mut program = Program::new();
        let settings = vec![Setting::RoceMode(RoceMode::Both)];
        let set = Message::LinkSet { name: "fr0".to_owned(), settings, transient: true, force: false };
        match program.client.request(&set, PATIENCE) {
            Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::Permission => {
                return println!("skipped: {refusal}");
            }
            done => drop(done.unwrap()),
        }
        let (_bell, far) = ferroce_ipc::packet::pair().unwrap();
        let open = Message::OpenRings { v2: false };
        let (answer, _) = program.client.request_with(&open, &[far.as_fd()], PATIENCE).unwrap();
        assert_eq!(answer, Message::Rings);
        let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", brokers()[0])).unwrap().count();
        let before = descriptors();
        let mut sent = 0;
        let ended = loop {
            match program.client.send(&open, &[far.as_fd()]) {
                Ok(_) => sent += 1,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => break e,
            }
            assert!(sent < 20_000, "all is kept: {} descriptors, {before} before", descriptors());
            let now = descriptors();
            assert!(now < before + 600, "{now} descriptors after {sent} rings, {before} before");
        };
        println!("{sent} rings, then {ended}");
        eventually("the broker closes what it kept", || descriptors() <= before);
        connect().lease(1).unwrap();
    });
}
