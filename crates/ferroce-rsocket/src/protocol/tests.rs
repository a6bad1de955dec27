//! Two ends and the wire between them, with any interleaving, small buffers and few credits. The octets
//! arrive in order, and at least one end can always make progress.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::message::{ByteOrder, ConnectData, Grant, Mapping, Message};
use ferroce_wire::{Imm, Rkey};
use proptest::prelude::*;

use super::*;
use ferroce_proto::{Remote, WcStatus};

const RECEIVE: Remote = Remote { addr: 0x1000_0000, rkey: Rkey::new(1) };
const TABLE: Remote = Remote { addr: 0x2000_0000, rkey: Rkey::new(2) };
const OPENED: Remote = Remote { addr: 0x3000_0000, rkey: Rkey::new(3) };
const OWN: OwnMemory = OwnMemory { receive: RECEIVE, table: TABLE };

const SMALL: Sizes = Sizes {
    send_buffer: 4096,
    receive_buffer: 4096,
    send_queue: 16,
    receive_queue: 16,
    inline: 64,
    mappings: 3,
};

struct Octets(RefCell<Vec<u8>>);

impl Table for Octets {
    fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0.borrow()[at..at + out.len()]);
    }

    fn clear(&self, at: usize, len: usize) {
        self.0.borrow_mut()[at..at + len].fill(0);
    }
}

/// An outstanding WRITE: inline octets are captured, others are read on arrival.
struct Posted {
    write: Write,
    captured: Option<Vec<u8>>,
}

struct End {
    stream: StreamProtocol,
    send: Vec<u8>,
    receive: Vec<u8>,
    opened: Vec<u8>,
    table: Octets,
    posted: VecDeque<Posted>,
    wqes: usize,
    sent: VecDeque<u64>,
    came: VecDeque<Incoming>,
    written: u64,
    read: u64,
    /// Messages come as sends behind their WRITEs.
    by_sends: bool,
}

/// The octet at offset `place` of the stream.
fn octet(place: u64) -> u8 {
    (place.wrapping_mul(31) ^ (place >> 8) ^ (place >> 16)) as u8
}

impl End {
    fn new(sizes: Sizes, peer: ConnectData) -> Self {
        Self {
            stream: StreamProtocol::new(sizes, OWN, peer).unwrap(),
            send: vec![0; sizes.send_buffer as usize],
            receive: vec![0; sizes.receive_buffer as usize],
            opened: vec![0; 5000],
            table: Octets(RefCell::new(vec![0; sizes.table_len()])),
            posted: VecDeque::new(),
            wqes: sizes.receive_queue.into(),
            sent: VecDeque::new(),
            came: VecDeque::new(),
            written: 0,
            read: 0,
            by_sends: false,
        }
    }

    fn post(&mut self, write: Write) {
        let captured = match write.payload {
            Payload::None => Some(Vec::new()),
            Payload::Grant(octets) => Some(octets.to_vec()),
            Payload::Mapping(octets) => Some(octets.to_vec()),
            Payload::Buffer { inline: true, .. } => Some(self.gather(write.payload)),
            Payload::Buffer { inline: false, .. } => None,
        };
        self.posted.push_back(Posted { write, captured });
    }

    fn gather(&self, payload: Payload) -> Vec<u8> {
        let Payload::Buffer { at, first, wrapped, .. } = payload else { unreachable!() };
        let at = at as usize;
        [&self.send[at..at + first as usize], &self.send[..wrapped as usize]].concat()
    }

    fn fill(&mut self, payload: Payload, octet: impl Fn(u64) -> u8) -> u64 {
        let Payload::Buffer { at, first, wrapped, .. } = payload else { unreachable!() };
        for i in 0..first {
            self.send[(at + i) as usize] = octet(u64::from(i));
        }
        for i in 0..wrapped {
            self.send[i as usize] = octet(u64::from(first + i));
        }
        u64::from(first + wrapped)
    }

