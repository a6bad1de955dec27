extern crate std;

use std::format;
use std::string::String;
use std::vec::Vec;

use super::*;
use crate::{Frame, Packet};

/// Captured packets, IP header to ICRC: 1 and 2 are from cards, 7 to 10 from kernel rxe.
const VECTORS: [(u8, &str); 9] = [
    (
        1,
        "45010040047840004011b4d5c0a80007c0a80007c00012b7002c00002460ffff000000d300cf17104630818be28935d90e9a95505401be885e50000078f353f3",
    ),
    (
        2,
        "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a",
    ),
    (
        3,
        "45000034000040004011b6b5c0000201c0000202c12312b7002000000470ffff000000118012345668656c6c6f0000006c49be03",
    ),
    (
        4,
        "600000000020114020010db800000000000000000000000120010db8000000000000000000000002c12312b7002000000470ffff000000118012345668656c6c6f000000b82987c0",
    ),
    (6, "45000030000040004011b6b9c0000202c0000201c12312b7001c00001100ffff00000012001234561f00000118ec5b24"),
    (
        7,
        "6000000000181140fd790000000000000000000000000001fd790000000000000000000000000002c40012b7001800000400ffff0000002080123456bfefde98",
    ),
    (
        8,
        "60000000001c1140fd790000000000000000000000000002fd790000000000000000000000000001c40012b7001c00001100ffff00000020001234561f00000131e931d6",
    ),
    (
        9,
        "4500004841b840004011e44c0a4f00010a4f0002c24012b7003400001300ffff00000018801234560000560d276cd00000000969000000000000222200000000000011115c4deb09",
    ),
    (
        10,
        "45000038632740004011c2ed0a4f00020a4f0001c24012b7002400001200ffff00000018001234561f000001000000000000111110d3a6ee",
    ),
];

/// A captured packet of RoCE v1, GRH to ICRC.
const VECTOR_V1: &str = "6000000000181b0120010db800000000000000000000000120010db80000000000000000000000020470ffff000000118012345668656c6c6f000000e6bb2d6b";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn vectors() {
    for (number, text) in VECTORS {
        let bytes = hex(text);
        let frame = Frame::parse_ip(&bytes).unwrap();
        let (flow, id) = (frame.flow().unwrap(), frame.ip_id().unwrap_or(0));
        assert!(frame.icrc_holds(), "vector {number}");
        assert!(verify(&flow, id, frame.transport), "vector {number}");

        let packet = Packet::parse(frame.transport).unwrap();
        let mut out = [0; 256];
        let len = packet.emit(&mut out).unwrap();
        seal(&flow, id, &mut out[..len]);
        assert_eq!(out[..len], *frame.transport, "vector {number}");
    }
}

#[test]
fn the_icrc_of_a_captured_roce_v1_packet_holds() {
    let bytes = hex(VECTOR_V1);
    let mut frame = hex("ffffffffffff0200000000018915");
    frame.extend(&bytes);
    let frame = Frame::parse(&frame).unwrap();
    let crate::Encapsulation::V1(grh) = frame.encapsulation else { panic!("{frame:?}") };
    assert!(frame.icrc_holds());
    assert_eq!(frame.flow(), None);
    let way = frame.way();
    assert_eq!(way.grh(), grh, "there and back");
    assert!(!way.is_ipv4() && verify(&way, 7, frame.transport), "no ID is hashed");
    assert_eq!(crate::Flow::from_grh_area(&way.grh_area(frame.transport.len())), Some(way));
    let again = Frame::new(frame.ethernet, &way, 7, frame.transport);
    assert_eq!(again, frame);
    let mut sealed = frame.transport.to_vec();
    sealed.last_chunk_mut::<4>().unwrap().fill(0);
    seal(&way, 7, &mut sealed);
    assert_eq!(sealed, frame.transport);
    assert_eq!(grh.header(frame.transport.len() as u16).as_bytes(), &bytes[..40]);
}

/// A17.3.3: what may change in transit is not covered, every other bit is.
#[test]
fn exactly_the_masked_bits_are_free() {
    for (number, text) in VECTORS {
        let original = hex(text);
        let masked: &[(usize, u8)] = match original[0] >> 4 {
            4 => &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff), (26, 0xff), (27, 0xff), (32, 0xff)],
            _ => &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (47, 0xff), (52, 0xff)],
        };
        let mut free = String::new();
        for at in (0..original.len()).step_by(if cfg!(miri) { 5 } else { 1 }) {
            for bit in 0..8 {
                let mut bytes = original.clone();
                bytes[at] ^= 1 << bit;
                // Versions, lengths, protocol and port make it another frame: then it is refused before.
                let Ok(frame) = Frame::parse_ip(&bytes) else { continue };
                let expected = masked.iter().any(|(octet, mask)| *octet == at && mask >> bit & 1 != 0);
                if frame.icrc_holds() != expected {
                    free += &format!(" {at}.{bit}");
                }
            }
        }
        assert_eq!(free, "", "vector {number}");
    }
}

/// The pad is hashed, for each length of pad.
#[test]
fn the_icrc_covers_the_pad() {
    // Vector 3 and its prefixes, computed apart from this code with zlib.
    let flow = Frame::parse_ip(&hex(VECTORS[2].1)).unwrap().flow().unwrap();
    let bth = crate::Bth {
        ack_req: true,
        mig_req: true,
        ..crate::Bth::new(crate::Qpn::new(0x11), crate::Psn::new(0x123456))
    };
    for (payload, icrc) in
        [("hello", "6c49be03"), ("hell", "6db832ca"), ("hel", "510a54ca"), ("he", "2b8fbbcf")]
    {
        let send = crate::Request::SendOnly { payload: payload.as_bytes(), tail: crate::SendTail::None };
        let packet = Packet {
            bth,
            op: crate::Operation::Rc(crate::RcPacket::Request(send)),
            icrc: crate::IcrcStatus::Pending,
        };
        let mut out = [0xee; 64];
        let len = packet.emit(&mut out).unwrap();
        seal(&flow, 0, &mut out[..len]);
        let got: String = out[len - 4..len].iter().map(|octet| format!("{octet:02x}")).collect();
        assert_eq!(got, icrc, "{payload}");
    }
}

#[test]
fn any_cut_gives_the_same() {
    const STEP: usize = if cfg!(miri) { 7 } else { 1 };
    for (number, text) in VECTORS {
        let bytes = hex(text);
        let frame = Frame::parse_ip(&bytes).unwrap();
        let (flow, id) = (frame.flow().unwrap(), frame.ip_id().unwrap_or(0));
        let hashed = &frame.transport[..frame.transport.len() - 4];
        for first in (0..=hashed.len()).step_by(STEP) {
            for second in (first..=hashed.len()).step_by(STEP) {
                let mut icrc = Icrc::new(&flow, id, frame.transport.len());
                icrc.update(&hashed[..first]);
                icrc.update(&hashed[first..second]);
                icrc.update(&hashed[second..]);
                assert_eq!(Some(icrc.finish()), stored(frame.transport), "vector {number}");
            }
        }
    }
}

#[test]
fn short_slices_do_no_harm() {
    let flow = Frame::parse_ip(&hex(VECTORS[0].1)).unwrap().flow().unwrap();
    for len in 0..20 {
        let mut bytes = [0; 20];
        seal(&flow, 0, &mut bytes[..len]);
        assert_eq!(verify(&flow, 0, &bytes[..len]), len >= 4, "{len}");
        assert_eq!(&bytes[len..], &[0; 20][len..]);
    }
}
