//! Reading returns the written values: for packets, ICRCs and batches of any content.

use std::net::IpAddr;

use ferroce_wire::icrc::{self, Icrc};
use ferroce_wire::{
    Aeth, AtomicEth, BatchLimits, Bth, Deth, Feth, Flow, Gid, IcrcChecker, IcrcStatus, Imm, Msn, Operation,
    Packet, Pkey, Psn, PushError, Qkey, Qpn, RcPacket, Request, Response, Reth, Rkey, SendTail, Sink,
    SrqNumber, Syndrome, TxBatch, UdPacket, WireError,
};
use proptest::prelude::*;

fn bth() -> impl Strategy<Value = Bth> {
    (any::<[bool; 6]>(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(|(flags, pkey, qpn, psn)| {
        let [solicited, mig_req, fecn, becn, ack_req, extended] = flags;
        let (dest_qp, psn) = (Qpn::new(qpn), Psn::new(psn));
        Bth { solicited, mig_req, pkey: Pkey::new(pkey), fecn, becn, dest_qp, ack_req, extended, psn }
    })
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, dma_len)| Reth { va, rkey: Rkey::new(rkey), dma_len })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_or_add, compare)| AtomicEth {
        va,
        rkey: Rkey::new(rkey),
        swap_or_add,
        compare,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    any::<(u8, u32)>()
        .prop_map(|(syndrome, msn)| Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(msn) })
}

fn imm() -> impl Strategy<Value = Option<Imm>> {
    any::<Option<[u8; 4]>>().prop_map(|imm| imm.map(Imm))
}

fn tail() -> impl Strategy<Value = SendTail> {
    prop_oneof![
        Just(SendTail::None),
        any::<[u8; 4]>().prop_map(|imm| SendTail::Imm(Imm(imm))),
        any::<u32>().prop_map(|rkey| SendTail::Invalidate(Rkey::new(rkey))),
    ]
}

