//! The rules, and what they know of the program. Each holds for sure: what may be right in some program is
//! not told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::ptr;
use std::time::{Duration, Instant};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{
    Access, AhAttr, CompletionQueue, Context, Mr, Qp, QpAttr, QpAttrMask, QpState, RecvWr, SendOp, SendWr,
    Sge, WcOpcode, WcStatus, WorkCompletion,
};
use ferroce_host::{output, process};
use ferroce_memory::guard;

use super::trace::Trace;
use super::{cards, is_on, with};

/// Findings that a process is told.
const MOST: usize = 100;
/// Keys of deregistered regions that are known.
const MOST_KEYS: usize = 8192;
/// Octets of a work request that are compared: its first ones.
const COMPARED: u64 = 256 << 10;
/// How long a thread must have waited for an event that cannot come, before it is told.
const WAIT: Duration = Duration::from_secs(1);

/// A place in the program that a finding names, and what happened there.
type Before<'a> = Option<(&'a str, &'a Trace)>;

#[derive(Default)]
pub(crate) struct State {
    /// Queue pairs by the address of their handle.
    queues: BTreeMap<usize, Queue>,
    /// Receive work requests, by the address of the queue pair or shared receive queue.
    receives: BTreeMap<usize, VecDeque<Work>>,
    /// Registered memory by its local key: its addresses, whether these are those of work requests, and
    /// whether peers may write to it.
    regions: BTreeMap<u32, (u64, u64, bool, bool)>,
    /// Keys of regions that were deregistered, and where.
    dead_keys: BTreeMap<u32, Trace>,
    /// Objects by the address of their handle: kind, context, whether that was closed, place of creation.
    objects: BTreeMap<usize, (&'static str, usize, bool, Trace)>,
    /// For each completion queue, how many times it was armed less the events that came.
    armed: BTreeMap<usize, u32>,
    /// For each channel that is waited for and has no armed queue: since when, and when that was seen last.
    waiting: BTreeMap<usize, (Instant, Instant)>,
    /// Set by `ibv_rereg_mr`, which may give any memory to any key.
    is_memory_unknown: bool,
    /// The program returned from `main`, where it could have destroyed all objects.
    is_returned: bool,
    is_used: bool,
    told: BTreeSet<((&'static str, &'static str), usize)>,
}

struct Queue {
    context: usize,
    qpn: u32,
    sends: VecDeque<Work>,
    send_cq: usize,
    /// The handle that holds its receive work requests: its own, or that of its shared receive queue.
    receives: usize,
    max_send_wr: u32,
    signals_all: bool,
    /// The queue pair is connected to one of this process.
    is_loopback: bool,
}

/// A work request whose completion was not polled.
#[derive(Debug)]
pub(crate) struct Work {
    wr_id: u64,
    name: &'static str,
    signaled: bool,
    fence: bool,
    inline: bool,
    /// The work request writes to its memory; otherwise it reads.
    writes: bool,
    rkey: Option<u32>,
    sges: Vec<Sge>,
    /// Hash of the memory when it was posted; `None` if it is not compared.
    hash: Option<u64>,
    posted: Trace,
}

impl Work {
    pub(crate) fn send(wr: &SendWr<'_>) -> Self {
        let writes =
            matches!(wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        let (name, remote) = match wr.op {
            SendOp::Write { remote } | SendOp::WriteImm { remote, .. } => ("RDMA WRITE", Some(remote)),
            SendOp::Read { remote } => ("RDMA READ", Some(remote)),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => ("atomic", Some(remote)),
            SendOp::AtomicWrite { remote, .. } => ("ATOMIC WRITE", Some(remote)),
            _ => ("SEND", None),
        };
        let rkey = remote.map(|remote| remote.rkey.value());
        let (signaled, fence, inline) = (wr.signaled, wr.fence, wr.inline);
        Self { signaled, fence, inline, rkey, ..Self::new(wr.wr_id, name, writes, wr.sges) }
    }

    pub(crate) fn bind(wr_id: u64, signaled: bool) -> Self {
        Self { signaled, ..Self::new(wr_id, "BIND MW", false, &[]) }
    }

    fn new(wr_id: u64, name: &'static str, writes: bool, sges: &[Sge]) -> Self {
        let sges = sges.iter().filter(|sge| sge.length > 0).copied().collect();
        let (signaled, fence, inline, rkey, hash) = Default::default();
        Self { wr_id, name, signaled, fence, inline, writes, rkey, sges, hash, posted: Trace::here() }
    }

    /// Whether it uses some octet of these.
    fn touches(&self, start: u64, end: u64) -> bool {
        self.sges.iter().any(|sge| sge.addr < end && start < sge.addr.saturating_add(sge.length.into()))
    }

    fn overlaps(&self, other: &Self) -> bool {
        other.sges.iter().any(|sge| self.touches(sge.addr, sge.addr.saturating_add(sge.length.into())))
    }

    /// Hash of its memory as it is now; `None` if some of it is not there.
    fn read(&self) -> Option<u64> {
        let (mut hasher, mut left, mut part) = (DefaultHasher::new(), COMPARED, [0; 1024]);
        for sge in &self.sges {
            let length = u64::from(sge.length).min(left);
            left -= length;
            for at in (0..length).step_by(part.len()) {
                let part = part.get_mut(..(length - at).min(1024) as usize)?;
                guard::read(sge.addr + at, part).ok()?;
                hasher.write(part);
            }
        }
        Some(hasher.finish())
    }
}

impl State {
    /// Tells a finding, unless it was told for the same place in the program. `kind` names it, `before` is
    /// an earlier call that has to do with it.
    pub(super) fn tell(
        &mut self,
        kind: (&'static str, &'static str),
        text: &str,
        at: &Trace,
        before: Before<'_>,
    ) {
        if self.told.len() < MOST && self.told.insert((kind, at.place())) {
            let before = before.map(|(what, trace)| format!("\n  {what}:{trace}")).unwrap_or_default();
            output::say(format_args!("check: {text}{at}{before}"));
        }
    }

