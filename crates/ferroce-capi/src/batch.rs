//! The batch of work requests that a program builds by the functions of an extended queue pair.

use ferroce_abi as abi;
use ferroce_engine::{SendBatch, SendOp, SendTo, SendWr, Sge};
use parking_lot::Mutex;

use crate::check;
use crate::errno::Errno;
use crate::mw::NewKey;

/// The batch that a program builds on one queue pair, between `wr_start` and its end.
#[derive(Default)]
pub(crate) struct Batch(pub(crate) Mutex<BatchState>);

#[derive(Default)]
pub(crate) struct BatchState {
    /// Held by the engine from start to end, so that other batches wait.
    pub(crate) open: Option<SendBatch>,
    /// A request whose data was not set yet.
    pub(crate) pending: Option<Pending>,
    /// The first error; nothing of the batch is posted then.
    pub(crate) failed: Option<Errno>,
    /// New keys of the windows that the batch binds.
    pub(crate) keys: Vec<NewKey>,
    /// Requests of a program that is checked.
    pub(crate) works: Vec<check::Work>,
}

// SAFETY: the engine's lock inside `SendBatch` may be released by any thread (parking_lot, feature
// send_guard).
unsafe impl Send for BatchState {}

pub(crate) struct Pending {
    pub(crate) wr_id: u64,
    pub(crate) flags: u32,
    pub(crate) op: SendOp,
    pub(crate) to: SendTo,
}

impl Batch {
    /// Drops what was built.
    pub(crate) fn abandon(&self) {
        let state = std::mem::take(&mut *self.0.lock());
        drop(state);
    }
}

impl BatchState {
    /// Adds a request that takes no data from here on.
    pub(crate) fn push(&mut self, pending: &Pending, sges: &[Sge], inline: bool) {
        let Some(batch) = &mut self.open else { return };
        if self.failed.is_some() {
            return;
        }
        let wr = SendWr {
            wr_id: pending.wr_id,
            op: pending.op,
            to: pending.to,
            sges,
            signaled: pending.flags & abi::IBV_SEND_SIGNALED != 0,
            solicited: pending.flags & abi::IBV_SEND_SOLICITED != 0,
            fence: pending.flags & abi::IBV_SEND_FENCE != 0,
            inline,
        };
        if check::is_on() {
            self.works.push(check::Work::send(&wr));
        }
        let pushed = batch.push(&wr);
        if let Err(error) = pushed {
            self.failed = Some(Errno::of_batch(error));
        }
    }

    /// A request without a setter has no data.
    pub(crate) fn flush(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.push(&pending, &[], false);
        }
    }

    /// Says to whom the request that was started last goes, before its data was set or after.
    pub(crate) fn address(&mut self, to: SendTo) {
        let addressed = match (&mut self.pending, &mut self.open) {
            (Some(pending), _) => {
                pending.to = to;
                true
            }
            (None, Some(batch)) => batch.set_destination(to),
            (None, None) => false,
        };
        if !addressed {
            self.fail(Errno::EINVAL);
        }
    }

    pub(crate) fn fail(&mut self, errno: Errno) {
        self.failed.get_or_insert(errno);
    }
}
