//! Packets of every opcode, for UC and UD.

use ferroce_proto::{DropReason, NoSharedQueue};
use ferroce_wire::{Bth, IcrcStatus, Instant, Operation, Packet, Pkey, Psn};

use crate::probe::{Probe, UC, UD, local, send_only};
use crate::world::{ADDRESSES, QKEY, QPNS, flow};

/// Packets of every opcode, length and pad cause no answer, no completion and no change; packets of another service have no effect at all.
#[test]
fn every_opcode_is_taken_or_dropped() {
    for setup in [UC, UD] {
        for code in 0..=255_u8 {
            for pad in 0..4_u8 {
                for len in (0..=100).step_by(4) {
                    let mut datagram = vec![0_u8; len];
                    let head = [code, pad << 4, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
                    for (to, from) in datagram.iter_mut().zip(head) {
                        *to = from;
                    }
                    if let Some(to) = datagram.get_mut(5..8) {
                        to.copy_from_slice(&QPNS[0].to_be_bytes());
                    }
                    let Ok(mut packet) = Packet::parse(&datagram) else { continue };
                    packet.icrc = IcrcStatus::Checked;
                    let mut probe = Probe::new(setup);
                    probe.post_recv(1, &[local(0, 200)]);
                    let result = probe.end.qp.handle_datagram(
                        Instant::ZERO,
                        &flow(1),
                        &packet,
                        &mut NoSharedQueue,
                        &mut probe.end.mem,
                    );
                    let ours = match packet.op {
                        Operation::Uc(_) => setup.service == ferroce_proto::Service::Uc,
                        Operation::Ud(_) => setup.service == ferroce_proto::Service::Ud,
                        Operation::Cnp => true,
                        _ => false,
                    };
                    assert_eq!(result == Err(DropReason::WrongService), !ours, "{code:#x}: {result:?}");
                    assert_eq!(probe.out(), [""; 0], "{code:#x}");
                    assert_eq!(probe.end.qp.state(), ferroce_proto::QpState::Rts);
                    assert_eq!(probe.end.qp.counters().dropped_pkts, u64::from(result.is_err()));
                    if !ours {
                        assert_eq!(probe.recvs(), []);
                    }
                }
            }
        }
    }
}

/// Nothing is judged or counted before the ICRC is known to hold.
#[test]
fn a_packet_without_verified_icrc_is_no_key_violation() {
    let mut probe = Probe::new(UD);
    let deth = ferroce_wire::Deth { qkey: ferroce_wire::Qkey::new(1), src_qp: QPNS[1] };
    let op = Operation::Ud(ferroce_wire::UdPacket { deth, payload: &[], imm: None });
    let bth = Bth { pkey: Pkey::new(1), ..Bth::new(QPNS[0], Psn::new(0)) };
    let mut packet = Packet { bth, op, icrc: IcrcStatus::Pending };
    let mut give = |packet: &Packet<'_>| {
        probe.end.qp.handle_datagram(Instant::ZERO, &flow(1), packet, &mut NoSharedQueue, &mut probe.end.mem)
    };
    assert_eq!(give(&packet), Err(DropReason::IcrcUnchecked));
    packet.icrc = IcrcStatus::Checked;
    assert_eq!(give(&packet), Err(DropReason::WrongPkey));
    packet.bth.pkey = Pkey::DEFAULT;
    assert_eq!(give(&packet), Err(DropReason::WrongQkey));
}

/// A connection has one peer; A is ignored on both services.
#[test]
fn uc_takes_packets_of_its_peer_alone() {
    let mut probe = Probe::new(UC);
    probe.post_recv(1, &[local(0, 10)]);
    let mut bth = Bth::new(QPNS[0], Psn::new(UC.psn[1]));
    bth.ack_req = true;
    let foreign = ferroce_wire::Flow { source: ADDRESSES[0], ..flow(1) };
    let op = Operation::Uc(send_only(&[1]));
    assert_eq!(probe.give(&foreign, bth, op), Err(DropReason::WrongSource));
    assert_eq!(probe.give(&flow(1), bth, op), Ok(()));
    assert_eq!(probe.out(), [""; 0]);
    let mut probe = Probe::new(UD);
    probe.post_recv(1, &[local(0, 100)]);
    let deth = ferroce_wire::Deth { qkey: QKEY, src_qp: QPNS[1] };
    let op = Operation::Ud(ferroce_wire::UdPacket { deth, payload: &[1], imm: None });
    assert_eq!(probe.give(&foreign, bth, op), Ok(()));
    assert_eq!(probe.out(), [""; 0]);
}
