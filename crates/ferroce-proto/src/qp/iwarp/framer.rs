//! From the octets of a TCP stream to the segments of its FPDUs (RFC 5044 section 7).

use ferroce_wire::iwarp::crc::Crc32c;
use ferroce_wire::iwarp::{
    CRC_LEN, Cause, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, SegmentError, SegmentHeader, pad,
};

/// Octets of the length field and the longest header.
const HEAD: usize = LENGTH_LEN + SegmentHeader::UNTAGGED_LEN;

/// Octets of the least ULPDU whose payload is worth a receive call of its own.
const LARGE: u16 = 16 << 10;

/// Finds FPDUs in a stream, whose octets come in pieces of any size. It keeps no payload.
#[derive(Debug)]
pub(super) struct Framer {
    checks_crc: bool,
    /// Octets until the next marker; `None` if there are none.
    until_marker: Option<u64>,
    marker: [u8; MARKER_LEN],
    marker_len: usize,
    /// Octets of this FPDU that came, markers in it among them.
    in_fpdu: u32,
    stage: Stage,
    head: [u8; HEAD],
    head_len: usize,
    tail: [u8; 3 + CRC_LEN],
    tail_len: usize,
    crc: Crc32c,
    /// Octets of the ULPDU.
    ulpdu: u16,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Head,
    Payload { left: u16 },
    Tail,
}

/// The rest of a large FPDU, or of nothing behind one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rest {
    /// Octets of payload.
    pub payload: usize,
    /// All octets.
    pub octets: usize,
    /// Octets of length field and header of the next FPDU, if that is like this one.
    pub next_head: usize,
}

/// A part of an FPDU.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// The header of a segment, and the length of its payload in octets.
    Begin(SegmentHeader, u16),
    /// Payload, in order.
    Payload(&'a [u8]),
    /// The segment is whole, and its CRC is right.
    End,
}

impl Framer {
    /// Begins at the first octet behind the set-up.
    pub const fn new(checks_crc: bool, markers: bool) -> Self {
        Self {
            checks_crc,
            // The first marker comes at once (RFC 5044 section 4.3).
            until_marker: if markers { Some(0) } else { None },
            marker: [0; MARKER_LEN],
            marker_len: 0,
            in_fpdu: 0,
            stage: Stage::Head,
            head: [0; HEAD],
            head_len: 0,
            tail: [0; 3 + CRC_LEN],
            tail_len: 0,
            crc: Crc32c::new(),
            ulpdu: 0,
        }
    }

    /// The octets of the ULPDU of the segment that began last.
    pub const fn ulpdu(&self) -> u16 {
        self.ulpdu
    }

    /// Whether an FPDU began and is not complete.
    pub const fn is_inside(&self) -> bool {
        self.in_fpdu > 0
    }

    /// The octets to come of this FPDU, if it is large and without CRC and markers. At the end of such an
    /// FPDU, before the next one begins, there are none.
    pub fn rest_of_large(&self) -> Option<Rest> {
        if self.ulpdu < LARGE || self.checks_crc || self.until_marker.is_some() {
            return None;
        }
        let (payload, octets) = match self.stage {
            Stage::Head if self.head_len == 0 => (0, 0),
            Stage::Head => return None,
            Stage::Payload { left } => (usize::from(left), usize::from(left) + self.pad() + CRC_LEN),
            Stage::Tail => (0, (self.pad() + CRC_LEN).saturating_sub(self.tail_len)),
        };
        let [_, _, control, ..] = self.head;
        Some(Rest { payload, octets, next_head: LENGTH_LEN + SegmentHeader::len_of(control) })
    }

    /// So many octets of the payload to come, at most what [`Self::rest_of_large`] said, are in their place.
    pub fn placed(&mut self, octets: usize) {
        if let Stage::Payload { left } = self.stage {
            self.in_fpdu += octets as u32;
            let left = left.saturating_sub(octets as u16);
            self.stage = if left == 0 { Stage::Tail } else { Stage::Payload { left } };
        }
    }

