use proptest::prelude::*;

use ferroce_wire::iwarp::mpa::{self, Enhanced, NOT_NEGOTIATED, Parsed, SetupError, SetupFrame, SetupKind};

use super::gather::emitted;
use super::*;
use crate::iwarp::{Rtr, StreamConfig};

/// The frames of rping between two kernels with siw: IRD 1 and ORD 1.
const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
const SIW_REPLY: &[u8] = b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x01\x00\x01";

const NONE: Enhanced =
    Enhanced { peer_to_peer: false, rtr_send: false, rtr_write: false, rtr_read: false, ird: 0, ord: 0 };

const REPLY: SetupFrame<'static> = SetupFrame {
    kind: SetupKind::Reply,
    markers: false,
    crc: false,
    rejected: false,
    gso_hint: false,
    extensions: false,
    revision: 2,
    enhanced: Some(NONE),
    private: &[],
};

const REQUEST: SetupFrame<'static> = SetupFrame { kind: SetupKind::Request, ..REPLY };

fn depths(ird: u8, ord: u8) -> SetupParams<'static> {
    SetupParams { ird, ord, ..SetupParams::default() }
}

/// The outcome of `params` with this reply.
fn replied(params: &SetupParams<'_>, reply: &SetupFrame<'_>) -> Result<StreamConfig, Failure> {
    match Initiator::new(params).unwrap().handle(&emitted(reply)) {
        Progress::Agreed(agreement, []) => Ok(agreement.stream),
        Progress::Failed(failure) => Err(failure),
        other => panic!("{other:?}"),
    }
}

fn with_block(block: Enhanced) -> SetupFrame<'static> {
    SetupFrame { enhanced: Some(block), ..REPLY }
}

fn failure(reason: Reason, cause: Cause) -> Result<StreamConfig, Failure> {
    let terminate = Terminate { cause, crc: false, send_markers: false };
    Err(Failure { reason, terminate: Some(terminate) })
}

/// A responder that has read this request.
fn asked(request: &SetupFrame<'_>) -> Responder {
    let mut responder = Responder::new();
    let heard = responder.handle(&emitted(request));
    assert!(matches!(heard, Heard::Request(_)), "{heard:?}");
    responder
}

/// The stream and the block of the reply to this request.
fn answered(request: &SetupFrame<'_>, params: &SetupParams<'_>) -> (StreamConfig, Option<Enhanced>) {
    let accepted = asked(request).accept(params).unwrap();
    (accepted.stream, frame(SetupKind::Reply, &accepted.reply).enhanced)
}

fn frame(kind: SetupKind, octets: &[u8]) -> SetupFrame<'_> {
    match mpa::parse(kind, octets) {
        Ok(Parsed::Done(frame, len)) if len == octets.len() => frame,
        other => panic!("{other:?}"),
    }
}

/// The captured exchange: our responder answers siw as siw does, and our initiator differs by two reserved
/// bits alone.
#[test]
fn the_exchange_of_siw() {
    let mut initiator = Initiator::new(&depths(1, 1)).unwrap();
    let mut request = SIW_REQUEST.to_vec();
    request[16] |= 0x08 | 0x04;
    assert_eq!(initiator.request(), request);
    let Progress::Agreed(agreement, b"FPDU") = initiator.handle(&[SIW_REPLY, b"FPDU"].concat()) else {
        panic!("{initiator:?}");
    };
    let stream = StreamConfig {
        initiator: true,
        crc: false,
        send_markers: false,
        receive_markers: false,
        ird: 1,
        ord: 1,
        rtr: None,
        large_fpdus: false,
        extensions: false,
    };
    assert_eq!((agreement.stream, agreement.private.len()), (stream, 0));
    assert_eq!((agreement.peer_ird, agreement.peer_ord), (Some(1), Some(1)));

    let mut responder = Responder::new();
    let Heard::Request(request) = responder.handle(SIW_REQUEST) else { panic!() };
    assert_eq!((request.ird(), request.ord(), request.peer_to_peer()), (Some(1), Some(1), false));
    let accepted = responder.accept(&depths(1, 1)).unwrap();
    assert_eq!(accepted.reply, SIW_REPLY);
    assert_eq!(accepted.stream, StreamConfig { initiator: false, ..stream });
}

