use std::net::UdpSocket;
use std::os::fd::AsFd;

use ferroce_datapath::udp::RxSocket;
use ferroce_ipc::{GidType, LinkSettings, Origin, PhysState, QpnOrder};
use ferroce_paths::xdp::fake::Wire;
use ferroce_wire::{
    BatchLimits, Bth, Deth, Flow, Gid, IcrcStatus, LinkLayer, Operation, Packet, Psn, Qkey, Qpn, RoceVersion,
    Sink, TxBatch, UdPacket,
};

use nix::sys::eventfd::EventFd;

use super::set::Nap;
use ferroce_host::latest::Reader;

use super::*;
use crate::device::{DeviceInfo, GidEntry};

const SLOT: u16 = 7 * 16;
const ORDER: QpnOrder = QpnOrder { key: 1, start: 0 };

/// A datagram to a queue pair that is not there.
fn datagram(from: &UdpSocket, to: IpAddr) -> Vec<u8> {
    let flow = Flow {
        source: from.local_addr().unwrap().ip(),
        destination: to,
        source_port: from.local_addr().unwrap().port(),
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer::UDP,
    };
    let deth = Deth { qkey: Qkey::new(1), src_qp: Qpn::new(2) };
    let head = Packet {
        bth: Bth::new(Qpn::new(u32::from(SLOT) << 12 | 5), Psn::new(0)),
        op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
        icrc: IcrcStatus::Pending,
    };
    let mut octets = [0; 256];
    let mut batch = TxBatch::new(&mut octets, BatchLimits { max_segments: 1, gso: false });
    let fill = |to: &mut [u8]| {
        to.fill(7);
        Ok::<(), std::convert::Infallible>(())
    };
    batch.push(&flow, &head, 32, fill).unwrap();
    batch.bytes().to_vec()
}

fn device(local: IpAddr, crc: bool) -> DeviceInfo {
    DeviceInfo {
        id: 0,
        name: "fr0".to_owned(),
        dev_name: "uverbs0".to_owned(),
        node_guid: [1; 8],
        netdev: "lo".to_owned(),
        ifindex: 1,
        mtu: 65_536,
        port_active: true,
        phys_state: PhysState::LinkUp,
        origin: Origin::Default,
        kind: Default::default(),
        datapath: Default::default(),
        gids: vec![GidEntry { index: 0, gid: Gid::from_ip(local), gid_type: GidType::RoceV2, ifindex: 1 }],
        settings: LinkSettings { crc, ..LinkSettings::default() },
        macs: Default::default(),
    }
}

