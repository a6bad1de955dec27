//! Memory of a GPU, and the copies to and from it.

use std::fmt;
use std::sync::OnceLock;

use ferroce_host::environment;

use crate::buffer::{Buffer, PIECE};
use crate::device::Device;
use crate::driver::{self, CONCURRENT_MANAGED_ACCESS, Described, Driver, KIND_ARRAY, KIND_DEVICE};
use crate::{Gone, Refusal};

/// Memory of a GPU: which device reaches it, and which allocation it was when it was found.
#[derive(Clone, Copy)]
pub struct Memory {
    device: &'static Device,
    /// The only allocation that the range lay in; none for a range of several mappings.
    allocation: Option<u64>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("allocation", &self.allocation).finish_non_exhaustive()
    }
}

/// Whether `FERROCE_GPU=off` is set.
pub fn is_off() -> bool {
    static OFF: OnceLock<bool> = OnceLock::new();
    *OFF.get_or_init(|| environment::variable("FERROCE_GPU").is_some_and(|value| value == "off"))
}

/// The GPU's memory at these `len` octets, more than none; `None` if the processor reaches them itself: host
/// memory, pinned or not, and managed memory of a device that permits it at any time.
///
/// # Errors
/// See [`Refusal`].
#[inline(never)]
pub fn find(addr: u64, len: u64) -> Result<Option<Memory>, Refusal> {
    let Some(driver) = driver::loaded().filter(|_| len > 0 && !is_off()) else { return Ok(None) };
    let Some(first) = driver.describe(addr) else { return Ok(None) };
    if first.managed {
        let concurrent = driver.attribute(CONCURRENT_MANAGED_ACCESS, first.ordinal)?;
        return if concurrent == 0 { Err(Refusal::Managed) } else { Ok(None) };
    }
    match first.kind {
        KIND_DEVICE => {}
        KIND_ARRAY => return Err(Refusal::Array),
        _ => return Ok(None),
    }
    let is_whole = covers(driver, &first, addr, len)?;
    let allocation = Some(first.allocation).filter(|&allocation| is_whole && allocation != 0);
    Ok(Some(Memory { device: Device::of(driver, &first)?, allocation }))
}

/// Whether the mapping at `addr` has all `len` octets; if not, further mappings of the same device follow it
/// without a hole. Nothing needs to be behind the last one on the page with which the range ends: NCCL
/// rounds, and cards pin whole pages.
fn covers(driver: &Driver, first: &Described, addr: u64, len: u64) -> Result<bool, Refusal> {
    const PAGE: u64 = 4096;
    let end = addr.checked_add(len).ok_or(Refusal::OutOfRange)?;
    let end_of = |part: &Described| part.start.saturating_add(part.len);
    let mut at = end_of(first);
    let mut is_whole = true;
    while at < end {
        let Some(next) = driver.describe(at).filter(|next| next.kind == KIND_DEVICE) else {
            return if end % PAGE == 0 && end - at < PAGE { Ok(is_whole) } else { Err(Refusal::OutOfRange) };
        };
        if next.ordinal != first.ordinal || end_of(&next) <= at {
            return Err(Refusal::OutOfRange);
        }
        is_whole = false;
        at = end_of(&next);
    }
    Ok(is_whole)
}

impl Memory {
    /// A buffer for copies to or from it; `None` if all are in use.
    pub fn buffer(&self) -> Option<Buffer> {
        self.device.pool().take()
    }

    /// Begins to copy the first `len` octets of a buffer to the address `to`. Copies to one device are made
    /// in the order in which they began.
    ///
    /// # Errors
    /// The memory was freed, or the driver failed: nothing is copied.
    pub fn begin_write(&self, to: u64, buffer: &mut Buffer, len: usize) -> Result<(), Gone> {
        let begun = self.device.enter().and_then(|entered| {
            self.verify(to, len)?;
            buffer.begin_to(&entered, self.device.inward(), to, len)
        });
        self.noted(begun)
    }

    /// Begins to copy `len` octets at the address `from` to the front of a buffer.
    ///
    /// # Errors
    /// As [`Self::begin_write`].
    pub fn begin_read(&self, from: u64, buffer: &mut Buffer, len: usize) -> Result<(), Gone> {
        let begun = self.device.enter().and_then(|entered| {
            self.verify(from, len)?;
            buffer.begin_from(&entered, self.device.outward(), from, len)
        });
        self.noted(begun)
    }

