//! Each operation, between two ends and against octets of the kernel's siw.

use ferroce_proto::iwarp::{Rtr, StreamConfig};
use ferroce_proto::{QpState, SendOp, StreamState, WcOpcode, WcStatus};
use ferroce_wire::{Imm, Rkey};

use crate::world::{CAPS, CONFIG, End, World, remote};

/// The kinds of streams that two ends may agree on.
fn configs() -> Vec<(StreamConfig, u16)> {
    let mut all = Vec::new();
    for crc in [false, true] {
        for (send_markers, receive_markers) in [(false, false), (true, false), (false, true), (true, true)] {
            for (large_fpdus, segment) in [(false, 1448), (false, 536), (true, 1448)] {
                all.push((
                    StreamConfig { crc, send_markers, receive_markers, large_fpdus, ..CONFIG },
                    segment,
                ));
            }
        }
    }
    all
}

#[test]
fn every_operation_on_every_kind_of_stream() {
    for (config, segment) in configs() {
        let mut world = World::new(&config, segment, u64::from(segment));
        let [a, b] = &mut world.ends;
        b.post_recv(100, 0, 4096);
        b.post_recv(101, 8192, 70_000);
        b.post_recv(102, 0, 16);
        a.post(1, SendOp::Send, 0, 33);
        a.post(2, SendOp::Write { remote: remote(100_000) }, 1000, 100_001);
        a.post(3, SendOp::Send, 500, 66_001);
        a.post(4, SendOp::Read { remote: remote(220_000) }, 200_000, 20_003);
        a.post(5, SendOp::FetchAdd { remote: remote(248_000), add: 5 }, 240_000, 8);
        a.post(6, SendOp::WriteImm { remote: remote(249_000), imm: Imm([1, 2, 3, 4]) }, 9, 777);
        let before = u64::from_ne_bytes(b.at(248_000, 8).try_into().unwrap());
        let wanted = b.at(220_000, 20_003).to_vec();
        world.run();
        let [a, b] = &world.ends;
        let ids: Vec<_> = a.completions.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(ids, (1..=6).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>(), "{config:?}");
        let received: Vec<_> = b.completions.iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.imm)).collect();
        assert_eq!(
            received,
            [
                (100, WcOpcode::Recv, 33, None),
                (101, WcOpcode::Recv, 66_001, None),
                (102, WcOpcode::RecvRdmaWithImm, 777, Some(Imm([1, 2, 3, 4]))),
            ]
        );
        assert_eq!(b.at(0, 33), a.at(0, 33));
        assert_eq!(b.at(100_000, 100_001), a.at(1000, 100_001), "{config:?}");
        assert_eq!(b.at(8192, 66_001), a.at(500, 66_001));
        assert_eq!(a.at(200_000, 20_003), wanted);
        assert_eq!(a.at(240_000, 8), before.to_ne_bytes());
        assert_eq!(b.at(248_000, 8), before.wrapping_add(5).to_ne_bytes());
        assert_eq!(b.at(249_000, 777), a.at(9, 777));
        assert!(world.ends.iter().all(|end| end.qp.state() == QpState::Rts && end.events.is_empty()));
    }
}

#[test]
fn messages_without_payload() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let [a, b] = &mut world.ends;
    b.post_recv(100, 0, 8);
    // Neither key nor address count (RFC 5040 section 5.1).
    let nowhere = ferroce_proto::Remote { rkey: Rkey::new(0xdead), addr: 1 };
    a.post(1, SendOp::Write { remote: nowhere }, 0, 0);
    a.post(2, SendOp::Read { remote: nowhere }, 0, 0);
    a.post(3, SendOp::Send, 0, 0);
    world.run();
    let done = |end: &End| end.completions.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>();
    assert_eq!(done(&world.ends[0]), [1, 2, 3].map(|id| (id, WcStatus::Success)));
    assert_eq!(done(&world.ends[1]), [(100, WcStatus::Success)]);
}