/// The request of rstream between two kernels with siw: IRD 0 and ORD 1, and the reply has IRD 1 and ORD 0.
#[test]
fn the_depths_of_rstream() {
    let request = SetupFrame { enhanced: Some(Enhanced { ord: 1, ..NONE }), ..REQUEST };
    let (stream, block) = answered(&request, &depths(0, 1));
    assert_eq!((stream.ird, stream.ord), (1, 0));
    assert_eq!(block, Some(Enhanced { ird: 1, ord: 0, ..NONE }));
}

/// RFC 5044 7.1.1: CRCs are off only if neither end asks, and both ends find the same.
#[test]
fn either_end_turns_crcs_on() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let params = SetupParams { crc: ours, ..SetupParams::default() };
        assert_eq!(replied(&params, &SetupFrame { crc: theirs, ..REPLY }).unwrap().crc, ours || theirs);
        let accepted = asked(&SetupFrame { crc: theirs, ..REQUEST }).accept(&params).unwrap();
        assert_eq!(accepted.stream.crc, ours || theirs);
        assert_eq!(frame(SetupKind::Reply, &accepted.reply).crc, ours || theirs);
        assert_eq!(Initiator::new(&params).unwrap().request()[16] & 0x40 != 0, ours);
    }
}

/// RFC 5044 7.1.1: each direction has markers if its receiver asks. We send them and never ask.
#[test]
fn markers_only_where_the_peer_asks() {
    for markers in [false, true] {
        let stream = replied(&depths(0, 0), &SetupFrame { markers, ..REPLY }).unwrap();
        assert_eq!((stream.send_markers, stream.receive_markers), (markers, false));
        let accepted = asked(&SetupFrame { markers, ..REQUEST }).accept(&depths(0, 0)).unwrap();
        assert_eq!((accepted.stream.send_markers, accepted.stream.receive_markers), (markers, false));
        assert!(!frame(SetupKind::Reply, &accepted.reply).markers);
    }
    assert_eq!(Initiator::new(&depths(0, 0)).unwrap().request()[16] & 0x80, 0);
}

/// Both ends set the reserved bit of kernel siw, or FPDUs stay within the MSS.
#[test]
fn large_fpdus_need_both_ends() {
    assert_eq!(Initiator::new(&depths(0, 0)).unwrap().request()[16] & 0x08, 0x08);
    for gso_hint in [false, true] {
        let stream = replied(&depths(0, 0), &SetupFrame { gso_hint, ..REPLY }).unwrap();
        assert_eq!(stream.large_fpdus, gso_hint);
        let accepted = asked(&SetupFrame { gso_hint, ..REQUEST }).accept(&depths(0, 0)).unwrap();
        assert_eq!(accepted.stream.large_fpdus, gso_hint);
        assert_eq!(frame(SetupKind::Reply, &accepted.reply).gso_hint, gso_hint);
    }
}

/// Kernel siw rounds depths up to powers of two.
#[test]
fn offers_are_powers_of_two_up_to_128() {
    for (depth, offer) in
        [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (64, 64), (65, 128), (129, 128), (255, 128)]
    {
        let initiator = Initiator::new(&depths(depth, depth)).unwrap();
        let block = frame(SetupKind::Request, initiator.request()).enhanced;
        assert_eq!(block, Some(Enhanced { ird: offer, ord: offer, ..NONE }));
        let (stream, _) = answered(
            &SetupFrame { enhanced: Some(Enhanced { ird: 500, ..NONE }), ..REQUEST },
            &depths(depth, depth),
        );
        assert_eq!((u16::from(stream.ird), u16::from(stream.ord)), (offer, offer));
    }
}

/// RFC 6581 9.1: the initiator lowers its ORD to the reply's IRD, and cannot go on if the reply's ORD exceeds
/// its IRD.
#[test]
fn depths_of_the_initiator() {
    let outcome = |ird, ord| replied(&depths(4, 16), &with_block(Enhanced { ird, ord, ..NONE }));
    for (ird, ord, ours) in [(0, 0, 0), (3, 4, 3), (16, 4, 16), (17, 4, 16), (0x3ffe, 1, 16)] {
        let stream = outcome(ird, ord).unwrap();
        assert_eq!((stream.ird, stream.ord), (4, ours), "{ird} {ord}");
    }
    for ord in [5, 128, 129, 0x3ffe] {
        assert_eq!(outcome(1, ord), failure(Reason::InsufficientIrd { ird: 4, ord }, Cause::InsufficientIrd));
    }
}

