extern crate std;

use std::vec;
use std::vec::Vec;

use super::*;
use crate::{Bth, IcrcStatus, Operation, Psn, Qpn, RcPacket, Request, SendTail, icrc};

const GSO: BatchLimits = BatchLimits { max_segments: 64, gso: true };
const SINGLES: BatchLimits = BatchLimits { max_segments: 64, gso: false };

fn flow(v6: bool) -> Flow {
    let (source, destination) = match v6 {
        false => ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        true => ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()),
    };
    Flow {
        source,
        destination,
        source_port: 0xc123,
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

fn head(qpn: u32, psn: u32) -> Packet<'static> {
    let send = Request::SendOnly { payload: &[], tail: SendTail::None };
    Packet {
        bth: Bth::new(Qpn::new(qpn), Psn::new(psn)),
        op: Operation::Rc(RcPacket::Request(send)),
        icrc: IcrcStatus::Pending,
    }
}

fn push(batch: &mut TxBatch<'_>, psn: u32, len: usize) -> Result<(), PushError<()>> {
    batch.push(&flow(false), &head(0x010002, psn), len, |payload| {
        assert_eq!(payload.len(), len);
        payload.fill(psn as u8);
        Ok(())
    })
}

/// The contents of the batch, to check that nothing changed.
fn contents(batch: &TxBatch<'_>) -> (Vec<u8>, usize, usize) {
    (batch.bytes().to_vec(), batch.segment_size(), batch.len())
}

#[test]
fn segments_are_complete_packets() {
    for (v6, limits) in [(false, GSO), (false, SINGLES), (true, GSO), (true, SINGLES)] {
        let mut buf = vec![0xee; 65536];
        let mut batch = TxBatch::new(&mut buf, limits);
        assert!(batch.is_empty() && batch.flow().is_none() && batch.segments().len() == 0);
        for psn in 0..5 {
            let len = if psn == 4 { 13 } else { 1024 };
            let fill = |payload: &mut [u8]| {
                payload.fill(psn as u8);
                Ok::<_, ()>(())
            };
            assert_eq!(batch.push(&flow(v6), &head(2, psn), len, fill), Ok(()));
        }
        assert_eq!((batch.len(), batch.segment_size()), (5, 1024 + 16));
        assert_eq!(batch.flow(), Some(&flow(v6)));
        assert_eq!(batch.bytes().len(), 4 * 1040 + 32);
        for (index, segment) in batch.segments().enumerate() {
            let id = if limits.gso { index as u16 } else { 0 };
            assert!(icrc::verify(&flow(v6), id, segment), "{index}");
            let packet = Packet::parse(segment).unwrap();
            assert_eq!(packet.bth.psn, Psn::new(index as u32));
            assert_eq!(packet.op.payload().len(), if index == 4 { 13 } else { 1024 });
            assert!(packet.op.payload().iter().all(|octet| usize::from(*octet) == index));
        }
        // Pad is zero although the buffer was not.
        assert_eq!(batch.bytes()[4 * 1040 + 12 + 13..][..3], [0; 3]);
        batch.clear();
        assert!(batch.is_empty() && batch.bytes().is_empty() && batch.segment_size() == 0);
    }
}

#[test]
fn what_does_not_go_together_is_full() {
    let other_port = Flow { source_port: 0xc124, ..flow(false) };
    let other_class = Flow { traffic_class: 2, ..flow(false) };
    let cases: [(&str, Flow, u32, usize); 5] = [
        ("longer", flow(false), 0x010002, 65),
        ("another port", other_port, 0x010002, 64),
        ("another class", other_class, 0x010002, 64),
        ("another slot", flow(false), 0x020002, 64),
        ("a shorter one, then this", flow(false), 0x010002, 32),
    ];
    for (name, flow, qpn, len) in cases {
        let mut buf = [0; 4096];
        let mut batch = TxBatch::new(&mut buf, GSO);
        push(&mut batch, 0, 64).unwrap();
        if name.starts_with("a shorter") {
            push(&mut batch, 1, 32).unwrap();
        }
        let before = contents(&batch);
        let pushed =
            batch.push(&flow, &head(qpn, 1), len, |_| -> Result<(), ()> { panic!("filled: {name}") });
        assert_eq!(pushed, Err(PushError::Full), "{name}");
        assert_eq!(contents(&batch), before, "{name}");
    }
    // Another queue pair of the same slot does go.
    let mut buf = [0; 4096];
    let mut batch = TxBatch::new(&mut buf, GSO);
    push(&mut batch, 0, 64).unwrap();
    assert_eq!(batch.push(&flow(false), &head(0x01ffff, 1), 64, |_| Ok::<_, ()>(())), Ok(()));
}

