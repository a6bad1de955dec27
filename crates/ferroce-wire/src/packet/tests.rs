extern crate std;

use std::vec;
use std::vec::Vec;

use super::*;
use crate::{CreditCode, Msn, NakCode, Pkey, Psn, Qkey, Qpn, RnrTimer, Syndrome, WireError};

const RETH: Reth = Reth { va: 0x0102_0304_0506_0708, rkey: Rkey::new(0x1112_1314), dma_len: 0x2122_2324 };
const RETH_HEX: &str = "0102030405060708 11121314 21222324";
const ATOMIC: AtomicEth = AtomicEth {
    va: 0x0102_0304_0506_0708,
    rkey: Rkey::new(0x1112_1314),
    swap_or_add: 0x3132_3334_3536_3738,
    compare: 0x4142_4344_4546_4748,
};
const ATOMIC_HEX: &str = "0102030405060708 11121314 3132333435363738 4142434445464748";
const AETH: Aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccessError), msn: Msn::new(0xabcdef) };
const IMM: Imm = Imm([0xde, 0xad, 0xbe, 0xef]);
const RKEY: Rkey = Rkey::new(0xcafe_0001);
const P: &[u8] = &[1, 2, 3];

fn rc(request: Request<'static>) -> Operation<'static> {
    Operation::Rc(RcPacket::Request(request))
}

fn answer(response: Response<'static>) -> Operation<'static> {
    Operation::Rc(RcPacket::Response(response))
}

fn send(tail: SendTail) -> Request<'static> {
    Request::SendOnly { payload: P, tail }
}

/// Opcode, hex of what is between BTH and payload, meaning. Payloads are [`P`] where there is one.
fn cases() -> Vec<(u8, &'static str, Operation<'static>)> {
    let srq = Some(SrqNumber::new(0x556677));
    let deth = Deth { qkey: Qkey::new(0x8001_0000), src_qp: Qpn::new(0x91) };
    let feth = Feth { placement: Feth::PERSISTENCE, selectivity: Feth::WHOLE_REGION };
    vec![
        (0x00, "", rc(Request::SendFirst { payload: P })),
        (0x01, "", rc(Request::SendMiddle { payload: P })),
        (0x02, "", rc(Request::SendLast { payload: P, tail: SendTail::None })),
        (0x03, "deadbeef", rc(Request::SendLast { payload: P, tail: SendTail::Imm(IMM) })),
        (0x16, "cafe0001", rc(Request::SendLast { payload: P, tail: SendTail::Invalidate(RKEY) })),
        (0x04, "", rc(send(SendTail::None))),
        (0x05, "deadbeef", rc(send(SendTail::Imm(IMM)))),
        (0x17, "cafe0001", rc(send(SendTail::Invalidate(RKEY)))),
        (0x06, RETH_HEX, rc(Request::WriteFirst { reth: RETH, payload: P })),
        (0x07, "", rc(Request::WriteMiddle { payload: P })),
        (0x08, "", rc(Request::WriteLast { payload: P, imm: None })),
        (0x09, "deadbeef", rc(Request::WriteLast { payload: P, imm: Some(IMM) })),
        (0x0a, RETH_HEX, rc(Request::WriteOnly { reth: RETH, payload: P, imm: None })),
        (
            0x0b,
            "0102030405060708 11121314 21222324 deadbeef",
            rc(Request::WriteOnly { reth: RETH, payload: P, imm: Some(IMM) }),
        ),
        (0x0c, RETH_HEX, rc(Request::ReadRequest { reth: RETH })),
        (0x13, ATOMIC_HEX, rc(Request::CompareSwap { atomic: ATOMIC })),
        (0x14, ATOMIC_HEX, rc(Request::FetchAdd { atomic: ATOMIC })),
        (0x1c, "00000012 0102030405060708 11121314 21222324", rc(Request::Flush { feth, reth: RETH })),
        (0x1d, RETH_HEX, rc(Request::AtomicWrite { reth: RETH, payload: P })),
        (0x0d, "62abcdef", answer(Response::ReadFirst { aeth: AETH, payload: P })),
        (0x0e, "", answer(Response::ReadMiddle { payload: P })),
        (0x0f, "62abcdef", answer(Response::ReadLast { aeth: AETH, payload: P })),
        (0x10, "62abcdef", answer(Response::ReadOnly { aeth: AETH, payload: P })),
        (0x11, "62abcdef", answer(Response::Acknowledge { aeth: AETH })),
        (
            0x12,
            "62abcdef 5152535455565758",
            answer(Response::AtomicAcknowledge { aeth: AETH, original: 0x5152_5354_5556_5758 }),
        ),
        (0x24, "", Operation::Uc(send(SendTail::None))),
        (0x29, "deadbeef", Operation::Uc(Request::WriteLast { payload: P, imm: Some(IMM) })),
        (0x64, "80010000 00000091", Operation::Ud(UdPacket { deth, payload: P, imm: None })),
        (0x65, "80010000 00000091 deadbeef", Operation::Ud(UdPacket { deth, payload: P, imm: Some(IMM) })),
        (
            0xa7,
            "00556677",
            Operation::Xrc { srq, packet: RcPacket::Request(Request::WriteMiddle { payload: P }) },
        ),
        (
            0xb3,
            "00556677 0102030405060708 11121314 3132333435363738 4142434445464748",
            Operation::Xrc { srq, packet: RcPacket::Request(Request::CompareSwap { atomic: ATOMIC }) },
        ),
        (
            0xb1,
            "62abcdef",
            Operation::Xrc { srq: None, packet: RcPacket::Response(Response::Acknowledge { aeth: AETH }) },
        ),
        (0x81, "00000000000000000000000000000000", Operation::Cnp),
        (
            0xc1,
            "62abcdef 00112233445566778899aabbccddeeff",
            Operation::Sack { aeth: AETH, held: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff },
        ),
    ]
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|digit| *digit != b' ').collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A BTH with every field set, and its octets.
fn bth(opcode: u8, pad: u8) -> (Bth, Vec<u8>) {
    let meaning = Bth {
        solicited: true,
        mig_req: true,
        pkey: Pkey::new(0x7ffe),
        fecn: true,
        becn: true,
        dest_qp: Qpn::new(0x102030),
        ack_req: true,
        extended: true,
        psn: Psn::new(0xfedcba),
    };
    let mut octets = hex("00 c0 7ffe c0 102030 c0 fedcba");
    octets[0] = opcode;
    octets[1] |= pad << 4;
    (meaning, octets)
}

/// The octets of a case, and its packet.
fn build(opcode: u8, headers: &str, op: Operation<'static>) -> (Vec<u8>, Packet<'static>) {
    let has_payload = !op.payload().is_empty();
    let (bth, mut octets) = bth(opcode, if has_payload { 1 } else { 0 });
    octets.extend(hex(headers));
    if has_payload {
        octets.extend([1, 2, 3, 0]);
    }
    octets.extend([0; 4]);
    (octets, Packet { bth, op, icrc: IcrcStatus::Pending })
}

#[test]
fn each_header_parses_and_emits() {
    for (opcode, headers, op) in cases() {
        let (octets, packet) = build(opcode, headers, op);
        assert_eq!(Packet::parse(&octets), Ok(packet), "{opcode:#x}");
        let mut out = [0xee; 128];
        assert_eq!(packet.emit(&mut out), Ok(octets.len()), "{opcode:#x}");
        assert_eq!(out[..octets.len()], octets, "{opcode:#x}");
        assert!(out[octets.len()..].iter().all(|octet| *octet == 0xee), "{opcode:#x}: wrote beyond");
        assert_eq!(packet.op.opcode().map(|opcode| opcode.0), Some(opcode));
    }
}

#[test]
fn every_truncation_is_refused() {
    for (opcode, headers, op) in cases() {
        let (octets, _) = build(opcode, headers, op);
        for len in 0..octets.len() {
            match Packet::parse(&octets[..len]) {
                Err(WireError::Truncated { have, need }) => {
                    assert!(have == len && need > len, "{opcode:#x} {len}")
                }
                Err(WireError::Unaligned { len: said }) => assert_eq!(said, len),
                other => panic!("{opcode:#x} {len}: {other:?}"),
            }
        }
    }
}

#[test]
fn every_short_buffer_is_refused() {
    for (opcode, headers, op) in cases() {
        let (octets, packet) = build(opcode, headers, op);
        let mut out = [0; 128];
        for len in 0..octets.len() {
            let refused = WireError::BufferTooSmall { need: octets.len(), have: len };
            assert_eq!(packet.emit(&mut out[..len]), Err(refused), "{opcode:#x}");
        }
        let head = packet.header_len().unwrap();
        for len in 0..head {
            let refused = WireError::BufferTooSmall { need: head, have: len };
            assert_eq!(
                packet.emit_head(packet.op.payload().len(), &mut out[..len]),
                Err(refused),
                "{opcode:#x}"
            );
        }
        assert_eq!(packet.emit_head(packet.op.payload().len(), &mut out[..head]), Ok(head));
        assert_eq!(out[..head], octets[..head]);
    }
}

/// IBTA 9.2: reserved bits are sent as 0 and ignored.
#[test]
fn reserved_bits_are_ignored() {
    for (opcode, headers, op) in cases() {
        let (mut octets, packet) = build(opcode, headers, op);
        octets[4] |= 0x3f;
        octets[8] |= 0x7f;
        match packet.op {
            Operation::Ud(_) => octets[16] = 0xff,
            Operation::Xrc { srq: Some(_), .. } => octets[12] = 0xff,
            Operation::Rc(RcPacket::Request(Request::Flush { .. })) => {
                octets[12..15].fill(0xff);
                octets[15] |= 0xc0;
            }
            Operation::Cnp => octets[12..28].fill(0xff),
            _ => {}
        }
        assert_eq!(Packet::parse(&octets), Ok(packet), "{opcode:#x}");
    }
}

/// IBTA 9.2.4.
#[test]
fn other_versions_are_refused() {
    let (mut octets, _) = build(0x04, "", rc(send(SendTail::None)));
    for version in 1..16 {
        octets[1] = octets[1] & 0xf0 | version;
        assert_eq!(Packet::parse(&octets), Err(WireError::Version(version)));
    }
}

#[test]
fn pad_value_is_not_checked() {
    let (mut octets, packet) = build(0x04, "", rc(send(SendTail::None)));
    let pad = octets.len() - 5;
    octets[pad] = 0xff;
    assert_eq!(Packet::parse(&octets), Ok(packet));
}

#[test]
fn operations_a_service_lacks_are_not_emitted() {
    let mut out = [0; 128];
    let packet = |op| Packet { bth: bth(0, 0).0, op, icrc: IcrcStatus::Checked };
    let ack = RcPacket::Response(Response::Acknowledge { aeth: AETH });
    for (op, service) in [
        (Operation::Uc(Request::ReadRequest { reth: RETH }), Service::Uc),
        (Operation::Uc(send(SendTail::Invalidate(RKEY))), Service::Uc),
        (Operation::Xrc { srq: None, packet: RcPacket::Request(send(SendTail::None)) }, Service::Xrc),
        (Operation::Xrc { srq: Some(SrqNumber::new(1)), packet: ack }, Service::Xrc),
    ] {
        assert_eq!(packet(op).emit(&mut out), Err(WireError::NoSuchOperation(service)));
    }
    let read = packet(rc(Request::ReadRequest { reth: RETH }));
    assert_eq!(read.emit_head(1, &mut out), Err(WireError::UnexpectedPayload { len: 1 }));
}

#[test]
fn extra_octets_after_an_acknowledge_are_refused() {
    let (mut octets, _) = build(0x11, "62abcdef", answer(Response::Acknowledge { aeth: AETH }));
    octets.extend([0; 4]);
    assert_eq!(Packet::parse(&octets), Err(WireError::TrailingBytes { opcode: 0x11, extra: 4 }));
}

#[test]
fn syndromes() {
    let credits = CreditCode::new(5).unwrap();
    for (octet, syndrome) in [
        (0x05, Syndrome::Ack { credits }),
        (0x36, Syndrome::RnrNak(RnrTimer::new(22).unwrap())),
        (0x60, Syndrome::Nak(NakCode::PsnSequenceError)),
        (0x9f, Syndrome::Reserved(0x9f)),
    ] {
        let (mut octets, _) = build(0x11, "62abcdef", answer(Response::Acknowledge { aeth: AETH }));
        octets[12] = octet;
        let aeth = Aeth { syndrome, ..AETH };
        assert_eq!(Packet::parse(&octets).unwrap().op, answer(Response::Acknowledge { aeth }));
    }
}

#[test]
fn common_packets_are_read_and_written_as_all_others() {
    let mut octets: Vec<u8> = (0..120u32).map(|number| (number * 37 + 11) as u8).collect();
    let opcodes = [RcOpcode::SendOnly as u8, RcOpcode::WriteOnly as u8, RcOpcode::Acknowledge as u8, 0x05];
    let tries = opcodes.map(|opcode| [(opcode, 0, 0x1f), (opcode, 0x80, 0x05), (opcode, 0, 0x60)]);
    for (opcode, marks, syndrome) in tries.into_iter().flatten() {
        (octets[0], octets[4], octets[12]) = (opcode, marks, syndrome);
        let is_nak = opcode == RcOpcode::Acknowledge as u8 && syndrome > 0x1f;
        let is_common = opcode != 0x05 && marks == 0 && !is_nak;
        for flags in 0..=u8::MAX {
            octets[1] = flags;
            for len in 0..octets.len() {
                let octets = &octets[..len];
                let (common, any) = (Packet::parse_common(octets), Packet::parse_any(octets));
                assert_eq!(common.is_some(), any.is_ok() && is_common, "{opcode} {flags} {len}");
                assert!(common.is_none_or(|common| any == Ok(common)), "{opcode} {flags} {len}");
            }
        }
    }
    for (opcode, _, op) in cases() {
        let packet = Packet { bth: bth(opcode, 0).0, op, icrc: IcrcStatus::Pending };
        let Ok(layout) = packet.layout(packet.op.payload().len()) else { continue };
        let mut written = [vec![0xee; layout.wire_len], vec![0xee; layout.wire_len]];
        let rest = packet.emit_by(&layout, &mut written[0]).unwrap().len();
        packet.emit(&mut written[1]).unwrap();
        let head = layout.wire_len - rest;
        assert_eq!(
            (written[0][..head].to_vec(), packet.header_len()),
            (written[1][..head].to_vec(), Ok(head))
        );
        assert!(packet.emit_by(&layout, &mut written[0][..11]).is_err());
    }
}
