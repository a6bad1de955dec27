#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferroce_proto::{Memory, MemoryError, RemoteAccess, Sge};
use ferroce_wire::{Lkey, Rkey};

use super::*;

mod changes;
mod model;
mod windows;
mod words;

const PD: PdId = PdId::new(1);
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

pub(super) fn page() -> usize {
    // SAFETY: reads a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Pages of our own, that tests may do anything to.
pub(super) struct Pages {
    addr: u64,
    len: usize,
}

impl Pages {
    pub(super) fn new(count: usize) -> Self {
        Self::map(count * page(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Pages of a file that has `count` pages.
    pub(super) fn of_file(count: usize) -> (Self, std::fs::File) {
        use std::os::fd::AsRawFd;
        // SAFETY: a C string, and a flag that exists.
        let fd = unsafe { libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was made just now and is nobody else's.
        let file: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        file.set_len((count * page()) as u64).unwrap();
        (Self::map(count * page(), libc::MAP_SHARED, file.as_raw_fd()), file)
    }

    fn map(len: usize, flags: i32, fd: i32) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
        assert_ne!(addr, libc::MAP_FAILED);
        Self { addr: addr as u64, len }
    }

    pub(super) fn at(&self, offset: usize) -> u64 {
        self.addr + offset as u64
    }

    pub(super) fn protect(&self, from: usize, access: i32) {
        // SAFETY: pages of our own, in which no reference lives.
        let rc = unsafe { libc::mprotect(self.at(from) as *mut _, self.len - from, access) };
        assert_eq!(rc, 0);
    }

    pub(super) fn unmap(&self, from: usize) {
        // SAFETY: as above; that it is gone is what the test is about.
        assert_eq!(unsafe { libc::munmap(self.at(from) as *mut _, self.len - from) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as above; unmapping twice does no harm, because no test maps anything to a fixed address.
        unsafe { libc::munmap(self.addr as *mut _, self.len) };
    }
}

/// A hundredth of `count` in Miri, where each takes as long as a thousand elsewhere.
fn few_in_miri(count: u64) -> u64 {
    if cfg!(miri) { count / 100 } else { count }
}

fn table() -> MemoryTable {
    MemoryTable::new().unwrap()
}

fn register(table: &MemoryTable, pages: &Pages, access: Access) -> Key {
    table.register(PD, pages.addr, pages.len, pages.addr, access).unwrap()
}

fn rkey(key: Key) -> Rkey {
    Rkey::new(key.value())
}

fn lkey(key: Key) -> Lkey {
    Lkey::new(key.value())
}

/// All kinds of access to eight bytes, named.
fn touch_all(view: &mut View, key: Key, va: u64) -> [(&'static str, Result<(), MemoryError>); 6] {
    [
        ("read_local", view.read_local(lkey(key), va, &mut [0; 8], 0)),
        ("write_local", view.write_local(lkey(key), va, &[0; 8])),
        ("read_remote", view.read_remote(rkey(key), va, &mut [0; 8], 0)),
        ("write_remote", view.write_remote(rkey(key), va, &[0; 8])),
        ("compare_swap", view.compare_swap(rkey(key), va, 0, 0).map(drop)),
        ("fetch_add", view.fetch_add(rkey(key), va, 0).map(drop)),
    ]
}

#[test]
fn what_is_written_is_read() {
    let table = table();
    let pages = Pages::new(4);
    let key = register(&table, &pages, ALL);
    let mut view = table.view(PD);
    let data: Vec<u8> = (0..8192).map(|i| (i * 7 + i / 256) as u8).collect();
    view.write_remote(rkey(key), pages.at(100), &data).unwrap();
    let mut out = vec![0; data.len()];
    view.read_local(lkey(key), pages.at(100), &mut out, 0).unwrap();
    assert_eq!(out, data);
    view.write_local(lkey(key), pages.at(0), &41_u64.to_ne_bytes()).unwrap();
    assert_eq!(view.fetch_add(rkey(key), pages.at(0), 1), Ok(41));
    assert_eq!(view.compare_swap(rkey(key), pages.at(0), 41, 7), Ok(42));
    assert_eq!(view.compare_swap(rkey(key), pages.at(0), 42, 7), Ok(42));
    assert_eq!(view.fetch_add(rkey(key), pages.at(0), u64::MAX), Ok(7));
    let mut word = [0; 8];
    view.read_remote(rkey(key), pages.at(0), &mut word, 0).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 6);
    view.read_inline(pages.at(100), &mut out[..300]).unwrap();
    assert_eq!(out[..300], data[..300]);
}

/// `write` of access flags on one side, what they permit on the other.
#[test]
fn permissions_are_honoured() {
    let table = table();
    let pages = Pages::new(1);
    let mut view = table.view(PD);
    let cases: [(Access, &[&str]); 6] = [
        (Access::empty(), &["read_local"]),
        (Access::LOCAL_WRITE, &["read_local", "write_local"]),
        (Access::REMOTE_READ, &["read_local", "read_remote"]),
        (Access::LOCAL_WRITE.union(Access::REMOTE_WRITE), &["read_local", "write_local", "write_remote"]),
        (
            Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC),
            &["read_local", "write_local", "compare_swap", "fetch_add"],
        ),
        (
            ALL.union(Access::OPTIONAL).union(Access::HUGETLB).union(Access::MW_BIND),
            &["read_local", "write_local", "read_remote", "write_remote", "compare_swap", "fetch_add"],
        ),
    ];
    for (access, permitted) in cases {
        let key = register(&table, &pages, access);
        for (name, result) in touch_all(&mut view, key, pages.addr) {
            let want = if permitted.contains(&name) { Ok(()) } else { Err(MemoryError::NoPermission) };
            assert_eq!(result, want, "{name} of {access:?}");
        }
        let check = |kind| view.check_remote(rkey(key), pages.addr, 8, kind).is_ok();
        assert_eq!(check(RemoteAccess::Read), access.contains(Access::REMOTE_READ));
        assert_eq!(check(RemoteAccess::Write), access.contains(Access::REMOTE_WRITE));
        assert_eq!(check(RemoteAccess::Atomic), access.contains(Access::REMOTE_ATOMIC));
        let sge = Sge { addr: pages.addr, length: 8, lkey: lkey(key) };
        assert_eq!(view.check_local(&sge, false), Ok(()));
        assert_eq!(view.check_local(&sge, true).is_ok(), access.contains(Access::LOCAL_WRITE));
        assert_eq!(view.invalidate(rkey(key)), Err(MemoryError::NoPermission));
    }
}

#[test]
fn another_domain_sees_nothing() {
    let table = table();
    let pages = Pages::new(1);
    let key = register(&table, &pages, ALL);
    let mut other = table.view(PdId::new(2));
    for (name, result) in touch_all(&mut other, key, pages.addr) {
        assert_eq!(result, Err(MemoryError::WrongPd), "{name}");
    }
    assert_eq!(other.invalidate(rkey(key)), Err(MemoryError::WrongPd));
}

/// Address plus length wraps near 2^64.
#[test]
fn access_beyond_the_registered_range_is_refused() {
    let table = table();
    let pages = Pages::new(1);
    let view = table.view(PD);
    let top = u64::MAX - 99;
    for (iova, access) in
        [(pages.addr + 8, ALL), (0, ALL), (0x1234, ALL), (top, ALL), (77, ALL.union(Access::ZERO_BASED))]
    {
        let key = table.register(PD, pages.at(8), 99, iova, access).unwrap();
        let start = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let read = |va: u64, len: usize| view.read_remote(rkey(key), va, &mut vec![0; len], 0);
        for (offset, len) in [(0, 1), (0, 99), (98, 1), (50, 49), (99, 0)] {
            assert_eq!(read(start + offset, len), Ok(()), "{iova:#x}+{offset} {len}");
        }
        for (offset, len) in
            [(0, 100), (99, 1), (98, 2), (1, 99), (100, 0), (0_u64.wrapping_sub(1), 1), (1 << 63, 1)]
        {
            assert_eq!(
                read(start.wrapping_add(offset), len),
                Err(MemoryError::OutOfRange),
                "{iova:#x}+{offset:#x} {len}"
            );
        }
        let check = |va, len| view.check_remote(rkey(key), va, len, RemoteAccess::Write);
        for (va, len) in
            [(u64::MAX, 2), (u64::MAX, u64::MAX), (start, u64::MAX), (start + 1, u64::MAX), (1, u64::MAX - 1)]
        {
            assert_eq!(check(va, len), Err(MemoryError::OutOfRange), "{va:#x} {len:#x}");
        }
    }
}

#[test]
fn iova_and_zero_based_address_the_same_bytes() {
    let table = table();
    let pages = Pages::new(1);
    let mut view = table.view(PD);
    let plain = register(&table, &pages, ALL);
    let high = table.register(PD, pages.at(16), 64, 0xffff_0000_0000_0000, ALL).unwrap();
    let zero = table.register(PD, pages.at(16), 64, pages.at(16), ALL.union(Access::ZERO_BASED)).unwrap();
    view.write_remote(rkey(high), 0xffff_0000_0000_0008, b"by iova").unwrap();
    let mut out = [0; 7];
    view.read_remote(rkey(plain), pages.at(24), &mut out, 0).unwrap();
    assert_eq!(&out, b"by iova");
    view.read_remote(rkey(zero), 8, &mut out, 0).unwrap();
    assert_eq!(&out, b"by iova");
}

#[test]
fn atomics_want_alignment() {
    let table = table();
    let pages = Pages::new(1);
    let mut view = table.view(PD);
    let key = register(&table, &pages, ALL);
    // Aligned in the packet, but not where it lies.
    let odd = table.register(PD, pages.at(4), 64, 0, ALL).unwrap();
    for offset in 1..8 {
        assert_eq!(view.fetch_add(rkey(key), pages.at(offset), 1), Err(MemoryError::Misaligned));
        assert_eq!(view.compare_swap(rkey(key), pages.at(offset), 0, 1), Err(MemoryError::Misaligned));
        let check = view.check_remote(rkey(key), pages.at(offset), 8, RemoteAccess::Atomic);
        assert_eq!(check, Err(MemoryError::Misaligned));
    }
    assert_eq!(view.fetch_add(rkey(odd), 8, 1), Err(MemoryError::Misaligned));
    assert_eq!(view.fetch_add(rkey(odd), 4, 1), Err(MemoryError::Misaligned));
}

#[test]
fn an_empty_region_is_valid_and_holds_nothing() {
    let table = table();
    let view = table.view(PD);
    // Nothing need be mapped for nothing.
    let key = table.register(PD, 0, 0, 0, ALL).unwrap();
    assert_eq!(view.read_remote(rkey(key), 0, &mut [], 0), Ok(()));
    assert_eq!(view.read_remote(rkey(key), 0, &mut [0], 0), Err(MemoryError::OutOfRange));
    table.deregister(key).unwrap();
    assert_eq!(view.read_remote(rkey(key), 0, &mut [], 0), Err(MemoryError::BadKey));
}

#[test]
fn registration_checks_flags_and_range() {
    let table = table();
    let pages = Pages::new(2);
    let register =
        |addr, len, iova, bits| table.register(PD, addr, len, iova, Access::from_bits_retain(bits));
    let at = pages.addr;
    for writing in [2, 8, 10] {
        assert!(matches!(register(at, 8, at, writing), Err(RegMrError::NeedsLocalWrite)));
        register(at, 8, at, writing | 1).unwrap();
    }
    for unknown in [1 << 10, 1 << 19, 1 << 30, 1 << 31] {
        assert!(
            matches!(register(at, 8, at, 1 | unknown), Err(RegMrError::UnknownAccess(bits)) if bits == unknown)
        );
    }
    assert!(matches!(register(at, 8, at, 1 << 9), Err(RegMrError::NotPersistent)));
    // All there is, on demand; but not from another address on.
    register(0, usize::MAX, 0, 1 << 6).unwrap();
    assert!(matches!(register(0, usize::MAX, 1, 1 << 6), Err(RegMrError::Wraps)));
    assert!(matches!(register(u64::MAX, 2, 0, 0), Err(RegMrError::Wraps)));
    assert!(matches!(register(at, 8, u64::MAX - 6, 0), Err(RegMrError::Wraps)));
}

#[test]
#[cfg_attr(miri, ignore = "Miri's memory is not in the kernel's map of the process")]
fn registration_checks_that_the_memory_is_there() {
    let table = table();
    let pages = Pages::new(2);
    let register =
        |addr, len, iova, bits| table.register(PD, addr, len, iova, Access::from_bits_retain(bits));
    let at = pages.addr;
    assert!(matches!(register(0, usize::MAX, 0, 0), Err(RegMrError::NotMapped)));
    assert!(matches!(register(u64::MAX - 4096, 1, 0, 0), Err(RegMrError::NotMapped)));
    assert!(matches!(register(16, 1, 0, 0), Err(RegMrError::NotMapped)));

    pages.protect(page(), libc::PROT_READ);
    assert!(matches!(register(at, page() + 1, at, 1), Err(RegMrError::NotMapped)));
    register(at, page() + 1, at, 4).unwrap();
    register(at, page(), at, 1).unwrap();
    pages.protect(page(), libc::PROT_NONE);
    assert!(matches!(register(at, page() + 1, at, 0), Err(RegMrError::NotMapped)));
    // On demand, memory may come later.
    let later = register(at, 2 * page(), at, 1 << 6).unwrap();
    let view = table.view(PD);
    let read = || view.read_local(lkey(later), pages.at(page()), &mut [0], 0);
    assert_eq!(read(), Err(MemoryError::Fault));
    pages.protect(page(), libc::PROT_READ);
    assert_eq!(read(), Ok(()));
}

/// Memory may be unmapped while it is registered. A card would not notice, because it pins the pages.
#[test]
#[cfg_attr(
    miri,
    ignore = "Miri has no memory files, and ends the run at an access to memory that is not there"
)]
fn memory_that_went_is_a_fault() {
    type Take = fn(&Pages, &std::fs::File);
    let ways: [(&str, bool, Take); 4] = [
        ("unmapped", false, |pages, _| pages.unmap(page())),
        ("protected", false, |pages, _| pages.protect(page(), libc::PROT_NONE)),
        ("read only", true, |pages, _| pages.protect(page(), libc::PROT_READ)),
        ("truncated", false, |_, file| file.set_len(page() as u64).unwrap()),
    ];
    let table = table();
    let mut view = table.view(PD);
    for (name, readable, take) in ways {
        let (pages, file) = Pages::of_file(3);
        let key = register(&table, &pages, ALL);
        take(&pages, &file);
        for (access, result) in touch_all(&mut view, key, pages.at(page())) {
            let reads = access.starts_with("read");
            let want = if readable && reads { Ok(()) } else { Err(MemoryError::Fault) };
            assert_eq!(result, want, "{access}, {name}");
        }
        // Across the border, by all ways to copy: what lies before it is written, lowest address first.
        for (before, len) in [(1, 2), (7, 8), (100, 200), (300, 4096), (4095, 8192)] {
            let at = pages.at(page() - before);
            assert_eq!(
                view.write_local(lkey(key), at, &vec![0xa5; len]),
                Err(MemoryError::Fault),
                "{name} {len}"
            );
            let mut out = vec![0; len];
            let want = if readable { Ok(()) } else { Err(MemoryError::Fault) };
            assert_eq!(view.read_local(lkey(key), at, &mut out, 0), want, "{name} {len}");
            let mut start = vec![0; before];
            view.read_local(lkey(key), at, &mut start, 0).unwrap();
            let step = if len < 256 { 64 } else { 128 };
            let written = start.iter().take_while(|&&b| b == 0xa5).count();
            assert!(before - written < step, "{name} {len}: {written} of {before}");
        }
        let mut out = [0; 8];
        let want = if readable { Ok(()) } else { Err(MemoryError::Fault) };
        assert_eq!(view.read_inline(pages.at(page()), &mut out), want);
        table.deregister(key).unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends the run at an access to memory that is not there")]
fn addresses_that_cannot_exist_are_faults() {
    guard::install().unwrap();
    for addr in [0, 1, 0x8000_0000_0000_0000, 0xffff_8000_0000_0000, u64::MAX - 7] {
        assert_eq!(guard::read(addr, &mut [0; 8]), Err(guard::Fault), "{addr:#x}");
        assert_eq!(guard::read(addr, &mut [0; 1000]), Err(guard::Fault), "{addr:#x}");
    }
}

/// Every length and alignment that takes another way through the routines.
#[test]
#[cfg_attr(miri, ignore = "it tries the processor's routines, which Miri does not run")]
fn copies_are_exact() {
    let pages = Pages::new(4);
    let source: Vec<u8> = (0..2 * page()).map(|i| (i * 31 + i / 251) as u8).collect();
    let lens = (0..200).chain([255, 256, 257, 300, 511, 512, 513, 1000, 1024, 2047, 4096, 4097, 5000]);
    for len in lens {
        for (to, from) in
            [(0, 0), (1, 0), (0, 1), (3, 5), (8, 0), (15, 16), (16, 15), (31, 2), (32, 33), (61, 7)]
        {
            let data = &source[from..from + len];
            let all = pages.len / 2;
            // SAFETY: pages of our own, without references.
            unsafe { guard::write(pages.addr, &vec![0xee; all]) }.unwrap();
            // SAFETY: as above.
            unsafe { guard::write(pages.at(64 + to), data) }.unwrap();
            let mut seen = vec![0; all];
            guard::read(pages.addr, &mut seen).unwrap();
            assert!(seen[..64 + to].iter().all(|&b| b == 0xee), "{len} {to}");
            assert_eq!(&seen[64 + to..][..len], data, "{len} {to}");
            assert!(seen[64 + to + len..].iter().all(|&b| b == 0xee), "{len} {to}");
            let mut out = vec![0xdd; len + 128];
            guard::read(pages.at(64 + to), &mut out[from..from + len]).unwrap();
            assert_eq!(&out[from..from + len], data, "{len} {to} {from}");
            assert!(out[..from].iter().chain(&out[from + len..]).all(|&b| b == 0xdd));
        }
    }
}

/// Ends a thread's loop also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A reader that sees the last octet sees all others.
#[test]
#[cfg_attr(miri, ignore = "it tries the processor's routines, which Miri does not run")]
fn the_last_byte_comes_last_and_words_come_whole() {
    for (offset, len) in [(0, 64), (8, 4088), (40, 333), (5, 100)] {
        let pages = Pages::new(2);
        let stop = AtomicBool::new(false);
        // Rounds that began. Each writes its number's remainder by 100 to all bytes.
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let n = rounds.fetch_add(1, Ordering::Relaxed) + 1;
                    // SAFETY: pages of our own, without references.
                    unsafe { guard::write(pages.at(offset), &vec![(n % 100) as u8; len]) }.unwrap();
                }
            });
            // SAFETY: mapped for the whole test, and only accessed as atomics here and by the routines.
            let byte = |i: usize| unsafe { AtomicU8::from_ptr(pages.at(i) as *mut u8) };
            // SAFETY: as above; `i` is a multiple of 8.
            let word = |i: usize| unsafe { AtomicU64::from_ptr(pages.at(i) as *mut u64) };
            let mut looked = 0;
            while looked < 20_000 {
                let before = rounds.load(Ordering::SeqCst);
                let last = byte(offset + len - 1).load(Ordering::SeqCst);
                let place = offset + looked % len;
                let seen = byte(place).load(Ordering::SeqCst);
                let passed = rounds.load(Ordering::SeqCst) - before;
                // Too early, or preempted for so long that remainders say nothing.
                if before < 2 || passed > 40 {
                    std::thread::yield_now();
                    continue;
                }
                looked += 1;
                let ahead = (seen + 100 - last) % 100;
                assert!(ahead <= 42, "{offset} {len}: {seen} where the end has {last}");
                let inner = (place / 8 * 8).max(offset.next_multiple_of(8));
                if inner + 8 <= offset + len {
                    let bytes = word(inner).load(Ordering::Relaxed).to_ne_bytes();
                    assert!(bytes.iter().all(|&b| b == bytes[0]), "torn: {bytes:?}");
                }
            }
        });
    }
}

