use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferroce_wire::{
    BatchLimits, Bth, Flow, IcrcStatus, Operation, Packet, Pkey, Psn, Qpn, RcPacket, Request, Sink, TxBatch,
};

use super::*;

/// An address of 127/8 that no other test uses, in this process or another.
fn own_v4() -> IpAddr {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let n = std::process::id().wrapping_mul(64).wrapping_add(COUNTER.fetch_add(1, Ordering::Relaxed));
    Ipv4Addr::from(0x7f40_0000 | (n % 0x3f_ffff)).into()
}

const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Opens a group of `slots` members with leased buffers.
fn group(ip: IpAddr, slots: u8) -> Group {
    let mut group = match ip {
        IpAddr::V4(_) => Group::open(ip, 0).unwrap(),
        // There is only one ::1, so the test uses a port of its own.
        IpAddr::V6(_) => {
            let free = std::net::UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap();
            Group::open_at(free).unwrap()
        }
    };
    for _ in 1..slots {
        group.add_member().unwrap();
    }
    for slot in 0..slots {
        group.lease(slot, RECEIVE_BUFFER).unwrap();
    }
    group
}

fn holder(group: &Group, slot: u8) -> RxSocket {
    RxSocket::from_fd(group.member(slot).unwrap().try_clone_to_owned().unwrap()).unwrap()
}

/// A socket with any free source port towards the group, and a flow from it.
fn sender(group: &Group) -> (TxSocket, Flow) {
    let ip = group.local_addr().ip();
    let ports = source_ports(std::process::id().into(), ip, 1, 2, 3);
    let mut bound = ports.map(|port| TxSocket::bind_towards(ip, 0, port, group.local_addr().port()));
    let socket = bound.find_map(Result::ok).unwrap();
    (socket, flow(ip))
}