#[test]
fn an_icrc_counts_unless_somebody_said_otherwise() {
    let (hub, _) = Hub::new(&[SLOT], false, 1, ORDER, Arc::default()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let lane = Lane::new(0, 0, RxSocket::from_fd(socket.into()).unwrap(), Arc::new(hub));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let good = datagram(&sender, to.ip());
    let mut bad = good.clone();
    bad[30] ^= 1;
    let other = "127.0.0.9".parse().unwrap();
    let (mut wrong, mut taken) = (0, 0);
    for (devices, bytes, counts) in [
        (vec![device(to.ip(), true)], &good, true),
        (vec![device(to.ip(), true)], &bad, false),
        (vec![device(to.ip(), false)], &bad, true),
        (vec![device(to.ip(), false)], &good, true),
        (vec![device(other, false)], &bad, false),
        (vec![device(other, false), device(to.ip(), true)], &bad, false),
        (vec![], &bad, false),
    ] {
        lane.follow_settings(&devices);
        sender.send_to(bytes, to).unwrap();
        assert_eq!(lane.serve_inline(&Reader::enter()), Served::Some);
        *(if counts { &mut taken } else { &mut wrong }) += 1;
        let counters = lane.counters();
        let now = (&counters.rx_icrc_errors, &counters.rx_no_qp);
        assert_eq!((now.0.load(Ordering::Relaxed), now.1.load(Ordering::Relaxed)), (wrong, taken));
    }
}

/// The packet of a datagram from `source` to `to`, with its IP and UDP headers.
fn packet(octets: &[u8], source: IpAddr, to: IpAddr) -> Vec<u8> {
    let flow = Flow {
        source,
        destination: to,
        source_port: 0xc001,
        traffic_class: 0,
        hop_limit: 64,
        link: LinkLayer::UDP,
    };
    let mut segment = octets.to_vec();
    ferroce_wire::icrc::seal(&flow, 0, &mut segment);
    let mut headers = [0; 48];
    let len = flow.write_headers(0, segment.len(), &mut headers);
    [&headers[..len], &segment].concat()
}

#[test]
fn packets_of_a_port_are_checked_in_full_and_counted() {
    let (hub, _) = Hub::new(&[SLOT], false, 1, ORDER, Arc::default()).unwrap();
    let lanes = Lanes::new(Arc::new(hub));
    let port = lanes.open_port(1).unwrap();
    let (_, lane) = lanes.ports()[0].clone();
    let wire = Wire::install(&port, 8);
    let to: IpAddr = [10, 9, 9, 1].into();
    let from: IpAddr = [10, 9, 9, 2].into();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let octets = datagram(&sender, to);
    let good = packet(&octets, from, to);
    let mut bad = good.clone();
    bad[60] ^= 1;
    let mut other_slot = octets.clone();
    other_slot[5] ^= 0x10;
    let other_slot = packet(&other_slot, from, to);
    let v6 = packet(&octets, "fd00::2".parse().unwrap(), "fd00::1".parse().unwrap());
    assert_eq!(lane.serve_inline(&Reader::enter()), Served::Nothing);
    for (crc, packets, want) in [
        // Without a queue pair, with a wrong ICRC, of another slot, malformed.
        (true, vec![&good], [1, 0, 0, 0]),
        (true, vec![&bad, &good], [1, 1, 0, 0]),
        (false, vec![&bad], [1, 0, 0, 0]),
        (true, vec![&good, &other_slot, &v6], [2, 0, 1, 0]),
        (true, vec![&good[..30].to_vec(), &good], [1, 0, 0, 1]),
    ] {
        lane.follow_settings(&[device(to, crc)]);
        let counters = lane.counters();
        let now = || {
            let of = [
                &counters.rx_no_qp,
                &counters.rx_icrc_errors,
                &counters.rx_stray_slot,
                &counters.rx_malformed,
            ];
            of.map(|counter| counter.load(Ordering::Relaxed))
        };
        let (before, count) = (now(), counters.xdp_rcvd_pkts.load(Ordering::Relaxed));
        packets.iter().for_each(|packet| wire.arrive(RoceVersion::V2, packet));
        assert_eq!(lane.serve_inline(&Reader::enter()), Served::Some);
        let after = now();
        let change: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(change, want, "{packets:?}");
        assert_eq!(counters.xdp_rcvd_pkts.load(Ordering::Relaxed) - count, packets.len() as u64);
        assert_eq!(lane.serve_inline(&Reader::enter()), Served::Nothing);
    }
    // A single call of `serve_inline` takes 64 packets at most.
    (0..100).for_each(|_| wire.arrive(RoceVersion::V2, &good));
    let count = || lane.counters().xdp_rcvd_pkts.load(Ordering::Relaxed);
    let before = count();
    assert_eq!(lane.serve_inline(&Reader::enter()), Served::Some);
    assert_eq!(count() - before, 64);
    assert_eq!(lane.serve_inline(&Reader::enter()), Served::Some);
    assert_eq!(count() - before, 100);
}

#[test]
fn a_poll_looks_at_the_sockets_of_a_port_now_and_then() {
    let (hub, _) = Hub::new(&[SLOT], false, 1, ORDER, Arc::default()).unwrap();
    let lanes = Lanes::new(Arc::new(hub));
    let port = lanes.open_port(1).unwrap();
    let (_, of_port) = lanes.ports()[0].clone();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let udp = Arc::new(Lane::new(9, 0, RxSocket::from_fd(socket.into()).unwrap(), Arc::clone(lanes.hub())));
    let both = [Arc::clone(&of_port), Arc::clone(&udp)];
    let set = LaneSet::default();
    both.iter().for_each(|lane| set.add(lane));
    let received = || udp.counters().rx_no_qp.load(Ordering::Relaxed);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let octets = datagram(&sender, to.ip());
    let until_received = || {
        let before = received();
        sender.send_to(&octets, to).unwrap();
        (1..).find(|_| {
            set.serve_once(&Reader::enter());
            received() > before
        })
    };
    let is_only = |lane: &Arc<Lane>| set.only().is_some_and(|only| Arc::ptr_eq(&only, lane));
    assert_eq!(until_received(), Some(1), "the port is down");
    assert!(set.only().is_none());
    // The polls after these packets look as well.
    (0..64).for_each(|_| _ = set.serve_once(&Reader::enter()));
    let wire = Wire::install(&port, 8);
    assert!(is_only(&of_port));
    (0..64).for_each(|_| _ = set.serve_once(&Reader::enter()));
    assert_eq!(until_received(), Some(64));
    assert_eq!(until_received(), Some(1), "after packets");
    (0..63).for_each(|_| _ = set.serve_once(&Reader::enter()));
    // A poll that does not look costs no system call.
    assert_eq!(set.serve_once(&Reader::enter()), 33);
    assert_eq!(set.serve_once(&Reader::enter()), 1);
    port.set_down();
    assert_eq!(until_received(), Some(1), "down again");
    assert!(!wire.is_closed() || of_port.serve_inline(&Reader::enter()) == Served::Nothing);
    set.remove(&udp);
    Wire::install(&port, 8);
    assert!(is_only(&of_port));
}

#[test]
fn a_polling_thread_sleeps_until_a_packet_comes_unless_something_is_due() {
    let (hub, _) = Hub::new(&[SLOT], false, 1, ORDER, Arc::default()).unwrap();
    let hub = Arc::new(hub);
    let lane = |id| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        (Arc::new(Lane::new(id, 0, RxSocket::from_fd(socket.into()).unwrap(), Arc::clone(&hub))), to)
    };
    let set = LaneSet::default();
    // How the sleep ended, and its length in microseconds.
    let nap = |is_ready| {
        let begun = clock::now();
        (set.nap(begun, 750_000, || is_ready, None), (clock::now().as_nanos() - begun.as_nanos()) / 1000)
    };
    assert_eq!(nap(false).0, Nap::No, "without a lane it would only wait");
    let (others, (lane, to)) = ((1..=WATCHED as u64).map(lane).collect::<Vec<_>>(), lane(0));
    set.add(&lane);
    let (slept, micros) = nap(false);
    assert!(slept == Nap::InVain && micros >= 750, "{slept:?} for {micros} µs");
    // A completion that another thread makes ends the sleep as well.
    let (begun, alarm) = (clock::now(), EventFd::from_value(1).unwrap());
    assert_eq!(set.nap(begun, 900_000_000, || false, Some(alarm.as_fd())), Nap::Over);
    assert!(clock::now().as_nanos() - begun.as_nanos() < 900_000_000);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let received = || lane.counters().rx_no_qp.load(Ordering::Relaxed);
    // Sends a packet, has `nap` process it, and says what the last nap was.
    let nap_behind_packet = || {
        let (before, mut slept) = (received(), Nap::No);
        sender.send_to(&datagram(&sender, to.ip()), to).unwrap();
        while received() == before {
            slept = nap(false).0;
        }
        slept
    };
    lane.any_waits.store(true, Ordering::Relaxed);
    assert_eq!(nap_behind_packet(), Nap::Over, "a queue pair waits for its turn");
    assert!(!lane.any_waits.load(Ordering::Relaxed), "and gets it");
    lane.note_deadline(1);
    assert_eq!(nap_behind_packet(), Nap::Over, "a timer is due");
    assert_eq!(lane.state.earliest(), NEVER, "and ran");
    let begun = clock::now().as_nanos();
    assert_eq!(nap_behind_packet(), Nap::Over, "the sleep processes what ended it");
    assert_eq!(nap(true).0, Nap::Over, "there is a completion");
    let tick = crate::handover::TICK;
    assert!(lane.state.kept_by_program(begun) && !lane.state.kept_by_program(clock::now().as_nanos() + tick));
    others.iter().for_each(|(other, _)| set.add(other));
    assert_eq!(nap(false).0, Nap::No, "more lanes than one thread watches");
}

#[test]
fn one_poll_of_64_looks_and_all_do_after_packets() {
    let seldom = Seldom::default();
    let looks = |polls: u32| (0..polls).filter(|_| seldom.is_due()).count();
    assert_eq!(looks(63), 0);
    assert_eq!(looks(1), 1);
    assert_eq!(looks(640), 10);
    seldom.found();
    assert_eq!(looks(64), 64);
    assert_eq!(looks(64), 1);
}
