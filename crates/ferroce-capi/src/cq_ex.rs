//! Making completion queues, and the extended ones: completions read member by member, one at a time.

use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{CqInit, MAX_CQE, WorkCompletion};
use ferroce_host::latest::Reader;
use ferroce_wire::Instant;

use crate::attr;
use crate::call::{self, Owner};
use crate::check;
use crate::context::Made;
use crate::cq::{self, CqHandle, POOL};
use crate::cursor::{Current, EMPTY};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::{Errno, judged};
use crate::handle::{get, next_number, set};
use crate::reason::tell_if_failed;

impl CqHandle {
    /// Makes `completion` the current one, here and in the members that programs read themselves.
    fn show(&self, completion: WorkCompletion, at: Instant) {
        // SAFETY: see the type.
        unsafe { *self.extra.current.get() = Current { completion, at } };
        set!(self.status = completion.status as abi::ibv_wc_status);
        set!(self.wr_id = completion.wr_id);
    }
}

/// The valid bits of `wc_flags`.
const WC_FLAGS: u64 = (abi::IBV_WC_EX_WITH_BYTE_LEN
    | abi::IBV_WC_EX_WITH_IMM
    | abi::IBV_WC_EX_WITH_QP_NUM
    | abi::IBV_WC_EX_WITH_SRC_QP
    | abi::IBV_WC_EX_WITH_SLID
    | abi::IBV_WC_EX_WITH_SL
    | abi::IBV_WC_EX_WITH_DLID_PATH_BITS
    | abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | abi::IBV_WC_EX_WITH_CVLAN
    | abi::IBV_WC_EX_WITH_FLOW_TAG
    | abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// The parameters of a new completion queue: the engine's attributes and the program's pointers.
pub(crate) struct Wanted {
    pub(crate) init: CqInit,
    pub(crate) cq_context: *mut c_void,
    /// NULL, or a channel.
    pub(crate) channel: Object<abi::ibv_comp_channel>,
}

/// Makes a completion queue.
pub(crate) fn create(
    owner: &Owner,
    context: Object<abi::ibv_context>,
    wanted: Wanted,
) -> Result<*mut abi::ibv_cq_ex, Errno> {
    let Wanted { init, cq_context, channel } = wanted;
    let (handle, live) = context.opened(owner)?;
    judged(live.engine.judge(Verb::CreateCq))?;
    let reports_to = if channel.is_null() {
        None
    } else {
        let handle = channel.handle()?;
        Some(Arc::clone(&handle.live()?.engine))
    };
    check::sizes("ibv_create_cq", &[("cqe", init.entries)]);
    let entries = attr::rounded(init.entries, MAX_CQE);
    let may_overrun = init.ignore_overrun;
    let cq = POOL.make(empty(handle.public(), cq_context, channel.as_ptr()), |cq| {
        let init = CqInit { entries, user: cq.c().addr() as u64, channel: reports_to, ..init };
        let engine = live.engine.create_cq_with(init)?;
        let capacity = c_int::try_from(engine.capacity()).unwrap_or(c_int::MAX);
        set!(cq.cqe = capacity);
        set!(cq.handle = next_number());
        Ok::<_, Errno>(Made { engine, context: handle })
    })?;
    if may_overrun {
        check::ended(cq.c());
    }
    Ok(cq.c())
}

export! {
    /// Makes a completion queue of at least `cqe` entries.
    pub fn ibv_create_cq(
        context: Object<abi::ibv_context>,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: Object<abi::ibv_comp_channel>,
        comp_vector: c_int,
    ) -> *mut abi::ibv_cq = call::pointer |owner| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let vector = u32::try_from(comp_vector).map_err(|_| Errno::EINVAL)?;
        let init = CqInit { entries: cqe, comp_vector: vector, ..CqInit::default() };
        Ok(create(owner, context, Wanted { init, cq_context, channel })?.cast())
    }

    /// The slot behind the inline `ibv_create_cq_ex`. EOPNOTSUPP for what the device does not tell, EINVAL
    /// for bits that do not exist: programs probe that way.
    pub(crate) fn create_cq_ex(
        context: Object<abi::ibv_context>,
        attr: Ptr<abi::ibv_cq_init_attr_ex>,
    ) -> *mut abi::ibv_cq_ex = call::pointer |owner| {
        let attr = attr.read()?;
        if attr.comp_mask & !(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno::EINVAL);
        }
        if attr.wc_flags & !WC_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = if attr.comp_mask & abi::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
            attr.flags
        } else {
            Default::default()
        };
        // Single-threaded is a hint: a lock that nobody contends for costs little.
        let known = abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        if flags & !known != 0 {
            return Err(Errno::EINVAL);
        }
        let domain = if attr.comp_mask & abi::IBV_CQ_INIT_ATTR_MASK_PD != 0 {
            let (_, domain) = named!(attr.parent_domain).enter(owner)?;
            if !domain.engine.is_parent_domain() {
                return Err(Errno::EINVAL);
            }
            Some(Arc::clone(&domain.engine))
        } else {
            None
        };
        let init = CqInit {
            entries: attr.cqe,
            comp_vector: attr.comp_vector,
            ignore_overrun: flags & abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            domain,
            ..CqInit::default()
        };
        let wanted = Wanted { init, cq_context: attr.cq_context, channel: named!(attr.channel) };
        create(owner, context, wanted)
    }
}

