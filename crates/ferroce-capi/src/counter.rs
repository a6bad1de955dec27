//! Completion counters (`ibv_comp_cntr`).
//!
//! The queue pair counts: a counter is two atomics that each attached queue pair adds to when an operation
//! completes. A program that waits for a value reads it again and again and may never poll a completion
//! queue, so a read that finds nothing new receives and processes packets, as `ibv_poll_cq` does.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{COUNTED_OPS, CompletionCounter, CompletionQueue, CounterUnit, PerProcess};
use ferroce_host::latest::Reader;
use parking_lot::Mutex;

use crate::call::{self, Owner};
use crate::context::{ContextHandle, object};
use crate::entry::{InContext, Object, Ptr, export};
use crate::errno::{Errno, judged_without_device};
use crate::handle::{Live, Pool, next_number};
use crate::query::write_prefix;

/// Most counters that a process may have at once, in all contexts together.
const MAX_COUNTERS: u32 = 1 << 16;

/// Reads in vain after which a read lets other threads run.
const READS_PER_REST: u32 = 64;

static POOL: Pool<abi::ibv_comp_cntr, LiveCounter> = Pool::new();

/// Counters that the process has.
static COUNT: PerProcess<AtomicU32> = PerProcess::new();

pub(crate) struct LiveCounter {
    engine: Arc<CompletionCounter>,
    context: &'static ContextHandle,
    watched: Mutex<Watched>,
}

/// The state of a program's wait for the counter.
#[derive(Default)]
struct Watched {
    /// Completion queues of the attached queue pairs, each once.
    queues: Vec<Weak<CompletionQueue>>,
    /// The last values that were read, of completions and of errors.
    seen: [u64; 2],
    /// Reads in a row that found the same value.
    in_vain: u32,
}

object!(abi::ibv_comp_cntr => LiveCounter);

impl InContext for LiveCounter {
    type Context = ContextHandle;

    fn context(&self) -> &'static ContextHandle {
        self.context
    }
}

/// The value of a counter that a call is about.
#[derive(Clone, Copy)]
enum Value {
    Completed = 0,
    Failed = 1,
}

impl LiveCounter {
    fn value(&self, value: Value) -> &AtomicU64 {
        match value {
            Value::Completed => self.engine.completed(),
            Value::Failed => self.engine.failed(),
        }
    }

    fn attached(&self, queues: impl Iterator<Item = Arc<CompletionQueue>>) {
        let mut watched = self.watched.lock();
        watched.queues.retain(|queue| queue.strong_count() > 0);
        for queue in queues {
            let weak = Arc::downgrade(&queue);
            if !watched.queues.iter().any(|known| known.ptr_eq(&weak)) {
                watched.queues.push(weak);
            }
        }
    }

    /// The value. If it is the one that the last read found, packets are processed first.
    fn read(&self, which: Value) -> u64 {
        let value = self.value(which);
        let now = value.load(Ordering::Acquire);
        // A thread that holds the lock processes packets already.
        let Some(mut watched) = self.watched.try_lock() else { return now };
        let Watched { queues, seen, in_vain } = &mut *watched;
        let seen = &mut seen[which as usize];
        if now != *seen {
            (*seen, *in_vain) = (now, 0);
            return now;
        }
        *in_vain = in_vain.wrapping_add(1);
        let rests = in_vain.is_multiple_of(READS_PER_REST);
        for queue in queues.iter().filter_map(Weak::upgrade) {
            queue.progress(&Reader::enter());
        }
        // A sleep as in a poll of a queue would last: a request without a completion wakes nobody.
        if rests && value.load(Ordering::Acquire) == now {
            std::thread::yield_now();
        }
        *seen = value.load(Ordering::Acquire);
        *seen
    }
}

/// The counter that a call changes or reads.
fn entered(owner: &Owner, counter: Object<abi::ibv_comp_cntr>) -> Result<Live<LiveCounter>, Errno> {
    counter.enter(owner).map(|(_, live)| live)
}

fn set(owner: &Owner, counter: Object<abi::ibv_comp_cntr>, which: Value, value: u64) -> Result<(), Errno> {
    entered(owner, counter)?.value(which).store(value, Ordering::Release);
    Ok(())
}

fn increase(
    owner: &Owner,
    counter: Object<abi::ibv_comp_cntr>,
    which: Value,
    amount: u64,
) -> Result<(), Errno> {
    entered(owner, counter)?.value(which).fetch_add(amount, Ordering::Release);
    Ok(())
}

fn read(
    owner: &Owner,
    counter: Object<abi::ibv_comp_cntr>,
    which: Value,
    value: Ptr<u64>,
) -> Result<(), Errno> {
    let live = entered(owner, counter)?;
    let value = value.some()?;
    value.write(live.read(which));
    Ok(())
}

