//! The rules. Each holds for sure: what may be right in some program is not told.

use std::ptr;
use std::time::{Duration, Instant};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{Access, AhAttr, Context, Mr, QpAttrMask};

use super::state::{Queue, Region, State};
use super::trace::Trace;
use super::work::{Use, Work};
use super::{cards, is_on, with};
use crate::cq::CqHandle;
use crate::entry::named;
use crate::handle::get;
use crate::qp::QpHandle;

/// How long a thread must have waited for an event that cannot come, before it is told.
const WAIT: Duration = Duration::from_secs(1);

impl State {
    /// The queue pair of a handle.
    fn queue(&mut self, qp: &'static QpHandle) -> Option<(usize, &mut Queue)> {
        let at = qp.c().addr();
        let live = qp.live().ok()?;
        let abi::ibv_qp_init_attr { send_cq, srq, sq_sig_all, .. } = live.init.0;
        let queue = self.queues.entry(at).or_insert_with(|| Queue {
            context: get!(qp.qp_base.context).addr(),
            qpn: get!(qp.qp_base.qp_num),
            sends: Default::default(),
            send_cq: send_cq.addr(),
            receives: if srq.is_null() { at } else { srq.addr() },
            max_send_wr: live.engine.caps().max_send_wr,
            signals_all: sq_sig_all != 0,
            unsignaled: 0,
            is_loopback: false,
        });
        Some((at, queue))
    }

    /// Send work requests are about to be posted; returns the number of the first.
    pub(super) fn sends(&mut self, qp: &'static QpHandle, works: Vec<Work>) -> u64 {
        let first = self.posted;
        for mut work in works {
            work.number = self.posted;
            self.posted += 1;
            let Some((at, queue)) = self.queue(qp) else { break };
            work.signaled |= queue.signals_all;
            let is_loopback = queue.is_loopback;
            self.keys(&work, is_loopback);
            self.fence(at, &work);
            if work.uses == Use::Writes {
                self.forget_memory(&work);
            } else if work.uses == Use::Reads && !work.inline && !self.may_be_written(&work) {
                work.hash = work.read();
            }
            self.room(at, work);
        }
        first
    }

    /// Work requests from this number on were refused.
    pub(super) fn refused(&mut self, at: usize, first: u64) {
        if let Some(queue) = self.queues.get_mut(&at) {
            let before = queue.sends.len();
            queue.sends.retain(|work| work.number < first);
            queue.unsignaled = queue.unsignaled.saturating_sub((before - queue.sends.len()) as u32);
        }
        if let Some(receives) = self.receives.get_mut(&at) {
            receives.retain(|work| work.number < first);
        }
    }

    /// Receive work requests are about to be posted to a queue pair or shared receive queue; returns the
    /// number of the first.
    pub(super) fn receives(&mut self, at: usize, works: Vec<Work>) -> u64 {
        let first = self.posted;
        for mut work in works {
            work.number = self.posted;
            self.posted += 1;
            self.keys(&work, false);
            self.forget_memory(&work);
            self.receives.entry(at).or_default().push_back(work);
        }
        first
    }

    /// Keys of regions that are deregistered. A peer's key is only known if the peer is in this process.
    fn keys(&mut self, work: &Work, is_loopback: bool) {
        let own = work.spans.iter().filter(|_| !work.inline).map(|sge| ("lkey", sge.lkey.value()));
        let remote = work.rkey.filter(|_| is_loopback && !work.spans.is_empty()).map(|rkey| ("rkey", rkey));
        let dead = own.chain(remote).find(|(_, key)| self.dead_keys.contains_key(key));
        let Some((what, key)) = dead else { return };
        let (name, wr_id) = (work.name, work.wr_id);
        let text = format!(
            "post of {name} with wr_id {wr_id}: {what} {key:#x} is of a memory region that was deregistered; deregister it when \
             the last work request has completed"
        );
        let ended = self.dead_keys.get(&key).cloned().unwrap_or_default();
        self.tell(("key", what), &text, &work.posted, Some(("deregistered", &ended)));
    }

