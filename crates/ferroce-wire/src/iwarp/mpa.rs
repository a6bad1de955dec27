//! MPA set-up frames: the request and the reply that open a stream (RFC 5044 7.1, RFC 6581 9).
//!
//! The frames come in a stream of octets, so [`parse`] accepts any prefix of one and says how much it needs.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{Bits, Fields};

/// Octets of a set-up frame before the private data (RFC 5044 7.1.1).
pub const HEADER_LEN: usize = 20;
/// Octets of the enhanced block, which the length field counts as private data (RFC 6581 9).
pub const ENHANCED_LEN: usize = 4;
/// The largest length field of a set-up frame: private data and enhanced block (RFC 5044 7.1.1).
pub const MAX_PRIVATE: usize = 512;
/// Octets of the largest set-up frame.
pub const MAX_LEN: usize = HEADER_LEN + MAX_PRIVATE;
/// Most octets of private data that we send. Kernel siw accepts 256 with the enhanced block, and computes its
/// own length in 8 bits (siw 6.1 siw_cm.c).
pub const MAX_SENT_PRIVATE: usize = 251;
/// The revision of RFC 5044.
pub const REVISION_BASIC: u8 = 1;
/// The revision of RFC 6581.
pub const REVISION_ENHANCED: u8 = 2;
/// IRD or ORD that this end does not negotiate here (RFC 6581 9.1).
pub const NOT_NEGOTIATED: u16 = 0x3fff;

/// Each key has 16 octets and no terminator (RFC 5044 7.1.1).
const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// A reserved bit in which kernel siw says that it takes FPDUs above the MSS (siw 6.1 iwarp.h).
const GSO_HINT: u8 = 0x08;
/// Reserved bits in which ferroce says that it has RFC 7306, whose operations no RFC negotiates. Kernel siw
/// repeats the reserved bits of a request in its reply, so a reply says it by another bit.
const EXTENSIONS_IN_REQUEST: u8 = 0x04;
const EXTENSIONS_IN_REPLY: u8 = 0x02;

/// The end that sends a set-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetupKind {
    /// The initiator's frame.
    Request,
    /// The responder's frame.
    Reply,
}

impl SetupKind {
    const fn key(self) -> [u8; 16] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }

    const fn extensions(self) -> u8 {
        match self {
            Self::Request => EXTENSIONS_IN_REQUEST,
            Self::Reply => EXTENSIONS_IN_REPLY,
        }
    }
}

/// The block of revision 2 before the private data (RFC 6581 9.1, 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Enhanced {
    /// The initiator sends a ready-to-receive (RTR) frame first (A).
    pub peer_to_peer: bool,
    /// A zero-length Send is possible as RTR frame (B).
    pub rtr_send: bool,
    /// A zero-length RDMA Write is possible as RTR frame (C).
    pub rtr_write: bool,
    /// A zero-length RDMA Read is possible as RTR frame (D).
    pub rtr_read: bool,
    /// Read requests that the sender of this frame serves at once: 14 bits, [`NOT_NEGOTIATED`] if it does not
    /// say.
    pub ird: u16,
    /// Read requests that the sender of this frame has outstanding: 14 bits, [`NOT_NEGOTIATED`] if it does
    /// not say.
    pub ord: u16,
}

/// A set-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetupFrame<'a> {
    /// The end that sends it.
    pub kind: SetupKind,
    /// The sender asks for markers in the FPDUs that it receives (M).
    pub markers: bool,
    /// The sender asks for CRCs in both directions (C).
    pub crc: bool,
    /// A reply refuses the connection (R). The bit is reserved in a request.
    pub rejected: bool,
    /// The sender takes FPDUs above the MSS: a reserved bit that kernel siw uses.
    pub gso_hint: bool,
    /// The sender has immediate data and atomics (RFC 7306): a reserved bit that ferroce uses.
    pub extensions: bool,
    /// Version of the protocol: 0 to [`REVISION_ENHANCED`].
    pub revision: u8,
    /// Only in revision 2 (S). In older revisions S is a reserved bit.
    pub enhanced: Option<Enhanced>,
    /// Private data without the enhanced block.
    pub private: &'a [u8],
}

/// The result of reading a prefix of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed<'a> {
    /// The frame has at least this many octets, more than are here. At most [`MAX_LEN`].
    NeedMore(usize),
    /// A whole frame, and the number of its octets.
    Done(SetupFrame<'a>, usize),
}

/// The octets are no set-up frame, or a frame cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetupError {
    /// The first 16 octets are not the key of this kind of frame.
    #[error("the first octets are not the key of an MPA set-up frame")]
    Key,
    /// The revision is unknown, so the rest of the frame may mean anything.
    #[error("MPA revision {0}, at most {REVISION_ENHANCED} is known")]
    Revision(u8),
    /// The private data, with the enhanced block, exceed [`MAX_PRIVATE`].
    #[error("{0} octets of private data, {MAX_PRIVATE} allowed")]
    PrivateTooLong(usize),
    /// The frame announces an enhanced block and is too short for it.
    #[error("{0} octets of private data have no room for the enhanced block")]
    NoRoomForEnhanced(usize),
    /// The frame to write has an enhanced block, which its revision does not know.
    #[error("MPA revision {0} has no enhanced block")]
    EnhancedInOldRevision(u8),
    /// The buffer for writing is too small.
    #[error("{have} octets of buffer, {need} needed")]
    BufferTooSmall {
        /// Octets of the frame.
        need: usize,
        /// Octets of the buffer.
        have: usize,
    },
}

