//! The calls that post, poll and arm, in the table of a context that is checked.

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::WcOpcode;

use super::rules::{self, Completed};
use super::work::Work;
use super::{is_on, with};
use crate::cq::{self, CqHandle};
use crate::cq_ex;
use crate::cursor::Current;
use crate::entry::{FromC, Object, Ptr, export};
use crate::handle::get;
use crate::post::{self, AlignedList};
use crate::qp::QpHandle;

/// The functions of a context that is checked.
pub(crate) const OPS: abi::ibv_context_ops = abi::ibv_context_ops {
    post_send: Some(post_send),
    post_recv: Some(post_recv),
    post_srq_recv: Some(post_srq_recv),
    poll_cq: Some(poll_cq),
    req_notify_cq: Some(req_notify_cq),
    ..crate::ops::CONTEXT_OPS
};

/// The work requests of a chain, as far as they can be read.
fn chain<W: Copy>(
    mut at: Ptr<W>,
    next: impl Fn(&W) -> *mut W,
    work: impl Fn(&W) -> Option<Work>,
) -> Vec<Work> {
    let mut works = Vec::new();
    while let Some(lent) = at.lent() {
        let wr = lent.read();
        let Some(work) = work(&wr) else { break };
        works.push(work);
        at = post::next_of(next(&wr));
    }
    works
}

/// How many work requests of a chain are before this one.
fn before<W: Copy>(mut at: Ptr<W>, refused: *mut W, next: impl Fn(&W) -> *mut W) -> u64 {
    let mut count = 0;
    while let Some(lent) = at.lent().filter(|_| at.as_ptr() != refused) {
        count += 1;
        at = post::next_of(next(&lent.read()));
    }
    count
}

/// Posts what was noted from number `first` on, and forgets what is refused.
fn posted<W: Copy>(
    queue: usize,
    wr: Ptr<W>,
    bad: Ptr<*mut W>,
    first: u64,
    next: impl Fn(&W) -> *mut W,
    post: impl FnOnce(*mut *mut W) -> c_int,
) -> c_int {
    let mut refused = wr.as_ptr();
    let code = post(&raw mut refused);
    if code != 0 {
        let kept = before(wr, refused, next);
        with(|state| state.refused(queue, first + kept));
        if let Some(bad) = bad.lent() {
            bad.write(refused);
        }
    }
    code
}

/// A completion queue is made; `is_bounded` if it must not overrun.
pub(crate) fn queue(cq: &'static CqHandle, is_bounded: bool) {
    if is_on() {
        with(|state| {
            state.objects.entry(cq.c().addr()).and_modify(|object| object.is_bounded = is_bounded);
        });
    }
}

/// Send work requests of a queue pair are about to be posted; returns the number of the first.
pub(crate) fn sends(qp: &'static QpHandle, works: Vec<Work>) -> u64 {
    let mut first = 0;
    with(|state| first = state.sends(qp, works));
    first
}

/// Work requests of a queue pair from this number on were refused.
pub(crate) fn refused(qp: &'static QpHandle, first: u64) {
    with(|state| state.refused(qp.c().addr(), first));
}

/// The bit of the opcodes of completed receives.
const RECEIVED: abi::ibv_wc_opcode = WcOpcode::Recv as abi::ibv_wc_opcode;

fn polled(cq: Object<abi::ibv_cq_ex>, done: Completed) {
    let Ok(handle) = cq.handle() else { return };
    with(|state| state.completed(get!(handle.context).addr(), &done));
}

