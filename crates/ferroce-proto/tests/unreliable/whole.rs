//! UC over a bad network: a message arrives whole or not at all.

use std::collections::BTreeSet;
use std::time::Duration;

use ferroce_proto::{RecvWr, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use ferroce_sim::{Rng, Seed, rules};
use ferroce_wire::{Imm, Lkey, Rkey};

use crate::probe::UC;
use crate::ram::Ram;
use crate::world::{Setup, World};

const KEY: u32 = 7;
const ROOM: u64 = 6 << 10;
const MESSAGES: u64 = 4000;

/// The octets of message `id`.
fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(id * 2 + 1);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn length(id: u64) -> usize {
    Rng::new(id * 2 + 2).below(ROOM) as usize
}

fn memory() -> Ram {
    let mut ram = Ram::default();
    ram.register(KEY, 0, vec![0; (64 * ROOM) as usize]);
    ram
}

fn sge(slot: u64, len: usize) -> Sge {
    Sge { addr: slot % 63 * ROOM, length: len as u32, lkey: Lkey::new(KEY) }
}

/// Sends and writes with immediate, each named by its immediate data, all of them different.
fn run(loss: u32, duplication: u32, reordering: u32, seed: u64) -> (BTreeSet<u64>, u64) {
    let mut rng = Rng::new(seed);
    let setup = Setup { psn: [0xff_ff00, 5], ..UC };
    let mut world = World::connected(&setup, [memory(), memory()]);
    world.quiet = true;
    world.network.rule(rules::loss(rng.fork(), loss));
    world.network.rule(rules::duplication(rng.fork(), duplication, Duration::from_micros(100)));
    world.network.rule(rules::reordering(rng.fork(), reordering, Duration::from_micros(30)));
    let (mut arrived, mut twice) = (BTreeSet::new(), 0);
    // Receive WQEs posted since the start, and those that no message took.
    let (mut posted, mut waiting) = (0, 0);
    for id in 0..MESSAGES {
        let receiver = &mut world.ends[1];
        while waiting < 32 {
            let sges = [sge(posted, ROOM as usize)];
            receiver.qp.post_recv(&RecvWr { wr_id: posted, sges: &sges }).unwrap();
            posted += 1;
            waiting += 1;
        }
        let len = length(id);
        let sender = &mut world.ends[0];
        sender.mem.region(KEY).bytes[..len].copy_from_slice(&pattern(id, len));
        let imm = Imm((id as u32).to_be_bytes());
        let write = id % 3 == 0;
        let remote = ferroce_proto::Remote { addr: 63 * ROOM, rkey: Rkey::new(KEY) };
        let op = if write { SendOp::WriteImm { remote, imm } } else { SendOp::SendImm(imm) };
        let sges = [Sge { addr: 0, ..sge(0, len) }];
        let wr = SendWr::signaled(id, op, &sges);
        sender.qp.post_send(&wr, &sender.mem).unwrap();
        world.drain(0);
        assert_eq!(world.ends[0].sends.drain(..).map(|c| c.status).collect::<Vec<_>>(), [WcStatus::Success]);
        world.now += Duration::from_micros(5);
        world.run(Duration::from_micros(if id % 16 == 15 { 1000 } else { 0 }));
        let receiver = &mut world.ends[1];
        for got in receiver.recvs.drain(..) {
            assert_eq!(got.status, WcStatus::Success);
            let id = u64::from(u32::from_be_bytes(got.imm.unwrap().0));
            assert_eq!(got.byte_len as usize, length(id), "message {id}");
            assert_eq!(got.opcode == WcOpcode::RecvRdmaWithImm, id % 3 == 0);
            if got.opcode == WcOpcode::Recv {
                let at = (got.wr_id % 63 * ROOM) as usize;
                let octets = &receiver.mem.bytes(KEY)[at..at + got.byte_len as usize];
                assert!(octets == pattern(id, octets.len()), "message {id} is not whole");
            }
            twice += u64::from(!arrived.insert(id));
            waiting -= 1;
        }
    }
    (arrived, twice)
}

#[test]
fn without_loss_everything_arrives_once() {
    let (arrived, twice) = run(0, 0, 0, 1);
    assert_eq!((arrived.len() as u64, twice), (MESSAGES, 0));
}

#[test]
fn with_loss_messages_are_whole_or_absent() {
    for default in [1, 2, 3] {
        let seed = Seed::for_test("with_loss_messages_are_whole_or_absent", default);
        let (arrived, twice) = run(30_000, 0, 0, seed.value);
        assert_eq!(twice, 0);
        // A message of up to seven packets is lost with one of them.
        let share = arrived.len() as u64 * 100 / MESSAGES;
        assert!((80..98).contains(&share), "{share} % arrived");
    }
}

/// Duplicates of a whole message are a message again: UC does not know them (IBTA 9.8.2.2.1).
#[test]
fn a_network_that_duplicates_and_reorders_mixes_nothing() {
    let seed = Seed::for_test("a_network_that_duplicates_and_reorders_mixes_nothing", 4);
    let (arrived, _) = run(10_000, 20_000, 20_000, seed.value);
    assert!(arrived.len() as u64 > MESSAGES / 2);
}
