//! Memory windows.

use ferroce_proto::{Bind, WindowAccess};
use ferroce_wire::Qpn;

use super::*;

const OTHER: PdId = PdId::new(2);
const QPN: Qpn = Qpn::new(17);
const NEIGHBOUR: Qpn = Qpn::new(18);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

const BAD_KEY: Result<(), MemoryError> = Err(MemoryError::BadKey);
const WRONG: Result<(), MemoryError> = Err(MemoryError::WrongPd);
const NO: Result<(), MemoryError> = Err(MemoryError::NoPermission);

/// A region of one page, and a window.
struct Setup {
    table: MemoryTable,
    pages: Pages,
    region: Key,
    window: Key,
}

fn setup(kind: MwType) -> Setup {
    let table = table();
    let pages = Pages::new(1);
    let region = register(&table, &pages, BINDABLE);
    let window = table.alloc_window(PD, kind).unwrap();
    Setup { table, pages, region, window }
}

impl Setup {
    /// As a queue pair of the domain sees it.
    fn view(&self, qpn: Qpn) -> View {
        self.table.view(PD).of(qpn)
    }

    /// To bind eight bytes at 64, for all that a peer may do, by a key that ends in `octet`.
    fn bind(&self, octet: u32) -> Bind {
        Bind {
            window: rkey(self.window),
            rkey: Rkey::new(octet),
            region: lkey(self.region),
            addr: self.pages.at(64),
            length: 8,
            access: WindowAccess::REMOTE_READ | WindowAccess::REMOTE_WRITE | WindowAccess::REMOTE_ATOMIC,
        }
    }

    fn key(&self, octet: u32) -> Rkey {
        rkey(self.window.with_octet_of(octet))
    }
}

fn read(view: &View, key: Rkey, va: u64, len: usize) -> Result<(), MemoryError> {
    view.read_remote(key, va, &mut vec![0; len], 0)
}

#[test]
fn a_window_opens_its_part_of_a_region_to_peers_alone() {
    for kind in [MwType::One, MwType::Two] {
        let s = setup(kind);
        let mut view = s.view(QPN);
        let at = s.pages.at(64);
        assert_eq!(read(&view, rkey(s.window), at, 1), BAD_KEY, "not bound yet");
        view.bind(&s.bind(0x55)).unwrap();
        let key = s.key(0x55);
        assert_eq!(read(&view, key, at, 8), Ok(()));
        assert_eq!(view.write_remote(key, at, &41_u64.to_ne_bytes()), Ok(()));
        assert_eq!(view.fetch_add(key, at, 1), Ok(41));
        for (va, len) in [(at - 1, 1), (at + 8, 1), (at, 9), (at + 1, 8), (0, 8), (u64::MAX, 2)] {
            assert_eq!(read(&view, key, va, len), Err(MemoryError::OutOfRange), "{va:#x} {len}");
        }
        for octet in [0, 0x54, 0xff, s.window.value() & 0xff] {
            if octet != 0x55 {
                assert_eq!(read(&view, s.key(octet), at, 8), BAD_KEY, "{octet:#x}");
            }
        }
        // The window's key is no lkey, and what peers may do is the window's, not the region's.
        assert_eq!(view.read_local(Lkey::new(key.value()), at, &mut [0], 0), BAD_KEY);
        assert_eq!(read(&view, rkey(s.region), at, 8), NO);
    }
}

#[test]
fn permissions_are_the_windows_own() {
    let s = setup(MwType::One);
    let mut view = s.view(QPN);
    let at = s.pages.at(64);
    for access in [
        WindowAccess::empty(),
        WindowAccess::REMOTE_READ,
        WindowAccess::REMOTE_WRITE,
        WindowAccess::REMOTE_ATOMIC,
    ] {
        view.bind(&Bind { access, ..s.bind(9) }).unwrap();
        let want = |needed| if access.contains(needed) { Ok(()) } else { NO };
        assert_eq!(read(&view, s.key(9), at, 8), want(WindowAccess::REMOTE_READ));
        assert_eq!(view.write_remote(s.key(9), at, &[0; 8]), want(WindowAccess::REMOTE_WRITE));
        assert_eq!(view.fetch_add(s.key(9), at, 1).map(drop), want(WindowAccess::REMOTE_ATOMIC));
    }
}

