//! Sending without answers (IBTA 9.8.2, 9.8.3): a message is complete when its last packet went into a batch.
//!
//! There is no clock of answers, so nothing is charged to the process's budget: batches leave as fast as the
//! system takes them, and what a receiver cannot take is lost. Packets wait only for their turn among the
//! batches of a call.

use ferroce_wire::{PushError, TxBatch};

use super::common::Common;
use super::pipeline::{Piece, Pipeline};
use crate::{Memory, MemoryError, QpState, WcStatus};

/// Adds packets to the batch, each written by `push`; the number of packets.
pub(crate) fn transmit<M: Memory>(
    common: &mut Common,
    pipeline: &mut Pipeline,
    mem: &mut M,
    out: &mut TxBatch<'_>,
    push: impl Fn(&Piece, &Common, &Pipeline, &M, &mut TxBatch<'_>) -> Result<(), PushError<MemoryError>>,
) -> u32 {
    let mut sent = 0;
    while matches!(common.state(), QpState::Rts | QpState::Sqd)
        && pipeline.run_local(common.state() == QpState::Rts, mem)
    {
        let Some(piece) = pipeline.piece() else { break };
        // In SQD only what has begun goes on.
        if piece.wqe.failure.is_some() || (piece.starts && common.state() != QpState::Rts) {
            break;
        }
        // So that no half of a message is sent. A single packet is checked while it is built.
        let whole =
            piece.total == 1 || !piece.starts || pipeline.queue.check_memory(piece.index, false, mem).is_ok();
        let pushed = if whole {
            push(&piece, common, pipeline, mem, out)
        } else {
            Err(PushError::Fill(MemoryError::BadKey))
        };
        match pushed {
            Ok(()) => {}
            Err(PushError::Full) => break,
            Err(error) => {
                let status = match error {
                    PushError::Fill(_) => WcStatus::LocProtErr,
                    PushError::Full | PushError::Wire(_) => WcStatus::LocQpOpErr,
                };
                pipeline.queue.fail(piece.index, status);
                break;
            }
        }
        pipeline.handed_over(&piece);
        sent += 1;
        common.counters.sent_pkts += 1;
        common.counters.rdma_sends += u64::from(piece.is_last());
    }
    sent
}
