//! Hostile datagrams to queue pair 1, sent through sockets. The broker answers them as the protocol requires, or
//! counted; bounded; and nothing to those whom it is not about.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use common::{PATIENCE, brokers, eventually, isolated};
use ferroce_datapath::udp::TxSocket;
use ferroce_engine::cm::{
    AcceptParams, Bind, ConnectParams, Connection, Event, EventKind, EventSink, Port, Queue, Route,
};
use ferroce_ipc::{BROKER_NAME, Client, CmStatus, Message as ToBroker};
use ferroce_wire::cm::{
    About, CmTime, CommId, Drep, Dreq, Info, IpCmHeader, Mad, Message, Mra, PortSpace, PrivateData, Rej,
    RejReason, Rep, Req, Rtu,
};
use ferroce_wire::{Bth, Deth, Flow, IcrcStatus, Operation, Packet, Psn, Qkey, Qpn, Sink, TxBatch, UdPacket};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORT: u16 = 7471;
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// An address of the host that no device has.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Somebody with a UDP socket.
struct Stranger {
    ip: IpAddr,
    tx: TxSocket,
    rx: Option<UdpSocket>,
}

impl Stranger {
    fn new() -> Self {
        let rx = UdpSocket::bind((ELSEWHERE, 4791)).unwrap();
        Self { ip: ELSEWHERE, tx: TxSocket::bind(ELSEWHERE, 0, 50_001).unwrap(), rx: Some(rx) }
    }

    /// One who sends from the address of a device, and cannot hear.
    fn within(port: u16) -> Self {
        Self { ip: HOST, tx: TxSocket::bind(HOST, 0, port).unwrap(), rx: None }
    }

    fn send(&self, qkey: Qkey, payload: &[u8]) {
        let flow = Flow {
            source: self.ip,
            destination: HOST,
            source_port: self.tx.port(),
            traffic_class: 0,
            hop_limit: 0,
            link: Default::default(),
        };
        let deth = Deth { qkey, src_qp: Qpn::GSI };
        let head = Packet {
            bth: Bth::new(Qpn::GSI, Psn::new(0)),
            op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
            icrc: IcrcStatus::Pending,
        };
        let mut octets = [0; 512];
        let mut batch = TxBatch::new(&mut octets, self.tx.limits());
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(payload);
            Ok::<(), std::convert::Infallible>(())
        };
        batch.push(&flow, &head, payload.len(), fill).unwrap();
        assert_eq!(self.tx.send(&mut batch).unwrap().lost, 0);
    }

    fn say(&self, message: Message) {
        self.send(Qkey::GSI, &Mad { transaction_id: 7, message }.emit());
    }

    fn hears(&self) -> Message {
        let rx = self.rx.as_ref().unwrap();
        rx.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = [0; 2048];
        let length = rx.recv(&mut bytes).expect("no answer");
        let Operation::Ud(UdPacket { payload, .. }) = Packet::parse(&bytes[..length]).unwrap().op else {
            panic!()
        };
        Mad::parse(payload).unwrap().message
    }

    fn refused(&self) -> (About, RejReason) {
        match self.hears() {
            Message::Rej(rej) => (rej.about, rej.reason),
            other => panic!("{other:?}"),
        }
    }

    /// A request that is all right, if `service` is listened at.
    fn req(&self, id: u32, space: PortSpace, port: u16) -> Req {
        let route = Route { local: self.ip, remote: HOST, interface: 0 };
        let header = IpCmHeader { source_port: 5, source: self.ip, destination: HOST }.emit();
        let params = ConnectParams::new(route, space.service_id(port), 9, Qpn::new(id));
        ConnectParams { private: PrivateData::new(&header).unwrap(), ..params }.req(CommId(id), Psn::new(1))
    }
}

fn sink(queue: &Arc<Queue>, context: u64) -> EventSink {
    EventSink::queue(queue, context)
}