fn flow(ip: IpAddr) -> Flow {
    Flow {
        source: ip,
        destination: ip,
        source_port: 0xC000,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

fn head(slot: u8, psn: u32) -> Packet<'static> {
    Packet {
        bth: Bth {
            solicited: false,
            mig_req: true,
            pkey: Pkey::new(0xffff),
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(u32::from(slot) << 16 | 0x1234),
            ack_req: false,
            extended: false,
            psn: Psn::new(psn),
        },
        op: Operation::Rc(RcPacket::Request(Request::SendMiddle { payload: &[] })),
        icrc: IcrcStatus::Pending,
    }
}

fn fill(batch: &mut TxBatch<'_>, flow: &Flow, slot: u8, count: u32, len: usize) {
    for psn in 0..count {
        let write = |payload: &mut [u8]| {
            payload.fill(psn as u8);
            Ok::<_, ()>(())
        };
        batch.push(flow, &head(slot, psn), len, write).unwrap();
    }
}

/// Receives until `count` datagrams arrived or none follows; returns index, merged flag and bytes of each.
fn receive(socket: &RxSocket, count: usize) -> Vec<(u16, bool, Vec<u8>)> {
    let mut buffer = RxBuffer::new();
    let mut all = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while all.len() < count && Instant::now() < deadline {
        let n = socket.recv(&mut buffer).unwrap();
        assert_eq!(n, buffer.datagrams().count());
        all.extend(buffer.datagrams().map(|d| (d.segment_index, d.gro, d.bytes.to_vec())));
    }
    assert_eq!(socket.recv(&mut buffer).unwrap(), 0, "more than {count} datagrams arrived");
    all
}

#[test]
fn each_slot_receives_its_own() {
    for (ip, slots) in [(own_v4(), 16), (own_v4(), 64), (V6, 16), (V6, 64)] {
        let group = group(ip, slots);
        let (tx, flow) = sender(&group);
        let holders: Vec<_> = (0..slots).map(|slot| holder(&group, slot)).collect();
        for round in 0..20_u8 {
            for slot in 0..slots {
                let sent = tx.send_datagram(&flow, &[0, 0, 0, 0, 0, slot, round, 0xff]).unwrap();
                assert_eq!(sent, Sent { sent: 1, lost: 0, reason: None });
            }
        }
        for (slot, holder) in (0_u8..).zip(&holders) {
            let got = receive(holder, 20);
            let want: Vec<_> = (0..20).map(|round| vec![0, 0, 0, 0, 0, slot, round, 0xff]).collect();
            assert_eq!(
                got.into_iter().map(|(_, _, bytes)| bytes).collect::<Vec<_>>(),
                want,
                "{ip} slot {slot}"
            );
        }
    }
}

#[test]
fn short_datagrams_go_to_the_broker() {
    for ip in [own_v4(), V6] {
        let group = group(ip, 4);
        let (tx, flow) = sender(&group);
        for len in 0..=5 {
            tx.send_datagram(&flow, &[0xff; 5][..len]).unwrap().sent.checked_sub(1).unwrap();
        }
        let lens: Vec<_> = receive(&holder(&group, 0), 6).iter().map(|(_, _, bytes)| bytes.len()).collect();
        assert_eq!(lens, [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn a_batch_arrives_whole_and_in_order() {
    for ip in [own_v4(), V6] {
        for gso in [true, false] {
            for (count, len) in [(1, 0), (1, 4096), (2, 256), (15, 4096), (62, 1024), (64, 0)] {
                let group = group(ip, 3);
                let (tx, flow) = sender(&group);
                let mut buf = vec![0; MAX_BATCH];
                let mut batch = TxBatch::new(&mut buf, BatchLimits { gso, ..tx.limits() });
                fill(&mut batch, &flow, 2, count, len);
                assert_eq!(
                    tx.send(&mut batch).unwrap(),
                    Sent { sent: count as usize, lost: 0, reason: None }
                );
                let got = receive(&holder(&group, 2), count as usize);
                assert_eq!(got.len(), count as usize);
                for (i, ((index, merged, bytes), segment)) in got.iter().zip(batch.segments()).enumerate() {
                    // Over lo a batch is never split, and single datagrams are never merged.
                    let together = gso && count > 1;
                    assert_eq!((usize::from(*index), *merged), (if together { i } else { 0 }, together));
                    assert_eq!(bytes, segment);
                }
            }
        }
    }
}

#[test]
fn a_shorter_last_segment_is_told_apart() {
    let group = group(own_v4(), 2);
    let (tx, flow) = sender(&group);
    let mut buf = vec![0; MAX_BATCH];
    let mut batch = TxBatch::new(&mut buf, tx.limits());
    fill(&mut batch, &flow, 1, 3, 1024);
    batch.push(&flow, &head(1, 3), 100, |_| Ok::<_, ()>(())).unwrap();
    let _ = tx.send(&mut batch).unwrap();
    let lens: Vec<_> = receive(&holder(&group, 1), 4).iter().map(|(_, _, bytes)| bytes.len()).collect();
    assert_eq!(lens, [1040, 1040, 1040, 116]);
}

#[test]
fn many_singles_come_in_few_calls() {
    let group = group(own_v4(), 2);
    let (tx, flow) = sender(&group);
    for i in 0..100_u8 {
        let _ = tx.send_datagram(&flow, &[i, 0, 0, 0, 0, 1]).unwrap();
    }
    let rx = holder(&group, 1);
    let mut buffer = RxBuffer::new();
    let mut counts = Vec::new();
    let mut firsts = Vec::new();
    loop {
        let n = rx.recv(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        counts.push(n);
        firsts.extend(buffer.datagrams().map(|d| d.bytes[0]));
    }
    assert_eq!(counts, [1, 8, 32, 32, 27]);
    assert_eq!(firsts, (0..100).collect::<Vec<u8>>());
}

#[test]
fn what_the_header_said_is_told() {
    for ip in [own_v4(), V6] {
        let group = group(ip, 2);
        let (tx, flow) = sender(&group);
        // As a control message, then as the socket's own, then the first again.
        for (class, prefer) in [(0, false), (0x8b, false), (0x6a, true), (0x8b, false), (0x6a, false)] {
            let flow = Flow { traffic_class: class, hop_limit: class, ..flow };
            if prefer {
                tx.set_class(Class { traffic_class: class, service_level: 0 }).unwrap();
                tx.prefer_hop_limit(class).unwrap();
            }
            let _ = tx.send_datagram(&flow, &[0, 0, 0, 0, 0, 1]).unwrap();
            let rx = holder(&group, 1);
            rx.receive_headers().unwrap();
            let mut buffer = RxBuffer::new();
            assert_eq!(rx.recv(&mut buffer).unwrap(), 1);
            let got = buffer.datagrams().next().unwrap();
            assert_eq!((got.source, got.source_port), (ip, tx.port()));
            // A hop limit of 0 leaves the system's default.
            let hops = if class == 0 { 64 } else { class };
            assert_eq!((got.traffic_class, got.hop_limit), (class, hops), "{ip} {class:#x}");
        }
    }
}

/// A datagram with hop limit 0 would not leave the host.
#[test]
fn hop_limit_0_leaves_the_system_default() {
    for ip in [own_v4(), V6] {
        let group = group(ip, 2);
        let (tx, flow) = sender(&group);
        let _ = tx.send_datagram(&Flow { hop_limit: 0, ..flow }, &[0, 0, 0, 0, 0, 1]).unwrap();
        let rx = holder(&group, 1);
        rx.receive_headers().unwrap();
        let mut buffer = RxBuffer::new();
        assert_eq!(rx.recv(&mut buffer).unwrap(), 1);
        assert_eq!(buffer.datagrams().next().unwrap().hop_limit, 64);
    }
}

/// The kernel's rxe sends without checksum over both families.
#[test]
fn datagrams_without_checksum_are_received() {
    const UDP_NO_CHECK6_TX: c_int = 101;
    for ip in [own_v4(), V6] {
        let group = group(ip, 2);
        let other = std::net::UdpSocket::bind((ip, 0)).unwrap();
        match ip {
            IpAddr::V4(_) => sys::set_int(&other, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap(),
            IpAddr::V6(_) => sys::set_int(&other, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1).unwrap(),
        }
        other.send_to(&[0, 0, 0, 0, 0, 1], group.local_addr()).unwrap();
        assert_eq!(receive(&holder(&group, 1), 1).len(), 1);
    }
}

#[test]
fn a_free_slot_holds_next_to_nothing_and_a_leased_one_what_is_granted() {
    let group = group(own_v4(), 3);
    let (tx, flow) = sender(&group);
    group.release(1).unwrap();
    let rx = holder(&group, 1);
    assert!(rx.granted_rcvbuf().unwrap() < 8192);
    let mut datagram = vec![0; 4096];
    datagram[5] = 1;
    let send = |count: usize| {
        for _ in 0..count {
            let _ = tx.send_datagram(&flow, &datagram).unwrap();
        }
    };
    send(100);
    assert!(rx.drops().unwrap() >= 98);

    // The next holder receives none of these datagrams.
    let granted = group.lease(1, RECEIVE_BUFFER).unwrap();
    assert_eq!(granted, rx.granted_rcvbuf().unwrap());
    let limit: usize =
        std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
    assert_eq!(granted, 2 * limit.min(RECEIVE_BUFFER));
    let before = rx.drops().unwrap();
    send(20);
    assert_eq!(receive(&rx, 20).len(), 20);
    assert_eq!(rx.drops().unwrap(), before);
}

#[test]
fn survivors_are_found_and_adopted() {
    for ip in [own_v4(), V6] {
        let old = group(ip, 5);
        let at = old.local_addr();
        let parked: Vec<_> = old.members().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let (tx, flow) = sender(&old);
        drop(old);
        let refused = Group::open_at(at).unwrap_err();
        assert!(matches!(refused, OpenError::InUse(a) if a == at), "{refused}");

        let mut new = Group::adopt(parked).unwrap();
        assert_eq!((new.len(), new.local_addr()), (5, at));
        new.add_member().unwrap();
        for slot in 0..6 {
            let _ = tx.send_datagram(&flow, &[0, 0, 0, 0, 0, slot]).unwrap();
            assert_eq!(receive(&holder(&new, slot), 1).len(), 1, "slot {slot}");
        }
    }
}

#[test]
fn only_members_of_one_group_are_adopted() {
    assert!(matches!(Group::adopt(Vec::new()), Err(OpenError::Count(0))));
    let (one, other) = (group(own_v4(), 1), group(own_v4(), 1));
    let member = |group: &Group| group.member(0).unwrap().try_clone_to_owned().unwrap();
    let foreign: [(OwnedFd, &str); 5] = [
        (std::fs::File::open("/dev/null").unwrap().into(), "not a datagram socket"),
        (std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(), "not a datagram socket"),
        (std::os::unix::net::UnixDatagram::unbound().unwrap().into(), "not a UDP socket"),
        (std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(), "not opened with SO_REUSEPORT"),
        (member(&other), "not bound to the address of the others"),
    ];
    for (fd, want) in foreign {
        match Group::adopt(vec![member(&one), fd]) {
            Err(OpenError::NotAMember { slot: 1, reason }) => assert_eq!(reason, want),
            other => panic!("{want}: {other:?}"),
        }
    }
}

#[test]
fn a_group_ends_at_slot_254() {
    let mut group = Group::open(own_v4(), 0).unwrap();
    while group.len() < SLOTS {
        group.add_member().unwrap();
    }
    assert!(matches!(group.add_member(), Err(OpenError::Count(256))));
    group.lease(254, RECEIVE_BUFFER).unwrap();
    let (tx, flow) = sender(&group);
    let _ = tx.send_datagram(&flow, &[0, 0, 0, 0, 0, 254]).unwrap();
    assert_eq!(receive(&holder(&group, 254), 1).len(), 1);
}

#[test]
fn foreign_and_missing_addresses_are_named() {
    let text = |e: OpenError| e.to_string();
    assert_eq!(
        text(Group::open("192.0.2.1".parse().unwrap(), 0).unwrap_err()),
        "no such local address: 192.0.2.1:4791"
    );
    assert_eq!(
        text(Group::open("fe80::1".parse().unwrap(), 0).unwrap_err()),
        "no such local address: [fe80::1]:4791"
    );
}

#[test]
fn source_ports_of_two_slots_never_meet() {
    let destinations: [IpAddr; 3] = [own_v4(), V6, "2001:db8::7".parse().unwrap()];
    for destination in destinations {
        let mut seen = HashSet::new();
        for slot in 0..=255 {
            let mut of_slot = HashSet::new();
            for pair in 0..50 {
                let ports: Vec<_> = source_ports(7, destination, slot, pair, 99).collect();
                assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 64);
                assert!(ports.iter().all(|port| PORTS.contains(port)));
                of_slot.extend(ports);
            }
            assert!(of_slot.is_disjoint(&seen));
            seen.extend(of_slot);
        }
    }
}

#[test]
fn queue_pairs_spread_over_a_few_ports() {
    let first = |pair| source_ports(7, V6, 3, pair, 99).next().unwrap();
    let firsts: HashSet<_> = (0..1000).map(first).collect();
    assert_eq!(firsts.len(), 8);
    // Any three of the upper bits take all eight values.
    for shift in [8, 11] {
        assert_eq!(firsts.iter().map(|port| port >> shift & 7).collect::<HashSet<_>>().len(), 8);
    }
    // Another process prefers other ports.
    let others: HashSet<_> = (0..1000).map(|pair| source_ports(8, V6, 3, pair, 99).next().unwrap()).collect();
    assert!(firsts.is_disjoint(&others));
}

#[test]
fn a_source_port_has_one_socket() {
    let ip = own_v4();
    let first = TxSocket::bind(ip, 0, 0xC123).unwrap();
    assert_eq!(TxSocket::bind(ip, 0, 0xC123).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(first.local_addr(), SocketAddr::new(ip, 0xC123));
}

#[test]
fn what_is_sent_to_a_source_port_vanishes() {
    let ip = own_v4();
    let tx = TxSocket::bind(ip, 0, 0xC124).unwrap();
    let other = std::net::UdpSocket::bind((ip, 0)).unwrap();
    other.send_to(b"anything", tx.local_addr()).unwrap();
    let received = socket2::SockRef::from(&tx).recv(&mut []);
    assert_eq!(received.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    // The sender receives no ICMP error either.
    other.send_to(b"again", tx.local_addr()).unwrap();
}

#[test]
fn what_the_network_refuses_is_loss() {
    let tx = TxSocket::bind(own_v4(), 0, 0xC125).unwrap();
    let lost = |to: &str, bytes: &[u8]| {
        let flow = flow(to.parse().unwrap());
        tx.send_datagram(&flow, bytes).unwrap()
    };
    let loss = |reason| Sent { sent: 0, lost: 1, reason: Some(reason) };
    // A loopback source leaves by no interface; broadcast needs SO_BROADCAST, which is not set.
    assert_eq!(lost("198.51.100.1", b"x").sent, 0);
    assert_eq!(lost("255.255.255.255", b"x").sent, 0);
    assert_eq!(lost("127.0.0.1", &[0; 65_508]), loss(LossReason::TooLong));
}

#[test]
fn a_batch_the_kernel_refuses_to_cut_goes_one_by_one() {
    let group = group(own_v4(), 2);
    let (tx, flow) = sender(&group);
    // Segmentation needs checksums: without them the kernel returns EINVAL (EIO if the interface cannot
    // compute them).
    sys::set_int(&tx, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let mut buf = vec![0; MAX_BATCH];
    for round in 0..2 {
        let mut batch = TxBatch::new(&mut buf, BatchLimits { gso: true, ..tx.limits() });
        fill(&mut batch, &flow, 1, 10, 512);
        assert_eq!(tx.send(&mut batch).unwrap(), Sent { sent: 10, lost: 0, reason: None });
        assert!(!tx.limits().gso, "remembered");
        let got = receive(&holder(&group, 1), 10);
        for (i, (index, merged, bytes)) in got.iter().enumerate() {
            assert_eq!((*index, *merged), (0, false));
            assert!(
                ferroce_wire::icrc::verify(&flow, 0, bytes),
                "round {round}: datagram {i} must be sealed for identification 0"
            );
        }
    }
}

#[test]
fn queue_pairs_share_sockets() {
    let ip = own_v4();
    let ports = TxPorts::new(ip, 0, 7);
    let sockets: Vec<_> =
        (0..1000).map(|pair| ports.get(V6_PEER, 3, pair, 99, Class::default()).unwrap()).collect();
    let distinct: HashSet<_> = sockets.iter().map(|socket| socket.port()).collect();
    assert_eq!(distinct.len(), 8);
    // If another process has the port, the next candidate is used.
    let wanted = source_ports(7, V6_PEER, 4, 1, 1).next().unwrap();
    let taken = TxSocket::bind(ip, 0, wanted).unwrap();
    let next = ports.get(V6_PEER, 4, 1, 1, Class::default()).unwrap();
    assert_eq!(next.port(), source_ports(7, V6_PEER, 4, 1, 1).nth(1).unwrap());
    // The last user closes it.
    let port = next.port();
    drop((next, taken));
    TxSocket::bind(ip, 0, port).unwrap();
}

#[test]
fn a_socket_has_one_class() {
    for ip in [own_v4(), V6] {
        let ports = TxPorts::new(ip, 0, 7);
        let plain = ports.get(V6_PEER, 5, 1, 1, Class::default()).unwrap();
        let class = Class { traffic_class: 0x60, service_level: 3 };
        let other = ports.get(V6_PEER, 5, 1, 1, class).unwrap();
        assert_ne!(plain.port(), other.port());
        for (socket, class) in [(&plain, Class::default()), (&other, class)] {
            assert_eq!(ports.get(V6_PEER, 5, 1, 1, class).unwrap().port(), socket.port());
            assert_eq!(ports.get_any(V6_PEER, 5, class).unwrap().port(), socket.port());
            let priority = sys::get_int(&**socket, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap();
            assert_eq!(priority, c_int::from(class.service_level), "{ip}");
        }
        // The priority is not the kernel's for this type of service, and without privilege at most 6.
        for (traffic_class, service_level, want) in [(0x10, 0, 0..=0), (0, 15, 6..=7), (0, 8, 0..=0)] {
            let socket = ports.get(V6_PEER, 5, 1, 1, Class { traffic_class, service_level }).unwrap();
            let priority = sys::get_int(&*socket, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap();
            assert!(want.contains(&priority), "{ip} {traffic_class:#x} {service_level}: {priority}");
        }
        // Without free candidates any open socket is used.
        let all: Vec<_> = (0..=64)
            .map(|traffic_class| Class { traffic_class, service_level: 1 })
            .map(|class| ports.get(V6_PEER, 6, 1, 1, class).unwrap())
            .collect();
        assert_eq!(all.iter().map(|socket| socket.port()).collect::<HashSet<_>>().len(), 64);
    }
}

const V6_PEER: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));
