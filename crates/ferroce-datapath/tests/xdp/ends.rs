//! The ends of ports, of pairs and of the broker.

use std::net::UdpSocket;
use std::time::Duration;

use ferroce_datapath::packet::PacketSocket;
use ferroce_datapath::xdp::{AttachError, Pair, Uplink};
use nix::net::if_::if_nametoindex;

use crate::bed::{
    DESCRIPTORS, HOST, OTHER_SLOT, PEER, SLOT, Wire, attach, eventually, expect, halves, in_namespaces,
    open_again, pair, part, run, shown,
};
use crate::packets::{Made, back};

#[test]
fn after_its_port_a_program_can_send_nothing() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        let pair = pair(0);
        let mut kernel = Wire::open("near0");
        let program = PacketSocket::open(pair.far).unwrap();
        let frame = Made::new("10.9.0.1", "10.9.0.2").frame(PEER, HOST);
        program.send(&frame).unwrap();
        kernel.expect("without a port the kernel sees the frame");
        let port = uplink.open(pair, &[SLOT]).unwrap();
        let (_rx, mut tx) = halves(&port);
        let mut wire = world.wire();
        program.send(&frame).unwrap();
        wire.expect("with a port it leaves");
        drop(port);
        // The program still has the socket.
        let made = Made::new("10.9.0.1", "10.9.0.2");
        let _ = tx.push(made.version, &made.headers(), &made.segment());
        let _ = tx.flush();
        program.send(&frame).unwrap();
        // The near end's count of frames proves that both arrived there.
        eventually("the frames arrived", || {
            let statistics = "/sys/class/net/near0/statistics/rx_packets";
            std::fs::read_to_string(statistics)
                .map_or(true, |count| count.trim().parse::<u64>().unwrap_or(9) >= 4)
        });
        assert!(kernel.next().is_none(), "the kernel sees nothing");
        assert!(wire.next().is_none(), "nothing leaves");
        run("ip link delete near0");
        tx.push(made.version, &made.headers(), &made.segment()).unwrap();
        let error = tx.flush().unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO)), "{error}");
    });
}

#[test]
fn a_pair_can_be_used_again_but_not_twice() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        let pair = pair(0);
        let wire = world.wire();
        for round in 0..4 {
            let port = open_again(&mut uplink, pair, &[SLOT]);
            let (mut rx, tx) = halves(&port);
            let made = back(&Made::new("10.9.0.1", "10.9.0.2").mark(round));
            wire.send(&made.frame(HOST, PEER));
            assert_eq!(expect(&mut rx, "a packet arrives").1, made.packet());
            drop((rx, tx, port));
        }
        let port = open_again(&mut uplink, pair, &[SLOT]);
        let error = uplink.open(pair, &[SLOT]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        // The attempt did no harm.
        let (mut rx, _tx) = halves(&port);
        let made = back(&Made::new("10.9.0.1", "10.9.0.2"));
        wire.send(&made.frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "a packet arrives").1, made.packet());
        assert!(matches!(Uplink::attach(if_nametoindex("net0").unwrap()), Err(AttachError::Busy)));
    });
}

#[test]
fn a_slot_that_another_port_took_over_stays_with_it() {
    in_namespaces(1500, |world| {
        let mut uplink = attach();
        let wire = world.wire();
        let first = uplink.open(pair(0), &[SLOT, OTHER_SLOT]).unwrap();
        let second = uplink.open(pair(1), &[SLOT]).unwrap();
        let (mut rx, _tx) = halves(&second);
        drop(first);
        let made = back(&Made::new("10.9.0.1", "10.9.0.2"));
        wire.send(&made.frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "the second port has the slot").1, made.packet());
    });
}

#[test]
fn a_killed_broker_leaves_the_check_but_no_redirection() {
    in_namespaces(1500, |world| {
        let pair = pair(0);
        let status = part("ends::part_dying_broker", &format!("{} {}", pair.near, pair.far)).wait().unwrap();
        assert_eq!(status.code(), Some(7));
        eventually("the uplink is free", || !shown("ip link show net0").contains("xdp"));
        let mut kernel = Wire::open("near0");
        let program = PacketSocket::open(pair.far).unwrap();
        let mut wire = world.wire();
        let made = Made::new("10.9.0.1", "10.9.0.2");
        program.send(&Made { port: 53, ..made.clone() }.frame(PEER, HOST)).unwrap();
        program.send(&made.frame(PEER, HOST)).unwrap();
        assert_eq!(wire.expect("what is right leaves"), made.frame(PEER, HOST));
        assert!(kernel.next().is_none(), "the kernel sees nothing");
        let socket = UdpSocket::bind("10.9.0.1:4791").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        wire.send(&back(&made).frame(HOST, PEER));
        assert!(socket.recv(&mut [0; 2000]).is_ok());
        // The next one takes over.
        let mut uplink = attach();
        let port = open_again(&mut uplink, pair, &[SLOT]);
        let (mut rx, _tx) = halves(&port);
        wire.send(&back(&made).frame(HOST, PEER));
        assert_eq!(expect(&mut rx, "a packet arrives").1, back(&made).packet());
    });
}

#[test]
#[ignore = "a part of another test"]
fn part_dying_broker() {
    let Ok(value) = std::env::var(DESCRIPTORS) else { return };
    let ends: Vec<u32> = value.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let mut uplink = attach();
    let _port = uplink.open(Pair { near: ends[0], far: ends[1] }, &[SLOT]).unwrap();
    // SAFETY: ends the process without its destructors, as a signal would.
    unsafe { libc::_exit(7) };
}

#[test]
fn an_interface_that_does_not_exist_is_an_error() {
    in_namespaces(1500, |_| {
        assert!(Uplink::attach(0x7fff_ffff).is_err());
        let mut uplink = attach();
        assert!(uplink.open(Pair { near: 0x7fff_fffe, far: 0x7fff_ffff }, &[SLOT]).is_err());
    });
}
