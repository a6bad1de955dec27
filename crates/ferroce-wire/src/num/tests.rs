use super::*;

#[test]
fn psn_is_a_circle() {
    let last = Psn::new(0xff_ffff);
    assert_eq!(last.next(), Psn::new(0));
    assert_eq!(Psn::new(0).since(last), 1);
    assert_eq!(last.since(Psn::new(0)), -1);
    assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
    assert_eq!(Psn::new(0xfff_ffff), last, "only 24 bits are kept");
    assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
}

#[test]
fn bytes_of_24_bits() {
    let qpn = Qpn::new(0x123456);
    assert_eq!(qpn.to_be_bytes(), [0x12, 0x34, 0x56]);
    assert_eq!(Qpn::from_be_bytes([0x12, 0x34, 0x56]), qpn);
}

/// IBTA 10.9.3.
#[test]
fn pkey_needs_one_full_member() {
    let (full, limited) = (Pkey::new(0x8001), Pkey::new(0x0001));
    assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
    assert!(!limited.matches(limited));
    assert!(!full.matches(Pkey::DEFAULT));
}

#[test]
fn path_mtu() {
    for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        assert_eq!(PathMtu::try_from(code).map(PathMtu::bytes), Ok(bytes));
    }
    assert_eq!(PathMtu::try_from(0), Err(InvalidPathMtu(0)));
    assert_eq!(PathMtu::try_from(6), Err(InvalidPathMtu(6)));
    for (netdev, want) in [
        (0, PathMtu::B256),
        (335, PathMtu::B256),
        (1103, PathMtu::B512),
        (1500, PathMtu::B1024),
        (4175, PathMtu::B2048),
        (4176, PathMtu::B4096),
        (65536, PathMtu::B4096),
    ] {
        assert_eq!(PathMtu::largest_fitting(netdev), want, "{netdev}");
    }
}

/// IBTA 9.7.5.2.8: the table, in microseconds.
#[test]
fn rnr_timer() {
    for (code, micros) in
        [(0, 655_360), (1, 10), (7, 120), (22, 20_480), (25, 61_440), (26, 81_920), (31, 491_520)]
    {
        assert_eq!(RnrTimer::new(code).unwrap().delay(), Duration::from_micros(micros), "{code}");
    }
    assert_eq!(RnrTimer::new(32), None);
}

#[test]
fn ack_timeout() {
    assert_eq!(AckTimeout::new(0).unwrap().delay(), None);
    assert_eq!(AckTimeout::new(1).unwrap().delay(), Some(Duration::from_nanos(8192)));
    assert_eq!(AckTimeout::new(14).unwrap().delay(), Some(Duration::from_nanos(67_108_864)));
    assert_eq!(AckTimeout::new(31).unwrap().delay(), Some(Duration::from_nanos(4096 << 31)));
    assert_eq!(AckTimeout::new(32), None);
}
