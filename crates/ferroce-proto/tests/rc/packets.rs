//! Crafted packets: what a responder accepts, refuses and ignores. Lengths, pads and the ICRC are tested in `ferroce-wire`.

use ferroce_proto::{AsyncEventKind, DropReason, NoSharedQueue, QpAccess, QpState};
use ferroce_wire::{
    AtomicEth, Bth, Feth, Flow, IcrcStatus, Operation, Packet, Pkey, Psn, RcPacket, Request, Reth, Rkey,
    SendTail,
};

use crate::probe::{BASE, DATA, KEY, Probe, local, reth, send_only, unknown_qpn, write_only};
use crate::world::{ADDRESSES, QPNS, Setup, flow};

/// The peer's view of a packet that must end the queue pair with NAK 0x61.
fn refused_as_invalid(request: Request<'_>) {
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[local(0, 4096)]);
    assert_eq!(probe.request(0, request), Err(DropReason::Refused), "{request:?}");
    assert_eq!(probe.out(), ["nak 0x61 0 msn 0"], "{request:?}");
    assert_eq!(probe.end.qp.state(), QpState::Error);
    assert!(probe.bytes().iter().all(|byte| *byte == 0), "nothing was written");
}

#[test]
fn every_opcode_of_other_services_is_dropped_without_effect() {
    for code in 0..=255 {
        let mut datagram = [0u8; 12 + 40 + 4];
        datagram[0] = code;
        datagram[2..4].copy_from_slice(&[0xff, 0xff]);
        datagram[5..8].copy_from_slice(&QPNS[0].to_be_bytes());
        for len in (16..=datagram.len()).step_by(4) {
            let Ok(mut packet) = Packet::parse(&datagram[..len]) else { continue };
            packet.icrc = IcrcStatus::Checked;
            if let Operation::Rc(_) = packet.op {
                continue;
            }
            let mut probe = Probe::new(Setup::default());
            let before = probe.end.qp.query();
            let result = probe.end.qp.handle_datagram(
                probe.now,
                &flow(1),
                &packet,
                &mut NoSharedQueue,
                &mut probe.end.mem,
            );
            let want = if packet.op == Operation::Cnp { Ok(()) } else { Err(DropReason::WrongService) };
            assert_eq!(result, want, "{code:#x}");
            assert_eq!(probe.out(), [""; 0]);
            assert_eq!(probe.end.qp.query(), before);
        }
    }
}

#[test]
fn packets_that_are_not_for_us_have_no_effect() {
    let good = Bth { ack_req: true, ..Bth::new(QPNS[0], Psn::new(Setup::default().psn[1])) };
    let packet =
        |bth| Packet { bth, op: Operation::Rc(RcPacket::Request(send_only(&[]))), icrc: IcrcStatus::Checked };
    let cases = [
        (packet(Bth { dest_qp: unknown_qpn(), ..good }), ADDRESSES[1], DropReason::WrongQpn),
        (packet(Bth { pkey: Pkey::new(0x8001), ..good }), ADDRESSES[1], DropReason::WrongPkey),
        (packet(good), ADDRESSES[0], DropReason::WrongSource),
        (packet(good), "::ffff:192.0.2.2".parse().unwrap(), DropReason::WrongSource),
        (Packet { icrc: IcrcStatus::Pending, ..packet(good) }, ADDRESSES[1], DropReason::IcrcUnchecked),
    ];
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[]);
    for (packet, source, want) in cases {
        let from = Flow { source, ..flow(1) };
        let result =
            probe.end.qp.handle_datagram(probe.now, &from, &packet, &mut NoSharedQueue, &mut probe.end.mem);
        assert_eq!(result, Err(want));
        assert_eq!(probe.out(), [""; 0]);
    }
    let v1 = ferroce_wire::LinkLayer { version: ferroce_wire::RoceVersion::V1, ..Default::default() };
    let from = Flow { link: v1, ..flow(1) };
    let result =
        probe.end.qp.handle_datagram(probe.now, &from, &packet(good), &mut NoSharedQueue, &mut probe.end.mem);
    assert_eq!(result, Err(DropReason::WrongSource), "the peer's address, but RoCE v1");
    let to_group = Flow { destination: "::ffff:239.0.0.1".parse().unwrap(), ..flow(1) };
    let group = packet(Bth { dest_qp: ferroce_wire::Qpn::MULTICAST, ..good });
    let result =
        probe.end.qp.handle_datagram(probe.now, &to_group, &group, &mut NoSharedQueue, &mut probe.end.mem);
    assert_eq!(result, Err(DropReason::WrongQpn), "a connection is in no group");
    assert_eq!(probe.end.qp.counters().dropped_pkts, 7);
    let limited = Bth { pkey: Pkey::new(0x7fff), ..good };
    let result = probe.end.qp.handle_datagram(
        probe.now,
        &flow(1),
        &packet(limited),
        &mut NoSharedQueue,
        &mut probe.end.mem,
    );
    assert_eq!(result, Ok(()), "a limited member of our partition");
}