/// A set-up frame without private data, as it lies on the wire (RFC 5044 7.1.1).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    key: [u8; 16],
    flags: u8, // M:1 C:1 R:1 S:1 Res:4
    revision: u8,
    private_len: U16,
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// Reads a frame of this kind from the start of `octets`.
///
/// Each prefix of a frame is [`Parsed::NeedMore`] until the frame is complete. An error shows as soon as the
/// octets contain it, and more octets do not change it. Octets behind the frame are left alone.
pub fn parse(kind: SetupKind, octets: &[u8]) -> Result<Parsed<'_>, SetupError> {
    check_key(kind, octets)?;
    let Ok((header, rest)) = Header::ref_from_prefix(octets) else { return Ok(Parsed::NeedMore(HEADER_LEN)) };
    // A receiver that does not know the revision closes the connection (RFC 5044 7.1.1).
    if header.revision > REVISION_ENHANCED {
        return Err(SetupError::Revision(header.revision));
    }
    let private_len = usize::from(header.private_len.get());
    if private_len > MAX_PRIVATE {
        return Err(SetupError::PrivateTooLong(private_len));
    }
    // Before revision 2 the bit is reserved (RFC 5044 7.1.1).
    let has_block = header.flags & ENHANCED != 0 && header.revision >= REVISION_ENHANCED;
    if has_block && private_len < ENHANCED_LEN {
        return Err(SetupError::NoRoomForEnhanced(private_len));
    }
    let len = HEADER_LEN + private_len;
    let Some((mut private, _)) = rest.split_at_checked(private_len) else { return Ok(Parsed::NeedMore(len)) };
    let mut enhanced = None;
    if has_block && let Some((block, behind)) = private.split_first_chunk::<ENHANCED_LEN>() {
        (enhanced, private) = (Some(Enhanced::default().read(*block)), behind);
    }
    let frame = SetupFrame {
        kind,
        markers: header.flags & MARKERS != 0,
        crc: header.flags & CRC != 0,
        rejected: header.flags & REJECTED != 0,
        gso_hint: header.flags & GSO_HINT != 0,
        extensions: header.flags & kind.extensions() != 0,
        revision: header.revision,
        enhanced,
        private,
    };
    Ok(Parsed::Done(frame, len))
}

/// Compares the octets that are here with the key, so that a peer of another protocol is refused at its first
/// octet.
fn check_key(kind: SetupKind, octets: &[u8]) -> Result<(), SetupError> {
    let key = kind.key();
    if key.iter().zip(octets).all(|(want, octet)| want == octet) { Ok(()) } else { Err(SetupError::Key) }
}

impl SetupFrame<'_> {
    /// Octets of this frame.
    pub const fn frame_len(&self) -> usize {
        HEADER_LEN + self.private_len()
    }

    /// The length field: private data and enhanced block.
    const fn private_len(&self) -> usize {
        let block = if self.enhanced.is_some() { ENHANCED_LEN } else { 0 };
        block + self.private.len()
    }

    /// Writes the frame to the start of `out` and returns its length. IRD and ORD lose all but 14 bits.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, SetupError> {
        let private_len = self.private_len();
        if self.enhanced.is_some() && self.revision < REVISION_ENHANCED {
            return Err(SetupError::EnhancedInOldRevision(self.revision));
        }
        let Some(length_field) = u16::try_from(private_len).ok().filter(|_| private_len <= MAX_PRIVATE)
        else {
            return Err(SetupError::PrivateTooLong(private_len));
        };
        let too_small = SetupError::BufferTooSmall { need: self.frame_len(), have: out.len() };
        let out = out.get_mut(..self.frame_len()).ok_or(too_small)?;
        let (block, private) = out.split_at_mut(self.frame_len() - self.private.len());
        private.copy_from_slice(self.private);
        let header = Header {
            key: self.kind.key(),
            flags: self.flags(),
            revision: self.revision,
            private_len: length_field.into(),
        };
        let (to, block) = block.split_at_mut(HEADER_LEN);
        to.copy_from_slice(header.as_bytes());
        if let Some(enhanced) = self.enhanced {
            block.copy_from_slice(&enhanced.write::<ENHANCED_LEN>());
        }
        Ok(self.frame_len())
    }

    fn flags(&self) -> u8 {
        let flags = [
            (self.markers, MARKERS),
            (self.crc, CRC),
            (self.rejected, REJECTED),
            (self.enhanced.is_some(), ENHANCED),
            (self.gso_hint, GSO_HINT),
            (self.extensions, self.kind.extensions()),
        ];
        flags.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit)
    }
}

impl Fields for Enhanced {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        Self {
            peer_to_peer: io.flag(self.peer_to_peer),
            rtr_send: io.flag(self.rtr_send),
            ird: io.u16(14, self.ird),
            rtr_write: io.flag(self.rtr_write),
            rtr_read: io.flag(self.rtr_read),
            ord: io.u16(14, self.ord),
        }
    }
}

#[cfg(test)]
mod tests;
