//! Batches of send work requests that are posted together or not at all.

use std::sync::Arc;

use ferroce_proto::{PostSendError, SendTo, SendWr};
use parking_lot::{ArcMutexGuard, RawMutex};

use super::Qp;
use super::stage::Stage;

impl Qp {
    /// Starts a batch of send work requests that are posted together or not at all. Other batches
    /// of this queue pair wait until it ends; posts and packets do not.
    #[doc(alias = "ibv_wr_start")]
    pub fn sender(self: &Arc<Self>) -> SendBatch {
        let mut stage = self.stage.lock_arc();
        stage.clear();
        SendBatch { qp: Arc::clone(self), stage }
    }
}

/// A batch under way (`ibv_wr_start` to `ibv_wr_complete`). Dropping it posts nothing.
#[doc(alias = "ibv_wr_start")]
pub struct SendBatch {
    qp: Arc<Qp>,
    stage: ArcMutexGuard<RawMutex, Stage>,
}

impl SendBatch {
    /// The queue pair it is for.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Adds a work request. SGEs and inline data are copied now. Errors that only the queue pair
    /// can see, as a full queue, come from [`Self::commit`].
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.stage.push(wr, self.qp.caps(), |addr, out| self.qp.read_inline(addr, out))
    }

    /// Names the destination of the work request that was added last; `false` without one.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn set_destination(&mut self, to: SendTo) -> bool {
        self.stage.set_destination(to)
    }

    /// Posts the batch, or on an error nothing of it.
    #[doc(alias = "ibv_wr_complete")]
    pub fn commit(mut self) -> Result<(), PostSendError> {
        self.qp.post_all(self.stage.requests())
    }

    /// Posts nothing.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {}
}
