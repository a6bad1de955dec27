//! Work requests that end in this queue pair: no packet leaves for them.

use super::pipeline::Pipeline;
use super::shared::Shared;
use crate::{Memory, QpState, SendOp, WcStatus};

/// Executes local operations at the cursor. `false` if one must wait or failed.
pub(crate) fn run(shared: &Shared, line: &mut Pipeline, mem: &mut impl Memory) -> bool {
    while let Some((index, wqe)) = line.at_cursor() {
        let SendOp::LocalInvalidate(rkey) = wqe.op else { return true };
        // It waits for everything before it, as rxe's does: whoever posts it after the last use of a key need not
        // think of retries.
        if shared.state() != QpState::Rts || wqe.failure.is_some() || line.queue.done() != index {
            return false;
        }
        match mem.invalidate(rkey) {
            Ok(()) => line.executed_locally(),
            Err(_) => {
                if let Some(wqe) = line.queue.get_mut(index) {
                    wqe.failure = Some(WcStatus::LocQpOpErr.into());
                }
                return false;
            }
        }
    }
    true
}
