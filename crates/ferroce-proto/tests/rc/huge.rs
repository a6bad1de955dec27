//! The longest message: 2^31 octets, out of memory that does not exist.

use std::time::Duration;

use ferroce_proto::{Bind, Memory, MemoryError, RecvWr, Remote, RemoteAccess, SendOp, SendWr, Sge, WcStatus};
use ferroce_wire::{Feth, Imm, Lkey, PathMtu, Rkey};

use crate::world::{Setup, World};

const LEN: u32 = 1 << 31;
/// Somewhere that makes 64-bit sums necessary.
const BASE: u64 = 0xffff_ffff_0000_1008;

/// Memory whose octets follow from their address. A write must repeat the octets that are there already, in order.
#[derive(Default)]
struct Endless {
    written: u64,
}

fn word(addr: u64) -> [u8; 8] {
    addr.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

impl Endless {
    fn read(addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        for (word_addr, chunk) in (addr..).step_by(8).zip(out.chunks_mut(8)) {
            chunk.copy_from_slice(&word(word_addr)[..chunk.len()]);
        }
        Ok(())
    }

    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        assert_eq!(addr, BASE + self.written, "in order and once");
        let same =
            (addr..).step_by(8).zip(data.chunks(8)).all(|(addr, chunk)| *chunk == word(addr)[..chunk.len()]);
        assert!(same, "at {addr:#x}");
        self.written += data.len() as u64;
        Ok(())
    }
}

fn in_range(addr: u64, len: u64) -> Result<(), MemoryError> {
    let fits = addr >= BASE && addr - BASE <= u64::from(LEN) && len <= u64::from(LEN) - (addr - BASE);
    if fits { Ok(()) } else { Err(MemoryError::OutOfRange) }
}

impl Memory for Endless {
    fn check_local(&self, sge: &Sge, _write: bool) -> Result<(), MemoryError> {
        in_range(sge.addr, u64::from(sge.length))
    }

    fn read_local(&self, _lkey: Lkey, addr: u64, out: &mut [u8], _: u64) -> Result<(), MemoryError> {
        Self::read(addr, out)
    }

    fn write_local(&mut self, _lkey: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.write(addr, data)
    }

    fn read_inline(&self, _addr: u64, _out: &mut [u8]) -> Result<(), MemoryError> {
        Err(MemoryError::Fault)
    }

    fn check_remote(
        &self,
        _rkey: Rkey,
        addr: u64,
        len: u64,
        _access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        in_range(addr, len)
    }

    fn read_remote(&self, _rkey: Rkey, addr: u64, out: &mut [u8], _: u64) -> Result<(), MemoryError> {
        Self::read(addr, out)
    }

    fn write_remote(&mut self, _rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.write(addr, data)
    }

    fn compare_swap(&mut self, _: Rkey, _: u64, _: u64, _: u64) -> Result<u64, MemoryError> {
        Err(MemoryError::NoPermission)
    }

    fn fetch_add(&mut self, _: Rkey, _: u64, _: u64) -> Result<u64, MemoryError> {
        Err(MemoryError::NoPermission)
    }

    fn invalidate(&mut self, _rkey: Rkey) -> Result<(), MemoryError> {
        Err(MemoryError::BadKey)
    }

    fn atomic_write(&mut self, _rkey: Rkey, _addr: u64, _octets: [u8; 8]) -> Result<(), MemoryError> {
        Err(MemoryError::BadKey)
    }

    fn flush(&mut self, _rkey: Rkey, _addr: u64, _len: u64, _feth: Feth) -> Result<(), MemoryError> {
        Err(MemoryError::BadKey)
    }

    fn bind(&mut self, _bind: &Bind) -> Result<(), MemoryError> {
        Err(MemoryError::BadKey)
    }
}

fn transfer(mtu: PathMtu, op: SendOp, reader: usize) {
    let setup = Setup { mtu, rcvbuf: 4 << 20, ..Setup::default() };
    let mut world = World::connected(&setup, [Endless::default(), Endless::default()]);
    // In two parts, the second of odd length.
    let sge = |offset: u32, length| Sge { addr: BASE + u64::from(offset), length, lkey: Lkey::new(1) };
    let cut = 0x5555_5558;
    let sges = [sge(0, cut), sge(cut, LEN - cut)];
    world.ends[1].qp.post_recv(&RecvWr { wr_id: 9, sges: &sges }).unwrap();
    let wr = SendWr::signaled(1, op, &sges);
    let end = &mut world.ends[0];
    end.qp.post_send(&wr, &end.mem).unwrap();
    world.run_until(Duration::from_secs(1000), |world| !world.ends[0].sends.is_empty());
    let done = world.ends[0].sends[0];
    assert_eq!((done.status, done.byte_len), (WcStatus::Success, LEN));
    assert_eq!(world.ends[reader].mem.written, u64::from(LEN));
    for end in &world.ends {
        assert_eq!(end.qp.counters().resent_pkts, 0);
        assert!(end.recvs.iter().all(|completion| completion.byte_len == LEN));
    }
}

fn remote() -> Remote {
    Remote { addr: BASE, rkey: Rkey::new(1) }
}

#[test]
fn a_message_of_two_gibibytes() {
    transfer(PathMtu::B4096, SendOp::WriteImm { remote: remote(), imm: Imm([1; 4]) }, 1);
}

/// At 256 octets it takes 2^23 PSNs: half of the circle.
#[test]
#[ignore = "takes a minute"]
fn two_gibibytes_in_the_smallest_packets() {
    transfer(PathMtu::B256, SendOp::Send, 1);
    transfer(PathMtu::B256, SendOp::Read { remote: remote() }, 0);
}