/// RFC 6581 9.1: our ORD is at most the request's IRD. Our IRD is at least the request's ORD, as far as 128.
#[test]
fn depths_of_the_responder() {
    for (ird, ord, ours) in [
        (0, 0, (2, 0)),
        (1, 1, (2, 1)),
        (3, 9, (16, 3)),
        (9, 2, (2, 8)),
        (256, 256, (128, 8)),
        (0x3ffe, 0x3ffe, (128, 8)),
    ] {
        let request = SetupFrame { enhanced: Some(Enhanced { ird, ord, ..NONE }), ..REQUEST };
        let (stream, block) = answered(&request, &depths(2, 8));
        assert_eq!((stream.ird, stream.ord), ours, "{ird} {ord}");
        assert_eq!(block, Some(Enhanced { ird: ours.0.into(), ord: ours.1.into(), ..NONE }));
    }
}

/// RFC 6581 9.1: all ones leave a depth to the programs, and the reply says the same of the other end's
/// depth.
#[test]
fn depths_that_are_not_negotiated() {
    let silent = Enhanced { ird: NOT_NEGOTIATED, ord: NOT_NEGOTIATED, ..NONE };
    let stream = replied(&depths(4, 16), &with_block(silent)).unwrap();
    assert_eq!((stream.ird, stream.ord), (4, 16));
    let mut initiator = Initiator::new(&depths(4, 16)).unwrap();
    let Progress::Agreed(agreement, []) = initiator.handle(&emitted(&with_block(silent))) else { panic!() };
    assert_eq!((agreement.peer_ird, agreement.peer_ord), (None, None));

    let mut responder = asked(&SetupFrame { enhanced: Some(silent), ..REQUEST });
    let request = responder.request().unwrap();
    assert_eq!((request.ird(), request.ord()), (None, None));
    let accepted = responder.accept(&depths(2, 8)).unwrap();
    assert_eq!((accepted.stream.ird, accepted.stream.ord), (2, 8));
    assert_eq!(frame(SetupKind::Reply, &accepted.reply).enhanced, Some(silent));
    let half = Enhanced { ird: NOT_NEGOTIATED, ord: 1, ..NONE };
    let (stream, block) = answered(&SetupFrame { enhanced: Some(half), ..REQUEST }, &depths(2, 8));
    assert_eq!((stream.ird, stream.ord), (2, 8));
    assert_eq!(block, Some(Enhanced { ird: 2, ord: NOT_NEGOTIATED, ..NONE }));
}

/// RFC 6581 9.2: the request offers a Write, and a Read if one may be outstanding; the reply must take one of
/// them.
#[test]
fn ready_to_receive_of_the_initiator() {
    let params = SetupParams { peer_to_peer: true, ..depths(1, 1) };
    let offers = |params| frame(SetupKind::Request, Initiator::new(params).unwrap().request()).enhanced;
    let both = Enhanced { peer_to_peer: true, rtr_write: true, rtr_read: true, ird: 1, ord: 1, ..NONE };
    assert_eq!(offers(&params), Some(both));
    let no_read = SetupParams { ord: 0, ..params };
    assert_eq!(offers(&no_read), Some(Enhanced { rtr_read: false, ord: 0, ..both }));

    let none = failure(Reason::NoCommonRtr, Cause::NoMatchingRtr);
    let reply = |write, read, ird| with_block(Enhanced { rtr_write: write, rtr_read: read, ird, ..both });
    let rtr = |reply| replied(&params, &reply).map(|stream| stream.rtr);
    assert_eq!(rtr(reply(true, true, 1)), Ok(Some(Rtr::Write)));
    assert_eq!(rtr(reply(true, false, 0)), Ok(Some(Rtr::Write)));
    assert_eq!(rtr(reply(false, true, 1)), Ok(Some(Rtr::Read)));
    // The responder serves no Read.
    assert_eq!(replied(&params, &reply(false, true, 0)), none);
    assert_eq!(replied(&params, &reply(false, false, 1)), none);
    let only_send = Enhanced { rtr_send: true, rtr_write: false, rtr_read: false, ..both };
    assert_eq!(replied(&params, &with_block(only_send)), none);
    // The reply repeats A.
    assert_eq!(replied(&params, &with_block(Enhanced { peer_to_peer: false, ..both })), none);
    assert_eq!(replied(&depths(1, 1), &with_block(both)).map(|stream| stream.rtr), Ok(None));
}