#[test]
fn atomics_are_atomic_with_the_program() {
    let table = table();
    let pages = Pages::new(1);
    let key = register(&table, &pages, ALL);
    let each = few_in_miri(100_000);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut view = table.view(PD);
                for _ in 0..each {
                    view.fetch_add(rkey(key), pages.addr, 1).unwrap();
                }
            });
        }
        // SAFETY: mapped for the whole test, aligned, only accessed by atomics.
        let word = unsafe { AtomicU64::from_ptr(pages.addr as *mut u64) };
        for _ in 0..each {
            word.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut word = [0; 8];
    guard::read(pages.addr, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 3 * each);
}

#[test]
fn stale_and_guessed_keys_are_refused() {
    let table = MemoryTable::with_seed([3; 32]);
    let pages = Pages::new(1);
    let view = table.view(PD);
    let read = |key: u32| view.read_local(Lkey::new(key), pages.addr, &mut [0], 0);
    let key = register(&table, &pages, ALL);
    assert_eq!(read(key.value()), Ok(()));
    for wrong in (0..32).map(|bit| key.value() ^ 1 << bit).chain([0, 1, u32::MAX]) {
        assert_eq!(read(wrong), Err(MemoryError::BadKey), "{wrong:#x} for {:#x}", key.value());
    }
    table.deregister(key).unwrap();
    assert_eq!(read(key.value()), Err(MemoryError::BadKey));
    // Once more is nothing.
    table.deregister(key).unwrap();
    assert_eq!(table.len(), 0);
}

