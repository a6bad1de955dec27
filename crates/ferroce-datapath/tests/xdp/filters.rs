//! Frames that the programs of the kernel drop, and frames that they leave to it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use ferroce_datapath::packet::PacketSocket;
use ferroce_datapath::xdp::{DropReason, Uplink};
use ferroce_wire::RoceVersion;
use nix::net::if_::if_nametoindex;

use crate::bed::{
    HOST, OTHER_SLOT, PEER, SLOT, Wire, addresses, attach, drops, eventually, expect, forwarding, halves,
    in_namespaces, pair, run, shown,
};
use crate::packets::{Made, back, formats};

#[test]
fn forged_frames_are_dropped_and_counted() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        let _ports = [(0, SLOT), (1, OTHER_SLOT)].map(|(n, slot)| uplink.open(pair(n), &[slot]).unwrap());
        let mut wire = world.wire();
        let mut kernel = Wire::open("near0");
        // A packet socket at the far end sends what the ring of AF_XDP could send.
        let program = PacketSocket::open(if_nametoindex("far0").unwrap()).unwrap();
        let frame = |made: &Made| made.frame(PEER, HOST);
        let [v1, _, v4, v6, ud] = formats();
        let mut expected = BTreeMap::<&'static str, u64>::new();
        let mut check = |frame: &[u8], reason: DropReason, what: &str| {
            program.send(frame).unwrap();
            *expected.entry(reason.name()).or_default() += 1;
            eventually(what, || {
                let now = drops(&uplink);
                assert!(
                    now.values().sum::<u64>() < expected.values().sum::<u64>() || now == expected,
                    "{what}: {now:?}"
                );
                now == expected
            });
        };
        for made in [&v1, &v4, &v6, &ud] {
            use DropReason::*;
            let from = |from: &str| Made { from: from.parse().unwrap(), ..made.clone() };
            let (foreign, peers) =
                if made.from.is_ipv4() { ("10.9.0.7", "10.9.0.2") } else { ("fd09::7", "fd09::2") };
            check(&frame(&from(foreign)), ForeignSource, "another source");
            check(&frame(&from(peers)), ForeignSource, "the peer's address as source");
            for qpn in [0, 1, 0x00ff_ffff] {
                check(&frame(&Made { qpn, ..made.clone() }), ReservedQp, "a reserved queue pair");
                // The reserved octet before the DestQP changes nothing.
                check(
                    &frame(&Made { qpn: qpn | 0x4000_0000, ..made.clone() }),
                    ReservedQp,
                    "with FECN or BECN",
                );
            }
            let whole = frame(made);
            // Lengths of the headers now disagree with that of the frame.
            for len in [whole.len() - 1, 60, 54, 42, 34, 20, 14] {
                check(&whole[..len.min(whole.len() - 1)], Malformed, "truncated");
            }
            check(&[&whole[..], &[0]].concat(), Malformed, "an octet behind the packet");
            let mut version = whole.clone();
            version[14] ^= 0x10;
            check(&version, Malformed, "another IP version");
            let mut protocol = whole.clone();
            protocol[if made.from.is_ipv4() && made.version == RoceVersion::V2 { 23 } else { 20 }] = 6;
            check(&protocol, ForeignPort, "another protocol");
        }
        for made in [&v4, &v6, &ud] {
            let ports = [0u16, 4790, 4792, 53];
            for port in ports {
                check(&frame(&Made { port, ..made.clone() }), DropReason::ForeignPort, "another port");
            }
            let mut length = frame(made);
            let at = if made.from.is_ipv4() { 38 } else { 58 };
            length[at + 1] ^= 1;
            check(&length, DropReason::Malformed, "another length of UDP");
        }
        // IPv4 with options, and fragments.
        let mut options = frame(&v4);
        options[14] = 0x46;
        check(&options, DropReason::Malformed, "options");
        for (octet, value) in [(20, 0x20), (21, 1), (20, 0x1f)] {
            let mut fragment = frame(&v4);
            fragment[octet] = value;
            check(&fragment, DropReason::Fragment, "a fragment");
        }
        // A mapped address in an IPv6 header, as source and as destination.
        for (source, at) in [(true, 22), (false, 38)] {
            let mut mapped = frame(&v6);
            let address: std::net::Ipv6Addr =
                if source { "::ffff:10.9.0.1" } else { "::ffff:10.9.0.2" }.parse().unwrap();
            mapped[at..at + 16].copy_from_slice(&address.octets());
            check(&mapped, DropReason::Malformed, "a mapped address");
        }
        // UD in the name of the other program's queue pair, and of nobody's.
        for slot in [OTHER_SLOT, 0x777, 0, 0xfff] {
            for opcode in [0x64, 0x65, 0x6f] {
                let made = Made { opcode, source_qpn: u32::from(slot) << 12 | 6, ..v4.clone() };
                check(&frame(&made), DropReason::ForeignQp, "another's queue pair");
            }
        }
        // Other protocols: ARP, a VLAN tag, garbage.
        for kind in [[0x08, 0x06], [0x81, 0x00], [0x88, 0xb5], [0, 0]] {
            let mut other = frame(&v4);
            other[12..14].copy_from_slice(&kind);
            check(&other, DropReason::Malformed, "another EtherType");
        }
        // Destinations that the kernel would not send to.
        let to = |to: &str, from: &Made| frame(&Made { to: to.parse().unwrap(), ..from.clone() });
        check(&to("10.9.0.77", &v4), DropReason::NoNeighbour, "an unknown neighbour");
        check(&to("fd09::77", &v6), DropReason::NoNeighbour, "an unknown neighbour");
        check(&to("10.9.0.255", &v4), DropReason::NoRoute, "broadcast");
        check(&to("224.0.0.5", &v4), DropReason::NoRoute, "multicast");
        check(&to("192.0.2.1", &v4), DropReason::NoRoute, "no route");
        check(&to("2001:db8::1", &v6), DropReason::NoRoute, "no route");
        check(&to("127.0.0.1", &v4), DropReason::NoRoute, "the host itself");
        run("ip link add other type veth peer name behind");
        run("ip link set behind up");
        run("ip addr add 10.8.0.1/24 dev other");
        run("ip link set other up");
        run("ip neigh replace 10.8.0.2 lladdr 02:00:00:00:00:09 dev other nud permanent");
        check(&to("10.8.0.2", &v4), DropReason::OtherInterface, "another interface");
        run("ip route add 10.7.0.0/24 via 10.9.0.2 mtu lock 100");
        check(&to("10.7.0.1", &Made { payload: 200, ..v4.clone() }), DropReason::TooLong, "the route's MTU");
        forwarding("near0", false);
        check(&to("10.9.0.2", &v4), DropReason::ForwardingOff, "no forwarding");
        check(&to("fd09::2", &v6), DropReason::ForwardingOff, "no forwarding");
        forwarding("near0", true);

        assert!(kernel.next().is_none(), "the kernel sees nothing of that");
        assert!(wire.next().is_none(), "nothing of that left");
        // A right frame still leaves.
        program.send(&v4.frame([0; 6], [0; 6])).unwrap();
        assert_eq!(wire.expect("a right frame leaves"), v4.frame(PEER, HOST));
        // Over a gateway, to the gateway's hardware address.
        let far = Made { to: "10.7.0.1".parse().unwrap(), payload: 20, ..v4.clone() };
        program.send(&far.frame([0; 6], [0; 6])).unwrap();
        assert_eq!(wire.expect("over a gateway"), far.frame(PEER, HOST));
    });
}