    /// Sends a piece of at most `octets`, and returns its length.
    fn write(&mut self, octets: u32) -> u64 {
        let Some(write) = self.stream.transfer(octets, &self.table) else { return 0 };
        let from = self.written;
        let length = self.fill(write.payload, |i| octet(from + i));
        self.written += length;
        self.post(write);
        self.post_control();
        length
    }

    /// Reads and checks at most `octets`, and returns their number.
    fn read(&mut self, octets: usize) -> u64 {
        let (at, first, wrapped) = self.stream.readable_at(octets);
        let places = (at..at + first).chain(0..wrapped);
        for place in places {
            assert_eq!(self.receive[place as usize], octet(self.read), "octet {}", self.read);
            self.read += 1;
        }
        self.stream.consume(first + wrapped);
        self.post_control();
        u64::from(first + wrapped)
    }

    fn post_control(&mut self) {
        while let Some(write) = self.stream.control() {
            self.post(write);
        }
    }

    /// Handles one completion; returns whether there was one.
    fn complete(&mut self, receive: bool) -> bool {
        let found = if receive {
            let Some(incoming) = self.came.pop_front() else { return false };
            self.stream.received(incoming, &self.table);
            self.wqes += 1;
            true
        } else {
            let Some(id) = self.sent.pop_front() else { return false };
            self.stream.sent(id, WcStatus::Success);
            true
        };
        self.post_control();
        found
    }

    fn arrive(&mut self, octets: &[u8], remote: Remote, imm: Option<Imm>) {
        if !octets.is_empty() {
            let (memory, base) = match remote.rkey {
                key if key == RECEIVE.rkey => (&mut self.receive, RECEIVE.addr),
                key if key == OPENED.rkey => (&mut self.opened, OPENED.addr),
                key => {
                    assert_eq!(key, TABLE.rkey);
                    (self.table.0.get_mut(), TABLE.addr)
                }
            };
            let at = usize::try_from(remote.addr - base).unwrap();
            memory[at..at + octets.len()].copy_from_slice(octets);
        }
        if imm.is_some() {
            self.wqes -= 1;
            let written = (!self.by_sends).then_some(octets.len() as u32);
            self.came.push_back(Incoming { imm, written });
        }
    }
}

/// Delivers the oldest WRITE of `from` unless `to` has no receive WQE; returns whether it did.
fn deliver(from: &mut End, to: &mut End) -> bool {
    let Some(Posted { write, captured }) = from.posted.pop_front() else { return false };
    if write.imm.is_some() && to.wqes == 0 {
        from.posted.push_front(Posted { write, captured });
        return false;
    }
    let octets = captured.unwrap_or_else(|| from.gather(write.payload));
    to.arrive(&octets, write.remote, write.imm);
    from.sent.push_back(write.wr_id);
    true
}

fn pair(a: Sizes, b: Sizes) -> [End; 2] {
    let of = |sizes: &Sizes| StreamProtocol::connect_data(sizes, &OWN);
    [End::new(a, of(&b)), End::new(b, of(&a))]
}

fn two(ends: &mut [End; 2], from: usize) -> (&mut End, &mut End) {
    let [a, b] = ends;
    if from == 0 { (a, b) } else { (b, a) }
}

/// Delivers all outstanding WRITEs.
fn deliver_all(ends: &mut [End; 2]) {
    ends.iter_mut().for_each(End::post_control);
    loop {
        let mut moved = false;
        for from in 0..2 {
            let (from, to) = two(ends, from);
            moved |= deliver(from, to) | to.complete(true) | from.complete(false);
        }
        if !moved {
            return;
        }
    }
}

