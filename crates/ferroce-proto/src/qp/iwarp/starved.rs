//! Messages of the peer that wait for a receive of the program's.

use ferroce_wire::iwarp::{Cause, SegmentHeader};

use super::inbound::{End, Inbound, Parts};
use crate::{Memory, ReceiveSource};

/// The part of a message that waits for a receive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Starved {
    /// The first segment of a send, with its octets of payload.
    Begin(SegmentHeader, u16),
    /// Immediate data.
    End(SegmentHeader),
}

impl Inbound {
    /// Whether a message waits for a receive.
    pub const fn is_starved(&self) -> bool {
        self.starved.is_some()
    }

    /// Goes on with the message that waits, if one does. Whether it still has no receive.
    pub(super) fn still_starves<S: ReceiveSource, M: Memory>(
        &mut self,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<bool, End> {
        match self.starved.take() {
            None => {}
            Some(Starved::Begin(header, payload)) => self.begin_or_wait(header, payload, parts)?,
            Some(Starved::End(header)) => self.end_or_wait(header, parts)?,
        }
        Ok(self.is_starved())
    }

    pub(super) fn begin_or_wait<S: ReceiveSource, M: Memory>(
        &mut self,
        header: SegmentHeader,
        payload: u16,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), End> {
        match self.begin(&header, payload, parts) {
            Ok(target) => self.target = target,
            Err(Cause::NoBuffer) => self.starved = Some(Starved::Begin(header, payload)),
            Err(cause) => return Err(cause.into()),
        }
        Ok(())
    }

    pub(super) fn end_or_wait<S: ReceiveSource, M: Memory>(
        &mut self,
        header: SegmentHeader,
        parts: &mut Parts<'_, S, M>,
    ) -> Result<(), End> {
        match self.end(&header, parts) {
            Ok(()) => self.header = None,
            Err(End::Error(Cause::NoBuffer)) => self.starved = Some(Starved::End(header)),
            Err(end) => return Err(end),
        }
        Ok(())
    }
}
