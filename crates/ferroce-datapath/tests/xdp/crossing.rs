//! Packets cross in both directions.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use ferroce_datapath::xdp::{MAX_PACKET, Mode, PushError, Rx, Tx};
use ferroce_wire::RoceVersion;

use crate::bed::{
    HOST, OTHER_SLOT, PEER, SLOT, World, attach, attach_to, drops, eventually, expect, halves, in_namespaces,
    pair, run, up,
};
use crate::packets::{Made, back, formats};

/// Sets the checksum of a UDP datagram over IPv6 to 0, after it was found to be none.
fn without_checksum(frame: &mut [u8], made: &Made) {
    if made.version == RoceVersion::V2 && made.to.is_ipv6() {
        assert_ne!(frame[60..62], [0, 0], "IPv6 needs a checksum");
        frame[60..62].fill(0);
    }
}

fn crosses(world: &World, uplink_mac: [u8; 6], rx: &mut Rx, tx: &mut Tx) {
    let mut wire = world.wire();
    for (number, made) in formats().into_iter().enumerate() {
        let made = made.mark(number as u8);
        made.send(tx);
        let mut frame = wire.expect("a packet leaves");
        without_checksum(&mut frame, &made);
        assert_eq!(frame, made.frame(PEER, uplink_mac), "format {number}");
        let made = back(&made);
        wire.send(&made.frame(uplink_mac, PEER));
        assert_eq!(expect(rx, "a packet arrives"), (made.version, made.packet()), "format {number}");
        assert!(rx.next().is_none());
    }
}

#[test]
fn packets_cross_in_both_directions_where_the_driver_runs_the_program() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        assert_eq!(uplink.mode(), Mode::Native);
        let port = uplink.open(pair(0), &[SLOT]).unwrap();
        let (mut rx, mut tx) = halves(&port);
        crosses(world, HOST, &mut rx, &mut tx);
        assert_eq!(drops(&uplink), BTreeMap::new());
    });
}

#[test]
fn packets_cross_in_both_directions_where_the_kernel_runs_the_program() {
    in_namespaces(1500, |world| {
        // Its driver runs no XDP programs.
        run("ip addr flush dev net0");
        run("ip link add link net0 name mv address 02:00:00:00:00:03 type macvlan mode bridge");
        run("ip addr add 10.9.0.1/24 dev mv");
        run("ip addr add fd09::1/64 dev mv nodad");
        up("mv");
        for address in ["10.9.0.2", "fd09::2"] {
            run(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:02 dev mv nud permanent"));
        }
        let mut uplink = attach_to("mv");
        assert_eq!(uplink.mode(), Mode::Generic);
        let port = uplink.open(pair(0), &[SLOT]).unwrap();
        let (mut rx, mut tx) = halves(&port);
        crosses(world, [2, 0, 0, 0, 0, 3], &mut rx, &mut tx);
        assert_eq!(drops(&uplink), BTreeMap::new());
    });
}

#[test]
fn bursts_use_all_frames_many_times_and_long_packets_fit() {
    in_namespaces(9000, |world| {
        let mut uplink = attach();
        assert_eq!(uplink.mode(), Mode::Native, "with an MTU of 9000, too");
        let pair = pair(0);
        run("ip link set near0 mtu 9000");
        run("ip link set far0 mtu 9000");
        let port = uplink.open(pair, &[SLOT]).unwrap();
        let (mut rx, mut tx) = halves(&port);
        let mut wire = world.wire();
        let long = |payload| Made { payload, ..Made::new("10.9.0.1", "10.9.0.2") };
        // BTH and RETH and a path MTU of 2048, and a few more.
        for round in 0..60u8 {
            for number in 0..30u8 {
                let made = long(2048 + 16 + usize::from(round)).mark(number);
                tx.push(made.version, &made.headers(), &made.segment()).unwrap();
            }
            tx.flush().unwrap();
            for number in 0..30u8 {
                let made = long(2048 + 16 + usize::from(round)).mark(number);
                assert_eq!(wire.expect("a burst leaves"), made.frame(PEER, HOST));
                wire.send(&back(&made).frame(HOST, PEER));
            }
            for number in 0..30u8 {
                let made = back(&long(2048 + 16 + usize::from(round)).mark(number));
                assert_eq!(expect(&mut rx, "a burst arrives").1, made.packet());
            }
        }
        // The longest one: 20 + 8 + 12 + 4 octets are headers.
        let longest = back(&long(MAX_PACKET - 44));
        wire.send(&longest.frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "the longest packet arrives").1, longest.packet());
        let too_long = long(MAX_PACKET - 43);
        assert_eq!(
            tx.push(RoceVersion::V2, &too_long.headers(), &too_long.segment()),
            Err(PushError::TooLong)
        );
        // A longer one is the kernel's.
        let socket = UdpSocket::bind("10.9.0.1:4791").unwrap();
        wire.send(&back(&too_long).frame(HOST, PEER));
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(socket.recv(&mut [0; 9000]).unwrap(), too_long.segment().len());
        assert!(rx.next().is_none());
        assert_eq!(drops(&uplink), BTreeMap::new());
    });
}

#[test]
fn a_full_ring_says_so_and_flush_makes_space() {
    in_namespaces(1500, |_| {
        let mut uplink = attach();
        let port = uplink.open(pair(0), &[SLOT]).unwrap();
        let (_rx, mut tx) = halves(&port);
        let made = Made::new("10.9.0.1", "10.9.0.2");
        let mut push = || tx.push(made.version, &made.headers(), &made.segment());
        for _ in 0..512 {
            push().unwrap();
        }
        assert_eq!(push(), Err(PushError::Full));
        for round in 0..3 {
            tx.flush().unwrap();
            let mut pushed = 0;
            // The kernel gives the frames back when it has delivered or dropped them.
            eventually("all frames come back", || {
                while tx.push(made.version, &made.headers(), &made.segment()).is_ok() {
                    pushed += 1;
                }
                pushed >= 512
            });
            assert_eq!(pushed, 512, "round {round}");
        }
    });
}

#[test]
fn programs_of_one_host_reach_each_other() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        let ports = [(0, SLOT), (1, OTHER_SLOT)].map(|(n, slot)| uplink.open(pair(n), &[slot]).unwrap());
        let [(mut rx0, mut tx0), (mut rx1, mut tx1)] = [&ports[0], &ports[1]].map(halves);
        let mut wire = world.wire();
        for made in formats() {
            let made = Made { to: made.from, qpn: u32::from(OTHER_SLOT) << 12 | 9, ..made };
            made.send(&mut tx0);
            let (version, packet) = expect(&mut rx1, "the other program receives it");
            assert_eq!((version, packet.len()), (made.version, made.packet().len()));
            // To a queue pair of its own.
            let made = Made { source_qpn: u32::from(OTHER_SLOT) << 12, ..made };
            made.send(&mut tx1);
            assert_eq!(expect(&mut rx1, "the same program receives it").0, made.version);
            let made = Made { qpn: u32::from(SLOT) << 12, ..made };
            made.send(&mut tx1);
            assert_eq!(expect(&mut rx0, "the first program receives it").0, made.version);
        }
        assert_eq!(drops(&uplink), BTreeMap::new());
        Made { qpn: 0x00ff_f001, ..Made::new("10.9.0.1", "10.9.0.1") }.send(&mut tx0);
        eventually("nobody has the slot", || drops(&uplink) == BTreeMap::from([("no_port", 1)]));
        assert!(wire.next().is_none(), "nothing of that leaves");
        assert!(rx0.next().is_none() && rx1.next().is_none());
    });
}
