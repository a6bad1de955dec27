//! The header of a DDP segment, with the RDMAP control octet in it.

use core::fmt;

/// A steering tag (RFC 5041 section 2.1): names memory to the peer, as an rkey does on RoCE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stag(pub u32);

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stag({:#010x})", self.0)
    }
}

/// An RDMAP message (RFC 5040 section 4.1, figure 3; RFC 7306 section 8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write: tagged.
    Write = 0,
    /// RDMA Read Request: untagged, queue 1.
    ReadRequest = 1,
    /// RDMA Read Response: tagged.
    ReadResponse = 2,
    /// Send: untagged, queue 0, as all its variants.
    Send = 3,
    /// Send that ends a steering tag of the receiver.
    SendInvalidate = 4,
    /// Send that asks the receiver for a solicited event.
    SendSolicited = 5,
    /// Send that does both.
    SendSolicitedInvalidate = 6,
    /// Terminate: untagged, queue 2.
    Terminate = 7,
    /// Immediate data (RFC 7306 section 6): untagged, queue 0.
    Immediate = 8,
    /// Immediate data that ask for a solicited event.
    ImmediateSolicited = 9,
    /// Atomic request (RFC 7306 section 5): untagged, queue 1.
    AtomicRequest = 10,
    /// Atomic response: untagged, queue 3.
    AtomicResponse = 11,
}

impl Opcode {
    const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// Whether its segments name memory, and not a queue (RFC 5040 section 4.1).
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Whether its segments carry the steering tag to end.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Whether the receiver's completion is a solicited event.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited)
    }

    /// The queue of its untagged segments (RFC 5040 section 5.1; RFC 7306 section 9).
    pub const fn queue(self) -> Queue {
        match self {
            Self::ReadRequest | Self::AtomicRequest => Queue::READ,
            Self::Terminate => Queue::TERMINATE,
            Self::AtomicResponse => Queue::ATOMIC_RESPONSE,
            Self::Write
            | Self::ReadResponse
            | Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited => Queue::SEND,
        }
    }
}

/// A DDP queue number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue(pub u32);

impl Queue {
    /// Sends and immediate data.
    pub const SEND: Self = Self(0);
    /// Requests of reads and atomics.
    pub const READ: Self = Self(1);
    /// Terminate.
    pub const TERMINATE: Self = Self(2);
    /// Responses of atomics.
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

/// The header of a DDP segment behind the length field (RFC 5041 sections 4.2 and 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentHeader {
    /// The payload belongs to the memory that the peer named.
    Tagged {
        /// The message: a write or a read response.
        opcode: Opcode,
        /// L: the last segment of its message.
        last: bool,
        /// The memory.
        stag: Stag,
        /// TO: the address of the payload's first octet in that memory.
        offset: u64,
    },
    /// The payload belongs to a buffer of a queue.
    Untagged {
        /// The message.
        opcode: Opcode,
        /// L: the last segment of its message.
        last: bool,
        /// The steering tag to end; zero for other messages.
        invalidate: Stag,
        /// QN.
        queue: Queue,
        /// MSN: counts the messages of a queue from 1.
        msn: u32,
        /// MO: the place of the payload's first octet in the message.
        offset: u32,
    },
}

/// Why a header is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// DV is not 1 (RFC 5041 section 4.1).
    #[error("DDP version {version}, only 1 is known")]
    DdpVersion {
        /// The version.
        version: u8,
        /// The T bit: whether the error counts as one of tagged buffers.
        tagged: bool,
    },
    /// RV is not 1 (RFC 5040 section 4.1).
    #[error("RDMAP version {0}, only 1 is known")]
    RdmapVersion(u8),
    /// No message has the opcode, or not in a segment of this kind.
    #[error("RDMAP opcode {opcode}, tagged: {tagged}")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// The T bit.
        tagged: bool,
    },
}

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 0x01;
const RDMAP_VERSION_SHIFT: u32 = 6;
const OPCODE_MASK: u8 = 0x0f;

impl SegmentHeader {
    /// Octets of a tagged header, which is the shorter one.
    pub const TAGGED_LEN: usize = 14;
    /// Octets of an untagged header.
    pub const UNTAGGED_LEN: usize = 18;

    /// Octets of a header whose first octet is `control`.
    pub const fn len_of(control: u8) -> usize {
        if control & TAGGED != 0 { Self::TAGGED_LEN } else { Self::UNTAGGED_LEN }
    }

