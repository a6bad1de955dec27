//! Packets of kernel rxe: parsed, written again from their meaning alone, compared octet for octet.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{captures, header_offset, opcodes};
use ferroce_wire::cm::{IpCmHeader, Mad, Message};
use ferroce_wire::icrc::{self, IdSolver, Verdict};
use ferroce_wire::{
    Aeth, Deth, Feth, Flow, Frame, Gid, Headers, IcrcChecker, Imm, Msn, Operation, Packet, Pkey, Psn, Qkey,
    Qpn, RcPacket, Request, Response, Reth, Rkey, SendTail, Service, SrqNumber, Syndrome, WireOpcode,
};

/// RoCEv2 packets there are, as `captures/check.py` and tshark count them.
const PACKETS: usize = 1016;

/// Every RoCEv2 frame with the name of its capture.
fn for_each_frame(mut check: impl FnMut(&str, &Frame<'_>)) -> usize {
    let mut count = 0;
    for (name, frames) in captures() {
        for captured in &frames {
            if let Ok(frame) = Frame::parse(&captured.bytes) {
                count += 1;
                check(&format!("{name} frame {count}"), &frame);
            }
        }
    }
    count
}

#[test]
fn every_packet_comes_out_as_it_went_in() {
    let mut opcodes = BTreeSet::new();
    let count = for_each_frame(|name, frame| {
        let packet = Packet::parse(frame.transport).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (flow, id) = (frame.flow().unwrap(), frame.ip_id().unwrap_or(0));
        let mut out = vec![0xee; 4200];
        let len = packet.emit(&mut out).unwrap();
        assert_eq!(Ok(len), packet.wire_len(packet.op.payload().len()), "{name}");
        icrc::seal(&flow, id, &mut out[..len]);
        assert_eq!(out[..len], *frame.transport, "{name}");
        assert!(frame.icrc_holds() && icrc::verify(&flow, id, frame.transport), "{name}");
        opcodes.insert(frame.transport[0]);
    });
    assert_eq!(count, PACKETS);
    assert_eq!(opcodes.len(), 33);
}

#[test]
fn headers_come_out_as_they_went_in() {
    let count = for_each_frame(|name, frame| {
        let ferroce_wire::Encapsulation::V2 { ip, udp } = frame.encapsulation else { panic!("{name}") };
        let flow = frame.flow().unwrap();
        let headers = flow.headers(frame.ip_id().unwrap_or(0), frame.transport.len());
        assert_eq!(headers, (ip, udp), "{name}");
        assert_eq!(Gid::from_ip(flow.source).to_ip(), flow.source);

        let again = Frame::new(frame.ethernet, &flow, frame.ip_id().unwrap_or(0), frame.transport);
        assert_eq!(again, *frame, "{name}");
        let mut out = vec![0; 4300];
        let len = again.emit(&mut out).unwrap();
        assert_eq!(Frame::parse(&out[..len]), Ok(again), "{name}");
    });
    assert_eq!(count, PACKETS);
}

/// As a UDP socket receives them: without their IDs. Each one is solved.
#[test]
fn hidden_ids_are_solved() {
    let mut solver = IdSolver::new();
    let mut solved = 0;
    for (name, frames) in captures() {
        let mut checker = IcrcChecker::new();
        for captured in &frames {
            let Ok(frame) = Frame::parse(&captured.bytes) else { continue };
            let flow = frame.flow().unwrap();
            let verdict = checker.check(&flow, frame.transport);
            let id = frame.ip_id();
            let wanted = match id {
                None | Some(0) => Verdict::Good,
                Some(id) => Verdict::Solved(id),
            };
            assert_eq!(verdict, wanted, "{name}: {frame:?}");
            if let Some(id) = id {
                let stored = icrc::stored(frame.transport).unwrap();
                let difference = icrc::compute(&flow, 0, frame.transport) ^ stored;
                assert_eq!(icrc::solve_id(difference, frame.transport.len()), Some(id), "{name}");
                assert_eq!(solver.solve(difference, frame.transport.len()), Some(id), "{name}");
                solved += u32::from(id != 0);
            }
        }
    }
    assert!(solved > 100, "kernel rxe counts: {solved}");
}

/// Management datagrams there are: to queue pair 1, all of the CM.
const MADS: usize = 65;

#[test]
fn every_cm_message_comes_out_as_it_went_in() {
    let mut messages = BTreeMap::new();
    let mut ip_headers = 0;
    for_each_frame(|name, frame| {
        let packet = Packet::parse(frame.transport).unwrap();
        let Operation::Ud(datagram) = packet.op else { return };
        if packet.bth.dest_qp != Qpn::GSI {
            return;
        }
        let mad = Mad::parse(datagram.payload).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(mad.emit(), datagram.payload, "{name}: {mad:?}");
        *messages.entry(mad.message.name()).or_insert(0) += 1;

        let (service_id, private) = match &mad.message {
            Message::Req(req) => (req.service_id, &req.private.0[..]),
            Message::SidrReq(req) => (req.service_id, &req.private.0[..]),
            _ => return,
        };
        assert!(service_id.is_ip() && service_id.port().is_some(), "{name}");
        let (header, _) = IpCmHeader::parse(private).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(header.emit(), private[..IpCmHeader::LEN], "{name}");
        let flow = frame.flow().unwrap();
        assert_eq!((header.source, header.destination), (flow.source, flow.destination), "{name}");
        ip_headers += 1;
    });
    assert_eq!(messages.values().sum::<usize>(), MADS, "{messages:?}");
    assert_eq!(ip_headers, messages["REQ"] + messages["SIDR_REQ"]);
    let names: Vec<_> = messages.keys().copied().collect();
    assert_eq!(names, ["DREP", "DREQ", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"]);
}

/// A field: its name, the octets and bits it has, and what changes it. `None`: the packet has no such field.
type Field = (&'static str, fn(&mut Packet<'_>) -> bool, fn(Headers) -> Option<usize>, &'static [u8]);

fn request<'p, 'a>(packet: &'p mut Packet<'a>) -> Option<&'p mut Request<'a>> {
    match &mut packet.op {
        Operation::Rc(RcPacket::Request(request))
        | Operation::Uc(request)
        | Operation::Xrc { packet: RcPacket::Request(request), .. } => Some(request),
        Operation::Rc(_)
        | Operation::Xrc { .. }
        | Operation::Ud(_)
        | Operation::Cnp
        | Operation::Sack { .. } => None,
    }
}

fn reth<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut Reth> {
    match request(packet)? {
        Request::WriteFirst { reth, .. }
        | Request::WriteOnly { reth, .. }
        | Request::ReadRequest { reth }
        | Request::Flush { reth, .. }
        | Request::AtomicWrite { reth, .. } => Some(reth),
        _ => None,
    }
}

fn atomic<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut ferroce_wire::AtomicEth> {
    match request(packet)? {
        Request::CompareSwap { atomic } | Request::FetchAdd { atomic } => Some(atomic),
        _ => None,
    }
}

fn feth<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut Feth> {
    match request(packet)? {
        Request::Flush { feth, .. } => Some(feth),
        _ => None,
    }
}

fn response<'p, 'a>(packet: &'p mut Packet<'a>) -> Option<&'p mut Response<'a>> {
    match &mut packet.op {
        Operation::Rc(RcPacket::Response(response))
        | Operation::Xrc { packet: RcPacket::Response(response), .. } => Some(response),
        _ => None,
    }
}

fn aeth<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut Aeth> {
    match response(packet)? {
        Response::ReadFirst { aeth, .. }
        | Response::ReadLast { aeth, .. }
        | Response::ReadOnly { aeth, .. }
        | Response::Acknowledge { aeth }
        | Response::AtomicAcknowledge { aeth, .. } => Some(aeth),
        Response::ReadMiddle { .. } => None,
    }
}

fn original<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut u64> {
    match response(packet)? {
        Response::AtomicAcknowledge { original, .. } => Some(original),
        _ => None,
    }
}

fn deth<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut Deth> {
    match &mut packet.op {
        Operation::Ud(datagram) => Some(&mut datagram.deth),
        _ => None,
    }
}

fn imm<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut Imm> {
    if packet.op.service() == Service::Ud {
        return match &mut packet.op {
            Operation::Ud(datagram) => datagram.imm.as_mut(),
            _ => None,
        };
    }
    match request(packet)? {
        Request::SendLast { tail: SendTail::Imm(imm), .. }
        | Request::SendOnly { tail: SendTail::Imm(imm), .. } => Some(imm),
        Request::WriteLast { imm, .. } | Request::WriteOnly { imm, .. } => imm.as_mut(),
        _ => None,
    }
}

fn invalidate<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut Rkey> {
    match request(packet)? {
        Request::SendLast { tail: SendTail::Invalidate(rkey), .. }
        | Request::SendOnly { tail: SendTail::Invalidate(rkey), .. } => Some(rkey),
        _ => None,
    }
}

fn srq<'p>(packet: &'p mut Packet<'_>) -> Option<&'p mut SrqNumber> {
    match &mut packet.op {
        Operation::Xrc { srq, .. } => srq.as_mut(),
        _ => None,
    }
}

/// Changes a field if it is there.
fn flip<T>(field: Option<&mut T>, change: impl FnOnce(&mut T)) -> bool {
    field.map(change).is_some()
}

const FIELDS: [Field; 27] = [
    ("solicited", |p| flip(Some(&mut p.bth.solicited), |f| *f = !*f), |_| Some(1), &[0x80]),
    ("mig_req", |p| flip(Some(&mut p.bth.mig_req), |f| *f = !*f), |_| Some(1), &[0x40]),
    ("pkey", |p| flip(Some(&mut p.bth.pkey), |f| *f = Pkey::new(!f.value())), |_| Some(2), &[0xff; 2]),
    ("fecn", |p| flip(Some(&mut p.bth.fecn), |f| *f = !*f), |_| Some(4), &[0x80]),
    ("becn", |p| flip(Some(&mut p.bth.becn), |f| *f = !*f), |_| Some(4), &[0x40]),
    ("dest_qp", |p| flip(Some(&mut p.bth.dest_qp), |f| *f = Qpn::new(!f.value())), |_| Some(5), &[0xff; 3]),
    ("ack_req", |p| flip(Some(&mut p.bth.ack_req), |f| *f = !*f), |_| Some(8), &[0x80]),
    ("psn", |p| flip(Some(&mut p.bth.psn), |f| *f = Psn::new(!f.value())), |_| Some(9), &[0xff; 3]),
    ("srq", |p| flip(srq(p), |f| *f = SrqNumber::new(!f.value())), |h| at(h, Headers::XRCETH, 1), &[0xff; 3]),
    (
        "qkey",
        |p| flip(deth(p), |f| f.qkey = Qkey::new(!f.qkey.value())),
        |h| at(h, Headers::DETH, 0),
        &[0xff; 4],
    ),
    (
        "src_qp",
        |p| flip(deth(p), |f| f.src_qp = Qpn::new(!f.src_qp.value())),
        |h| at(h, Headers::DETH, 5),
        &[0xff; 3],
    ),
    ("placement", |p| flip(feth(p), |f| f.placement ^= 0xf), |h| at(h, Headers::FETH, 3), &[0x0f]),
    ("selectivity", |p| flip(feth(p), |f| f.selectivity ^= 3), |h| at(h, Headers::FETH, 3), &[0x30]),
    ("va", |p| flip(reth(p), |f| f.va = !f.va), |h| at(h, Headers::RETH, 0), &[0xff; 8]),
    (
        "rkey",
        |p| flip(reth(p), |f| f.rkey = Rkey::new(!f.rkey.value())),
        |h| at(h, Headers::RETH, 8),
        &[0xff; 4],
    ),
    ("dma_len", |p| flip(reth(p), |f| f.dma_len = !f.dma_len), |h| at(h, Headers::RETH, 12), &[0xff; 4]),
    ("atomic va", |p| flip(atomic(p), |f| f.va = !f.va), |h| at(h, Headers::ATOMIC, 0), &[0xff; 8]),
    (
        "atomic rkey",
        |p| flip(atomic(p), |f| f.rkey = Rkey::new(!f.rkey.value())),
        |h| at(h, Headers::ATOMIC, 8),
        &[0xff; 4],
    ),
    (
        "swap",
        |p| flip(atomic(p), |f| f.swap_or_add = !f.swap_or_add),
        |h| at(h, Headers::ATOMIC, 12),
        &[0xff; 8],
    ),
    ("compare", |p| flip(atomic(p), |f| f.compare = !f.compare), |h| at(h, Headers::ATOMIC, 20), &[0xff; 8]),
    (
        "syndrome",
        |p| flip(aeth(p), |f| f.syndrome = Syndrome::from_byte(!f.syndrome.to_byte())),
        |h| at(h, Headers::AETH, 0),
        &[0xff],
    ),
    ("msn", |p| flip(aeth(p), |f| f.msn = Msn::new(!f.msn.value())), |h| at(h, Headers::AETH, 1), &[0xff; 3]),
    ("original", |p| flip(original(p), |f| *f = !*f), |h| at(h, Headers::ATOMIC_ACK, 0), &[0xff; 8]),
    ("imm", |p| flip(imm(p), |f| f.0 = f.0.map(|octet| !octet)), |h| at(h, Headers::IMM, 0), &[0xff; 4]),
    (
        "invalidate",
        |p| flip(invalidate(p), |f| *f = Rkey::new(!f.value())),
        |h| at(h, Headers::IETH, 0),
        &[0xff; 4],
    ),
    ("first of payload", |_| true, |h| Some(12 + h.octets()), &[0xff]),
    ("unchanged", |_| true, |_| Some(0), &[]),
];

fn at(headers: Headers, header: Headers, within: usize) -> Option<usize> {
    header_offset(headers, header).map(|offset| offset + within)
}

/// Flips each field of a packet; returns how many it has.
fn flip_fields(name: &str, flow: &Flow, id: u16, transport: &[u8]) -> usize {
    let headers = WireOpcode(transport[0]).info().unwrap().headers;
    let mut flipped = 0;
    for (field, change, offset, bits) in FIELDS {
        // The payload is flipped where it lies: the packet only borrows it.
        let mut source = transport.to_vec();
        let payload = Packet::parse(transport).unwrap().op.payload().len();
        if field == "first of payload" {
            if payload == 0 {
                continue;
            }
            source[12 + headers.octets()] ^= 0xff;
        }
        let mut packet = Packet::parse(&source).unwrap();
        let present = change(&mut packet);
        let offset = offset(headers);
        assert_eq!(present, offset.is_some(), "{name}: {field}");
        let Some(offset) = offset else { continue };
        flipped += 1;

        let mut wanted = transport.to_vec();
        for (octet, bits) in wanted[offset..].iter_mut().zip(bits) {
            *octet ^= bits;
        }
        let mut out = vec![0; transport.len()];
        assert_eq!(packet.emit(&mut out), Ok(out.len()), "{name}: {field}");
        icrc::seal(flow, id, &mut out);
        let end = out.len() - 4;
        assert_eq!(out[..end], wanted[..end], "{name}: {field}");
        let same_icrc = out[end..] == wanted[end..];
        assert_eq!(same_icrc, matches!(field, "fecn" | "becn" | "unchanged"), "{name}: {field}");
        assert_eq!(Packet::parse(&out).unwrap(), packet, "{name}: {field}");
    }
    flipped
}

#[test]
fn each_field_changes_its_own_octets() {
    let mut flipped = 0;
    let count = for_each_frame(|name, frame| {
        flipped += flip_fields(name, &frame.flow().unwrap(), frame.ip_id().unwrap_or(0), frame.transport);
    });
    assert_eq!(count, PACKETS);
    assert!(flipped > 10 * PACKETS);
}

/// The same for opcodes that no capture has: XRC, Flush, Atomic Write, CNP.
#[test]
fn each_field_changes_its_own_octets_in_every_opcode() {
    let flow = Flow {
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    };
    for (opcode, info) in opcodes() {
        // CNPs are all written as 0x81.
        if info.operation.is_none() && opcode != WireOpcode::CNP.0 {
            continue;
        }
        let payload = if info.payload == ferroce_wire::PayloadRule::None { 0 } else { 8 };
        let mut raw = vec![0; info.header_len + payload + 4];
        raw[0] = opcode;
        let mut out = vec![0; raw.len()];
        assert_eq!(Packet::parse(&raw).unwrap().emit(&mut out), Ok(raw.len()), "{opcode:#x}");
        icrc::seal(&flow, 1, &mut out);
        flip_fields(&format!("opcode {opcode:#x}"), &flow, 1, &out);
    }
}
