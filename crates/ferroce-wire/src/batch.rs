//! A batch of packets to send.

use core::fmt;

use crate::icrc::Starts;
use crate::opcode::ICRC_LEN;
use crate::packet::Layout;
use crate::{Flow, Packet, WireError};

/// The limits of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimits {
    /// Maximum of packets, at least 1; Linux sends at most 64 or 128 segments in one call, by version.
    pub max_segments: usize,
    /// Whether the kernel splits the batch (`UDP_SEGMENT`): segment `k` then leaves with IPv4 ID `k`.
    /// Otherwise each packet is sent separately, with ID 0.
    pub gso: bool,
}

/// A packet was not added to the batch. The batch is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError<E> {
    /// The batch is full, or the packet does not match those before it: send the batch and push again. `fill`
    /// was not called.
    #[error("the batch takes no more packets of this kind")]
    Full,
    /// The caller's `fill` could not provide the payload.
    #[error("the payload could not be read")]
    Fill(E),
    /// The packet cannot be written in any batch.
    #[error(transparent)]
    Wire(WireError),
}

/// Packets of one flow to one destination slot (DestQP >> 16), one after the other in the caller's buffer,
/// complete with ICRC: the octets that were hashed are the octets that are sent.
///
/// All segments are equally long but the last, which may be shorter and closes the batch; so one `sendmsg`
/// with `UDP_SEGMENT` can take it.
pub struct TxBatch<'b> {
    buf: &'b mut [u8],
    limits: BatchLimits,
    /// Octets written.
    filled: usize,
    first: Option<First>,
    segments: usize,
    /// Packets leave with an ICRC of zero.
    unsealed: bool,
    starts: Kept<'b>,
}

/// The batch's own cache, or the caller's, which is kept for the next batch.
#[expect(clippy::large_enum_variant, reason = "no allocation here, and one batch is all there is of it")]
enum Kept<'b> {
    Own(Starts),
    Lent(&'b mut Starts),
}

impl Kept<'_> {
    fn get(&mut self) -> &mut Starts {
        match self {
            Self::Own(starts) => starts,
            Self::Lent(starts) => starts,
        }
    }
}

/// The properties that the first packet sets for the others.
#[derive(Debug)]
struct First {
    flow: Flow,
    slot: u32,
    segment_size: usize,
    /// The last packet was shorter: the batch takes no more.
    closed: bool,
}

/// Takes packets that are to be sent.
pub trait Sink {
    /// Adds a packet: headers of `head`, `payload_len` octets that `fill` writes, pad, ICRC. The payload in
    /// `head` is ignored.
    ///
    /// # Errors
    ///
    /// Returns a [`PushError`]; the sink is then unchanged. A packet that exceeds an empty buffer gives
    /// [`WireError::BufferTooSmall`], so the caller can always resolve `Full` by sending what is there.
    fn push<E>(
        &mut self,
        flow: &Flow,
        head: &Packet<'_>,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), PushError<E>>;

    /// Octets that a packet may have, with its headers and ICRC. A packet that is not as those before it may
    /// be refused all the same.
    fn room(&self) -> usize;
}

/// Writes payload, pad, and an ICRC of zero into `body`, which is the rest of a packet behind its headers.
#[inline(always)]
fn write<E>(
    layout: &Layout,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    body: &mut [u8],
) -> Result<(), PushError<E>> {
    let (payload, tail) = body.split_at_mut_checked(layout.payload_len).ok_or(PushError::Full)?;
    fill(payload).map_err(PushError::Fill)?;
    // Pad and ICRC: 4 to 7 octets, for which a call to clear memory costs more than the rest.
    if let Some((pad, icrc)) = tail.split_last_chunk_mut::<ICRC_LEN>() {
        *icrc = [0; ICRC_LEN];
        if !pad.is_empty() {
            pad.fill(0);
        }
    }
    Ok(())
}

/// A single packet, for a path that cannot corrupt it: its ICRC is zero.
#[derive(Debug)]
pub struct Slot<'b> {
    buf: &'b mut [u8],
    filled: usize,
}