/// A slot is used again and again, and each time by another key.
#[test]
#[cfg_attr(miri, ignore = "50,000 registrations take minutes in Miri")]
fn key_generations_wrap_late() {
    let table = MemoryTable::with_seed([4; 32]);
    let pages = Pages::new(1);
    let view = table.view(PD);
    let register_once = || table.register(PD, pages.addr, 8, 0, Access::ON_DEMAND).unwrap();
    let first = register_once();
    table.deregister(first).unwrap();
    let mut old = HashSet::from([first.value()]);
    // 1,024 slots rest, so the first is used again by the 1,025th registration.
    for round in 0..50_000_u32 {
        let key = register_once();
        assert!(old.insert(key.value()), "key {:#x} again after {round}", key.value());
        assert_eq!(view.read_local(Lkey::new(key.value()), 0, &mut [0], 0), Ok(()));
        assert_eq!(view.read_local(Lkey::new(first.value()), 0, &mut [0], 0), Err(MemoryError::BadKey));
        table.deregister(key).unwrap();
    }
    assert_eq!(table.len(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "262,143 registrations take an hour in Miri")]
fn as_many_regions_as_reported() {
    let table = MemoryTable::with_seed([5; 32]);
    let keys: Vec<_> =
        (0..MAX_REGIONS).map(|i| table.register(PD, 0, 0, i.into(), Access::ON_DEMAND).unwrap()).collect();
    let windows: Vec<_> = (0..MAX_WINDOWS).map(|_| table.alloc_window(PD, MwType::Two).unwrap()).collect();
    assert_eq!(table.len(), 262_143);
    assert_eq!(table.alloc_window(PD, MwType::One), None);
    assert!(matches!(table.register(PD, 0, 0, 0, Access::ON_DEMAND), Err(RegMrError::Limit)));
    let values = keys.iter().chain(&windows).map(|key| key.value());
    assert_eq!(values.collect::<HashSet<_>>().len(), 262_143);
    windows.iter().for_each(|&window| table.dealloc_window(window));
    table.deregister(keys[77_777]).unwrap();
    let again = table.register(PD, 0, 0, 0, Access::ON_DEMAND).unwrap();
    assert!(!keys.contains(&again));
    keys.iter().for_each(|&key| table.deregister(key).unwrap());
    table.deregister(again).unwrap();
    assert!(table.is_empty());
}

/// Once a deregistration has returned the memory may go: nobody may be in a copy that began before.
#[test]
fn deregistration_waits_for_copies() {
    let table = table();
    let current = [const { AtomicU32::new(0) }; 4];
    let stop = AtomicBool::new(false);
    let (copies, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for slot in 0..4_usize {
            let (current, stop, copies, refused) = (&current, &stop, &copies, &refused);
            let mut view = table.view(PD);
            scope.spawn(move || {
                let mut buffer = vec![slot as u8; 16_384];
                while !stop.load(Ordering::Relaxed) {
                    for key in current {
                        let (key, va) = (Rkey::new(key.load(Ordering::Relaxed)), 0);
                        let result = match slot % 2 {
                            0 => view.write_remote(key, va, &buffer),
                            _ => view.read_remote(key, va, &mut buffer, 0),
                        };
                        match result {
                            Ok(()) => copies.fetch_add(1, Ordering::Relaxed),
                            Err(MemoryError::BadKey) => refused.fetch_add(1, Ordering::Relaxed),
                            Err(other) => panic!("{other}: a copy outlived the registration"),
                        };
                    }
                }
            });
        }
        for round in 0..if cfg!(miri) { 12 } else { 100 } {
            let pages = Pages::new(4);
            let key = register(&table, &pages, ALL.union(Access::ZERO_BASED));
            let before = copies.load(Ordering::Relaxed);
            current[round % 4].store(key.value(), Ordering::Relaxed);
            // In the middle of the copying, however late the machine lets it begin.
            let patience = Instant::now() + Duration::from_secs(20);
            while copies.load(Ordering::Relaxed) == before {
                assert!(Instant::now() < patience, "nobody copies");
                std::thread::yield_now();
            }
            table.deregister(key).unwrap();
            drop(pages);
        }
    });
    assert!(refused.into_inner() > 0);
}
