extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The set-up frames of rping between two kernels with siw: IRD 1 and ORD 1.
const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
const SIW_REPLY: &[u8] = b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x01\x00\x01";

const BLOCK: Enhanced =
    Enhanced { peer_to_peer: false, rtr_send: false, rtr_write: false, rtr_read: false, ird: 1, ord: 1 };

const PLAIN: SetupFrame<'static> = SetupFrame {
    kind: SetupKind::Request,
    markers: false,
    crc: false,
    rejected: false,
    gso_hint: false,
    extensions: false,
    revision: 2,
    enhanced: Some(BLOCK),
    private: &[],
};

fn emitted(frame: &SetupFrame<'_>) -> Vec<u8> {
    let mut out = std::vec![0xee; MAX_LEN];
    let len = frame.emit(&mut out).unwrap();
    assert_eq!(len, frame.frame_len());
    assert!(out[len..].iter().all(|octet| *octet == 0xee));
    out.truncate(len);
    out
}

fn header(flags: u8, revision: u8, len: u16) -> Vec<u8> {
    [&REQUEST_KEY[..], &[flags, revision], &len.to_be_bytes()].concat()
}

fn request(octets: &[u8]) -> Result<Parsed<'_>, SetupError> {
    parse(SetupKind::Request, octets)
}

#[test]
fn frames_of_siw() {
    for (kind, octets) in [(SetupKind::Request, SIW_REQUEST), (SetupKind::Reply, SIW_REPLY)] {
        let frame = SetupFrame { kind, ..PLAIN };
        assert_eq!(parse(kind, octets), Ok(Parsed::Done(frame, 24)));
        assert_eq!(emitted(&frame), octets);
    }
    assert_eq!(parse(SetupKind::Reply, SIW_REQUEST), Err(SetupError::Key));
    assert_eq!(request(SIW_REPLY), Err(SetupError::Key));
}

