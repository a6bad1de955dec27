//! Payload on its way to or from memory that only a device reaches.
//!
//! A copy of a device costs some microseconds, however short it is. So octets that arrive are gathered in a
//! buffer until their message ends or the buffer is full, and octets that leave are fetched for a message at
//! once, or for a good part of it. Nothing is gathered or fetched beyond the end of a message: the program
//! may change what lies there, and a later message is to be seen behind this one.
//!
//! Gathered octets name a key and not memory. The key is looked up again when their copy begins, and the end
//! of a registration waits for copies that have begun, so that nothing touches the memory behind that end.

use std::cell::Cell;
use std::collections::VecDeque;

use ferroce_gpu as gpu;
use ferroce_proto::MemoryError;
use gpu::{Buffer, Gone, PIECE};

use crate::access::{Access, PdId};
use crate::slots::Slots;

/// Most copies of a queue pair to a device that are under way.
const DEPTH: usize = 2;
/// Octets of the first copy of a message that leaves, so that its first packets need not wait for long.
const FIRST: u64 = 64 << 10;

/// The key that octets were addressed by, and the right to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) key: u32,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
}

impl Named {
    /// Begins to copy the front of a buffer to the address `va` of the key's region, if the key still gives
    /// the right to it.
    fn begin_write(self, slots: &Slots, va: u64, buffer: &mut Buffer, len: usize) -> Result<(), MemoryError> {
        let in_use = slots.get(slots.secret().slot(self.key), self.key)?;
        let region = in_use.region()?;
        if region.pd != self.pd || !region.access.contains(self.access) {
            return Err(MemoryError::NoPermission);
        }
        let place = region.place(va, len as u64)?;
        let memory = region.backing.device().ok_or(MemoryError::Fault)?;
        memory.begin_write(place, buffer, len).map_err(|_| MemoryError::Fault)
    }
}

/// The staging of a view, made when it is first needed. A clone of the view has none.
#[derive(Default)]
pub(crate) struct Staging(Cell<Option<Box<Staged>>>);

#[derive(Default)]
struct Staged {
    inward: Inward,
    /// The octets of own requests, and those of READs of the peer, because their packets alternate.
    outward: [Option<Outward>; 2],
}

impl Clone for Staging {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Staging {
    /// Whether nothing was ever staged.
    #[inline]
    pub(crate) fn is_unused(&mut self) -> bool {
        self.0.get_mut().is_none()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Staged) -> T) -> T {
        let mut staged = self.0.take().unwrap_or_default();
        let result = act(&mut staged);
        self.0.set(Some(staged));
        result
    }

    /// Takes octets for the address `va` of a region, which is `place` in the device's memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn write(
        &self,
        slots: &Slots,
        named: Named,
        memory: gpu::Memory,
        (va, place): (u64, u64),
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.with(|staged| staged.inward.push(slots, named, memory, (va, place), data))
    }

    /// Copies all octets that were taken, and returns when they are in their places.
    ///
    /// # Errors
    /// Octets that were taken since the last call are not in their places: their region ended, or their
    /// memory is gone.
    #[cold]
    #[inline(never)]
    pub(crate) fn finish(&self, slots: &Slots) -> Result<(), MemoryError> {
        self.with(|staged| staged.inward.finish(slots))
    }

    /// Copies octets of the device's memory from `place` on, whose message goes on for `rest` octets.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(
        &self,
        named: Named,
        memory: gpu::Memory,
        place: u64,
        out: &mut [u8],
        rest: u64,
    ) -> Result<(), MemoryError> {
        self.with(|staged| {
            let [local, remote] = &mut staged.outward;
            let slot = if named.access == Access::REMOTE_READ { remote } else { local };
            let end = place.saturating_add(out.len() as u64).saturating_add(rest);
            let mut outward = match slot.take() {
                Some(known) if (known.named, known.place, known.end) == (named, place, end) => known,
                _ => Outward::new(named, place, end),
            };
            outward.fetch(memory, out).map_err(|_| MemoryError::Fault)?;
            *slot = Some(outward).filter(|outward| outward.place < outward.end);
            Ok(())
        })
    }

    /// Forgets all messages that have not ended.
    pub(crate) fn forget(&mut self) {
        self.0.get_mut().take();
    }
}

/// Octets that arrived.
#[derive(Default)]
struct Inward {
    piece: Option<Piece>,
    /// Buffers of copies that have begun, the oldest first.
    under_way: VecDeque<Buffer>,
    failed: bool,
}

/// Octets whose copy has not begun.
struct Piece {
    named: Named,
    va: u64,
    buffer: Buffer,
    filled: usize,
}

