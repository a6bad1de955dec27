use std::net::{Ipv4Addr, UdpSocket};

use ferroce_ipc::{DatapathState, DeviceInfo, GidType, LinkSettings, Origin, PhysState};
use ferroce_wire::{
    Bth, Deth, Encapsulation, Frame, Gid, IcrcStatus, IpHeader, LinkLayer, Operation, Packet, Psn, Qkey, Qpn,
    Sink, UdPacket,
};

use super::fake::Wire;
use super::*;

const LOCAL: Ipv4Addr = Ipv4Addr::new(127, 77, 3, 1);
const IFINDEX: u32 = 7;
const NOW: Instant = Instant::from_nanos(90_000_000_000);

fn entry(gid: Gid, gid_type: GidType, ifindex: u32) -> GidEntry {
    GidEntry { index: 0, gid, gid_type, ifindex }
}

fn device() -> DeviceInfo {
    DeviceInfo {
        id: 0,
        name: "rxe0".to_owned(),
        dev_name: "uverbs0".to_owned(),
        node_guid: [1; 8],
        netdev: "eth0".to_owned(),
        ifindex: IFINDEX,
        mtu: 1500,
        port_active: true,
        phys_state: PhysState::LinkUp,
        origin: Origin::Link,
        kind: Default::default(),
        datapath: DatapathState::XdpGeneric,
        gids: vec![entry(Gid::from_ip(LOCAL.into()), GidType::RoceV2, IFINDEX)],
        settings: LinkSettings::default(),
        macs: Default::default(),
    }
}

/// A port, the socket beside it, and the receiver of the datagrams of that socket.
struct Bed {
    port: XdpPort,
    socket: TxSocket,
    receiver: UdpSocket,
}

impl Bed {
    /// Each test has an address of its own, where it may take port 4791.
    fn new(last: u8) -> (Self, IpAddr) {
        let devices = Arc::new(Devices::default());
        devices.set(vec![device()]);
        let (ledger, _) = Ledger::create(1).unwrap();
        let port = XdpPort::new(IFINDEX, devices, Arc::new(ledger)).unwrap();
        // An address of no device; on `lo`, as all of 127.0.0.0/8. Other processes may run the same test.
        let [_, _, a, b] = std::process::id().to_be_bytes();
        let remote = Ipv4Addr::new(127, 64 | (a & 63), b, last);
        let receiver = UdpSocket::bind((remote, 4791)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // Any free port will do.
        let free = UdpSocket::bind((LOCAL, 0)).unwrap().local_addr().unwrap().port();
        let socket = TxSocket::bind(LOCAL.into(), 0, free).unwrap();
        (Self { port, socket, receiver }, remote.into())
    }

    /// Sends `count` packets with `payload` octets each. Returns the outcome and the segments.
    fn send(&self, to: IpAddr, count: usize, payload: usize, now: Instant) -> (Sent, Vec<Vec<u8>>) {
        let limits = if self.port.is_up() { XdpPort::limits() } else { self.socket.limits() };
        let mut octets = vec![0; 1 << 16];
        let mut batch = TxBatch::new(&mut octets, limits);
        let flow = Flow {
            source: LOCAL.into(),
            destination: to,
            source_port: self.socket.port(),
            traffic_class: 0,
            hop_limit: 64,
            link: LinkLayer::UDP,
        };
        for number in 0..count {
            let deth = Deth { qkey: Qkey::new(1), src_qp: Qpn::new(2) };
            let head = Packet {
                bth: Bth::new(Qpn::new(5), Psn::new(number as u32)),
                op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
                icrc: IcrcStatus::Pending,
            };
            let fill = |to: &mut [u8]| {
                to.fill(7);
                Ok::<(), std::convert::Infallible>(())
            };
            batch.push(&flow, &head, payload, fill).unwrap();
        }
        let sent = self.port.send(&mut batch, &self.socket, now).unwrap();
        (sent, batch.segments().map(<[u8]>::to_vec).collect())
    }

    fn counted(&self) -> u64 {
        self.port.counters().xdp_sent_pkts.load(Ordering::Relaxed)
    }

    /// Receives exactly these datagrams from the socket.
    fn expect_by_socket(&self, segments: &[Vec<u8>]) {
        let mut buffer = [0; 1 << 16];
        for segment in segments {
            let len = self.receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], segment);
        }
        self.expect_nothing_by_socket();
    }

    fn expect_nothing_by_socket(&self) {
        self.receiver.set_nonblocking(true).unwrap();
        // On lo a datagram has arrived when the call that sent it returns.
        assert!(self.receiver.recv(&mut [0; 1 << 16]).is_err());
        self.receiver.set_nonblocking(false).unwrap();
    }
}

