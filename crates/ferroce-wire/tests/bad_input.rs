//! Datagrams no peer should send.

mod common;

use common::Random;
use ferroce_wire::{
    Frame, Operation, Packet, PayloadRule, RcPacket, Request, Service, WireError, WireOpcode, icrc,
};

/// A datagram with this opcode and pad count, of `len` octets.
fn datagram(opcode: u8, pad: u8, len: usize, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; len];
    if let [first, second, ..] = &mut bytes[..] {
        *first = opcode;
        *second = fill & 0xc0 | pad << 4;
    }
    bytes
}

/// Parses, and if that is well, checks that nothing outside the datagram was read and that it comes out again.
fn parse(bytes: &[u8]) -> Result<Packet<'_>, WireError> {
    let packet = Packet::parse(bytes)?;
    let payload = packet.op.payload();
    let pad = usize::from(bytes[1] >> 4 & 3);
    let header = packet.header_len().unwrap();
    assert_eq!(header + payload.len() + pad + 4, bytes.len());
    if !payload.is_empty() {
        let offset = payload.as_ptr().addr() - bytes.as_ptr().addr();
        assert_eq!(offset, header);
    }
    let mut out = vec![0; bytes.len()];
    assert_eq!(packet.emit(&mut out), Ok(bytes.len()));
    assert_eq!(Packet::parse(&out), Ok(packet));
    Ok(packet)
}

#[test]
fn every_opcode_parses_or_is_refused_by_name() {
    for opcode in 0..=255u8 {
        let known = WireOpcode(opcode).info();
        for len in [0, 4, 11, 12, 15, 16, 20, 32, 48, 64, 1040] {
            let got = parse(&datagram(opcode, 0, len, 0)).map(|packet| packet.op.service());
            match known {
                _ if len < 12 => assert_eq!(got, Err(WireError::Truncated { need: 16, have: len })),
                None => assert_eq!(got, Err(WireError::UnknownOpcode(opcode)), "{opcode:#x} {len}"),
                Some(info) => match got {
                    Ok(service) => {
                        assert!(service == info.service && service != Service::Rd, "{opcode:#x} {len}")
                    }
                    Err(WireError::Truncated { need, have }) => {
                        assert!(
                            have == len && need == info.header_len + 4 && need > have,
                            "{opcode:#x} {len}"
                        );
                    }
                    Err(WireError::UnsupportedOpcode(_)) => assert_eq!(info.service, Service::Rd),
                    Err(WireError::Unaligned { .. }) => assert_ne!(len % 4, 0),
                    Err(WireError::TrailingBytes { .. }) => assert_eq!(info.payload, PayloadRule::None),
                    Err(error) => panic!("{opcode:#x} {len}: {error}"),
                },
            }
        }
    }
}

#[test]
fn no_length_and_pad_is_read_beyond_its_end() {
    let mut parsed = 0;
    for opcode in 0..=255 {
        for pad in 0..4 {
            for len in 0..=100 {
                for fill in [0x00, 0xff] {
                    parsed += u32::from(parse(&datagram(opcode, pad, len, fill)).is_ok());
                }
            }
        }
    }
    assert!(parsed > 8_000, "{parsed}");
}

/// The pad is longer than what the headers leave.
#[test]
fn a_pad_longer_than_the_payload_is_refused() {
    for pad in 1..4 {
        let bytes = datagram(0x04, pad, 16, 0);
        assert_eq!(
            Packet::parse(&bytes),
            Err(WireError::Truncated { need: 16 + usize::from(pad), have: 16 })
        );
        assert!(Packet::parse(&datagram(0x04, pad, 20, 0)).is_ok());
    }
}

/// The responder answers it with a NAK, so it is a packet; its payload is what is there.
#[test]
fn an_atomic_write_parses_with_any_payload() {
    for payload in 0..=64 {
        let pad = (4 - payload % 4) % 4;
        let bytes = datagram(0x1d, pad as u8, 28 + payload + pad + 4, 0x40);
        let packet = parse(&bytes).unwrap();
        let Operation::Rc(RcPacket::Request(Request::AtomicWrite { payload: got, .. })) = packet.op else {
            panic!("{packet:?}")
        };
        assert_eq!(got.len(), payload);
        let rule = WireOpcode(0x1d).info().unwrap().payload;
        assert_eq!(rule.allows(got.len(), 1024), payload == 8);
    }
}

/// Each payload length modulo 4 has one pad; another length does not exist on the wire.
#[test]
fn the_pad_follows_from_the_length() {
    for len in 16..80 {
        for pad in 0..4 {
            let got = parse(&datagram(0x04, pad, len, 0)).map(|packet| packet.op.payload().len());
            match len - 16 {
                body if body < usize::from(pad) => assert!(got.is_err(), "{len} {pad}"),
                body if body % 4 == 0 => assert_eq!(got, Ok(body - usize::from(pad)), "{len} {pad}"),
                _ => assert_eq!(got, Err(WireError::Unaligned { len }), "{len} {pad}"),
            }
        }
    }
}

#[test]
fn noise_does_no_harm() {
    let mut random = Random(7);
    let mut parsed = 0;
    let mut seen = [false; 256];
    for _ in 0..300_000 {
        let len = (random.next() % 128) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        if let Some(flags) = bytes.get_mut(1) {
            *flags &= 0xf0;
        }
        if parse(&bytes).is_ok() {
            parsed += 1;
            seen[usize::from(bytes[0])] = true;
        }
        let _ = Frame::parse(&bytes);
        let _ = Frame::parse_ip(&bytes);
        let _ = icrc::stored(&bytes);
    }
    assert!(parsed > 1000, "{parsed}");
    assert!(seen.iter().filter(|seen| **seen).count() > 90);
}