#[test]
fn type_1_windows_serve_the_domain_and_type_2_one_queue_pair() {
    for (kind, neighbour) in [(MwType::One, Ok(())), (MwType::Two, WRONG)] {
        let s = setup(kind);
        s.view(QPN).bind(&s.bind(1)).unwrap();
        let at = s.pages.at(64);
        assert_eq!(read(&s.view(QPN), s.key(1), at, 8), Ok(()));
        assert_eq!(read(&s.view(NEIGHBOUR), s.key(1), at, 8), neighbour, "{kind:?}");
        assert_eq!(read(&s.table.view(OTHER).of(QPN), s.key(1), at, 8), WRONG, "{kind:?}");
        assert_eq!(read(&s.table.view(PD), s.key(1), at, 8), neighbour, "no queue pair, {kind:?}");
    }
}

#[test]
fn window_binds_are_checked() {
    for kind in [MwType::One, MwType::Two] {
        let s = setup(kind);
        let mut view = s.view(QPN);
        let plain = register(&s.table, &s.pages, Access::LOCAL_WRITE);
        let readable = register(&s.table, &s.pages, Access::MW_BIND);
        let zero = register(&s.table, &s.pages, BINDABLE.union(Access::ZERO_BASED));
        let foreign = s.table.register(OTHER, s.pages.addr, 4096, s.pages.addr, BINDABLE).unwrap();
        let null = s.table.register_null(PD).unwrap();
        let with = |region: Key| Bind { region: lkey(region), ..s.bind(1) };
        let mut refused = |why: &str, bind: Bind, want| {
            assert_eq!(view.bind(&bind), want, "{why}, {kind:?}");
        };
        refused("MW_BIND is missing", with(plain), NO);
        refused("write needs LOCAL_WRITE of the region", with(readable), NO);
        refused("zero based region", with(zero), BAD_KEY);
        refused("null region", with(null), BAD_KEY);
        refused("region of another domain", with(foreign), WRONG);
        refused("window as region", Bind { region: lkey(s.window), ..s.bind(1) }, BAD_KEY);
        refused("no region", Bind { region: Lkey::new(0), ..s.bind(1) }, BAD_KEY);
        refused("region as window", Bind { window: rkey(s.region), ..s.bind(1) }, BAD_KEY);
        refused("no window", Bind { window: Rkey::new(!s.window.value()), ..s.bind(1) }, BAD_KEY);
        let at = s.pages.addr;
        for (addr, length) in [
            (at - 1, 2),
            (at, page() as u64 + 1),
            (at + 1, page() as u64),
            (u64::MAX, 2),
            (at, u64::MAX),
            (0, 8),
        ] {
            let bind = Bind { addr, length, ..s.bind(1) };
            refused("outside of the region", bind, Err(MemoryError::OutOfRange));
        }
        for bit in [4, 6, 7, 8, 9, 10, 31] {
            let access = WindowAccess::from_bits_retain(1 << bit);
            refused("not for windows", Bind { access, ..s.bind(1) }, NO);
        }
        let mut other = s.table.view(OTHER).of(QPN);
        assert_eq!(other.bind(&s.bind(1)), WRONG, "queue pair of another domain");
        assert_eq!(other.bind(&with(foreign)), WRONG, "window of another domain");
        // Nothing of it left a trace.
        for region in [plain, readable, zero, foreign, null] {
            assert_eq!(s.table.deregister(region), Ok(()));
        }
        let local = WindowAccess::from_bits_retain(1) | WindowAccess::REMOTE_READ;
        view.bind(&Bind { access: local, ..s.bind(1) })
            .expect("LOCAL_WRITE is passed by programs and means nothing");
        // Readable memory may be bound to be read.
    }
    let s = setup(MwType::Two);
    let readable = register(&s.table, &s.pages, Access::MW_BIND);
    let bind = Bind { region: lkey(readable), access: WindowAccess::REMOTE_READ, ..s.bind(1) };
    assert_eq!(s.view(QPN).bind(&bind), Ok(()));
}

