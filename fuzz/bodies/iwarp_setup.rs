// Applies one input to the set-up of an iWARP stream: octets of any content to the parser and to both ends, and an
// exchange between two ends of ours with any parameters. Included by the fuzz target and by the test that replays its
// corpus, so it has no doc comment of its own.

use ferroce_proto::iwarp::setup::{
    Agreement, Heard, Initiator, MAX_DEPTH, Progress, Reason, Responder, SetupParams,
};
use ferroce_proto::iwarp::{Rtr, StreamConfig};
use ferroce_wire::iwarp::mpa::{self, MAX_LEN, Parsed, SetupFrame, SetupKind};

/// The first octets are the parameters of both ends, the rest comes from the peer. Panics on a broken promise.
pub fn run(data: &[u8]) {
    let Some((head, stream)) = data.split_first_chunk::<8>() else { return };
    let [kind, size, ird, ord, peer_ird, peer_ord, flags, private_len] = *head;
    let size = usize::from(size) + 1;
    let bit = |at: u32| flags >> at & 1 != 0;
    let private = stream.get(..usize::from(private_len)).unwrap_or(stream);
    let ours = SetupParams { crc: bit(0), ird, ord, private, peer_to_peer: bit(1) };
    let theirs = SetupParams { crc: bit(2), ird: peer_ird, ord: peer_ord, private, peer_to_peer: bit(3) };
    match kind % 4 {
        0 => frame(SetupKind::Request, stream),
        1 => frame(SetupKind::Reply, stream),
        2 => hostile(&ours, stream, size, bit(4)),
        _ => exchange(&ours, &theirs, stream, size, bit(4)),
    }
}

/// Parses a frame whose key is right, and parses it again after it was written.
fn frame(kind: SetupKind, octets: &[u8]) {
    let octets = [key(kind), octets].concat();
    let whole = mpa::parse(kind, &octets);
    for have in 0..octets.len().min(MAX_LEN) {
        match mpa::parse(kind, &octets[..have]) {
            Ok(Parsed::NeedMore(need)) => assert!(have < need && need <= MAX_LEN),
            other => assert_eq!(other, whole, "more octets change nothing"),
        }
    }
    let Ok(Parsed::Done(frame, len)) = whole else { return };
    let mut out = [0xee; MAX_LEN];
    assert_eq!(frame.emit(&mut out), Ok(len));
    assert_eq!(mpa::parse(kind, &out[..len]), Ok(Parsed::Done(frame, len)), "meaning is kept");
    assert!(frame.emit(&mut out[..len - 1]).is_err());
}

fn key(kind: SetupKind) -> &'static [u8] {
    match kind {
        SetupKind::Request => b"MPA ID Req Frame",
        SetupKind::Reply => b"MPA ID Rep Frame",
    }
}

fn initiator(params: &SetupParams<'_>, basic: bool) -> Option<Initiator> {
    let made = if basic { Initiator::basic(params) } else { Initiator::new(params) };
    assert_eq!(made.is_ok(), params.private.len() <= mpa::MAX_SENT_PRIVATE);
    made.ok()
}