    /// A work request that reads what an earlier READ or atomic writes.
    fn fence(&mut self, at: usize, work: &Work) {
        if work.uses != Use::Reads || work.fence {
            return;
        }
        let Some(queue) = self.queues.get(&at) else { return };
        let earlier =
            queue.sends.iter().find(|earlier| earlier.uses == Use::Writes && earlier.overlaps(work));
        let Some(earlier) = earlier else { return };
        let cure = match work.inline {
            true => "inline data is copied at once, so wait for that completion first",
            false => "set IBV_SEND_FENCE, or wait for that completion first",
        };
        let text = format!(
            "post of {} with wr_id {}: it reads memory that the {} with wr_id {} writes, whose completion was not polled; {cure}",
            work.name, work.wr_id, earlier.name, earlier.wr_id
        );
        let before = earlier.posted.clone();
        self.tell(("fence", ""), &text, &work.posted, Some(("the earlier one was posted", &before)));
    }

    /// Whether anything else may write to memory that the work request reads.
    fn may_be_written(&self, work: &Work) -> bool {
        let is_plain = |lkey| self.regions.get(&lkey).is_some_and(|region| region.is_plain);
        let peers_write = |region: &Region| {
            let end = region.addr.saturating_add(region.len);
            region.is_written && work.ranges().any(|range| range.start < end && region.addr < range.end)
        };
        let writes = |other: &Work| other.uses == Use::Writes && other.overlaps(work);
        self.is_memory_unknown
            || !work.spans.iter().all(|sge| is_plain(sge.lkey.value()))
            || self.regions.values().any(peers_write)
            || self.receives.values().flatten().any(writes)
            || self.queues.values().flat_map(|queue| &queue.sends).any(writes)
    }

    /// This work request may change what others read.
    fn forget_memory(&mut self, work: &Work) {
        for other in self.queues.values_mut().flat_map(|queue| &mut queue.sends) {
            if other.hash.is_some() && other.overlaps(work) {
                other.hash = None;
            }
        }
    }

    /// Room in the send queue and the completion queue for one more.
    fn room(&mut self, at: usize, work: Work) {
        let (posted, signaled) = (work.posted.clone(), work.signaled);
        let Some(queue) = self.queues.get_mut(&at) else { return };
        queue.unsignaled = if signaled { 0 } else { queue.unsignaled + 1 };
        queue.sends.push_back(work);
        let (qpn, most, cq) = (queue.qpn, queue.max_send_wr, queue.send_cq);
        if queue.unsignaled == most {
            let text = format!(
                "ibv_post_send: the send queue of queue pair {qpn:#08x} is full of {most} work requests without IBV_SEND_SIGNALED, so \
                 none ever makes room; signal at least one of {most}"
            );
            self.tell(("unsignaled", ""), &text, &posted, None);
        }
        let is_bounded = signaled && self.objects.get(&cq).is_some_and(|object| object.is_bounded);
        let Some(handle) = handle_of(cq).filter(|_| is_bounded) else { return };
        let room = get!(handle.cqe);
        let queues = self.queues.values().filter(|queue| queue.send_cq == cq);
        let outstanding = queues.flat_map(|queue| &queue.sends).filter(|work| work.signaled).count();
        if outstanding > room as usize {
            let text = format!(
                "ibv_post_send: {outstanding} signaled work requests whose completions were not polled, and the completion queue has \
                 room for {room}; create it larger, or poll before posting more"
            );
            self.tell(("overrun", ""), &text, &posted, None);
        }
    }

