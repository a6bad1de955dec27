//! AF_XDP sockets: their options, and the memory that they share with the kernel.

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Types of which any octets are a value.
pub(crate) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for XdpDesc {}

/// Memory of this process that others write as well.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` octets of a file from `offset` on, shared.
    pub(crate) fn new(fd: &impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses where, so nothing of this process is replaced.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                offset,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, len })
    }

    /// Returns a part of the memory, or `None` if it is not all inside.
    pub(crate) fn slice(&self, at: usize, len: usize) -> Option<&[u8]> {
        at.checked_add(len).filter(|end| *end <= self.len)?;
        // SAFETY: inside the mapping. Nobody writes there meanwhile: the kernel writes only to frames in its
        // fill ring, and this process only by `slice_mut`.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) })
    }

    /// As [`Self::slice`], to write.
    pub(crate) fn slice_mut(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        at.checked_add(len).filter(|end| *end <= self.len)?;
        // SAFETY: as in `slice`, and the kernel reads only frames in the transmit ring.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A ring of `entries` (a power of two) that is shared with the kernel. One side produces, the other one
/// consumes: each writes only its own index, with release ordering after the entries, and reads the other
/// one's with acquire ordering before it touches them.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    at: usize,
    entries: u32,
    kind: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// `InvalidData` if the parts are not all inside the memory, each aligned.
    fn new(memory: Mapping, offsets: XdpRingOffset, entries: u32) -> io::Result<Self> {
        let place = |offset: u64, len: usize, align: usize| {
            let at = usize::try_from(offset).ok()?;
            let inside = at.checked_add(len)? <= memory.len;
            (inside && at % align == 0).then_some(at)
        };
        let index = |offset| place(offset, size_of::<u32>(), align_of::<u32>());
        let octets = size_of::<T>().saturating_mul(entries as usize);
        let parts = (|| {
            let (producer, consumer) = (index(offsets.producer)?, index(offsets.consumer)?);
            Some((producer, consumer, place(offsets.desc, octets, align_of::<T>())?))
        })();
        let (producer, consumer, at) =
            parts.filter(|_| entries.is_power_of_two()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { memory, producer, consumer, at, entries, kind: PhantomData })
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` checked that four aligned octets are there; the mapping lives as long as `self`, and
        // both sides use atomics.
        unsafe { AtomicU32::from_ptr(self.memory.start.as_ptr().add(at).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.index(self.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.index(self.consumer)
    }

    fn entry(&self, index: u32) -> *mut T {
        let slot = (index & (self.entries - 1)) as usize;
        // SAFETY: `new` checked that all entries are inside the mapping.
        unsafe { self.memory.start.as_ptr().add(self.at).cast::<T>().add(slot) }
    }
}

/// The side of a ring that adds entries. They become visible with [`Producer::publish`].
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: Ring<T>,
    /// The next entry to write; entries before it may wait for `publish`.
    next: u32,
    /// The other side's index when it was last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    fn new(ring: Ring<T>) -> Self {
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Self { ring, next, consumed }
    }

    /// Adds an entry; returns whether there was space.
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.next.wrapping_sub(self.consumed) >= self.ring.entries {
            self.consumed = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.consumed) >= self.ring.entries {
                return false;
            }
        }
        // SAFETY: the entry is inside the ring; the kernel does not read it until `publish`, and has consumed
        // its last content.
        unsafe { self.ring.entry(self.next).write_volatile(value) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the other side all entries so far.
    pub(crate) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns how many entries the other side has not consumed.
    pub(crate) fn pending(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumed)
    }
}

/// The side of a ring that takes entries.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    /// The other side's index when it was last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    fn new(ring: Ring<T>) -> Self {
        let next = ring.consumer().load(Ordering::Relaxed);
        Self { ring, next, produced: next }
    }

    /// Takes the next entry, or `None`.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            self.produced = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: the entry is inside the ring, and the kernel wrote it before the producer's index; any
        // octets are a `T`.
        let value = unsafe { self.ring.entry(self.next).read_volatile() };
        self.next = self.next.wrapping_add(1);
        self.ring.consumer().store(self.next, Ordering::Release);
        Some(value)
    }
}

/// The rings of one socket.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) rx: Consumer<XdpDesc>,
    pub(crate) tx: Producer<XdpDesc>,
    pub(crate) fill: Producer<u64>,
    pub(crate) completion: Consumer<u64>,
}

/// Opens an AF_XDP socket. `PermissionDenied` without CAP_NET_RAW.
pub(crate) fn open_xsk() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// Gives a socket its memory, all of a file of `len` octets in frames of `chunk`, and four rings of
/// `entries`.
pub(crate) fn set_up_xsk(
    socket: &impl AsFd,
    memory: &impl AsFd,
    len: usize,
    chunk: u32,
    entries: u32,
) -> io::Result<()> {
    // The kernel pins the pages, and they stay pinned after this mapping has gone.
    let mapping = Mapping::new(memory, 0, len)?;
    let region = XdpUmemReg {
        addr: mapping.start.as_ptr() as u64,
        len: len as u64,
        chunk_size: chunk,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, region)?;
    sockopt::set_xdp_umem_fill_ring_size(socket, entries)?;
    sockopt::set_xdp_umem_completion_ring_size(socket, entries)?;
    sockopt::set_xdp_rx_ring_size(socket, entries)?;
    sockopt::set_xdp_tx_ring_size(socket, entries)?;
    Ok(())
}

/// Binds to a queue of an interface, so that the kernel copies packets, which no driver refuses. `EBUSY` if
/// another socket has the queue, or had it a moment ago.
pub(crate) fn bind_xsk(socket: &impl AsFd, ifindex: u32, queue: u32) -> io::Result<()> {
    Ok(rustix::net::bind(socket, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, ifindex, queue))?)
}

/// Maps the rings of a socket, each of `entries`.
pub(crate) fn map_rings(socket: &impl AsFd, entries: u32) -> io::Result<Rings> {
    let offsets = sockopt::xdp_mmap_offsets(socket)?;
    let (fill, completion) = (XDP_UMEM_PGOFF_FILL_RING, XDP_UMEM_PGOFF_COMPLETION_RING);
    Ok(Rings {
        rx: Consumer::new(map_ring(socket, XDP_PGOFF_RX_RING, offsets.rx, entries)?),
        tx: Producer::new(map_ring(socket, XDP_PGOFF_TX_RING, offsets.tx, entries)?),
        fill: Producer::new(map_ring(socket, fill, offsets.fr, entries)?),
        completion: Consumer::new(map_ring(socket, completion, offsets.cr, entries)?),
    })
}

fn map_ring<T: Entry>(
    socket: &impl AsFd,
    at: u64,
    offsets: XdpRingOffset,
    entries: u32,
) -> io::Result<Ring<T>> {
    let len = usize::try_from(offsets.desc)
        .ok()
        .and_then(|start| start.checked_add(size_of::<T>().checked_mul(entries as usize)?))
        .ok_or(io::ErrorKind::InvalidData)?;
    Ring::new(Mapping::new(socket, at, len)?, offsets, entries)
}

/// Makes the kernel look at the transmit ring.
pub(crate) fn kick(socket: &impl AsFd) -> io::Result<()> {
    let raw = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: as for all sends, a raw call is no cancellation point.
    // SAFETY: no memory is involved.
    let rc = unsafe {
        libc::syscall(libc::SYS_sendto, raw, std::ptr::null::<u8>(), 0, libc::MSG_DONTWAIT, 0usize, 0)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: XdpRingOffset = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: None };

    /// Both sides of one ring of four entries in a memory file, whose indices start at `start`.
    fn ring(start: u32) -> (Producer<u64>, Consumer<u64>) {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let side = || Ring::new(Mapping::new(&file, 0, 4096).unwrap(), LAYOUT, 4).unwrap();
        let first = side();
        first.producer().store(start, Ordering::Relaxed);
        first.consumer().store(start, Ordering::Relaxed);
        (Producer::new(first), Consumer::new(side()))
    }

    #[test]
    fn entries_arrive_in_order_after_publish_and_across_the_wrap_of_the_indices() {
        let (mut producer, mut consumer) = ring(u32::MAX - 5);
        let (mut sent, mut got) = (0u64, 0u64);
        for round in 0..40 {
            let mut added = 0;
            while added < round % 6 && producer.push(sent) {
                sent += 1;
                added += 1;
            }
            assert!(added <= 4, "four entries are all there are");
            assert_eq!(consumer.pop(), None, "nothing is visible before publish");
            producer.publish();
            assert_eq!(producer.pending(), added as u32);
            while let Some(value) = consumer.pop() {
                assert_eq!(value, got);
                got += 1;
            }
            assert_eq!((got, producer.pending()), (sent, 0));
        }
        assert!(sent > 60);
    }

    #[test]
    fn a_full_ring_refuses_until_the_other_side_took_an_entry() {
        let (mut producer, mut consumer) = ring(7);
        assert!((0..4).all(|value| producer.push(value)));
        assert!(!producer.push(4));
        producer.publish();
        assert_eq!(consumer.pop(), Some(0));
        assert!(producer.push(4));
        assert!(!producer.push(5));
    }

    #[test]
    fn two_threads_lose_and_tear_nothing() {
        let (mut producer, mut consumer) = ring(0);
        let sender = std::thread::spawn(move || {
            for value in 0..20_000u64 {
                while !producer.push(value) {
                    std::thread::yield_now();
                }
                producer.publish();
            }
        });
        for value in 0..20_000u64 {
            let got = loop {
                match consumer.pop() {
                    Some(got) => break got,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(got, value);
        }
        sender.join().unwrap();
    }

    #[test]
    fn parts_outside_the_memory_or_unaligned_are_refused() {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let with =
            |offsets, entries| Ring::<u64>::new(Mapping::new(&file, 0, 4096).unwrap(), offsets, entries);
        assert!(with(LAYOUT, 4).is_ok());
        for (offsets, entries) in [
            (XdpRingOffset { producer: 4096, ..LAYOUT }, 4),
            (XdpRingOffset { consumer: u64::MAX, ..LAYOUT }, 4),
            (XdpRingOffset { consumer: 66, ..LAYOUT }, 4),
            (XdpRingOffset { desc: 4096 - 24, ..LAYOUT }, 4),
            (XdpRingOffset { desc: 129, ..LAYOUT }, 4),
            (LAYOUT, 3),
            (LAYOUT, 0),
            (LAYOUT, 1 << 20),
        ] {
            assert!(with(offsets, entries).is_err(), "{offsets:?} {entries}");
        }
    }

    #[test]
    fn slices_stay_inside() {
        let file = rustix::fs::memfd_create("slices", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let mut mapping = Mapping::new(&file, 0, 4096).unwrap();
        assert_eq!(mapping.slice_mut(4000, 96).map(|s| s.len()), Some(96));
        assert!(mapping.slice(4000, 97).is_none());
        assert!(mapping.slice(usize::MAX, 2).is_none());
    }
}