/// RFC 6581 9.2: the reply repeats A and takes one kind. It serves at least one Read if it asks for one.
#[test]
fn ready_to_receive_of_the_responder() {
    let offer = Enhanced { peer_to_peer: true, ..NONE };
    for (rtr_send, rtr_write, rtr_read, rtr) in [
        (true, true, true, Rtr::Write),
        (false, true, false, Rtr::Write),
        (true, false, true, Rtr::Read),
        (true, false, false, Rtr::Send),
        (false, false, false, Rtr::Write),
    ] {
        let request =
            SetupFrame { enhanced: Some(Enhanced { rtr_send, rtr_write, rtr_read, ..offer }), ..REQUEST };
        let (stream, block) = answered(&request, &depths(0, 0));
        assert_eq!((stream.rtr, stream.ird), (Some(rtr), u8::from(rtr == Rtr::Read)));
        let taken = Enhanced {
            peer_to_peer: true,
            rtr_send: rtr == Rtr::Send,
            rtr_write: rtr == Rtr::Write,
            rtr_read: rtr == Rtr::Read,
            ird: stream.ird.into(),
            ord: 0,
        };
        assert_eq!(block, Some(taken));
    }
    // Without A the kinds mean nothing, and our own wish changes nothing.
    let request = SetupFrame { enhanced: Some(Enhanced { rtr_write: true, ..NONE }), ..REQUEST };
    let params = SetupParams { peer_to_peer: true, ..depths(0, 0) };
    let (stream, block) = answered(&request, &params);
    assert_eq!((stream.rtr, block), (None, Some(NONE)));
}

/// RFC 5044 7.1.1: revision 1 has no block, each end uses its own depths, and the reply has the revision of
/// the request.
#[test]
fn streams_of_revision_1() {
    let params = SetupParams { peer_to_peer: true, private: b"hi", ..depths(3, 5) };
    let mut initiator = Initiator::basic(&params).unwrap();
    let request = frame(SetupKind::Request, initiator.request());
    assert_eq!((request.revision, request.enhanced, request.private), (1, None, b"hi".as_slice()));
    for revision in [0, 1, 2] {
        let mut responder = asked(&SetupFrame { revision, enhanced: None, ..REQUEST });
        let request = responder.request().unwrap();
        assert_eq!((request.ird(), request.ord(), request.peer_to_peer()), (None, None, false));
        let accepted = responder.accept(&depths(3, 5)).unwrap();
        assert_eq!((accepted.stream.ird, accepted.stream.ord, accepted.stream.rtr), (4, 8, None));
        let reply = frame(SetupKind::Reply, &accepted.reply);
        assert_eq!((reply.revision, reply.enhanced), (revision, None));
        if revision == 1 {
            let Progress::Agreed(agreement, []) = initiator.handle(&accepted.reply) else { panic!() };
            let stream = agreement.stream;
            assert_eq!((stream.ird, stream.ord, stream.rtr, agreement.peer_ird), (4, 8, None, None));
        }
    }
}

/// RFC 6581 6: the reply to an enhanced request is of revision 2 and has the block.
#[test]
fn replies_of_another_revision() {
    for received in [0, 1] {
        let reply = SetupFrame { revision: received, enhanced: None, ..REPLY };
        assert_eq!(
            replied(&depths(1, 1), &reply),
            failure(Reason::Revision { sent: 2, received }, Cause::SetUp)
        );
    }
    let reply = SetupFrame { enhanced: None, ..REPLY };
    assert_eq!(replied(&depths(1, 1), &reply), failure(Reason::NoEnhancedBlock, Cause::SetUp));
    let mut basic = Initiator::basic(&depths(1, 1)).unwrap();
    let reason = Reason::Revision { sent: 1, received: 2 };
    assert!(matches!(basic.handle(&emitted(&REPLY)), Progress::Failed(failure) if failure.reason == reason));
}

