//! Octets of the peer that end a stream, and the Terminate that says so.

use ferroce_proto::iwarp::StreamConfig;
use ferroce_proto::{AsyncEventKind, QpState, SendOp, StreamState, WcStatus};
use ferroce_wire::Rkey;
use ferroce_wire::iwarp::{Cause, Opcode, Queue, ReadRequest, SegmentHeader, Stag, Terminate};

use crate::ram::Remote;
use crate::world::{BASE, CAPS, CONFIG, End, KEY, SIZE, World, remote};

const PLAIN: StreamConfig = StreamConfig { crc: false, initiator: false, extensions: false, ..CONFIG };

/// An FPDU without CRC.
fn fpdu(header: SegmentHeader, payload: &[u8]) -> Vec<u8> {
    let ulpdu = header.len() + payload.len();
    let mut octets = (ulpdu as u16).to_be_bytes().to_vec();
    octets.extend(&header.emit()[..header.len()]);
    octets.extend(payload);
    octets.resize(octets.len() + ferroce_wire::iwarp::pad(ulpdu) + 4, 0);
    octets
}

fn tagged(opcode: Opcode, last: bool, stag: u32, offset: u64) -> SegmentHeader {
    SegmentHeader::Tagged { opcode, last, stag: Stag(stag), offset }
}

fn untagged(opcode: Opcode, last: bool, msn: u32, offset: u32) -> SegmentHeader {
    SegmentHeader::Untagged { opcode, last, invalidate: Stag(0), queue: opcode.queue(), msn, offset }
}

fn read(source: u32, source_offset: u64, length: u32) -> [u8; ReadRequest::LEN] {
    ReadRequest { sink: Stag(1), sink_offset: 2, length, source: Stag(source), source_offset }.emit()
}

/// The Terminate that an end with such a configuration answers `octets` with, and the end.
fn answer_of(
    config: &StreamConfig,
    prepare: impl FnOnce(&mut End),
    octets: &[u8],
) -> (Option<Terminate>, End) {
    let mut end = End::new(CAPS);
    end.qp.begin_stream(config, 1448).unwrap();
    end.qp.release_stream();
    prepare(&mut end);
    end.send();
    end.sent.clear();
    end.receive(octets);
    end.qp.stream_waited_in_vain();
    end.send();
    let sent: Vec<u8> = end.sent.iter().copied().collect();
    let header = sent.get(2..).and_then(|rest| SegmentHeader::parse(rest).ok());
    let is_terminate = header.is_some_and(|header| header.opcode() == Opcode::Terminate);
    (is_terminate.then(|| Terminate::parse(&sent[20..]).unwrap()), end)
}

fn of(cause: Cause) -> Terminate {
    let (layer, kind, code) = cause.codes();
    Terminate { layer: layer as u8, kind, code }
}

