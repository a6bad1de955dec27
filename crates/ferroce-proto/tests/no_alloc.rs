//! The packet path does not allocate: neither sending and receiving nor losing and retrying.
//!
//! A binary of its own, because the counting allocator is the process's.

#![allow(dead_code, reason = "the support has more than is used here")]

#[path = "iwarp/world.rs"]
mod streams;
#[path = "rc/world.rs"]
mod world;

use std::time::Duration;

use ferroce_proto::iwarp::{Payloads, StreamConfig};
use ferroce_proto::{
    NoSharedQueue, QpEvent, QpState, QueuePair, RecvWr, Remote, SendOp, SendWr, Sge, WcStatus,
};
use ferroce_sim::ram;
use ferroce_wire::{BatchLimits, IcrcStatus, Imm, Instant, Lkey, Packet, Rkey, TxBatch};

use crate::ram::Ram;
use crate::world::{Setup, flow};

const KEY: u32 = 7;

/// Moves the packets of one end to the other, except each `lost`th packet.
fn carry(
    now: Instant,
    from: &mut (QueuePair, Ram),
    to: (&mut QueuePair, &mut Ram),
    source: usize,
    buffer: &mut [u8],
    count: &mut u32,
    lost: u32,
) {
    let mut batch = TxBatch::new(buffer, BatchLimits { max_segments: 64, gso: true });
    while from.0.poll_transmit(now, &mut from.1, &mut batch) {
        for segment in batch.segments() {
            *count += 1;
            if lost > 0 && count.is_multiple_of(lost) {
                continue;
            }
            let mut packet = Packet::parse(segment).unwrap();
            packet.icrc = IcrcStatus::Checked;
            let _ = to.0.handle_datagram(now, &flow(source), &packet, &mut NoSharedQueue, to.1);
        }
        batch.clear();
    }
}

fn exchange(ends: &mut [(QueuePair, Ram); 2], buffer: &mut [u8], lost: u32) {
    let (mut now, mut count, mut completed) = (Instant::ZERO, 0, 0);
    let remote = Remote { addr: 0, rkey: Rkey::new(KEY) };
    let ops = [
        SendOp::Send,
        SendOp::Write { remote },
        SendOp::WriteImm { remote, imm: Imm([1; 4]) },
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
    ];
    let mut posted = 0;
    while completed < 500 {
        let [a, b] = &mut *ends;
        while posted < 500 && posted - completed < 32 {
            let op = ops[posted % ops.len()];
            let length = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { (posted * 37 % 5000) as u32 };
            let sges = [Sge { addr: 0, length, lkey: Lkey::new(KEY) }];
            let wr = SendWr::signaled(0, op, &sges);
            a.0.post_send(&wr, &a.1).unwrap();
            posted += 1;
        }
        let room = [Sge { addr: 0, length: 8192, lkey: Lkey::new(KEY) }];
        while b.0.post_recv(&RecvWr { wr_id: 0, sges: &room }).is_ok() {}
        now += Duration::from_micros(100);
        a.0.handle_timeout(now);
        b.0.handle_timeout(now);
        carry(now, a, (&mut b.0, &mut b.1), 0, buffer, &mut count, lost);
        carry(now, b, (&mut a.0, &mut a.1), 1, buffer, &mut count, lost);
        while let Some(event) = a.0.poll_event() {
            let QpEvent::Send(completion) = event else { panic!("{event:?}") };
            assert_eq!(completion.status, WcStatus::Success);
            completed += 1;
        }
        while b.0.poll_event().is_some() {}
    }
}

#[test]
fn the_packet_path_does_not_allocate() {
    let setup = Setup::default();
    let mut ends = [0, 1].map(|side| {
        let mut qp = setup.queue_pair(side);
        setup.bring(&mut qp, side, QpState::Rts);
        let mut ram = Ram::default();
        ram.register(KEY, 0, vec![0; 8192]);
        (qp, ram)
    });
    let mut buffer = vec![0; 64 << 10];
    for lost in [0, 13] {
        let allocated = allocation_counter::measure(|| exchange(&mut ends, &mut buffer, lost));
        assert_eq!(allocated.count_total, 0, "with each {lost}th packet lost");
    }
    assert!(ends[0].0.counters().resent_pkts > 0);
}

/// Requests of one end of a stream, and the octets both ways.
fn exchange_by_stream(ends: &mut [streams::End; 2], buffer: &mut [u8], payloads: &mut Payloads) -> u32 {
    let mut around = 0;
    let remote = streams::remote(64 << 10);
    let ops = [
        SendOp::Send,
        SendOp::Write { remote },
        SendOp::WriteImm { remote, imm: Imm([1; 4]) },
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
    ];
    let (mut posted, mut completed) = (0, 0);
    while completed < 500 {
        let [a, b] = &mut *ends;
        while posted < 500 && posted - completed < 32 {
            let op = ops[posted % ops.len()];
            let length =
                if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { (posted * 37 % 50_000) as u32 };
            a.qp.post_send(&SendWr::signaled(0, op, &[streams::sge(0, length)]), &a.ram).unwrap();
            posted += 1;
        }
        let room = [streams::sge(128 << 10, 64 << 10)];
        while b.qp.post_recv(&RecvWr { wr_id: 0, sges: &room }).is_ok() {}
        for (from, to) in [(0, 1), (1, 0)] {
            let [from, to] = ends.get_disjoint_mut([from, to]).unwrap();
            payloads.clear();
            let len = from.qp.poll_stream_around(&mut from.ram, buffer, payloads);
            from.qp.stream_taken(len + payloads.octets());
            let mut at = 0;
            let mut take = |octets: &[u8]| {
                let mut rest = octets;
                while !rest.is_empty() {
                    let taken = to.qp.handle_stream(rest, &mut NoSharedQueue, &mut to.ram);
                    rest = &rest[taken..];
                    while let Some(event) = to.qp.poll_event() {
                        completed += usize::from(matches!(event, QpEvent::Send(_)));
                    }
                }
            };
            for payload in payloads.as_slice() {
                take(&buffer[at..payload.at()]);
                at = payload.at();
                // Its octets do not count here.
                take(&[0; 64 << 10][..payload.span().len()]);
                around += 1;
            }
            take(&buffer[at..len]);
            while let Some(event) = from.qp.poll_event() {
                completed += usize::from(matches!(event, QpEvent::Send(_)));
            }
        }
    }
    around
}

#[test]
fn a_stream_does_not_allocate() {
    for (crc, markers, large_fpdus) in
        [(true, false, true), (false, false, true), (false, false, false), (true, true, false)]
    {
        let config = StreamConfig {
            crc,
            send_markers: markers,
            receive_markers: markers,
            large_fpdus,
            ..streams::CONFIG
        };
        let mut world = streams::World::new(&config, 1448, 1);
        let mut buffer = vec![0; 160 << 10];
        let mut payloads = Payloads::new();
        let mut around = 0;
        let allocated = allocation_counter::measure(|| {
            around = exchange_by_stream(&mut world.ends, &mut buffer, &mut payloads);
        });
        assert_eq!(allocated.count_total, 0, "{config:?}");
        assert_eq!(around > 0, !crc && large_fpdus, "payload leaves from memory without a CRC");
        assert!(world.ends.iter().all(|end| end.qp.state() == QpState::Rts));
    }
}
