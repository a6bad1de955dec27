//! Pinned buffers, between which and a GPU copies run.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use ferroce_host::fork;
use parking_lot::Mutex;

use crate::driver::{Context, Entered, Handle};
use crate::{Gone, Refusal};

/// Octets of a buffer, the most of one copy.
pub const PIECE: usize = 256 << 10;
/// Buffers of a device, 32 MiB together.
const COUNT: usize = 128;

/// A buffer of [`PIECE`] octets. Dropping it gives it back to its device.
pub struct Buffer {
    pool: &'static Pool,
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

/// The buffers of a device that nobody uses, longest ago first.
pub(crate) struct Pool {
    context: Context,
    free: Mutex<VecDeque<Space>>,
}

impl Pool {
    /// Makes all buffers of a device. Later there is no time for it: the driver may wait for the program's
    /// kernels before it pins memory, and these for what a copy would deliver.
    ///
    /// # Errors
    /// The system has no memory, or the driver does not pin it.
    pub(crate) fn new(context: Context) -> Result<Self, Refusal> {
        let free = Mutex::new(make(&context.enter()?)?);
        Ok(Self { context, free })
    }

    /// Takes a buffer; `None` if all are in use.
    pub(crate) fn take(&'static self) -> Option<Buffer> {
        let space = self.free.lock().pop_front()?;
        let mut buffer = Buffer { pool: self, space: Some(space), epoch: fork::epoch() };
        // A failure of its last copy was told to the user of that, if anybody waited for it.
        let _ = buffer.wait();
        Some(buffer)
    }
}

/// Maps and pins the memory of all buffers. The memory is our own, and not the driver's, so that it stays
/// where it is if the program ends its context; a forked child has none of it.
fn make(entered: &Entered<'_>) -> Result<VecDeque<Space>, Refusal> {
    let len = COUNT * PIECE;
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
        (0..COUNT).map(space).collect::<Result<VecDeque<_>, Gone>>()
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
        // SAFETY: mapped memory that belongs to this buffer alone, and no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, PIECE) })
    }

    /// Waits for a copy that is under way.
    ///
    /// # Errors
    /// The copy failed.
    pub fn wait(&mut self) -> Result<(), Gone> {
        let context = self.pool.context;
        let space = self.space();
        if std::mem::take(&mut space.busy) {
            context.enter()?.wait(space.event)?;
        }
        Ok(())
    }

    /// Begins a copy of its first `len` octets to the device.
    pub(crate) fn begin_to(
        &mut self,
        entered: &Entered<'_>,
        stream: Handle,
        to: u64,
        len: usize,
    ) -> Result<(), Gone> {
        self.wait()?;
        let space = self.space();
        // SAFETY: the octets lie in the buffer, and nobody gets at them before `wait`.
        unsafe { entered.to_device(to, space.start.cast(), len.min(PIECE), stream) }?;
        space.busy = true;
        record(entered, space.event, stream)
    }

    /// Begins a copy of `len` octets of the device to its front.
    pub(crate) fn begin_from(
        &mut self,
        entered: &Entered<'_>,
        stream: Handle,
        from: u64,
        len: usize,
    ) -> Result<(), Gone> {
        self.wait()?;
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
            self.pool.free.lock().push_back(space);
        }
    }
}