#[test]
fn packets_have_headers_that_the_icrc_agrees_with() {
    let (bed, remote) = Bed::new(10);
    let wire = Wire::install(&bed.port, 64);
    bed.port.prepare(remote, &bed.socket, NOW);
    let (sent, segments) = bed.send(remote, 5, 100, NOW);
    assert_eq!((sent.sent, sent.lost, bed.counted()), (5, 0, 5));
    let packets = wire.sent();
    assert_eq!(packets.len(), 5);
    for (packet, segment) in packets.iter().zip(&segments) {
        let frame = Frame::parse_ip(packet).unwrap();
        assert!(frame.icrc_holds());
        assert_eq!(frame.transport, segment);
        let way = frame.way();
        assert_eq!((way.source, way.destination, way.hop_limit), (LOCAL.into(), remote, 64));
        assert_eq!(way.source_port, bed.socket.port());
        let Encapsulation::V2 { ip: IpHeader::V4(ip), .. } = frame.encapsulation else { panic!("{frame:?}") };
        // As of datagrams that leave a socket one by one.
        assert_eq!((ip.id.get(), ip.checksum.get()), (0, ip.sum()));
    }
    bed.expect_nothing_by_socket();
}

#[test]
fn a_port_that_is_down_leaves_all_to_the_socket() {
    let (bed, remote) = Bed::new(11);
    bed.port.prepare(remote, &bed.socket, NOW);
    let (sent, segments) = bed.send(remote, 3, 100, NOW);
    assert_eq!((sent.sent, bed.counted()), (3, 0));
    bed.expect_by_socket(&segments);
    let wire = Wire::install(&bed.port, 64);
    assert!(bed.port.is_up());
    drop(bed.send(remote, 3, 100, NOW));
    assert_eq!((wire.sent().len(), bed.counted()), (3, 3));
    bed.port.set_down();
    let (_, segments) = bed.send(remote, 2, 100, NOW);
    assert_eq!((wire.sent().len(), bed.counted()), (0, 3));
    bed.expect_by_socket(&segments);
}

#[test]
fn a_batch_that_the_port_refuses_leaves_by_the_socket_and_the_port_is_down() {
    let (bed, remote) = Bed::new(12);
    let wire = Wire::install(&bed.port, 64);
    bed.port.prepare(remote, &bed.socket, NOW);
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS] {
        wire.refuse(errno);
        let (sent, _) = bed.send(remote, 1, 100, NOW);
        assert_eq!((sent.sent, bed.port.is_up()), (1, true), "the kernel sends it later");
        bed.expect_nothing_by_socket();
    }
    wire.refuse(libc::ENETDOWN);
    let (sent, segments) = bed.send(remote, 4, 100, NOW);
    assert_eq!((sent.sent, sent.lost, bed.port.is_up()), (4, 0, false));
    bed.expect_by_socket(&segments);
    // The next broker brings another socket.
    let wire = Wire::install(&bed.port, 64);
    drop(bed.send(remote, 4, 100, NOW));
    assert_eq!(wire.sent().len(), 4);
}

#[test]
fn a_batch_waits_for_frames_and_loses_the_rest() {
    let (bed, remote) = Bed::new(13);
    let wire = Wire::install(&bed.port, 3);
    bed.port.prepare(remote, &bed.socket, NOW);
    let (sent, segments) = bed.send(remote, 20, 40, NOW);
    assert_eq!((sent.sent, sent.lost), (20, 0));
    let packets = wire.sent();
    assert!(packets.iter().zip(&segments).all(|(packet, segment)| packet.ends_with(segment)));
    assert_eq!(packets.len(), 20);
    let wire = Wire::install(&bed.port, 0);
    let (sent, _) = bed.send(remote, 2, 40, NOW);
    assert_eq!(sent, Sent { sent: 0, lost: 2, reason: Some(LossReason::Congested) });
    assert!(wire.sent().is_empty());
}

#[test]
fn packets_that_no_frame_holds_take_the_socket() {
    let (bed, remote) = Bed::new(14);
    let wire = Wire::install(&bed.port, 64);
    bed.port.prepare(remote, &bed.socket, NOW);
    drop(bed.send(remote, 2, 2048, NOW));
    assert_eq!(wire.sent().len(), 2);
    // A queue pair may have agreed on this path MTU before its device had AF_XDP.
    let (_, segments) = bed.send(remote, 2, 4096, NOW);
    assert!(wire.sent().is_empty());
    bed.expect_by_socket(&segments);
}

#[test]
fn datagrams_to_a_new_destination_take_the_socket_at_first() {
    let (bed, remote) = Bed::new(15);
    let wire = Wire::install(&bed.port, 64);
    let (_, segments) = bed.send(remote, 1, 40, NOW);
    bed.expect_by_socket(&segments);
    drop(bed.send(remote, 1, 40, NOW + Duration::from_millis(200)));
    assert_eq!(wire.sent().len(), 1);
    // Once a second the kernel is asked to renew its entry.
    let discard = UdpSocket::bind((remote, DISCARD));
    drop(bed.send(remote, 1, 40, NOW + Duration::from_millis(1200)));
    assert_eq!(wire.sent().len(), 1);
    match discard {
        Ok(discard) => {
            discard.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let (len, from) = discard.recv_from(&mut [0; 10]).unwrap();
            assert_eq!((len, from.ip()), (0, LOCAL.into()));
        }
        Err(error) => println!("skipped the datagram to port 9, which this user may not bind: {error}"),
    }
}

