//! Atomic writes and flushes.

use ferroce_proto::Bind;
use ferroce_wire::Feth;

use super::*;
use crate::backing::Backing;
use crate::slots::{Kind, Region};

const GLOBAL: Feth = Feth { placement: Feth::GLOBAL_VISIBILITY, selectivity: Feth::RANGE };
const PERSISTENT: Feth = Feth { placement: Feth::PERSISTENCE, selectivity: Feth::RANGE };
const WHOLE: Feth = Feth { selectivity: Feth::WHOLE_REGION, ..GLOBAL };

#[test]
fn an_atomic_write_is_a_write_of_an_aligned_word() {
    let table = table();
    let pages = Pages::new(1);
    let mut view = table.view(PD);
    let key = register(&table, &pages, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    assert_eq!(view.atomic_write(rkey(key), pages.at(16), *b"one word"), Ok(()));
    let mut out = [0; 16];
    view.read_local(lkey(key), pages.at(8), &mut out, 0).unwrap();
    assert_eq!(&out, b"\0\0\0\0\0\0\0\0one word");
    for offset in 1..8 {
        let at = pages.at(offset);
        assert_eq!(view.atomic_write(rkey(key), at, [0; 8]), Err(MemoryError::Misaligned));
        let check = view.check_remote(rkey(key), at, 8, RemoteAccess::AtomicWrite);
        assert_eq!(check, Err(MemoryError::Misaligned));
    }
    // Aligned in the packet, but not where it lies.
    let odd = table.register(PD, pages.at(4), 64, 0, ALL).unwrap();
    assert_eq!(view.atomic_write(rkey(odd), 8, [0; 8]), Err(MemoryError::Misaligned));
    assert_eq!(view.atomic_write(rkey(key), pages.at(page()), [0; 8]), Err(MemoryError::OutOfRange));
    let readable = register(&table, &pages, Access::REMOTE_READ);
    assert_eq!(view.atomic_write(rkey(readable), pages.at(16), [0; 8]), Err(MemoryError::NoPermission));
    // Miri protects no pages.
    if !cfg!(miri) {
        pages.protect(0, libc::PROT_READ);
        assert_eq!(view.atomic_write(rkey(key), pages.at(16), [0; 8]), Err(MemoryError::Fault));
    }
}

/// A reader sees one word or the next, never half of each, also at the ends of pages and cache lines.
#[test]
fn an_atomic_write_is_never_torn() {
    for offset in [0, 8, 56, 64, 4088, 4096 + 40] {
        let table = table();
        let pages = Pages::new(2);
        let key = register(&table, &pages, ALL);
        let stop = AtomicBool::new(false);
        let writes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| {
                let mut view = table.view(PD);
                for n in 1_u64.. {
                    view.atomic_write(rkey(key), pages.at(offset), [n as u8; 8]).unwrap();
                    writes.store(n, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            // SAFETY: mapped for the whole test, aligned, and only accessed as atomics here and by the
            // routines.
            let word = unsafe { AtomicU64::from_ptr(pages.at(offset) as *mut u64) };
            let (mut looks, mut last, mut seen) = (0, 0, 0);
            while looks < if cfg!(miri) { 100 } else { 100_000 }
                || seen < few_in_miri(100)
                || writes.load(Ordering::Relaxed) < few_in_miri(1000)
            {
                let value = word.load(Ordering::Acquire);
                let bytes = value.to_ne_bytes();
                assert!(bytes.iter().all(|&byte| byte == bytes[0]), "torn at {offset}: {bytes:?}");
                seen += u64::from(value != last);
                last = value;
                looks += 1;
            }
        });
    }
}

#[test]
fn a_flush_needs_its_permission_and_its_range() {
    let table = table();
    let pages = Pages::new(1);
    let mut view = table.view(PD);
    let key = register(&table, &pages, Access::FLUSH_GLOBAL);
    let at = pages.addr;
    assert_eq!(view.flush(rkey(key), at, page() as u64, GLOBAL), Ok(()));
    assert_eq!(view.flush(rkey(key), at, 0, GLOBAL), Ok(()));
    assert_eq!(view.flush(rkey(key), at, page() as u64 + 1, GLOBAL), Err(MemoryError::OutOfRange));
    assert_eq!(view.flush(rkey(key), 0, 8, GLOBAL), Err(MemoryError::OutOfRange));
    assert_eq!(view.flush(rkey(key), 0, u64::MAX, WHOLE), Ok(()), "address and length mean nothing");
    assert_eq!(view.flush(rkey(key), at, 8, PERSISTENT), Err(MemoryError::NoPermission));
    let both = Feth { placement: 3, ..GLOBAL };
    assert_eq!(view.flush(rkey(key), at, 8, both), Err(MemoryError::NoPermission));
    let plain = register(&table, &pages, ALL);
    assert_eq!(view.flush(rkey(plain), at, 8, GLOBAL), Err(MemoryError::NoPermission));
    assert_eq!(view.flush(Rkey::new(!key.value()), at, 0, GLOBAL), Err(MemoryError::BadKey));
    assert_eq!(table.view(PdId::new(2)).flush(rkey(key), at, 0, GLOBAL), Err(MemoryError::WrongPd));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memory files")]
fn only_persistent_memory_is_registered_to_be_made_persistent() {
    let table = table();
    let (pages, (shared, _file)) = (Pages::new(1), Pages::of_file(1));
    for at in [pages.addr, shared.addr] {
        let access = Access::LOCAL_WRITE | Access::FLUSH_PERSISTENT;
        assert!(matches!(table.register(PD, at, 64, at, access), Err(RegMrError::NotPersistent)));
    }
}

/// As if it were persistent: what there is to be written back is, as far as it is there.
#[test]
#[cfg_attr(miri, ignore = "Miri does not run the instruction that writes caches back")]
fn a_persistent_flush_touches_its_lines_and_survives_their_end() {
    if !guard::CAN_PERSIST {
        println!("skipped: this processor's caches cannot be written back by a program");
        return;
    }
    let table = table();
    let pages = Pages::new(3);
    let mut view = table.view(PD);
    let access = ALL | Access::FLUSH_PERSISTENT | Access::MW_BIND;
    let (addr, len, kind, backing) = (pages.addr, pages.len as u64, Kind::Memory, Backing::Processor);
    let key = table.insert(Region { pd: PD, addr, len, iova: addr, access, kind, backing }).unwrap();
    let whole = Feth { selectivity: Feth::WHOLE_REGION, ..PERSISTENT };
    for (offset, len) in [(0, 1), (63, 2), (0, 3 * page() as u64), (5, 0), (3 * page() - 1, 1)] {
        assert_eq!(view.flush(rkey(key), pages.at(offset), len, PERSISTENT), Ok(()));
    }
    assert_eq!(view.flush(rkey(key), 0, 0, whole), Ok(()));
    // A window of it may be flushed if it says so.
    let window = table.alloc_window(PD, MwType::One).unwrap();
    let bind = Bind {
        window: rkey(window),
        rkey: Rkey::new(1),
        region: lkey(key),
        addr,
        length: 64,
        access: ferroce_proto::WindowAccess::from_bits_retain(1 << 9),
    };
    view.bind(&bind).unwrap();
    let window = rkey(window.with_octet_of(1));
    assert_eq!(view.flush(window, addr, 64, PERSISTENT), Ok(()));
    assert_eq!(view.flush(window, addr, 65, PERSISTENT), Err(MemoryError::OutOfRange));
    pages.protect(2 * page(), libc::PROT_NONE);
    assert_eq!(view.flush(rkey(key), pages.at(page()), page() as u64, PERSISTENT), Ok(()));
    assert_eq!(
        view.flush(rkey(key), pages.at(page()), page() as u64 + 1, PERSISTENT),
        Err(MemoryError::Fault)
    );
    assert_eq!(view.flush(rkey(key), 0, 0, whole), Err(MemoryError::Fault));
}