/// The C structure of a queue before its first completion.
pub(crate) fn empty(
    context: *mut abi::ibv_context,
    cq_context: *mut c_void,
    channel: *mut abi::ibv_comp_channel,
) -> abi::ibv_cq_ex {
    abi::ibv_cq_ex {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
        comp_mask: 0,
        status: abi::IBV_WC_SUCCESS,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(read_completion_ts),
        read_cvlan: Some(read_cvlan),
        read_flow_tag: Some(read_flow_tag),
        read_tm_info: Some(read_tm_info),
        read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
    }
}

export! {
    /// 0 with the first completion loaded; ENOENT if the queue is empty, and then nothing is held.
    fn start_poll(cq: Object<abi::ibv_cq_ex>, attr: Ptr<abi::ibv_poll_cq_attr>) -> c_int = call::quick::status |owner| {
        let (handle, live) = cq.enter(owner)?;
        judged(live.engine.context().judge(Verb::PollCq))?;
        if attr.lent().is_some_and(|attr| get!(attr.comp_mask) != 0) {
            return Err(Errno::EINVAL);
        }
        let Some((poll, first)) = live.engine.begin_poll()? else { return Ok(libc::ENOENT) };
        let at = poll.completed_at();
        *handle.extra.poll.lock() = Some(poll);
        handle.extra.begin();
        tell_if_failed(&live.engine, &first);
        handle.show(first, at);
        Ok(0)
    }

    /// 0 with the next completion loaded, ENOENT if the queue is empty; the polling goes on either way.
    fn next_poll(cq: Object<abi::ibv_cq_ex>) -> c_int = call::quick::status |owner| {
        let reader = Reader::enter();
        let live = cq.look(owner, &reader)?;
        let handle = cq.handle()?;
        let next = match &mut *handle.extra.poll.lock() {
            Some(poll) => poll.next_completion()?.map(|next| (next, poll.completed_at())),
            None => return Err(Errno::EINVAL),
        };
        let Some((next, at)) = next else { return Ok(libc::ENOENT) };
        tell_if_failed(&live.engine, &next);
        handle.show(next, at);
        Ok(0)
    }

    /// Ends the polling.
    fn end_poll(cq: Object<abi::ibv_cq_ex>) -> () = call::quick::nothing |_| {
        cq.handle()?.extra.end();
        Ok(())
    }
}

/// The completion that `start_poll` or `next_poll` loaded.
fn current(cq: Object<abi::ibv_cq_ex>) -> Current {
    match cq.handle() {
        Ok(handle) => handle.extra.current(),
        Err(_) => Current { completion: EMPTY, at: Instant::from_nanos(0) },
    }
}

/// Readers of one member; none of them can fail.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident -> $result:ty = |$completion:ident| $value:expr;)*) => {
        $(
            export! {
                $(#[$doc])*
                fn $name(cq: Object<abi::ibv_cq_ex>) -> $result {
                    let Current { completion: $completion, at: _ } = current(cq);
                    $value
                }
            }
        )*
    };
}

readers! {
    read_opcode -> abi::ibv_wc_opcode = |completion| completion.opcode as abi::ibv_wc_opcode;
    read_vendor_err -> u32 = |completion| completion.vendor_err;
    read_byte_len -> u32 = |completion| completion.byte_len;
    /// Immediate data in network order, or the key that was invalidated.
    read_imm_data -> abi::be32 = |completion| cq::imm_or_rkey(&completion);
    read_qp_num -> u32 = |completion| completion.qpn.value();
    read_src_qp -> u32 = |completion| completion.src_qp.value();
    read_wc_flags -> u32 = |completion| cq::wc_flags(&completion);
    read_sl -> u8 = |completion| cq::sl(&completion);
}

export! {
    /// In units of `hca_core_clock`: nanoseconds of `CLOCK_MONOTONIC`.
    fn read_completion_ts(cq: Object<abi::ibv_cq_ex>) -> u64 {
        current(cq).at.as_nanos()
    }

    /// Nanoseconds since 1970, by the difference of the two clocks in this polling. It never decreases from
    /// one completion of the queue to the next.
    fn read_completion_wallclock_ns(cq: Object<abi::ibv_cq_ex>) -> u64 {
        cq.handle().map_or(0, |handle| handle.extra.wall_time())
    }
}

/// Members that are 0 on RoCE, or here: packets bring no VLAN tag, rules of `ibv_create_flow` no flow tag.
macro_rules! zeros {
    ($($name:ident -> $result:ty;)*) => {
        $(
            extern "C" fn $name(_cq: *mut abi::ibv_cq_ex) -> $result {
                0
            }
        )*
    };
}

zeros! {
    read_slid -> u32;
    read_dlid_path_bits -> u8;
    read_cvlan -> u16;
    read_flow_tag -> u32;
}

/// No queue can be asked for tag matching.
extern "C" fn read_tm_info(_cq: *mut abi::ibv_cq_ex, _tm_info: *mut abi::ibv_wc_tm_info) {}
