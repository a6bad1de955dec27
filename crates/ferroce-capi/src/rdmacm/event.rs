//! Events of ids.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{Held, Sleep};

use super::program_event::{EventHandle, ProgramEvent, acknowledge, hand_out};
use super::state::{LiveChannel, What};
use super::{link, multicast};
use crate::call;
use crate::entry::{Object, Ptr, export};
use crate::errno::{Errno, judged_once};
use crate::wait::{self, Step};

/// The oldest event of a channel, or a sleep until there may be one; EAGAIN instead if its descriptor is
/// non-blocking.
pub(super) fn next(channel: &Arc<LiveChannel>) -> Result<Step<&'static EventHandle>, Errno> {
    loop {
        let popped = channel.events.pop(|queued| {
            queued.of.acks.handed_out(1);
            queued
        });
        let Some(queued) = popped else {
            return Ok(Step::Sleep(channel.events.fall_asleep(Held::Shared(Arc::clone(channel) as _))?, -1));
        };
        let of = Arc::clone(&queued.of);
        // Only who pops it has it.
        let told = Arc::into_inner(queued).and_then(|queued| match queued.what {
            What::Result { kind, status } => Some(ProgramEvent::plain(queued.id, kind, status)),
            What::User { kind, status, arg } => {
                let param = abi::rdma_cm_event_param { arg };
                Some(ProgramEvent { param, ..ProgramEvent::plain(queued.id, kind, status) })
            }
            What::Connection(kind) => link::tell(queued.id, &queued.of, kind),
            What::Request(arrival) => arrival(queued.id, &queued.of),
            What::Joined(group) => Some(multicast::joined(queued.id, &queued.of, &group)),
        });
        match told {
            Some(told) => return Ok(Step::Done(hand_out(of, told))),
            // Nothing that the program should see.
            None => of.acks.acknowledge(1),
        }
    }
}

export! {
    /// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking. A
    /// cancellation point.
    ///
    /// EBADF if the channel was destroyed before the call, as in rdma-core, which uses the channel's closed
    /// descriptor. A thread that sleeps in here while another one destroys the channel sleeps on, as there.
    pub waiting fn rdma_get_cm_event(
        channel: Object<abi::rdma_event_channel>,
        event: Ptr<*mut abi::rdma_cm_event>,
    ) -> c_int {
        let (mut has_slept, mut judged) = (false, false);
        wait::minus_one(|_, woken| {
            judged_once(Verb::GetCmEvent, &mut judged)?;
            woken?;
            let handle = channel.handle()?;
            let event = event.some()?;
            // A thread may sleep in here while others use the channel.
            let channel = match handle.live() {
                Ok(live) => live,
                Err(_) if has_slept => return Ok(Step::Sleep(Sleep::on([], Held::Nothing), -1)),
                Err(_) => return Err(Errno::EBADF),
            };
            has_slept = true;
            next(&channel)?.then(|got| {
                event.write(got.c());
                Ok(0)
            })
        })
    }

    /// Acknowledges an event and frees it: destroying its id waits until all of them are.
    pub fn rdma_ack_cm_event(event: Object<abi::rdma_cm_event>) -> c_int = call::minus_one |_| {
        acknowledge(event.handle()?).map(|()| 0)
    }

    /// Queues an event of the program's own for whoever fetches the id's: RDMA_CM_EVENT_USER, or
    /// RDMA_CM_EVENT_INTERNAL, which is no different here. `arg` is its `param.arg`.
    pub fn rdma_write_cm_event(
        id: Object<abi::rdma_cm_id>,
        event: abi::rdma_cm_event_type,
        status: c_int,
        arg: u64,
    ) -> c_int = call::minus_one |_| {
        let (handle, live) = id.opened()?;
        if !matches!(event, abi::RDMA_CM_EVENT_USER | abi::RDMA_CM_EVENT_INTERNAL) {
            return Err(Errno::EINVAL);
        }
        live.state.lock().queue(handle, &live, What::User { kind: event, status, arg });
        Ok(0)
    }
}
