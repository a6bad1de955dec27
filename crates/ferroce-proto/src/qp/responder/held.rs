//! Requests that came before others that are missing: held until their turn.
//!
//! A held packet is a copy from BTH to payload, in a cell of the process's pool, see [`crate::hold`]. It had
//! none of the checks of its turn but that of its PSN. A peer therefore fills at most the quota of its own
//! queue pair, and an error in a held packet is found, and refused with the packet's own PSN, when everything
//! before it was executed.

use alloc::vec::Vec;

use ferroce_wire::{Bth, IcrcStatus, Packet, Psn, RcPacket, Request, SrqNumber};

use super::super::common::Common;
use crate::hold::{BLOCK, HoldPool, QUEUE_PAIR_BLOCKS};

/// PSNs behind the expected one that may be held. The bit of the PSN right behind the expected one is 0, and
/// bit 127 stays clear: positions of PSNs are taken modulo 128.
pub(super) const HELD_PSNS: u32 = 127;
/// Room beside the payload: the packet's length, all headers of a request, its pad and its ICRC.
const HEADERS: usize = 64;
/// Octets of the length in front of the packet.
const LENGTH: usize = 2;

/// The held requests of a queue pair.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    /// The request with the expected PSN is held: it came ahead of others that are there now.
    ready: bool,
    /// Bit `i`: the request `i + 1` PSNs behind the expected one is held.
    ahead: u128,
    /// Cells in use.
    used: u128,
    /// The cell of each held PSN, by its low seven bits.
    cells: Cells,
    /// Octets of each cell; 0 while nothing is held.
    cell: usize,
    blocks: [Option<Vec<u8>>; QUEUE_PAIR_BLOCKS],
}

#[derive(Debug)]
struct Cells([u8; 128]);

impl Default for Cells {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl HeldRequests {
    pub const fn is_empty(&self) -> bool {
        !self.ready && self.ahead == 0
    }

    /// Bit `i`: the request `i + 1` PSNs behind the expected one is held.
    pub const fn ahead(&self) -> u128 {
        self.ahead
    }

    /// Whether the request `distance` PSNs behind the expected one is held; 0 is the expected one.
    pub const fn contains(&self, distance: u32) -> bool {
        match distance {
            0 => self.ready,
            1..=HELD_PSNS => self.ahead >> (distance - 1) & 1 != 0,
            _ => false,
        }
    }

    /// Holds a copy of a request `distance` PSNs behind the expected one, at least 1. `false` if there is no
    /// room, or if it is too far ahead or longer than the path MTU: that one comes again, and is refused in
    /// its turn. The caller saw that it is not held yet.
    pub fn put(
        &mut self,
        distance: u32,
        bth: &Bth,
        request: &Request<'_>,
        queue: Option<SrqNumber>,
        common: &Common,
    ) -> bool {
        // Before it takes memory, which is given back only when what is held was executed or given up.
        if !(1..=HELD_PSNS).contains(&distance) || request.payload().len() > common.mtu() as usize {
            return false;
        }
        if self.cell == 0 {
            self.cell = common.mtu() as usize + HEADERS;
        }
        let op = common.reliable(RcPacket::Request(*request), queue);
        let packet = Packet { bth: *bth, op, icrc: IcrcStatus::Checked };
        let cell = self.used.trailing_ones();
        let Some(room) = self.room(cell, common.budget.hold()) else { return false };
        let Some((length, room)) = room.split_first_chunk_mut::<LENGTH>() else { return false };
        match packet.emit(room) {
            Ok(octets) => *length = (octets as u16).to_ne_bytes(),
            // A cell has room for a full packet.
            Err(_) => return false,
        }
        self.used |= 1 << cell;
        if let Some(place) = self.cells.0.get_mut(position(bth.psn)) {
            *place = cell as u8;
        }
        self.ahead |= 1 << (distance - 1);
        true
    }

    /// The memory of a cell. Takes a block of the pool if it needs one.
    fn room(&mut self, cell: u32, pool: &HoldPool) -> Option<&mut [u8]> {
        if cell >= u128::BITS {
            return None;
        }
        let (block, start) = self.place(cell)?;
        let block = self.blocks.get_mut(block)?;
        if block.is_none() {
            *block = pool.take();
        }
        let block = block.as_mut()?;
        let end = start + self.cell;
        if block.len() < end {
            // Within the capacity: nothing is allocated.
            block.resize(end, 0);
        }
        block.get_mut(start..end)
    }

    /// The block of a cell, and where it begins there.
    fn place(&self, cell: u32) -> Option<(usize, usize)> {
        let per_block = BLOCK.checked_div(self.cell)?;
        let block = (cell as usize).checked_div(per_block)?;
        Some((block, cell as usize % per_block * self.cell))
    }

    /// Takes the block with the request that has the expected PSN out, which is not held any more;
    /// [`Self::put_back`] follows.
    pub fn take(&mut self, expected: Psn) -> Option<TakenRequest> {
        if !core::mem::take(&mut self.ready) {
            return None;
        }
        let cell = u32::from(*self.cells.0.get(position(expected))?);
        self.used &= !(1 << (cell & 127));
        let (block, start) = self.place(cell)?;
        let bytes = self.blocks.get_mut(block)?.take()?;
        Some(TakenRequest { block, bytes, start, end: start + self.cell })
    }

    pub fn put_back(&mut self, taken: TakenRequest, pool: &HoldPool) {
        match self.blocks.get_mut(taken.block) {
            // An error in between freed everything.
            Some(block) if block.is_none() && self.cell != 0 => *block = Some(taken.bytes),
            _ => pool.give_back(taken.bytes),
        }
    }

    /// The expected PSN moved on by `count`. A request with a PSN that was passed is not held any more.
    pub fn advance(&mut self, expected: Psn, count: u32) {
        let mut passed = self.ahead & mask(count.saturating_sub(1));
        if self.ready {
            // A second copy of the request came and was executed in its place.
            self.forget(expected);
        }
        while passed != 0 {
            self.forget(expected.add(passed.trailing_zeros() + 1));
            passed &= passed - 1;
        }
        self.ready = count > 0 && self.contains(count);
        self.ahead = if count < u128::BITS { self.ahead >> count } else { 0 };
    }

    fn forget(&mut self, psn: Psn) {
        if let Some(&cell) = self.cells.0.get(position(psn)) {
            self.used &= !(1 << (cell & 127));
        }
    }

    /// Returns all memory.
    pub fn clear(&mut self, pool: &HoldPool) {
        (self.ready, self.ahead, self.used, self.cell) = (false, 0, 0, 0);
        for block in self.blocks.iter_mut().filter_map(Option::take) {
            pool.give_back(block);
        }
    }
}

/// A block that is out of its place while a request in it is executed.
pub(super) struct TakenRequest {
    block: usize,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl TakenRequest {
    /// The request. It was emitted here, so it parses.
    pub fn packet(&self) -> Option<Packet<'_>> {
        let (length, octets) = self.bytes.get(self.start..self.end)?.split_first_chunk::<LENGTH>()?;
        Packet::parse(octets.get(..usize::from(u16::from_ne_bytes(*length)))?).ok()
    }
}

const fn position(psn: Psn) -> usize {
    (psn.value() & 127) as usize
}

/// The lowest `count` bits.
const fn mask(count: u32) -> u128 {
    if count < u128::BITS { (1 << count) - 1 } else { u128::MAX }
}
