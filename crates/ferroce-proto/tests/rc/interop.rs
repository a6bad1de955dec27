//! Freedoms of other implementations that a queue pair must accept, and timers that both ends must agree on.

use std::time::Duration;

use ferroce_proto::{NoSharedQueue, SendOp, WcOpcode, WcStatus};
use ferroce_wire::{Bth, Flow, IcrcStatus, Imm, Operation, Packet, Psn, RcPacket, Request, RnrTimer};

use crate::probe::{ACK, DATA, Probe, local, reth, rnr, send_only, write_only};
use crate::world::{QPNS, Setup, flow};

/// rxe sends M = 0, cards 1: both are meant for us. Ours is 0.
#[test]
fn the_m_bit_means_nothing() {
    let mut probe = Probe::new(Setup::default());
    for (psn, mig_req) in [(0, false), (1, true), (2, false)] {
        let bth = Bth { ack_req: true, mig_req, ..Bth::new(QPNS[0], Psn::new(probe.setup.psn[1]).add(psn)) };
        probe.give(bth, RcPacket::Request(write_only(reth(0, 4), &DATA[..4]))).unwrap();
    }
    assert_eq!(probe.out(), ["ack 2 msn 3"]);
}

/// Old rxe sends everything from one source port, newer ones and cards from others, and traffic classes change on the way.
#[test]
fn any_source_port_and_traffic_class_is_the_peers() {
    let mut probe = Probe::new(Setup::default());
    for (psn, source_port) in [0u16, 1, 4791, 0xc000, 0xd872, 0xffff].into_iter().enumerate() {
        let from = Flow { source_port, traffic_class: source_port as u8, hop_limit: psn as u8, ..flow(1) };
        let bth = Bth::new(QPNS[0], Psn::new(probe.setup.psn[1]).add(psn as u32));
        let op = Operation::Rc(RcPacket::Request(write_only(reth(0, 4), &DATA[..4])));
        let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
        let result =
            probe.end.qp.handle_datagram(probe.now, &from, &packet, &mut NoSharedQueue, &mut probe.end.mem);
        assert_eq!(result, Ok(()), "{source_port}");
    }
}

/// Code 0, which the CM gives programs, is the longest delay and not none.
#[test]
fn rnr_timer_0_is_655_milliseconds() {
    assert_eq!(RnrTimer::new(0).unwrap().delay(), Duration::from_micros(655_360));
    let mut probe = Probe::new(Setup { min_rnr_timer: 0, ..Setup::default() });
    assert!(probe.request(0, send_only(&[])).is_err());
    assert_eq!(probe.out(), ["rnr 0 timer 0 msn 0"]);
    probe.post(1, SendOp::Send, &[local(0, 4)]);
    assert_eq!(probe.out().len(), 1);
    probe.ack(0, rnr(0)).unwrap();
    assert_eq!(probe.wait(Duration::from_micros(655_359)), []);
    assert_eq!(probe.wait(Duration::from_micros(1)).len(), 1);
}

/// A peer that is never ready and asks to be back in 10 µs: nothing leaves before that however many NAKs come, and when it
/// is ready everything arrives.
#[test]
fn a_storm_of_rnr_naks_is_answered_once_a_delay() {
    let mut probe = Probe::new(Setup::default());
    for wr_id in 0..64 {
        probe.post(wr_id, SendOp::Send, &[local(0, 4)]);
    }
    let mut sent = probe.out().len();
    let first = sent;
    assert!(first <= 64);
    for _ in 0..1000 {
        probe.ack(0, rnr(1)).unwrap();
        // The NAKs of the others that came too early.
        let _ = probe.ack(0, rnr(1));
        let _ = probe.ack(0, rnr(1));
        assert_eq!(probe.out(), [""; 0], "not before the delay");
        sent += probe.wait(Duration::from_micros(10)).len();
    }
    assert!(sent <= first + 1000 * 64, "each goes out once a delay at most: {sent}");
    for psn in 0..64 {
        probe.ack(psn, ACK).unwrap();
    }
    assert_eq!(probe.sends().len(), 64);
}

/// The completion gives the octets written, not the size of the receive that the immediate consumed.
#[test]
fn the_length_of_a_write_with_immediate_is_the_writes() {
    let mut probe = Probe::new(Setup::default());
    probe.post_recv(1, &[local(0, 4096)]);
    probe.post_recv(2, &[]);
    let imm = Some(Imm([1, 2, 3, 4]));
    probe.request(0, Request::WriteOnly { reth: reth(0, 100), payload: &DATA[..100], imm }).unwrap();
    probe.request(1, Request::WriteFirst { reth: reth(0, 1030), payload: &DATA[..1024] }).unwrap();
    probe.request(2, Request::WriteLast { payload: &DATA[..6], imm }).unwrap();
    probe.out();
    let got: Vec<_> = probe.end.recvs.iter().map(|recv| (recv.status, recv.opcode, recv.byte_len)).collect();
    let want = |len| (WcStatus::Success, WcOpcode::RecvRdmaWithImm, len);
    assert_eq!(got, [want(100), want(1030)]);
}