    pub(super) fn made(&mut self, at: usize, kind: &'static str, context: usize) {
        if !std::mem::replace(&mut self.is_used, true) {
            process::at_exit(leaving);
        }
        self.objects.insert(at, (kind, context, false, Trace::here()));
    }

    /// An object ends. If it is a context, `public` is the program's pointer to it.
    pub(super) fn ended(&mut self, at: usize, public: usize) {
        self.objects.remove(&at);
        self.queues.remove(&at);
        self.receives.remove(&at);
        self.armed.remove(&at);
        for (_, context, is_left, _) in self.objects.values_mut() {
            *is_left |= *context == public;
        }
    }

    /// The process exits.
    pub(super) fn finish(&mut self) {
        let mut left: BTreeMap<&'static str, (u32, Trace)> = BTreeMap::new();
        for (kind, _, is_left, made) in self.objects.values() {
            if self.is_returned || *is_left {
                left.entry(kind).or_insert_with(|| (0, made.clone())).0 += 1;
            }
        }
        for (kind, (count, made)) in left {
            let text =
                format!("exit: {count} {kind} not destroyed; end each object before its device is closed");
            self.tell(("leak", kind), &text, &made, None);
        }
        if self.is_used {
            let program = fs::read_to_string("/proc/self/comm").unwrap_or_default();
            let program = program.trim_end().replace(char::is_control, "?");
            let (findings, pid) = (self.told.len(), std::process::id());
            output::say(format_args!("check: findings in {program} (process {pid}): {findings}"));
        }
    }

