extern crate std;

use std::vec::Vec;

use super::*;
use crate::Gid;
use crate::icrc::{IcrcChecker, Verdict};

fn flow(v6: bool) -> Flow {
    let (source, destination) = match v6 {
        false => ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        true => ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()),
    };
    Flow {
        source,
        destination,
        source_port: 0xc123,
        traffic_class: 0x0a,
        hop_limit: 64,
        link: Default::default(),
    }
}

/// A frame with these tags.
fn frame(tags: &[(u16, u16)], flow: &Flow, id: u16, transport: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], vlan: None };
    let mut out = [0; 256];
    let len = Frame::new(Some(ethernet), flow, id, transport).emit(&mut out).unwrap();
    let tags = tags.iter().flat_map(|(ethertype, tci)| [ethertype.to_be_bytes(), tci.to_be_bytes()]);
    out[..12].iter().copied().chain(tags.flatten()).chain(out[12..len].iter().copied()).collect()
}

#[test]
fn tags_and_padding() {
    for v6 in [false, true] {
        for tags in [&[][..], &[(0x8100, 0x6005)], &[(0x88a8, 7), (0x8100, 0x6005)]] {
            let mut bytes = frame(tags, &flow(v6), 0x1234, &[0x11; 20]);
            bytes.extend([0xee; 9]);
            let frame = Frame::parse(&bytes).unwrap();
            let ethernet = Ethernet {
                destination: [2, 0, 0, 0, 0, 2],
                source: [2, 0, 0, 0, 0, 1],
                vlan: tags.last().map(|(_, tci)| *tci),
            };
            assert_eq!(frame.ethernet, Some(ethernet));
            assert_eq!(frame.flow(), Some(flow(v6)));
            assert_eq!(frame.ip_id(), (!v6).then_some(0x1234));
            assert_eq!(frame.transport, [0x11; 20]);
            let header = 14 + 4 * tags.len();
            assert_eq!(Frame::parse_ip(&bytes[header..]).unwrap().transport, frame.transport);

            let mut out = [0; 256];
            let len = frame.emit(&mut out).unwrap();
            assert_eq!(Frame::parse(&out[..len]), Ok(frame));
            assert_eq!(len, bytes.len() - 9 - if tags.len() == 2 { 4 } else { 0 });
            for short in 0..len {
                let small = WireError::BufferTooSmall { need: len, have: short };
                assert_eq!(frame.emit(&mut out[..short]), Err(small));
            }
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for v6 in [false, true] {
        let bytes = frame(&[(0x8100, 1)], &flow(v6), 0, &[0x11; 20]);
        for len in 0..bytes.len() {
            let error = Frame::parse(&bytes[..len]).unwrap_err();
            assert!(matches!(error, FrameError::Truncated { need, have } if have < need), "{len}: {error}");
        }
    }
}

#[test]
fn other_traffic_is_named() {
    use FrameError as E;
    let (v4, v6) = (frame(&[], &flow(false), 0, &[0; 16]), frame(&[], &flow(true), 0, &[0; 16]));
    let cases: [(&[u8], usize, &[u8], E); 15] = [
        (&v4, 12, &[0x08, 0x06], E::EtherType(0x0806)),
        (&v4, 14, &[0x65], E::IpVersion(6)),
        (&v4, 14, &[0x46], E::IpOptions(24)),
        (&v4, 14, &[0x44], E::IpOptions(16)),
        (&v4, 20, &[0x20, 0x00], E::Fragment(0x2000)),
        (&v4, 20, &[0x00, 0x01], E::Fragment(0x0001)),
        (&v4, 23, &[6], E::Protocol(6)),
        (&v4, 36, &[0, 53], E::Port(53)),
        (&v4, 38, &[0, 23], E::UdpLength { udp: 23, ip: 24 }),
        (&v4, 38, &[0, 25], E::UdpLength { udp: 25, ip: 24 }),
        (&v4, 16, &[0, 19], E::Truncated { need: 20, have: 19 }),
        (&v4, 16, &[0, 45], E::Truncated { need: 25, have: 24 }),
        (&v6, 14, &[0x45], E::IpVersion(4)),
        (&v6, 20, &[44], E::Protocol(44)),
        (&v6, 18, &[0, 7], E::Truncated { need: 8, have: 7 }),
    ];
    for (bytes, at, change, error) in cases {
        let mut bytes = bytes.to_vec();
        bytes[at..at + change.len()].copy_from_slice(change);
        assert_eq!(Frame::parse(&bytes), Err(error), "{at} {change:?}");
    }
    assert_eq!(Frame::parse_ip(&[]), Err(E::Truncated { need: 1, have: 0 }));
    assert_eq!(Frame::parse_ip(&[0x50; 40]), Err(E::IpVersion(5)));
}

#[test]
fn grh_states_the_length() {
    let grh = Grh {
        traffic_class: 0xab,
        flow_label: 0x12345,
        hop_limit: 7,
        source: Gid([1; 16]),
        destination: Gid([2; 16]),
    };
    let mut bytes = Vec::from([0; 12]);
    bytes.extend([0x89, 0x15]);
    bytes.extend(zerocopy::IntoBytes::as_bytes(&grh.header(16)));
    bytes.extend([9; 20]);
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.encapsulation, Encapsulation::V1(grh));
    assert_eq!(frame.transport, [9; 16]);
    assert_eq!(frame.ip_id(), None);
    let mut out = [0; 70];
    assert_eq!(frame.emit(&mut out), Ok(70));
    assert_eq!(out, bytes[..70]);
    bytes[14 + 6] = 17;
    assert_eq!(Frame::parse(&bytes), Err(FrameError::Protocol(17)));
    bytes[14] = 0x50;
    assert_eq!(Frame::parse(&bytes), Err(FrameError::IpVersion(5)));
}

/// RFC 791: the sum over a header with its checksum is zero. The headers are of captured packets.
#[test]
fn ipv4_checksum() {
    for (header, sum) in [
        ("4500004841b8400040110000 0a4f00010a4f0002", 0xe44c),
        ("45010040047840004011ffff c0a80007c0a80007", 0xb4d5),
    ] {
        let digits: Vec<u8> = header.bytes().filter(|digit| *digit != b' ').collect();
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        let ip = <view::Ipv4 as zerocopy::FromBytes>::read_from_bytes(&bytes).unwrap();
        assert_eq!(ip.sum(), sum);
    }
    // With every ID the words of the whole header add up to ones.
    for id in (0..=u16::MAX).step_by(if cfg!(miri) { 509 } else { 1 }) {
        let (IpHeader::V4(ip), _) = flow(false).headers(id, 64) else { panic!() };
        let words = zerocopy::IntoBytes::as_bytes(&ip).chunks(2);
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        assert_eq!(sum % 0xffff, 0, "{id}");
    }
}

/// The ICRC over a frame's own headers holds without DF, where the one over a flow assumes DF. The checker,
/// which sees the flow alone, takes both.
#[test]
fn frame_without_df() {
    let mut bytes = frame(&[], &flow(false), 5, &[0x11; 20]);
    bytes[20] = 0;
    let icrc = Frame::parse(&bytes).unwrap().icrc();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&icrc.to_le_bytes());
    let frame = Frame::parse(&bytes).unwrap();
    assert!(frame.icrc_holds());
    assert!(!crate::icrc::verify(&flow(false), 5, frame.transport));
    let mut checker = IcrcChecker::new();
    assert_eq!(checker.check(&flow(false), frame.transport), Verdict::Solved(5));
    // DF alone may differ.
    for octets in [[0x80, 0], [0xc0, 0]] {
        bytes[20..22].copy_from_slice(&octets);
        let icrc = Frame::parse(&bytes).unwrap().icrc();
        bytes[at..].copy_from_slice(&icrc.to_le_bytes());
        let transport = Frame::parse(&bytes).unwrap().transport;
        assert_eq!(checker.check(&flow(false), transport), Verdict::Bad, "{octets:x?}");
    }
}