#[test]
fn a_second_interface_in_a_subnet_needs_forwarding_and_link_local_addresses_stay_behind() {
    in_namespaces(1500, |world| {
        let mut uplink = Uplink::attach(if_nametoindex("net0").unwrap()).unwrap();
        uplink.set_addresses(&addresses(&["fe80::1", "10.9.0.1"])).unwrap();
        // A route over another interface, which the kernel prefers.
        run("ip link add other type veth peer name behind");
        run("ip link set behind up");
        run("ip link set other up");
        run("ip route add 10.9.0.2/32 dev other");
        run("ip neigh replace 10.9.0.2 lladdr 02:00:00:00:00:09 dev other nud permanent");
        run("ip neigh replace fe80::2 lladdr 02:00:00:00:00:02 dev net0 nud permanent");
        let port = uplink.open(pair(0), &[SLOT]).unwrap();
        let (_rx, mut tx) = halves(&port);
        let mut wire = world.wire();
        let made = Made::new("10.9.0.1", "10.9.0.2");
        made.send(&mut tx);
        eventually("the kernel prefers the other", || {
            drops(&uplink) == BTreeMap::from([("other_interface", 1)])
        });
        run("ip route add 10.9.0.2/32 dev net0 metric 9");
        forwarding("net0", true);
        made.send(&mut tx);
        assert_eq!(wire.expect("the uplink's own route serves"), made.frame(PEER, HOST));
        Made::new("fe80::1", "fe80::2").send(&mut tx);
        eventually("the kernel forwards no link-local packets", || {
            drops(&uplink) == BTreeMap::from([("no_route", 1), ("other_interface", 1)])
        });
        assert!(wire.next().is_none());
    });
}

