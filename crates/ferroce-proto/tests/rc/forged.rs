//! Packets that the peer did not send, one by one: what a forger may not get.

use std::time::Duration;

use ferroce_proto::{CongestionControl, DropReason, NoSharedQueue, SelectiveRepeat, SendOp};
use ferroce_wire::{
    Aeth, BatchLimits, Bth, CreditCode, Flow, IcrcStatus, Msn, NakCode, Operation, Packet, Psn, RcPacket,
    Request, Response, Syndrome, TxBatch,
};

use crate::probe::{ACK, Probe, aeth, local, nak, remote, reth, send_only, write_only};
use crate::world::{QPNS, Setup, flow};

const STALE: Result<(), DropReason> = Err(DropReason::StaleResponse);

fn granted(code: u8, msn: u32) -> Response<'static> {
    let syndrome = Syndrome::Ack { credits: CreditCode::new(code).unwrap() };
    Response::Acknowledge { aeth: Aeth { syndrome, msn: Msn::new(msn) } }
}

fn plain() -> Setup {
    Setup { early_resends: false, ..Setup::default() }
}

/// Credits come with the newest acknowledgement, once more with its PSN, or not at all (IBTA 9.7.7.2.1). Otherwise a sender that does
/// not know the PSN could switch them off with one packet of two.
#[test]
fn an_outdated_acknowledgement_grants_nothing() {
    for (psn, msn) in [(0, 1000), (1, 0x40_0000), (0xc0_0000, 5), (0x80_0003, 0x7f_ffff)] {
        let mut probe = Probe::new(plain());
        for wr_id in 0..3 {
            probe.post(wr_id, SendOp::Send, &[]);
        }
        assert_eq!(probe.out().len(), 3);
        probe.response(2, granted(0, 3)).unwrap();
        assert_eq!(probe.response(psn, granted(31, msn)), STALE);
        assert_eq!(probe.response(psn, granted(20, msn)), STALE);
        for wr_id in 3..6 {
            probe.post(wr_id, SendOp::Send, &[]);
        }
        assert_eq!(probe.out(), ["send_only 3 [0] A"], "one message at a time, behind PSN {psn}");
        // The responder's own word counts as before.
        probe.response(3, granted(1, 4)).unwrap();
        assert_eq!(probe.out(), ["send_only 4 [0] A"]);
    }
}

/// Nor does one that claims messages which were never sent.
#[test]
fn an_acknowledgement_of_messages_that_were_not_sent_grants_nothing() {
    let mut probe = Probe::new(plain());
    for wr_id in 0..3 {
        probe.post(wr_id, SendOp::Send, &[]);
    }
    probe.out();
    probe.response(0, granted(0, 1)).unwrap();
    let _ = probe.response(1, granted(10, 4));
    probe.response(2, granted(0, 3)).unwrap();
    for wr_id in 3..6 {
        probe.post(wr_id, SendOp::Send, &[]);
    }
    assert_eq!(probe.out(), ["send_only 3 [0] A"]);
}

/// A packet of the peer's address with the bit of the extension.
fn extended(probe: &mut Probe, first: u32, psn: u32, op: Operation<'_>) -> Result<(), DropReason> {
    let mut bth = Bth::new(QPNS[0], Psn::new(first).add(psn));
    (bth.extended, bth.ack_req) = (true, true);
    let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
    let end = &mut probe.end;
    end.qp.handle_datagram(probe.now, &flow(1), &packet, &mut NoSharedQueue, &mut end.mem)
}

/// Returns for each packet that the queue pair sends now whether it is a report, and whether it has the bit of the extension.
fn sent(probe: &mut Probe) -> Vec<(bool, bool)> {
    leaving(probe, |packet| (matches!(packet.op, Operation::Sack { .. }), packet.bth.extended))
}

