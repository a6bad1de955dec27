//! Messages that come before the program has posted a receive for them.

use ferroce_proto::iwarp::StreamConfig;
use ferroce_proto::{QpState, SendOp, WcOpcode, WcStatus};
use ferroce_wire::Imm;

use crate::world::{CONFIG, World, remote};

fn worlds() -> impl Iterator<Item = World> {
    [false, true].into_iter().flat_map(|in_place| {
        (1..20).map(move |chunk| {
            let config = StreamConfig { crc: !in_place, large_fpdus: true, ..CONFIG };
            let mut world = World::new(&config, 1448, chunk);
            world.ends.iter_mut().for_each(|end| end.in_place = in_place);
            world
        })
    })
}

/// Sends and immediate data wait, each for its own receive, and what is behind them waits too. Nothing is lost.
#[test]
fn messages_wait_for_receives() {
    for mut world in worlds() {
        for number in 0..6 {
            let length = [0, 5, 40_000][number as usize % 3];
            world.ends[0].post(number, SendOp::Send, 1000, length);
            let op = SendOp::WriteImm { remote: remote(50_000 + number), imm: Imm([1, 2, 3, number as u8]) };
            world.ends[0].post(number, op, number, 1);
        }
        world.run();
        for number in 0..12 {
            let [sender, receiver] = &mut world.ends;
            assert!(receiver.qp.stream_starves());
            assert_eq!(receiver.completions.len(), number as usize);
            assert_eq!(sender.qp.state(), QpState::Rts);
            receiver.post_recv(100 + number, 0, 45_000);
            receiver.receive(&[]);
            world.run();
            let last = world.ends[1].completions.last().unwrap();
            let (opcode, len) = match number % 2 {
                0 => (WcOpcode::Recv, [0, 5, 40_000][number as usize / 2 % 3]),
                _ => (WcOpcode::RecvRdmaWithImm, 1),
            };
            assert_eq!(
                (last.wr_id, last.status, last.opcode, last.byte_len),
                (100 + number, WcStatus::Success, opcode, len)
            );
            let [sender, receiver] = &world.ends;
            if opcode == WcOpcode::Recv {
                assert_eq!(receiver.at(0, len), sender.at(1000, len));
            }
        }
        assert!(!world.ends[1].qp.stream_starves());
        assert_eq!(world.ends[0].completions.len(), 12);
    }
}

/// The end of the wait is the end of the stream, and of nothing else.
#[test]
fn a_wait_in_vain_ends_the_stream() {
    for mut world in worlds() {
        world.ends[1].qp.stream_waited_in_vain();
        world.ends[0].post(1, SendOp::Send, 0, 7);
        world.run();
        assert_eq!(world.ends[1].qp.state(), QpState::Rts);
        world.ends[1].qp.stream_waited_in_vain();
        assert_eq!(world.ends[1].qp.state(), QpState::Error);
        assert!(!world.ends[1].qp.stream_starves());
        world.run();
        assert_eq!(world.ends[0].qp.state(), QpState::Error);
    }
}
