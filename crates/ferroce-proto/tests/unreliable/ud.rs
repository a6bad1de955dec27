//! The receiver of UD.

use std::net::IpAddr;

use ferroce_proto::{AsyncEventKind, DropReason, NetworkHeader, QpState, WcOpcode, WcStatus};
use ferroce_wire::{Bth, Deth, Flow, Imm, Operation, Psn, Qkey, Qpn, UdPacket};

use crate::probe::{DATA, Probe, UD, local};
use crate::world::{QKEY, QPNS, flow};

const IMM: Imm = Imm([9, 8, 7, 6]);

/// Forty octets about the way, then the payload (IBTA 11.4.1.2).
#[test]
fn datagrams_arrive_behind_their_header() {
    let v6 = Flow {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
        ..flow(1)
    };
    for (from, header) in [(flow(1), NetworkHeader::Ipv4), (v6, NetworkHeader::Ipv6)] {
        let from = Flow { traffic_class: 0xb8, hop_limit: 63, ..from };
        let mut probe = Probe::in_state(UD, QpState::Rtr);
        // The header may be cut anywhere.
        probe.post_recv(1, &[local(0, 7), local(1000, 60)]);
        let deth = Deth { qkey: QKEY, src_qp: Qpn::new(0x77) };
        let packet = UdPacket { deth, payload: &DATA[..21], imm: Some(IMM) };
        let mut bth = Bth::new(QPNS[0], Psn::new(3));
        bth.solicited = true;
        assert_eq!(probe.give(&from, bth, Operation::Ud(packet)), Ok(()));
        probe.end.events();
        let got = probe.end.recvs[0];
        assert_eq!((got.wr_id, got.status, got.opcode), (1, WcStatus::Success, WcOpcode::Recv));
        assert_eq!((got.byte_len, got.imm, got.src_qp), (61, Some(IMM), Qpn::new(0x77)));
        assert!(got.grh && got.solicited && got.header == Some(header));
        let mut area = probe.bytes()[..7].to_vec();
        area.extend(&probe.bytes()[1000..1033]);
        // BTH, DETH, ImmDt, payload, pad, ICRC.
        let area: [u8; 40] = area.try_into().unwrap();
        assert_eq!(area, from.grh_area(12 + 8 + 4 + 21 + 3 + 4));
        assert_eq!(Flow::from_grh_area(&area), Some(Flow { source_port: 0, ..from }));
        assert_eq!(probe.bytes()[1033..1054], DATA[..21]);
        assert_eq!(probe.asyncs(), [AsyncEventKind::CommEst]);
    }
}

/// PSNs count up at the sender and mean nothing to the receiver; anybody may send.
#[test]
fn neither_psn_nor_sender_are_checked() {
    let mut probe = Probe::new(UD);
    for (id, psn) in [5, 5, 0, 0xff_ffff].into_iter().enumerate() {
        probe.post_recv(id as u64, &[local(0, 40)]);
        let from = Flow { source: IpAddr::from([203, 0, 113, id as u8]), ..flow(1) };
        let deth = Deth { qkey: QKEY, src_qp: Qpn::new(id as u32) };
        let packet = UdPacket { deth, payload: &[], imm: None };
        assert_eq!(probe.give(&from, Bth::new(QPNS[0], Psn::new(psn)), Operation::Ud(packet)), Ok(()));
    }
    assert_eq!(probe.recvs().len(), 4);
}

/// Nothing that a sender does ends the queue pair.
#[test]
fn what_is_dropped_takes_no_receive() {
    let mut probe = Probe::new(UD);
    assert_eq!(probe.datagram(QKEY, &[], None), Err(DropReason::NoReceiveWqe));
    probe.post_recv(1, &[local(0, 45)]);
    assert_eq!(probe.datagram(Qkey::new(1), &[], None), Err(DropReason::WrongQkey));
    assert_eq!(probe.recvs(), [], "a wrong key takes nothing");
    // Class D of IBTA 9.9.6, as rxe.
    assert_eq!(probe.datagram(QKEY, &DATA[..6], None), Err(DropReason::TooLong));
    assert_eq!(probe.recvs(), []);
    assert_eq!(probe.bytes()[..46], [0; 46]);
    assert_eq!(probe.end.qp.state(), QpState::Rts);
    assert_eq!(probe.datagram(QKEY, &DATA[..5], None), Ok(()), "it serves the next one that fits");
    assert_eq!(probe.recvs(), [(1, WcStatus::Success)]);
    probe.post_recv(2, &[local(0, 39)]);
    assert_eq!(probe.datagram(QKEY, &[], None), Err(DropReason::TooLong), "no room for the header");
    assert_eq!(probe.recvs(), []);
    assert_eq!(probe.asyncs(), []);
}

/// The key can change at any time; what comes from then on needs the new one.
#[test]
fn the_key_is_the_present_one() {
    let mut probe = Probe::new(UD);
    probe.post_recv(1, &[local(0, 40)]);
    let attr = ferroce_proto::QpAttr { qkey: Qkey::new(2), ..UD.attr(0) };
    let mask = ferroce_proto::QpAttrMask::QKEY;
    probe.end.qp.modify(&attr, mask).unwrap();
    assert_eq!(probe.datagram(QKEY, &[], None), Err(DropReason::WrongQkey));
    assert_eq!(probe.datagram(Qkey::new(2), &[], None), Ok(()));
}

#[test]
fn a_receive_buffer_that_cannot_be_written() {
    let mut probe = Probe::new(UD);
    probe.post_recv(1, &[ferroce_proto::Sge { lkey: ferroce_wire::Lkey::new(0xbad), ..local(0, 100) }]);
    assert_eq!(probe.datagram(QKEY, &[], None), Err(DropReason::LocalFault));
    assert_eq!(probe.end.qp.state(), QpState::Error);
    assert_eq!(probe.recvs(), [(1, WcStatus::LocProtErr)]);
}
