//! A queue of receive WQEs: a queue pair's own, or the ring of a shared one.

use super::{RecvWqe, Taken};
use crate::{PostRecvError, RecvWr, Sge, ring, sg};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A ring, allocated at creation.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    slots: Box<[Slot]>,
    sges: Box<[Sge]>,
    max_wr: u32,
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
    pub fn new(max_wr: u32, max_sge: u32) -> Self {
        let slots = ring::size(max_wr);
        Self {
            slots: vec![Slot::default(); slots].into(),
            sges: vec![Sge::default(); slots * max_sge as usize].into(),
            max_wr,
            max_sge,
            head: 0,
            tail: 0,
        }
    }

    /// As [`new`](Self::new), but says `None` where there is no memory for it.
    pub fn try_new(max_wr: u32, max_sge: u32) -> Option<Self> {
        fn zeroed<T: Clone + Default>(count: usize) -> Option<Box<[T]>> {
            let mut items = Vec::new();
            items.try_reserve_exact(count).ok()?;
            items.resize(count, T::default());
            Some(items.into())
        }
        let slots = ring::size(max_wr);
        let sges = zeroed(slots.checked_mul(max_sge as usize)?)?;
        Some(Self { slots: zeroed(slots)?, sges, max_wr, max_sge, head: 0, tail: 0 })
    }

    pub const fn capacity(&self) -> u32 {
        self.max_wr
    }

    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    /// Takes a work request, or leaves the queue as it is.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostRecvError::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        if self.len() >= self.capacity() {
            return Err(PostRecvError::QueueFull { max: self.capacity() });
        }
        self.put(wr.wr_id, wr.sges);
        Ok(())
    }

    /// Adds one for which there is room.
    #[inline]
    fn put(&mut self, wr_id: u64, sges: &[Sge]) {
        let (slot, start) = self.place(self.tail);
        match (sges, self.sges.get_mut(start)) {
            ([sge], Some(slot)) => *slot = *sge,
            _ => {
                for (slot, sge) in self.sges.iter_mut().skip(start).zip(sges) {
                    *slot = *sge;
                }
            }
        }
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot { wr_id, sge_count: sges.len() as u32 };
        }
        self.tail += 1;
    }

    /// Frees the oldest WQE unused: the queue pair is in error. Its `wr_id`.
    pub fn pop_flushed(&mut self) -> Option<u64> {
        let (wr_id, _) = self.front()?;
        self.head += 1;
        Some(wr_id)
    }

    pub fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Moves all WQEs of `other`, in order, into this one, which is empty and has room for them.
    pub fn adopt(&mut self, other: &mut Self) {
        while let Some((wr_id, sges)) = other.front() {
            self.put(wr_id, sges);
            other.head += 1;
        }
    }

    #[inline(always)]
    fn front(&self) -> Option<(u64, &[Sge])> {
        if self.head == self.tail {
            return None;
        }
        let (slot, start) = self.place(self.head);
        let &Slot { wr_id, sge_count } = self.slots.get(slot)?;
        Some((wr_id, self.sges.get(start..start + sge_count as usize).unwrap_or_default()))
    }

    /// Slot and first SGE of a WQE.
    fn place(&self, index: u64) -> (usize, usize) {
        let slot = ring::place(index, self.slots.len());
        (slot, slot * self.max_sge as usize)
    }

    /// Moves the oldest WQE into `wqe` if it holds `least` octets; if not, it stays.
    #[inline(always)]
    pub fn take(&mut self, wqe: &mut RecvWqe, least: u64) -> Taken {
        let Some((wr_id, sges)) = self.front() else { return Taken::Empty };
        let length = sg::length(sges);
        if length < least {
            return Taken::TooShort;
        }
        wqe.fill(wr_id, sges, length);
        self.head += 1;
        Taken::Wqe
    }
}
