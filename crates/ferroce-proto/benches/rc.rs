//! The cost of the transport itself: two queue pairs in one thread exchange batches directly.

#![allow(missing_docs, reason = "criterion's macros")]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/rc/world.rs"]
mod world;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferroce_proto::{NoSharedQueue, QpState, QueuePair, Remote, SendOp, SendWr, Sge};
use ferroce_sim::ram::Ram;
use ferroce_wire::{BatchLimits, IcrcStatus, Instant, Lkey, Packet, PathMtu, Rkey, TxBatch};

use crate::world::{Setup, flow};

const KEY: u32 = 7;

struct Pair {
    ends: [(QueuePair, Ram); 2],
    buffers: [Vec<u8>; 2],
    now: u64,
}

impl Pair {
    fn new() -> Self {
        let setup = Setup { mtu: PathMtu::B4096, rcvbuf: 4 << 20, ..Setup::default() };
        let end = |side| {
            let mut qp = setup.queue_pair(side);
            setup.bring(&mut qp, side, QpState::Rts);
            let mut ram = Ram::default();
            ram.register(KEY, 0, vec![0; 1 << 20]);
            (qp, ram)
        };
        Self { ends: [end(0), end(1)], buffers: [vec![0; 64 << 10], vec![0; 64 << 10]], now: 0 }
    }

    fn carry(&mut self, from: usize) {
        let now = Instant::from_nanos(self.now);
        let [a, b] = &mut self.ends;
        let (sender, receiver) = if from == 0 { (a, b) } else { (b, a) };
        let mut batch = TxBatch::new(&mut self.buffers[from], BatchLimits { max_segments: 64, gso: true });
        while sender.0.poll_transmit(now, &mut sender.1, &mut batch) {
            for segment in batch.segments() {
                let mut packet = Packet::parse(segment).unwrap();
                packet.icrc = IcrcStatus::Checked;
                receiver
                    .0
                    .handle_datagram(now, &flow(from), &packet, &mut NoSharedQueue, &mut receiver.1)
                    .unwrap();
            }
            batch.clear();
        }
        while sender.0.poll_event().is_some() {}
    }

    /// Posts `count` requests, and carries packets and answers until all have completed.
    fn exchange(&mut self, op: SendOp, length: u32, count: usize) {
        let sges = [Sge { addr: 0, length, lkey: Lkey::new(KEY) }];
        let wr = SendWr::signaled(0, op, &sges);
        self.now += 10_000;
        for _ in 0..count {
            self.ends[0].0.post_send(&wr, &self.ends[0].1).unwrap();
        }
        let mut completed = 0;
        while completed < count {
            self.carry(0);
            self.carry(1);
            while self.ends[0].0.poll_event().is_some() {
                completed += 1;
            }
        }
    }
}

fn rc(c: &mut Criterion) {
    let remote = Remote { addr: 0, rkey: Rkey::new(KEY) };
    let mut group = c.benchmark_group("rc");
    for (name, op, length, count) in [
        ("write 8, batches of 64", SendOp::Write { remote }, 8, 64),
        ("write 8, one by one", SendOp::Write { remote }, 8, 1),
        ("read 8, one by one", SendOp::Read { remote }, 8, 1),
    ] {
        let mut pair = Pair::new();
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(name, |b| b.iter(|| pair.exchange(op, length, count)));
    }
    for (name, op) in [("write 1 MiB", SendOp::Write { remote }), ("read 1 MiB", SendOp::Read { remote })] {
        let mut pair = Pair::new();
        group.throughput(Throughput::Bytes(1 << 20));
        group.bench_function(name, |b| b.iter(|| pair.exchange(op, 1 << 20, 1)));
    }
    group.finish();
}

criterion_group!(benches, rc);
criterion_main!(benches);