    /// A completion was polled from a queue of this context.
    pub(super) fn completed(&mut self, context: usize, wc: &Completed) {
        let found = self.queues.iter().find(|(_, queue)| queue.context == context && queue.qpn == wc.qpn);
        let Some((at, holder)) = found.map(|(at, queue)| (*at, queue.receives)) else { return };
        if wc.is_receive {
            let Some(works) = self.receives.get_mut(&holder) else { return };
            let place = works.iter().position(|work| work.wr_id == wc.wr_id);
            let work = place.and_then(|place| works.remove(place));
            if let Some(work) = work.filter(|_| wc.status == abi::IBV_WC_LOC_LEN_ERR) {
                let text = format!(
                    "ibv_poll_cq: the message is longer than the buffers of the receive with wr_id {} on queue pair {:#08x}, {} octets; \
                     post larger buffers (of a datagram 40 octets more than the message)",
                    wc.wr_id,
                    wc.qpn,
                    work.octets()
                );
                self.tell(("buffer", ""), &text, &work.posted, None);
            }
            return;
        }
        let Some(queue) = self.queues.get_mut(&at) else { return };
        let is_ok = wc.status == abi::IBV_WC_SUCCESS;
        let is_it = |work: &Work| work.wr_id == wc.wr_id && (work.signaled || !is_ok);
        let Some(place) = queue.sends.iter().position(is_it) else { return };
        let done: Vec<Work> = queue.sends.drain(..=place).collect();
        for work in done.iter().filter(|work| work.hash.is_some() && is_ok) {
            if self.may_be_written(work) || work.read().is_none_or(|now| work.hash == Some(now)) {
                continue;
            }
            let text = format!(
                "ibv_poll_cq: the memory of the {} with wr_id {} on queue pair {:#08x} changed before its completion was polled, so a \
                 packet that is sent again has other data; leave the memory alone until then",
                work.name, work.wr_id, wc.qpn
            );
            self.tell(("memory", ""), &text, &work.posted, None);
        }
    }
}

/// A polled completion.
pub(super) struct Completed {
    pub(super) wr_id: u64,
    pub(super) qpn: u32,
    pub(super) status: abi::ibv_wc_status,
    pub(super) is_receive: bool,
}

/// A queue pair is made.
pub(crate) fn queue_pair(qp: &'static QpHandle) {
    with(|state| _ = state.queue(qp));
}

/// The completion queue at this address.
fn handle_of(cq: usize) -> Option<&'static CqHandle> {
    let cq: *mut abi::ibv_cq = ptr::with_exposed_provenance_mut(cq);
    named!(cq).handle().ok()
}

/// A region was registered; `iova` is where peers address it.
pub(crate) fn registered(mr: &Mr, addr: u64, iova: u64, access: Access) {
    let written = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND;
    let (len, is_plain, is_written) = (mr.len() as u64, addr == iova, access.intersects(written));
    with(|state| _ = state.regions.insert(mr.lkey().value(), Region { addr, len, is_plain, is_written }));
}

/// Keys belong to a region from now on, or to none any more.
pub(crate) fn keys(mr: &Mr, live: bool) {
    with(|state| {
        for key in [mr.lkey().value(), mr.rkey().value()] {
            if live {
                state.dead_keys.remove(&key);
            } else {
                state.dead_keys.insert(key, Trace::here());
                state.regions.remove(&key);
            }
        }
    });
}

/// A region was registered anew.
pub(crate) fn reregistered() {
    with(|state| state.is_memory_unknown = true);
}

/// `call` names a destination; returns whether that is this very address.
pub(crate) fn addressed(call: &str, context: &Context, to: &AhAttr) -> bool {
    let Ok(Some(from)) = context.gid(to.sgid_index.into()) else { return false };
    if is_on()
        && to.is_global
        && !to.dgid.is_multicast()
        && !to.dgid.is_zero()
        && from.gid.is_ipv4() != to.dgid.is_ipv4()
    {
        let name = |is_ipv4| if is_ipv4 { "an IPv4 address" } else { "an IPv6 address" };
        let (index, ours, theirs) = (to.sgid_index, name(from.gid.is_ipv4()), name(to.dgid.is_ipv4()));
        let text = format!(
            "{call}: sgid_index {index} is {ours}, and dgid is {theirs}, so no packet can be sent; take an index of the same family \
             (`ferroce gid` shows all)"
        );
        with(|state| state.tell(("family", ""), &text, &Trace::here(), None));
    }
    to.dgid == from.gid
}