#[test]
fn everything_else_is_the_kernels() {
    in_namespaces(1500, |world| {
        let sockets = ["10.9.0.1:4791", "[fd09::1]:4791"].map(|address| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            socket
        });
        let mut uplink = attach();
        let mut port = uplink.open(pair(0), &[SLOT]).unwrap();
        let (mut rx, _tx) = halves(&port);
        let wire = world.wire();
        let [_, _, v4, v6, _] = formats().map(|made| back(&made));
        let arrives_at_socket = |made: &Made, what: &str| {
            let mut frame = made.frame(HOST, PEER);
            if made.to.is_ipv6() {
                // A socket takes no datagram without a checksum.
                let sum = checksum(&frame[14..]);
                frame[60..62].copy_from_slice(&sum.to_be_bytes());
            }
            wire.send(&frame);
            let socket = &sockets[usize::from(made.to.is_ipv6())];
            let mut bytes = [0; 2000];
            let len = socket.recv(&mut bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(bytes[..len], made.segment(), "{what}");
        };
        for (number, made) in [&v4, &v6].into_iter().enumerate() {
            let mark = number as u8;
            arrives_at_socket(&Made { qpn: 0x777_000, ..made.clone() }.mark(mark), "nobody's slot");
            for qpn in [0, 1, 0x00ff_ffff] {
                arrives_at_socket(&Made { qpn, ..made.clone() }, "a reserved queue pair");
            }
        }
        // Other ports, ping, and an address that is none of the uplink's.
        let other = UdpSocket::bind("10.9.0.1:4792").unwrap();
        other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        wire.send(&Made { port: 4792, ..v4.clone() }.frame(HOST, PEER));
        assert!(other.recv(&mut [0; 2000]).is_ok());
        run("ip addr add 10.9.0.8/24 dev net0");
        let other = UdpSocket::bind("10.9.0.8:4791").unwrap();
        other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let elsewhere = Made { to: "10.9.0.8".parse().unwrap(), ..v4.clone() };
        wire.send(&elsewhere.frame(HOST, PEER));
        assert!(other.recv(&mut [0; 2000]).is_ok());
        world.peer(|| {
            // No program ping is needed: a closed port answers.
            for (local, remote) in [("10.9.0.2:0", "10.9.0.1:7"), ("[fd09::2]:0", "[fd09::1]:7")] {
                let socket = UdpSocket::bind(local).unwrap();
                socket.connect(remote).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                socket.send(b"?").unwrap();
                assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            }
        });
        // Datagrams that the peer's kernel merges for its sender are split before they come here.
        world.peer(|| {
            let socket = UdpSocket::bind("10.9.0.2:0").unwrap();
            socket.connect("10.9.0.1:4791").unwrap();
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::UdpGsoSegment, &80).unwrap();
            socket.send(&[v4.segment(), v4.segment(), v4.segment()].concat()).unwrap();
        });
        for _ in 0..3 {
            let (_, packet) = expect(&mut rx, "a segment arrives");
            assert_eq!(packet[28..], v4.segment());
        }
        // Frames to a group, although they name our address; fragments; frames behind a VLAN tag.
        for change in 0..4 {
            let mut frame = v4.clone().mark(100 + change).frame(HOST, PEER);
            match change {
                0 => frame[0] |= 1,
                1 => frame[20] = 0x20,
                2 => frame.splice(12..12, [0x81, 0, 0, 5]).for_each(drop),
                _ => frame[16..18].copy_from_slice(&2000u16.to_be_bytes()),
            }
            wire.send(&frame);
        }
        // After them the peer sends a packet for our port, which must be the first that arrives there.
        wire.send(&v4.clone().mark(99).frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "only this one").1, v4.clone().mark(99).packet());
        // The kernel may have delivered the other frames to the sockets, which are emptied here.
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
            while socket.recv(&mut [0; 2000]).is_ok() {}
            socket.set_nonblocking(false).unwrap();
        }

        // Slots and addresses change.
        port.set_slots(&[OTHER_SLOT]).unwrap();
        arrives_at_socket(&v4, "the slot was given up");
        let other_slot = Made { qpn: u32::from(OTHER_SLOT) << 12, ..v4.clone() };
        wire.send(&other_slot.frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "the new slot").1, other_slot.packet());
        uplink.set_addresses(&addresses(&["fd09::1"])).unwrap();
        arrives_at_socket(&other_slot, "the address was given up");
        uplink.set_addresses(&addresses(&["10.9.0.1", "fd09::1"])).unwrap();
        wire.send(&other_slot.frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "the address is back").1, other_slot.packet());
        assert_eq!(port.set_slots(&[0x1000]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let many = (0..1025u32).map(|n| IpAddr::V4((0x0a0a_0000 + n).into())).collect();
        assert_eq!(uplink.set_addresses(&many).unwrap_err().raw_os_error(), Some(libc::E2BIG));

        // The ends of port and uplink.
        drop(port);
        arrives_at_socket(&other_slot, "the port has ended");
        let mut port = uplink.open(pair(1), &[OTHER_SLOT]).unwrap();
        port.set_slots(&[OTHER_SLOT, SLOT]).unwrap();
        drop(uplink);
        // The kernel may lose a frame while it takes the program from the interface.
        sockets[0].set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let arrives = |_| {
            wire.send(&other_slot.frame(HOST, PEER));
            let mut bytes = [0; 2000];
            sockets[0].recv(&mut bytes).is_ok_and(|len| bytes[..len] == *other_slot.segment())
        };
        assert!((0..60).any(arrives), "the uplink has ended");
        assert!(!shown("ip link show net0").contains("xdp"));
    });
}

/// The checksum of a UDP datagram over IPv6.
fn checksum(packet: &[u8]) -> u16 {
    let mut octets = [&packet[8..40], &packet[44..46], &[0, 17], &packet[40..]].concat();
    octets.resize(octets.len().next_multiple_of(2), 0);
    let mut sum: u32 = octets.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