    /// Octets of this header.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged { .. } => Self::TAGGED_LEN,
            Self::Untagged { .. } => Self::UNTAGGED_LEN,
        }
    }

    /// The header of an untagged message of one segment, which ends no steering tag. `msn` counts the
    /// messages of its queue from 1.
    pub const fn untagged(opcode: Opcode, msn: u32) -> Self {
        Self::Untagged { opcode, last: true, invalidate: Stag(0), queue: opcode.queue(), msn, offset: 0 }
    }

    /// The message that the segment belongs to.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Tagged { opcode, .. } | Self::Untagged { opcode, .. } => *opcode,
        }
    }

    /// Whether the message ends with this segment.
    pub const fn is_last(&self) -> bool {
        match self {
            Self::Tagged { last, .. } | Self::Untagged { last, .. } => *last,
        }
    }

    /// Reads a header. `octets` has at least [`Self::len_of`] of them; shorter input reads as zeros behind
    /// its end.
    ///
    /// Reserved bits are ignored (RFC 5041 section 4.1).
    ///
    /// # Errors
    ///
    /// See [`SegmentError`].
    pub fn parse(octets: &[u8]) -> Result<Self, SegmentError> {
        let mut raw = [0; Self::UNTAGGED_LEN];
        raw.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        let [control, rdmap, s0, s1, s2, s3, rest @ ..] = raw;
        let tagged = control & TAGGED != 0;
        if control & VERSION_MASK != VERSION {
            return Err(SegmentError::DdpVersion { version: control & VERSION_MASK, tagged });
        }
        if rdmap >> RDMAP_VERSION_SHIFT != VERSION {
            return Err(SegmentError::RdmapVersion(rdmap >> RDMAP_VERSION_SHIFT));
        }
        let code = rdmap & OPCODE_MASK;
        let opcode = Opcode::ALL.get(usize::from(code)).copied();
        let opcode = opcode
            .filter(|opcode| opcode.is_tagged() == tagged)
            .ok_or(SegmentError::Opcode { opcode: code, tagged })?;
        let last = control & LAST != 0;
        let stag = Stag(u32::from_be_bytes([s0, s1, s2, s3]));
        let [a, b, c, d, e, f, g, h, i, j, k, l] = rest;
        Ok(if tagged {
            Self::Tagged { opcode, last, stag, offset: u64::from_be_bytes([a, b, c, d, e, f, g, h]) }
        } else {
            Self::Untagged {
                opcode,
                last,
                invalidate: stag,
                queue: Queue(u32::from_be_bytes([a, b, c, d])),
                msn: u32::from_be_bytes([e, f, g, h]),
                offset: u32::from_be_bytes([i, j, k, l]),
            }
        })
    }

    /// The octets of the header, of which [`Self::len`] count.
    pub fn emit(&self) -> [u8; Self::UNTAGGED_LEN] {
        let control = |tagged: u8, last: bool| tagged | if last { LAST } else { 0 } | VERSION;
        let rdmap = |opcode: Opcode| VERSION << RDMAP_VERSION_SHIFT | opcode as u8;
        let mut out = [0; Self::UNTAGGED_LEN];
        let mut put = |at: usize, octets: &[u8]| {
            out.iter_mut().skip(at).zip(octets).for_each(|(to, from)| *to = *from);
        };
        match *self {
            Self::Tagged { opcode, last, stag, offset } => {
                put(0, &[control(TAGGED, last), rdmap(opcode)]);
                put(2, &stag.0.to_be_bytes());
                put(6, &offset.to_be_bytes());
            }
            Self::Untagged { opcode, last, invalidate, queue, msn, offset } => {
                put(0, &[control(0, last), rdmap(opcode)]);
                put(2, &invalidate.0.to_be_bytes());
                put(6, &queue.0.to_be_bytes());
                put(10, &msn.to_be_bytes());
                put(14, &offset.to_be_bytes());
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Headers that the kernel's siw put on a wire.
    #[test]
    fn headers_of_siw() {
        let tagged =
            |opcode, stag, offset| SegmentHeader::Tagged { opcode, last: true, stag: Stag(stag), offset };
        for (octets, want) in [
            (
                &[0xc1, 0x40, 0xc0, 0xd2, 0x7e, 0, 0, 0, 0x55, 0x5a, 0x17, 0x51, 0xb1, 0x30][..],
                tagged(Opcode::Write, 0xc0d2_7e00, 0x555a_1751_b130),
            ),
            (
                &[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
                SegmentHeader::untagged(Opcode::Send, 1),
            ),
            (
                &[0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
                SegmentHeader::untagged(Opcode::ReadRequest, 1),
            ),
        ] {
            assert_eq!(SegmentHeader::parse(octets), Ok(want));
            assert_eq!(&want.emit()[..want.len()], octets);
        }
    }

    #[test]
    fn versions_and_opcodes_are_checked() {
        let parse = |control, rdmap| SegmentHeader::parse(&[control, rdmap]);
        assert_eq!(parse(0xc0, 0x40), Err(SegmentError::DdpVersion { version: 0, tagged: true }));
        assert_eq!(parse(0x42, 0x43), Err(SegmentError::DdpVersion { version: 2, tagged: false }));
        assert_eq!(parse(0x41, 0x83), Err(SegmentError::RdmapVersion(2)));
        assert_eq!(parse(0x41, 0x4c), Err(SegmentError::Opcode { opcode: 12, tagged: false }));
        // A write in an untagged segment, and a send in a tagged one.
        assert_eq!(parse(0x41, 0x40), Err(SegmentError::Opcode { opcode: 0, tagged: false }));
        assert_eq!(parse(0xc1, 0x43), Err(SegmentError::Opcode { opcode: 3, tagged: true }));
    }

    proptest! {
        #[test]
        fn what_parses_is_written_back(octets: [u8; 18]) {
            if let Ok(header) = SegmentHeader::parse(&octets) {
                let again = SegmentHeader::parse(&header.emit()[..header.len()]);
                prop_assert_eq!(again, Ok(header));
            }
        }
    }
}