impl<'b> Slot<'b> {
    /// Creates an empty one over a buffer.
    pub const fn new(buf: &'b mut [u8]) -> Self {
        Self { buf, filled: 0 }
    }

    /// The packet, BTH to ICRC; empty before [`Sink::push`].
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(..self.filled).unwrap_or_default()
    }
}

impl Sink for Slot<'_> {
    #[inline(always)]
    fn push<E>(
        &mut self,
        _: &Flow,
        head: &Packet<'_>,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        let layout = head.layout(payload_len).map_err(PushError::Wire)?;
        let (need, have) = (layout.wire_len, self.buf.len());
        let out = self.buf.get_mut(..need).filter(|_| self.filled == 0);
        let too_small = || match self.filled {
            0 => PushError::Wire(WireError::BufferTooSmall { need, have }),
            _ => PushError::Full,
        };
        let body = head.emit_here(&layout, out.ok_or_else(too_small)?).map_err(PushError::Wire)?;
        write(&layout, fill, body)?;
        self.filled = need;
        Ok(())
    }

    #[inline]
    fn room(&self) -> usize {
        if self.filled == 0 { self.buf.len() } else { 0 }
    }
}

impl<'b> TxBatch<'b> {
    /// Creates an empty batch over a buffer. A buffer of 64 KiB holds as much as one system call can send.
    pub const fn new(buf: &'b mut [u8], limits: BatchLimits) -> Self {
        Self {
            buf,
            limits,
            filled: 0,
            first: None,
            segments: 0,
            unsealed: false,
            starts: Kept::Own(Starts::new()),
        }
    }

    /// As [`TxBatch::new`], with the CRCs that earlier batches cached.
    pub const fn with_starts(buf: &'b mut [u8], limits: BatchLimits, starts: &'b mut Starts) -> Self {
        Self { buf, limits, filled: 0, first: None, segments: 0, unsealed: false, starts: Kept::Lent(starts) }
    }

    /// Adds a packet that `write` writes, without its ICRC. `flip` is as for [`Self::push_copy`].
    #[inline]
    fn add<E>(
        &mut self,
        flow: &Flow,
        slot: u32,
        wire_len: usize,
        flip: Option<(u16, u8)>,
        write: impl FnOnce(&mut [u8]) -> Result<(), PushError<E>>,
    ) -> Result<(), PushError<E>> {
        if !self.takes(flow, slot, wire_len) {
            return Err(PushError::Full);
        }
        let have = self.buf.len();
        let Some(segment) = self.buf.get_mut(self.filled..).and_then(|free| free.get_mut(..wire_len)) else {
            return Err(match self.filled {
                0 => PushError::Wire(WireError::BufferTooSmall { need: wire_len, have }),
                _ => PushError::Full,
            });
        };
        write(segment)?;
        let first =
            self.first.get_or_insert(First { flow: *flow, slot, segment_size: wire_len, closed: false });
        // The packet is hashed here because it is still in the first-level cache.
        if !self.unsealed {
            self.starts.get().of(flow, wire_len).seal(ip_id(self.limits.gso, self.segments), segment);
        }
        if let Some((octet, bit)) = flip
            && let Some(octet) = segment.get_mut(usize::from(octet))
        {
            *octet ^= 1 << (bit & 7);
        }
        first.closed = wire_len < first.segment_size;
        self.filled += wire_len;
        self.segments += 1;
        Ok(())
    }

    /// Whether a packet of this length matches those before it.
    fn takes(&self, flow: &Flow, slot: u32, wire_len: usize) -> bool {
        self.first.as_ref().is_none_or(|first| {
            !first.closed
                && wire_len <= first.segment_size
                && slot == first.slot
                && self.segments < self.limits.max_segments
                && *flow == first.flow
        })
    }

