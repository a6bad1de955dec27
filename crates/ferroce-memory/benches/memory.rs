//! The cost of accesses to registered memory, compared with memcpy: `cargo bench -p ferroce-memory --bench memory`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ferroce_memory::{Access, MemoryTable, PdId, guard};
use ferroce_proto::Memory;
use ferroce_wire::Rkey;

const RUNS: usize = 15;
const RUN: Duration = Duration::from_millis(4);

/// Nanoseconds a call, the best of several short runs: others use this machine too.
fn time(mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        let mut calls = 0_u32;
        while start.elapsed() < RUN {
            for _ in 0..64 {
                call();
            }
            calls += 64;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

fn main() {
    let table = MemoryTable::new().unwrap();
    let pd = PdId::new(1);
    let memory = vec![1_u8; 1 << 20].leak();
    let addr = memory.as_mut_ptr() as u64;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let key = table.register(pd, addr, memory.len(), addr, access).unwrap();
    let rkey = Rkey::new(key.value());
    let mut view = table.view(pd);

    println!("ns a call, one region, warm caches");
    println!(
        "{:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "bytes", "offset", "memcpy", "guarded", "by key", "read", "GB/s"
    );
    for len in [1, 8, 16, 32, 64, 100, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536] {
        for offset in [0, 4, 12] {
            let source = vec![7_u8; len + 64];
            let mut sink = vec![0_u8; len + 64];
            let to = addr + offset as u64;
            let memcpy = time(|| {
                // SAFETY: a leaked allocation that is larger than all lengths and offsets here.
                let target = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
                black_box(target).copy_from_slice(black_box(&source[..len]));
            });
            // SAFETY: as above.
            let guarded = time(|| unsafe { guard::write(to, black_box(&source[..len])) }.unwrap());
            let by_key = time(|| view.write_remote(rkey, to, black_box(&source[..len])).unwrap());
            let read = time(|| view.read_remote(rkey, to, black_box(&mut sink[..len]), 0).unwrap());
            let rate = len as f64 / by_key;
            println!(
                "{len:>7} {offset:>6} {memcpy:>9.1} {guarded:>9.1} {by_key:>9.1} {read:>9.1} {rate:>9.1}"
            );
        }
    }
    println!(
        "fetch_add  {:.1}",
        time(|| {
            black_box(view.fetch_add(rkey, addr, 1)).unwrap();
        })
    );
    println!(
        "check      {:.1}",
        time(|| {
            view.check_remote(rkey, addr, 8, ferroce_proto::RemoteAccess::Write).unwrap();
        })
    );
    println!(
        "register and deregister, 1 MiB  {:.0}",
        time(|| {
            table.deregister(table.register(pd, addr, memory.len(), addr, access).unwrap()).unwrap();
        })
    );
    println!("fault guard, nothing to do      {:.0}", time(|| guard::install().unwrap()));
}
