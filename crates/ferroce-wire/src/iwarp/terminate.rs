//! Terminate: the last message of a stream that ends in error.

use super::SegmentHeader;

/// The layer that found an error (RFC 5040 section 4.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Layer {
    /// RDMAP.
    Rdmap = 0,
    /// DDP.
    Ddp = 1,
    /// MPA, as the lower layer.
    Mpa = 2,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident: $layer:ident $kind:literal $code:literal;)*) => {
        /// Why a stream ended: layer, error type and error code (RFC 5040 section 4.8, RFC 5041 section 7,
        /// RFC 5044 section 8, RFC 6581 section 8, RFC 7306 section 10).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Cause {
            $($(#[$doc])* $name,)*
        }

        impl Cause {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Layer, error type and error code.
            pub const fn codes(self) -> (Layer, u8, u8) {
                match self {
                    $(Self::$name => (Layer::$layer, $kind, $code),)*
                }
            }
        }
    };
}

causes! {
    /// A local error, as of memory that went away.
    LocalCatastrophic: Rdmap 0 0x00;
    /// A read names memory that is not there.
    ReadStag: Rdmap 1 0x00;
    /// A read leaves its memory.
    ReadBounds: Rdmap 1 0x01;
    /// The memory does not grant the access, or the queue pair does not.
    AccessRights: Rdmap 1 0x02;
    /// A read names memory of another protection domain.
    ReadStagOfOther: Rdmap 1 0x03;
    /// The addresses of a read pass the end of the address space.
    ReadWrap: Rdmap 1 0x04;
    /// A steering tag cannot be invalidated.
    CannotInvalidate: Rdmap 1 0x09;
    /// An atomic names an address that is no multiple of 8, or a mask that is not supported.
    RemoteProtection: Rdmap 1 0xff;
    /// The RDMAP version is unknown.
    RdmapVersion: Rdmap 2 0x05;
    /// The opcode is unknown, or the message is not expected.
    UnexpectedOpcode: Rdmap 2 0x06;
    /// More requests are outstanding than agreed on.
    StreamCatastrophic: Rdmap 2 0x07;
    /// Another error of the peer's operation.
    RemoteOperation: Rdmap 2 0xff;
    /// A tagged segment names memory that is not there, or memory that does not grant the access.
    TaggedStag: Ddp 1 0x00;
    /// A tagged segment leaves its memory.
    TaggedBounds: Ddp 1 0x01;
    /// A tagged segment names memory of another protection domain.
    TaggedStagOfOther: Ddp 1 0x02;
    /// The addresses of a tagged segment pass the end of the address space.
    TaggedWrap: Ddp 1 0x03;
    /// The DDP version of a tagged segment is unknown.
    TaggedVersion: Ddp 1 0x04;
    /// The queue number is not the message's.
    Queue: Ddp 2 0x01;
    /// No receive work request is posted.
    NoBuffer: Ddp 2 0x02;
    /// The message sequence number is not the next one.
    MsnRange: Ddp 2 0x03;
    /// The message offset is not the next one.
    MessageOffset: Ddp 2 0x04;
    /// The message is longer than its buffer.
    TooLong: Ddp 2 0x05;
    /// The DDP version of an untagged segment is unknown.
    UntaggedVersion: Ddp 2 0x06;
    /// The CRC is wrong.
    Crc: Mpa 0 0x02;
    /// A marker and a length field contradict each other, or the length is below that of a header.
    Framing: Mpa 0 0x03;
    /// A frame of the set-up is wrong.
    SetUp: Mpa 0 0x04;
    /// The peer wants to have more reads outstanding than we serve.
    InsufficientIrd: Mpa 0 0x06;
    /// The two ends have no ready-to-receive frame in common.
    NoMatchingRtr: Mpa 0 0x07;
}

/// A Terminate message (RFC 5040 section 4.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// The layer, as it came: a later RFC may add some.
    pub layer: u8,
    /// The error type.
    pub kind: u8,
    /// The error code.
    pub code: u8,
}

impl Terminate {
    /// Octets of the longest message: control, length of the segment, an untagged header, a read request.
    pub const MAX_LEN: usize = 4 + 2 + SegmentHeader::UNTAGGED_LEN + super::ReadRequest::LEN;
    /// M: the length of the segment is there.
    const LENGTH: u8 = 0x80;
    /// D: the DDP header is there.
    const DDP: u8 = 0x40;
    /// R: the RDMAP header is there.
    const RDMAP: u8 = 0x20;

    /// Reads the part that says why. siw of Linux 6.1 on a little-endian host turns the nibbles of the first
    /// octet round, and the flags to the low bits of the third; that is undone here. Nothing but a log
    /// depends on it.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let [first, code, flags, ..] = *octets else { return None };
        let turned = flags & 0x07 != 0 && flags & (Self::LENGTH | Self::DDP | Self::RDMAP) == 0;
        let first = if turned { first.rotate_left(4) } else { first };
        Some(Self { layer: first >> 4, kind: first & 0xf, code })
    }

    /// Writes a message about `cause` to `out`. `segment` is the header of the segment in question, with its
    /// ULPDU length, and `request` the read request in it. Returns the octets written.
    pub fn emit(
        cause: Cause,
        segment: Option<(u16, &SegmentHeader)>,
        request: Option<&[u8]>,
        out: &mut [u8; Self::MAX_LEN],
    ) -> usize {
        let (layer, kind, code) = cause.codes();
        let mut length = 0;
        let mut put = |octets: &[u8]| {
            out.iter_mut().skip(length).zip(octets).for_each(|(to, from)| *to = *from);
            length += octets.len();
        };
        let request = request.filter(|request| segment.is_some() && request.len() == super::ReadRequest::LEN);
        let flags = if segment.is_some() { Self::LENGTH | Self::DDP } else { 0 };
        let flags = flags | if request.is_some() { Self::RDMAP } else { 0 };
        put(&[(layer as u8) << 4 | kind, code, flags, 0]);
        if let Some((ulpdu, header)) = segment {
            put(&ulpdu.to_be_bytes());
            let octets = header.emit();
            put(octets.get(..header.len()).unwrap_or_default());
        }
        if let Some(request) = request {
            put(request);
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Opcode, Stag};
    use super::*;

    #[test]
    fn every_cause_is_written_and_read() {
        for cause in Cause::ALL {
            let mut out = [0; Terminate::MAX_LEN];
            let header =
                SegmentHeader::Tagged { opcode: Opcode::Write, last: true, stag: Stag(1), offset: 2 };
            let length = Terminate::emit(*cause, Some((100, &header)), None, &mut out);
            assert_eq!(length, 4 + 2 + SegmentHeader::TAGGED_LEN);
            let (layer, kind, code) = cause.codes();
            assert_eq!(Terminate::parse(&out[..length]), Some(Terminate { layer: layer as u8, kind, code }));
        }
    }

    #[test]
    fn a_terminate_of_siw_is_turned_round() {
        let siw = [0x21, 0x05, 0x03, 0x00];
        assert_eq!(Terminate::parse(&siw), Some(Terminate { layer: 1, kind: 2, code: 5 }));
        assert_eq!(Terminate::parse(&[0x12, 0x05, 0xc0, 0]), Some(Terminate { layer: 1, kind: 2, code: 5 }));
        assert_eq!(Terminate::parse(&[0x12, 0x05]), None);
    }
}