fn listen(queue: &Arc<Queue>, backlog: u16) -> Port {
    let port = Port::bind(&Bind::new(PortSpace::Tcp, SocketAddr::new(HOST, PORT))).unwrap();
    port.listen(backlog, sink(queue, 0)).unwrap();
    port
}

fn next(queue: &Queue) -> Event {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "no event");
    queue.poll().unwrap()
}

fn status() -> CmStatus {
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    match client.request(&ToBroker::GetStatus, PATIENCE).unwrap().0 {
        ToBroker::Status(status) => *status.cm,
        other => panic!("{other:?}"),
    }
}

fn dropped(reason: &str) -> u64 {
    let place = CmStatus::DROPS.iter().position(|name| *name == reason).unwrap();
    status().counters.drops[place]
}

/// Memory of the broker, in pages.
fn resident() -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", brokers()[0])).unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn strangers_are_answered_or_counted() {
    isolated("strangers_are_answered_or_counted", || {
        let queue = Queue::new().unwrap();
        let port = listen(&queue, 4);
        let stranger = Stranger::new();
        // There is no listener: at another port, in another port space, or where the packet did not go.
        let elsewhere = IpCmHeader { source_port: 5, source: HOST, destination: HOST }.emit();
        let lie =
            Req { private: PrivateData::new(&elsewhere).unwrap(), ..stranger.req(3, PortSpace::Tcp, PORT) };
        for req in [stranger.req(1, PortSpace::Tcp, PORT + 1), stranger.req(2, PortSpace::Ib, PORT), lie] {
            stranger.say(Message::Req(req));
            assert_eq!(stranger.refused(), (About::REQ, RejReason::INVALID_SERVICE_ID));
        }
        // A version that nobody speaks.
        let mut alien =
            Mad { transaction_id: 7, message: Message::Req(stranger.req(4, PortSpace::Tcp, PORT)) }.emit();
        alien[2] = 3;
        stranger.send(Qkey::GSI, &alien);
        assert_eq!(stranger.refused(), (About::REQ, RejReason::CLASS_VERSION));
        // Answers to what was never asked.
        let (local_id, remote_id) = (CommId(5), CommId(0x0100_0005));
        let rep = AcceptParams::new(9, Qpn::new(9)).rep(
            local_id,
            Psn::new(1),
            &stranger.req(5, PortSpace::Tcp, PORT),
        );
        stranger.say(Message::Rep(Rep { remote_id, ..rep }));
        assert_eq!(stranger.refused(), (About::REP, RejReason::INVALID_COMM_ID));
        let private = PrivateData::EMPTY;
        stranger.say(Message::Dreq(Dreq { local_id, remote_id, remote_qpn: Qpn::new(1), private }));
        assert!(matches!(stranger.hears(), Message::Drep(drep) if drep.remote_id == local_id));
        let private = PrivateData::EMPTY;
        stranger.say(Message::Rtu(Rtu { local_id, remote_id, private }));
        stranger.say(Message::Drep(Drep { local_id, remote_id, private: PrivateData::EMPTY }));
        eventually("both are counted", || dropped("unknown_id") == 4);
        // No MADs, and MADs of others.
        let good =
            Mad { transaction_id: 7, message: Message::Req(stranger.req(6, PortSpace::Tcp, PORT)) }.emit();
        stranger.send(Qkey::new(0x11), &good);
        stranger.send(Qkey::GSI, &good[..252]);
        stranger.send(Qkey::GSI, &[]);
        for (at, value) in [(0, 2), (1, 3), (3, 1), (17, 0xff)] {
            let mut bad = good;
            bad[at] = value;
            stranger.send(Qkey::GSI, &bad);
        }
        eventually("all are counted", || {
            let status = status();
            status.no_mad == 3 && status.counters.drops[0] == 5
        });
        // After all that: a request, once however often it is said.
        for _ in 0..3 {
            stranger.send(Qkey::GSI, &good);
        }
        let request = next(&queue);
        assert!(
            matches!(&request.kind, EventKind::Request(request) if request.roce.as_ref().unwrap().req.local_id == CommId(6))
        );
        // Behind the refusal another copy would be a request of its own.
        eventually("the duplicates are counted", || status().counters.rx_duplicates.0[0] == 2);
        drop(request);
        assert_eq!(stranger.refused(), (About::REQ, RejReason::CONSUMER), "nobody kept it");
        eventually("the connection is forgotten", || status().connections == 0);
        drop(port);
    });
}

