//! The packet path, in nanoseconds a packet: `cargo bench -p ferroce-wire`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ferroce_wire::icrc::{self, IdSolver};
use ferroce_wire::{
    BatchLimits, Bth, Flow, IcrcChecker, IcrcStatus, Operation, Packet, Psn, PushError, Qpn, RcPacket,
    Request, SendTail, Sink, TxBatch,
};

const SIZES: [usize; 3] = [64, 1024, 4096];

fn flow() -> Flow {
    Flow {
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 0xc123,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

fn head(psn: u32) -> Packet<'static> {
    let send = Request::SendOnly { payload: &[], tail: SendTail::None };
    Packet {
        bth: Bth::new(Qpn::new(2), Psn::new(psn)),
        op: Operation::Rc(RcPacket::Request(send)),
        icrc: IcrcStatus::Pending,
    }
}

/// A sealed packet with this much payload.
fn segment(payload: usize) -> Vec<u8> {
    let mut segment = vec![0x5a; payload + 16];
    head(1).emit_head(payload, &mut segment).unwrap();
    icrc::seal(&flow(), 0, &mut segment);
    segment
}

fn seal(c: &mut Criterion) {
    let mut group = c.benchmark_group("seal");
    for size in SIZES {
        let mut segment = segment(size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| icrc::seal(&flow(), 0, black_box(&mut segment)));
        });
    }
    group.finish();
}

/// A whole batch of 60 KiB: headers, copied payload, ICRC. Per octet, to compare with a bare copy.
fn push(c: &mut Criterion) {
    let mut group = c.benchmark_group("push");
    for size in SIZES {
        let count = (61_440 / size).min(64);
        let payload = vec![0x5a; size];
        let mut buf = vec![0; 65_536];
        group.throughput(Throughput::Bytes((count * size) as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let limits = BatchLimits { max_segments: 64, gso: true };
                let mut batch = TxBatch::new(&mut buf, limits);
                for psn in 0..count {
                    let fill = |to: &mut [u8]| {
                        to.copy_from_slice(black_box(&payload));
                        Ok::<_, PushError<()>>(())
                    };
                    batch.push(&flow(), &head(psn as u32), size, fill).unwrap();
                }
                black_box(batch.bytes().len())
            });
        });
    }
    group.finish();
}

fn parse(c: &mut Criterion) {
    let segment = segment(64);
    c.bench_function("parse", |b| b.iter(|| Packet::parse(black_box(&segment)).unwrap()));
}

fn solve_id(c: &mut Criterion) {
    let segment = segment(1024);
    let difference = icrc::compute(&flow(), 0, &segment) ^ icrc::compute(&flow(), 0x1234, &segment);
    c.bench_function("solve_id", |b| {
        b.iter(|| icrc::solve_id(black_box(difference), black_box(segment.len())))
    });
    let mut solver = IdSolver::new();
    c.bench_function("solve_id cached", |b| {
        b.iter(|| solver.solve(black_box(difference), black_box(segment.len())));
    });
}

fn check(c: &mut Criterion) {
    let mut group = c.benchmark_group("check");
    for (name, id) in [("zero", 0), ("solved", 0x1234)] {
        let mut segment = segment(1024);
        icrc::seal(&flow(), id, &mut segment);
        let mut checker = IcrcChecker::new();
        group.bench_function(name, |b| {
            b.iter(|| checker.check(&flow(), black_box(&segment)));
        });
    }
    group.finish();
}

criterion_group!(benches, seal, push, parse, solve_id, check);
criterion_main!(benches);