/// Returns `of` for each packet that the queue pair sends now.
fn leaving<T>(probe: &mut Probe, of: impl Fn(&Packet<'_>) -> T) -> Vec<T> {
    let mut buffer = vec![0; 64 << 10];
    let mut batch = TxBatch::new(&mut buffer, BatchLimits { max_segments: 64, gso: false });
    let mut seen = Vec::new();
    while probe.end.qp.poll_transmit(probe.now, &mut probe.end.mem, &mut batch) {
        seen.extend(batch.segments().map(|segment| of(&Packet::parse(segment).unwrap())));
        batch.clear();
    }
    seen
}

/// Only a request that is executed offers selective repeat: its sender knew the PSN.
#[test]
fn a_request_of_a_stranger_offers_nothing() {
    let setup = Setup { selective_repeat: SelectiveRepeat::Offered, ..plain() };
    let request = Operation::Rc(RcPacket::Request(send_only(&[1])));
    for psn in [1, 100, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
        let mut probe = Probe::new(setup);
        for id in 0..3 {
            probe.post_recv(id, &[local(0, 64)]);
        }
        let _ = extended(&mut probe, setup.psn[1], psn, request);
        sent(&mut probe);
        // The peer's own packets: a gap, and its end.
        probe.request(2, send_only(&[3])).unwrap();
        assert!(sent(&mut probe).iter().all(|kind| *kind == (false, false)), "behind PSN {psn}");
        probe.request(0, send_only(&[1])).unwrap();
        if psn != 1 {
            assert_eq!(sent(&mut probe), [(false, false)], "behind PSN {psn}");
        }
    }
    // The peer itself: the answer agrees, and a gap is reported.
    let mut probe = Probe::new(setup);
    for id in 0..3 {
        probe.post_recv(id, &[local(0, 64)]);
    }
    extended(&mut probe, setup.psn[1], 0, request).unwrap();
    assert_eq!(sent(&mut probe), [(false, true)]);
    extended(&mut probe, setup.psn[1], 2, request).unwrap();
    assert_eq!(sent(&mut probe), [(false, true), (true, false)]);
}

/// Only an answer to what is outstanding agrees to selective repeat. Towards a peer that did not agree, a requester that waits for reports
/// would not go back at a NAK.
#[test]
fn an_answer_of_a_stranger_agrees_to_nothing() {
    let setup = Setup { selective_repeat: SelectiveRepeat::Offered, ..plain() };
    let ack = Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth: aeth(ACK) }));
    let sack = Operation::Sack { aeth: aeth(ACK), held: 6 };
    let resent = |forged: &[(u32, Operation<'_>)]| {
        let mut probe = Probe::new(setup);
        for wr_id in 0..4 {
            probe.post(wr_id, SendOp::Send, &[]);
        }
        assert_eq!(probe.out().len(), 4);
        for (psn, op) in forged {
            let _ = extended(&mut probe, setup.psn[0], *psn, *op);
        }
        probe.ack(1, nak(NakCode::PsnSequenceError)).unwrap();
        let resent = probe.out().len();
        probe.wait(Duration::from_millis(1));
        resent
    };
    for psn in [4, 100, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
        assert_eq!(resent(&[(psn, ack)]), 3, "PSN {psn}");
        assert_eq!(resent(&[(psn, sack)]), 3, "PSN {psn}");
    }
    assert_eq!(resent(&[(0, ack)]), 0, "the peer agreed: its report comes");
}

/// A mark of the network counts only on a packet whose PSN is one that the peer may send now. Otherwise a sender that does not know it could
/// have this end ask for less, and the peer send less.
#[test]
fn marks_on_packets_of_a_stranger_change_nothing() {
    let setup = plain();
    let payload = &[1; 1024];
    // The requests for READs that leave until the first one is answered, and the CNPs.
    let outcome = |marked: &[(u32, RcPacket<'_>)]| {
        let mut qp = setup.queue_pair(0);
        qp.set_congestion_control(CongestionControl::Full);
        let mut probe = Probe::with_queue_pair(setup, qp);
        for wr_id in 0..8 {
            probe.post(wr_id, SendOp::Read { remote: remote(0) }, &[local(0, 16 << 10)]);
        }
        let is_read = |packet: &Packet<'_>| {
            matches!(packet.op, Operation::Rc(RcPacket::Request(Request::ReadRequest { .. })))
        };
        let mut said = leaving(&mut probe, is_read);
        let from = Flow { traffic_class: Flow::CONGESTION_EXPERIENCED, ..flow(1) };
        for &(psn, op) in marked {
            let packet = Packet {
                bth: Bth::new(QPNS[0], Psn::new(psn)),
                op: Operation::Rc(op),
                icrc: IcrcStatus::Checked,
            };
            let end = &mut probe.end;
            let _ = end.qp.handle_datagram(probe.now, &from, &packet, &mut NoSharedQueue, &mut end.mem);
            said.extend(leaving(&mut probe, is_read));
            probe.now += Duration::from_millis(1);
        }
        for psn in 0..16 {
            let response = match psn {
                0 => Response::ReadFirst { aeth: aeth(ACK), payload },
                15 => Response::ReadLast { aeth: aeth(ACK), payload },
                _ => Response::ReadMiddle { payload },
            };
            let _ = probe.response(psn, response);
        }
        said.extend(leaving(&mut probe, is_read));
        assert_eq!(probe.sends().len(), 1);
        (said.iter().filter(|is_read| **is_read).count(), probe.end.qp.counters().np_cnp_sent)
    };
    let first = RcPacket::Response(Response::ReadFirst { aeth: aeth(ACK), payload });
    let middle = RcPacket::Response(Response::ReadMiddle { payload });
    let write = RcPacket::Request(write_only(reth(0, 4), &[1; 4]));
    let [own, peers] = setup.psn.map(Psn::new);
    let plain = outcome(&[]);
    assert_eq!(plain.1, 0);
    let each = |first: Psn, op| (0..20).map(|n| (first.add(n).value(), op)).collect::<Vec<_>>();
    for ahead in [100, 1 << 22, 0x7f_0000, 0x80_0000, 0xff_ff00] {
        assert_eq!(outcome(&each(own.add(48 + ahead), middle)), plain, "responses {ahead} further on");
    }
    for ahead in [1 << 12, 1 << 22, 0x7f_0000, 0x80_0000, 0xff_ff00] {
        assert_eq!(outcome(&each(peers.add(ahead), write)), plain, "requests {ahead} further on");
    }
    // Those of the peer.
    assert_eq!(outcome(&[(peers.value(), write)]), (plain.0, 1));
    assert_eq!(outcome(&[(peers.add(3).value(), write)]), (plain.0, 1), "behind a gap");
    let (requests, cnps) = outcome(&[(own.value(), first)]);
    assert!(requests < plain.0 && cnps == 1, "{requests} of {}", plain.0);
}
