//! Raw packets: whole Ethernet frames, in and out, without a transport (`IBV_QPT_RAW_PACKET`). A frame is a
//! message.

use super::common::Common;
use super::pipeline::Pipeline;
use super::receiving::SharedQueues;
use crate::{DropReason, Memory, QpState, ReceiveSource, WcOpcode, WcStatus, WorkCompletion};

/// Octets of the longest frame, from the destination address to the end of the payload: more than any
/// interface takes.
pub const MAX_FRAME: usize = 65_550;

/// Puts a frame into the next receive buffer. Nothing that a sender does changes the queue pair's state.
pub(crate) fn receive(
    common: &mut Common,
    frame: &[u8],
    queues: &mut SharedQueues<'_, impl ReceiveSource>,
    mem: &mut impl Memory,
) -> Result<(), DropReason> {
    if !common.answers() {
        return Err(DropReason::State);
    }
    if !common.receiving.has_room() {
        return Err(DropReason::Backlog);
    }
    common.bind(queues, 0)?;
    if common.receiving.bound().is_some_and(|wqe| frame.len() as u64 > wqe.length) {
        // The queue pair stays as it is: a sender of long frames must not be able to end it.
        common.receiving.fail(WcStatus::LocLenErr, common.qpn);
        return Err(DropReason::TooLong);
    }
    common.place(0, frame, mem)?;
    common.finish_placing(mem)?;
    common.complete(WorkCompletion {
        opcode: WcOpcode::Recv,
        byte_len: frame.len() as u32,
        src_qp: common.attr.dest_qp,
        ..WorkCompletion::BLANK
    });
    Ok(())
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
        pipeline.queue.fail(piece.index, status);
        return None;
    }
    pipeline.handed_over(&piece);
    common.counters.sent_pkts += 1;
    common.counters.rdma_sends += 1;
    Some(piece.len as usize)
}
