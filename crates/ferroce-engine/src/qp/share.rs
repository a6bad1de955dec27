//! Target queue pairs of XRC that several have open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Qp;
use crate::async_event::{AckCount, AsyncEventKind};
use crate::{Context, Xrcd};
use ferroce_host::fork;

/// Who has a target open beside its creator.
#[derive(Default)]
pub(super) struct Sharing(Mutex<Holders>);

#[derive(Default)]
struct Holders {
    creator_gone: bool,
    shares: Vec<Weak<QpShare>>,
}

/// A target queue pair opened by its number (`ibv_open_qp`). It has events of its own, and keeps the queue pair alive
/// until it is closed.
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

    pub(crate) fn async_acks(&self) -> &AckCount {
        &self.acks
    }

    /// Closes it, and ends the queue pair if nobody else has it. Waits until its events are acknowledged. A second call
    /// does nothing.
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
        self.context().async_events().purge_share(self);
        if waits {
            self.acks.wait();
        }
        if last && let Err(busy) = self.qp.end() {
            tracing::error!(%busy, "an XRC target that is in use ended");
        }
        self.xrcd.remove_user();
    }
}

impl Drop for QpShare {
    /// Whoever forgot to close it does not keep the queue pair.
    fn drop(&mut self) {
        self.leave(false);
    }
}

/// What it means that the creator destroys its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// It had done so before.
    Before,
    /// Others have it open.
    OthersStay,
    /// Nobody has it open.
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
    pub(super) fn tell(&self, kind: AsyncEventKind) -> bool {
        let holders = self.0.lock();
        for share in &holders.shares {
            if let Some(held) = share.upgrade() {
                held.context().async_events().push_share(kind, share);
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
    /// Queues an event for everybody who has it open.
    pub(super) fn tell(&self, kind: AsyncEventKind) {
        if self.sharing().is_none_or(|sharing| sharing.tell(kind)) {
            self.context().async_events().push_qp(kind, &self.me);
        }
    }

    /// Opens it once more; `None` if it is no target of this domain, or ending.
    pub(crate) fn share(self: &Arc<Self>, xrcd: &Arc<Xrcd>, user: u64) -> Option<Arc<QpShare>> {
        let sharing = self.sharing()?;
        if !self.target.as_ref()?.xrcd.is(xrcd) {
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