#[test]
fn an_atomic_write_has_eight_octets() {
    for len in [0, 4, 7, 9, 12, 16, 1024] {
        refused_as_invalid(Request::AtomicWrite { reth: reth(0, 8), payload: &DATA[..len] });
        refused_as_invalid(Request::AtomicWrite { reth: reth(0, len as u32), payload: &DATA[..8] });
        refused_as_invalid(Request::AtomicWrite { reth: reth(0, len as u32), payload: &DATA[..len] });
    }
    for offset in 1..8 {
        refused_as_invalid(Request::AtomicWrite { reth: reth(offset, 8), payload: &DATA[..8] });
    }
}

/// Kinds of flush that there are not, and those that the queue pair does not admit.
#[test]
fn a_flush_is_of_a_kind_that_is_admitted() {
    for (placement, selectivity) in [(0, 0), (4, 0), (5, 0), (8, 1), (1, 2), (1, 3), (3, 2)] {
        refused_as_invalid(Request::Flush { feth: Feth { placement, selectivity }, reth: reth(0, 8) });
    }
    let all = QpAccess::FLUSH_GLOBAL | QpAccess::FLUSH_PERSISTENT;
    for placement in 1..4 {
        let needed = QpAccess::from_bits_retain(u32::from(placement) << 8);
        for access in [QpAccess::empty(), QpAccess::FLUSH_GLOBAL, QpAccess::FLUSH_PERSISTENT, all] {
            let mut probe = Probe::new(Setup { access, ..Setup::default() });
            probe.end.mem.region(KEY).persistent = true;
            let request = Request::Flush { feth: Feth { placement, selectivity: 0 }, reth: reth(0, 8) };
            let done = probe.request(0, request);
            let answer = probe.out();
            if access.contains(needed) {
                assert_eq!((done, &*answer[0]), (Ok(()), "read_only 0 [0] msn 1"));
            } else {
                assert_eq!((done, &*answer[0]), (Err(DropReason::Refused), "nak 0x61 0 msn 0"));
            }
        }
    }
}

#[test]
fn ranges_that_wrap_or_exceed_are_access_errors() {
    let cases = [
        (u64::MAX, 2),
        (u64::MAX - 1, 2),
        (u64::MAX, 1),
        (BASE - 1, 1),
        (BASE, (64 << 10) + 1),
        (BASE + 1, 64 << 10),
        (BASE + (64 << 10), 1),
        (0, 0x8000_0000),
    ];
    for (va, dma_len) in cases {
        let reth = Reth { va, rkey: Rkey::new(KEY), dma_len };
        let write = if dma_len <= 1024 {
            write_only(reth, &DATA[..dma_len as usize])
        } else {
            Request::WriteFirst { reth, payload: &DATA[..1024] }
        };
        for request in [write, Request::ReadRequest { reth }] {
            let mut probe = Probe::new(Setup::default());
            assert_eq!(probe.request(0, request), Err(DropReason::Refused), "{va:#x}+{dma_len}");
            assert_eq!(probe.out(), ["nak 0x62 0 msn 0"]);
            assert_eq!(probe.asyncs(), [AsyncEventKind::QpAccessErr]);
        }
    }
}

#[test]
fn lengths_are_checked_against_the_path_mtu() {
    let none = SendTail::None;
    for payload in [&DATA[..0], &DATA[..1023], &DATA[..1025]] {
        refused_as_invalid(Request::SendFirst { payload });
        refused_as_invalid(Request::WriteFirst { reth: reth(0, 4000), payload });
    }
    refused_as_invalid(send_only(&DATA[..1025]));
    refused_as_invalid(write_only(reth(0, 1025), &DATA[..1025]));
    refused_as_invalid(Request::ReadRequest { reth: reth(0, (1 << 31) + 1) });
    refused_as_invalid(Request::WriteFirst { reth: reth(0, (1 << 31) + 1), payload: &DATA[..1024] });
    // Behind a First.
    for payload in [&DATA[..0], &DATA[..1025]] {
        for (first, last) in [
            (Request::SendFirst { payload: &DATA[..1024] }, Request::SendLast { payload, tail: none }),
            (
                Request::WriteFirst { reth: reth(0, 2048), payload: &DATA[..1024] },
                Request::WriteLast { payload, imm: None },
            ),
            (Request::SendFirst { payload: &DATA[..1024] }, Request::SendMiddle { payload }),
        ] {
            let mut probe = Probe::new(Setup::default());
            probe.post_recv(1, &[local(0, 4096)]);
            probe.request(0, first).unwrap();
            assert_eq!(probe.request(1, last), Err(DropReason::Refused));
            assert_eq!(probe.out(), ["ack 0 msn 0", "nak 0x61 1 msn 0"]);
        }
    }
}

