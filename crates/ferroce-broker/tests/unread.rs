//! Programs that do not read the messages of the broker: they keep their events, and the broker keeps its descriptors.

mod common;

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use common::{brokers, connect, eventually, isolated};
use ferroce_cm::{CmEventKind, ConnectParams, Route};
use ferroce_ipc::{
    BROKER_NAME, Client, ClientError, CmBind, CmDone, CmRequest, Leased, Message, RefusalCode, RoceMode,
    Setting,
};
use ferroce_wire::Qpn;
use ferroce_wire::cm::{IpCmHeader, PortSpace, PrivateData};

const PATIENCE: Duration = Duration::from_secs(60);
/// Of listeners; one has a backlog of 1,024 at most.
const PORTS: std::ops::Range<u16> = 7471..7475;
/// More than a socket holds.
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
            self.bind(port);
            self.ask(CmRequest::Listen { handle: port.into(), backlog: u16::MAX });
        }
    }

    fn bind(&mut self, port: u16) {
        self.ask(CmRequest::Bind(CmBind {
            handle: port.into(),
            space: PortSpace::Tcp,
            port,
            address: Ipv4Addr::LOCALHOST.into(),
            interface: 0,
            reuse: false,
            v6_only: false,
        }));
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

    /// Reads until `wanted` requests of peers and answers came, or the connection ended. Returns how many came.
    fn read(&mut self, wanted: (u32, u32)) -> (u32, u32) {
        let mut seen = (0, 0);
        while seen != wanted {
            match self.client.next(PATIENCE) {
                Ok((_, Message::CmEvent(notice), _)) => {
                    seen.0 += u32::from(matches!(notice.event.kind, CmEventKind::Request { .. }));
                }
                Ok((id, ..)) => seen.1 += u32::from(id != 0),
                Err(e @ ClientError::Timeout { .. }) => panic!("{seen:?} of {wanted:?}: {e}"),
                Err(_) => break,
            }
        }
        seen
    }
}

/// Sends requests without reading, until the broker reads no more of them. Returns how many it took. `other` is served
/// meanwhile.
fn ask_until_blocked(
    other: &mut Client,
    mut send: impl FnMut() -> std::io::Result<()>,
    mut check: impl FnMut(u32),
) -> u32 {
    let (mut sent, mut refused) = (0, 0);
    // The broker looks at all programs in each turn, and `other` has had its turns.
    while refused < 4 {
        match send() {
            Ok(()) => (sent, refused) = (sent + 1, 0),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                refused += 1;
                for _ in 0..2 {
                    other.request(&Message::ListDevices, PATIENCE).unwrap();
                }
            }
            Err(e) => panic!("after {sent}: {e}"),
        }
        check(sent);
    }
    sent
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
        // An answer that waits behind events loses none.
        stopped.client.send(&Message::GetStatus, &[]).unwrap();
        assert_eq!(stopped.read((REQUESTS, 1)), (REQUESTS, 1));

        // A program that asks and does not read is stopped by its own socket, and gets all answers when it reads.
        let ask = || stopped.client.send(&Message::GetStatus, &[]).map(drop);
        let asked = ask_until_blocked(&mut peer.client, ask, |sent| assert!(sent < 5000, "all is read"));
        assert_eq!(stopped.read((0, asked)), (0, asked));

        // What nobody asked for has a bound: the broker gives the connection up, and keeps the events.
        for port in 20_000..21_000 {
            stopped.bind(port);
        }
        for n in 0..REQUESTS {
            peer.connect(100 + REQUESTS + n);
        }
        let mut told = 0;
        loop {
            match stopped.client.tell(&Message::GetCmIds(0)) {
                Ok(()) => told += 1,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(_) => break,
            }
            assert!(told < 10_000, "the broker keeps all");
        }
        let (before, _) = stopped.read((REQUESTS, u32::MAX));
        assert!(before < REQUESTS, "{before} requests");
        stopped.client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let resume = Message::Resume(stopped.slots.clone());
        let (answer, _) = stopped.client.request_with(&resume, &[stopped.parked.as_fd()], PATIENCE).unwrap();
        let Message::Leased(Leased { addresses, .. }) = answer else { panic!("{answer:?}") };
        for _ in 0..addresses {
            stopped.client.more(PATIENCE).unwrap();
        }
        assert_eq!(stopped.read((REQUESTS - before, 0)), (REQUESTS - before, 0));
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
        let mut other = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
        let ask = || program.client.send(&open, &[far.as_fd()]).map(drop);
        let sent = ask_until_blocked(&mut other, ask, |sent| {
            let now = descriptors();
            assert!(now < before + 600, "{now} descriptors after {sent} rings, {before} before");
        });
        println!("{sent} rings");
        drop(program);
        eventually("the broker closes what it kept", || descriptors() <= before);
        connect().lease(1).unwrap();
    });
}
