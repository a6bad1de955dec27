//! Events: asynchronous ones of contexts, and completion events of channels.

use std::sync::Arc;

use core::ffi::{c_int, c_uint, c_void};
use ferroce_abi as abi;
use ferroce_engine::{AsyncElement, AsyncEventKind, Held};

use crate::call::{self, Scope};
use crate::check;
use crate::cq::CqHandle;
use crate::entry::{Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::get;
use crate::qp::QpHandle;
use crate::srq::SrqHandle;
use crate::wait::{self, Step};

export! {
    /// Waits for the next event of the context, EAGAIN instead if its `async_fd` is non-blocking. A
    /// cancellation point.
    pub waiting fn ibv_get_async_event(
        context: Object<abi::ibv_context>,
        event: Ptr<abi::ibv_async_event>,
    ) -> c_int = wait::minus_one |_, woken| {
        woken?;
        let handle = context.handle()?;
        let event = event.some()?;
        if handle.is_foreign() {
            return Err(Errno::EIO);
        }
        // A dead context still tells of its death.
        let engine = Arc::clone(&handle.live()?.engine);
        let Some(got) = engine.async_events().take() else {
            let held = Held::Shared(Arc::clone(&engine) as _);
            return Ok(Step::Sleep(engine.async_events().fall_asleep(held)?, -1));
        };
        let element = match &got.element {
            AsyncElement::Cq(cq) => abi::ibv_async_event_element { cq: CqHandle::of_engine(cq).c().cast() },
            AsyncElement::Qp(qp) => abi::ibv_async_event_element { qp: QpHandle::public(qp) },
            AsyncElement::SharedQp(share) => abi::ibv_async_event_element { qp: QpHandle::at(share.user()) },
            AsyncElement::Srq(srq) => abi::ibv_async_event_element { srq: SrqHandle::public(srq) },
            AsyncElement::Port(port) => abi::ibv_async_event_element { port_num: c_int::from(*port) },
            AsyncElement::Device => abi::ibv_async_event_element { port_num: 0 },
        };
        event.write(abi::ibv_async_event { element, event_type: got.kind as abi::ibv_event_type });
        Ok(Step::Done(0))
    }

    /// Acknowledges an event: destroying its object waits until all of them are.
    pub fn ibv_ack_async_event(event: Ptr<abi::ibv_async_event>) -> () = call::nothing |_| {
        let event = event.read()?;
        let of_queue_pair = [
            AsyncEventKind::QpFatal,
            AsyncEventKind::QpReqErr,
            AsyncEventKind::QpAccessErr,
            AsyncEventKind::CommEst,
            AsyncEventKind::SqDrained,
            AsyncEventKind::QpLastWqeReached,
        ];
        if event.event_type == AsyncEventKind::CqErr as abi::ibv_event_type {
            // SAFETY: an event of this kind names a queue.
            let element = unsafe { event.element.cq };
            named!(element).handle()?.live()?.engine.ack_async_event();
        } else if of_queue_pair.iter().any(|kind| *kind as abi::ibv_event_type == event.event_type) {
            // SAFETY: an event of this kind names a queue pair.
            let element = unsafe { event.element.qp };
            named!(element).handle()?.live()?.ack_async_event();
        }
        let of_srq = [AsyncEventKind::SrqErr, AsyncEventKind::SrqLimitReached];
        if of_srq.iter().any(|kind| *kind as abi::ibv_event_type == event.event_type) {
            // SAFETY: an event of this kind names a shared receive queue.
            let element = unsafe { event.element.srq };
            named!(element).handle()?.live()?.engine.ack_async_event();
        }
        Ok(())
    }

    /// Waits for the next event of the channel, EAGAIN instead if its descriptor is non-blocking. A
    /// cancellation point.
    pub waiting fn ibv_get_cq_event(
        channel: Object<abi::ibv_comp_channel>,
        cq: Ptr<*mut abi::ibv_cq>,
        cq_context: Ptr<*mut c_void>,
    ) -> c_int = wait::minus_one |owner, woken| {
        woken?;
        let handle = channel.handle()?;
        let (cq, cq_context) = (cq.some()?, cq_context.some()?);
        let channel = {
            let live = handle.live()?;
            owner.is(live.context)?;
            Arc::clone(&live.engine)
        };
        let fired = loop {
            if let Some(fired) = channel.take_event() {
                break fired;
            }
            if let Some(sleep) = channel.fall_asleep(Held::Shared(Arc::clone(&channel) as _))? {
                return Ok(Step::Sleep(sleep, check::waiting(handle.c().addr())));
            }
        };
        let fired = CqHandle::of_engine(&fired);
        check::event(handle.c().addr(), fired.c().addr());
        cq.write(fired.c().cast());
        cq_context.write(get!(fired.cq_context));
        Ok(Step::Done(0))
    }

    /// Acknowledges completion events: destroying the queue waits until all of them are.
    pub fn ibv_ack_cq_events(cq: Object<abi::ibv_cq>, events: c_uint) -> () = call::quick::nothing |_| {
        let handle = cq.handle()?;
        // Not through the context: a dead one must not keep ibv_destroy_cq waiting.
        handle.live()?.engine.ack_events(events);
        Ok(())
    }
}