#[test]
fn writes_never_exceed_what_they_declared() {
    let first = |dma_len| Request::WriteFirst { reth: reth(0, dma_len), payload: &DATA[..1024] };
    // Declared, then the packets behind the First.
    let cases: [(u32, &[Request<'_>]); 5] = [
        (1500, &[Request::WriteMiddle { payload: &DATA[..1024] }]),
        (1500, &[Request::WriteLast { payload: &DATA[..477], imm: None }]),
        (1500, &[Request::WriteLast { payload: &DATA[..475], imm: None }]),
        (3000, &[Request::WriteLast { payload: &DATA[..952], imm: None }]),
        (2048, &[Request::WriteMiddle { payload: &DATA[..1024] }]),
    ];
    for (declared, packets) in cases {
        let mut probe = Probe::new(Setup::default());
        probe.quiet_request(0, first(declared)).unwrap();
        assert_eq!(probe.request(1, packets[0]), Err(DropReason::Refused), "{declared}");
        assert_eq!(probe.out(), ["nak 0x61 1 msn 0"]);
        assert!(probe.bytes()[1024..].iter().all(|byte| *byte == 0), "not behind what was declared");
    }
    for declared in [0, 1023, 1024] {
        refused_as_invalid(first(declared));
    }
    refused_as_invalid(write_only(reth(0, 10), &DATA[..9]));
    refused_as_invalid(write_only(reth(0, 10), &DATA[..11]));
}

/// The replay of a READ is the rest of the original, whole packets of it, or nothing.
#[test]
fn a_replayed_read_never_exceeds_the_original() {
    let read = |offset, len| Request::ReadRequest { reth: reth(offset, len) };
    let mut probe = Probe::new(Setup::default());
    probe.request(0, read(0, 3000)).unwrap();
    assert_eq!(probe.out().len(), 3);
    for (psn, request) in [
        (0, read(0, 3001)),
        (0, read(0, 2999)),
        (0, read(0, 1025)),
        (1, read(1024, 0)),
        (2, read(2048, 1024)),
        (1, read(1024, 1977)),
        (1, read(1023, 1977)),
        (1, read(1000, 1976)),
        (0, read(8, 3000)),
        (1, read(0, 3000)),
        (2, read(1024, 1976)),
        (0, Request::ReadRequest { reth: Reth { rkey: Rkey::new(KEY + 1), ..reth(0, 3000) } }),
    ] {
        assert_eq!(probe.request(psn, request), Err(DropReason::DuplicateNotFound), "{psn} {request:?}");
        assert_eq!(probe.out(), [""; 0]);
    }
    assert_eq!(probe.request(1, read(1024, 1976)), Err(DropReason::DuplicateRequest));
    assert_eq!(probe.out(), ["read_first 1 [1024] msn 1", "read_last 2 [952] msn 1"]);
}

#[test]
fn zero_length_needs_no_key() {
    let nonsense = Reth { va: u64::MAX, rkey: Rkey::new(0xdead), dma_len: 0 };
    let mut probe = Probe::new(Setup::default());
    probe.request(0, write_only(nonsense, &[])).unwrap();
    probe.request(1, Request::ReadRequest { reth: nonsense }).unwrap();
    assert_eq!(probe.out(), ["ack 0 msn 1", "read_only 1 [0] msn 2"]);
    assert_eq!(probe.request(1, Request::ReadRequest { reth: nonsense }), Err(DropReason::DuplicateRequest));
    assert_eq!(probe.out(), ["read_only 1 [0] msn 2"]);
    // An atomic has a length.
    let atomic = AtomicEth { va: BASE, rkey: Rkey::new(0xdead), swap_or_add: 1, compare: 0 };
    assert_eq!(probe.request(2, Request::FetchAdd { atomic }), Err(DropReason::Refused));
    assert_eq!(probe.out(), ["nak 0x62 2 msn 2"]);
}

/// A flush of nothing still names memory.
#[test]
fn a_flush_of_nothing_needs_a_key() {
    for selectivity in [Feth::RANGE, Feth::WHOLE_REGION] {
        let feth = Feth { placement: Feth::GLOBAL_VISIBILITY, selectivity };
        let mut probe = Probe::new(Setup::default());
        probe.request(0, Request::Flush { feth, reth: reth(0, 0) }).unwrap();
        let nonsense = Reth { va: BASE, rkey: Rkey::new(0xdead), dma_len: 0 };
        assert_eq!(probe.request(1, Request::Flush { feth, reth: nonsense }), Err(DropReason::Refused));
        assert_eq!(probe.out(), ["read_only 0 [0] msn 1", "nak 0x62 1 msn 1"]);
    }
}
