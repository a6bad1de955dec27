use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn pair() -> (Rings, Rings) {
    let (broker, fd) = Rings::create().unwrap();
    (broker, Rings::join(&fd).unwrap())
}

fn link(ifindex: u32) -> LinkLayer {
    LinkLayer { version: RoceVersion::V1, sl: 5, ifindex }
}

fn take(rx: &mut Consumer) -> Result<Option<(LinkLayer, Vec<u8>)>, Corrupt> {
    let mut out = [0; MAX_PACKET];
    Ok(rx.pop(&mut out)?.map(|popped| (popped.link, out[..popped.len].to_vec())))
}

#[test]
fn both_directions() {
    let (mut broker, mut program) = pair();
    program.tx.push(link(7), b"header", b"payload").unwrap();
    assert_eq!(take(&mut broker.rx), Ok(None), "not shown yet");
    assert_eq!(program.tx.publish(), Ok(true), "the first wakes");
    broker.tx.push(link(8), &[], b"answer").unwrap();
    broker.tx.publish().unwrap();
    assert_eq!(take(&mut broker.rx), Ok(Some((link(7), b"headerpayload".to_vec()))));
    assert_eq!(take(&mut program.rx), Ok(Some((link(8), b"answer".to_vec()))));
    assert_eq!(take(&mut broker.rx), Ok(None));
}

#[test]
fn a_full_ring_takes_no_more() {
    let (mut broker, mut program) = pair();
    for n in 0..ENTRIES {
        program.tx.push(link(n), &[], &[]).unwrap();
    }
    assert_eq!(program.tx.push(link(0), &[], &[]), Err(PushError::Full));
    assert_eq!(program.tx.publish(), Ok(true));
    assert_eq!(take(&mut broker.rx), Ok(Some((link(0), Vec::new()))));
    program.tx.push(link(ENTRIES), &[], &[]).unwrap();
    assert_eq!(program.tx.publish(), Ok(false), "it is awake, or will look before it sleeps");
    assert_eq!(program.tx.push(link(0), &[0; MAX_PACKET], &[0]), Err(PushError::TooLong(MAX_PACKET + 1)));
    for n in 1..=ENTRIES {
        assert_eq!(take(&mut broker.rx), Ok(Some((link(n), Vec::new()))));
    }
}

/// If a hostile process writes any index into the shared memory, the other one neither panics nor reads
/// beyond an entry.
#[test]
fn an_index_that_cannot_be_is_found() {
    let far = u64::from(ENTRIES) + 1;
    for wrong in [far, u64::MAX, 1 << 32, u64::from(u32::MAX)] {
        let (broker, program) = pair();
        broker.rx.end.tail().store(wrong, Ordering::Relaxed);
        let Rings { mut rx, tx: mut to_program } = broker;
        assert_eq!(take(&mut rx), Err(Corrupt), "tail {wrong:#x}");
        assert_eq!(take(&mut rx), Err(Corrupt), "and it stays so");
        program.rx.end.head().store(wrong, Ordering::Relaxed);
        for _ in 0..ENTRIES {
            to_program.push(link(1), &[], &[1]).unwrap();
        }
        // An index one above the last, or far beyond.
        assert_eq!(to_program.publish(), Err(Corrupt), "head {wrong:#x}");
        assert_eq!(to_program.push(link(1), &[], &[1]), Err(PushError::Corrupt(Corrupt)));
    }
}

#[test]
fn entries_that_cannot_be_are_empty() {
    for head in [1 << 16 | 4337, 0xffff | 2 << 16, 100, 100 | 3 << 16, u64::MAX] {
        let (mut broker, mut program) = pair();
        program.tx.push(link(1), &[], &[7; 64]).unwrap();
        program.tx.end.entry(0)[0].store(head, Ordering::Relaxed);
        program.tx.publish().unwrap();
        let (_, packet) = take(&mut broker.rx).unwrap().unwrap();
        assert_eq!(packet, [0_u8; 0], "{head:#x}");
    }
}