#[test]
fn sends_complete_in_the_order_of_the_queue() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let [a, b] = &mut world.ends;
    b.post_recv(100, 0, 8);
    a.post(1, SendOp::Read { remote: remote(0) }, 0, 64);
    a.post(2, SendOp::Send, 0, 8);
    a.send();
    assert!(a.completions.is_empty(), "the send behind the read left, and waits for it");
    world.run();
    assert_eq!(world.ends[0].completions.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn reads_wait_for_their_turn() {
    let config = StreamConfig { ord: 2, ..CONFIG };
    let mut world = World::new(&config, 1448, 5);
    let a = &mut world.ends[0];
    for id in 0..9 {
        a.post(id, SendOp::Read { remote: remote(id * 100) }, id * 100, 100);
    }
    a.send();
    // 2 of 9 requests left: 54 octets each, with pad and CRC.
    assert_eq!(a.sent.len(), 2 * 52);
    world.run();
    assert_eq!(world.ends[0].completions.len(), 9);
}

#[test]
fn every_kind_of_ready_to_receive_frame() {
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let config = StreamConfig { rtr: Some(rtr), ..CONFIG };
        let of_responder = StreamConfig { initiator: false, ..config };
        let mut world = World::new(&config, 1448, 5);
        let mut responder = End::new(CAPS);
        responder.qp.begin_stream(&of_responder, 1448).unwrap();
        world.ends[1] = responder;
        let [a, b] = &mut world.ends;
        b.post(1, SendOp::Send, 0, 10);
        assert_eq!(b.send(), 0, "the responder sends nothing before the initiator (RFC 5044 section 7.1.2)");
        assert_eq!(b.qp.stream_state(), StreamState::Open { has_received: false });
        a.post_recv(100, 0, 10);
        b.post_recv(100, 0, 10);
        a.post(2, SendOp::Send, 0, 10);
        world.run();
        let [a, b] = &world.ends;
        assert_eq!(b.qp.stream_state(), StreamState::Open { has_received: true });
        for end in [a, b] {
            assert_eq!(end.completions.len(), 2, "{rtr:?}: one sent, one received");
            assert!(end.completions.iter().all(|c| c.status == WcStatus::Success));
        }
    }
}

#[test]
fn octets_of_siw() {
    let mut world = World::new(&StreamConfig { crc: false, ..CONFIG }, 1448, 5);
    let [a, b] = &mut world.ends;
    b.ram.register(0xc0d2_7e00, 0x555a_1751_b130, vec![0; 64]);
    a.ram.register(0xd6a1_c000, 0x55bc_71f4_0130, vec![7; 64]);
    b.post_recv(100, 0, 16);
    // The peer's write of 64 octets and a send of 16, as the kernel's siw sends them.
    let mut octets =
        vec![0x00, 0x4e, 0xc1, 0x40, 0xc0, 0xd2, 0x7e, 0x00, 0, 0, 0x55, 0x5a, 0x17, 0x51, 0xb1, 0x30];
    octets.extend(0..64_u8);
    octets.extend([0; 4]);
    octets.extend([0x00, 0x22, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    octets.extend([0xaa; 16]);
    octets.extend([0; 4]);
    b.receive(&octets);
    assert_eq!(b.ram.bytes(0xc0d2_7e00), (0..64_u8).collect::<Vec<_>>());
    assert_eq!(b.at(0, 16), [0xaa; 16]);
    assert_eq!(b.completions[0].byte_len, 16);
    // Our own octets are the same.
    a.post(1, SendOp::Send, 0, 16);
    a.send();
    let sent: Vec<u8> = a.sent.iter().copied().collect();
    assert_eq!(sent[..20], octets[84..104]);
    assert_eq!(sent[36..], [0; 4], "the CRC field is zero if it does not count");
}

#[test]
fn a_request_is_complete_when_tcp_took_its_last_octet() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let a = &mut world.ends[0];
    a.post(1, SendOp::Write { remote: remote(0) }, 0, 5000);
    let mut out = vec![0; 100_000];
    let len = a.qp.poll_stream(&mut a.ram, &mut out);
    a.qp.stream_taken(len - 1);
    assert_eq!(a.qp.poll_event(), None);
    a.qp.stream_taken(1);
    assert!(a.qp.poll_event().is_some());
}

#[test]
fn the_end_of_the_connection_flushes() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let [a, b] = &mut world.ends;
    b.post_recv(100, 0, 8);
    b.post(1, SendOp::Read { remote: remote(0) }, 0, 64);
    b.send();
    assert!(b.qp.stream_ended(), "between two messages");
    assert_eq!(b.send(), 0, "nothing leaves");
    let done: Vec<_> = b.completions.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, WcStatus::WrFlushErr), (100, WcStatus::WrFlushErr)]);
    assert_eq!((b.qp.state(), b.qp.stream_state()), (QpState::Error, StreamState::Closing));
    a.receive(&[0, 78, 0xc1]);
    assert!(!a.qp.stream_ended(), "inside of a message");
}