    /// A send work request is about to be posted to the queue pair at this address.
    fn send(&mut self, at: usize, mut work: Work) {
        let Some(queue) = self.queues.get_mut(&at) else { return };
        work.signaled |= queue.signals_all;
        let (is_loopback, qpn, most, cq) = (queue.is_loopback, queue.qpn, queue.max_send_wr, queue.send_cq);
        self.keys(&work, is_loopback);
        let (name, wr_id, posted) = (work.name, work.wr_id, work.posted.clone());
        let sends = self.queues.get(&at).into_iter().flat_map(|queue| queue.sends.iter().rev());
        // Work behind a fence begins after all that is before it.
        let since_fence = sends.scan(false, |is_behind, earlier| {
            (!std::mem::replace(is_behind, earlier.fence)).then_some(earlier)
        });
        let earlier = since_fence.into_iter().find(|earlier| earlier.writes && earlier.overlaps(&work));
        if let Some(earlier) = earlier.filter(|_| !work.writes && !work.fence) {
            let cure = if work.inline { "wait" } else { "set IBV_SEND_FENCE, or wait" };
            let text = format!(
                "ibv_post_send: {name} with wr_id {wr_id} reads memory that the {} with wr_id {} writes; {cure} for the completion of that",
                earlier.name, earlier.wr_id
            );
            let before = earlier.posted.clone();
            self.tell(("fence", ""), &text, &posted, Some(("the earlier one was posted", &before)));
        }
        if work.writes {
            self.forget_memory(&work);
        } else if !work.inline && !self.may_be_written(&work) {
            work.hash = work.read();
        }
        let signaled = work.signaled;
        let Some(queue) = self.queues.get_mut(&at) else { return };
        queue.sends.push_back(work);
        if queue.sends.iter().rev().take_while(|work| !work.signaled).count() == most as usize {
            let text = format!(
                "ibv_post_send: the {most} work requests that queue pair {qpn:#08x} has room for are not signaled, so that it \
                 stays full; set IBV_SEND_SIGNALED for one of {most}"
            );
            self.tell(("unsignaled", ""), &text, &posted, None);
        }
        let is_bounded = signaled && self.objects.contains_key(&cq);
        let room = if is_bounded { queue_of(cq).cqe as usize } else { usize::MAX };
        let of_cq = self.queues.values().filter(|queue| queue.send_cq == cq);
        let outstanding = of_cq.flat_map(|queue| &queue.sends).filter(|work| work.signaled).count();
        if outstanding > room {
            let text = format!(
                "ibv_post_send: the completion queue has room for {room} of {outstanding} signaled work requests whose completions were \
                 not polled; create it larger, or poll before"
            );
            self.tell(("overrun", ""), &text, &posted, None);
        }
    }

    /// Keys of regions that are deregistered. A peer's key is only known if the peer is in this process.
    fn keys(&mut self, work: &Work, is_loopback: bool) {
        let own = work.sges.iter().filter(|_| !work.inline).map(|sge| ("lkey", sge.lkey.value()));
        let remote = work.rkey.filter(|_| is_loopback && !work.sges.is_empty()).map(|rkey| ("rkey", rkey));
        let dead =
            own.chain(remote).find_map(|(what, key)| Some((what, key, self.dead_keys.get(&key)?.clone())));
        if let Some((what, key, ended)) = dead {
            let (name, wr_id) = (work.name, work.wr_id);
            let text = format!(
                "post of {name} with wr_id {wr_id}: {what} {key:#x} is of a region that was deregistered; deregister it after the last use"
            );
            self.tell(("key", what), &text, &work.posted, Some(("deregistered", &ended)));
        }
    }

    /// Whether anything else may write to memory that the work request reads.
    fn may_be_written(&self, work: &Work) -> bool {
        let is_plain = |sge: &Sge| self.regions.get(&sge.lkey.value()).is_some_and(|region| region.2);
        let sends = self.queues.values().flat_map(|queue| &queue.sends);
        self.is_memory_unknown
            || !work.sges.iter().all(is_plain)
            || self.regions.values().any(|(start, end, _, written)| *written && work.touches(*start, *end))
            || sends.chain(self.receives.values().flatten()).any(|other| other.writes && other.overlaps(work))
    }

    /// This work request may change what others read.
    fn forget_memory(&mut self, work: &Work) {
        let sends = self.queues.values_mut().flat_map(|queue| &mut queue.sends);
        sends.filter(|other| other.overlaps(work)).for_each(|other| other.hash = None);
    }