/// RFC 5044 8: the Terminate message says that the reply was bad, in the form that the ends agreed on so far.
#[test]
fn terminate_of_the_initiator() {
    let mut initiator = Initiator::new(&SetupParams { crc: true, ..depths(1, 1) }).unwrap();
    let terminate = Terminate { cause: Cause::SetUp, crc: true, send_markers: false };
    let failure = Failure { reason: SetupError::Key.into(), terminate: Some(terminate) };
    assert_eq!(initiator.handle(b"HTTP"), Progress::Failed(failure));
    assert_eq!(
        initiator.handle(SIW_REPLY),
        Progress::Failed(Failure { reason: Reason::Over, terminate: None })
    );

    let reply = SetupFrame { crc: true, markers: true, enhanced: Some(Enhanced { ord: 9, ..NONE }), ..REPLY };
    let failure = replied(&depths(1, 1), &reply).unwrap_err();
    let terminate = Terminate { cause: Cause::InsufficientIrd, send_markers: true, ..terminate };
    assert_eq!(failure.terminate, Some(terminate));
}

/// RFC 5044 7.1.2: the initiator sends nothing behind its request before it has the reply.
#[test]
fn octets_behind_the_request() {
    let over = Failure { reason: Reason::OctetsBehindRequest, terminate: None };
    let mut responder = Responder::new();
    assert_eq!(responder.handle(&[SIW_REQUEST, b"x"].concat()), Heard::Failed(over));
    assert_eq!(responder.accept(&depths(1, 1)), Err(AnswerError::NoRequest));

    let mut responder = asked(&REQUEST);
    assert_eq!(responder.handle(&[]), Heard::Wait);
    assert_eq!(responder.handle(b"x"), Heard::Failed(over));
    assert_eq!(responder.reject(&[]), Err(AnswerError::NoRequest));
    assert_eq!(responder.handle(b"x"), Heard::Failed(Failure { reason: Reason::Over, terminate: None }));
}

/// An answer before the request is whole changes nothing.
#[test]
fn no_answer_before_the_request() {
    let mut responder = Responder::new();
    let (first, rest) = SIW_REQUEST.split_at(22);
    assert_eq!(responder.handle(first), Heard::Wait);
    assert_eq!(responder.handle(&[]), Heard::Wait);
    assert_eq!(responder.accept(&depths(1, 1)), Err(AnswerError::NoRequest));
    assert_eq!(responder.reject(b"no"), Err(AnswerError::NoRequest));
    assert!(responder.request().is_none());
    assert!(matches!(responder.handle(rest), Heard::Request(_)));
    assert_eq!(responder.accept(&depths(1, 1)).unwrap().reply, SIW_REPLY);
}

/// RFC 5044 7.1.2: a request that breaks the format has no answer.
#[test]
fn bad_requests_have_no_answer() {
    let mut responder = Responder::new();
    let failure = Failure { reason: SetupError::Key.into(), terminate: None };
    assert_eq!(responder.handle(b"GET /"), Heard::Failed(failure));
    let mut responder = Responder::default();
    let failure = Failure { reason: SetupError::Revision(3).into(), terminate: None };
    assert_eq!(responder.handle(b"MPA ID Req Frame\x10\x03\x00\x04"), Heard::Failed(failure));
}

/// RFC 5044 7.1.1: R with private data. The reject of an enhanced request has the block, for siw.
#[test]
fn rejects() {
    for (revision, enhanced) in [(1, None), (2, None), (2, Some(Enhanced { ird: 5, ..NONE }))] {
        let mut responder = asked(&SetupFrame { revision, enhanced, markers: true, ..REQUEST });
        let octets = responder.reject(b"no").unwrap();
        let reply = frame(SetupKind::Reply, &octets);
        assert!(reply.rejected && !reply.markers);
        assert_eq!((reply.revision, reply.enhanced), (revision, enhanced.map(|_| NONE)));
        let rejected = Progress::Rejected { private: b"no".to_vec() };
        assert_eq!(Initiator::new(&depths(1, 1)).unwrap().handle(&octets), rejected);
        assert_eq!(responder.reject(b"no"), Err(AnswerError::NoRequest));
    }
}

