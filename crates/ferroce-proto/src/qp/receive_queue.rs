//! Where receive WQEs come from.

use super::sg;
use crate::{Memory, MemoryError, PostRecvError, QpCaps, RecvWr, Sge};

/// What the responder takes receive WQEs from: the queue pair's own queue, later also a shared one.
pub(crate) trait ReceiveSource {
    /// Moves the oldest WQE into `wqe`; `false` if there is none. What was taken is never given back.
    fn take(&mut self, wqe: &mut RecvWqe) -> bool;
}

/// A receive WQE that a message is bound to.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    sges: Box<[Sge]>,
    sge_count: usize,
    /// Octets it holds.
    pub length: u64,
}

impl RecvWqe {
    /// An empty one, with room for this many SGEs.
    pub fn new(max_sge: u32) -> Self {
        Self { wr_id: 0, sges: vec![Sge::default(); max_sge as usize].into(), sge_count: 0, length: 0 }
    }

    /// Copies what was posted: it is validated and used here, whatever happens to the original.
    pub fn fill(&mut self, wr_id: u64, sges: &[Sge]) {
        self.wr_id = wr_id;
        self.sge_count = sges.len().min(self.sges.len());
        for (slot, sge) in self.sges.iter_mut().zip(sges) {
            *slot = *sge;
        }
        self.length = sg::length(self.sges());
    }

    /// Copies a message's octets from `offset` on into it.
    pub fn scatter(&self, offset: u64, data: &[u8], mem: &mut impl Memory) -> Result<(), MemoryError> {
        sg::scatter(self.sges(), offset, data, mem)
    }

    fn sges(&self) -> &[Sge] {
        self.sges.get(..self.sge_count).unwrap_or_default()
    }
}

/// A queue pair's own receive queue: a ring, allocated at creation.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    max_sge: u32,
    head: u64,
    tail: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    wr_id: u64,
    sge_count: u32,
}

impl ReceiveQueue {
    pub fn new(caps: QpCaps) -> Self {
        let slots = caps.max_recv_wr as usize;
        Self {
            slots: vec![Slot::default(); slots].into(),
            sges: vec![Sge::default(); slots * caps.max_recv_sge as usize].into(),
            max_sge: caps.max_recv_sge,
            head: 0,
            tail: 0,
        }
    }

    /// Takes a work request, or leaves the queue as it is.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostRecvError::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        if self.tail - self.head >= self.slots.len() as u64 {
            return Err(PostRecvError::QueueFull { max: self.slots.len() as u32 });
        }
        let (slot, start) = self.place(self.tail);
        for (slot, sge) in self.sges.iter_mut().skip(start).zip(wr.sges) {
            *slot = *sge;
        }
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot { wr_id: wr.wr_id, sge_count: wr.sges.len() as u32 };
        }
        self.tail += 1;
        Ok(())
    }

    /// Frees the oldest WQE unused: the queue pair is in error. Its `wr_id`.
    pub fn pop_flushed(&mut self) -> Option<u64> {
        if self.head == self.tail {
            return None;
        }
        let (slot, _) = self.place(self.head);
        self.head += 1;
        self.slots.get(slot).map(|slot| slot.wr_id)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Slot and first SGE of a WQE.
    fn place(&self, index: u64) -> (usize, usize) {
        let slot = index.checked_rem(self.slots.len() as u64).unwrap_or(0) as usize;
        (slot, slot * self.max_sge as usize)
    }
}

impl ReceiveSource for ReceiveQueue {
    fn take(&mut self, wqe: &mut RecvWqe) -> bool {
        if self.head == self.tail {
            return false;
        }
        let (slot, start) = self.place(self.head);
        let Some(&Slot { wr_id, sge_count }) = self.slots.get(slot) else { return false };
        wqe.fill(wr_id, self.sges.get(start..start + sge_count as usize).unwrap_or_default());
        self.head += 1;
        true
    }
}
