//! Pinned buffers, between which and a GPU copies run.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use ferroce_host::fork;
use parking_lot::Mutex;

use crate::device::Device;
use crate::driver::{Entered, Handle};
use crate::{Gone, Refusal};

/// Octets of a buffer, the most of one copy.
pub const PIECE: usize = 512 << 10;
/// Buffers that are made at once.
const SLAB: usize = 8;
/// Most buffers of a device.
const MOST: usize = 64;

/// A buffer of [`PIECE`] octets. Dropping it gives it back to its device.
pub struct Buffer {
    device: &'static Device,
    space: Option<Space>,
    epoch: u64,
}

/// The memory of a buffer.
struct Space {
    start: *mut u8,
    /// Tells of the end of the last copy.
    event: Handle,
    /// A copy may be under way.
    busy: bool,
}

// SAFETY: the address of memory that is never unmapped and that the owner of the value alone touches.
unsafe impl Send for Space {}
// SAFETY: a shared reference reads the memory at most, and only while no copy writes it.
unsafe impl Sync for Space {}

/// The buffers of a device that nobody uses, longest ago first.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Spare>);

#[derive(Default)]
struct Spare {
    free: VecDeque<Space>,
    made: usize,
}

impl Pool {
    /// Takes a buffer; `None` if all are in use, or no further ones can be pinned.
    pub(crate) fn take(&self, device: &'static Device) -> Option<Buffer> {
        let mut spare = self.0.lock();
        if spare.free.is_empty() && spare.made < MOST {
            let grown = device.enter().map_err(Refusal::from).and_then(|entered| self::make(&entered));
            match grown {
                Ok(spaces) => {
                    spare.made += SLAB;
                    spare.free.extend(spaces);
                }
                Err(error) => tracing::debug!(%error, "no further buffers for a GPU"),
            }
        }
        let space = spare.free.pop_front()?;
        drop(spare);
        let mut buffer = Buffer { device, space: Some(space), epoch: fork::epoch() };
        // A failure of its last copy was told to the user of that, if anybody waited for it.
        let _ = buffer.wait();
        Some(buffer)
    }

    /// Makes the first buffers.
    ///
    /// # Errors
    /// The system has no memory, or the driver does not pin it.
    pub(crate) fn fill(&self, entered: &Entered<'_>) -> Result<(), Refusal> {
        let spaces = make(entered)?;
        let mut spare = self.0.lock();
        spare.made += SLAB;
        spare.free.extend(spaces);
        Ok(())
    }
}

/// Maps and pins a slab. The memory is our own, and not the driver's, so that it stays where it is if the
/// program ends its context; a forked child has none of it.
fn make(entered: &Entered<'_>) -> Result<Vec<Space>, Refusal> {
    let len = SLAB * PIECE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Refusal::System(io::Error::last_os_error()));
    }
    // SAFETY: advice about the mapping just made.
    unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
    let made = entered.pin(start, len).and_then(|()| {
        let space = |index: usize| {
            let start = start.cast::<u8>().wrapping_add(index * PIECE);
            Ok(Space { start, event: entered.event()?, busy: false })
        };
        (0..SLAB).map(space).collect::<Result<Vec<_>, Gone>>()
    });
    if made.is_err() {
        // If the driver pinned it, it keeps the pages.
        // SAFETY: the mapping made above, which nobody uses.
        unsafe { libc::munmap(start, len) };
    }
    Ok(made?)
}

impl Buffer {
    fn space(&mut self) -> &mut Space {
        self.space.as_mut().expect("a buffer has its space until it is dropped")
    }

    /// The octets, for this process to read and write. Waits for a copy that is under way.
    ///
    /// # Errors
    /// The copy failed.
    pub fn octets(&mut self) -> Result<&mut [u8], Gone> {
        self.wait()?;
        let start = self.space().start;
        // SAFETY: mapped memory of a slab, which belongs to this buffer alone, and no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, PIECE) })
    }

    /// Waits for a copy that is under way.
    ///
    /// # Errors
    /// The copy failed.
    pub fn wait(&mut self) -> Result<(), Gone> {
        let device = self.device;
        let space = self.space();
        if std::mem::take(&mut space.busy) {
            device.enter()?.wait(space.event)?;
        }
        Ok(())
    }

    /// Begins a copy of its first `len` octets to the device.
    pub(crate) fn begin_to(&mut self, entered: &Entered<'_>, to: u64, len: usize) -> Result<(), Gone> {
        self.wait()?;
        let stream = self.device.inward();
        let space = self.space();
        // SAFETY: the octets lie in the buffer, and nobody gets at them before `wait`.
        unsafe { entered.to_device(to, space.start.cast(), len.min(PIECE), stream) }?;
        space.busy = true;
        record(entered, space.event, stream)
    }

    /// Begins a copy of `len` octets of the device to its front.
    pub(crate) fn begin_from(&mut self, entered: &Entered<'_>, from: u64, len: usize) -> Result<(), Gone> {
        self.wait()?;
        let stream = self.device.outward();
        let space = self.space();
        // SAFETY: as in `begin_to`.
        unsafe { entered.to_host(space.start.cast(), from, len.min(PIECE), stream) }?;
        space.busy = true;
        record(entered, space.event, stream)
    }
}

/// Lets the event tell of the end of the copy that was begun last.
fn record(entered: &Entered<'_>, event: Handle, stream: Handle) -> Result<(), Gone> {
    entered.record(event, stream).inspect_err(|_| {
        // Nothing else tells of the end of the copy.
        let _ = entered.wait_for_stream(stream);
    })
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A forked child has none of the memory, and its parent's locks are nobody's.
        if self.epoch == fork::epoch()
            && let Some(space) = self.space.take()
        {
            self.device.pool().0.lock().free.push_back(space);
        }
    }
}
