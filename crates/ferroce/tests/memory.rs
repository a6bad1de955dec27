//! Registered memory from Rust, in a network namespace of the test's own.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::thread;

use common::{in_namespace, pair};
use ferroce::error::{Device, Usage};
use ferroce::{Access, Context, ErrorKind, ProtectionDomain, Status, WorkRequest};

/// An allocator without more alignment than the type needs: small vectors of octets begin at odd addresses.
struct Odd;

#[global_allocator]
static ODD: Odd = Odd;

/// Larger vectors of octets are aligned.
const SMALL: usize = 1024;

/// The larger layout to allocate, with room before an odd address.
fn larger(layout: Layout) -> Option<Layout> {
    let odd = layout.align() == 1 && layout.size() < SMALL;
    odd.then(|| Layout::from_size_align(layout.size() + 16, 16).expect("a small layout"))
}

// SAFETY: the system's allocator returns 16 octets more at a multiple of 16; the octets behind the first suffice for a
// layout without alignment.
unsafe impl GlobalAlloc for Odd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let larger = larger(layout);
        // SAFETY: the layout is valid: the caller's, or one with a nonzero size.
        let start = unsafe { System.alloc(larger.unwrap_or(layout)) };
        if larger.is_some() && !start.is_null() { start.wrapping_add(1) } else { start }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let (start, layout) =
            larger(layout).map_or((start, layout), |larger| (start.wrapping_sub(1), larger));
        // SAFETY: `start` and `layout` are those that `alloc` passed to the system's allocator.
        unsafe { System.dealloc(start, layout) };
    }
}

fn domain() -> (Context, ProtectionDomain) {
    let device = Context::open("fr0").unwrap();
    let domain = device.protection_domain().unwrap();
    (device, domain)
}

const ATOMIC: Access = Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC);

/// IBTA 9.4.5: atomics work on words at multiples of 8, whatever the program's allocator does with octets.
#[test]
fn owned_memory_is_aligned_for_atomics() {
    if !in_namespace("owned_memory_is_aligned_for_atomics") {
        return;
    }
    let (device, domain) = domain();
    let done = device.completion_queue(16, None).unwrap();
    let (a, _b) = pair(&domain, [&done, &done]);
    let old = domain.allocate(8, Access::LOCAL_WRITE).unwrap();
    let octets: Vec<u8> = (0..9).collect();
    assert_eq!(octets.as_ptr().addr() % 2, 1, "the test's allocator is used");
    let regions =
        [domain.register(octets, ATOMIC), domain.register([0; 16], ATOMIC), domain.allocate(9, ATOMIC)];
    for region in regions.map(|region| region.unwrap()) {
        let before = region.to_vec();
        a.post_send([&WorkRequest::fetch_add(1, old.slice(..), region.remote(0), 1)]).unwrap();
        let completion = done.wait().unwrap();
        assert_eq!(completion.status, Status::Success);
        assert_eq!(old.to_vec(), before[..8]);
        let mut after = before;
        let sum = u64::from_ne_bytes(after[..8].try_into().unwrap()) + 1;
        after[..8].copy_from_slice(&sum.to_ne_bytes());
        assert_eq!(region.into_memory(), after);
    }
}

/// Aligned memory is used without a copy, also with spare capacity, and returned so.
#[test]
fn aligned_vectors_are_not_copied() {
    if !in_namespace("aligned_vectors_are_not_copied") {
        return;
    }
    let (_device, domain) = domain();
    let mut octets = Vec::with_capacity(2 * SMALL);
    octets.resize(20, 0);
    let start: *const u8 = octets.as_ptr();
    let region = domain.register(octets, Access::LOCAL_WRITE).unwrap();
    assert_eq!(region.remote(0).addr, start.addr() as u64);
    region.write(3, b"words");
    let octets = region.into_memory();
    assert_eq!((octets.as_ptr(), octets.len(), octets.capacity()), (start, 20, 2 * SMALL));
    assert_eq!(&octets[..10], b"\0\0\0words\0\0");
}

