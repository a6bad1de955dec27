//! Any requests, over any kind of stream, in any pieces; and any octets at all.

use ferroce_proto::iwarp::StreamConfig;
use ferroce_proto::{QpState, SendOp, WcStatus};
use proptest::prelude::*;

use crate::world::{CAPS, CONFIG, End, KEY, World, remote};

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32),
    Write(u32, u32),
    Read(u32, u32),
    Add,
}

fn step() -> impl Strategy<Value = Step> {
    // Both ends read from the first half and write to the second.
    let length = prop_oneof![Just(0), 1..64_u32, 1..5000_u32, 1..60_000_u32];
    prop_oneof![
        length.clone().prop_map(Step::Send),
        (length.clone(), 0..1000_u32).prop_map(|(length, at)| Step::Write(length, at)),
        (length, 0..1000_u32).prop_map(|(length, at)| Step::Read(length, at)),
        Just(Step::Add),
    ]
}

fn config() -> impl Strategy<Value = (StreamConfig, u16)> {
    (any::<[bool; 4]>(), 1..5_u8, 1..5_u8, 60..9000_u16).prop_map(
        |([crc, tx, rx, large], ird, ord, segment)| {
            let config = StreamConfig {
                crc,
                send_markers: tx,
                receive_markers: rx,
                large_fpdus: large,
                ird,
                ord,
                ..CONFIG
            };
            (config, segment)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each request completes once, in order and with success, and the data are exact.
    #[test]
    fn requests_complete_in_order_with_exact_data(
        (config, segment) in config(),
        steps in prop::collection::vec((0..2_usize, step()), 1..40),
        chunk: u64,
    ) {
        let mut world = World::new(&config, segment, chunk);
        let mut posted = [Vec::new(), Vec::new()];
        for (id, (who, step)) in steps.into_iter().enumerate() {
            let id = id as u64;
            // Every third request on the average runs alone, so that the memory shows what it did.
            let checked = chunk.wrapping_mul(id) % 3 == 0;
            if checked {
                world.run();
            }
            let [source, target] = match who { 0 => [0, 1], _ => [1, 0] };
            match step {
                Step::Send(length) => {
                    world.ends[target].post_recv(id, 131_072, length.max(1));
                    world.ends[source].post(id, SendOp::Send, 0, length);
                }
                Step::Write(length, at) => {
                    let to = remote(131_072 + u64::from(at));
                    world.ends[source].post(id, SendOp::Write { remote: to }, u64::from(at), length);
                }
                Step::Read(length, at) => {
                    let from = remote(u64::from(at));
                    world.ends[source].post(id, SendOp::Read { remote: from }, 131_072, length);
                }
                Step::Add => {
                    world.ends[source].post(id, SendOp::FetchAdd { remote: remote(262_136), add: 1 }, 262_128, 8);
                }
            }
            posted[source].push(id);
            if checked {
                world.run();
                let [a, b] = &world.ends;
                let (from, to) = if source == 0 { (a, b) } else { (b, a) };
                match step {
                    Step::Write(length, at) if length > 0 => {
                        let at = u64::from(at);
                        prop_assert_eq!(to.at(131_072 + at, length), from.at(at, length));
                    }
                    Step::Read(length, at) => {
                        prop_assert_eq!(from.at(131_072, length), to.at(u64::from(at), length));
                    }
                    Step::Send(length) => prop_assert_eq!(to.at(131_072, length), from.at(0, length)),
                    _ => {}
                }
            }
        }
        world.run();
        for (end, posted) in world.ends.iter().zip(posted) {
            prop_assert_eq!(end.qp.state(), QpState::Rts);
            prop_assert!(end.completions.iter().all(|c| c.status == WcStatus::Success));
            let sends = end.completions.iter().filter(|c| (c.opcode as u8) < 128).map(|c| c.wr_id);
            prop_assert_eq!(sends.collect::<Vec<_>>(), posted);
        }
    }

    /// Changed octets end the stream at most: no panic, and nothing outside of the registered memory.
    #[test]
    fn damaged_streams_end(
        (config, segment) in config(),
        lengths in prop::collection::vec(0..3000_u32, 1..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let config = StreamConfig { send_markers: false, receive_markers: false, ..config };
        let mut world = World::new(&config, segment, 3);
        for (id, length) in lengths.iter().enumerate() {
            world.ends[1].post_recv(100, 0, 4000);
            let op = match id % 3 {
                0 => SendOp::Send,
                1 => SendOp::Write { remote: remote(10) },
                _ => SendOp::Read { remote: remote(0) },
            };
            world.ends[0].post(id as u64, op, 0, *length);
        }
        world.ends[0].send();
        let mut octets: Vec<u8> = world.ends[0].sent.drain(..).collect();
        for (at, with) in damage {
            let at = at.index(octets.len());
            octets[at] ^= with;
        }
        world.ends[1].receive(&octets);
        world.run();
    }

    /// So does a stream of any octets.
    #[test]
    fn any_octets_end_the_stream(crc: bool, markers: bool, octets in prop::collection::vec(any::<u8>(), 0..3000)) {
        let mut end = End::new(CAPS);
        let config = StreamConfig { crc, receive_markers: markers, ..CONFIG };
        end.qp.begin_stream(&config, 1448).unwrap();
        end.receive(&octets);
        end.send();
        prop_assert_eq!(end.ram.bytes(KEY).len(), crate::world::SIZE);
    }
}
