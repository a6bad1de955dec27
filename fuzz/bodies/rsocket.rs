// Applies one input to an rsocket: private data and headers of any content, then messages, completions and calls of the
// program in any order on one stream. Included by the fuzz target and by the test that replays its corpus, so it has no
// doc comment of its own.

use std::collections::VecDeque;

use ferroce_proto::{Remote, WcStatus};
use ferroce_rsocket::message::{ConnectData, Locator, Mapping, Message, SourceHeader};
use ferroce_rsocket::protocol::{How, Incoming, OwnMemory, Phase, Sizes, StreamProtocol, Table, Write};
use ferroce_wire::{Imm, Rkey};

/// Small, so that everything is used up soon.
const SIZES: Sizes = Sizes {
    send_buffer: 4096,
    receive_buffer: 4096,
    send_queue: 16,
    receive_queue: 16,
    inline: 64,
    mappings: 2,
};
const OWN: OwnMemory = OwnMemory {
    receive: Remote { addr: 0x1000, rkey: Rkey::new(1) },
    table: Remote { addr: 0x9000, rkey: Rkey::new(2) },
};

/// A table in which the peer wrote the same octet everywhere.
struct Filled(u8);

impl Table for Filled {
    fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= SIZES.table_len());
        out.fill(self.0);
    }

    fn clear(&self, at: usize, len: usize) {
        assert!(at + len <= SIZES.table_len());
    }
}

/// Panics on a broken promise.
pub fn run(data: &[u8]) {
    if let Ok((locator, behind)) = Locator::parse(data) {
        let mut room = [0; Locator::MAX_LEN];
        let length = locator.emit(&mut room);
        assert_eq!(Locator::parse(&room[..length]), Ok((locator, [].as_slice())));
        assert_eq!(length + behind.len(), data.len());
    }
    if let Ok((header, behind)) = SourceHeader::parse(data) {
        let mut room = [0; SourceHeader::MAX_LEN];
        let length = header.emit(&mut room);
        assert_eq!(SourceHeader::parse(&room[..length]), Ok((header, [].as_slice())));
        assert_eq!(length + behind.len(), data.len());
    }
    let (peer, steps) = match ConnectData::parse(data) {
        Ok(peer) => {
            assert_eq!(ConnectData::parse(&peer.emit()), Ok(peer));
            (peer, &data[ConnectData::LEN..])
        }
        Err(_) => (StreamProtocol::connect_data(&SIZES, &OWN), data),
    };
    let Ok(mut stream) = StreamProtocol::new(SIZES, OWN, peer) else { return };
    let mut posted: VecDeque<Write> = VecDeque::new();
    for step in steps.chunks_exact(7) {
        let &[kind, fill, a, b, c, d, e] = step else { return };
        let table = Filled(fill);
        let word = u32::from_be_bytes([a, b, c, d]);
        let small = u32::from(u16::from_be_bytes([d, e]));
        match kind % 12 {
            0..=2 => {
                let imm = (kind < 250).then_some(Imm([a, b, c, d]));
                stream.received(Incoming { imm, written: Some(u32::from(e)) }, &table);
            }
            3 => {
                let imm = Some(Message::Data(small).imm());
                stream.received(Incoming { imm, written: Some(small) }, &table);
            }
            4 => {
                let imm = Some(Message::Credits(small as u16).imm());
                stream.received(
                    Incoming { imm, written: [Some(0), Some(16), None, None][usize::from(fill & 3)] },
                    &table,
                );
            }
            5 => posted.extend(stream.transfer(small, &table)),
            6 => posted.extend(stream.direct(word.into(), small).ok().flatten()),
            7 => stream.consume(small),
            8 | 9 => {
                let status = if kind < 250 { WcStatus::Success } else { WcStatus::RemAccessErr };
                posted.pop_front().inspect(|write| stream.sent(write.wr_id, status));
            }
            10 => {
                let mapping = Mapping { offset: word.into(), memory: peer.first };
                posted
                    .extend(stream.announce_mapping(u16::from(d) % stream.peer_mappings().max(1), &mapping));
            }
            _ => stream.shutdown([How::Read, How::Write, How::Both][usize::from(fill % 3)]),
        }
        while let Some(write) = stream.control() {
            posted.push_back(write);
            assert!(posted.len() <= usize::from(SIZES.send_queue), "more than the send queue holds");
        }
        let (at, first, wrapped) = stream.readable_at(usize::MAX);
        assert_eq!(first + wrapped, stream.available());
        assert!(at + first <= SIZES.receive_buffer && wrapped <= at);
    }
    // Every WRITE that was posted completes.
    while let Some(write) = posted.pop_front() {
        stream.sent(write.wr_id, WcStatus::Success);
        if stream.phase() == Phase::Connected {
            posted.extend(std::iter::from_fn(|| stream.control()));
        }
    }
    assert!(stream.is_drained() || stream.phase() != Phase::Connected);
}