/// A seeded generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (2048_u32..10_000, 2048_u32..10_000, 1_u16..40, 1_u16..40, 0_u32..200).prop_map(
        |(send_buffer, receive_buffer, send_queue, receive_queue, inline)| {
            Sizes { send_buffer, receive_buffer, send_queue, receive_queue, inline, mappings: 0 }
                .possible(u16::MAX)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Both ends send and read at random, and completions are polled at random times: nothing is lost, and
    /// neither end hangs.
    #[test]
    fn everything_arrives(a in sizes(), b in sizes(), seed in 1_u64.., octets in 0_u64..200_000, by_sends: bool) {
        let mut ends = pair(a, b);
        ends.iter_mut().for_each(|end| end.by_sends = by_sends);
        let mut dice = Dice(seed);
        let mut idle = 0;
        while ends.iter().any(|end| end.written < octets || end.read < octets) {
            let (from, to) = two(&mut ends, dice.below(2) as usize);
            let moved = match dice.below(5) {
                0 => from.write((dice.below(5000) + 1).min(octets - from.written) as u32) > 0,
                1 => from.read(dice.below(5000) as usize + 1) > 0,
                2 => deliver(from, to),
                3 => from.complete(true),
                _ => from.complete(false),
            };
            idle = if moved { 0 } else { idle + 1 };
            prop_assert!(idle < 2000, "no end makes progress: {:?} {:?}", ends[0].stream, ends[1].stream);
            prop_assert!(ends.iter().all(|end| end.stream.phase() == Phase::Connected));
        }
        deliver_all(&mut ends);
        for end in &ends {
            prop_assert_eq!((end.written, end.read), (octets, octets));
            prop_assert!(end.stream.is_drained() && end.stream.can_send());
        }
    }

    /// The state stays consistent under any messages of a peer: readable octets lie in the buffer.
    #[test]
    fn no_message_confuses(words in prop::collection::vec((any::<u32>(), 0_u32..6, any::<u8>()), 1..200)) {
        let [mut end, _] = pair(SMALL, SMALL);
        for (word, written, fill) in words {
            end.table.0.get_mut().fill(fill);
            let written = match written { 0 => 0, 1 => 16, 2 => 24, 3 => word & 0x1fff_ffff, _ => word & 0xfff };
            // Half of them close to what is legal.
            let word = if fill & 1 == 0 { word & 0xe000_0fff } else { word };
            let written = if fill & 2 == 0 { word & 0xfff } else { written };
            let imm = Some(Imm(word.to_be_bytes()));
            let told = (fill & 8 == 0).then_some(written);
            end.stream.received(Incoming { imm, written: told }, &end.table);
            while end.stream.control().is_some() {}
            let (at, first, wrapped) = end.stream.readable_at(usize::MAX);
            prop_assert!(at + first <= SMALL.receive_buffer && wrapped <= at);
            prop_assert_eq!(first + wrapped, end.stream.available());
            if fill & 4 == 0 {
                end.stream.consume(written);
            }
            end.stream.transfer(written, &end.table);
            let _ = end.stream.direct(u64::from(word), written);
        }
    }
}

#[test]
fn a_half_is_granted_at_once_and_again_when_it_was_read() {
    let [mut a, mut b] = pair(SMALL, SMALL);
    // The private data grant the first half; the second grant follows at once.
    b.post_control();
    let Payload::Grant(octets) = b.posted[0].write.payload else { panic!("{:?}", b.posted[0].write) };
    let grant = Grant::parse(&octets, ByteOrder::NATIVE);
    assert_eq!(grant, Grant { addr: RECEIVE.addr + 2048, rkey: RECEIVE.rkey, length: 2048 });
    assert_eq!(b.posted[0].write.remote, Remote { addr: TABLE.addr + 16, rkey: TABLE.rkey });
    assert_eq!(b.posted[0].write.imm, Some(Message::Credits(16).imm()));
    assert!(deliver(&mut b, &mut a) && a.complete(true));
    assert_eq!((a.write(4000), a.write(4000)), (2048, 2048));
    assert_eq!(a.write(1), 0, "neither end has room");
    let mut ends = [a, b];
    deliver_all(&mut ends);
    let [a, b] = &mut ends;
    assert!(!a.stream.can_send(), "nothing was read");
    assert_eq!(b.read(2047), 2047);
    assert!(b.posted.is_empty());
    assert_eq!(b.read(1), 1);
    assert_eq!(b.posted.len(), 1);
    deliver_all(&mut ends);
    assert!(ends[0].stream.can_send());
}

