//! Device memory of one process.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use ferroce_engine::error::{AllocDmError, Busy, DmAccessError};
use ferroce_engine::{
    Access, Context, MAX_DM_SIZE, Mr, MrChange, RegMrError, Remote, SendOp, Sge, WcOpcode, WcStatus,
};

const MAX: usize = MAX_DM_SIZE as usize;
const PAGE: usize = 4096;

fn zero_based() -> Access {
    all_access() | Access::ZERO_BASED
}

/// The tests of this file share the octets of the process, so one runs after the other.
fn one_after_the_other() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_process_has_so_many_octets() {
    let _turn = one_after_the_other();
    let contexts: [std::sync::Arc<Context>; 2] = [open(), open()];
    let limit = |asked: usize| match contexts[0].alloc_dm(asked, 0) {
        Err(AllocDmError::Limit { asked: told, max }) => assert_eq!((told, max), (asked as u64, MAX_DM_SIZE)),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{asked} octets were allocated"),
    };
    limit(MAX + 1);
    limit(usize::MAX);
    assert!(matches!(contexts[0].alloc_dm(0, 0), Err(AllocDmError::Empty)));
    for log_align in [25, 63, 64, u32::MAX] {
        assert!(matches!(contexts[0].alloc_dm(4, log_align), Err(AllocDmError::Alignment { .. })));
    }
    // Each takes whole pages, whichever context it is in.
    let all: Vec<_> = (0..MAX / PAGE).map(|i| contexts[i % 2].alloc_dm(1, 0).unwrap()).collect();
    limit(1);
    all[7].free().unwrap();
    limit(1);
    drop(all);
    let whole = contexts[1].alloc_dm(MAX, 24).unwrap();
    assert_eq!((whole.len(), whole.addr() % MAX_DM_SIZE), (MAX, 0));
    limit(1);
}

#[test]
fn it_is_free_when_no_region_is_in_it() {
    let _turn = one_after_the_other();
    let end = End::new(Wanted::default());
    let dm = end.context.alloc_dm(100, 0).unwrap();
    let reg = |offset, len, access| end.pd.reg_dm_mr(&dm, offset, len, access);
    assert!(matches!(reg(0, 100, all_access()), Err(RegMrError::NotZeroBased)));
    for (offset, len) in [(0, 101), (101, 0), (u64::MAX, 1), (4, usize::MAX)] {
        let outside =
            RegMrError::DeviceMemory(DmAccessError::OutOfRange { offset, len: len as u64, max: 100 });
        let Err(error) = reg(offset, len, zero_based()) else { panic!("{offset} {len}") };
        assert_eq!(error.to_string(), outside.to_string());
    }
    // A refused registration does not keep it.
    assert!(reg(0, 100, Access::ZERO_BASED | Access::REMOTE_WRITE).is_err());
    let (a, b) = (reg(0, 100, zero_based()).unwrap(), reg(99, 1, zero_based()).unwrap());
    let change = MrChange { access: Some(all_access()), ..MrChange::default() };
    assert!(matches!(a.rereg(&change), Err(RegMrError::NoRegion)));
    assert_eq!(dm.free(), Err(Busy { users: 2 }));
    a.dereg().unwrap();
    b.end();
    assert_eq!(dm.free(), Ok(()));
    assert_eq!(dm.free(), Ok(()), "a second call does nothing");
    assert_eq!(dm.write(0, &[1; 4]), Err(DmAccessError::Freed));
    assert!(matches!(reg(0, 4, zero_based()), Err(RegMrError::DeviceMemory(DmAccessError::Freed))));
}

#[test]
fn copies_are_of_words_inside() {
    let _turn = one_after_the_other();
    let dm = open().alloc_dm(100, 0).unwrap();
    let mut octets = [7; 104];
    dm.read(0, &mut octets[..100]).unwrap();
    assert_eq!((octets[..100].iter().max(), octets[100]), (Some(&0), 7));
    dm.write(96, &[1, 2, 3, 4]).unwrap();
    dm.read(92, &mut octets[..8]).unwrap();
    assert_eq!(octets[..8], [0, 0, 0, 0, 1, 2, 3, 4]);
    for (offset, len) in [(1, 4), (0, 2), (97, 3)] {
        assert_eq!(dm.write(offset, &octets[..len]), Err(DmAccessError::Misaligned), "{offset} {len}");
    }
    for (offset, len) in [(100_u64, 4_usize), (0, 104), (u64::MAX - 3, 8)] {
        let outside = DmAccessError::OutOfRange { offset, len: len as u64, max: 100 };
        assert_eq!(dm.write(offset, &octets[..len]), Err(outside));
        assert_eq!(dm.read(offset, &mut octets[..len]), Err(outside));
    }
}

fn sge(mr: &Mr, addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: mr.lkey() }
}

/// Between two regions of device memory, and outside of them.
#[test]
fn work_requests_address_it_from_zero_on() {
    let _turn = one_after_the_other();
    let (a, b) = pair();
    let dms = [&a, &b].map(|end: &End| end.context.alloc_dm(3 * PAGE, 3).unwrap());
    let near = a.pd.reg_dm_mr(&dms[0], 8, 2 * PAGE, zero_based()).unwrap();
    let far = b.pd.reg_dm_mr(&dms[1], 16, 2 * PAGE, zero_based()).unwrap();
    let octets: Vec<u8> = (0..2 * PAGE).map(|i| (i * 7 + i / 256) as u8).collect();
    dms[0].write(8, &octets).unwrap();
    let remote = |addr| Remote { addr, rkey: far.rkey() };
    a.post(1, SendOp::Write { remote: remote(0) }, sge(&near, 0, 2 * PAGE as u32));
    a.expect(1, WcOpcode::RdmaWrite);
    let mut arrived = vec![0; 2 * PAGE];
    dms[1].read(16, &mut arrived).unwrap();
    assert!(arrived == octets);
    dms[1].write(16 + 8, &40_u64.to_ne_bytes()).unwrap();
    a.post(2, SendOp::FetchAdd { remote: remote(8), add: 2 }, sge(&near, 16, 8));
    a.expect(2, WcOpcode::FetchAdd);
    let mut word = [0; 8];
    dms[1].read(16 + 8, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 42);
    dms[0].read(8 + 16, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 40);
    a.post(3, SendOp::Write { remote: remote(2 * PAGE as u64 - 7) }, sge(&near, 0, 8));
    assert_eq!(a.complete().status, WcStatus::RemAccessErr);
}
