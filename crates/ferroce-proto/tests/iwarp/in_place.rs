//! Payload that leaves from registered memory, and arrives in it, without a copy by the queue pair.

use ferroce_proto::iwarp::{Expected, Payloads, Span, StreamConfig};
use ferroce_proto::{AsyncEventKind, MemoryError, QpState, RecvWr, SendOp, SendWr, WcOpcode, WcStatus};
use ferroce_wire::Rkey;
use proptest::prelude::*;

use crate::world::{BASE, CAPS, CONFIG, End, KEY, World, remote, sge};

/// Streams of which payload can leave from memory: without CRC and markers, and with FPDUs longer than a TCP segment.
const PLAIN: StreamConfig = StreamConfig { crc: false, large_fpdus: true, ..CONFIG };

/// A second key, for memory that ends.
const OTHER: u32 = 0x2200;

fn statuses(end: &End) -> Vec<(u64, WcStatus)> {
    end.completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

/// The completions of one queue, in order.
fn of_queue(end: &End, receives: bool) -> Vec<(u64, WcStatus, u32)> {
    let of_queue = end.completions.iter().filter(|c| (c.opcode as u8 >= 128) == receives);
    of_queue.map(|c| (c.wr_id, c.status, c.byte_len)).collect()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32, u32),
    Write(u32, u32),
    Read(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let length = prop_oneof![0..100_u32, 4_000..6_000_u32, 16_000..70_000_u32, 60_000..70_000_u32];
    let step = (0..3, length, 0..1000_u32).prop_map(|(kind, length, at)| match kind {
        0 => Step::Send(length, at),
        1 => Step::Write(length, at),
        _ => Step::Read(length, at),
    });
    prop::collection::vec((0..2_usize, step), 1..20)
}

fn exchange(in_place: [bool; 2], steps: &[(usize, Step)], chunk: u64) -> World {
    let mut world = World::new(&PLAIN, 1448, chunk);
    for (end, in_place) in world.ends.iter_mut().zip(in_place) {
        end.in_place = in_place;
    }
    for (id, (from, step)) in steps.iter().enumerate() {
        let (id, to) = (id as u64, 1 - from);
        let place = |at: &u32| 131_072 + u64::from(*at);
        match step {
            Step::Send(length, at) => {
                // Two pieces, the second of which lies in front of the first.
                let first = length / 3;
                let sges = [sge(place(at) + 60_000, first), sge(place(at), length - first)];
                world.ends[to].qp.post_recv(&RecvWr { wr_id: id, sges: &sges }).unwrap();
                let sges = [sge(70_000, first), sge(u64::from(*at), length - first)];
                let wr = SendWr::signaled(id, SendOp::Send, &sges);
                let End { qp, ram, .. } = &mut world.ends[*from];
                qp.post_send(&wr, ram).unwrap();
            }
            Step::Write(length, at) => {
                let op = SendOp::Write { remote: remote(place(at)) };
                world.ends[*from].post(id, op, u64::from(*at), *length);
            }
            Step::Read(length, at) => {
                world.ends[*from].post(id, SendOp::Read { remote: remote((*at).into()) }, place(at), *length);
            }
        }
    }
    world.run();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The same messages, cut into the same pieces, leave the same memory and the same completions behind with copies and without.
    #[test]
    fn copies_or_not_is_the_same(steps in steps(), chunk: u64, in_place in any::<[bool; 2]>()) {
        let copied = exchange([false; 2], &steps, chunk);
        let placed = exchange(in_place, &steps, chunk);
        for (a, b) in copied.ends.iter().zip(&placed.ends) {
            prop_assert!(a.ram.bytes(KEY) == b.ram.bytes(KEY), "other memory");
            prop_assert_eq!(of_queue(a, false), of_queue(b, false));
            prop_assert_eq!(of_queue(a, true), of_queue(b, true));
            prop_assert_eq!(&a.events, &b.events);
            prop_assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
        }
    }
}

/// A write of two FPDUs and a message behind it, received in two pieces, for each place of the cut.
#[test]
fn each_cut_of_a_stream() {
    const LENGTH: u32 = 50_000;
    let mut world = World::new(&PLAIN, 1448, 1);
    let [a, _] = &mut world.ends;
    a.post(1, SendOp::Write { remote: remote(100_000) }, 7, LENGTH);
    a.post(2, SendOp::Send, 3, 20_000);
    a.send();
    let octets: Vec<u8> = a.sent.drain(..).collect();
    let (wrote, said) = (a.at(7, LENGTH).to_vec(), a.at(3, 20_000).to_vec());
    // Around each header and each end all places, in payload each 511th.
    let edges = [0, 32_768 + 20, LENGTH as usize + 40, octets.len()];
    let near = |at: usize| edges.iter().any(|edge| edge.abs_diff(at) < 100);
    for cut in (0..=octets.len()).filter(|at| near(*at) || at % 511 == 0) {
        let mut b = End::new(CAPS);
        b.in_place = true;
        b.qp.begin_stream(&StreamConfig { initiator: false, ..PLAIN }, 1448).unwrap();
        b.post_recv(9, 200_000, 30_000);
        b.receive(&octets[..cut]);
        b.receive(&octets[cut..]);
        assert_eq!(statuses(&b), [(9, WcStatus::Success)], "cut at {cut}");
        assert!(b.at(100_000, LENGTH) == wrote && b.at(200_000, 20_000) == said, "cut at {cut}");
        assert_eq!(b.at(100_000 - 64, 64), [0; 64]);
        assert_eq!(b.at(100_000 + u64::from(LENGTH), 64), [0; 64]);
        if (16..20_000).contains(&cut) {
            assert!(b.placed > 0, "cut at {cut}");
        }
    }
}

/// The last octets of a segment come by the copy, which is behind everything that was received into memory. And a stream with CRC or
/// markers, or of small FPDUs, expects nothing in memory.
#[test]
fn expectations() {
    let of = |config: &StreamConfig, segment, arrived: usize| {
        let mut world = World::new(config, segment, 1);
        world.ends[0].post(1, SendOp::Write { remote: remote(8) }, 0, 40_000);
        world.ends[0].send();
        let octets: Vec<u8> = world.ends[0].sent.drain(..).collect();
        world.ends[1].receive(&octets[..arrived.min(octets.len())]);
        world.ends[1].qp.stream_expected()
    };
    let rkey = Rkey::new(KEY);
    assert_eq!(of(&PLAIN, 1448, 0), Expected::default(), "nothing is known of what comes first");
    assert_eq!(of(&PLAIN, 1448, 15), Expected::default());
    let first = Span::Remote { rkey, addr: BASE + 8, length: 32_768 - 64 };
    assert_eq!(of(&PLAIN, 1448, 16), Expected { memory: Some(first), most: Some(64 + 4 + 16) });
    let rest = Span::Remote { rkey, addr: BASE + 8 + 10_000, length: 22_768 - 64 };
    assert_eq!(of(&PLAIN, 1448, 10_016), Expected { memory: Some(rest), most: Some(64 + 4 + 16) });
    assert_eq!(of(&PLAIN, 1448, 30_016), Expected { memory: None, most: Some(2768 + 4 + 16) });
    assert_eq!(of(&PLAIN, 1448, 32_768 + 16), Expected { memory: None, most: Some(4 + 16) });
    assert_eq!(of(&PLAIN, 1448, 32_768 + 20), Expected { memory: None, most: Some(16) });
    assert_eq!(of(&PLAIN, 1448, 32_768 + 21), Expected::default(), "a header began");
    for config in [
        StreamConfig { crc: true, ..PLAIN },
        StreamConfig { send_markers: true, ..PLAIN },
        StreamConfig { large_fpdus: false, ..PLAIN },
    ] {
        assert_eq!(of(&config, 1448, 10_016), Expected::default(), "{config:?}");
    }
    let jumbo = StreamConfig { large_fpdus: false, ..PLAIN };
    assert!(of(&jumbo, 65_483, 10_016).memory.is_some(), "large segments are as good");
}

/// A message without right to the memory ends the stream before any of it is expected there.
#[test]
fn rights_come_first() {
    let mut world = World::new(&PLAIN, 1448, 1);
    let [a, b] = &mut world.ends;
    a.post(1, SendOp::Write { remote: ferroce_proto::Remote { rkey: Rkey::new(3), addr: BASE } }, 0, 40_000);
    a.send();
    let octets: Vec<u8> = a.sent.drain(..).collect();
    b.receive(&octets[..100]);
    assert_eq!((b.qp.stream_expected(), b.qp.state()), (Expected::default(), QpState::Error));
}

/// The memory of an arriving write ends between two of its octets: the stream ends as it does with copies.
#[test]
fn memory_that_ends_while_it_is_written() {
    for in_place in [false, true] {
        let mut world = World::new(&PLAIN, 1448, 1);
        let [a, b] = &mut world.ends;
        b.in_place = in_place;
        b.ram.register(OTHER, 0, vec![0; 60_000]);
        let to = ferroce_proto::Remote { rkey: Rkey::new(OTHER), addr: 0 };
        a.post(1, SendOp::Write { remote: to }, 0, 50_000);
        a.send();
        let octets: Vec<u8> = a.sent.drain(..).collect();
        b.receive(&octets[..16]);
        b.receive(&octets[16..20_000]);
        b.ram.deregister(OTHER);
        b.receive(&octets[20_000..30_000]);
        assert_eq!((b.qp.state(), &b.events[..]), (QpState::Error, &[AsyncEventKind::QpAccessErr][..]));
        assert_eq!(b.placed > 0, in_place);
        world.run();
        // The Terminate names the key.
        assert_eq!(world.ends[0].qp.state(), QpState::Error);
    }
}

/// Memory that ends after its FPDU was written and before it was sent. Requests that were posted before it complete, and nothing behind it leaves.
#[test]
fn memory_that_ends_while_it_is_sent() {
    let mut world = World::new(&PLAIN, 1448, 1);
    let [a, b] = &mut world.ends;
    a.ram.register(OTHER, 0, vec![5; 60_000]);
    b.post_recv(9, 0, 64);
    a.post(1, SendOp::Send, 0, 64);
    let sges = [ferroce_proto::Sge { lkey: ferroce_wire::Lkey::new(OTHER), addr: 0, length: 40_000 }];
    a.qp.post_send(&SendWr::signaled(2, SendOp::Write { remote: remote(0) }, &sges), &a.ram).unwrap();
    a.post(3, SendOp::Write { remote: remote(0) }, 0, 64);
    let (mut out, mut payloads) = (vec![0; 80 << 10], Payloads::new());
    let len = a.qp.poll_stream_around(&mut a.ram, &mut out, &mut payloads);
    let [first, second] = payloads.as_slice() else { panic!("{payloads:?}") };
    assert_eq!((first.span().len(), second.span().len()), (32_768, 40_000 - 32_768));
    assert!(first.fpdu() > 64 && len > second.at() + 64);
    a.ram.deregister(OTHER);
    a.qp.stream_payload_lost(first, MemoryError::BadKey);
    assert_eq!(a.qp.state(), QpState::Rts, "the request before it is not complete");
    assert_eq!(a.send(), 0);
    a.qp.stream_taken(first.fpdu());
    let terminate = {
        b.receive(&out[..first.fpdu()]);
        a.send()
    };
    assert!(terminate > 0);
    assert_eq!(statuses(a), [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
    assert_eq!(statuses(b), [(9, WcStatus::Success)]);
    world.run();
    assert_eq!(world.ends[1].qp.state(), QpState::Error);
}

/// The same within a message, and for the answer to a read: the stream ends at once.
#[test]
fn later_segments_and_answers_whose_memory_ends() {
    let mut world = World::new(&PLAIN, 1448, 1);
    let [a, _] = &mut world.ends;
    a.post(1, SendOp::Write { remote: remote(0) }, 0, 60_000);
    let (mut out, mut payloads) = (vec![0; 80 << 10], Payloads::new());
    a.qp.poll_stream_around(&mut a.ram, &mut out, &mut payloads);
    a.qp.stream_payload_lost(&payloads.as_slice()[1], MemoryError::Fault);
    assert_eq!(a.qp.state(), QpState::Error);
    assert!(a.send() > 0, "a Terminate");
    assert_eq!(statuses(a), [(1, WcStatus::LocProtErr)]);
    assert_eq!(a.events, [AsyncEventKind::QpFatal]);

    let mut world = World::new(&PLAIN, 1448, 1);
    let [a, b] = &mut world.ends;
    a.post(1, SendOp::Read { remote: remote(0) }, 0, 60_000);
    a.send();
    let octets: Vec<u8> = a.sent.drain(..).collect();
    b.receive(&octets);
    payloads.clear();
    b.qp.poll_stream_around(&mut b.ram, &mut out, &mut payloads);
    b.qp.stream_payload_lost(&payloads.as_slice()[0], MemoryError::Fault);
    world.run();
    let b = &world.ends[1];
    assert_eq!((b.qp.state(), &b.events[..]), (QpState::Error, &[AsyncEventKind::QpFatal][..]));
    let [failed] = &world.ends[0].completions[..] else { panic!() };
    assert_eq!((failed.opcode, failed.status), (WcOpcode::RdmaRead, WcStatus::RemAccessErr));
}

/// Inline data and short messages are copied, and lists of many pieces as well.
#[test]
fn payload_that_is_copied() {
    let mut world = World::new(&PLAIN, 1448, 1);
    let [a, _] = &mut world.ends;
    a.post(1, SendOp::Write { remote: remote(0) }, 0, 4095);
    let (mut out, mut payloads) = (vec![0; 80 << 10], Payloads::new());
    assert_eq!(a.qp.poll_stream_around(&mut a.ram, &mut out, &mut payloads), 16 + 4095 + 1 + 4);
    assert!(payloads.as_slice().is_empty());
    a.post(2, SendOp::Write { remote: remote(0) }, 0, 4096);
    assert_eq!(a.qp.poll_stream_around(&mut a.ram, &mut out, &mut payloads), 16 + 4);
    let [payload] = payloads.as_slice() else { panic!("{payloads:?}") };
    assert_eq!((payload.at(), payload.fpdu()), (16, 0));
    assert_eq!(*payload.span(), Span::Local(sge(0, 4096), None));
    // Together they fit into a buffer as long as `out`.
    payloads.clear();
    for id in 0..4 {
        a.post(id, SendOp::Write { remote: remote(0) }, 0, 32_768);
    }
    let len = a.qp.poll_stream_around(&mut a.ram, &mut out, &mut payloads);
    assert_eq!((len, payloads.octets()), (2 * 20, 65_536));
}