#[test]
fn credits_follow_half_of_the_messages() {
    let mut ends = pair(SMALL, SMALL);
    deliver_all(&mut ends);
    let [a, _] = &mut ends;
    let mut messages = 0;
    while a.write(1) == 1 {
        messages += 1;
    }
    assert_eq!(messages, 12, "control messages keep four send WQEs");
    deliver_all(&mut ends);
    let [a, _] = &mut ends;
    while a.write(1) == 1 {
        messages += 1;
    }
    assert_eq!(messages, 16, "credits are those of the receive queue");
    deliver_all(&mut ends);
    assert_eq!(ends[1].read(7), 7);
    deliver_all(&mut ends);
    assert!(!ends[0].stream.can_send());
    assert_eq!(ends[1].read(1), 1);
    deliver_all(&mut ends);
    let [a, _] = &mut ends;
    for _ in 0..8 {
        assert_eq!(a.write(1), 1);
    }
    assert_eq!(a.write(1), 0);
}

#[test]
fn shutdown_in_each_order() {
    for (first, second) in [(How::Write, How::Write), (How::Write, How::Both), (How::Both, How::Both)] {
        let mut ends = pair(SMALL, SMALL);
        deliver_all(&mut ends);
        ends[0].write(100);
        ends[0].stream.shutdown(first);
        assert!(!ends[0].stream.is_writable());
        assert_eq!(ends[0].write(1), 0);
        deliver_all(&mut ends);
        assert!(!ends[1].stream.is_readable());
        assert_eq!(ends[1].read(1000), 100, "what came before can be read");
        if first == How::Write {
            assert_eq!(ends[1].stream.phase(), Phase::Connected);
            assert_eq!(ends[1].write(10), 10, "the other way still works");
            deliver_all(&mut ends);
            assert_eq!(ends[0].read(1000), 10);
            ends[1].stream.shutdown(second);
            deliver_all(&mut ends);
        }
        assert!(ends.iter().all(|end| end.stream.phase() == Phase::Disconnected), "{first:?} {second:?}");
    }
}

#[test]
fn shutdown_of_reading_says_nothing_yet() {
    let mut ends = pair(SMALL, SMALL);
    deliver_all(&mut ends);
    ends[0].stream.shutdown(How::Read);
    deliver_all(&mut ends);
    assert!(ends[0].stream.is_writable() && ends[1].stream.is_readable());
    ends[0].stream.shutdown(How::Write);
    deliver_all(&mut ends);
    assert!(ends.iter().all(|end| end.stream.phase() == Phase::Disconnected));
}

#[test]
fn mappings_and_direct_writes() {
    let mut ends = pair(SMALL, SMALL);
    deliver_all(&mut ends);
    assert_eq!(ends[1].stream.peer_mappings(), 3);
    assert_eq!(ends[0].stream.direct(7, 1), Err(NoMapping(7)));
    let memory = Grant { addr: OPENED.addr, rkey: OPENED.rkey, length: 3000 };
    // Each round consumes a credit and must return it.
    for round in 0..100 {
        let mapping = Mapping { offset: 100 + round, memory };
        let write = ends[1].stream.announce_mapping(2, &mapping).expect("credit");
        ends[1].post(write);
        deliver_all(&mut ends);
    }
    assert_eq!(ends[0].stream.direct(198, 1), Err(NoMapping(198)));
    let [a, _] = &mut ends;
    let mut offset = 200;
    while let Some(write) = a.stream.direct(199 + (offset - 200), 5000).ok().flatten() {
        assert_eq!(write.imm, None);
        offset += a.fill(write.payload, octet);
        a.post(write);
        while let Some(Posted { write, captured }) = a.posted.pop_front() {
            let octets = captured.unwrap_or_else(|| a.gather(write.payload));
            assert!(octets.len() <= 3000 && write.remote.rkey == OPENED.rkey);
            a.stream.sent(write.wr_id, WcStatus::Success);
        }
    }
    assert_eq!(offset, 3200, "all of the mapping and no more");
}