/// Two threads may read and write the same octets. Aligned words are never torn.
#[test]
fn words_are_copied_whole() {
    if !in_namespace("words_are_copied_whole") {
        return;
    }
    let (_device, domain) = domain();
    let region = domain.allocate(64, Access::LOCAL_WRITE).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..200_000_u32 {
                region.write(0, &[round as u8; 64]);
            }
        });
        let mut out = [0; 64];
        while !writer.is_finished() {
            region.read(0, &mut out);
            for word in out.chunks(8) {
                assert!(word.iter().all(|octet| *octet == word[0]), "a word is torn: {word:?}");
            }
        }
    });
}

/// A seqlock of words: a reader that finds the same even version before and after the data has data of one version.
#[test]
fn words_are_stored_in_order() {
    if !in_namespace("words_are_stored_in_order") {
        return;
    }
    const LEN: usize = 256;
    let (_device, domain) = domain();
    let region = domain.allocate(8 + LEN, Access::LOCAL_WRITE).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..100_000_u64 {
                region.store(0, 2 * round + 1);
                region.write(8, &[round as u8; LEN]);
                region.store(0, 2 * round + 2);
            }
        });
        let mut data = [0; LEN];
        while !writer.is_finished() {
            let before = region.load(0);
            region.read(8, &mut data);
            if before.is_multiple_of(2) && before == region.load(0) {
                let round = (before / 2).wrapping_sub(1) as u8;
                assert!(before == 0 || data == [round; LEN], "version {before}: {data:?}");
            }
        }
    });
    assert_eq!(region.load(0), 200_000);
    assert_eq!(region.to_vec()[..8], 200_000_u64.to_ne_bytes());
}

/// The peer's atomics and `load` agree on the word.
#[test]
fn words_are_those_of_atomics() {
    if !in_namespace("words_are_those_of_atomics") {
        return;
    }
    let (device, domain) = domain();
    let done = device.completion_queue(16, None).unwrap();
    let (a, _b) = pair(&domain, [&done, &done]);
    let old = domain.allocate(8, Access::LOCAL_WRITE).unwrap();
    let region = domain.allocate(16, ATOMIC).unwrap();
    region.store(8, 0x0102_0304_0506_0708);
    a.post_send([&WorkRequest::fetch_add(1, old.slice(..), region.remote(8), 1)]).unwrap();
    assert_eq!(done.wait().unwrap().status, Status::Success);
    assert_eq!(old.load(0), 0x0102_0304_0506_0708);
    assert_eq!((region.load(0), region.load(8)), (0, 0x0102_0304_0506_0709));
}

#[test]
fn ranges_outside_the_region_panic() {
    if !in_namespace("ranges_outside_the_region_panic") {
        return;
    }
    let (_device, domain) = domain();
    let region = domain.allocate(64, Access::LOCAL_WRITE).unwrap();
    assert_eq!(region.slice(..).len(), 64);
    assert_eq!(region.slice(..=63).len(), 64);
    assert_eq!(region.slice((Bound::Excluded(1), Bound::Included(3))).len(), 2);
    assert!(region.slice(64..).is_empty());
    let panics = |work: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it must panic");
        panic
            .downcast::<String>()
            .map_or_else(|panic| panic.downcast_ref::<&str>().unwrap().to_string(), |text| *text)
    };
    let last = "no region reaches the last address";
    assert_eq!(panics(&|| _ = region.slice(0..=usize::MAX)), last);
    assert_eq!(panics(&|| _ = region.slice((Bound::Excluded(usize::MAX), Bound::Unbounded))), last);
    for range in [0..65, 65..65, 65..usize::MAX] {
        let text = panics(&|| _ = region.slice(range.clone()));
        assert!(text.ends_with("is not inside the region's 64 octets"), "{text}");
    }
    for offset in [58, 65, usize::MAX] {
        for text in [panics(&|| region.read(offset, &mut [0; 7])), panics(&|| region.write(offset, &[0; 7]))]
        {
            assert!(text.ends_with("are not inside the region's 64"), "{text}");
        }
    }
    panics(&|| _ = region.remote(65));
    for offset in [57, 64, usize::MAX] {
        let text = panics(&|| _ = region.load(offset));
        assert!(text.ends_with("are not inside the region's 64"), "{text}");
    }
    let unaligned = "offset 4 is not that of an aligned word";
    assert_eq!(panics(&|| _ = region.load(4)), unaligned);
    assert_eq!(panics(&|| region.store(4, 0)), unaligned);
}

