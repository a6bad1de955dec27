//! Registrations that are changed, and regions without memory.

use super::*;

const OTHER: PdId = PdId::new(2);

fn change_access(access: Access) -> Change {
    Change { access: Some(access), ..Change::default() }
}

fn change_memory(pages: &Pages) -> Change {
    Change { translation: Some((pages.addr, pages.len)), ..Change::default() }
}

/// Reads through a view, locally and as a peer.
fn reads(view: &View, key: Key, va: u64) -> [Result<(), MemoryError>; 2] {
    [view.read_local(lkey(key), va, &mut [0; 8], 0), view.read_remote(rkey(key), va, &mut [0; 8], 0)]
}

#[test]
fn each_property_changes_alone_and_all_together() {
    let table = table();
    let (first, second) = (Pages::new(1), Pages::new(2));
    let (mine, other) = (table.view(PD), table.view(OTHER));
    let key = register(&table, &first, Access::LOCAL_WRITE);
    assert_eq!(reads(&mine, key, first.addr), [Ok(()), Err(MemoryError::NoPermission)]);
    table.reregister(key, change_access(ALL)).unwrap();
    assert_eq!(reads(&mine, key, first.addr), [Ok(()); 2]);
    table.reregister(key, Change { pd: Some(OTHER), ..Change::default() }).unwrap();
    assert_eq!(reads(&mine, key, first.addr), [Err(MemoryError::WrongPd); 2]);
    assert_eq!(reads(&other, key, first.addr), [Ok(()); 2]);
    table.reregister(key, change_memory(&second)).unwrap();
    assert_eq!(reads(&other, key, first.addr), [Err(MemoryError::OutOfRange); 2]);
    assert_eq!(reads(&other, key, second.at(2 * page() - 8)), [Ok(()); 2]);
    let all = Change {
        pd: Some(PD),
        translation: Some((first.addr, 64)),
        access: Some(ALL.union(Access::ZERO_BASED)),
    };
    table.reregister(key, all).unwrap();
    assert_eq!(reads(&other, key, 0), [Err(MemoryError::WrongPd); 2]);
    assert_eq!(reads(&mine, key, 56), [Ok(()); 2]);
    assert_eq!(reads(&mine, key, 57), [Err(MemoryError::OutOfRange); 2]);
    table.reregister(key, change_access(ALL)).unwrap();
    assert_eq!(reads(&mine, key, first.at(56)), [Ok(()); 2], "no longer zero based");
    // Nothing to change is no error.
    table.reregister(key, Change::default()).unwrap();
    assert_eq!(reads(&mine, key, first.at(56)), [Ok(()); 2]);
    table.deregister(key).unwrap();
    assert!(matches!(table.reregister(key, all), Err(RegMrError::NoRegion)));
}

/// The domain is not changed before all the rest is known to be right.
#[test]
fn a_failed_reregistration_changes_nothing() {
    let table = table();
    let (pages, readonly) = (Pages::new(1), Pages::new(1));
    let view = table.view(PD);
    let key = register(&table, &pages, ALL);
    let with = |change: Change| table.reregister(key, Change { pd: Some(OTHER), ..change });
    let access = |bits| change_access(Access::from_bits_retain(bits));
    assert!(matches!(with(access(1 << 15)), Err(RegMrError::UnknownAccess(_))));
    assert!(matches!(with(access(1 << 1)), Err(RegMrError::NeedsLocalWrite)));
    assert!(matches!(with(access(1 << 9)), Err(RegMrError::NotPersistent)));
    // Miri protects no pages.
    if !cfg!(miri) {
        readonly.protect(0, libc::PROT_READ);
        assert!(matches!(with(change_memory(&readonly)), Err(RegMrError::NotMapped)));
    }
    let nowhere = Change { translation: Some((u64::MAX, 2)), ..Change::default() };
    assert!(matches!(with(nowhere), Err(RegMrError::Wraps)));
    assert_eq!(reads(&view, key, pages.addr), [Ok(()); 2]);
    assert_eq!(table.view(OTHER).read_local(lkey(key), pages.addr, &mut [0], 0), Err(MemoryError::WrongPd));
    table.deregister(key).unwrap();
}