    /// A completion was polled from a queue of this context.
    fn completed(&mut self, context: usize, wc: &WorkCompletion) {
        let (qpn, wr_id) = (wc.qpn.value(), wc.wr_id);
        let is_it = |queue: &&mut Queue| queue.context == context && queue.qpn == qpn;
        let Some(queue) = self.queues.values_mut().find(is_it) else { return };
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            // Programs take the peer's answer for the end of what they sent, and the peer has all of it.
            queue.sends.iter_mut().for_each(|work| work.hash = None);
            let Some(works) = self.receives.get_mut(&queue.receives) else { return };
            let place = works.iter().position(|work| work.wr_id == wr_id);
            let work = place.and_then(|place| works.remove(place));
            if let Some(work) = work.filter(|_| wc.status == WcStatus::LocLenErr) {
                let octets: u64 = work.sges.iter().map(|sge| u64::from(sge.length)).sum();
                let text = format!(
                    "ibv_poll_cq: the message is longer than the {octets} octets of the receive with wr_id {wr_id} on queue pair {qpn:#08x}; \
                     post larger buffers (a datagram takes 40 octets more)"
                );
                self.tell(("buffer", ""), &text, &work.posted, None);
            }
            return;
        }
        let is_ok = wc.status == WcStatus::Success;
        let is_it = |work: &Work| work.wr_id == wr_id && (work.signaled || !is_ok);
        let Some(place) = queue.sends.iter().position(is_it) else { return };
        let done: Vec<Work> = queue.sends.drain(..=place).collect();
        for work in done.iter().filter(|work| work.hash.is_some() && is_ok) {
            if !self.may_be_written(work) && work.read().is_some_and(|now| work.hash != Some(now)) {
                let text = format!(
                    "ibv_poll_cq: memory of the {} with wr_id {} on queue pair {qpn:#08x} changed before its completion was polled, and a \
                     packet that is sent again would have the new data; leave it alone until then",
                    work.name, work.wr_id
                );
                self.tell(("memory", ""), &text, &work.posted, None);
            }
        }
    }
}

/// Run by `exit` itself. The summary is written later, by the loader, from where frames lead no further.
extern "C" fn leaving() {
    with(|state| state.is_returned = Trace::here().is_end_of_main());
}

/// The structure of the completion queue at this address.
fn queue_of(cq: usize) -> abi::ibv_cq {
    // SAFETY: the address of a handle of this library, which begins with the structure and is never freed.
    unsafe { ptr::with_exposed_provenance::<abi::ibv_cq>(cq).read_unaligned() }
}

/// A queue pair is made, whose handle is at this address.
pub(crate) fn queue_pair(at: usize, context: usize, qp: &Qp, init: &abi::ibv_qp_init_attr) {
    let queue = Queue {
        context,
        qpn: qp.qpn().value(),
        sends: VecDeque::new(),
        send_cq: init.send_cq.addr(),
        receives: if init.srq.is_null() { at } else { init.srq.addr() },
        max_send_wr: qp.caps().max_send_wr,
        signals_all: init.sq_sig_all != 0,
        is_loopback: false,
    };
    with(|state| _ = state.queues.insert(at, queue));
}

/// A send work request is about to be posted to the queue pair at this address.
pub(crate) fn send(qp: usize, work: impl FnOnce() -> Work) {
    with(|state| state.send(qp, work()));
}

/// A receive work request is about to be posted to the queue pair or shared receive queue at this address.
pub(crate) fn receive(queue: usize, wr: &RecvWr<'_>) {
    with(|state| {
        let work = Work::new(wr.wr_id, "receive", true, wr.sges);
        state.keys(&work, false);
        state.forget_memory(&work);
        state.receives.entry(queue).or_default().push_back(work);
    });
}

/// The work request that was about to be posted last with this `wr_id` was refused.
pub(crate) fn refused_one(queue: usize, is_send: bool, wr_id: u64) {
    with(|state| {
        let sends = state.queues.get_mut(&queue).map(|queue| &mut queue.sends);
        let works = if is_send { sends } else { state.receives.get_mut(&queue) };
        let works = works.into_iter();
        works.for_each(|works| {
            let place = works.iter().rposition(|work| work.wr_id == wr_id);
            place.and_then(|place| works.remove(place));
        });
    });
}

/// The last work requests that are about to be posted were refused.
pub(crate) fn refused(queue: usize, is_send: bool, count: usize) {
    with(|state| {
        let sends = state.queues.get_mut(&queue).map(|queue| &mut queue.sends);
        let works = if is_send { sends } else { state.receives.get_mut(&queue) };
        works.into_iter().for_each(|works| works.truncate(works.len().saturating_sub(count)));
    });
}

/// A completion was polled.
pub(crate) fn polled(cq: &CompletionQueue, wc: &WorkCompletion) {
    with(|state| state.completed(queue_of(cq.user() as usize).context.addr(), wc));
}

/// A region was registered; `iova` is where peers address it.
pub(crate) fn registered(mr: &Mr, addr: u64, iova: u64, access: Access) {
    let written = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND);
    let region = (addr, addr.saturating_add(mr.len() as u64), addr == iova, written);
    with(|state| _ = state.regions.insert(mr.lkey().value(), region));
}