impl Inward {
    fn push(
        &mut self,
        slots: &Slots,
        named: Named,
        memory: gpu::Memory,
        (mut va, mut place): (u64, u64),
        mut data: &[u8],
    ) -> Result<(), MemoryError> {
        while !data.is_empty() {
            let goes_on =
                |piece: &Piece| piece.named == named && piece.va.wrapping_add(piece.filled as u64) == va;
            if !self.piece.as_ref().is_some_and(goes_on) {
                self.begin(slots);
                let Some(buffer) = self.buffer(memory) else {
                    return memory.write(place, data).map_err(|_| MemoryError::Fault);
                };
                self.piece = Some(Piece { named, va, buffer, filled: 0 });
            }
            let Some(piece) = &mut self.piece else { return Err(MemoryError::Fault) };
            let taken = piece.take(data).map_err(|_| MemoryError::Fault)?;
            data = data.get(taken..).unwrap_or_default();
            (va, place) = (va.wrapping_add(taken as u64), place.wrapping_add(taken as u64));
            if piece.filled == PIECE {
                self.begin(slots);
            }
        }
        if self.failed { Err(MemoryError::Fault) } else { Ok(()) }
    }

    /// A buffer to gather in: one of the device's, or that of the oldest copy, behind its end.
    fn buffer(&mut self, memory: gpu::Memory) -> Option<Buffer> {
        let fresh = if self.under_way.len() < DEPTH { memory.buffer() } else { None };
        if fresh.is_some() {
            return fresh;
        }
        let mut oldest = self.under_way.pop_front()?;
        self.failed |= oldest.wait().is_err();
        // That of another device could not be used.
        drop(oldest);
        memory.buffer()
    }

    /// Begins the copy of what was gathered.
    fn begin(&mut self, slots: &Slots) {
        let Some(Piece { named, va, mut buffer, filled }) = self.piece.take() else { return };
        match named.begin_write(slots, va, &mut buffer, filled) {
            Ok(()) => self.under_way.push_back(buffer),
            Err(_) => self.failed = true,
        }
    }

    fn finish(&mut self, slots: &Slots) -> Result<(), MemoryError> {
        self.begin(slots);
        for mut buffer in self.under_way.drain(..) {
            self.failed |= buffer.wait().is_err();
        }
        if std::mem::take(&mut self.failed) { Err(MemoryError::Fault) } else { Ok(()) }
    }
}

impl Piece {
    /// Takes as many octets as there is room for; returns their number.
    fn take(&mut self, data: &[u8]) -> Result<usize, Gone> {
        let room = self.buffer.octets()?.get_mut(self.filled..).unwrap_or_default();
        let taken = room.len().min(data.len());
        room.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        self.filled += taken;
        Ok(taken)
    }
}

/// Octets of one message that leave.
struct Outward {
    named: Named,
    /// The next octet to be handed out, in the device's memory.
    place: u64,
    /// The end of the message, or of its part that lies there.
    end: u64,
    /// The first octet that no copy was begun for.
    asked: u64,
    /// Copies that have begun.
    pieces: VecDeque<Fetched>,
}

struct Fetched {
    buffer: Buffer,
    at: usize,
    len: usize,
}

impl Outward {
    fn new(named: Named, place: u64, end: u64) -> Self {
        Self { named, place, end, asked: place, pieces: VecDeque::new() }
    }

    fn fetch(&mut self, memory: gpu::Memory, mut out: &mut [u8]) -> Result<(), Gone> {
        while !out.is_empty() {
            self.ask(memory)?;
            let Some(piece) = self.pieces.front_mut() else {
                // All buffers are in use.
                memory.read(self.place, out)?;
                self.place += out.len() as u64;
                self.asked = self.place;
                return Ok(());
            };
            let Fetched { buffer, at, len } = piece;
            let arrived = buffer.octets()?.get(*at..*len).unwrap_or_default();
            let count = arrived.len().min(out.len());
            let (part, later) = std::mem::take(&mut out).split_at_mut(count);
            part.iter_mut().zip(arrived).for_each(|(to, from)| *to = *from);
            (out, *at) = (later, *at + count);
            self.place += count as u64;
            if *at == *len {
                self.pieces.pop_front();
            }
        }
        Ok(())
    }

    /// Begins copies until two are there.
    fn ask(&mut self, memory: gpu::Memory) -> Result<(), Gone> {
        while self.pieces.len() < 2 && self.asked < self.end {
            let most = if self.asked == self.place { FIRST } else { PIECE as u64 };
            let len = most.min(self.end - self.asked);
            let Some(mut buffer) = memory.buffer() else { return Ok(()) };
            memory.begin_read(self.asked, &mut buffer, len as usize)?;
            self.pieces.push_back(Fetched { buffer, at: 0, len: len as usize });
            self.asked += len;
        }
        Ok(())
    }
}
