//! Shared receive queues.

use bitflags::bitflags;

use crate::receive::queue::ReceiveQueue;
use crate::{AsyncEventKind, Domain, ModifySrqError, PostRecvError, RecvWqe, RecvWr, Taken};

/// A receive queue that several queue pairs take from (IBTA 10.2.9), without locks and I/O.
///
/// After [`take`](Self::take) and [`modify`](Self::modify) ask [`poll_event`](Self::poll_event).
#[derive(Debug)]
pub struct SharedReceiveQueue {
    ring: ReceiveQueue,
    domain: Domain,
    /// 0 if no event is asked for.
    limit: u32,
    failed: bool,
    event: Option<AsyncEventKind>,
}

/// Attributes of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// Receive work requests that may be outstanding.
    pub max_wr: u32,
    /// SGEs of one; never modified.
    pub max_sge: u32,
    /// Fewer WQEs than this raise [`AsyncEventKind::SrqLimitReached`], once; 0 for no event.
    pub limit: u32,
}

bitflags! {
    /// Which attributes a modify sets: bits of `ibv_srq_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_srq_attr_mask")]
    pub struct SrqAttrMask: u32 {
        /// [`SrqAttr::max_wr`].
        const MAX_WR = 1;
        /// [`SrqAttr::limit`].
        const LIMIT = 1 << 1;
        const _ = !0;
    }
}

impl SharedReceiveQueue {
    /// Makes one for `max_wr` work requests of up to `max_sge` SGEs, in memory of `domain`. `None` if there
    /// is no memory for it.
    pub fn new(max_wr: u32, max_sge: u32, domain: Domain) -> Option<Self> {
        let ring = ReceiveQueue::try_new(max_wr, max_sge)?;
        Some(Self { ring, domain, limit: 0, failed: false, event: None })
    }

    /// The attributes of the queue (`ibv_query_srq`); the limit is 0 once its event was raised.
    #[doc(alias = "ibv_query_srq")]
    pub const fn query(&self) -> SrqAttr {
        SrqAttr { max_wr: self.ring.capacity(), max_sge: self.ring.max_sge(), limit: self.limit }
    }

    /// WQEs that can be taken.
    pub const fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Whether no WQE can be taken.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts a receive work request (`ibv_post_srq_recv`).
    ///
    /// # Errors
    ///
    /// See [`PostRecvError`]; the queue is as it was.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.ring.post(wr)
    }

    /// Moves the oldest WQE into `wqe` if it holds `least` octets; first in, first out, whichever queue pair
    /// asks (IBTA 10.2.9.5).
    pub fn take(&mut self, wqe: &mut RecvWqe, least: u64) -> Taken {
        if self.failed {
            return Taken::Failed;
        }
        let taken = self.ring.take(wqe, least);
        if taken == Taken::Wqe {
            wqe.set_domain(self.domain);
            self.check_limit();
        }
        taken
    }

    /// Changes attributes (`ibv_modify_srq`), all that `mask` names or none. A limit above the number of WQEs
    /// that are there is reached at once (IBTA 11.2.3.3).
    ///
    /// # Errors
    ///
    /// See [`ModifySrqError`]; the queue is as it was, its WQEs included.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&mut self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<(), ModifySrqError> {
        let unknown = mask.difference(SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT);
        if !unknown.is_empty() {
            return Err(ModifySrqError::Mask { unknown });
        }
        let resized = mask.contains(SrqAttrMask::MAX_WR);
        let (max_wr, limit) = (
            if resized { attr.max_wr } else { self.ring.capacity() },
            if mask.contains(SrqAttrMask::LIMIT) { attr.limit } else { self.limit },
        );
        if max_wr == 0 || max_wr < self.len() {
            return Err(ModifySrqError::Size { asked: max_wr, present: self.len() });
        }
        if limit > max_wr {
            return Err(ModifySrqError::Limit { limit, max_wr });
        }
        if resized && max_wr != self.ring.capacity() {
            let max_sge = self.ring.max_sge();
            let mut ring = ReceiveQueue::try_new(max_wr, max_sge).ok_or(ModifySrqError::Memory { max_wr })?;
            ring.adopt(&mut self.ring);
            self.ring = ring;
        }
        self.limit = limit;
        self.check_limit();
        Ok(())
    }

    fn check_limit(&mut self) {
        if self.len() < self.limit {
            self.limit = 0;
            self.event = Some(AsyncEventKind::SrqLimitReached);
        }
    }

    /// Ends it because something it needs failed: from now on nothing is taken from it. Its WQEs stay.
    pub fn fail(&mut self) {
        if !self.failed {
            self.failed = true;
            self.event = Some(AsyncEventKind::SrqErr);
        }
    }

    /// The event that was raised, if any.
    pub const fn poll_event(&mut self) -> Option<AsyncEventKind> {
        self.event.take()
    }
}

#[cfg(test)]
mod tests;
