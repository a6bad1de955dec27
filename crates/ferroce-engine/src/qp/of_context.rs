//! The queue pairs of a context.

use std::ptr;
use std::sync::Arc;

use ferroce_ipc::ledger::Totals;

use super::Qp;
use crate::Context;
use ferroce_paths::counters::transport_values;

impl Context {
    /// The counters that kernel rxe shows too (`rdma statistic`), of this device in this process.
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        let hub = self.engine().hub();
        let mut totals = Totals { device: self.counters().values(), ..Totals::default() };
        totals.add(&[], &hub.ledger.retired(self.block()));
        for qp in Qp::all(self.engine()).filter(|qp| qp.context().block() == self.block()) {
            totals.add(&[], &transport_values(&qp.counters()));
        }
        totals.rxe()
    }

    /// Stops the queue pairs of a device that is dead, and wakes the threads that sleep until one of their
    /// queues has a completion.
    pub(crate) fn stop_queue_pairs(&self) {
        for qp in Qp::all(self.engine()).filter(|qp| ptr::eq(Arc::as_ptr(qp.context()), self)) {
            qp.endpoint.stop();
            qp.send_cq().into_iter().chain(qp.recv_cq()).for_each(|cq| cq.wake());
        }
    }

    /// Closes the device. Queue pairs that were left are destroyed, so that peers learn it; other
    /// objects become useless. A second call does nothing.
    #[doc(alias = "ibv_close_device")]
    pub fn close(self: &Arc<Self>) {
        if !self.end() {
            return;
        }
        let left: Vec<Arc<Qp>> =
            Qp::all(self.engine()).filter(|qp| Arc::ptr_eq(qp.context(), self)).collect();
        for qp in left {
            qp.destroy();
        }
        for share in Qp::all(self.engine()).flat_map(|qp| qp.shares_of(self)) {
            share.close();
        }
        self.entry().end();
    }
}