/// Kernel siw takes 251 octets of private data. A refused answer can be given again.
#[test]
fn bounds_of_private_data() {
    let long = [7; 252];
    let params = SetupParams { private: &long, ..SetupParams::default() };
    assert_eq!(Initiator::new(&params).unwrap_err(), PrivateTooLong(252));
    assert_eq!(Initiator::basic(&params).unwrap_err(), PrivateTooLong(252));
    let mut responder = asked(&REQUEST);
    assert_eq!(responder.accept(&params), Err(PrivateTooLong(252).into()));
    assert_eq!(responder.reject(&long), Err(PrivateTooLong(252).into()));
    let params = SetupParams { private: &long[..251], ..params };
    let reply = responder.accept(&params).unwrap().reply;
    assert_eq!((reply.len(), &reply[24..]), (275, &long[..251]));
    assert_eq!(Initiator::new(&params).unwrap().request().len(), 275);
    // A peer may send as much as the format allows.
    let most = [9; 508];
    let responder = asked(&SetupFrame { private: &most, ..REQUEST });
    assert_eq!(responder.request().unwrap().private, most);
}

/// The parameters of an end, without private data.
fn params() -> impl Strategy<Value = SetupParams<'static>> {
    (any::<[bool; 2]>(), any::<u8>(), any::<u8>()).prop_map(|([crc, peer_to_peer], ird, ord)| SetupParams {
        crc,
        ird,
        ord,
        private: &[],
        peer_to_peer,
    })
}

fn frames(kind: SetupKind) -> impl Strategy<Value = (SetupFrame<'static>, Vec<u8>)> {
    let block = proptest::option::of((any::<[bool; 4]>(), 0..=NOT_NEGOTIATED, 0..=NOT_NEGOTIATED));
    let private = proptest::collection::vec(any::<u8>(), 0..=508);
    (any::<[bool; 5]>(), 0..=2_u8, block, private).prop_map(move |(set, revision, block, private)| {
        let enhanced = block.map(|([a, b, c, d], ird, ord)| Enhanced {
            peer_to_peer: a,
            rtr_send: b,
            rtr_write: c,
            rtr_read: d,
            ird,
            ord,
        });
        let [markers, crc, rejected, gso_hint, extensions] = set;
        let enhanced = enhanced.filter(|_| revision == 2);
        let frame = SetupFrame {
            kind,
            markers,
            crc,
            rejected,
            gso_hint,
            extensions,
            revision,
            enhanced,
            private: &[],
        };
        (frame, private)
    })
}