/// Each of the peer's errors, with its code (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8).
#[test]
fn every_error_has_its_terminate() {
    let write = |stag, offset, len: usize| fpdu(tagged(Opcode::Write, true, stag, offset), &vec![0; len]);
    let send = |msn, offset, len: usize| fpdu(untagged(Opcode::Send, true, msn, offset), &vec![0; len]);
    let request = |source, offset, length| {
        fpdu(untagged(Opcode::ReadRequest, true, 1, 0), &read(source, offset, length))
    };
    let end = BASE + SIZE as u64;
    let changed = |mut octets: Vec<u8>, at: usize, to: u8| {
        octets[at] = to;
        octets
    };
    let of_queue = |queue| SegmentHeader::Untagged {
        opcode: Opcode::Send,
        last: true,
        invalidate: Stag(0),
        queue: Queue(queue),
        msn: 1,
        offset: 0,
    };
    let invalidate = SegmentHeader::Untagged {
        opcode: Opcode::SendInvalidate,
        last: true,
        invalidate: Stag(KEY),
        queue: Queue::SEND,
        msn: 1,
        offset: 0,
    };
    for (cause, octets) in [
        (Cause::TaggedStag, write(0x77, BASE, 8)),
        (Cause::TaggedBounds, write(KEY, end - 4, 8)),
        (Cause::TaggedWrap, write(KEY, u64::MAX - 2, 8)),
        (Cause::AccessRights, write(0x2200, BASE, 8)),
        (Cause::ReadStag, request(0x77, BASE, 8)),
        (Cause::ReadBounds, request(KEY, end - 4, 8)),
        (Cause::ReadWrap, request(KEY, u64::MAX - 2, 8)),
        (Cause::AccessRights, request(0x2200, BASE, 8)),
        (Cause::MsnRange, send(2, 0, 8)),
        (Cause::MessageOffset, send(1, 8, 8)),
        (Cause::TooLong, send(1, 0, 65)),
        (Cause::Queue, fpdu(of_queue(1), &[])),
        (Cause::Queue, fpdu(of_queue(9), &[])),
        (Cause::CannotInvalidate, fpdu(invalidate, &[])),
        (Cause::TaggedVersion, changed(write(KEY, BASE, 8), 2, 0xc2)),
        (Cause::UntaggedVersion, changed(send(1, 0, 8), 2, 0x40)),
        (Cause::RdmapVersion, changed(send(1, 0, 8), 3, 0x83)),
        (Cause::UnexpectedOpcode, changed(send(1, 0, 8), 3, 0x4f)),
        // A write in an untagged segment.
        (Cause::UnexpectedOpcode, changed(send(1, 0, 8), 3, 0x40)),
        // Atomics and immediate data were not agreed on.
        (Cause::UnexpectedOpcode, fpdu(untagged(Opcode::Immediate, true, 1, 0), &[0; 8])),
        (Cause::UnexpectedOpcode, fpdu(untagged(Opcode::AtomicRequest, true, 1, 0), &[0; 52])),
        // Nobody asked for it.
        (Cause::UnexpectedOpcode, fpdu(tagged(Opcode::ReadResponse, true, KEY, BASE), &[0; 8])),
        (Cause::RemoteOperation, fpdu(untagged(Opcode::ReadRequest, true, 1, 0), &[0; 27])),
        (Cause::RemoteOperation, fpdu(untagged(Opcode::ReadRequest, false, 1, 0), &[0; 28])),
        // The length has no room for the header.
        (Cause::Framing, vec![0, 13, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (Cause::Framing, [&[0, 0, 0xc1, 0x40][..], &[0; 12]].concat()),
    ] {
        let prepare = |end: &mut End| {
            end.post_recv(100, 0, 64);
            end.ram.register(0x2200, BASE, vec![0; 64]).remote = Remote::NONE;
        };
        let (answer, end) = answer_of(&PLAIN, prepare, &octets);
        assert_eq!(answer, Some(of(cause)), "{cause:?}");
        assert_eq!((end.qp.state(), end.qp.stream_state()), (QpState::Error, StreamState::Closing));
        let status = match cause {
            Cause::TooLong => WcStatus::LocLenErr,
            Cause::CannotInvalidate => WcStatus::RemInvReqErr,
            _ => WcStatus::WrFlushErr,
        };
        assert_eq!(end.completions.iter().map(|c| c.status).collect::<Vec<_>>(), [status], "{cause:?}");
        assert_eq!(end.events.len(), 1, "{cause:?}");
        assert_eq!(end.ram.bytes(KEY)[..64], [0; 64], "{cause:?}: nothing was written");
    }
}

/// RFC 5041 section 7.2. The caller gives the program time before it says so.
#[test]
fn a_send_without_receive_ends_the_stream() {
    let octets = fpdu(untagged(Opcode::Send, true, 1, 0), &[1; 4]);
    let (answer, end) = answer_of(&PLAIN, |_| {}, &octets);
    assert_eq!(answer, Some(of(Cause::NoBuffer)));
    assert_eq!(end.events, [AsyncEventKind::QpFatal]);
}

#[test]
fn more_reads_than_agreed_on() {
    let octets: Vec<u8> = (1..=5)
        .flat_map(|msn| fpdu(untagged(Opcode::ReadRequest, true, msn, 0), &read(KEY, BASE, 8)))
        .collect();
    let (answer, _) = answer_of(&PLAIN, |_| {}, &octets);
    assert_eq!(answer, Some(of(Cause::StreamCatastrophic)));
}

#[test]
fn a_read_of_foreign_memory_comes_back_whole() {
    let octets = fpdu(untagged(Opcode::ReadRequest, true, 1, 0), &read(0x77, BASE, 8));
    let (_, end) = answer_of(&PLAIN, |_| {}, &octets);
    let sent: Vec<u8> = end.sent.iter().copied().collect();
    // Control, length of the segment, its header, and the request (RFC 5040 section 4.8).
    assert_eq!(sent[20..24], [0x01, 0x00, 0xe0, 0]);
    assert_eq!(sent[24..26], 46_u16.to_be_bytes());
    assert_eq!(sent[26..26 + 18 + 28], octets[2..2 + 18 + 28]);
}

#[test]
fn a_wrong_crc_delivers_nothing() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let [a, b] = &mut world.ends;
    b.post_recv(100, 0, 64);
    a.post(1, SendOp::Send, 0, 64);
    a.send();
    let mut octets: Vec<u8> = a.sent.drain(..).collect();
    octets[30] ^= 0x10;
    b.receive(&octets);
    assert_eq!(b.completions.iter().map(|c| c.status).collect::<Vec<_>>(), [WcStatus::WrFlushErr]);
    world.run();
    // The sender learns of it by the Terminate, which ends its queue pair.
    assert_eq!(world.ends[0].qp.state(), QpState::Error);
}

#[test]
fn the_peers_refusal_of_a_read_is_its_status() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let a = &mut world.ends[0];
    let nowhere = ferroce_proto::Remote { rkey: Rkey::new(0x77), addr: BASE };
    a.post(1, SendOp::Read { remote: nowhere }, 0, 8);
    a.post(2, SendOp::Read { remote: remote(0) }, 0, 8);
    world.run();
    let done: Vec<_> = world.ends[0].completions.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn memory_of_ours_that_is_wrong() {
    let mut world = World::new(&CONFIG, 1448, 5);
    let a = &mut world.ends[0];
    a.post(1, SendOp::Write { remote: remote(0) }, 0, 8);
    a.post(2, SendOp::Send, SIZE as u64, 8);
    a.post(3, SendOp::Send, 0, 8);
    world.run();
    let done: Vec<_> = world.ends[0].completions.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
    assert_eq!(world.ends[1].qp.state(), QpState::Error, "a Terminate came");
}

/// A response must be the one that the oldest read waits for.
#[test]
fn wrong_responses() {
    let mut request = None;
    for (stag, offset, len, last, cause) in [
        (0x77, 0, 64, true, Cause::TaggedStag),
        (KEY, 1, 64, true, Cause::TaggedBounds),
        (KEY, 0, 65, true, Cause::TaggedBounds),
        (KEY, 0, 63, true, Cause::TaggedBounds),
        (KEY, 0, 64, false, Cause::TaggedBounds),
    ] {
        let octets = fpdu(tagged(Opcode::ReadResponse, last, stag, BASE + offset), &vec![9; len]);
        let prepare = |end: &mut End| {
            end.post(1, SendOp::Read { remote: remote(0) }, 0, 64);
            request = Some(());
        };
        let (answer, end) = answer_of(&PLAIN, prepare, &octets);
        assert_eq!(answer, Some(of(cause)), "{stag:x} {offset} {len} {last}");
        assert_eq!(end.ram.bytes(KEY)[..64], [0; 64]);
    }
}