/// Keys belong to a region from now on, or to none any more.
pub(crate) fn keys(mr: &Mr, live: bool) {
    with(|state| {
        for key in [mr.lkey().value(), mr.rkey().value()] {
            if live {
                state.dead_keys.remove(&key);
            } else {
                if state.dead_keys.len() >= MOST_KEYS {
                    state.dead_keys.clear();
                }
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
    let Some(Ok(Some(from))) = is_on().then(|| context.gid(to.sgid_index.into())) else { return false };
    let is_path = to.is_global && !to.dgid.is_multicast() && !to.dgid.is_zero();
    if is_path && from.gid.is_ipv4() != to.dgid.is_ipv4() {
        let (ours, theirs) = if from.gid.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        let text = format!(
            "{call}: sgid_index {} is an address of {ours}, and dgid one of {theirs}; take an index of that family (`ferroce gid`)",
            to.sgid_index
        );
        with(|state| state.tell(("family", ""), &text, &Trace::here(), None));
    }
    to.dgid == from.gid
}

/// `ibv_modify_qp` is about to set what `mask` names.
pub(crate) fn modifying(at: usize, context: &Context, attr: &QpAttr, mask: QpAttrMask) {
    let (has, call) = (|bit| mask.contains(bit), "ibv_modify_qp");
    if has(QpAttrMask::MAX_QP_RD_ATOMIC) {
        cards::sizes(call, &[("rd_atomic", attr.max_rd_atomic.into())]);
    }
    let is_own = has(QpAttrMask::AV) && addressed(call, context, &attr.ah);
    with(|state| {
        let is_here = is_own && state.queues.values().any(|queue| queue.qpn == attr.dest_qp.value());
        let Some(queue) = state.queues.get_mut(&at) else { return };
        queue.is_loopback = if has(QpAttrMask::DEST_QPN) { is_here } else { queue.is_loopback };
        if has(QpAttrMask::STATE) && attr.state == QpState::Reset {
            let qpn = queue.qpn;
            let lost: Vec<Work> =
                std::mem::take(&mut queue.sends).into_iter().filter(|work| work.signaled).collect();
            state.receives.remove(&at);
            if let Some(first) = lost.first() {
                let text = format!(
                    "{call}: the reset of queue pair {qpn:#08x} loses the completions of {} signaled work requests; poll them first \
                     (IBV_QPS_ERR flushes)",
                    lost.len()
                );
                state.tell(
                    ("reset", ""),
                    &text,
                    &Trace::here(),
                    Some(("the first was posted", &first.posted)),
                );
            }
        }
    });
}

/// A completion queue is about to be armed.
pub(crate) fn arming(cq: usize) {
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

/// Whether the program has no other thread, which might arm a queue. Those of this library have names.
fn is_alone() -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return false };
    let names = threads.flatten().filter_map(|thread| fs::read(thread.path().join("comm")).ok());
    names.filter(|name| !name.starts_with(b"ferroce")).count() <= 1
}

/// A thread is about to wait for an event of a channel; returns for how many milliseconds, before it looks
/// again.
pub(crate) fn waiting(channel: usize) -> c_int {
    with(|state| {
        let objects = state
            .objects
            .iter()
            .filter(|(at, object)| object.0 == "ibv_cq" && queue_of(**at).channel.addr() == channel);
        let armed: Vec<u32> = objects.map(|(at, _)| state.armed.get(at).copied().unwrap_or(0)).collect();
        let now = Instant::now();
        let seen = state.waiting.entry(channel).or_insert((now, now));
        if armed.is_empty() || armed.iter().any(|armed| *armed > 0) || now - seen.1 > 2 * WAIT {
            seen.0 = now;
        }
        seen.1 = now;
        if now - seen.0 >= WAIT && is_alone() {
            let text = format!(
                "ibv_get_cq_event: none of the {} completion queues of the channel is armed since a second; call ibv_req_notify_cq \
                 before the last poll that finds nothing",
                armed.len()
            );
            state.tell(("unarmed", ""), &text, &Trace::here(), None);
        }
    });
    if is_on() { WAIT.as_millis() as c_int } else { -1 }
}