export! {
    /// The function behind the inline `ibv_query_comp_cntr_caps`; `caps_size` is the program's own size of
    /// the structure, in octets. Counters have 64 bits, and count every operation.
    pub fn _ibv_query_comp_cntr_caps(
        context: Object<abi::ibv_context>,
        caps: Ptr<abi::ibv_comp_cntr_caps>,
        caps_size: usize,
    ) -> c_int = call::code |owner| {
        context.opened(owner)?;
        if caps.is_null() {
            return Err(Errno::EINVAL);
        }
        let ours = abi::ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: MAX_COUNTERS,
            supported_qp_attach_ops: COUNTED_OPS,
        };
        // SAFETY: not NULL, so the program's structure has `caps_size` octets; ours is plain data.
        unsafe { write_prefix(caps.as_ptr(), caps_size, &ours) };
        Ok(())
    }

    /// Makes a counter at 0. EOPNOTSUPP for flags, bits of `comp_mask` and types that are not known, as efa's
    /// driver has it; ENOMEM if the process has `max_counters` already.
    pub fn ibv_create_comp_cntr(
        context: Object<abi::ibv_context>,
        attr: Ptr<abi::ibv_comp_cntr_init_attr>,
    ) -> *mut abi::ibv_comp_cntr = call::pointer |owner| {
        let (handle, _) = context.opened(owner)?;
        let attr = attr.read()?;
        let unit = match attr.type_ {
            abi::IBV_COMP_CNTR_TYPE_WRS => CounterUnit::Requests,
            abi::IBV_COMP_CNTR_TYPE_BYTES => CounterUnit::Octets,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if attr.comp_mask != 0 || attr.flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let more = |count: u32| (count < MAX_COUNTERS).then_some(count + 1);
        let (count, relaxed) = (COUNT.get(), Ordering::Relaxed);
        count.fetch_update(relaxed, relaxed, more).map_err(|_| Errno::ENOMEM)?;
        let c = abi::ibv_comp_cntr { context: handle.public(), handle: next_number() };
        let engine = Arc::new(CompletionCounter::new(unit));
        Ok(POOL.put(c, LiveCounter { engine, context: handle, watched: Mutex::default() }).c())
    }

    /// Ends a counter; EBUSY while it is attached to a queue pair.
    pub fn ibv_destroy_comp_cntr(counter: Object<abi::ibv_comp_cntr>) -> c_int = call::ending |owner| {
        let (handle, _) = counter.enter(owner)?;
        POOL.end(handle, |live| {
            if !live.engine.end() {
                return Err(Errno::EBUSY);
            }
            COUNT.get().fetch_sub(1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Sets the completions that are counted.
    pub fn ibv_set_comp_cntr(counter: Object<abi::ibv_comp_cntr>, value: u64) -> c_int = call::code |owner| {
        set(owner, counter, Value::Completed, value)
    }

    /// Sets the errors that are counted.
    pub fn ibv_set_err_comp_cntr(counter: Object<abi::ibv_comp_cntr>, value: u64) -> c_int = call::code |owner| {
        judged_without_device(Verb::SetCompCntr)?;
        set(owner, counter, Value::Failed, value)
    }

    /// Adds to the completions that are counted; beyond 64 bits they wrap to 0.
    pub fn ibv_inc_comp_cntr(counter: Object<abi::ibv_comp_cntr>, amount: u64) -> c_int = call::code |owner| {
        increase(owner, counter, Value::Completed, amount)
    }

    /// Adds to the errors that are counted; beyond 64 bits they wrap to 0.
    pub fn ibv_inc_err_comp_cntr(counter: Object<abi::ibv_comp_cntr>, amount: u64) -> c_int = call::code |owner| {
        judged_without_device(Verb::IncCompCntr)?;
        increase(owner, counter, Value::Failed, amount)
    }

    /// Reads the completions that were counted, in work requests or octets as the counter's type says.
    /// Processes packets on this thread if nothing is new.
    pub fn ibv_read_comp_cntr(counter: Object<abi::ibv_comp_cntr>, value: Ptr<u64>) -> c_int = call::code |owner| {
        read(owner, counter, Value::Completed, value)
    }

    /// Reads the errors that were counted, one for each operation. Processes packets on this thread if
    /// nothing is new.
    pub fn ibv_read_err_comp_cntr(counter: Object<abi::ibv_comp_cntr>, value: Ptr<u64>) -> c_int = call::code |owner| {
        judged_without_device(Verb::ReadCompCntr)?;
        read(owner, counter, Value::Failed, value)
    }

    /// Has the counter count the operations of `op_mask` until the queue pair ends. A WRITE with immediate
    /// data counts at its target as the peer's WRITE and as a receive. EINVAL for an empty mask, for another
    /// context's counter, and in other states than RESET and INIT; EOPNOTSUPP for bits that are not known;
    /// EBUSY if an operation has a counter.
    pub fn ibv_qp_attach_comp_cntr(
        qp: Object<abi::ibv_qp>,
        counter: Object<abi::ibv_comp_cntr>,
        attr: Ptr<abi::ibv_qp_attach_comp_cntr_attr>,
    ) -> c_int = call::code |owner| {
        let (_, qp) = qp.enter(owner)?;
        let live = entered(owner, counter)?;
        let attr = attr.read()?;
        if attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if !std::ptr::eq(qp.context, live.context) {
            return Err(Errno::EINVAL);
        }
        qp.engine.attach_counter(&live.engine, attr.op_mask)?;
        let queues = qp.engine.send_cq().into_iter().chain(qp.engine.recv_cq());
        live.attached(queues.cloned());
        Ok(())
    }
}
