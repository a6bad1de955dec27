use super::*;

const WAY: Flow = Flow {
    source: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)),
    destination: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
    source_port: 0xc123,
    traffic_class: 0x42,
    hop_limit: 64,
    link: LinkLayer::UDP,
};

struct End {
    pipe: Pipe,
    tx: Sender,
    rx: Receiver,
}

fn pair() -> [End; 2] {
    let memory = Pipe::create().unwrap();
    [Side::First, Side::Second].map(|side| {
        let (pipe, tx, rx) = Pipe::join(&memory, side).unwrap();
        pipe.set_joined();
        End { pipe, tx, rx }
    })
}

fn buffer() -> Box<[u8; MAX_BATCH]> {
    vec![0; MAX_BATCH].into_boxed_slice().try_into().unwrap()
}

#[test]
fn batches_arrive_in_order_with_their_addressing() {
    let [mut a, mut b] = pair();
    let mut out = buffer();
    let v6 = Flow { source: "fe80::1".parse().unwrap(), destination: "::1".parse().unwrap(), ..WAY };
    // Lengths that are no multiple of a word or line, and enough of them to go round the ring.
    let mut octets = 0;
    const ROUNDS: usize = if cfg!(miri) { 40 } else { 2000 };
    for round in 0..ROUNDS {
        let len = 1 + round * 7919 % MAX_BATCH;
        let sent: Vec<u8> = (0..len).map(|i| (i * 31 + round) as u8).collect();
        let way = if round % 3 == 0 { v6 } else { WAY };
        a.tx.send(&way, 1 + round % 4096, &sent).unwrap();
        let batch = b.rx.receive(&mut out).unwrap().unwrap();
        assert_eq!(batch, Batch { way, segment_size: 1 + round % 4096, len }, "round {round}");
        assert_eq!(&out[..len], &sent[..], "round {round}");
        assert_eq!(b.rx.receive(&mut out), Ok(None));
        assert!(!b.rx.is_ready());
        octets += len;
    }
    assert!(octets > ROUNDS / 20 * RING_OCTETS, "{octets}");
}

#[test]
fn each_side_learns_that_the_other_gave_up() {
    for index in 0..2 {
        let ends = pair();
        assert!(ends.iter().all(|end| end.pipe.is_joined() && !end.pipe.is_given_up()));
        ends[index].pipe.set_given_up();
        assert!(ends.iter().all(|end| end.pipe.is_joined() && end.pipe.is_given_up()));
    }
}

#[test]
fn what_was_read_is_unanswered_until_the_reader_says_so() {
    let [mut a, mut b] = pair();
    a.tx.send(&WAY, 3, b"abc").unwrap();
    let first = a.tx.position();
    a.tx.send(&WAY, 3, b"abc").unwrap();
    let second = a.tx.position();
    let unanswered = |a: &End| [first, second].map(|position| a.pipe.is_unanswered(position));
    b.rx.receive(&mut buffer()).unwrap().unwrap();
    assert_eq!(unanswered(&a), [true, true]);
    b.pipe.set_answered(b.rx.position());
    assert_eq!(unanswered(&a), [false, true]);
    b.rx.receive(&mut buffer()).unwrap().unwrap();
    b.pipe.set_answered(b.rx.position());
    b.pipe.raise_answered(first);
    assert_eq!(unanswered(&a), [false, false]);
    assert!(!b.pipe.is_unanswered(0), "nothing was sent");
}

#[test]
fn the_directions_do_not_mix() {
    let [mut a, mut b] = pair();
    let mut out = buffer();
    a.tx.send(&WAY, 3, b"abc").unwrap();
    b.tx.send(&WAY, 2, b"xy").unwrap();
    assert_eq!(a.rx.receive(&mut out).unwrap().unwrap().len, 2);
    assert_eq!(&out[..2], b"xy");
    assert_eq!(b.rx.receive(&mut out).unwrap().unwrap().len, 3);
    assert_eq!(&out[..3], b"abc");
}

#[test]
fn a_full_pipe_refuses_and_goes_on_when_it_is_read() {
    let [mut a, mut b] = pair();
    let mut out = buffer();
    let sent = vec![7; MAX_BATCH];
    let mut count = 0;
    while a.tx.has_room().unwrap() {
        a.tx.send(&WAY, 4096, &sent).unwrap();
        count += 1;
    }
    assert_eq!(count, RING_OCTETS / MAX_BATCH - 2);
    while a.tx.has_reserve() {
        a.tx.send(&WAY, SMALL, &sent[..SMALL]).unwrap();
        count += 1;
    }
    assert!(count > 256, "there is room for the ACKs of many queue pairs");
    assert_eq!(a.tx.send(&WAY, 4096, &sent), Err(SendError::Full));
    for _ in 0..count {
        assert!(b.rx.receive(&mut out).unwrap().is_some());
    }
    assert_eq!(b.rx.receive(&mut out), Ok(None), "a refused batch leaves nothing behind");
    assert!(a.tx.send(&WAY, 4096, &sent).is_ok());
}

#[test]
fn what_is_no_batch_is_refused() {
    let [mut a, _] = pair();
    assert_eq!(a.tx.send(&WAY, 1, &[]), Err(SendError::Length(0)));
    assert_eq!(a.tx.send(&WAY, 0, &[1]), Err(SendError::Length(1)));
    let long = vec![0; MAX_BATCH + 1];
    assert_eq!(a.tx.send(&WAY, 1, &long), Err(SendError::Length(MAX_BATCH + 1)));
}

