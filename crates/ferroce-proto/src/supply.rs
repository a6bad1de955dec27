//! Where receive WQEs come from, if not from a queue pair's own queue.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt::Debug;

use ferroce_wire::SrqNumber;

use crate::qp::sg;
use crate::{Memory, MemoryError, Sge};

/// A shared receive queue as its queue pairs see it. The implementation locks: queue pairs take from several threads.
pub trait ReceiveSupply: Debug + Send + Sync {
    /// Moves the oldest WQE into `wqe` if it holds `least` octets; if not, it stays. What was taken is never given back
    /// (IBTA 10.2.9.5).
    fn take(&self, wqe: &mut RecvWqe, least: u64) -> Taken;

    /// Most SGEs of a WQE it gives.
    fn max_sge(&self) -> u32;
}

/// An XRC domain as its target queue pairs see it (IBTA A14): the shared receive queues that peers name by number.
pub trait XrcDomain: Debug + Send + Sync {
    /// In whose memory the work requests of the domain's queue `number` are; `None` if the domain has no such queue.
    fn domain_of(&self, number: SrqNumber) -> Option<Domain>;

    /// As [`ReceiveSupply::take`], from queue `number`, whatever the WQE holds. [`Taken::Empty`] if it has just ended.
    fn take(&self, number: SrqNumber, wqe: &mut RecvWqe) -> Taken;

    /// Most SGEs of a WQE that any of its queues gives.
    fn max_sge(&self) -> u32;
}

/// Where a queue pair that has no receive queue of its own takes from.
#[derive(Clone, Debug)]
pub enum Supply {
    /// A shared receive queue: RC, UC and UD.
    Shared(Arc<dyn ReceiveSupply>),
    /// The queue that each request names: XRC's targets.
    Named {
        /// Where those queues are.
        xrcd: Arc<dyn XrcDomain>,
        /// The queue pair has a protection domain of its own, which remote keys are looked for in. Without one they are
        /// looked for in that of the queue which the request names.
        own_memory: bool,
    },
}

impl Supply {
    /// Most SGEs of a WQE it gives.
    pub(crate) fn max_sge(&self) -> u32 {
        match self {
            Self::Shared(supply) => supply.max_sge(),
            Self::Named { xrcd, .. } => xrcd.max_sge(),
        }
    }
}

/// What a request for a receive WQE brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// A WQE.
    Wqe,
    /// None is there: RC asks the peer to come again, UC and UD drop.
    Empty,
    /// The oldest holds too little, and stays: UD drops.
    TooShort,
    /// The queue failed and gives no more.
    Failed,
}

/// A protection domain, by the number it has with the implementation of [`Memory`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Domain(pub u32);

/// A receive WQE that a message is bound to: a copy of what was posted. It is validated and used here, whatever happens
/// to the original.
#[derive(Debug)]
pub struct RecvWqe {
    /// From the work request.
    pub(crate) wr_id: u64,
    sges: Box<[Sge]>,
    sge_count: usize,
    /// Octets it holds.
    pub(crate) length: u64,
    /// Whose memory its SGEs name, if not the queue pair's: a shared queue has a domain of its own.
    domain: Option<Domain>,
    /// The queue it was taken from, if the message named it: XRC.
    pub(crate) queue: Option<SrqNumber>,
}

impl RecvWqe {
    /// An empty one, with room for this many SGEs.
    pub fn new(max_sge: u32) -> Self {
        Self {
            wr_id: 0,
            sges: vec![Sge::default(); max_sge as usize].into(),
            sge_count: 0,
            length: 0,
            domain: None,
            queue: None,
        }
    }

    pub(crate) fn fill(&mut self, wr_id: u64, sges: &[Sge], length: u64) {
        (self.wr_id, self.length, self.domain, self.queue) = (wr_id, length, None, None);
        self.sge_count = sges.len().min(self.sges.len());
        for (slot, sge) in self.sges.iter_mut().zip(sges) {
            *slot = *sge;
        }
    }

    pub(crate) const fn set_domain(&mut self, domain: Domain) {
        self.domain = Some(domain);
    }

    /// From the work request.
    pub const fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Copies a message's octets from `offset` on into it.
    pub(crate) fn scatter(&self, offset: u64, data: &[u8], mem: &mut impl Memory) -> Result<(), MemoryError> {
        let sges = self.sges.get(..self.sge_count).unwrap_or_default();
        let Some(domain) = self.domain else { return sg::scatter(sges, offset, data, mem) };
        mem.enter(Some(domain));
        let result = sg::scatter(sges, offset, data, mem);
        mem.enter(None);
        result
    }
}