#[test]
fn what_is_garbled_in_flight_is_only_garbled() {
    let (mut broker, mut program) = pair();
    program.tx.push(link(1), &[], &[7; 64]).unwrap();
    program.tx.publish().unwrap();
    program.tx.end.entry(0)[3].store(0, Ordering::Relaxed);
    let (_, packet) = take(&mut broker.rx).unwrap().unwrap();
    assert_eq!((packet.len(), packet[8], packet[16]), (64, 0, 7));
}

/// A reader that sleeps until the bell rings misses no packet.
#[test]
fn bells_are_rung() {
    const PACKETS: u32 = if cfg!(miri) { 300 } else { 20_000 };
    let (mut broker, mut program) = pair();
    let (bell, rung) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..PACKETS {
                while program.tx.push(link(n), &n.to_ne_bytes(), &[]) == Err(PushError::Full) {
                    if program.tx.publish().unwrap() {
                        bell.send(()).unwrap();
                    }
                    std::thread::yield_now();
                }
                if n % 3 != 0 && program.tx.publish().unwrap() {
                    bell.send(()).unwrap();
                }
            }
            if program.tx.publish().unwrap() {
                bell.send(()).unwrap();
            }
        });
        let mut next = 0;
        while next < PACKETS {
            match take(&mut broker.rx).unwrap() {
                Some((_, packet)) => {
                    assert_eq!(packet, next.to_ne_bytes());
                    next += 1;
                }
                // Without a bell this ends with the producer, by an error.
                None => rung.recv().expect("a packet came without a bell"),
            }
        }
    });
}

const STEPS: usize = if cfg!(miri) { 60 } else { 600 };

proptest! {
    /// Against a queue, over the end of the ring and with every length.
    #[test]
    fn as_a_queue(steps in proptest::collection::vec((0..3u8, 0..=MAX_PACKET, 0..200usize), 1..STEPS)) {
        let (mut broker, mut program) = pair();
        let (mut pushed, mut shown) = (VecDeque::new(), VecDeque::new());
        for (number, (step, len, cut)) in steps.into_iter().enumerate() {
            match step {
                0 => {
                    let packet: Vec<u8> = (0..len).map(|i| (i * 31 + number) as u8).collect();
                    let (front, back) = packet.split_at(cut.min(len));
                    match program.tx.push(link(number as u32), front, back) {
                        Ok(()) => pushed.push_back((link(number as u32), packet)),
                        Err(e) => prop_assert_eq!((e, pushed.len() + shown.len()), (PushError::Full, ENTRIES as usize)),
                    }
                }
                1 => {
                    let wake = program.tx.publish().unwrap();
                    prop_assert!(wake || pushed.is_empty() || !shown.is_empty());
                    shown.append(&mut pushed);
                }
                _ => prop_assert_eq!(take(&mut broker.rx), Ok(shown.pop_front())),
            }
        }
    }
}

#[test]
fn an_entry_waits_until_it_is_taken() {
    let (mut broker, mut program) = pair();
    // The numbers begin anew in the middle.
    (program.tx.tail, program.tx.published, broker.rx.head, broker.rx.tail) =
        (u32::MAX, u32::MAX, u32::MAX, u32::MAX);
    program.tx.end.head().store(u32::MAX.into(), Ordering::Relaxed);
    assert!(!program.tx.keeps(program.tx.published()), "nothing was sent");
    let sent = [1, 2].map(|n| {
        program.tx.push(link(n), &[], &[]).unwrap();
        program.tx.publish().unwrap();
        program.tx.published()
    });
    for taken in 0..=2 {
        assert_eq!(sent.map(|sent| program.tx.keeps(sent)), [taken < 1, taken < 2]);
        assert!(!program.tx.keeps(sent[1] + 1), "of an earlier ring");
        take(&mut broker.rx).unwrap();
    }
    program.tx.end.head().store(u64::MAX, Ordering::Relaxed);
    assert!(!program.tx.keeps(sent[1]), "a ring of no use");
}