#[test]
fn room_and_count_are_limits() {
    let mut buf = [0; 3 * 80 + 79];
    let mut batch = TxBatch::new(&mut buf, GSO);
    assert_eq!((0..).take_while(|&psn| push(&mut batch, psn, 64).is_ok()).count(), 3);
    assert_eq!(push(&mut batch, 3, 64), Err(PushError::Full));
    assert_eq!(push(&mut batch, 3, 60), Ok(()), "a shorter one still fits");

    let mut buf = [0; 4096];
    let mut batch = TxBatch::new(&mut buf, BatchLimits { max_segments: 2, gso: true });
    assert_eq!((0..).take_while(|&psn| push(&mut batch, psn, 64).is_ok()).count(), 2);
}

#[test]
fn what_can_never_be_sent_is_not_full() {
    let mut buf = [0; 79];
    let mut batch = TxBatch::new(&mut buf, GSO);
    let too_small = WireError::BufferTooSmall { need: 80, have: 79 };
    assert_eq!(push(&mut batch, 0, 64), Err(PushError::Wire(too_small)));
    assert!(batch.is_empty());
}

#[test]
fn failed_fill_changes_nothing() {
    let mut buf = [0; 4096];
    let mut batch = TxBatch::new(&mut buf, GSO);
    for already in 0..3 {
        let before = contents(&batch);
        let pushed = batch.push(&flow(false), &head(0x010002, 9), 64, |_| Err("unmapped"));
        assert_eq!(pushed, Err(PushError::Fill("unmapped")));
        assert_eq!(contents(&batch), before);
        assert_eq!(batch.is_empty(), already == 0);
        push(&mut batch, already, 64).unwrap();
    }
    // A shorter one that fails does not close the batch.
    let _ = batch.push(&flow(false), &head(0x010002, 9), 8, |_| Err("unmapped"));
    assert_eq!(push(&mut batch, 3, 64), Ok(()));
}

#[test]
fn reseal_without_gso() {
    let mut buf = [0; 4096];
    let mut batch = TxBatch::new(&mut buf, GSO);
    for psn in 0..3 {
        push(&mut batch, psn, 64).unwrap();
    }
    push(&mut batch, 3, 5).unwrap();
    batch.reseal_without_gso();
    assert_eq!(batch.len(), 4);
    assert!(batch.segments().all(|segment| icrc::verify(&flow(false), 0, segment)));
    batch.clear();
    for psn in 0..2 {
        push(&mut batch, psn, 64).unwrap();
    }
    assert!(batch.segments().all(|segment| icrc::verify(&flow(false), 0, segment)), "remembered");
}

/// The cached CRCs of one batch work for the next, with any flow and lengths.
#[test]
fn starts_kept_from_batch_to_batch_are_right() {
    let (mut buffer, mut starts) = ([0; 1024], icrc::Starts::new());
    // Eight lengths further a start falls into the place of this one.
    for (v6, len) in [(false, 8), (false, 4), (false, 8), (false, 40), (false, 8), (true, 8), (false, 8)] {
        let mut batch = TxBatch::with_starts(&mut buffer, GSO, &mut starts);
        for psn in 0..2 {
            batch.push(&flow(v6), &head(7, psn), len, |_| Ok::<(), ()>(())).unwrap();
        }
        for (id, segment) in batch.segments().enumerate() {
            assert!(icrc::verify(&flow(v6), id as u16, segment), "{v6} {len} {id}");
        }
    }
}

/// Packets of one batch in another, some of them left out: each has the ICRC of its new place, but for the
/// bit that was asked for.
#[test]
fn copies_are_sealed_for_their_place() {
    for limits in [GSO, SINGLES] {
        let (mut buf, mut other) = (vec![0; 65536], vec![0; 65536]);
        let mut batch = TxBatch::new(&mut buf, limits);
        (0..5).for_each(|psn| push(&mut batch, psn, 100).unwrap());
        let mut copies = TxBatch::new(&mut other, limits);
        for (index, segment) in batch.segments().enumerate().filter(|(index, _)| index % 2 == 0) {
            copies.push_copy(&flow(false), segment, (index == 4).then_some((20, 3))).unwrap();
        }
        let id = |index| if limits.gso { index } else { 0 };
        let good: Vec<bool> = copies
            .segments()
            .zip(0..)
            .map(|(copy, index)| icrc::verify(&flow(false), id(index), copy))
            .collect();
        assert_eq!(good, [true, true, false]);
        let psns = copies.segments().map(|copy| Packet::parse(copy).unwrap().bth.psn.value());
        assert_eq!(psns.collect::<Vec<_>>(), [0, 2, 4]);
        assert!(matches!(copies.push_copy(&flow(false), &[0; 15], None), Err(PushError::Wire(_))));
        assert_eq!(
            copies.push_copy(&flow(true), batch.bytes().get(..116).unwrap(), None),
            Err(PushError::Full)
        );
        assert_eq!(copies.len(), 3);
    }
}