#[test]
fn a_flood_of_requests_is_bounded() {
    isolated("a_flood_of_requests_is_bounded", || {
        const BACKLOG: u16 = 8;
        let queue = Queue::new().unwrap();
        let _port = listen(&queue, BACKLOG);
        let stranger = Stranger::new();
        let flood = |from: u32| {
            for id in from..from + 5000 {
                stranger.say(Message::Req(stranger.req(id, PortSpace::Tcp, PORT)));
                stranger.say(Message::Req(stranger.req(id, PortSpace::Tcp, PORT + 1)));
            }
        };
        flood(1);
        eventually("the broker is through", || dropped("backlog") > 0);
        let before = resident();
        for round in 1..5 {
            flood(1 + round * 5000);
        }
        let status = status();
        assert_eq!(status.connections, u32::from(BACKLOG));
        assert!(status.counters.rx_msgs.0[0] > 1000, "{status:?}");
        let grown = resident().saturating_sub(before);
        assert!(grown < 512, "{grown} pages more");
        // The listener has as many as it wanted, and goes on with them.
        let waiting: Vec<Event> = (0..BACKLOG).map(|_| next(&queue)).collect();
        assert!(queue.poll().is_none());
        drop(waiting);
        eventually("there is room again", || {
            stranger.say(Message::Req(stranger.req(77_777, PortSpace::Tcp, PORT)));
            queue.poll().is_some()
        });
    });
}

#[test]
fn what_others_say_of_a_connection_changes_nothing() {
    isolated("what_others_say_of_a_connection_changes_nothing", || {
        let queue = Queue::new().unwrap();
        let _port = listen(&queue, 4);
        let route = Route { local: HOST, remote: HOST, interface: 0 };
        let header = IpCmHeader { source_port: 5, source: HOST, destination: HOST }.emit();
        let params = ConnectParams {
            private: PrivateData::new(&header).unwrap(),
            ..ConnectParams::new(route, PortSpace::Tcp.service_id(PORT), 1, Qpn::new(0x11))
        };
        let (active, _) = Connection::send(&params, sink(&queue, 1)).unwrap();
        let EventKind::Request(request) = next(&queue).kind else { panic!() };
        let passive = request.connection;
        passive.set_sink(sink(&queue, 2));
        passive.accept(&AcceptParams::new(1, Qpn::new(0x22)), b"").unwrap();
        let EventKind::Reply { rep } = next(&queue).kind else { panic!() };
        active.establish().unwrap();
        assert!(matches!(next(&queue), Event { context: 2, kind: EventKind::Established(_), .. }));
        let (a, b) = (active.id().unwrap(), passive.id().unwrap());
        // A stranger that knows everything, but is elsewhere; and one that knows everything and sends from our own address, which
        // any user of the host may do.
        for stranger in [Stranger::new(), Stranger::within(50_002)] {
            let before = status();
            let mut said = 0;
            for (local_id, remote_id, qpn) in [(a, b, 0x22), (b, a, 0x11)] {
                let (about, reason) = (About::OTHER, RejReason::CONSUMER);
                let (remote_qpn, info) = (Qpn::new(qpn), Info::NONE);
                let service_timeout = CmTime::saturating(20);
                for message in [
                    Message::Dreq(Dreq { local_id, remote_id, remote_qpn, private: PrivateData::EMPTY }),
                    Message::Drep(Drep { local_id, remote_id, private: PrivateData::EMPTY }),
                    Message::Rtu(Rtu { local_id, remote_id, private: PrivateData::EMPTY }),
                    Message::Rej(Rej {
                        local_id,
                        remote_id,
                        about,
                        reason,
                        info,
                        private: PrivateData::EMPTY,
                    }),
                    Message::Mra(Mra {
                        local_id,
                        remote_id,
                        about,
                        service_timeout,
                        private: PrivateData::EMPTY,
                    }),
                    Message::Rep(Rep { local_id, remote_id, ..*rep }),
                ] {
                    stranger.say(message);
                    said += 1;
                }
            }
            if stranger.rx.is_none() {
                // As if the peer's queue pair had been made anew (IBTA 12.9.8.3.1).
                let again = stranger.req(0x4000_0001, PortSpace::Tcp, PORT);
                stranger.say(Message::Req(Req { ca_guid: 1, qpn: Qpn::new(0x11), ..again }));
                said += 1;
            }
            eventually("all of it is dropped", || {
                let now = status();
                let more = |now: &[u64], before: &[u64]| now.iter().sum::<u64>() - before.iter().sum::<u64>();
                match stranger.rx.is_none() {
                    // The broker alone says anything in its name, so it does not even look.
                    true => {
                        now.no_mad - before.no_mad == said && now.counters.rx_msgs == before.counters.rx_msgs
                    }
                    false => {
                        more(&now.counters.rx_msgs.0, &before.counters.rx_msgs.0) == said
                            && more(&now.counters.drops, &before.counters.drops) == said
                    }
                }
            });
        }
        assert!(queue.poll().is_none());
        // It can be ended as if nothing had been.
        active.disconnect().unwrap();
        assert!(matches!(next(&queue), Event { context: 2, kind: EventKind::Disconnected(_), .. }));
        passive.disconnect().unwrap();
        assert!(matches!(next(&queue), Event { context: 1, kind: EventKind::Disconnected(_), .. }));
    });
}

