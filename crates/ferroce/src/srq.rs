//! Shared receive queues.

use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::error::CreateSrqError;
use ferroce_engine::{RecvWr, Sge, SrqAttr, SrqAttrMask, SrqInit};
use ferroce_wire::SrqNumber;

use crate::capacity::Requests;
use crate::declare::setters;
use crate::error::Cause;
use crate::shared::{Capacity, OwnedSrq, SharedReceives, Xrcd};
use crate::{CompletionQueue, Error, ProtectionDomain, Slice, XrcDomain};

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_srq_attr")]
#[non_exhaustive]
pub struct SrqOptions {
    /// Limit of outstanding receive work requests, 1 to 16,384.
    pub max_wr: u32,
    /// Limit of slices in one of them, at most 32.
    pub max_sge: u32,
}

impl Default for SrqOptions {
    /// 128 work requests of one slice.
    fn default() -> Self {
        Self { max_wr: 128, max_sge: 1 }
    }
}

setters! { SrqOptions { max_wr: u32, max_sge: u32, } }

impl SrqOptions {
    fn init(self, number: u64) -> SrqInit {
        SrqInit { max_wr: self.max_wr, max_sge: self.max_sge, user: number }
    }
}

/// A receive queue shared by several queue pairs, which take its receives in the order of posting. Clones are
/// the same one, and equal; it ends after the last clone and the last queue pair on it are dropped.
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue {
    shared: Arc<SharedReceives>,
}

impl PartialEq for SharedReceiveQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for SharedReceiveQueue {}

impl ProtectionDomain {
    /// Creates a shared receive queue, with memory of this domain.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, options: SrqOptions) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::new(self, None, |number| self.shared.pd.create_srq(options.init(number)))
    }
}

impl XrcDomain {
    /// Creates a shared receive queue of this domain, with memory of `domain` and completions in `queue`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn shared_receive_queue(
        &self,
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        options: SrqOptions,
    ) -> Result<SharedReceiveQueue, Error> {
        let capacity = Capacity::new(&queue.shared, Requests::Own(options.max_wr))?;
        SharedReceiveQueue::new(domain, Some((Arc::clone(&self.shared), capacity)), |number| {
            self.shared.xrcd.create_srq(&domain.shared.pd, queue.engine(), options.init(number))
        })
    }
}

impl SharedReceiveQueue {
    /// Wraps the queue that `make` creates, with the number for its events.
    fn new(
        domain: &ProtectionDomain,
        xrc: Option<(Arc<Xrcd>, Capacity)>,
        make: impl FnOnce(u64) -> Result<Arc<engine::Srq>, CreateSrqError>,
    ) -> Result<Self, Error> {
        let queues = &domain.shared.open.shared_queues;
        let number = queues.number();
        let srq = OwnedSrq(make(number)?);
        let shared = Arc::new(SharedReceives { srq, domain: Arc::clone(&domain.shared), _xrc: xrc });
        queues.insert(number, &shared);
        Ok(Self { shared })
    }

    pub(crate) fn of(shared: Arc<SharedReceives>) -> Self {
        Self { shared }
    }

    pub(crate) fn engine(&self) -> &Arc<engine::Srq> {
        &self.shared.srq.0
    }

    /// Posts a receive for any of the queue pairs.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr_id: u64, memory: &[Slice]) -> Result<(), Error> {
        let sges: Vec<Sge> = memory.iter().map(|slice| slice.sge()).collect();
        self.engine()
            .post_recv([RecvWr { wr_id, sges: &sges }])
            .map_err(|(index, source)| Cause::PostRecv(index, source).into())
    }

    /// Requests one [`crate::EventKind::SrqLimitReached`] when fewer than `limit` receives are left; 0
    /// disables it.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let attr = SrqAttr { limit, ..SrqAttr::default() };
        Ok(self.engine().modify(&attr, SrqAttrMask::LIMIT)?)
    }

    /// The receives that a completion queue of its queue pairs needs capacity for.
    pub(crate) fn requests(&self) -> Requests {
        Requests::Shared { number: self.engine().user(), max_wr: self.engine().query().max_wr }
    }

    /// Changes the capacity to `max_wr` receives; posted ones stay. Completion queues do not grow with it:
    /// see [`crate::CompletionQueue::resize`].
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        let attr = SrqAttr { max_wr, ..SrqAttr::default() };
        Ok(self.engine().modify(&attr, SrqAttrMask::MAX_WR)?)
    }

    /// Returns the present limit: 0 after its event was raised.
    #[doc(alias = "ibv_query_srq")]
    pub fn limit(&self) -> u32 {
        self.engine().query().limit
    }

    /// Returns the number by which XRC peers address it.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> SrqNumber {
        self.engine().number()
    }
}