    /// Takes the next part of the stream from the front of `octets`. `None`: more octets are needed.
    ///
    /// # Errors
    ///
    /// The peer broke the protocol, and the stream ends with this cause.
    pub fn next<'a>(&mut self, octets: &mut &'a [u8]) -> Result<Option<Part<'a>>, Cause> {
        loop {
            if self.until_marker == Some(0) {
                if !self.take_marker(octets)? {
                    return Ok(None);
                }
                continue;
            }
            let want = match self.stage {
                Stage::Head => self.head_wanted() - self.head_len,
                Stage::Payload { left } => usize::from(left),
                Stage::Tail => self.tail_wanted() - self.tail_len,
            };
            let piece = self.take(octets, want);
            if piece.is_empty() {
                return Ok(None);
            }
            if let Some(part) = self.advance(piece)? {
                return Ok(Some(part));
            }
        }
    }

    /// Goes on with octets of the present stage.
    fn advance<'a>(&mut self, piece: &'a [u8]) -> Result<Option<Part<'a>>, Cause> {
        match self.stage {
            Stage::Head => {
                self.note(piece);
                append(&mut self.head, &mut self.head_len, piece);
                if self.head_len < self.head_wanted() { Ok(None) } else { self.begin().map(Some) }
            }
            Stage::Payload { left } => {
                self.note(piece);
                let left = left.saturating_sub(piece.len() as u16);
                self.stage = if left == 0 { Stage::Tail } else { Stage::Payload { left } };
                Ok(Some(Part::Payload(piece)))
            }
            Stage::Tail => {
                // The pad counts for the CRC, the CRC itself does not (RFC 5044 section 4.4).
                match self.tail_len < self.pad() {
                    true => self.note(piece),
                    false => self.in_fpdu += piece.len() as u32,
                }
                append(&mut self.tail, &mut self.tail_len, piece);
                if self.tail_len < self.pad() + CRC_LEN { Ok(None) } else { self.finish().map(Some) }
            }
        }
    }

    /// Takes at most `want` octets, none behind the place of a marker.
    fn take<'a>(&mut self, octets: &mut &'a [u8], want: usize) -> &'a [u8] {
        let most = self.until_marker.map_or(want, |until| want.min(until as usize));
        let (piece, rest) = octets.split_at(most.min(octets.len()));
        *octets = rest;
        if let Some(until) = &mut self.until_marker {
            *until -= piece.len() as u64;
        }
        piece
    }

    fn note(&mut self, piece: &[u8]) {
        self.in_fpdu += piece.len() as u32;
        if self.checks_crc {
            self.crc.update(piece);
        }
    }

    /// Octets of length field and header, as far as they are known.
    fn head_wanted(&self) -> usize {
        match self.head {
            [_, _, control, ..] if self.head_len > LENGTH_LEN => LENGTH_LEN + SegmentHeader::len_of(control),
            _ => LENGTH_LEN + 1,
        }
    }

    const fn pad(&self) -> usize {
        pad(self.ulpdu as usize)
    }

    const fn tail_wanted(&self) -> usize {
        if self.tail_len < self.pad() { self.pad() } else { self.pad() + CRC_LEN }
    }

    fn begin(&mut self) -> Result<Part<'static>, Cause> {
        let [high, low, header @ ..] = &self.head;
        self.ulpdu = u16::from_be_bytes([*high, *low]);
        let header = SegmentHeader::parse(header).map_err(|error| match error {
            SegmentError::DdpVersion { tagged: true, .. } => Cause::TaggedVersion,
            SegmentError::DdpVersion { tagged: false, .. } => Cause::UntaggedVersion,
            SegmentError::RdmapVersion(_) => Cause::RdmapVersion,
            SegmentError::Opcode { .. } => Cause::UnexpectedOpcode,
        })?;
        let left = self.ulpdu.checked_sub(header.len() as u16).ok_or(Cause::Framing)?;
        self.stage = if left == 0 { Stage::Tail } else { Stage::Payload { left } };
        self.tail_len = 0;
        Ok(Part::Begin(header, left))
    }

    fn finish(&mut self) -> Result<Part<'static>, Cause> {
        let crc = self.tail.get(self.pad()..self.pad() + CRC_LEN).unwrap_or_default();
        if self.checks_crc && crc != self.crc.octets() {
            return Err(Cause::Crc);
        }
        (self.stage, self.head_len, self.in_fpdu, self.crc) = (Stage::Head, 0, 0, Crc32c::new());
        Ok(Part::End)
    }

    /// Takes a marker. It counts for the CRC of the FPDU that it is in, or that follows it at once (RFC 5044
    /// section 4.3). `false`: more octets are needed.
    fn take_marker(&mut self, octets: &mut &[u8]) -> Result<bool, Cause> {
        let (piece, rest) = octets.split_at((MARKER_LEN - self.marker_len).min(octets.len()));
        *octets = rest;
        append(&mut self.marker, &mut self.marker_len, piece);
        if self.marker_len < MARKER_LEN {
            return Ok(false);
        }
        let [_, _, high, low] = self.marker;
        // An FPDU of 64 KiB with markers passes the range of the pointer.
        if u32::from(u16::from_be_bytes([high, low])) != self.in_fpdu & 0xffff {
            return Err(Cause::Framing);
        }
        if self.checks_crc {
            self.crc.update(&self.marker);
        }
        if self.in_fpdu > 0 {
            self.in_fpdu += MARKER_LEN as u32;
        }
        self.marker_len = 0;
        self.until_marker = Some(MARKER_INTERVAL - MARKER_LEN as u64);
        Ok(true)
    }
}

/// Appends octets for which there is room.
fn append(to: &mut [u8], len: &mut usize, octets: &[u8]) {
    to.iter_mut().skip(*len).zip(octets).for_each(|(to, from)| *to = *from);
    *len += octets.len();
}