/// Device memory is addressed from 0 on, by both ends, and outlives its handle while it is registered.
#[test]
fn memory_of_the_device() {
    if !in_namespace("memory_of_the_device") {
        return;
    }
    let (device, domain) = domain();
    let done = device.completion_queue(16, None).unwrap();
    let (a, _b) = pair(&domain, [&done, &done]);
    let max = device.attributes().max_dm_size as usize;
    let (invalid, limit) = (ErrorKind::Usage(Usage::Invalid), ErrorKind::Device(Device::Limit));
    let refused = |len| device.device_memory(len).unwrap_err().kind();
    assert_eq!([refused(0), refused(max + 1)], [invalid, limit]);
    let memory = device.device_memory(max).unwrap();
    assert_eq!(refused(4), limit);
    memory.write(4096, b"device memory...").unwrap();
    for (offset, len) in [(1, 4), (0, 3), (max, 4), (usize::MAX - 3, 4)] {
        let read = memory.read(offset, &mut vec![0; len]);
        assert_eq!(read.unwrap_err().kind(), invalid, "{offset} {len}");
        let write = memory.write(offset, &vec![0; len]);
        assert_eq!(write.unwrap_err().kind(), invalid, "{offset} {len}");
    }
    for (offset, len) in [(0, max + 1), (max + 1, 0), (usize::MAX, 2)] {
        let registered = domain.register_device_memory(&memory, offset, len, ATOMIC);
        assert_eq!(registered.unwrap_err().kind(), invalid, "{offset} {len}");
    }
    let access = ATOMIC | Access::REMOTE_WRITE;
    let region = domain.register_device_memory(&memory, 4096, 64, access).unwrap();
    drop(memory);
    assert_eq!(refused(4), limit, "the region keeps it");
    assert_eq!((region.len(), region.remote(8).addr), (64, 8));
    let local = domain.allocate(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    a.post_send([&WorkRequest::write(1, &[region.slice(..16)], local.remote(0))]).unwrap();
    assert_eq!(done.wait().unwrap().status, Status::Success);
    assert_eq!(local.to_vec(), b"device memory...");
    a.post_send([&WorkRequest::write(2, &[region.slice(..8)], region.remote(32))]).unwrap();
    assert_eq!(done.wait().unwrap().status, Status::Success);
    a.post_send([&WorkRequest::fetch_add(3, local.slice(..8), region.remote(40), 7)]).unwrap();
    assert_eq!(done.wait().unwrap().status, Status::Success);
    let octets = region.to_vec();
    assert_eq!((&octets[..8], &octets[32..40]), (&b"device m"[..], &b"device m"[..]));
    assert_eq!(octets[40..48], 7_u64.to_ne_bytes());
    assert_eq!(region.into_memory(), octets);
    drop(device.device_memory(max).unwrap());
}

#[test]
fn memory_of_the_caller() {
    if !in_namespace("memory_of_the_caller") {
        return;
    }
    let (_device, domain) = domain();
    let mut octets = *b"borrowed";
    let seen = domain.register_for(&mut octets, Access::LOCAL_WRITE, |region| {
        region.write(0, b"B");
        region.to_vec()
    });
    assert_eq!((&seen.unwrap()[..], &octets), (&b"Borrowed"[..], b"Borrowed"));
    let words: &'static mut [u64] = Box::leak(vec![7; 2].into());
    // SAFETY: nothing else uses the words.
    let region =
        unsafe { domain.register_raw(NonNull::from(words).cast(), 16, Access::LOCAL_WRITE) }.unwrap();
    assert_eq!(region.into_memory(), [7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
}
