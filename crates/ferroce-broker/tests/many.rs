//! Ten thousand connections leave nothing behind.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use common::{PATIENCE, brokers, eventually, isolated};
use ferroce_engine::cm::{
    AcceptParams, Bind, ConnectParams, Connection, Event, EventKind, EventSink, Port, Queue, Route,
};
use ferroce_ipc::{BROKER_NAME, Client, Message, Status};
use ferroce_wire::Qpn;
use ferroce_wire::cm::{IpCmHeader, PortSpace, PrivateData};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PORT: u16 = 7471;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Connections, in all and at once.
const ALL: u64 = 10_000;
const AT_ONCE: u64 = 500;

fn sink(queue: &Arc<Queue>, context: u64) -> EventSink {
    EventSink::queue(queue, context)
}

fn next(queue: &Queue) -> Event {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "no event");
    queue.poll().unwrap()
}

fn status() -> Status {
    let mut client = Client::connect(BROKER_NAME, "", PATIENCE).unwrap();
    match client.request(&Message::GetStatus, PATIENCE).unwrap().0 {
        Message::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Memory in pages, and descriptors.
fn has(process: &str) -> (u64, usize) {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    let fds = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    (statm.split(' ').nth(1).unwrap().parse().unwrap(), fds)
}

/// Opens `AT_ONCE` connections from one end of the process to the other, and closes them from either end.
fn round(queue: &Arc<Queue>, first: u64) {
    let route = Route { local: LOCALHOST, remote: LOCALHOST, interface: 0 };
    let header = IpCmHeader { source_port: 5, source: LOCALHOST, destination: LOCALHOST }.emit();
    // Queue pairs that are in use twice, or were until just now, would be stale connections.
    let qpn = |end: u64| Qpn::new(0x0001_0000 + end as u32);
    let mut ends = BTreeMap::new();
    for number in first..first + AT_ONCE {
        let active = 2 * number;
        let params = ConnectParams {
            private: PrivateData::new(&header).unwrap(),
            ..ConnectParams::new(route, PortSpace::Tcp.service_id(PORT), 1, qpn(active))
        };
        ends.insert(active, Connection::send(&params, sink(queue, active)).unwrap().0);
    }
    let mut left = 2 * AT_ONCE;
    while left > 0 {
        let Event { context, kind } = next(queue);
        match kind {
            EventKind::Request(request) => {
                let (connection, roce) = (request.connection, request.roce.unwrap());
                let passive = u64::from(roce.req.qpn.value() - 0x0001_0000) + 1;
                connection.set_sink(sink(queue, passive));
                connection.accept(&AcceptParams::new(1, qpn(passive)), b"").unwrap();
                ends.insert(passive, connection);
            }
            EventKind::Reply { .. } => {
                ends[&context].establish().unwrap();
                if context % 4 == 0 {
                    ends[&context].disconnect().unwrap();
                }
            }
            EventKind::Established(_) if context % 4 == 3 => ends[&context].disconnect().unwrap(),
            EventKind::Established(_) => {}
            EventKind::Disconnected(_) => {
                ends[&context].disconnect().unwrap();
                // One of the two sees time-wait to its end, the other leaves that to the broker.
                if context % 2 == 0 {
                    ends.remove(&context);
                    left -= 1;
                }
            }
            EventKind::TimeWaitOver => {
                ends.remove(&context);
                left -= 1;
            }
            other => panic!("{context}: {other:?}"),
        }
    }
    assert!(ends.is_empty());
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    isolated("ten_thousand_connections_leave_nothing_behind", || {
        let queue = Queue::new().unwrap();
        let port = Port::bind(&Bind::new(PortSpace::Tcp, SocketAddr::new(LOCALHOST, PORT))).unwrap();
        port.listen(0, sink(&queue, u64::MAX)).unwrap();
        let broker = brokers()[0].to_string();
        // The first are what everybody's memory grows to.
        let warm = 2000;
        (0..warm / AT_ONCE).for_each(|number| round(&queue, number * AT_ONCE));
        let nothing = || {
            let cm = status().cm;
            (cm.connections, cm.sidr_requests) == (0, 0)
        };
        eventually("time-wait is over", nothing);
        let (before, ours) = (has(&broker), has("self"));
        (warm / AT_ONCE..ALL / AT_ONCE).for_each(|number| round(&queue, number * AT_ONCE));
        eventually("time-wait is over", nothing);
        let status = status();
        assert_eq!((status.cm.listeners, status.cm.ports, status.programs.len()), (1, 1, 1));
        assert_eq!(status.programs[0].slots[0], 16);
        // A program that has to wait for its processor has messages sent again to it; that loses none.
        let counters = &status.cm.counters;
        assert_eq!(counters.rx_msgs.0[0] - counters.rx_duplicates.0[0], ALL, "and nothing was lost");
        for (who, process, before) in [("the broker", broker.as_str(), before), ("the program", "self", ours)]
        {
            // One may be that of our last question.
            eventually("descriptors", || has(process).1 <= before.1);
            let pages = has(process).0;
            assert!(pages <= before.0 + 256, "{who} has grown from {} to {pages} pages", before.0);
        }
        drop(port);
        eventually("the port is free", || ports() == 0);
    });
}

fn ports() -> u32 {
    status().cm.ports
}
