//! Completion counters: the number of work requests, or of octets, that completed on the queue pairs that a
//! counter is attached to.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ferroce_wire::Request;

use crate::{AttachCounterError, SendOp, WcOpcode, WcStatus, WorkCompletion};

/// The operations that counters tell apart; the discriminant is the number of the bit in
/// `ibv_qp_attach_comp_cntr_op`. Atomics, FLUSH, binds and invalidations have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum CountedOp {
    Send = 0,
    Recv = 1,
    RdmaRead = 2,
    RemoteRdmaRead = 3,
    RdmaWrite = 4,
    RemoteRdmaWrite = 5,
}

impl CountedOp {
    const fn of(opcode: WcOpcode) -> Option<Self> {
        match opcode {
            WcOpcode::Send => Some(Self::Send),
            WcOpcode::RdmaWrite => Some(Self::RdmaWrite),
            WcOpcode::RdmaRead => Some(Self::RdmaRead),
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => Some(Self::Recv),
            WcOpcode::CompSwap
            | WcOpcode::FetchAdd
            | WcOpcode::BindMw
            | WcOpcode::LocalInv
            | WcOpcode::Flush
            | WcOpcode::AtomicWrite => None,
        }
    }
}

/// Mask of all operations that a counter can count (`ibv_qp_attach_comp_cntr_op`).
pub const COUNTED_OPS: u32 = 0x3f;

/// The unit of a counter's successful completions (`ibv_comp_cntr_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_comp_cntr_type")]
pub enum CounterUnit {
    /// Each completed work request counts 1.
    Requests,
    /// Each completed work request counts the octets of its message.
    Octets,
}

/// A completion counter (`ibv_comp_cntr`): two values of 64 bits, which wrap to 0.
#[derive(Debug)]
#[doc(alias = "ibv_comp_cntr")]
pub struct CompletionCounter {
    unit: CounterUnit,
    completed: AtomicU64,
    failed: AtomicU64,
    /// Pairs of a queue pair and an operation that it is attached to; [`ENDED`] once it is destroyed.
    users: AtomicUsize,
}

const ENDED: usize = usize::MAX;

impl CompletionCounter {
    /// A counter at 0 that is not attached.
    pub const fn new(unit: CounterUnit) -> Self {
        let (completed, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { unit, completed, failed, users: AtomicUsize::new(0) }
    }

    /// The successful completions, in the counter's unit. What these completions wrote to memory is visible
    /// to a thread that sees them counted.
    pub const fn completed(&self) -> &AtomicU64 {
        &self.completed
    }

    /// The operations that completed in error, whatever the counter's unit.
    pub const fn failed(&self) -> &AtomicU64 {
        &self.failed
    }

    /// Ends the counter; `false` if it is attached, and nothing happens. From then on it cannot be attached.
    pub fn end(&self) -> bool {
        self.users.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn enter(&self, operations: usize) -> bool {
        let entered = |users: usize| (users != ENDED).then(|| users + operations);
        self.users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, entered).is_ok()
    }

    fn count(&self, octets: u32) {
        let amount = match self.unit {
            CounterUnit::Requests => 1,
            CounterUnit::Octets => u64::from(octets),
        };
        self.completed.fetch_add(amount, Ordering::Release);
    }
}

/// The counters of one queue pair, at most one for each operation.
#[derive(Debug, Default)]
pub(crate) struct Counting(Option<Box<[Option<Arc<CompletionCounter>>; 6]>>);

impl Counting {
    /// Has `counter` count the operations of the mask `ops`; all or none.
    pub fn attach(&mut self, counter: &Arc<CompletionCounter>, ops: u32) -> Result<(), AttachCounterError> {
        if ops == 0 {
            return Err(AttachCounterError::NoOperation);
        }
        if ops & !COUNTED_OPS != 0 {
            return Err(AttachCounterError::Operations { unknown: ops & !COUNTED_OPS });
        }
        let slots = self.0.iter().flat_map(|slots| slots.iter().enumerate());
        let taken = slots.filter(|(_, slot)| slot.is_some()).fold(0, |mask, (bit, _)| mask | 1 << bit);
        if ops & taken != 0 {
            return Err(AttachCounterError::Taken { ops: ops & taken });
        }
        if !counter.enter(ops.count_ones() as usize) {
            return Err(AttachCounterError::Ended);
        }
        for (bit, slot) in self.0.get_or_insert_default().iter_mut().enumerate() {
            if ops & 1 << bit != 0 {
                *slot = Some(Arc::clone(counter));
            }
        }
        Ok(())
    }

    /// Whether a counter is attached for the operation.
    pub fn counts(&self, op: CountedOp) -> bool {
        self.get(op).is_some()
    }

    #[inline]
    fn get(&self, op: CountedOp) -> Option<&CompletionCounter> {
        self.0.as_deref()?.get(op as usize)?.as_deref()
    }

    /// Counts an operation that completed, with the octets of its message.
    #[inline]
    pub fn completed(&self, op: CountedOp, octets: u32) {
        if let Some(counter) = self.get(op) {
            counter.count(octets);
        }
    }

    /// Counts an operation that completed in error.
    #[inline]
    pub fn failed(&self, op: CountedOp) {
        if let Some(counter) = self.get(op) {
            counter.failed.fetch_add(1, Ordering::Release);
        }
    }

    /// Counts a request of the peer that got a NAK.
    pub fn refused(&self, request: &Request<'_>) {
        match request {
            Request::ReadRequest { .. } => self.failed(CountedOp::RemoteRdmaRead),
            Request::WriteFirst { .. }
            | Request::WriteMiddle { .. }
            | Request::WriteLast { .. }
            | Request::WriteOnly { .. } => self.failed(CountedOp::RemoteRdmaWrite),
            _ => {}
        }
    }

    /// Counts a send work request that succeeded and has no completion.
    #[inline]
    pub fn unreported(&self, op: &SendOp, octets: u32) {
        if self.0.is_some()
            && let Some(op) = CountedOp::of(WcOpcode::of(op))
        {
            self.completed(op, octets);
        }
    }

    /// Counts a work request by its completion.
    #[inline]
    pub fn reported(&self, completion: &WorkCompletion) {
        if self.0.is_some()
            && let Some(op) = CountedOp::of(completion.opcode)
        {
            match completion.status {
                WcStatus::Success => self.completed(op, completion.byte_len),
                _ => self.failed(op),
            }
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        for counter in self.0.iter().flat_map(|slots| slots.iter().flatten()) {
            counter.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