#[test]
fn the_bell_is_rung_once_for_each_sleep() {
    let [mut a, mut b] = pair();
    let mut out = buffer();
    assert_eq!(a.tx.send(&WAY, 1, &[1]), Ok(true), "a side that has just joined may be asleep");
    assert_eq!(a.tx.send(&WAY, 1, &[1]), Ok(false), "nobody sleeps");
    b.rx.receive(&mut out).unwrap();
    b.rx.count_sleep();
    assert!(b.rx.is_ready(), "so this side does not sleep");
    b.rx.receive(&mut out).unwrap();
    b.rx.count_sleep();
    assert!(!b.rx.is_ready());
    assert_eq!(a.tx.send(&WAY, 1, &[1]), Ok(true));
    assert_eq!(a.tx.send(&WAY, 1, &[1]), Ok(false), "it has been rung");
    b.rx.count_sleep();
    assert_eq!(a.tx.send(&WAY, 1, &[1]), Ok(true));
}

/// A side that lost the word of its doorbell is rung again.
#[test]
fn a_side_that_reads_nothing_is_rung_again() {
    let [mut a, mut b] = pair();
    let mut out = buffer();
    let mut rings = |count| (0..count).filter(|_| a.tx.send(&WAY, 1, &[1]).unwrap()).count();
    assert_eq!(rings(1), 1);
    assert_eq!(rings(40), 10);
    b.rx.receive(&mut out).unwrap();
    assert_eq!(rings(40), 0, "it is awake");
}

/// A receiver that sleeps whenever it finds nothing misses no batch.
#[test]
fn no_wake_up_is_lost() {
    let [mut a, mut b] = pair();
    let (bell, wait) = std::sync::mpsc::channel();
    const BATCHES: u64 = if cfg!(miri) { 300 } else { 200_000 };
    let receiver = std::thread::spawn(move || {
        let mut out = buffer();
        let mut next = 0_u64;
        while next < BATCHES {
            match b.rx.receive(&mut out).unwrap() {
                Some(batch) => {
                    assert_eq!((batch.len, &out[..8]), (8, &next.to_ne_bytes()[..]));
                    next += 1;
                }
                None => {
                    b.rx.count_sleep();
                    if !b.rx.is_ready() {
                        wait.recv_timeout(std::time::Duration::from_secs(20)).expect("woken");
                    }
                }
            }
        }
    });
    for number in 0..BATCHES {
        loop {
            match a.tx.send(&WAY, 8, &number.to_ne_bytes()) {
                // The receiver may have taken the last batch already, and ended.
                Ok(true) => drop(bell.send(())),
                Ok(false) => {}
                Err(SendError::Full) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            break;
        }
    }
    drop(bell);
    receiver.join().unwrap();
}

#[test]
fn a_side_knows_whether_the_other_is_there() {
    let memory = Pipe::create().unwrap();
    let (first, ..) = Pipe::join(&memory, Side::First).unwrap();
    first.set_joined();
    let (second, ..) = Pipe::join(&memory, Side::Second).unwrap();
    assert!(!first.is_joined());
    second.set_joined();
    assert!(first.is_joined() && second.is_joined());
}

#[test]
fn each_side_sees_the_copies_of_the_other() {
    let [a, b] = pair();
    assert_eq!(a.pipe.copying(a.pipe.side()).len(), COPYING);
    a.pipe.copying(Side::First)[COPYING - 1].store(9, Ordering::Relaxed);
    assert_eq!(b.pipe.copying(b.pipe.side().other())[COPYING - 1].load(Ordering::Relaxed), 9);
    assert!(b.pipe.copying(Side::Second).iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

/// A peer may write anything anywhere: this side neither panics nor reads beyond the memory, and stops if it
/// cannot go on.
#[test]
fn scribbled_memory_garbles_packets_at_most() {
    let mut random = 0x1234_5678_9abc_def0_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut corrupt = 0;
    const PIPES: u32 = if cfg!(miri) { 4 } else { 200 };
    for _ in 0..PIPES {
        let [mut a, mut b] = pair();
        let mut out = buffer();
        'one: for _ in 0..200 {
            for _ in 0..next() % 4 {
                let words = a.pipe.shared.words();
                let place = match next() % 3 {
                    0 => next() as usize % (2 * SIDE),
                    // The head of the entry that is next to be read.
                    1 => 2 * SIDE + RING + a.rx.head as usize % RING,
                    _ => next() as usize % words.len(),
                };
                let value = match next() % 4 {
                    0 => 0,
                    1 => next() % 1024,
                    2 => next() & 0x0001_ffff_ffff_ffff,
                    _ => next(),
                };
                words[place].store(value, Ordering::Relaxed);
            }
            let octets = vec![1; 1 + next() as usize % if cfg!(miri) { 300 } else { 5000 }];
            for end in [&mut a, &mut b] {
                if matches!(end.tx.send(&WAY, 100, &octets), Err(SendError::Corrupt(_)))
                    || end.tx.has_room().is_err()
                {
                    corrupt += 1;
                    break 'one;
                }
                for _ in 0..8 {
                    match end.rx.receive(&mut out) {
                        Ok(Some(batch)) => assert!((1..=MAX_BATCH).contains(&batch.len)),
                        Ok(None) => break,
                        Err(Corrupt) => {
                            corrupt += 1;
                            break 'one;
                        }
                    }
                }
            }
        }
    }
    assert!(corrupt > PIPES / 4, "the scribbles hit something: {corrupt}");
}