/// Cuts octets into pieces of these sizes, used again and again.
fn pieces<'a>(octets: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = octets;
    sizes.iter().cycle().map_while(move |size| {
        let (piece, behind) = rest.split_at((*size).min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

proptest! {
    /// Both ends of ours agree whatever they offer, and however TCP cuts the frames.
    #[test]
    fn our_ends_agree(
        ours in params(),
        theirs in params(),
        private in proptest::collection::vec(any::<u8>(), 0..=MAX_SENT_PRIVATE),
        back in proptest::collection::vec(any::<u8>(), 0..=MAX_SENT_PRIVATE),
        behind in proptest::collection::vec(any::<u8>(), 0..40),
        sizes in proptest::collection::vec(1..60_usize, 1..9),
        basic: bool,
    ) {
        let ours = SetupParams { private: &private, ..ours };
        let mut initiator = if basic { Initiator::basic(&ours) } else { Initiator::new(&ours) }.unwrap();
        let mut responder = Responder::new();
        let request = initiator.request().to_vec();
        let mut left = request.len();
        for piece in pieces(&request, &sizes) {
            left -= piece.len();
            let heard = responder.handle(piece);
            prop_assert_eq!(matches!(heard, Heard::Request(_)), left == 0);
            prop_assert_eq!(matches!(heard, Heard::Wait), left != 0);
        }
        prop_assert_eq!(&responder.request().unwrap().private, &private);
        let accepted = responder.accept(&SetupParams { private: &back, ..theirs }).unwrap();

        let stream = [&accepted.reply[..], &behind].concat();
        let mut leftover = Vec::new();
        let mut agreed = None;
        for piece in pieces(&stream, &sizes) {
            if agreed.is_some() {
                leftover.extend_from_slice(piece);
                continue;
            }
            match initiator.handle(piece) {
                Progress::Wait => {}
                Progress::Agreed(agreement, rest) => {
                    leftover.extend_from_slice(rest);
                    agreed = Some(agreement);
                }
                other => panic!("{other:?}"),
            }
        }
        let agreement = agreed.unwrap();
        prop_assert_eq!(&agreement.private, &back);
        prop_assert_eq!(leftover, behind);
        let (active, passive) = (agreement.stream, accepted.stream);
        prop_assert_eq!((active.initiator, passive.initiator), (true, false));
        prop_assert_eq!(active.crc, passive.crc);
        prop_assert_eq!(active.rtr, passive.rtr);
        prop_assert_eq!(active.rtr.is_some(), ours.peer_to_peer && !basic);
        prop_assert!(active.large_fpdus && passive.large_fpdus);
        prop_assert!(active.extensions && passive.extensions);
        prop_assert_eq!([active.send_markers, passive.send_markers], [false; 2]);
        prop_assert!(basic || active.ord <= passive.ird && passive.ord <= active.ird);
        prop_assert!([active, passive].iter().all(|end| end.ird <= MAX_DEPTH && end.ord <= MAX_DEPTH));
    }

    /// A peer's frame of any content has one outcome, in one piece or in many.
    #[test]
    fn any_frame_has_one_outcome(
        ours in params(),
        (request, private) in frames(SetupKind::Request),
        (reply, back) in frames(SetupKind::Reply),
        sizes in proptest::collection::vec(1..60_usize, 1..9),
    ) {
        let request = emitted(&SetupFrame { private: &private, ..request });
        let mut responder = Responder::new();
        pieces(&request, &sizes).for_each(|piece| assert!(!matches!(responder.handle(piece), Heard::Failed(_))));
        prop_assert_eq!(&responder.request().unwrap().private, &private);
        let stream = responder.accept(&ours).unwrap().stream;
        prop_assert!(stream.ird <= MAX_DEPTH && stream.ord <= MAX_DEPTH && !stream.receive_markers);

        let reply = emitted(&SetupFrame { private: &back, ..reply });
        let mut at_once = Initiator::new(&ours).unwrap();
        let mut piecewise = Initiator::new(&ours).unwrap();
        let outcomes: Vec<_> = pieces(&reply, &sizes).map(|piece| piecewise.handle(piece)).collect();
        let (last, before) = outcomes.split_last().unwrap();
        prop_assert!(before.iter().all(|progress| *progress == Progress::Wait));
        prop_assert_eq!(last, &at_once.handle(&reply));
    }

    /// Octets of any content end in an outcome, and the ends keep at most one frame.
    #[test]
    fn hostile_octets(
        key in 0..3_usize,
        tail in proptest::collection::vec(any::<u8>(), 0..700),
        sizes in proptest::collection::vec(1..60_usize, 1..9),
    ) {
        let octets = [[b"", &SIW_REQUEST[..16], &SIW_REPLY[..16]][key], &tail].concat();
        let (mut initiator, mut responder) = (Initiator::new(&depths(1, 1)).unwrap(), Responder::new());
        for piece in pieces(&octets, &sizes) {
            let _ = initiator.handle(piece);
            let _ = responder.handle(piece);
        }
        if octets.len() > mpa::MAX_LEN {
            let over = Failure { reason: Reason::Over, terminate: None };
            prop_assert_eq!(initiator.handle(&[]), Progress::Failed(over));
            prop_assert!(matches!(responder.handle(&[]), Heard::Failed(_)));
        }
    }
}

/// RFC 5044 4.1, RFC 5041 4.3, RFC 5040 4.8: length, control octets, queue 2, MSN 1, layer MPA, type 0,
/// code 6, CRC.
#[test]
fn a_terminate_for_a_failed_set_up() {
    const COVERED: &[u8] = b"\x00\x16\x41\x47\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0\x20\x06\0\0";
    let of = |crc, send_markers| Terminate { cause: Cause::InsufficientIrd, crc, send_markers }.fpdu();
    assert_eq!(of(false, false).unwrap(), [COVERED, &[0; 4]].concat());
    assert_eq!(of(true, false).unwrap(), [COVERED, b"\x65\x40\xfb\x1b"].concat());
    assert_eq!(of(true, true), None);
}
