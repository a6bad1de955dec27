//! Owned buffers of registered memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::BytesMut;

use super::lock;
use super::waiters::{Ticket, Waiters};
use crate::{Error, MemoryRegion, ProtectionDomain, Slice};

/// Buffers begin at multiples of this number of octets from the pool's first octet.
const STRIDE: usize = 64;

/// Buffers of the same size in one registration. Clones are the same pool. The memory is freed after the last
/// clone and the last buffer are dropped.
///
/// The buffers have no remote access: a peer that writes while the program holds a `&mut [u8]` would break
/// Rust's rules. Memory for the peer's READs, WRITEs and atomics is a [`MemoryRegion`].
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    /// Dropped before the memory: the registration ends first.
    region: MemoryRegion<'static>,
    domain: ProtectionDomain,
    free: Mutex<Free>,
}

impl Shared {
    /// In a forked child, threads of the parent may have left locks locked.
    fn is_of_this_process(&self) -> bool {
        self.domain.shared.open.is_of_this_process()
    }
}

#[derive(Default)]
struct Free {
    parts: Vec<Part>,
    waiters: Waiters,
}

/// The memory of one buffer.
#[derive(Default)]
struct Part {
    /// Offset of the first octet in the region.
    offset: usize,
    /// Neither extended nor split after the pool was created, so the memory does not move.
    memory: BytesMut,
}

impl BufferPool {
    /// Allocates and registers `count` buffers of `octets` zeroed octets each.
    ///
    /// # Errors
    ///
    /// [`Device::Limit`](crate::error::Device::Limit) if the device has no more keys.
    ///
    /// # Panics
    ///
    /// If the sizes exceed the address space.
    pub fn new(domain: &ProtectionDomain, count: usize, octets: u32) -> Result<Self, Error> {
        let octets = octets as usize;
        let stride = octets.max(1).next_multiple_of(STRIDE);
        let len = count.max(1).checked_mul(stride).expect("the pool fits into the address space");
        let mut memory = BytesMut::zeroed(len);
        let region = MemoryRegion::of_pool(domain, &mut memory)?;
        let parts = (0..count).map(|number| {
            let mut part = memory.split_to(stride);
            part.truncate(octets);
            Part { offset: number * stride, memory: part }
        });
        let free = Mutex::new(Free { parts: parts.collect(), waiters: Waiters::default() });
        Ok(Self { shared: Arc::new(Shared { region, domain: domain.clone(), free }) })
    }

    /// Takes a buffer if one is free. The content is that of the buffer's last use.
    pub fn try_take(&self) -> Option<Buffer> {
        let mut free = lock(&self.shared.free);
        if free.waiters.is_first(None) { Some(self.buffer(free.parts.pop()?)) } else { None }
    }

    /// Waits until a buffer is free and takes it, in the order of the calls' first polls.
    pub fn take(&self) -> Take {
        Take { pool: self.clone(), ticket: None }
    }

    /// Number of free buffers.
    pub fn available(&self) -> usize {
        lock(&self.shared.free).parts.len()
    }

    /// The protection domain of the buffers.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    fn buffer(&self, part: Part) -> Buffer {
        Buffer { part, pool: Arc::clone(&self.shared) }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("available", &self.available()).finish_non_exhaustive()
    }
}

/// Unlocks the list, and wakes the first task that waits if a buffer is free.
fn wake_next(free: MutexGuard<'_, Free>) {
    let first = if free.parts.is_empty() { None } else { free.waiters.first() };
    drop(free);
    if let Some(waker) = first {
        waker.wake();
    }
}

/// The future of [`BufferPool::take`].
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct Take {
    pool: BufferPool,
    ticket: Ticket,
}

impl Future for Take {
    type Output = Buffer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Buffer> {
        let Self { pool, ticket } = &mut *self;
        let mut free = lock(&pool.shared.free);
        if free.waiters.is_first(*ticket)
            && let Some(part) = free.parts.pop()
        {
            let _left = free.waiters.leave(ticket);
            wake_next(free);
            return Poll::Ready(pool.buffer(part));
        }
        let _earlier = free.waiters.wait(ticket, cx.waker());
        drop(free);
        Poll::Pending
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        if self.ticket.is_some() && self.pool.shared.is_of_this_process() {
            let mut free = lock(&self.pool.shared.free);
            let _left = free.waiters.leave(&mut self.ticket);
            wake_next(free);
        }
    }
}

/// Registered memory that the program holds. Dropped, it returns to its pool.
pub struct Buffer {
    part: Part,
    pool: Arc<Shared>,
}

impl Buffer {
    /// The first `len` octets for a work request. The buffer is not accessed until that has completed.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter.
    pub(super) fn slice(&mut self, len: usize) -> Slice {
        let all = self.part.memory.len();
        assert!(len <= all, "{len} octets of a buffer of {all}");
        // The device accesses the memory by a pointer that is derived from this one.
        self.part.memory.as_mut_ptr().expose_provenance();
        self.pool.region.slice(self.part.offset..self.part.offset + len)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.part.memory
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.part.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.pool.is_of_this_process() {
            std::mem::forget((std::mem::take(&mut self.part), Arc::clone(&self.pool)));
            return;
        }
        let mut free = lock(&self.pool.free);
        free.parts.push(std::mem::take(&mut self.part));
        wake_next(free);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}
