//! Connections of two programs: the broker dies, or one of them does.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::time::Duration;

use common::{brokers, isolated, kill, program};
use ferroce_engine::cm::{
    AcceptParams, Bind, CmError, ConnectParams, Connection, Disconnect, Event, EventKind, EventSink, Port,
    Queue, Route, SidrAnswer, SidrParams, SidrRequest,
};
use ferroce_ipc::{BROKER_NAME, Client, CmRequest, Leased, Message};
use ferroce_wire::cm::{CmTime, Ece, IpCmHeader, PortSpace, PrivateData, RejReason, SidrStatus};
use ferroce_wire::{Psn, Qkey, Qpn};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORT: u16 = 7471;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn next(queue: &Queue) -> Event {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(
        poll(&mut [PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN)], Some(&limit)),
        Ok(1),
        "no event"
    );
    queue.poll().unwrap()
}

fn sink(queue: &Arc<Queue>) -> EventSink {
    EventSink::queue(queue, 0)
}

/// A program that listens, accepts at once or with the next line of its standard input, and tells everything.
fn serve(at_once: bool) {
    let queue = Queue::new().unwrap();
    let port = Port::bind(&Bind::new(PortSpace::Tcp, SocketAddr::new(LOCALHOST, PORT))).unwrap();
    port.listen(0, sink(&queue)).unwrap();
    println!("\nlistening");
    let mut connections = BTreeMap::new();
    let mut qpn = 0x20;
    loop {
        let Event { context, kind } = next_for_ever(&queue);
        match kind {
            EventKind::Request(request) => {
                let connection = request.connection;
                println!("\nrequest");
                if !at_once {
                    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
                }
                // Queue pairs that are in use twice would be stale connections to the peer.
                qpn += 1;
                connection.set_sink(EventSink::queue(&queue, qpn.into()));
                connection.accept(&AcceptParams::new(2, Qpn::new(qpn)), b"").unwrap();
                connections.insert(u64::from(qpn), connection);
            }
            EventKind::Established(_) => println!("\nestablished"),
            EventKind::Disconnected(end) => {
                println!("\ndisconnected {end:?}");
                connections[&context].disconnect().unwrap();
            }
            other => println!("\n{other:?}"),
        }
    }
}

fn next_for_ever(queue: &Queue) -> Event {
    poll(&mut [PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN)], None).unwrap();
    queue.poll().unwrap()
}

struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(test: &str, role: &str) -> Self {
        let mut child = program(test, role);
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut new = Self { input: child.stdin.take().unwrap(), child, output };
        new.says("listening");
        new
    }

    fn says(&mut self, what: &str) {
        let mut line = String::new();
        while line.trim_end() != what {
            line.clear();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the program ended before it said {what:?}");
        }
    }

    fn ends(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn request(qpn: u32) -> ConnectParams {
    let route = Route { local: LOCALHOST, remote: LOCALHOST, interface: 0 };
    let header = IpCmHeader { source_port: 5, source: LOCALHOST, destination: LOCALHOST }.emit();
    ConnectParams {
        private: PrivateData::new(&header).unwrap(),
        starting_psn: Some(Psn::new(1)),
        ..ConnectParams::new(route, PortSpace::Tcp.service_id(PORT), 1, Qpn::new(qpn))
    }
}

fn ask(queue: &Arc<Queue>, qpn: u32) -> Connection {
    Connection::send(&request(qpn), sink(queue)).unwrap().0
}

fn establish(server: &mut Server, queue: &Arc<Queue>, qpn: u32) -> Connection {
    let connection = ask(queue, qpn);
    server.says("request");
    assert!(matches!(next(queue).kind, EventKind::Reply { .. }));
    connection.establish().unwrap();
    server.says("established");
    connection
}

fn over(server: &mut Server, queue: &Queue, connection: &Connection) {
    connection.disconnect().unwrap();
    server.says("disconnected ByPeer");
    let event = next(queue).kind;
    assert!(matches!(event, EventKind::Disconnected(Disconnect::ByUs)), "{event:?}");
    assert!(matches!(next(queue).kind, EventKind::TimeWaitOver));
    assert!(matches!(connection.disconnect(), Err(CmError::Gone(_))));
}

/// Runs `body` alone in a network namespace, or is the other program.
fn with_server(name: &str, body: impl FnOnce()) {
    match std::env::var("FERROCE_TEST_ROLE").as_deref() {
        Ok("server") => serve(true),
        Ok("slow") => serve(false),
        Ok("hasty") => establish_and_die(),
        _ => isolated(name, body),
    }
}

#[test]
fn connections_outlive_their_broker() {
    const NAME: &str = "connections_outlive_their_broker";
    with_server(NAME, || {
        let mut server = Server::start(NAME, "server");
        let queue = Queue::new().unwrap();
        let first = establish(&mut server, &queue, 0x11);
        let second = establish(&mut server, &queue, 0x12);
        kill(brokers()[0]);
        // The earlier connection can be ended, and the listener still works.
        over(&mut server, &queue, &first);
        let third = establish(&mut server, &queue, 0x13);
        kill(brokers()[0]);
        over(&mut server, &queue, &third);
        over(&mut server, &queue, &second);
        server.ends();
    });
}

#[test]
fn a_request_outlives_its_broker() {
    const NAME: &str = "a_request_outlives_its_broker";
    with_server(NAME, || {
        let mut server = Server::start(NAME, "slow");
        let queue = Queue::new().unwrap();
        let connection = ask(&queue, 0x11);
        server.says("request");
        kill(brokers()[0]);
        std::thread::sleep(Duration::from_millis(300));
        writeln!(server.input).unwrap();
        assert!(matches!(next(&queue).kind, EventKind::Reply { .. }));
        connection.establish().unwrap();
        server.says("established");
        server.ends();
    });
}

/// Each program tells the next broker its SIDR request; the listener gets it anew.
#[test]
fn a_sidr_request_outlives_its_broker() {
    isolated("a_sidr_request_outlives_its_broker", || {
        let queue = Queue::new().unwrap();
        let port = Port::bind(&Bind::new(PortSpace::Udp, SocketAddr::new(LOCALHOST, PORT))).unwrap();
        port.listen(0, sink(&queue)).unwrap();
        let header = IpCmHeader { source_port: 5, source: LOCALHOST, destination: LOCALHOST }.emit();
        let params = SidrParams {
            route: Route { local: LOCALHOST, remote: LOCALHOST, interface: 0 },
            service_id: port.service_id(),
            response_timeout: CmTime::saturating(18),
            max_cm_retries: 15,
            traffic_class: 0,
            private: PrivateData::new(&header).unwrap(),
        };
        let request = SidrRequest::send(&params, EventSink::queue(&queue, 1)).unwrap();
        let Event { context: 0, kind: EventKind::SidrRequest { request: first, .. } } = next(&queue) else {
            panic!("not asked")
        };
        kill(brokers()[0]);
        let Event { context: 0, kind: EventKind::SidrRequest { request: again, .. } } = next(&queue) else {
            panic!("not asked again")
        };
        let answer = SidrAnswer {
            status: SidrStatus::VALID,
            qpn: Qpn::new(7),
            qkey: Qkey::new(8),
            ece: Ece::default(),
            private: PrivateData::EMPTY,
        };
        // The first one went with its broker.
        assert!(matches!(first.answer(&answer), Err(CmError::Gone(_))));
        again.answer(&answer).unwrap();
        let Event { context: 1, kind: EventKind::SidrReply { rep }, .. } = next(&queue) else {
            panic!("no answer")
        };
        assert_eq!((rep.qpn, rep.qkey), (Qpn::new(7), Qkey::new(8)));
        drop(request);
    });
}

/// A program that is killed right after it said that its connection is set up. The broker's last message to
/// it stays unread, which the kernel reports to the broker in front of what the program said.
fn establish_and_die() {
    let limit = Duration::from_secs(20);
    let mut client = Client::connect(BROKER_NAME, "", limit).unwrap();
    let (Message::Leased(Leased { addresses, slots, .. }), _) =
        client.request(&Message::Lease(1), limit).unwrap()
    else {
        panic!("no lease")
    };
    for _ in 0..addresses {
        client.more(limit).unwrap();
    }
    let connect = CmRequest::Connect(Box::new(request(u32::from(slots[0]) << 12 | 1)));
    let (Message::CmDone(done), _) = client.request(&Message::Cm(connect), limit).unwrap() else {
        panic!("no connection")
    };
    if !client.has_news() {
        assert_eq!(poll(&mut [PollFd::new(&client, PollFlags::IN)], None), Ok(1));
    }
    println!("\nlistening");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    client.tell(&Message::Cm(CmRequest::Establish(done.id))).unwrap();
    kill(std::process::id() as i32);
}

#[test]
fn the_last_words_of_a_killed_program_count() {
    const NAME: &str = "the_last_words_of_a_killed_program_count";
    with_server(NAME, || {
        let queue = Queue::new().unwrap();
        let port = Port::bind(&Bind::new(PortSpace::Tcp, SocketAddr::new(LOCALHOST, PORT))).unwrap();
        port.listen(0, sink(&queue)).unwrap();
        let program = std::thread::spawn(|| Server::start(NAME, "hasty"));
        let EventKind::Request(request) = next(&queue).kind else { panic!("no request") };
        let connection = request.connection;
        connection.set_sink(sink(&queue));
        connection.accept(&AcceptParams::new(2, Qpn::new(0x21)), b"").unwrap();
        let mut program = program.join().unwrap();
        let broker = nix::unistd::Pid::from_raw(brokers()[0]);
        nix::sys::signal::kill(broker, Signal::SIGSTOP).unwrap();
        program.input.write_all(b"\n").unwrap();
        program.child.wait().unwrap();
        nix::sys::signal::kill(broker, Signal::SIGCONT).unwrap();
        let event = next(&queue).kind;
        assert!(matches!(event, EventKind::Established(_)), "{event:?}");
        let event = next(&queue).kind;
        assert!(matches!(event, EventKind::Disconnected(Disconnect::ByPeer)), "{event:?}");
    });
}

#[test]
fn the_peers_of_a_dead_program_are_told() {
    const NAME: &str = "the_peers_of_a_dead_program_are_told";
    with_server(NAME, || {
        let queue = Queue::new().unwrap();
        let mut server = Server::start(NAME, "server");
        let connection = establish(&mut server, &queue, 0x11);
        server.ends();
        let event = next(&queue).kind;
        assert!(matches!(event, EventKind::Disconnected(Disconnect::ByPeer)), "{event:?}");
        connection.disconnect().unwrap();
        assert!(matches!(next(&queue).kind, EventKind::TimeWaitOver));
        // A request that was not answered yet, whose port no program has any more.
        let mut server = Server::start(NAME, "slow");
        let _connection = ask(&queue, 0x12);
        server.says("request");
        server.ends();
        let EventKind::Rejected { reason, .. } = next(&queue).kind else { panic!("not rejected") };
        assert_eq!(reason, RejReason::CONSUMER);
        let _connection = ask(&queue, 0x13);
        let EventKind::Rejected { reason, .. } = next(&queue).kind else { panic!("not rejected") };
        assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
    });
}
