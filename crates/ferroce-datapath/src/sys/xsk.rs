//! AF_XDP sockets: their options, and the memory that they share with the kernel.

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use rustix::mm::{MapFlags, ProtFlags};

use super::options::{set_int, set_value};

const SOL_XDP: c_int = 283;
const AF_XDP: c_int = 44;
const XDP_MMAP_OFFSETS: c_int = 1;
const XDP_RX_RING: c_int = 2;
const XDP_TX_RING: c_int = 3;
const XDP_UMEM_REG: c_int = 4;
const XDP_UMEM_FILL_RING: c_int = 5;
const XDP_UMEM_COMPLETION_RING: c_int = 6;
/// Flag of bind(2): the kernel copies packets. No driver refuses it.
const XDP_COPY: u16 = 2;

/// The offset at which `mmap(2)` maps a ring of a socket.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum RingAt {
    Rx = 0,
    Tx = 0x8000_0000,
    Fill = 0x1_0000_0000,
    Completion = 0x1_8000_0000,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct UmemReg {
    address: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
}

#[repr(C)]
struct SockaddrXdp {
    family: u16,
    flags: u16,
    ifindex: u32,
    queue: u32,
    shared_umem: u32,
}

/// Offsets of a ring's parts in its mapping.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
struct RingOffsets {
    producer: u64,
    consumer: u64,
    entries: u64,
    flags: u64,
}

#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
struct Offsets {
    rx: RingOffsets,
    tx: RingOffsets,
    fill: RingOffsets,
    completion: RingOffsets,
}

/// An entry of the receive or transmit ring.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// Offset in the memory.
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

/// Types of which any octets are a value.
pub(crate) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for Descriptor {}

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
    fn new(memory: Mapping, offsets: RingOffsets, entries: u32) -> io::Result<Self> {
        let place = |offset: u64, len: usize, align: usize| {
            let at = usize::try_from(offset).ok()?;
            let inside = at.checked_add(len)? <= memory.len;
            (inside && at % align == 0).then_some(at)
        };
        let index = |offset| place(offset, size_of::<u32>(), align_of::<u32>());
        let octets = size_of::<T>().saturating_mul(entries as usize);
        let parts = (|| {
            let (producer, consumer) = (index(offsets.producer)?, index(offsets.consumer)?);
            Some((producer, consumer, place(offsets.entries, octets, align_of::<T>())?))
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
    pub(crate) rx: Consumer<Descriptor>,
    pub(crate) tx: Producer<Descriptor>,
    pub(crate) fill: Producer<u64>,
    pub(crate) completion: Consumer<u64>,
}

/// Opens an AF_XDP socket. `PermissionDenied` without CAP_NET_RAW.
pub(crate) fn open_xsk() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
    let region =
        UmemReg { address: mapping.start.as_ptr() as u64, len: len as u64, chunk_size: chunk, headroom: 0 };
    set_value(socket, SOL_XDP, XDP_UMEM_REG, &region)?;
    for ring in [XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING] {
        set_int(socket, SOL_XDP, ring, c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?)?;
    }
    Ok(())
}

/// Sets the limit of octets on their way to the interface, if the process may.
pub(crate) fn force_send_buffer(socket: &impl AsFd, octets: c_int) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, octets)
}

/// Binds to a queue of an interface. `EBUSY` if another socket has it, or had it a moment ago.
pub(crate) fn bind_xsk(socket: &impl AsFd, ifindex: u32, queue: u32) -> io::Result<()> {
    let address = SockaddrXdp { family: AF_XDP as u16, flags: XDP_COPY, ifindex, queue, shared_umem: 0 };
    // SAFETY: pointer and length are those of `address`, which outlives the call.
    let rc = unsafe {
        libc::bind(
            socket.as_fd().as_raw_fd(),
            (&raw const address).cast(),
            size_of::<SockaddrXdp>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Maps the rings of a socket, each of `entries`.
pub(crate) fn map_rings(socket: &impl AsFd, entries: u32) -> io::Result<Rings> {
    let mut offsets = Offsets::default();
    let mut len = size_of::<Offsets>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` octets, the size of `offsets`, of which any octets are a value.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            SOL_XDP,
            XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<Offsets>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Rings {
        rx: Consumer::new(map_ring(socket, RingAt::Rx, offsets.rx, entries)?),
        tx: Producer::new(map_ring(socket, RingAt::Tx, offsets.tx, entries)?),
        fill: Producer::new(map_ring(socket, RingAt::Fill, offsets.fill, entries)?),
        completion: Consumer::new(map_ring(socket, RingAt::Completion, offsets.completion, entries)?),
    })
}

fn map_ring<T: Entry>(
    socket: &impl AsFd,
    at: RingAt,
    offsets: RingOffsets,
    entries: u32,
) -> io::Result<Ring<T>> {
    let len = usize::try_from(offsets.entries)
        .ok()
        .and_then(|start| start.checked_add(size_of::<T>().checked_mul(entries as usize)?))
        .ok_or(io::ErrorKind::InvalidData)?;
    Ring::new(Mapping::new(socket, at as u64, len)?, offsets, entries)
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

    const LAYOUT: RingOffsets = RingOffsets { producer: 0, consumer: 64, entries: 128, flags: 192 };

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
            (RingOffsets { producer: 4096, ..LAYOUT }, 4),
            (RingOffsets { consumer: u64::MAX, ..LAYOUT }, 4),
            (RingOffsets { consumer: 66, ..LAYOUT }, 4),
            (RingOffsets { entries: 4096 - 24, ..LAYOUT }, 4),
            (RingOffsets { entries: 129, ..LAYOUT }, 4),
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