/// `ibv_modify_qp` is about to set what `mask` names.
pub(crate) fn modifying(qp: &'static QpHandle, attr: &abi::ibv_qp_attr, mask: QpAttrMask) {
    if !is_on() {
        return;
    }
    let has = |bit| mask.contains(bit);
    let rd_atomic = [
        ("max_rd_atomic", attr.max_rd_atomic, QpAttrMask::MAX_QP_RD_ATOMIC),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic, QpAttrMask::MAX_DEST_RD_ATOMIC),
    ];
    for (name, value, _) in rd_atomic.into_iter().filter(|(_, _, bit)| has(*bit)) {
        cards::sizes("ibv_modify_qp", &[(name, value.into())]);
    }
    let Ok(live) = qp.live() else { return };
    let is_own = has(QpAttrMask::AV)
        && addressed("ibv_modify_qp", live.engine.context(), &crate::attr::engine_ah(&attr.ah_attr));
    with(|state| {
        let peer = attr.dest_qp_num;
        let is_here = state.queues.values().any(|queue| queue.qpn == peer);
        let Some((at, queue)) = state.queue(qp) else { return };
        if has(QpAttrMask::DEST_QPN) {
            queue.is_loopback = is_own && is_here;
        }
        if has(QpAttrMask::STATE) && attr.qp_state == abi::IBV_QPS_RESET {
            let lost = queue.sends.iter().filter(|work| work.signaled).count();
            let (qpn, first) = (queue.qpn, queue.sends.front().map(|work| work.posted.clone()));
            queue.sends.clear();
            queue.unsignaled = 0;
            state.receives.remove(&at);
            if let Some(first) = first.filter(|_| lost > 0) {
                let text = format!(
                    "ibv_modify_qp: queue pair {qpn:#08x} is reset, and the completions of {lost} signaled work requests, which were not \
                     polled, are lost; poll them first (state IBV_QPS_ERR flushes what is outstanding)"
                );
                state.tell(("reset", ""), &text, &Trace::here(), Some(("the first was posted", &first)));
            }
        }
    });
}

/// A completion queue is about to be armed.
pub(super) fn arming(cq: usize) {
    with(|state| *state.armed.entry(cq).or_default() += 1);
}

/// An event of a completion queue was taken.
pub(crate) fn event(channel: usize, cq: usize) {
    with(|state| {
        state.waiting.remove(&channel);
        // At least one arming made it, so what is left is at least what is armed.
        state.armed.entry(cq).and_modify(|armed| *armed = armed.saturating_sub(1));
    });
}

/// A thread is about to wait for an event of a channel; returns for how many milliseconds, before it looks
/// again.
pub(crate) fn waiting(channel: usize) -> c_int {
    if !is_on() {
        return -1;
    }
    with(|state| {
        let now = Instant::now();
        let is_of = |cq: usize| handle_of(cq).is_some_and(|cq| get!(cq.channel).addr() == channel);
        let queues = state.objects.iter().filter(|(at, object)| object.kind == "ibv_cq" && is_of(**at));
        let (mut count, mut armed) = (0, false);
        for (cq, _) in queues {
            count += 1;
            armed |= state.armed.get(cq).is_some_and(|armed| *armed > 0);
        }
        if armed || count == 0 {
            state.waiting.remove(&channel);
            return;
        }
        let seen = state.waiting.entry(channel).or_insert((now, now));
        if now - seen.1 > 2 * WAIT {
            seen.0 = now;
        }
        seen.1 = now;
        if now - seen.0 >= WAIT {
            let text = format!(
                "ibv_get_cq_event: waits since {} ms, and none of the {count} completion queues of the channel is armed; call \
                 ibv_req_notify_cq before the last poll that finds nothing",
                (now - seen.0).as_millis()
            );
            state.tell(("unarmed", ""), &text, &Trace::here(), None);
        }
    });
    WAIT.as_millis() as c_int
}
