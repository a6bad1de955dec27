//! Work requests that end in this queue pair: no packet leaves for them.

use super::common::Common;
use super::pipeline::Pipeline;
use crate::{Memory, QpState, SendOp, WcStatus};

/// Executes local operations at the cursor. `false` if one must wait or failed.
pub(crate) fn run(common: &Common, pipeline: &mut Pipeline, mem: &mut impl Memory) -> bool {
    while let Some((index, wqe)) = pipeline.at_cursor() {
        if !wqe.op.is_local() {
            return true;
        }
        // A local operation waits for everything before it, as with rxe: a program that posts it after the
        // last use of a key need not consider retries.
        if common.state() != QpState::Rts || wqe.failure.is_some() || pipeline.queue.done() != index {
            return false;
        }
        let done = execute(&wqe.op, mem);
        match done {
            Ok(()) => pipeline.executed_locally(),
            Err(status) => {
                pipeline.queue.fail(index, status);
                return false;
            }
        }
    }
    true
}

/// Executes a local operation, whose turn it is.
pub(crate) fn execute(op: &SendOp, mem: &mut impl Memory) -> Result<(), WcStatus> {
    match op {
        SendOp::BindMw(bind) => mem.bind(bind).map_err(|_| WcStatus::MwBindErr),
        SendOp::LocalInvalidate(rkey) => mem.invalidate(*rkey).map_err(|_| WcStatus::LocQpOpErr),
        // The others are not local.
        _ => Err(WcStatus::LocQpOpErr),
    }
}