/// Octets of any content behind the key, in pieces of `size`.
fn hostile(params: &SetupParams<'_>, stream: &[u8], size: usize, basic: bool) {
    let Some(mut initiator) = initiator(params, basic) else { return };
    let reply = [key(SetupKind::Reply), stream].concat();
    for piece in reply.chunks(size) {
        match initiator.handle(piece) {
            Progress::Wait => continue,
            Progress::Agreed(agreement, behind) => {
                assert!(reply.len() >= behind.len() && piece.ends_with(behind));
                agreed(&agreement, params, basic);
            }
            Progress::Rejected { private } => assert!(private.len() <= mpa::MAX_PRIVATE),
            Progress::Failed(failure) => assert_ne!(failure.reason, Reason::Over),
        }
        assert!(
            matches!(initiator.handle(piece), Progress::Failed(failure) if failure.reason == Reason::Over)
        );
        break;
    }

    let mut responder = Responder::new();
    for piece in [key(SetupKind::Request), stream].concat().chunks(size) {
        match responder.handle(piece) {
            Heard::Wait => {}
            Heard::Request(request) => assert!(request.private.len() <= mpa::MAX_PRIVATE),
            Heard::Failed(_) => assert!(responder.request().is_none()),
        }
    }
    let Some(request) = responder.request().cloned() else { return };
    let accepted = responder.accept(params).unwrap();
    within_bounds(&accepted.stream);
    assert_eq!(accepted.stream.crc, request.crc || params.crc);
    assert_eq!(accepted.stream.send_markers, request.markers);
    assert_eq!(accepted.stream.rtr.is_some(), request.peer_to_peer());
    let most = request.ird().unwrap_or(MAX_DEPTH.into());
    assert!(u16::from(accepted.stream.ord) <= most, "more reads than the initiator serves");
    let reply = reply_frame(&accepted.reply);
    assert_eq!((reply.revision, reply.rejected, reply.markers), (request.revision, false, false));
    assert_eq!(reply.enhanced.is_some(), request.enhanced.is_some());
}

fn reply_frame(octets: &[u8]) -> SetupFrame<'_> {
    match mpa::parse(SetupKind::Reply, octets) {
        Ok(Parsed::Done(frame, len)) if len == octets.len() => frame,
        other => panic!("{other:?}"),
    }
}

fn agreed(agreement: &Agreement, params: &SetupParams<'_>, basic: bool) {
    let stream = &agreement.stream;
    within_bounds(stream);
    assert!(stream.initiator && (stream.crc || !params.crc));
    assert!(agreement.private.len() <= mpa::MAX_PRIVATE);
    assert!(agreement.peer_ord.is_none_or(|ord| ord <= stream.ird.into()));
    assert!(agreement.peer_ird.is_none_or(|ird| u16::from(stream.ord) <= ird));
    assert_eq!(stream.rtr.is_some(), params.peer_to_peer && !basic);
    assert!(stream.rtr != Some(Rtr::Send) && (stream.rtr != Some(Rtr::Read) || stream.ord > 0));
}

fn within_bounds(stream: &StreamConfig) {
    assert!(stream.ird <= MAX_DEPTH && stream.ord <= MAX_DEPTH && !stream.receive_markers);
    assert!(stream.ird == 0 || stream.ird.is_power_of_two());
}

/// Two ends of ours agree, and the octets behind the reply are left over.
fn exchange(ours: &SetupParams<'_>, theirs: &SetupParams<'_>, behind: &[u8], size: usize, basic: bool) {
    let Some(mut initiator) = initiator(ours, basic) else { return };
    let mut responder = Responder::new();
    for piece in initiator.request().chunks(size) {
        assert!(!matches!(responder.handle(piece), Heard::Failed(_)));
    }
    if ours.ird == theirs.ird {
        let reject = responder.reject(theirs.private).unwrap();
        let rejected = Progress::Rejected { private: theirs.private.to_vec() };
        assert_eq!(initiator.handle(&reject), rejected);
        return;
    }
    let accepted = responder.accept(theirs).unwrap();
    let octets = [&accepted.reply, behind].concat();
    let mut at = 0;
    let agreement = octets.chunks(size).find_map(|piece| {
        at += piece.len();
        match initiator.handle(piece) {
            Progress::Wait => None,
            Progress::Agreed(agreement, rest) => {
                at -= rest.len();
                Some(agreement)
            }
            other => panic!("{other:?}"),
        }
    });
    let agreement = agreement.unwrap();
    agreed(&agreement, ours, basic);
    assert_eq!((&octets[at..], &agreement.private[..]), (behind, theirs.private));
    let (active, passive) = (agreement.stream, accepted.stream);
    assert_eq!((active.crc, active.rtr, active.large_fpdus), (passive.crc, passive.rtr, true));
    assert!(basic || active.ord <= passive.ird && passive.ord <= active.ird);
}