#[test]
fn a_signal_handler_that_interrupts_a_sender_takes_the_socket() {
    let (bed, remote) = Bed::new(16);
    let wire = Wire::install(&bed.port, 64);
    bed.port.prepare(remote, &bed.socket, NOW);
    {
        let _interrupted = bed.port.lock_to_send().unwrap();
        assert!(!bed.port.is_free());
        let (_, segments) = bed.send(remote, 1, 40, NOW);
        bed.expect_by_socket(&segments);
    }
    drop(bed.send(remote, 1, 40, NOW));
    assert_eq!(wire.sent().len(), 1);
}

#[test]
fn remote_peers_of_the_interface_are_reached() {
    let (bed, _) = Bed::new(17);
    let gid = |ip: &str| Gid::from_ip(ip.parse().unwrap());
    let v4 = Gid::from_ip(LOCAL.into());
    for (gid_type, ifindex, source, destination, want) in [
        (GidType::RoceV2, IFINDEX, v4, "10.0.0.9", true),
        (GidType::RoceV1, IFINDEX, v4, "10.0.0.9", false),
        // A VLAN of the interface.
        (GidType::RoceV2, IFINDEX + 1, v4, "10.0.0.9", false),
        (GidType::RoceV2, IFINDEX, v4, "127.77.3.1", false),
        (GidType::RoceV2, IFINDEX, v4, "224.0.0.9", false),
        (GidType::RoceV2, IFINDEX, gid("fd00::1"), "fd00::2", true),
        (GidType::RoceV2, IFINDEX, gid("fe80::1"), "fe80::2", false),
    ] {
        let reaches = bed.port.reaches(&entry(source, gid_type, ifindex), destination.parse().unwrap());
        assert_eq!(reaches, want, "{gid_type:?} {ifindex} {destination}");
    }
}

#[test]
fn packets_that_arrived_are_received_after_the_port_went_down() {
    let (bed, _) = Bed::new(18);
    let wire = Wire::install(&bed.port, 4);
    let readable = || {
        let mut fd = [ferroce_host::event::readable(bed.port.fd())];
        ferroce_host::event::poll(&mut fd, 0).unwrap() == 1
    };
    let take = || bed.port.receive(true, |batch| batch.rx.next().map(|received| received.packet.to_vec()));
    assert!(!readable());
    wire.arrive(RoceVersion::V2, &[1]);
    wire.arrive(RoceVersion::V2, &[2]);
    assert!(readable());
    assert_eq!(take(), Some(vec![1]));
    bed.port.set_down();
    assert!(!wire.is_closed() && readable());
    assert_eq!((take(), take()), (Some(vec![2]), None));
    assert!(wire.is_closed() && !readable());
    // The descriptor tells of the next socket as well.
    let wire = Wire::install(&bed.port, 4);
    wire.arrive(RoceVersion::V2, &[3]);
    assert!(readable());
    let next = Wire::install(&bed.port, 4);
    assert!(wire.is_closed(), "another one took its place");
    next.arrive(RoceVersion::V2, &[4]);
    assert_eq!((take(), take()), (Some(vec![4]), None));
    assert!(!next.is_closed() && !readable());
}

#[test]
fn a_direct_port_writes_hardware_addresses_and_a_batch_without_one_takes_the_socket() {
    let (bed, remote) = Bed::new(90);
    let known = Arc::new(AtomicBool::new(false));
    let answer = Arc::clone(&known);
    let addresses: [u8; HARDWARE] = std::array::from_fn(|octet| octet as u8 + 1);
    let resolve = move |source, destination| {
        assert_eq!((source, destination), (IpAddr::V4(LOCAL), remote));
        answer.load(Ordering::Relaxed).then_some(addresses)
    };
    let wire = Wire::install_direct(&bed.port, 64, Box::new(resolve));
    bed.port.prepare(remote, &bed.socket, NOW);
    let (sent, segments) = bed.send(remote, 3, 8, NOW);
    assert_eq!((sent.sent, sent.lost), (3, 0));
    assert!(wire.sent().is_empty(), "the kernel does not know the next hop");
    bed.expect_by_socket(&segments);
    assert_eq!(bed.counted(), 0);

    known.store(true, Ordering::Relaxed);
    let (sent, _) = bed.send(remote, 3, 8, NOW + Duration::from_millis(10));
    assert_eq!((sent.sent, wire.sent().len(), wire.hardware()), (3, 3, addresses));
    bed.expect_nothing_by_socket();
    assert_eq!(bed.counted(), 3);

    // The next hop is gone, which the port sees after a second.
    known.store(false, Ordering::Relaxed);
    let later = NOW + Duration::from_millis(1100);
    let (_, segments) = bed.send(remote, 1, 8, later);
    bed.expect_by_socket(&segments);
}
