//! Scatter-gather lists.

use ferroce_wire::Lkey;

use crate::{Memory, MemoryError, Sge};

#[inline]
pub(crate) fn length(sges: &[Sge]) -> u64 {
    // The compiler makes the loop for long lists.
    if let [sge] = sges {
        return sge.length.into();
    }
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Asks whether the whole list may be read, or with `write` written. Empty SGEs need no key.
pub(crate) fn check(sges: &[Sge], write: bool, mem: &impl Memory) -> Result<(), MemoryError> {
    sges.iter().filter(|sge| sge.length > 0).try_for_each(|sge| mem.check_local(sge, write))
}

/// Copies `out.len()` octets from `offset` on out of the list's memory.
#[inline]
pub(crate) fn gather(
    sges: &[Sge],
    offset: u64,
    out: &mut [u8],
    mem: &impl Memory,
) -> Result<(), MemoryError> {
    if let ([sge], 0) = (sges, offset)
        && (1..=sge.length as usize).contains(&out.len())
    {
        let rest = u64::from(sge.length) - out.len() as u64;
        return mem.read_local(sge.lkey, sge.addr, out, rest);
    }
    gather_pieces(sges, offset, out, mem)
}

#[inline(never)]
fn gather_pieces(
    sges: &[Sge],
    offset: u64,
    mut out: &mut [u8],
    mem: &impl Memory,
) -> Result<(), MemoryError> {
    for piece in pieces(sges, offset) {
        if out.is_empty() {
            return Ok(());
        }
        let (lkey, addr, len) = piece?;
        let count = out.len().min(len as usize);
        let (part, rest) = core::mem::take(&mut out).split_at_mut(count);
        mem.read_local(lkey, addr, part, u64::from(len) - count as u64)?;
        out = rest;
    }
    if out.is_empty() { Ok(()) } else { Err(MemoryError::OutOfRange) }
}

/// Copies `data` into the list's memory, from `offset` on.
#[inline]
pub(crate) fn scatter(
    sges: &[Sge],
    offset: u64,
    data: &[u8],
    mem: &mut impl Memory,
) -> Result<(), MemoryError> {
    if let ([sge], 0) = (sges, offset)
        && (1..=sge.length as usize).contains(&data.len())
    {
        return mem.write_local(sge.lkey, sge.addr, data);
    }
    scatter_pieces(sges, offset, data, mem)
}

#[inline(never)]
fn scatter_pieces(
    sges: &[Sge],
    offset: u64,
    mut data: &[u8],
    mem: &mut impl Memory,
) -> Result<(), MemoryError> {
    for piece in pieces(sges, offset) {
        if data.is_empty() {
            return Ok(());
        }
        let (lkey, addr, len) = piece?;
        let (part, rest) = data.split_at(data.len().min(len as usize));
        mem.write_local(lkey, addr, part)?;
        data = rest;
    }
    if data.is_empty() { Ok(()) } else { Err(MemoryError::OutOfRange) }
}

/// The `len` octets of the list from `offset` on, piece by piece; fewer, where the list is shorter or wrong.
pub(crate) fn part(sges: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = Sge> {
    let mut left = len as u64;
    let pieces = pieces(sges, offset).map_while(Result::ok);
    pieces.map_while(move |(lkey, addr, length)| {
        let length = left.min(length.into()) as u32;
        left -= u64::from(length);
        (length > 0).then_some(Sge { lkey, addr, length })
    })
}

/// The list's contiguous pieces from `offset` on, none of them empty.
fn pieces(sges: &[Sge], offset: u64) -> impl Iterator<Item = Result<(Lkey, u64, u32), MemoryError>> {
    let mut skip = offset;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            return None;
        }
        let start = core::mem::take(&mut skip);
        let addr = sge.addr.checked_add(start).ok_or(MemoryError::OutOfRange);
        Some(addr.map(|addr| (sge.lkey, addr, (length - start) as u32)))
    })
}