/// A request with this payload, where it has one.
fn request(payload: &'static [u8]) -> impl Strategy<Value = Request<'static>> {
    prop_oneof![
        Just(Request::SendFirst { payload }),
        Just(Request::SendMiddle { payload }),
        tail().prop_map(move |tail| Request::SendLast { payload, tail }),
        tail().prop_map(move |tail| Request::SendOnly { payload, tail }),
        reth().prop_map(move |reth| Request::WriteFirst { reth, payload }),
        Just(Request::WriteMiddle { payload }),
        imm().prop_map(move |imm| Request::WriteLast { payload, imm }),
        (reth(), imm()).prop_map(move |(reth, imm)| Request::WriteOnly { reth, payload, imm }),
        reth().prop_map(|reth| Request::ReadRequest { reth }),
        atomic().prop_map(|atomic| Request::CompareSwap { atomic }),
        atomic().prop_map(|atomic| Request::FetchAdd { atomic }),
        (reth(), 0..16u8, 0..4u8).prop_map(|(reth, placement, selectivity)| {
            Request::Flush { feth: Feth { placement, selectivity }, reth }
        }),
        reth().prop_map(move |reth| Request::AtomicWrite { reth, payload }),
    ]
}

fn response(payload: &'static [u8]) -> impl Strategy<Value = Response<'static>> {
    prop_oneof![
        aeth().prop_map(move |aeth| Response::ReadFirst { aeth, payload }),
        Just(Response::ReadMiddle { payload }),
        aeth().prop_map(move |aeth| Response::ReadLast { aeth, payload }),
        aeth().prop_map(move |aeth| Response::ReadOnly { aeth, payload }),
        aeth().prop_map(|aeth| Response::Acknowledge { aeth }),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| Response::AtomicAcknowledge { aeth, original }),
    ]
}

fn datagram(payload: &'static [u8]) -> impl Strategy<Value = UdPacket<'static>> {
    (any::<(u32, u32)>(), imm()).prop_map(move |((qkey, src_qp), imm)| {
        let deth = Deth { qkey: Qkey::new(qkey), src_qp: Qpn::new(src_qp) };
        UdPacket { deth, payload, imm }
    })
}

fn operation(payload: &'static [u8]) -> impl Strategy<Value = Operation<'static>> {
    prop_oneof![
        request(payload).prop_map(|request| Operation::Rc(RcPacket::Request(request))),
        response(payload).prop_map(|response| Operation::Rc(RcPacket::Response(response))),
        request(payload).prop_map(Operation::Uc),
        datagram(payload).prop_map(Operation::Ud),
        (request(payload), any::<u32>()).prop_map(|(request, srq)| Operation::Xrc {
            srq: Some(SrqNumber::new(srq)),
            packet: RcPacket::Request(request)
        }),
        response(payload)
            .prop_map(|response| Operation::Xrc { srq: None, packet: RcPacket::Response(response) }),
        Just(Operation::Cnp),
        any::<(u32, u128)>().prop_map(|(msn, held)| Operation::Sack {
            aeth: Aeth { syndrome: Syndrome::from_byte(0x60), msn: Msn::new(msn) },
            held,
        }),
    ]
}

/// Payloads are cut from this.
static OCTETS: [u8; 4200] = {
    let mut octets = [0; 4200];
    let mut k = 0;
    while k < octets.len() {
        octets[k] = (k * 7 + (k >> 8)) as u8;
        k += 1;
    }
    octets
};

fn packet() -> impl Strategy<Value = Packet<'static>> {
    let payload = (0..100usize, prop_oneof![0..40usize, 1000..1030usize, 4090..4100usize])
        .prop_map(|(from, len)| &OCTETS[from..from + len]);
    (bth(), payload.prop_flat_map(operation)).prop_map(|(bth, op)| Packet {
        bth,
        op,
        icrc: IcrcStatus::Pending,
    })
}

fn flow() -> impl Strategy<Value = Flow> {
    let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    (prop_oneof![v4, v6], any::<(u16, u8, u8)>()).prop_map(
        |((source, destination), (source_port, tclass, hops))| Flow {
            source,
            destination,
            source_port,
            traffic_class: tclass,
            hop_limit: hops,
            link: Default::default(),
        },
    )
}

proptest! {
    #[test]
    fn packet_emit_parse(packet in packet()) {
        let mut out = vec![0xee; 4300];
        match packet.emit(&mut out) {
            Ok(len) => prop_assert_eq!(Packet::parse(&out[..len]), Ok(packet)),
            Err(WireError::NoSuchOperation(service)) => prop_assert_eq!(service, packet.op.service()),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn sealed_packet_verifies_in_any_pieces(
        packet in packet(), flow in flow(), id: u16, cuts in prop::collection::vec(0..4300usize, 0..5),
    ) {
        let mut out = vec![0xee; 4300];
        let Ok(len) = packet.emit(&mut out) else { return Ok(()) };
        let sealed = &mut out[..len];
        icrc::seal(&flow, id, sealed);
        prop_assert!(icrc::verify(&flow, id, sealed));
        prop_assert_eq!(Packet::parse(sealed), Ok(packet));

        let mut icrc = Icrc::new(&flow, id, len);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len - 4)).chain([0, len - 4]).collect();
        cuts.sort();
        cuts.windows(2).for_each(|cut| icrc.update(&sealed[cut[0]..cut[1]]));
        prop_assert_eq!(Some(icrc.finish()), icrc::stored(sealed));

        if flow.is_ipv4() {
            let difference = icrc::compute(&flow, 0, sealed) ^ icrc::stored(sealed).unwrap();
            prop_assert_eq!(icrc::solve_id(difference, len), Some(id));
        }
        let verdict = IcrcChecker::new().check(&flow, sealed);
        prop_assert_ne!(verdict, icrc::Verdict::Bad);

        // Any other bit but BTH octet 4 breaks it.
        for at in [0, 1, 3, 5, 11, len - 1] {
            sealed[at] ^= 0x10;
            prop_assert!(!icrc::verify(&flow, id, sealed), "{}", at);
            sealed[at] ^= 0x10;
        }
    }

    #[test]
    fn batch_holds_what_was_pushed(
        packets in prop::collection::vec(packet(), 1..12), flow in flow(), gso: bool, room in 0..20_000usize,
    ) {
        let mut buf = vec![0xee; room];
        let mut batch = TxBatch::new(&mut buf, BatchLimits { max_segments: 8, gso });
        let mut held = Vec::new();
        for packet in packets {
            let payload = packet.op.payload();
            let before = batch.bytes().to_vec();
            let pushed = batch.push(&flow, &packet, payload.len(), |to| {
                to.copy_from_slice(payload);
                Ok::<_, ()>(())
            });
            match pushed {
                Ok(()) => held.push(packet),
                Err(PushError::Full) => {
                    prop_assert!(!batch.is_empty(), "full although empty");
                    prop_assert_eq!(batch.bytes(), before);
                }
                Err(error) => {
                    prop_assert!(matches!(error, PushError::Wire(_)));
                    prop_assert_eq!(batch.bytes(), before);
                }
            }
        }
        prop_assert_eq!(batch.len(), held.len());
        prop_assert_eq!(batch.segments().len(), held.len());
        let slot = |packet: &Packet<'_>| packet.bth.dest_qp.value() >> 16;
        for (index, (segment, packet)) in batch.segments().zip(&held).enumerate() {
            let id = u16::try_from(index).unwrap() * u16::from(gso);
            prop_assert!(icrc::verify(&flow, id, segment));
            prop_assert_eq!(Packet::parse(segment), Ok(*packet));
            prop_assert_eq!(slot(packet), slot(&held[0]));
        }
        batch.reseal_without_gso();
        for segment in batch.segments() {
            prop_assert!(icrc::verify(&flow, 0, segment));
        }
    }

    #[test]
    fn gid_round_trip(octets: [u8; 16]) {
        prop_assert_eq!(Gid::from_ip(Gid(octets).to_ip()), Gid(octets));
    }

    #[test]
    fn psn_distance(psn: u32, count in 0..0x80_0000u32) {
        let psn = Psn::new(psn);
        prop_assert_eq!(psn.add(count).since(psn), count as i32);
        prop_assert_eq!(psn.since(psn.add(count)), -(count as i32));
    }
}
