//! The work requests of a batch until it is posted.

use ferroce_proto::{PostSendError, QpCaps, SendOp, SendTo, SendWr, Sge};
use ferroce_wire::Lkey;

/// The work requests that were added to a batch so far. Its memory is reused from batch to batch.
#[derive(Default)]
pub(super) struct Stage {
    wrs: Vec<Staged>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
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

impl Stage {
    pub(super) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Adds a work request that keeps to the sizes of its queue pair. `read_inline` copies from the program's
    /// memory.
    pub(super) fn push(
        &mut self,
        wr: &SendWr<'_>,
        caps: QpCaps,
        mut read_inline: impl FnMut(u64, &mut [u8]) -> Result<(), PostSendError>,
    ) -> Result<(), PostSendError> {
        let payload = if wr.inline {
            let given = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
            let max = caps.max_inline;
            if given > u64::from(max) {
                return Err(PostSendError::InlineTooLong { given, max });
            }
            let from = self.inline.len();
            for sge in wr.sges.iter().filter(|sge| sge.length > 0) {
                let start = self.inline.len();
                self.inline.resize(start + sge.length as usize, 0);
                read_inline(sge.addr, &mut self.inline[start..])?;
            }
            Payload::Inline { from, to: self.inline.len(), sge: 0 }
        } else {
            let max = caps.max_send_sge;
            if wr.sges.len() > max as usize {
                return Err(PostSendError::TooManySges { given: wr.sges.len(), max });
            }
            let from = self.sges.len();
            self.sges.extend_from_slice(wr.sges);
            Payload::Sges { from, to: self.sges.len() }
        };
        let SendWr { wr_id, op, to, signaled, solicited, fence, .. } = *wr;
        self.wrs.push(Staged { wr_id, op, to, signaled, solicited, fence, payload });
        Ok(())
    }

    /// Names the destination of the work request that was added last; `false` without one.
    pub(super) fn set_destination(&mut self, to: SendTo) -> bool {
        match self.wrs.last_mut() {
            Some(last) => {
                last.to = to;
                true
            }
            None => false,
        }
    }

    /// Ends the batch: returns its work requests, in order.
    pub(super) fn requests(&mut self) -> impl Iterator<Item = SendWr<'_>> {
        let Self { wrs, sges, inline } = self;
        // The staged copies stay where they are from now on: each becomes the one piece of its request.
        for wr in wrs.iter_mut() {
            if let Payload::Inline { from, to, sge } = &mut wr.payload {
                *sge = sges.len();
                let addr = inline[*from..*to].as_ptr() as u64;
                sges.push(Sge { addr, length: (*to - *from) as u32, lkey: Lkey::default() });
            }
        }
        let all: &[Sge] = sges;
        wrs.iter().map(move |wr| {
            let (sges, inline) = match wr.payload {
                Payload::Sges { from, to } => (&all[from..to], false),
                Payload::Inline { sge, .. } => (&all[sge..=sge], true),
            };
            let Staged { wr_id, op, to, signaled, solicited, fence, .. } = *wr;
            SendWr { wr_id, op, to, sges, signaled, solicited, fence, inline }
        })
    }
}