#[test]
fn type_1_is_bound_again_and_to_nothing() {
    let s = setup(MwType::One);
    let mut view = s.view(QPN);
    let at = s.pages.at(64);
    view.bind(&s.bind(1)).unwrap();
    view.bind(&Bind { addr: s.pages.at(128), ..s.bind(2) }).unwrap();
    assert_eq!(read(&view, s.key(1), at, 8), BAD_KEY, "the former key");
    assert_eq!(read(&view, s.key(2), at, 8), Err(MemoryError::OutOfRange));
    assert_eq!(read(&view, s.key(2), s.pages.at(128), 8), Ok(()));
    assert_eq!(view.invalidate(s.key(2)), NO, "not by a work request");
    assert_eq!(s.table.deregister(s.region), Err(1));
    view.bind(&Bind { length: 0, region: Lkey::new(0), ..s.bind(3) }).unwrap();
    for octet in 1..4 {
        assert_eq!(read(&view, s.key(octet), at, 8), BAD_KEY);
    }
    assert_eq!(s.table.deregister(s.region), Ok(()));
    // Nothing to unbind is no error.
    view.bind(&Bind { length: 0, ..s.bind(4) }).unwrap();
}

#[test]
fn type_2_is_bound_once_until_it_is_invalidated() {
    let s = setup(MwType::Two);
    let mut view = s.view(QPN);
    let at = s.pages.at(64);
    assert_eq!(view.invalidate(rkey(s.window)), BAD_KEY, "free");
    assert_eq!(view.bind(&Bind { length: 0, ..s.bind(1) }), NO);
    view.bind(&s.bind(1)).unwrap();
    assert_eq!(view.bind(&s.bind(2)), NO);
    assert_eq!(view.bind(&Bind { length: 0, ..s.bind(2) }), NO);
    assert_eq!(s.view(NEIGHBOUR).bind(&s.bind(2)), NO);
    assert_eq!(read(&view, s.key(1), at, 8), Ok(()));
    assert_eq!(s.view(NEIGHBOUR).invalidate(s.key(1)), WRONG);
    assert_eq!(s.table.view(OTHER).of(QPN).invalidate(s.key(1)), WRONG);
    assert_eq!(view.invalidate(s.key(2)), BAD_KEY);
    assert_eq!(view.invalidate(s.key(1)), Ok(()));
    assert_eq!(read(&view, s.key(1), at, 8), BAD_KEY);
    assert_eq!(view.invalidate(s.key(1)), BAD_KEY);
    // Another queue pair may be next.
    let mut neighbour = s.view(NEIGHBOUR);
    neighbour.bind(&s.bind(2)).unwrap();
    assert_eq!(read(&neighbour, s.key(2), at, 8), Ok(()));
    assert_eq!(read(&view, s.key(2), at, 8), WRONG);
}

#[test]
fn a_zero_based_window_counts_from_its_first_octet() {
    let s = setup(MwType::Two);
    let mut view = s.view(QPN);
    let access = WindowAccess::REMOTE_READ | WindowAccess::ZERO_BASED;
    view.write_local(lkey(s.region), s.pages.at(64), b"in the window").unwrap();
    view.bind(&Bind { access, length: 13, ..s.bind(1) }).unwrap();
    let mut out = [0; 6];
    assert_eq!(view.read_remote(s.key(1), 7, &mut out, 0), Ok(()));
    assert_eq!(&out, b"window");
    assert_eq!(view.read_remote(s.key(1), 8, &mut out, 0), Err(MemoryError::OutOfRange));
    assert_eq!(view.read_remote(s.key(1), s.pages.at(64), &mut out, 0), Err(MemoryError::OutOfRange));
}

/// A window uses the region's addresses, wherever those begin.
#[test]
fn a_window_of_a_region_with_an_iova() {
    let s = setup(MwType::One);
    let high = 0xffff_0000_0000_0000;
    let region = s.table.register(PD, s.pages.at(16), 64, high, BINDABLE).unwrap();
    let mut view = s.view(QPN);
    view.write_local(lkey(s.region), s.pages.at(24), b"by iova!").unwrap();
    view.bind(&Bind { region: lkey(region), addr: high + 8, ..s.bind(1) }).unwrap();
    let mut out = [0; 8];
    assert_eq!(view.read_remote(s.key(1), high + 8, &mut out, 0), Ok(()));
    assert_eq!(&out, b"by iova!");
}