/// RFC 5044 7.1.1 and RFC 6581 6: the flags, one by one. The three lowest bits are reserved.
#[test]
fn each_flag_has_its_bit() {
    let read = |flags| match request(&header(flags, 1, 0)) {
        Ok(Parsed::Done(frame, HEADER_LEN)) => {
            [frame.markers, frame.crc, frame.rejected, frame.gso_hint, frame.enhanced.is_some()]
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(read(0x80), [true, false, false, false, false]);
    assert_eq!(read(0x40), [false, true, false, false, false]);
    assert_eq!(read(0x20), [false, false, true, false, false]);
    assert_eq!(read(0x08), [false, false, false, true, false]);
    assert_eq!(read(0x07), [false; 5]);
    let bare = SetupFrame { enhanced: None, ..PLAIN };
    let flags = |frame: SetupFrame<'_>| emitted(&frame)[16];
    assert_eq!(flags(bare), 0);
    assert_eq!(flags(SetupFrame { markers: true, ..bare }), 0x80);
    assert_eq!(flags(SetupFrame { crc: true, ..bare }), 0x40);
    assert_eq!(flags(SetupFrame { rejected: true, ..bare }), 0x20);
    assert_eq!(flags(PLAIN), 0x10);
    assert_eq!(flags(SetupFrame { gso_hint: true, ..bare }), 0x08);
    assert_eq!(flags(SetupFrame { extensions: true, ..bare }), 0x04);
    assert_eq!(flags(SetupFrame { extensions: true, kind: SetupKind::Reply, ..bare }), 0x02);
}

/// RFC 6581 9: A and B lie above the IRD, C and D above the ORD.
#[test]
fn each_bit_of_the_block() {
    let none = Enhanced { ird: 0x0123, ord: 0x3210, ..BLOCK };
    for (block, octets) in [
        (none, [0x01, 0x23, 0x32, 0x10]),
        (Enhanced { peer_to_peer: true, ..none }, [0x81, 0x23, 0x32, 0x10]),
        (Enhanced { rtr_send: true, ..none }, [0x41, 0x23, 0x32, 0x10]),
        (Enhanced { rtr_write: true, ..none }, [0x01, 0x23, 0xb2, 0x10]),
        (Enhanced { rtr_read: true, ..none }, [0x01, 0x23, 0x72, 0x10]),
        (Enhanced { ird: NOT_NEGOTIATED, ord: NOT_NEGOTIATED, ..BLOCK }, [0x3f, 0xff, 0x3f, 0xff]),
    ] {
        let frame = SetupFrame { enhanced: Some(block), ..PLAIN };
        let wire = emitted(&frame);
        assert_eq!(wire[20..], octets);
        assert_eq!(request(&wire), Ok(Parsed::Done(frame, 24)));
    }
    let wide = Enhanced { ird: 0xffff, ord: 0xc001, ..BLOCK };
    assert_eq!(emitted(&SetupFrame { enhanced: Some(wide), ..PLAIN })[20..], [0x3f, 0xff, 0x00, 0x01]);
}

/// RFC 5044 7.1.1: S is a reserved bit of revision 1, and the private data begin at octet 20.
#[test]
fn only_revision_2_has_the_block() {
    for revision in [0, 1] {
        let octets = [header(0x10, revision, 3), b"abc".to_vec()].concat();
        let frame = SetupFrame { revision, enhanced: None, private: b"abc", ..PLAIN };
        assert_eq!(request(&octets), Ok(Parsed::Done(frame, 23)));
        let refused = SetupFrame { revision, ..PLAIN }.emit(&mut [0; MAX_LEN]);
        assert_eq!(refused, Err(SetupError::EnhancedInOldRevision(revision)));
    }
    // Revision 2 without S has no block either (RFC 6581 6).
    let octets = [header(0, 2, 3), b"abc".to_vec()].concat();
    let frame = SetupFrame { enhanced: None, private: b"abc", ..PLAIN };
    assert_eq!(request(&octets), Ok(Parsed::Done(frame, 23)));
}

/// RFC 5044 7.1.1: a receiver closes the connection if it does not know the revision.
#[test]
fn unknown_revisions() {
    for revision in 3..=255 {
        assert_eq!(request(&header(0, revision, 0)), Err(SetupError::Revision(revision)));
    }
}

/// RFC 5044 7.1.1: at most 512 octets of private data. RFC 6581 9: they include the block.
#[test]
fn bounds_of_private_data() {
    assert_eq!(request(&header(0, 1, 513)), Err(SetupError::PrivateTooLong(513)));
    assert_eq!(request(&header(0, 1, 0xffff)), Err(SetupError::PrivateTooLong(0xffff)));
    assert_eq!(request(&header(0, 1, 512)), Ok(Parsed::NeedMore(MAX_LEN)));
    for len in 0..4 {
        assert_eq!(request(&header(0x10, 2, len)), Err(SetupError::NoRoomForEnhanced(len.into())));
    }
    let most = [7; MAX_PRIVATE];
    let full = SetupFrame { private: &most[..508], ..PLAIN };
    assert_eq!(request(&emitted(&full)), Ok(Parsed::Done(full, MAX_LEN)));
    for (enhanced, private) in [(Some(BLOCK), 509), (None, 513)] {
        let private = &[7; 513][..private];
        let long = private.len() + if enhanced.is_some() { 4 } else { 0 };
        let refused = SetupFrame { enhanced, private, ..PLAIN }.emit(&mut [0; 600]);
        assert_eq!(refused, Err(SetupError::PrivateTooLong(long)));
    }
    let unbounded = std::vec![0; 1 << 17];
    let refused = SetupFrame { private: &unbounded, ..PLAIN }.emit(&mut [0; 600]);
    assert_eq!(refused, Err(SetupError::PrivateTooLong((1 << 17) + 4)));
}

#[test]
fn a_small_buffer_is_not_written() {
    for have in 0..24 {
        let mut out = [0xee; 24];
        let refused = PLAIN.emit(&mut out[..have]);
        assert_eq!(refused, Err(SetupError::BufferTooSmall { need: 24, have }));
        assert_eq!(out, [0xee; 24]);
    }
}

/// A peer of another protocol is refused at the first octet that differs.
#[test]
fn a_wrong_key_shows_at_once() {
    assert_eq!(request(b""), Ok(Parsed::NeedMore(HEADER_LEN)));
    assert_eq!(request(b"G"), Err(SetupError::Key));
    for at in 0..16 {
        let mut octets = SIW_REQUEST.to_vec();
        octets[at] ^= 1;
        for len in 0..=octets.len() {
            let parsed = request(&octets[..len]);
            if len > at {
                assert_eq!(parsed, Err(SetupError::Key), "octet {at} of {len}");
            } else {
                assert_eq!(parsed, Ok(Parsed::NeedMore(HEADER_LEN)));
            }
        }
    }
}

fn enhanced() -> impl Strategy<Value = Enhanced> {
    (any::<[bool; 4]>(), 0..=NOT_NEGOTIATED, 0..=NOT_NEGOTIATED).prop_map(|(bits, ird, ord)| {
        let [peer_to_peer, rtr_send, rtr_write, rtr_read] = bits;
        Enhanced { peer_to_peer, rtr_send, rtr_write, rtr_read, ird, ord }
    })
}

proptest! {
    /// Any frame keeps its meaning, every prefix asks for more and never for more than the frame, and octets
    /// behind it are left alone.
    #[test]
    fn round_trip(
        is_request: bool,
        [markers, crc, rejected, gso_hint, extensions]: [bool; 5],
        revision in 0..=2_u8,
        enhanced in proptest::option::of(enhanced()),
        private in proptest::collection::vec(any::<u8>(), 0..=508),
        behind in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let kind = if is_request { SetupKind::Request } else { SetupKind::Reply };
        let enhanced = enhanced.filter(|_| revision == 2);
        let frame =
            SetupFrame { kind, markers, crc, rejected, gso_hint, extensions, revision, enhanced, private: &private };
        let mut octets = emitted(&frame);
        let len = octets.len();
        let mut last = 0;
        for have in 0..len {
            let Ok(Parsed::NeedMore(need)) = parse(kind, &octets[..have]) else { panic!("{have} of {len}") };
            prop_assert!(have < need && last <= need && need <= len);
            last = need;
        }
        octets.extend(behind);
        prop_assert_eq!(parse(kind, &octets), Ok(Parsed::Done(frame, len)));
    }

    /// Octets behind a valid key never panic, and an error stays the same error with more octets.
    #[test]
    fn hostile_octets(
        header: [u8; 4],
        rest in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let octets = [&REQUEST_KEY[..], &header, &rest].concat();
        let whole = request(&octets);
        for have in 0..octets.len() {
            match request(&octets[..have]) {
                Ok(Parsed::NeedMore(need)) => prop_assert!(have < need && need <= MAX_LEN),
                other => prop_assert_eq!(other, whole),
            }
        }
    }
}
