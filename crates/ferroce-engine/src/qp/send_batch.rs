//! Batches of send work requests that are posted together or not at all.

use std::sync::Arc;

use ferroce_proto::{PostSendError, SendOp, SendTo, SendWr, Sge};
use ferroce_wire::Lkey;
use parking_lot::{ArcMutexGuard, RawMutex};

use super::Qp;

/// The work requests that were added to a batch so far. Its memory is reused from batch to batch.
#[derive(Default)]
pub(crate) struct Stage {
    wrs: Vec<Staged>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

impl Stage {
    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
    }
}

struct Staged {
    wr_id: u64,
    op: SendOp,
    to: SendTo,
    signaled: bool,
    solicited: bool,
    fence: bool,
    payload: Payload,
}

/// Ranges of [`Stage::sges`] or [`Stage::inline`].
enum Payload {
    Sges { from: usize, to: usize },
    Inline { from: usize, to: usize, sge: usize },
}

/// A batch under way (`ibv_wr_start` to `ibv_wr_complete`). Dropping it posts nothing.
#[doc(alias = "ibv_wr_start")]
pub struct SendBatch {
    qp: Arc<Qp>,
    stage: ArcMutexGuard<RawMutex, Stage>,
}

impl SendBatch {
    pub(crate) fn new(qp: Arc<Qp>, mut stage: ArcMutexGuard<RawMutex, Stage>) -> Self {
        stage.clear();
        Self { qp, stage }
    }

    /// The queue pair it is for.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Adds a work request. SGEs and inline data are copied now. Errors that only the queue pair
    /// can see, as a full queue, come from [`Self::commit`].
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let stage = &mut *self.stage;
        let payload = if wr.inline {
            let given = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
            let max = self.qp.caps().max_inline;
            if given > u64::from(max) {
                return Err(PostSendError::InlineTooLong { given, max });
            }
            let from = stage.inline.len();
            for sge in wr.sges.iter().filter(|sge| sge.length > 0) {
                let start = stage.inline.len();
                stage.inline.resize(start + sge.length as usize, 0);
                self.qp.read_inline(sge.addr, &mut stage.inline[start..])?;
            }
            Payload::Inline { from, to: stage.inline.len(), sge: 0 }
        } else {
            let max = self.qp.caps().max_send_sge;
            if wr.sges.len() > max as usize {
                return Err(PostSendError::TooManySges { given: wr.sges.len(), max });
            }
            let from = stage.sges.len();
            stage.sges.extend_from_slice(wr.sges);
            Payload::Sges { from, to: stage.sges.len() }
        };
        let SendWr { wr_id, op, to, signaled, solicited, fence, .. } = *wr;
        stage.wrs.push(Staged { wr_id, op, to, signaled, solicited, fence, payload });
        Ok(())
    }

    /// Names the destination of the work request that was added last; `false` without one.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    pub fn set_destination(&mut self, to: SendTo) -> bool {
        match self.stage.wrs.last_mut() {
            Some(last) => {
                last.to = to;
                true
            }
            None => false,
        }
    }

    /// Posts the batch, or on an error nothing of it.
    #[doc(alias = "ibv_wr_complete")]
    pub fn commit(mut self) -> Result<(), PostSendError> {
        let Stage { wrs, sges, inline } = &mut *self.stage;
        // The staged copies stay where they are from now on: each becomes the one piece of its request.
        for wr in wrs.iter_mut() {
            if let Payload::Inline { from, to, sge } = &mut wr.payload {
                *sge = sges.len();
                let addr = inline[*from..*to].as_ptr() as u64;
                sges.push(Sge { addr, length: (*to - *from) as u32, lkey: Lkey::default() });
            }
        }
        self.qp.post_all(wrs.iter().map(|wr| {
            let (sges, inline) = match wr.payload {
                Payload::Sges { from, to } => (&sges[from..to], false),
                Payload::Inline { sge, .. } => (&sges[sge..=sge], true),
            };
            let Staged { wr_id, op, to, signaled, solicited, fence, .. } = *wr;
            SendWr { wr_id, op, to, sges, signaled, solicited, fence, inline }
        }))
    }

    /// Posts nothing.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) {}
}
