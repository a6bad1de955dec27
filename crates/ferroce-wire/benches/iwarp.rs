//! The CRC of FPDUs, alone and with the copy of the payload: `cargo bench -p ferroce-wire --bench iwarp`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ferroce_wire::iwarp::crc::Crc32c;

const SIZES: [usize; 4] = [64, 1428, 4096, 65_536];

/// Octets before the payload in an untagged FPDU, which set the alignment of the copy.
const HEADER: usize = 20;

fn update(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for size in SIZES {
        let data = vec![0x5a; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let mut crc = Crc32c::new();
                crc.update(black_box(&data));
                crc.octets()
            });
        });
    }
    group.finish();
}

fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c_copy");
    for size in SIZES {
        let from = vec![0x5a; size];
        let mut to = vec![0; HEADER + size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let mut crc = Crc32c::new();
                crc.copy(black_box(&from), black_box(&mut to[HEADER..]));
                crc.octets()
            });
        });
        group.bench_function(BenchmarkId::new("bare", size), |b| {
            b.iter(|| black_box(&mut to[HEADER..]).copy_from_slice(black_box(&from)));
        });
    }
    group.finish();
}

criterion_group!(benches, update, copy);
criterion_main!(benches);