#[test]
fn faults() {
    let message = |message: Message, written| Incoming { imm: Some(message.imm()), written: Some(written) };
    let empty_grants = |count: usize| vec![message(Message::Credits(20), 16); count];
    for (incoming, fault) in [
        (vec![message(Message::Data(5), 4)], Fault::Length { announced: 5, written: 4 }),
        (vec![message(Message::Data(2049), 2049)], Fault::Overrun { announced: 2049, granted: 2048 }),
        (vec![message(Message::Data(1), 1); 17], Fault::Credit),
        (vec![message(Message::Credits(1), 15)], Fault::Length { announced: 16, written: 15 }),
        (empty_grants(3), Fault::Grants),
        (vec![message(Message::Mapped(3), 24)], Fault::MappingIndex(3)),
        (vec![message(Message::Mapped(0), 0)], Fault::Length { announced: 24, written: 0 }),
        (vec![Incoming { imm: None, written: Some(0) }], Fault::NoImmediate),
    ] {
        let [mut end, _] = pair(SMALL, SMALL);
        for incoming in incoming {
            end.stream.received(incoming, &end.table);
        }
        assert_eq!(end.stream.phase(), Phase::Failed(fault));
        assert!(!end.stream.can_send() && end.stream.control().is_none());
    }
    let [mut end, _] = pair(SMALL, SMALL);
    end.stream.received(message(Message::Credits(20), 16), &end.table);
    assert_eq!(end.write(2048), 2048);
    assert_eq!(end.stream.phase(), Phase::Failed(Fault::EmptyGrant));
    let [mut end, _] = pair(SMALL, SMALL);
    end.stream.sent(0, WcStatus::RemAccessErr);
    assert_eq!(end.stream.phase(), Phase::Failed(Fault::Write(WcStatus::RemAccessErr)));
    let small = ConnectData {
        table: Grant { length: 1, ..Grant::NONE },
        ..StreamProtocol::connect_data(&SMALL, &OWN)
    };
    assert_eq!(StreamProtocol::new(SMALL, OWN, small).err(), Some(Fault::PeerTable(1)));
}

#[test]
fn keepalives_say_nothing_and_use_a_control_slot() {
    let mut ends = pair(SMALL, SMALL);
    deliver_all(&mut ends);
    let write = ends[0].stream.keepalive().expect("a slot");
    assert_eq!((write.payload, write.imm), (Payload::None, None));
    assert!(!ends[0].stream.is_drained());
    ends[0].post(write);
    deliver_all(&mut ends);
    assert!(ends[0].stream.is_drained());
    (0..4).for_each(|_| assert!(ends[0].stream.keepalive().is_some()));
    assert_eq!(ends[0].stream.keepalive(), None);
}

#[test]
fn sizes_are_made_possible() {
    let none =
        Sizes { send_buffer: 0, receive_buffer: 0, send_queue: 0, receive_queue: 0, inline: 0, mappings: 0 };
    let least = none.possible(1024);
    assert_eq!((least.send_buffer, least.receive_buffer), (4096, 4096));
    assert_eq!((least.send_queue, least.receive_queue), (16, 16));
    let all = Sizes {
        send_buffer: u32::MAX,
        receive_buffer: 5001,
        send_queue: u16::MAX,
        receive_queue: 2000,
        ..none
    };
    let most = all.possible(1024);
    assert_eq!((most.send_buffer, most.receive_buffer), (1 << 30, 5000));
    assert_eq!((most.send_queue, most.receive_queue), (1024, 1024));
    assert_eq!(all.possible(u16::MAX).send_queue, 0xfffe);
}