/// A program that has given up its port is asked no more, however soon after that the request comes: the broker, which
/// finds both at once, hears the program first.
#[test]
fn what_a_program_said_counts_before_what_a_peer_says_then() {
    isolated("what_a_program_said_counts_before_what_a_peer_says_then", || {
        let queue = Queue::new().unwrap();
        // The broker raises lo.
        drop(listen(&queue, 4));
        let stranger = Stranger::new();
        let broker = |signal| kill(Pid::from_raw(brokers()[0]), signal).unwrap();
        for id in 1..10 {
            let port = listen(&queue, 4);
            broker(Signal::SIGSTOP);
            drop(port);
            stranger.say(Message::Req(stranger.req(id, PortSpace::Tcp, PORT)));
            broker(Signal::SIGCONT);
            assert_eq!(stranger.refused(), (About::REQ, RejReason::INVALID_SERVICE_ID));
            assert!(queue.poll().is_none());
        }
    });
}

/// Where no stack is, nobody refuses: the CM's timers say so, after all repetitions.
#[test]
fn a_host_without_a_stack_is_unreachable() {
    isolated("a_host_without_a_stack_is_unreachable", || {
        let queue = Queue::new().unwrap();
        let route = Route { local: HOST, remote: ELSEWHERE, interface: 0 };
        let header = IpCmHeader { source_port: 5, source: HOST, destination: ELSEWHERE }.emit();
        let params = ConnectParams {
            private: PrivateData::new(&header).unwrap(),
            packet_life: CmTime::saturating(8),
            response_timeout: CmTime::saturating(13),
            max_cm_retries: 3,
            ..ConnectParams::new(route, PortSpace::Tcp.service_id(PORT), 1, Qpn::new(0x11))
        };
        let _asking = Connection::send(&params, sink(&queue, 1)).unwrap();
        let kind = next(&queue).kind;
        assert!(matches!(kind, EventKind::Unreachable), "{kind:?}");
        let status = status();
        assert_eq!(
            (status.counters.tx_msgs.0[0], status.counters.tx_retries.0[0], status.connections),
            (4, 3, 0)
        );
    });
}
