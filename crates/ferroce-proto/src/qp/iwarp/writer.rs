//! FPDUs, written into the buffer that goes to TCP (RFC 5044 section 4).

use ferroce_wire::iwarp::crc::Crc32c;
use ferroce_wire::iwarp::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN, SegmentHeader, pad};

/// Payload of an FPDU that may be longer than a TCP segment: large enough that its header costs nothing, and
/// small enough that it is in the cache when the CRC is computed.
const LARGE_PAYLOAD: usize = 32 << 10;
/// The least payload that a segment carries, however small TCP's are.
const LEAST_PAYLOAD: usize = 128;

/// Writes the FPDUs of one direction.
#[derive(Debug)]
pub(super) struct Writer {
    crc: bool,
    /// Octets until the next marker; `None` without markers.
    until_marker: Option<u64>,
    /// Octets of the largest ULPDU: MULPDU (RFC 5044 section 5.1).
    largest: usize,
}

impl Writer {
    /// `segment`: octets that TCP sends in one segment. `large`: FPDUs may be longer.
    pub fn new(crc: bool, markers: bool, large: bool, segment: u16) -> Self {
        let emss = usize::from(segment);
        let of_markers = if markers { MARKER_LEN * emss.div_ceil(MARKER_INTERVAL as usize) } else { 0 };
        let fitting = emss.saturating_sub(LENGTH_LEN + CRC_LEN + emss % 4 + of_markers);
        let largest = if large { LARGE_PAYLOAD + SegmentHeader::UNTAGGED_LEN } else { fitting };
        let largest = largest.clamp(SegmentHeader::UNTAGGED_LEN + LEAST_PAYLOAD, usize::from(u16::MAX));
        Self { crc, until_marker: markers.then_some(0), largest }
    }

    /// The most payload of a segment with such a header.
    pub const fn most_payload(&self, header_len: usize) -> usize {
        // Segments that are not the last ones of their message then need no pad.
        (self.largest - header_len) & !7
    }

    /// Octets of an FPDU with so much payload, at most.
    pub const fn room_for(&self, header_len: usize, payload: usize) -> usize {
        let ulpdu = header_len + payload;
        let plain = LENGTH_LEN + ulpdu + pad(ulpdu) + CRC_LEN;
        match self.until_marker {
            None => plain,
            // The plain FPDU stands behind the place of the one with markers until it is copied there.
            Some(_) => 2 * plain + MARKER_LEN * (2 + plain / (MARKER_INTERVAL as usize - MARKER_LEN)),
        }
    }

    /// Whether an FPDU can leave around payload that is in memory: without CRC and markers.
    pub const fn writes_around(&self) -> bool {
        !self.crc && self.until_marker.is_none()
    }

    /// Writes an FPDU without its payload to the front of `out`, which has room. Returns the octets in front
    /// of the payload and behind it.
    pub fn write_around(&self, header: &SegmentHeader, payload: usize, out: &mut [u8]) -> (usize, usize) {
        let ulpdu = header.len() + payload;
        let (front, back) = (LENGTH_LEN + header.len(), pad(ulpdu) + CRC_LEN);
        put(out, 0, &(ulpdu as u16).to_be_bytes());
        put(out, LENGTH_LEN, header.emit().get(..header.len()).unwrap_or_default());
        put(out, front, [0; 3 + CRC_LEN].get(..back).unwrap_or_default());
        (front, back)
    }

    /// Writes an FPDU to the front of `out`, which has [`Self::room_for`] it, and returns its octets. `fill`
    /// writes the payload.
    ///
    /// # Errors
    ///
    /// Returns the error of `fill`, and writes nothing.
    pub fn write<E>(
        &mut self,
        header: &SegmentHeader,
        payload: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let ulpdu = header.len() + payload;
        let covered = LENGTH_LEN + ulpdu + pad(ulpdu);
        let Some(until_marker) = self.until_marker else {
            plain(header, payload, out, fill)?;
            let crc = if self.crc { crc_of(out, covered) } else { [0; CRC_LEN] };
            put(out, covered, &crc);
            return Ok(covered + CRC_LEN);
        };
        let behind = self.room_for(header.len(), payload) - covered;
        let (front, back) = out.split_at_mut_checked(behind).unwrap_or_default();
        plain(header, payload, back, fill)?;
        let mut marked = Marked { out: front, len: 0, until_marker, crc: Crc32c::new(), fpdu: None };
        marked.put(back.get(..covered).unwrap_or_default());
        marked.marker_if_due();
        let crc = if self.crc { marked.crc.octets() } else { [0; CRC_LEN] };
        marked.put(&crc);
        self.until_marker = Some(marked.until_marker);
        Ok(marked.len)
    }
}

/// Writes everything but the CRC.
fn plain<E>(
    header: &SegmentHeader,
    payload: usize,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let ulpdu = header.len() + payload;
    let begin = LENGTH_LEN + header.len();
    fill(out.get_mut(begin..begin + payload).unwrap_or_default())?;
    put(out, 0, &(ulpdu as u16).to_be_bytes());
    put(out, LENGTH_LEN, header.emit().get(..header.len()).unwrap_or_default());
    put(out, begin + payload, [0; 3].get(..pad(ulpdu)).unwrap_or_default());
    Ok(())
}

fn crc_of(out: &[u8], covered: usize) -> [u8; CRC_LEN] {
    let mut crc = Crc32c::new();
    crc.update(out.get(..covered).unwrap_or_default());
    crc.octets()
}

fn put(out: &mut [u8], at: usize, octets: &[u8]) {
    if let Some(place) = out.get_mut(at..at + octets.len()) {
        place.copy_from_slice(octets);
    }
}

/// An FPDU into which markers are put.
struct Marked<'a> {
    out: &'a mut [u8],
    len: usize,
    until_marker: u64,
    crc: Crc32c,
    /// The place of the length field, once it is written.
    fpdu: Option<usize>,
}

impl Marked<'_> {
    fn put(&mut self, mut octets: &[u8]) {
        while !octets.is_empty() {
            self.marker_if_due();
            self.fpdu.get_or_insert(self.len);
            let (piece, rest) = octets.split_at(octets.len().min(self.until_marker as usize));
            self.append(piece);
            self.until_marker -= piece.len() as u64;
            octets = rest;
        }
    }

    /// The marker at this place, if there is one: it says how far back the FPDU began (RFC 5044 section 4.3).
    fn marker_if_due(&mut self) {
        if self.until_marker == 0 {
            let back = self.fpdu.map_or(0, |begin| self.len - begin) as u16;
            let [high, low] = back.to_be_bytes();
            self.append(&[0, 0, high, low]);
            self.until_marker = MARKER_INTERVAL - MARKER_LEN as u64;
        }
    }

    fn append(&mut self, octets: &[u8]) {
        put(self.out, self.len, octets);
        self.len += octets.len();
        self.crc.update(octets);
    }
}
