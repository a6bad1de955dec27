//! Multicast groups over real sockets: on lo without privileges, and on links of a network namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferroce_datapath::udp::{MAX_BATCH, RxBuffer, RxSocket, Sent, TxSocket};
use ferroce_wire::Flow;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;

/// An address of 239.192/14, for use inside an organisation; each process has another one.
fn group_v4(number: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, 192 | number, high, low).into()
}

fn sender(ip: IpAddr, ifindex: u32) -> TxSocket {
    let bound = (0xC000..=0xFFFF).find_map(|port| TxSocket::bind(ip, 0, port).ok());
    let socket = bound.expect("a free port");
    socket.set_multicast_interface(ifindex).unwrap();
    socket
}

fn flow(socket: &TxSocket, group: IpAddr) -> Flow {
    Flow {
        source: socket.local_addr().ip(),
        destination: group,
        source_port: socket.port(),
        traffic_class: 0,
        hop_limit: 1,
        link: Default::default(),
    }
}

fn send(socket: &TxSocket, group: IpAddr, bytes: &[u8]) {
    let sent = socket.send_datagram(&flow(socket, group), bytes).unwrap();
    assert_eq!(sent, Sent { sent: 1, lost: 0, reason: None }, "to {group}");
}

/// All queued datagrams, at least `count`.
fn received(socket: &RxSocket, count: usize) -> Vec<Vec<u8>> {
    let mut buffer = RxBuffer::new();
    let mut all = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let n = socket.recv(&mut buffer).unwrap();
        all.extend(buffer.datagrams().map(|datagram| datagram.bytes.to_vec()));
        if n == 0 && (all.len() >= count || Instant::now() > deadline) {
            return all;
        }
    }
}

#[test]
fn every_member_on_lo_gets_one_copy() {
    let lo = if_nametoindex("lo").unwrap();
    let (group, other) = (group_v4(0), group_v4(1));
    let members = [RxSocket::join(group, lo).unwrap(), RxSocket::join(group, lo).unwrap()];
    let stranger = RxSocket::join(other, lo).unwrap();
    let socket = sender(Ipv4Addr::LOCALHOST.into(), lo);
    for number in 0..10_u8 {
        send(&socket, group, &[number; 40]);
    }
    let want: Vec<_> = (0..10).map(|number| vec![number; 40]).collect();
    for member in &members {
        assert_eq!(member.local_addr().ip(), group);
        assert_eq!(received(member, 10), want);
    }
    assert_eq!(received(&stranger, 0), Vec::<Vec<u8>>::new());

    members[0].leave(lo).unwrap();
    send(&socket, group, b"who is left");
    assert_eq!(received(&members[1], 1), [b"who is left"]);
    assert_eq!(received(&members[0], 0), Vec::<Vec<u8>>::new());
}

#[test]
fn a_batch_reaches_every_member() {
    use ferroce_wire::{
        Bth, IcrcStatus, Operation, Packet, Pkey, Psn, Qpn, RcPacket, Request, Sink, TxBatch,
    };
    let lo = if_nametoindex("lo").unwrap();
    let group = group_v4(2);
    let members = [RxSocket::join(group, lo).unwrap(), RxSocket::join(group, lo).unwrap()];
    let socket = sender(Ipv4Addr::LOCALHOST.into(), lo);
    let mut buffer = vec![0; MAX_BATCH];
    let mut batch = TxBatch::new(&mut buffer, socket.limits());
    for psn in 0..8 {
        let bth = Bth {
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::MULTICAST,
            ack_req: false,
            extended: false,
            psn: Psn::new(psn),
        };
        let op = Operation::Rc(RcPacket::Request(Request::SendMiddle { payload: &[] }));
        let packet = Packet { bth, op, icrc: IcrcStatus::Pending };
        batch.push(&flow(&socket, group), &packet, 256, |_| Ok::<_, ()>(())).unwrap();
    }
    assert_eq!(socket.send(&mut batch).unwrap(), Sent { sent: 8, lost: 0, reason: None });
    let segments: Vec<_> = batch.segments().map(<[u8]>::to_vec).collect();
    for member in &members {
        assert_eq!(received(member, 8), segments);
    }
}

#[test]
fn only_groups_and_interfaces_that_exist_can_be_joined() {
    let lo = if_nametoindex("lo").unwrap();
    for ip in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0]), Ipv6Addr::LOCALHOST.into()] {
        assert_eq!(RxSocket::join(ip, lo).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{ip}");
    }
    for group in [group_v4(0), "ff0e::1".parse().unwrap()] {
        assert!(RxSocket::join(group, 0x7fff_ffff).is_err(), "{group}");
    }
    let socket = TxSocket::bind(Ipv4Addr::LOCALHOST.into(), 0, 0).unwrap();
    assert!(socket.set_multicast_interface(0x7fff_ffff).is_err());
}

/// Two links of one namespace: a group belongs to one interface, for IPv6 as well.
#[test]
fn an_interface_s_groups_are_its_own() {
    if !Uid::effective().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: links of their own need root and the program ip");
        return;
    }
    std::thread::spawn(on_links).join().unwrap();
}

fn on_links() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    for (name, number) in [("va", 1), ("vb", 2)] {
        run(&format!("ip link add {name} type veth peer name {name}x"));
        run(&format!("ip addr add 198.18.{number}.1/24 dev {name}"));
        run(&format!("ip addr add fd00:18:{number}::1/64 dev {name} nodad"));
        run(&format!("ip link set {name}x up"));
        run(&format!("ip link set {name} up"));
    }
    let [a, b] = ["va", "vb"].map(|name| if_nametoindex(name).unwrap());
    // A link routes IPv6 groups after the kernel has noticed its carrier, which may be after `ip` has exited.
    for (local, ifindex) in [("fd00:18:1::1", a), ("fd00:18:2::1", b)] {
        until_routed(&sender(local.parse().unwrap(), ifindex), "ff0e::ffff".parse().unwrap());
    }
    for group in ["239.1.2.3", "224.0.0.77", "ff0e::1:2", "ff02::1:2", "ff05::3", "ff01::4"] {
        let group: IpAddr = group.parse().unwrap();
        let on_a = RxSocket::join(group, a).unwrap();
        let on_b = RxSocket::join(group, b).unwrap();
        for (number, ifindex) in [(1, a), (2, b)] {
            let local = match group {
                IpAddr::V4(_) => format!("198.18.{number}.1"),
                IpAddr::V6(_) => format!("fd00:18:{number}::1"),
            };
            let socket = sender(local.parse().unwrap(), ifindex);
            send(&socket, group, &[number; 20]);
        }
        assert_eq!(received(&on_a, 1), [[1; 20]], "{group}");
        assert_eq!(received(&on_b, 1), [[2; 20]], "{group}");
    }
}

fn until_routed(socket: &TxSocket, group: IpAddr) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while socket.send_datagram(&flow(socket, group), b"to nobody").unwrap().sent == 0 {
        assert!(Instant::now() < deadline, "no route to {group}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "{command}");
}