    /// Adds a packet that was built before, from BTH to ICRC, and computes its ICRC anew, because its place
    /// decides the identification that it leaves with. `flip` is a bit that is wrong afterwards: the octet,
    /// and the bit from the lowest.
    ///
    /// # Errors
    ///
    /// As [`Sink::push`]; [`WireError::Truncated`] for less than a BTH with an ICRC.
    pub fn push_copy(
        &mut self,
        flow: &Flow,
        packet: &[u8],
        flip: Option<(u16, u8)>,
    ) -> Result<(), PushError<core::convert::Infallible>> {
        let [_, _, _, _, _, slot, _, _, _, _, _, _, _, _, _, _, ..] = packet else {
            return Err(PushError::Wire(WireError::Truncated { need: 16, have: packet.len() }));
        };
        self.add(flow, (*slot).into(), packet.len(), flip, |segment| {
            segment.copy_from_slice(packet);
            Ok(())
        })
    }

    /// Packets are added with an ICRC of zero from now on, for a path that cannot corrupt them.
    pub const fn leave_icrc_out(&mut self) {
        self.unsealed = true;
    }

    /// The flow of the packets; `None` while the batch is empty.
    pub fn flow(&self) -> Option<&Flow> {
        self.first.as_ref().map(|first| &first.flow)
    }

    /// Octets of each packet except the last, BTH to ICRC; 0 while the batch is empty.
    pub fn segment_size(&self) -> usize {
        self.first.as_ref().map_or(0, |first| first.segment_size)
    }

    /// The packets in order, each BTH to ICRC.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator {
        self.bytes().chunks(self.segment_size().max(1))
    }

    /// All packets, one after the other.
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(..self.filled).unwrap_or_default()
    }

    /// The number of packets.
    pub const fn len(&self) -> usize {
        self.segments
    }

    /// Whether there is no packet.
    pub const fn is_empty(&self) -> bool {
        self.segments == 0
    }

    /// The limits of the batch.
    pub const fn limits(&self) -> BatchLimits {
        self.limits
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.filled = 0;
        self.segments = 0;
        self.first = None;
    }

    /// Recomputes the ICRCs because the kernel refused to split the batch: packets are then sent one by one,
    /// all with ID 0. Later packets are sealed in the same way.
    pub fn reseal_without_gso(&mut self) {
        let resealed = core::mem::replace(&mut self.limits.gso, false);
        let (Some(first), true) = (&self.first, resealed && self.segments > 1) else { return };
        let bytes = self.buf.get_mut(..self.filled).unwrap_or_default();
        // The first packet already has ID 0.
        for segment in bytes.chunks_mut(first.segment_size.max(ICRC_LEN)).skip(1) {
            self.starts.get().of(&first.flow, segment.len()).seal(0, segment);
        }
    }
}

impl Sink for TxBatch<'_> {
    #[inline]
    fn push<E>(
        &mut self,
        flow: &Flow,
        head: &Packet<'_>,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        let layout = head.layout(payload_len).map_err(PushError::Wire)?;
        let slot = head.bth.dest_qp.value() >> 16;
        self.add(flow, slot, layout.wire_len, None, |segment| {
            write(&layout, fill, head.emit_by(&layout, segment).map_err(PushError::Wire)?)
        })
    }

    #[inline]
    fn room(&self) -> usize {
        self.buf.len().saturating_sub(self.filled)
    }
}

impl fmt::Debug for TxBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxBatch")
            .field("flow", &self.flow())
            .field("segments", &self.segments)
            .field("segment_size", &self.segment_size())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The IPv4 ID with which segment `index` leaves. Over IPv6 it is not hashed.
const fn ip_id(gso: bool, index: usize) -> u16 {
    if gso { index as u16 } else { 0 }
}

#[cfg(test)]
mod tests;
