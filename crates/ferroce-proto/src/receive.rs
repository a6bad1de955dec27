//! Receive WQEs, and the queues that several queue pairs take them from.

pub(crate) mod queue;

use alloc::boxed::Box;
use alloc::vec;

use ferroce_wire::SrqNumber;

use crate::iwarp::Span;
use crate::{Domain, Memory, MemoryError, Sge, sg};

/// The shared receive queues that a queue pair takes from, passed to it with each packet as [`Memory`] is.
/// Queue pairs of several threads take from one queue, so an implementation locks inside
/// [`take`](Self::take).
pub trait ReceiveSource {
    /// Moves the oldest WQE into `wqe` if it holds `least` octets; if not, it stays. A WQE that was taken is
    /// never given back (IBTA 10.2.9.5).
    ///
    /// `number` is the queue that the request names, for XRC targets alone (IBTA A14): the answer is
    /// [`Taken::Empty`] if that queue has just ended.
    fn take(&mut self, number: Option<SrqNumber>, wqe: &mut RecvWqe, least: u64) -> Taken;

    /// The protection domain of the XRC domain's queue `number`; `None` if the XRC domain has no such queue.
    fn domain_of(&self, number: SrqNumber) -> Option<Domain>;
}

/// The source of queue pairs that share no receive queue.
#[derive(Clone, Copy, Debug)]
pub struct NoSharedQueue;

impl ReceiveSource for NoSharedQueue {
    fn take(&mut self, _: Option<SrqNumber>, _: &mut RecvWqe, _: u64) -> Taken {
        Taken::Empty
    }

    fn domain_of(&self, _: SrqNumber) -> Option<Domain> {
        None
    }
}

/// Which shared receive queues a queue pair takes from in place of a queue of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedReceives {
    /// A single shared receive queue: RC, UC, UD and raw packets.
    Queue { max_sge: u32 },
    /// The queue of an XRC domain that each request names: XRC targets.
    XrcDomain {
        /// Most SGEs of a WQE that any of the domain's queues gives.
        max_sge: u32,
        /// The queue pair looks for remote keys in a protection domain of its own. Without one it looks for
        /// them in the protection domain of the queue that the request names.
        own_memory: bool,
    },
}

impl SharedReceives {
    pub(crate) const fn max_sge(self) -> u32 {
        match self {
            Self::Queue { max_sge } | Self::XrcDomain { max_sge, .. } => max_sge,
        }
    }
}

/// The result of [`ReceiveSource::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Wqe,
    /// The queue is empty: RC sends an RNR NAK, UC and UD drop.
    Empty,
    /// The oldest WQE is too short and stays: UD drops.
    TooShort,
    /// The queue failed and gives no more.
    Failed,
}

/// A receive WQE that a message is bound to: a copy of what was posted. It is validated and used here,
/// whatever happens to the original.
#[derive(Debug)]
pub struct RecvWqe {
    pub(crate) wr_id: u64,
    sges: Box<[Sge]>,
    sge_count: usize,
    pub(crate) length: u64,
    /// The domain of the memory that its SGEs name, if not the queue pair's: a shared queue has a domain of
    /// its own.
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

    #[inline]
    pub(crate) fn fill(&mut self, wr_id: u64, sges: &[Sge], length: u64) {
        (self.wr_id, self.length, self.domain, self.queue) = (wr_id, length, None, None);
        if let ([sge], [slot, ..]) = (sges, &mut *self.sges) {
            (*slot, self.sge_count) = (*sge, 1);
            return;
        }
        self.sge_count = sges.len().min(self.sges.len());
        for (slot, sge) in self.sges.iter_mut().zip(sges) {
            *slot = *sge;
        }
    }

    pub(crate) const fn set_domain(&mut self, domain: Domain) {
        self.domain = Some(domain);
    }

    pub const fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The memory of a message's octet `offset`, and of up to `len` octets from there on as far as they
    /// follow in memory.
    pub(crate) fn span(&self, offset: u64, len: usize) -> Option<Span> {
        let sges = self.sges.get(..self.sge_count).unwrap_or_default();
        sg::part(sges, offset, len).next().map(|sge| Span::Local(sge, self.domain))
    }

    /// Copies a message's octets from `offset` on into it.
    #[inline(always)]
    pub(crate) fn scatter(&self, offset: u64, data: &[u8], mem: &mut impl Memory) -> Result<(), MemoryError> {
        let sges = self.sges.get(..self.sge_count).unwrap_or_default();
        let Some(domain) = self.domain else { return sg::scatter(sges, offset, data, mem) };
        mem.enter(Some(domain));
        let result = sg::scatter(sges, offset, data, mem);
        mem.enter(None);
        result
    }
}
