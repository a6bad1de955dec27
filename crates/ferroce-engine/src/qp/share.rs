//! Target queue pairs of XRC that several have open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ferroce_proto::AsyncEventKind;
use ferroce_wire::Qpn;
use parking_lot::Mutex;

use super::{Parts, Qp};
use crate::async_queue::{AckCount, EventSource};
use crate::error::{CreateQpError, OpenQpError};
use crate::{Context, Pd, Xrcd};
use ferroce_host::fork;

/// The parts of a queue pair that only XRC targets have.
pub(super) struct Target {
    pub(super) xrcd: Arc<Xrcd>,
    pub(super) sharing: Sharing,
}

/// The contexts that have a target open beside its creator.
#[derive(Default)]
pub(super) struct Sharing(Mutex<Holders>);

#[derive(Default)]
struct Holders {
    creator_gone: bool,
    shares: Vec<Weak<QpShare>>,
}

/// A target queue pair opened by its number (`ibv_open_qp`). It has events of its own, and keeps the queue
/// pair alive until it is closed.
#[doc(alias = "ibv_open_qp")]
pub struct QpShare {
    qp: Arc<Qp>,
    xrcd: Arc<Xrcd>,
    user: u64,
    acks: AckCount,
    closed: AtomicBool,
}

impl QpShare {
    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The caller's own value.
    pub fn user(&self) -> u64 {
        self.user
    }

    /// The context whose domain it was opened by.
    pub fn context(&self) -> &Arc<Context> {
        self.xrcd.context()
    }

    /// Acknowledges one asynchronous event of this share.
    pub fn ack_async_event(&self) {
        self.acks.acknowledge(1);
    }

    /// Closes it, and ends the queue pair if nobody else has it. Waits until its events are acknowledged. A
    /// second call does nothing.
    pub fn close(&self) {
        self.leave(true);
    }

    fn leave(&self, waits: bool) {
        if self.qp.epoch != fork::epoch() || self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let last = {
            let Some(sharing) = self.qp.sharing() else { return };
            let mut holders = sharing.0.lock();
            holders.shares.retain(|share| !std::ptr::eq(share.as_ptr(), self));
            holders.shares.is_empty() && holders.creator_gone
        };
        self.context().async_events().purge(self);
        if waits {
            self.acks.wait();
        }
        if last && let Err(busy) = self.qp.end() {
            tracing::error!(%busy, "an XRC target that is in use ended");
        }
        self.xrcd.remove_user();
    }
}

impl EventSource for QpShare {
    fn async_acks(&self) -> &AckCount {
        &self.acks
    }
}

impl Drop for QpShare {
    /// A share that the program forgot to close does not keep the queue pair.
    fn drop(&mut self) {
        self.leave(false);
    }
}

/// The effect of the creator's destroying its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// It had done so before.
    Before,
    /// Others have it open.
    OthersStay,
    /// No user has it open.
    Last,
}

impl Sharing {
    /// The creator leaves.
    pub(super) fn leave(&self) -> Left {
        let mut holders = self.0.lock();
        match (std::mem::replace(&mut holders.creator_gone, true), holders.shares.is_empty()) {
            (true, _) => Left::Before,
            (false, false) => Left::OthersStay,
            (false, true) => Left::Last,
        }
    }

    /// Tells everybody but the creator; whether to tell the creator.
    pub(super) fn report(&self, kind: AsyncEventKind) -> bool {
        let holders = self.0.lock();
        for share in &holders.shares {
            if let Some(held) = share.upgrade() {
                held.context().async_events().push(kind, share.clone());
            }
        }
        !holders.creator_gone
    }

    pub(super) fn of_context(&self, context: &Arc<Context>) -> Vec<Arc<QpShare>> {
        let holders = self.0.lock();
        let shares = holders.shares.iter().filter_map(Weak::upgrade);
        shares.filter(|share| Arc::ptr_eq(share.context(), context)).collect()
    }
}

impl Qp {
    /// Opens it once more; `None` if it is no target of this domain, or ending.
    pub(crate) fn share(self: &Arc<Self>, xrcd: &Arc<Xrcd>, user: u64) -> Option<Arc<QpShare>> {
        let sharing = self.sharing()?;
        if !self.xrcd()?.is(xrcd) {
            return None;
        }
        let mut holders = sharing.0.lock();
        if (holders.creator_gone && holders.shares.is_empty()) || !xrcd.add_user() {
            return None;
        }
        let share = Arc::new(QpShare {
            qp: Arc::clone(self),
            xrcd: Arc::clone(xrcd),
            user,
            acks: AckCount::default(),
            closed: AtomicBool::new(false),
        });
        holders.shares.push(Arc::downgrade(&share));
        Some(share)
    }
}

impl Xrcd {
    /// Makes a target queue pair, in RESET: it answers what an initiator asks and receives into the shared
    /// receive queue that each request names. Remote keys are looked for in `pd`, or without one in the
    /// protection domain of that queue.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    pub fn create_target(
        self: &Arc<Self>,
        pd: Option<&Arc<Pd>>,
        user: u64,
    ) -> Result<Arc<Qp>, CreateQpError> {
        if pd.is_some_and(|pd| !Arc::ptr_eq(pd.context(), self.context())) {
            return Err(CreateQpError::ForeignPd);
        }
        let own_memory = pd.is_some();
        Qp::assemble(pd.unwrap_or(self.nowhere()), Parts::target(self, own_memory, user))
    }

    /// Opens a target queue pair of this domain a second time: it lives until all have closed it. `user` is
    /// the caller's own, given back in its events.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_qp(self: &Arc<Self>, qpn: Qpn, user: u64) -> Result<Arc<QpShare>, OpenQpError> {
        let table = &self.context().engine().hub().table;
        let none = OpenQpError { qpn };
        let found = table.owns(qpn).then(|| table.get(qpn)).flatten().ok_or(none)?;
        let qp = Qp::of(&found).ok_or(none)?;
        qp.share(self, user).ok_or(none)
    }
}