#[test]
fn reregistration_does_not_toggle_on_demand_paging() {
    let table = table();
    let pages = Pages::new(1);
    let view = table.view(PD);
    for (access, other) in [(ALL, ALL.union(Access::ON_DEMAND)), (ALL.union(Access::ON_DEMAND), ALL)] {
        let key = register(&table, &pages, access);
        assert!(matches!(table.reregister(key, change_access(other)), Err(RegMrError::OnDemandChanged)));
        assert_eq!(reads(&view, key, pages.addr), [Ok(()); 2]);
        table.reregister(key, change_access(access)).unwrap();
        table.deregister(key).unwrap();
    }
}

/// A reader sees the old registration or the new one, and never an empty slot.
#[test]
fn accesses_meanwhile_see_the_old_or_the_new() {
    let table = table();
    let pages = [Pages::new(1), Pages::new(1)];
    let key = register(&table, &pages[0], ALL.union(Access::ZERO_BASED));
    let stop = AtomicBool::new(false);
    let seen = [const { AtomicU64::new(0) }; 2];
    for (number, pages) in pages.iter().enumerate() {
        // SAFETY: pages of our own, without references.
        unsafe { guard::write(pages.addr, &vec![number as u8 + 1; page()]) }.unwrap();
    }
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                let view = table.view(PD);
                let mut out = vec![0; if cfg!(miri) { 64 } else { page() }];
                while !stop.load(Ordering::Relaxed) {
                    view.read_remote(rkey(key), 0, &mut out, 0).unwrap();
                    assert!(out.iter().all(|&byte| byte == out[0]));
                    seen[usize::from(out[0]) - 1].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let enough = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) >= few_in_miri(100));
        for round in 1.. {
            table.reregister(key, change_memory(&pages[round % 2])).unwrap();
            if round >= few_in_miri(2000) as usize && enough() {
                break;
            }
        }
    });
    table.deregister(key).unwrap();
}

/// The old memory may go as soon as a change has returned.
#[test]
fn a_change_waits_for_copies() {
    let table = table();
    // Outlives the threads.
    let mut current = Pages::new(4);
    let key = register(&table, &current, ALL.union(Access::ZERO_BASED));
    let stop = AtomicBool::new(false);
    let copies = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                let mut view = table.view(PD);
                let data = vec![7; 16_384];
                while !stop.load(Ordering::Relaxed) {
                    view.write_remote(rkey(key), 0, &data).expect("mapped as long as registered");
                    copies.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0_u64.. {
            let next = Pages::new(4);
            table.reregister(key, change_memory(&next)).unwrap();
            // Unmaps it.
            drop(std::mem::replace(&mut current, next));
            if round >= few_in_miri(200) && copies.load(Ordering::Relaxed) >= few_in_miri(200) {
                break;
            }
        }
    });
    table.deregister(key).unwrap();
}

#[test]
fn a_null_region_reads_as_zeros_and_forgets() {
    let table = table();
    let mut view = table.view(PD);
    let key = table.register_null(PD).unwrap();
    for (va, len) in [(0, 1), (1, 4096), (u64::MAX - 8, 8), (u64::MAX, 100)] {
        let sge = Sge { addr: va, length: len as u32, lkey: lkey(key) };
        assert_eq!(view.check_local(&sge, true), Ok(()));
        assert_eq!(view.write_local(lkey(key), va, &vec![1; len]), Ok(()));
        let mut out = vec![2; len];
        assert_eq!(view.read_local(lkey(key), va, &mut out, 0), Ok(()));
        assert!(out.iter().all(|&byte| byte == 0));
    }
    // The registration has no rkey, and cannot be used otherwise.
    for (name, result) in touch_all(&mut view, key, 0) {
        if !name.ends_with("local") {
            assert!(result.is_err(), "{name}");
        }
    }
    assert_eq!(table.view(OTHER).read_local(lkey(key), 0, &mut [0], 0), Err(MemoryError::WrongPd));
    assert!(matches!(table.reregister(key, change_access(ALL)), Err(RegMrError::NoRegion)));
    table.deregister(key).unwrap();
    assert_eq!(view.read_local(lkey(key), 0, &mut [0], 0), Err(MemoryError::BadKey));
}
