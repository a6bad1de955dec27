//! Every operation between two queue pairs on a perfect network.

use std::time::Duration;

use ferroce_proto::{RecvWr, Remote, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use ferroce_wire::{Imm, Lkey, PathMtu, Rkey};

use crate::ram::Ram;
use crate::world::{Setup, World};

const SECOND: Duration = Duration::from_secs(1);

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8)) as u8 ^ salt).collect()
}

fn memory(salt: u8) -> Ram {
    let mut ram = Ram::default();
    ram.register(1, 0x1000, pattern(100_000, salt));
    ram.register(2, 0x100_0000, vec![0; 100_000]);
    ram
}

fn sge(key: u32, addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: Lkey::new(key) }
}

#[test]
fn every_operation_of_many_lengths_and_mtus() {
    for mtu in PathMtu::ALL {
        let setup = Setup { mtu, ..Setup::default() };
        for len in [0, 1, 3, 255, 256, 257, 1024, 4096, 4097, 70_001] {
            one_of_each(&setup, len, false);
            one_of_each(&setup, len, true);
        }
    }
}

/// In memory that is written `late`, all is in its place when a message completes.
fn one_of_each(setup: &Setup, len: u32, late: bool) {
    let mut world = World::connected(setup, [memory(0), memory(0xff)]);
    if late {
        world.ends.iter_mut().for_each(|end| end.mem.late = Some(Vec::new()));
    }
    let remote = |offset: u64| Remote { addr: 0x100_0000 + offset, rkey: Rkey::new(2) };
    let from = [sge(1, 0x1000, len / 3), sge(1, 0x1000 + u64::from(len / 3), len - len / 3)];
    let into = [sge(2, 0x100_0000, len)];
    for wr_id in 0..2 {
        world.ends[1].qp.post_recv(&RecvWr { wr_id, sges: &into }).unwrap();
    }
    let ops = [
        (SendOp::Send, &from[..]),
        (SendOp::WriteImm { remote: remote(0), imm: Imm([1, 2, 3, 4]) }, &from),
        (SendOp::Write { remote: remote(7) }, &from),
        (SendOp::Read { remote: Remote { addr: 0x1000, rkey: Rkey::new(1) } }, &into),
    ];
    for (wr_id, (op, sges)) in ops.into_iter().enumerate() {
        let end = &mut world.ends[0];
        end.qp.post_send(&SendWr::signaled(wr_id as u64, op, sges), &end.mem).unwrap();
        world.run_until(SECOND, |world| world.ends[0].sends.len() == wr_id + 1);
        let received = world.ends[1].mem.bytes(2);
        let want = pattern(len as usize, 0);
        match wr_id {
            0 | 1 => assert_eq!(received[..len as usize], want),
            2 => assert_eq!(received[7..7 + len as usize], want),
            _ => assert_eq!(world.ends[0].mem.bytes(2)[..len as usize], pattern(len as usize, 0xff)),
        }
    }
    let completed: Vec<_> =
        world.ends[0].sends.iter().map(|c| (c.wr_id, c.status, c.opcode, c.byte_len)).collect();
    use WcOpcode::*;
    let want = [Send, RdmaWrite, RdmaWrite, RdmaRead];
    for (id, opcode) in want.into_iter().enumerate() {
        assert_eq!(completed[id], (id as u64, WcStatus::Success, opcode, len));
    }
    let received: Vec<_> =
        world.ends[1].recvs.iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.imm)).collect();
    assert_eq!(received, [(0, Recv, len, None), (1, RecvRdmaWithImm, len, Some(Imm([1, 2, 3, 4])))]);
    assert_eq!(world.ends[0].qp.counters().resent_pkts, 0);
}
