//! Raw packets: whole Ethernet frames, in and out, without a transport (`IBV_QPT_RAW_PACKET`). A frame is a message.

use alloc::collections::VecDeque;

use super::common::Common;
use super::pipeline::Pipeline;
use super::receive_source::Receives;
use super::responder::{MAX_COMPLETIONS, failed};
use super::roles::ReceiveDepth;
use crate::{DropReason, Memory, QpState, ReceiveSource, RecvWqe, Taken, WcOpcode, WcStatus, WorkCompletion};

/// Octets of the longest frame, from the destination address to the end of the payload: more than any interface takes.
pub const MAX_FRAME: usize = 65_550;

/// Takes frames. Nothing that a sender does changes its state.
#[derive(Debug)]
pub(crate) struct Receiver {
    wqe: RecvWqe,
    completions: VecDeque<WorkCompletion>,
    max_completions: usize,
}

impl Receiver {
    pub fn new(depth: ReceiveDepth) -> Self {
        let completions = depth.max_wr.clamp(1, MAX_COMPLETIONS) as usize;
        Self {
            wqe: RecvWqe::new(depth.max_sge),
            completions: VecDeque::with_capacity(completions),
            max_completions: completions,
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.completions.clear();
    }

    /// Puts a frame into the next receive buffer.
    pub fn handle(
        &mut self,
        common: &mut Common,
        frame: &[u8],
        receives: &mut Receives<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if !common.answers() {
            return Err(DropReason::State);
        }
        if self.completions.len() >= self.max_completions {
            return Err(DropReason::Backlog);
        }
        match receives.take(&mut self.wqe, 0) {
            Taken::Wqe => {}
            Taken::Empty | Taken::TooShort => return Err(DropReason::NoReceiveWqe),
            Taken::Failed => {
                common.transition("shared receive queue failed", QpState::Error);
                return Err(DropReason::LocalFault);
            }
        }
        if frame.len() as u64 > self.wqe.length {
            // The queue pair lives on: whoever sends too much must not be able to end it.
            self.completions.push_back(failed(self.wqe.wr_id, WcStatus::LocLenErr, common.qpn));
            return Err(DropReason::TooLong);
        }
        if !frame.is_empty() && self.wqe.scatter(0, frame, mem).is_err() {
            self.completions.push_back(failed(self.wqe.wr_id, WcStatus::LocProtErr, common.qpn));
            common.transition("receive buffer cannot be written", QpState::Error);
            return Err(DropReason::LocalFault);
        }
        common.counters.rdma_recvs += 1;
        self.completions.push_back(WorkCompletion {
            wr_id: self.wqe.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: frame.len() as u32,
            imm: None,
            invalidated: None,
            qpn: common.qpn,
            src_qp: common.attr.dest_qp,
            solicited: false,
            grh: false,
            header: None,
            vendor_err: 0,
        });
        Ok(())
    }

    /// The next receive completion.
    pub fn poll_completion(&mut self) -> Option<WorkCompletion> {
        self.completions.pop_front()
    }
}

/// Writes the next frame to `out`, of [`MAX_FRAME`] octets; its length. It counts as sent.
pub(crate) fn next_frame(
    common: &mut Common,
    pipeline: &mut Pipeline,
    mem: &impl Memory,
    out: &mut [u8],
) -> Option<usize> {
    if common.state() != QpState::Rts {
        return None;
    }
    let piece = pipeline.piece().filter(|piece| piece.wqe.failure.is_none())?;
    let written = match out.get_mut(..piece.len as usize) {
        Some(room) => pipeline.queue.gather(piece.index, 0, room, mem).map_err(|_| WcStatus::LocProtErr),
        None => Err(WcStatus::LocLenErr),
    };
    if let Err(status) = written {
        if let Some(wqe) = pipeline.queue.get_mut(piece.index) {
            wqe.failure = Some(status.into());
        }
        return None;
    }
    pipeline.handed_over(&piece);
    common.counters.sent_pkts += 1;
    common.counters.rdma_sends += 1;
    Some(piece.len as usize)
}