export! {
    /// As [`post::post_send`].
    fn post_send(
        qp: Object<abi::ibv_qp>,
        wr: Ptr<abi::ibv_send_wr>,
        bad_wr: Ptr<*mut abi::ibv_send_wr>,
    ) -> c_int {
        let most = qp.handle().and_then(|handle| handle.live()).map_or(0, |live| live.engine.caps().max_send_sge);
        let work = |wr: &abi::ibv_send_wr| {
            let room = AlignedList::new();
            // SAFETY: the room is new, and the program leaves the list alone during the call.
            let (wr, _) = unsafe { post::send_wr(wr, most, None, &room) }.ok()?;
            Some(Work::send(&wr))
        };
        let works = chain(wr, |wr| wr.next, work);
        let first = qp.handle().map_or(0, |handle| sends(handle, works));
        // SAFETY: the arguments of this call, and a place for the refused work request.
        posted(qp.as_ptr().addr(), wr, bad_wr, first, |wr| wr.next, |bad| unsafe {
            post::post_send(qp.as_ptr(), wr.as_ptr(), bad)
        })
    }

    /// As [`post::post_recv`].
    fn post_recv(
        qp: Object<abi::ibv_qp>,
        wr: Ptr<abi::ibv_recv_wr>,
        bad_wr: Ptr<*mut abi::ibv_recv_wr>,
    ) -> c_int {
        receive(qp.as_ptr().addr(), wr, bad_wr, |bad| {
            // SAFETY: the arguments of this call, and a place for the refused work request.
            unsafe { post::post_recv(qp.as_ptr(), wr.as_ptr(), bad) }
        })
    }

    /// As [`post::post_srq_recv`].
    fn post_srq_recv(
        srq: Object<abi::ibv_srq>,
        wr: Ptr<abi::ibv_recv_wr>,
        bad_wr: Ptr<*mut abi::ibv_recv_wr>,
    ) -> c_int {
        receive(srq.as_ptr().addr(), wr, bad_wr, |bad| {
            // SAFETY: the arguments of this call, and a place for the refused work request.
            unsafe { post::post_srq_recv(srq.as_ptr(), wr.as_ptr(), bad) }
        })
    }

    /// As [`cq::poll_cq`].
    fn poll_cq(cq: Object<abi::ibv_cq>, num_entries: c_int, wc: Ptr<abi::ibv_wc>) -> c_int {
        // SAFETY: the arguments of this call.
        let count = unsafe { cq::poll_cq(cq.as_ptr(), num_entries, wc.as_ptr()) };
        // SAFETY: the call has written so many.
        if let Ok(array) = unsafe { wc.array(usize::try_from(count).unwrap_or(0)) } {
            // SAFETY: a queue is an extended one.
            let queue = unsafe { <Object<abi::ibv_cq_ex>>::from_c(cq.as_ptr().cast()) };
            for index in 0..usize::try_from(count).unwrap_or(0) {
                let abi::ibv_wc { wr_id, status, opcode, qp_num, .. } = array.read(index);
                let is_receive = opcode & RECEIVED != 0;
                polled(queue, Completed { wr_id, qpn: qp_num, status, is_receive });
            }
        }
        count
    }

    /// As [`cq_ex::start_poll`].
    pub(crate) fn start_poll(cq: Object<abi::ibv_cq_ex>, attr: Ptr<abi::ibv_poll_cq_attr>) -> c_int {
        // SAFETY: the arguments of this call.
        shown(cq, unsafe { cq_ex::start_poll(cq.as_ptr(), attr.as_ptr()) })
    }

    /// As [`cq_ex::next_poll`].
    pub(crate) fn next_poll(cq: Object<abi::ibv_cq_ex>) -> c_int {
        // SAFETY: the argument of this call.
        shown(cq, unsafe { cq_ex::next_poll(cq.as_ptr()) })
    }

    /// As [`cq::req_notify_cq`].
    fn req_notify_cq(cq: Object<abi::ibv_cq>, solicited_only: c_int) -> c_int {
        rules::arming(cq.as_ptr().addr());
        // SAFETY: the arguments of this call.
        unsafe { cq::req_notify_cq(cq.as_ptr(), solicited_only) }
    }
}

/// Posts receive work requests to the queue at this address.
fn receive(
    queue: usize,
    wr: Ptr<abi::ibv_recv_wr>,
    bad: Ptr<*mut abi::ibv_recv_wr>,
    post: impl FnOnce(*mut *mut abi::ibv_recv_wr) -> c_int,
) -> c_int {
    let work = |wr: &abi::ibv_recv_wr| {
        let room = AlignedList::new();
        // SAFETY: the room is new, and the program leaves the list alone during the call.
        unsafe { post::recv_wr(wr, u32::MAX, &room) }.ok().map(|wr| Work::receive(&wr))
    };
    let (works, mut first) = (chain(wr, |wr| wr.next, work), 0);
    with(|state| first = state.receives(queue, works));
    posted(queue, wr, bad, first, |wr| wr.next, post)
}

/// Looks at the completion that `start_poll` or `next_poll` loaded, if it did.
fn shown(cq: Object<abi::ibv_cq_ex>, code: c_int) -> c_int {
    if code == 0 {
        let Current { completion: wc, .. } = cq_ex::current(cq);
        let (qpn, status) = (wc.qpn.value(), wc.status as abi::ibv_wc_status);
        let is_receive = wc.opcode as abi::ibv_wc_opcode & RECEIVED != 0;
        polled(cq, Completed { wr_id: wc.wr_id, qpn, status, is_receive });
    }
    code
}