#[test]
fn a_bound_region_stays_as_it_is() {
    for kind in [MwType::One, MwType::Two] {
        let s = setup(kind);
        let second = s.table.alloc_window(PD, kind).unwrap();
        let mut view = s.view(QPN);
        view.bind(&s.bind(1)).unwrap();
        view.bind(&Bind { window: rkey(second), ..s.bind(1) }).unwrap();
        let change = Change { pd: Some(OTHER), ..Change::default() };
        assert!(matches!(s.table.reregister(s.region, change), Err(RegMrError::Bound { windows: 2 })));
        assert_eq!(s.table.deregister(s.region), Err(2));
        s.table.dealloc_window(second);
        assert_eq!(s.table.deregister(s.region), Err(1));
        assert_eq!(read(&view, s.key(1), s.pages.at(64), 8), Ok(()));
        s.table.dealloc_window(s.window);
        assert_eq!(read(&view, s.key(1), s.pages.at(64), 8), BAD_KEY);
        assert_eq!(view.bind(&s.bind(1)), BAD_KEY, "no window any more");
        s.table.reregister(s.region, change).unwrap();
        assert_eq!(s.table.deregister(s.region), Ok(()));
        s.table.dealloc_window(s.window);
        assert!(s.table.is_empty());
    }
}

#[test]
fn a_region_can_be_ended_with_its_windows() {
    let s = setup(MwType::One);
    let other = s.table.alloc_window(PD, MwType::Two).unwrap();
    let mut view = s.view(QPN);
    view.bind(&s.bind(1)).unwrap();
    view.bind(&Bind { window: rkey(other), ..s.bind(1) }).unwrap();
    s.table.end(s.region);
    assert_eq!(read(&view, s.key(1), s.pages.at(64), 8), BAD_KEY);
    assert_eq!(view.read_local(lkey(s.region), s.pages.addr, &mut [0], 0), BAD_KEY);
    assert_eq!(view.invalidate(rkey(other.with_octet_of(1))), BAD_KEY);
    // The windows are there, to be bound to another.
    let region = register(&s.table, &s.pages, BINDABLE);
    view.bind(&Bind { region: lkey(region), ..s.bind(2) }).unwrap();
    s.table.end(region);
    s.table.end(region);
    assert_eq!(s.table.len(), 2);
}

#[test]
fn type_2_windows_end_with_their_queue_pair() {
    let s = setup(MwType::Two);
    let (one, other) =
        (s.table.alloc_window(PD, MwType::One).unwrap(), s.table.alloc_window(PD, MwType::Two).unwrap());
    let (mut mine, mut neighbour) = (s.view(QPN), s.view(NEIGHBOUR));
    mine.bind(&s.bind(1)).unwrap();
    mine.bind(&Bind { window: rkey(one), ..s.bind(1) }).unwrap();
    neighbour.bind(&Bind { window: rkey(other), ..s.bind(1) }).unwrap();
    let at = s.pages.at(64);
    mine.end_windows();
    assert_eq!(read(&mine, s.key(1), at, 8), BAD_KEY);
    assert_eq!(read(&mine, rkey(one.with_octet_of(1)), at, 8), Ok(()), "type 1 does not");
    assert_eq!(read(&neighbour, rkey(other.with_octet_of(1)), at, 8), Ok(()), "another's does not");
    assert_eq!(s.table.deregister(s.region), Err(2));
    mine.end_windows();
}

/// After an invalidate, a rebind or a dealloc has returned, no copy that began before goes on.
#[test]
fn the_end_of_a_window_waits_for_copies() {
    let table = table();
    let window = table.alloc_window(PD, MwType::One).unwrap();
    let stop = AtomicBool::new(false);
    let (copies, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                let mut view = table.view(PD);
                let data = vec![7; 16_384];
                while !stop.load(Ordering::Relaxed) {
                    match view.write_remote(rkey(window), 0, &data) {
                        Ok(()) => copies.fetch_add(1, Ordering::Relaxed),
                        Err(MemoryError::BadKey) => refused.fetch_add(1, Ordering::Relaxed),
                        Err(other) => panic!("{other}: a copy outlived the binding"),
                    };
                }
            });
        }
        let mut binder = table.view(PD).of(QPN);
        for round in 0_u64.. {
            let pages = Pages::new(4);
            let region = register(&table, &pages, BINDABLE);
            let bind = Bind {
                window: rkey(window),
                rkey: rkey(window),
                region: lkey(region),
                addr: pages.addr,
                length: 4 * page() as u64,
                access: WindowAccess::REMOTE_WRITE | WindowAccess::ZERO_BASED,
            };
            binder.bind(&bind).unwrap();
            std::thread::yield_now();
            binder.bind(&Bind { length: 0, ..bind }).unwrap();
            table.deregister(region).unwrap();
            drop(pages);
            if round >= few_in_miri(200)
                && copies.load(Ordering::Relaxed) > 0
                && refused.load(Ordering::Relaxed) > 0
            {
                break;
            }
        }
    });
}
