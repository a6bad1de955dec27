//! Operations of ids: a synchronous id waits for the event of each.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;

use super::event;
use super::program_event::acknowledge_last;
use super::state::IdHandle;
use crate::call::Owner;
use crate::errno::Errno;
use crate::handle::{get, set};
use crate::wait::{self, Step};

/// A call that begins an operation: for a synchronous id it waits for the operation's event, which becomes
/// `id->event`, and fails if that did. `begin` returns the id, or nothing if no event will come. A
/// cancellation point while it waits: the operation then goes on, and its event is the next one of the id.
pub(super) fn operation<F>(mut begin: F) -> c_int
where
    F: FnMut(&Owner) -> Result<Option<&'static IdHandle>, Errno>,
{
    const { assert!(!std::mem::needs_drop::<F>(), "a thread may be cancelled while this is on its stack") };
    let mut begun = None;
    wait::minus_one(|owner, woken| {
        woken?;
        let id = match begun {
            Some(id) => id,
            None => {
                let Some(id) = begin(owner)? else { return Ok(Step::Done(0)) };
                acknowledge_if_synchronous(id)?;
                *begun.insert(id)
            }
        };
        completed(id)?.then(|()| Ok(0))
    })
}

/// As [`operation`], for one whose event is there already: nothing has to be waited for.
pub(super) fn complete(id: &'static IdHandle) -> Result<(), Errno> {
    acknowledge_if_synchronous(id)?;
    loop {
        match completed(id)? {
            Step::Done(()) => return Ok(()),
            Step::Sleep(sleep, _) => sleep.sleep()?,
        }
    }
}

fn acknowledge_if_synchronous(id: &'static IdHandle) -> Result<(), Errno> {
    if id.live()?.state.lock().is_synchronous() {
        acknowledge_last(id);
    }
    Ok(())
}

/// The outcome of a synchronous id's operation, once its event is there. Operations of other ids have none.
fn completed(id: &'static IdHandle) -> Result<Step<()>, Errno> {
    let channel = {
        let live = id.live()?;
        let state = live.state.lock();
        if !state.is_synchronous() {
            return Ok(Step::Done(()));
        }
        Arc::clone(&state.channel)
    };
    event::next(&channel)?.then(|event| {
        set!(id.event = event.c());
        let (kind, status) = (get!(event.event), get!(event.status));
        match status {
            0 => Ok(()),
            _ if kind == abi::RDMA_CM_EVENT_REJECTED => Err(Errno::ECONNREFUSED),
            // The status of a SIDR_REP.
            1.. if kind == abi::RDMA_CM_EVENT_UNREACHABLE => Err(Errno::ECONNREFUSED),
            status => Err(std::io::Error::from_raw_os_error(status.wrapping_abs()).into()),
        }
    })
}
