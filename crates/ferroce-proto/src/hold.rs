//! Memory in which the queue pairs of one process hold packets that came too early.

use alloc::vec::Vec;
use core::fmt;

use crossbeam_queue::ArrayQueue;

/// Octets of one block.
pub(crate) const BLOCK: usize = 64 << 10;
/// Blocks that one queue pair may have: 256 KiB.
pub(crate) const QUEUE_PAIR_BLOCKS: usize = 4;

/// Blocks of memory, all allocated when the process's budget is made. Taking and giving back one is an atomic
/// operation or two, without a lock. A block that was never used has an address and no physical memory.
pub(crate) struct HoldPool {
    free: ArrayQueue<Vec<u8>>,
}

impl HoldPool {
    /// Blocks of one process: 8 MiB.
    pub const BLOCKS: usize = 128;

    pub fn new() -> Self {
        Self::with_blocks(Self::BLOCKS)
    }

    /// A pool of `blocks` blocks; a pool of 0 hands out none.
    pub fn with_blocks(blocks: usize) -> Self {
        let free = ArrayQueue::new(blocks.max(1));
        for _ in 0..blocks {
            // The list has room for as many blocks.
            let _ = free.push(Vec::with_capacity(BLOCK));
        }
        Self { free }
    }

    /// An empty block, of the capacity [`BLOCK`].
    pub fn take(&self) -> Option<Vec<u8>> {
        self.free.pop()
    }

    /// Takes a block back. Its memory is empty when the next queue pair gets it.
    pub fn give_back(&self, mut block: Vec<u8>) {
        block.clear();
        // There are never more blocks than it was made for.
        let _ = self.free.push(block);
    }

    /// Blocks that no queue pair has.
    pub fn available(&self) -> usize {
        self.free.len()
    }
}

impl fmt::Debug for HoldPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldPool").field("available", &self.available()).finish_non_exhaustive()
    }
}