    /// Copies octets to the address `to`, and returns when they are there.
    ///
    /// # Errors
    /// As [`Self::begin_write`]; a part may be written.
    #[cold]
    #[inline(never)]
    pub fn write(&self, to: u64, octets: &[u8]) -> Result<(), Gone> {
        self.device.with_reserve(|buffer| {
            for (at, part) in (to..).step_by(PIECE).zip(octets.chunks(PIECE)) {
                self.store(at, part, buffer)?;
            }
            Ok(())
        })
    }

    /// Copies the octets at the address `from`.
    ///
    /// # Errors
    /// As [`Self::begin_write`]; `out` holds anything then.
    #[cold]
    #[inline(never)]
    pub fn read(&self, from: u64, out: &mut [u8]) -> Result<(), Gone> {
        self.device.with_reserve(|buffer| {
            for (at, part) in (from..).step_by(PIECE).zip(out.chunks_mut(PIECE)) {
                self.load(at, part, buffer)?;
            }
            Ok(())
        })
    }

    /// Replaces the eight octets at an address, in the machine's order, by what `change` makes of them.
    /// Returns what was there. Atomic with respect to other calls of this for the device, and not to its
    /// kernels.
    ///
    /// # Errors
    /// As [`Self::begin_write`].
    #[cold]
    #[inline(never)]
    pub fn update(&self, at: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Gone> {
        self.device.with_reserve(|buffer| {
            let mut word = [0; 8];
            self.load(at, &mut word, buffer)?;
            let before = u64::from_ne_bytes(word);
            let after = change(before);
            if after != before {
                self.store(at, &after.to_ne_bytes(), buffer)?;
            }
            Ok(before)
        })
    }

    /// Waits until no copy to or from the device is under way.
    pub fn drain(&self) {
        self.device.drain();
    }

    fn store(&self, to: u64, octets: &[u8], buffer: &mut Buffer) -> Result<(), Gone> {
        if let Some(front) = buffer.octets()?.get_mut(..octets.len()) {
            front.copy_from_slice(octets);
        }
        self.begin_write(to, buffer, octets.len())?;
        buffer.wait()
    }

    fn load(&self, from: u64, out: &mut [u8], buffer: &mut Buffer) -> Result<(), Gone> {
        self.begin_read(from, buffer, out.len())?;
        if let Some(front) = buffer.octets()?.get(..out.len()) {
            out.copy_from_slice(front);
        }
        Ok(())
    }

    /// Whether the octets are still the device's, and of the allocation that was found if it was one: a
    /// failed copy could cost the program its context. A copy is shorter than a mapping, so it touches none
    /// but those of its first and its last octet. Called inside the context, which some drivers need to
    /// answer.
    fn verify(&self, addr: u64, len: usize) -> Result<(), Gone> {
        let last = addr.saturating_add((len as u64).saturating_sub(1));
        let describe = |addr| self.device.describe(addr).filter(|now| now.kind == KIND_DEVICE);
        let stays = match self.allocation {
            Some(known) => describe(addr)
                .is_some_and(|now| now.allocation == known && last < now.start.saturating_add(now.len)),
            None => describe(addr).and(describe(last)).is_some(),
        };
        if stays { Ok(()) } else { Err(Gone { call: "cuPointerGetAttributes", code: 0 }) }
    }

    /// Notes a failure of the driver: streams of a context that has ended serve no later registration.
    fn noted<T>(&self, result: Result<T, Gone>) -> Result<T, Gone> {
        result.inspect_err(|error| {
            tracing::debug!(%error, "no copy to or from a GPU");
            if error.code != 0 {
                self.device.end();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_no_memory_is_that_of_a_gpu() {
        let octets = [0_u8; 64];
        let addr = octets.as_ptr().expose_provenance() as u64;
        for (addr, len) in [(addr, 64), (addr, 0), (0, 1), (u64::MAX, 1), (u64::MAX - 7, u64::MAX)] {
            assert!(matches!(find(addr, len), Ok(None)), "{addr:#x} {len}");
        }
    }
}
