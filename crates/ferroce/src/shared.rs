//! The parts that the clones of an object share. They know each other, and no public object.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroce_engine as engine;

use crate::Error;
use crate::capacity::{Demand, Requests};
use crate::handles::Handles;

/// An open device.
pub(crate) struct Open {
    pub(crate) context: Arc<engine::Context>,
    /// Completion queues, by the number in their events.
    pub(crate) queues: Handles<Queue>,
    /// Shared receive queues, by the number in their events.
    pub(crate) shared_queues: Handles<SharedReceives>,
    /// Number of forks between the first process and the one that opened the device.
    epoch: u64,
}

impl Open {
    pub(crate) fn new(context: Arc<engine::Context>) -> Self {
        let (queues, shared_queues) = (Handles::default(), Handles::default());
        Self { context, queues, shared_queues, epoch: engine::process_epoch() }
    }

    /// Returns whether this process opened it. In a forked child, threads of the parent may have left locks
    /// locked, and the parent's objects are unusable.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.epoch == engine::process_epoch()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.context.close();
    }
}

/// A protection domain.
pub(crate) struct Domain {
    pub(crate) pd: Arc<engine::Pd>,
    /// Dropped after the domain: the device must outlive its objects.
    pub(crate) open: Arc<Open>,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // The domain is empty, because each object in it holds a reference.
        let _ = self.pd.dealloc();
    }
}

/// A completion channel.
pub(crate) struct Channel {
    pub(crate) channel: Arc<engine::CompletionChannel>,
    pub(crate) open: Arc<Open>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // No queue uses the channel any more, because a queue holds a reference to it.
        let _ = self.channel.destroy();
    }
}

/// A completion queue.
pub(crate) struct Queue {
    pub(crate) cq: Arc<engine::CompletionQueue>,
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) demand: Mutex<Demand>,
    pub(crate) open: Arc<Open>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.open.is_of_this_process() {
            self.open.queues.remove(self.cq.user());
        }
        // No queue pair uses it any more, because a queue pair holds a reference to it.
        let _ = self.cq.destroy();
    }
}

impl Queue {
    /// The capacity that its users need.
    fn demand(&self) -> MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Capacity in a completion queue, released on drop.
pub(crate) struct Capacity {
    queue: Arc<Queue>,
    requests: Requests,
}

impl Capacity {
    /// Enlarges the queue if these requests need it.
    pub(crate) fn new(queue: &Arc<Queue>, requests: Requests) -> Result<Self, Error> {
        let mut demand = queue.demand();
        demand.add(requests);
        // On an error below the destructor of `capacity` removes the requests again; it takes the lock
        // itself.
        let capacity = Self { queue: Arc::clone(queue), requests };
        let entries = demand.entries();
        let grown = if queue.cq.capacity() < entries { queue.cq.resize(entries) } else { Ok(()) };
        drop(demand);
        grown?;
        Ok(capacity)
    }
}

impl Drop for Capacity {
    fn drop(&mut self) {
        if self.queue.open.is_of_this_process() {
            self.queue.demand().remove(self.requests);
        }
    }
}

/// An XRC domain.
pub(crate) struct Xrcd {
    pub(crate) xrcd: Arc<engine::Xrcd>,
    pub(crate) _open: Arc<Open>,
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // The domain is unused, because each user holds a reference.
        let _ = self.xrcd.close();
    }
}

/// A shared receive queue. Dropped in this order: the queue first, then the objects it uses.
pub(crate) struct SharedReceives {
    pub(crate) srq: OwnedSrq,
    pub(crate) domain: Arc<Domain>,
    pub(crate) _xrc: Option<(Arc<Xrcd>, Capacity)>,
}

pub(crate) struct OwnedSrq(pub(crate) Arc<engine::Srq>);

impl Drop for OwnedSrq {
    fn drop(&mut self) {
        // No queue pair uses it any more, because a queue pair holds a reference to it.
        let _ = self.0.destroy();
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        let open = &self.domain.open;
        if open.is_of_this_process() {
            open.shared_queues.remove(self.srq.0.user());
        }
    }
}
