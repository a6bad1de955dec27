//! The buffer that FPDUs are written to, and the payload that leaves around it.
//!
//! With a CRC the payload is copied into the buffer. The program may change its memory at any time, and a CRC
//! over memory that changes before TCP has it would end the connection of a program that breaks no rule.

use ferroce_wire::iwarp::{CRC_LEN, LENGTH_LEN, SegmentHeader};

use super::writer::Writer;
use crate::iwarp::{Payloads, Source, Span};

/// The least payload of a segment that leaves from registered memory: less is copied in less time than the
/// kernel needs for further pieces.
const LEAST_AROUND: usize = 4 << 10;

/// A buffer, and what was written to it.
pub(super) struct Out<'a> {
    buffer: &'a mut [u8],
    len: usize,
    payloads: Option<&'a mut Payloads>,
}

/// The buffer has no room for an FPDU.
pub(super) struct Full;

impl<'a> Out<'a> {
    /// Payload may leave from registered memory if there are `payloads`; all octets together are never more
    /// than `buffer` has.
    pub fn new(buffer: &'a mut [u8], payloads: Option<&'a mut Payloads>) -> Self {
        Self { buffer, len: 0, payloads }
    }

    /// Octets that were written to the buffer.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Octets of the stream, those of payload in registered memory among them.
    pub fn octets(&self) -> usize {
        self.len + self.payloads.as_ref().map_or(0, |payloads| payloads.octets())
    }

    /// Writes an FPDU, if there is room, and returns its octets. `fill` writes the payload, if there is any.
    pub fn write<E: From<Full>>(
        &mut self,
        writer: &mut Writer,
        header: &SegmentHeader,
        payload: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let room = writer.room_for(header.len(), payload);
        if self.octets() + room > self.buffer.len() {
            return Err(Full.into());
        }
        let out = self.buffer.get_mut(self.len..self.len + room).ok_or(Full)?;
        let octets =
            writer.write(header, payload, out, |to| if to.is_empty() { Ok(()) } else { fill(to) })?;
        self.len += octets;
        Ok(octets)
    }

    /// Writes an FPDU around payload that stays in memory, if there is room, and returns its octets; `None`
    /// if the payload is to be copied.
    pub fn write_around(
        &mut self,
        writer: &Writer,
        header: &SegmentHeader,
        payload: usize,
        source: Source,
        spans: impl Iterator<Item = Span>,
    ) -> Result<Option<usize>, Full> {
        let octets = self.octets();
        let Some(payloads) = self.payloads.as_deref_mut().filter(|_| writer.writes_around()) else {
            return Ok(None);
        };
        if payload < LEAST_AROUND {
            return Ok(None);
        }
        if octets + writer.room_for(header.len(), payload) > self.buffer.len() {
            return Err(Full);
        }
        let place = (self.len, self.len + LENGTH_LEN + header.len());
        if !payloads.add(place, source, spans, payload) {
            return Ok(None);
        }
        let out = self.buffer.get_mut(self.len..).unwrap_or_default();
        let (front, back) = writer.write_around(header, payload, out);
        debug_assert!(back >= CRC_LEN);
        self.len += front + back;
        Ok(Some(front + payload + back))
    }
}
