//! Completion queues. Every one is an `ibv_cq_ex`, whose head is an `ibv_cq`.

use std::ptr;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::faults::{self, Verb};
use ferroce_engine::{CompletionQueue, Look, MAX_CQE, Moderation, NetworkHeader, WorkCompletion};
use ferroce_host::latest::Reader;

use crate::attr;
use crate::call::{self, Owner, Scope};
use crate::check;
use crate::context::{Made, object};
use crate::cursor::{Cursor, EMPTY};
use crate::entry::{Array, Object, Ptr, export};
use crate::errno::{Errno, judged};
use crate::handle::{Handle, Pool, set};
use crate::reason::tell_if_failed;

/// A completion queue.
pub(crate) type CqHandle = Handle<abi::ibv_cq_ex, Made<CompletionQueue>, Cursor>;

pub(crate) static POOL: Pool<abi::ibv_cq_ex, Made<CompletionQueue>, Cursor> = Pool::new();

/// Completions taken from the engine at a time, on the stack.
const BATCH: usize = 16;

impl CqHandle {
    /// The handle of an engine's queue: its `user` is where the handle is.
    pub(crate) fn of_engine(cq: &CompletionQueue) -> &'static Self {
        let address = ptr::with_exposed_provenance::<Self>(cq.user() as usize);
        // SAFETY: every queue of this library was made by `create` with the address of its handle, the head
        // of which is the C structure; handles are never freed.
        unsafe { &*address }
    }
}

object!(abi::ibv_cq as abi::ibv_cq_ex => Made<CompletionQueue>, Cursor);
object!(abi::ibv_cq_ex as abi::ibv_cq_ex => Made<CompletionQueue>, Cursor);

/// Ends a queue.
pub(crate) fn destroy(owner: &Owner, cq: Object<abi::ibv_cq>) -> Result<(), Errno> {
    let (handle, _) = cq.enter(owner)?;
    POOL.end(handle, |live| {
        live.engine.destroy()?;
        handle.extra.end();
        Ok(())
    })
}

export! {
    /// Gives the queue room for at least `cqe` entries; EINVAL if it holds more.
    pub fn ibv_resize_cq(cq: Object<abi::ibv_cq>, cqe: c_int) -> c_int = call::code |owner| {
        let (handle, live) = cq.enter(owner)?;
        judged(live.engine.context().judge(Verb::ResizeCq))?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        live.engine.resize(attr::rounded(cqe, MAX_CQE))?;
        let capacity = c_int::try_from(live.engine.capacity()).unwrap_or(c_int::MAX);
        set!(handle.cqe = capacity);
        Ok(())
    }

    /// The slot behind the inline `ibv_modify_cq`: moderation, of which the device has 16 bits each.
    pub(crate) fn modify_cq(cq: Object<abi::ibv_cq>, attr: Ptr<abi::ibv_modify_cq_attr>) -> c_int = call::code |owner| {
        let (_, live) = cq.enter(owner)?;
        let attr = attr.read()?;
        if attr.attr_mask & !abi::IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Errno::EINVAL);
        }
        if attr.attr_mask & abi::IBV_CQ_ATTR_MODERATE != 0 {
            let abi::ibv_moderate_cq { cq_count, cq_period } = attr.moderate;
            live.engine.moderate(Moderation { count: cq_count, period: cq_period });
        }
        Ok(())
    }

    /// Ends the queue; EBUSY while queue pairs use it. Waits until its events are acknowledged.
    pub fn ibv_destroy_cq(cq: Object<abi::ibv_cq>) -> c_int = call::ending |owner| {
        destroy(owner, cq)
    }

    /// The slot behind the inline `ibv_poll_cq`: up to `num_entries` completions, their count, negative on an
    /// error.
    ///
    /// Most polls find nothing. For those all is decided here, where each call of a function is the last
    /// step, so that no registers have to be saved.
    pub(crate) fn poll_cq(cq: Object<abi::ibv_cq>, num_entries: c_int, wc: Ptr<abi::ibv_wc>) -> c_int {
        let Some(reader) = cq.handle().ok().and_then(|handle| Reader::enter_by(&handle.extra.poller)) else {
            return poll_as_other_thread(cq, num_entries, wc);
        };
        if polled_in_vain(cq, num_entries, wc, &reader) { 0 } else { poll(cq, num_entries, wc, reader) }
    }
}

/// Whether a poll has nothing to report and nothing to do. `false` says nothing: [`poll`] tells.
#[inline(always)]
fn polled_in_vain(
    cq: Object<abi::ibv_cq>,
    num_entries: c_int,
    wc: Ptr<abi::ibv_wc>,
    reader: &Reader,
) -> bool {
    let Some(live) = cq.handle().ok().and_then(|handle| handle.read(reader).ok()) else { return false };
    live.context.is_usable()
        && !faults::verbs()
        && num_entries > 0
        && !wc.is_null()
        && live.engine.polled_in_vain(reader)
}

/// Polls for another thread than the one that polled last.
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "no C calls it: nothing unwinds out of this ABI")]
extern "C" fn poll_as_other_thread(
    cq: Object<abi::ibv_cq>,
    num_entries: c_int,
    wc: Ptr<abi::ibv_wc>,
) -> c_int {
    let reader = Reader::enter();
    if let Ok(handle) = cq.handle() {
        reader.remember(&handle.extra.poller);
    }
    if polled_in_vain(cq, num_entries, wc, &reader) { 0 } else { poll(cq, num_entries, wc, reader) }
}

/// Polls a queue that may have something.
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "no C calls it: nothing unwinds out of this ABI")]
extern "C" fn poll(
    cq: Object<abi::ibv_cq>,
    num_entries: c_int,
    wc: Ptr<abi::ibv_wc>,
    reader: Reader,
) -> c_int {
    call::quick::count(move |owner| {
        let live = cq.look(owner, &reader)?;
        judged(live.engine.context().judge(Verb::PollCq))?;
        let wanted = usize::try_from(num_entries).map_err(|_| Errno::EINVAL)?;
        // SAFETY: `wc` has room for `num_entries`.
        let wc = unsafe { wc.array(wanted) }?;
        if wanted == 0 {
            return Ok(0);
        }
        match live.engine.look(&reader) {
            Look::Nothing => Ok(0),
            Look::Found => take(&live.engine, &wc, wanted),
            Look::Rest => {
                let engine = Arc::clone(&live.engine);
                drop(reader);
                if engine.look_behind_rest() { take(&engine, &wc, wanted) } else { Ok(0) }
            }
        }
    })
}

/// Takes up to `wanted` completions that are there. Most programs ask for one at a time, in a loop.
#[inline]
fn take(engine: &CompletionQueue, wc: &Array<abi::ibv_wc>, wanted: usize) -> Result<c_int, Errno> {
    if wanted == 1 { take_one(engine, wc) } else { take_many(engine, wc, wanted) }
}

/// Takes one completion, if there is one.
#[inline(never)]
fn take_one(engine: &CompletionQueue, wc: &Array<abi::ibv_wc>) -> Result<c_int, Errno> {
    let found = engine.take_by(|completion, _| {
        tell_if_failed(engine, completion);
        wc.write(0, c_completion(completion));
    })?;
    Ok(found.into())
}

#[inline(never)]
fn take_many(engine: &CompletionQueue, wc: &Array<abi::ibv_wc>, wanted: usize) -> Result<c_int, Errno> {
    let mut taken = 0;
    let mut batch = [EMPTY; BATCH];
    while taken < wanted {
        let room = BATCH.min(wanted - taken);
        let count = match engine.take(&mut batch[..room]) {
            Ok(count) => count,
            // Earlier completions are not lost: the next call returns the error again.
            Err(_) if taken > 0 => break,
            Err(error) => return Err(error.into()),
        };
        for (index, completion) in batch[..count].iter().enumerate() {
            tell_if_failed(engine, completion);
            wc.write(taken + index, c_completion(completion));
        }
        taken += count;
        if count < room {
            break;
        }
    }
    Ok(taken as c_int)
}

fn c_completion(completion: &WorkCompletion) -> abi::ibv_wc {
    abi::ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as abi::ibv_wc_status,
        opcode: completion.opcode as abi::ibv_wc_opcode,
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        unnamed: abi::ibv_wc_unnamed { imm_data: imm_or_rkey(completion) },
        qp_num: completion.qpn.value(),
        src_qp: completion.src_qp.value(),
        wc_flags: wc_flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: sl(completion),
        dlid_path_bits: 0,
    }
}

/// The union of immediate data, in network order, and the invalidated key.
pub(crate) fn imm_or_rkey(completion: &WorkCompletion) -> u32 {
    match (completion.imm, completion.invalidated) {
        (Some(imm), _) => u32::from_ne_bytes(imm.0),
        (None, Some(rkey)) => rkey.value(),
        (None, None) => 0,
    }
}

/// `ibv_wc_flags`.
pub(crate) fn wc_flags(completion: &WorkCompletion) -> u32 {
    let imm = if completion.imm.is_some() { abi::IBV_WC_WITH_IMM } else { 0 };
    let inv = if completion.invalidated.is_some() { abi::IBV_WC_WITH_INV } else { 0 };
    let grh = if completion.grh { abi::IBV_WC_GRH } else { 0 };
    imm | inv | grh
}

/// Set in [`sl`] if the datagram came by UDP.
pub(crate) const SL_UDP: u8 = 8;

/// The kind of a datagram's network header, in the place of the service level, which no packet of ours tells:
/// bit 3 is set for UDP, bits 2 to 0 are 0 for a GRH, 1 for IPv6, 2 for IPv4. Cards of the mlx5 family do so,
/// and UCX before 1.19 looks there to find the address of a datagram.
pub(crate) fn sl(completion: &WorkCompletion) -> u8 {
    match completion.header {
        None | Some(NetworkHeader::Grh) => 0,
        Some(NetworkHeader::Ipv6) => SL_UDP | 1,
        Some(NetworkHeader::Ipv4) => SL_UDP | 2,
    }
}

export! {
    /// The slot behind the inline `ibv_req_notify_cq`.
    pub(crate) fn req_notify_cq(cq: Object<abi::ibv_cq>, solicited_only: c_int) -> c_int = call::quick::code |owner| {
        let reader = Reader::enter();
        let live = cq.look(owner, &reader)?;
        judged(live.engine.context().judge(Verb::ReqNotifyCq))?;
        check::arming(cq.as_ptr().addr());
        live.engine.req_notify(solicited_only != 0);
        Ok(())
    }
}
