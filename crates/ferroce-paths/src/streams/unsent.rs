//! The octets of a connection that TCP did not take.

use ferroce_memory::View;
use ferroce_proto::iwarp::{Payload, Payloads, Span};
use ferroce_proto::{Memory, MemoryError};

/// Octets that TCP did not take: a part of a buffer.
pub(super) struct Unsent {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
}

/// Payload whose memory is gone.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) payload: Payload,
    pub(super) error: MemoryError,
    /// TCP took a part of its FPDU.
    pub(super) within: bool,
}

impl Unsent {
    /// Creates a buffer with room for `room` octets.
    pub(super) fn new(room: usize) -> Self {
        Self { buffer: vec![0; room].into_boxed_slice(), from: 0, to: 0 }
    }

    /// The octets, in order.
    pub(super) fn octets(&self) -> &[u8] {
        self.buffer.get(self.from..self.to).unwrap_or_default()
    }

    /// Notes that TCP took `octets` of the octets.
    pub(super) fn took(&mut self, octets: usize) {
        self.from += octets;
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        (self.from, self.to) = (0, 0);
    }

    /// Keeps `octets` and the payload between them from octet `sent` on; there were none before. The copy
    /// ends the use of the registered memory.
    ///
    /// # Errors
    /// Memory of a payload is gone. The octets before its FPDU are kept.
    pub(super) fn keep(
        &mut self,
        memory: &View,
        octets: &[u8],
        payloads: &Payloads,
        sent: usize,
    ) -> Result<(), Lost> {
        self.clear();
        let (mut skip, mut from) = (sent, 0);
        for payload in payloads.as_slice() {
            self.append(octets.get(from..payload.at()).unwrap_or_default(), &mut skip);
            from = payload.at();
            if let Err(error) = self.append_span(memory, payload.span(), &mut skip) {
                let before = payloads.as_slice().iter().take_while(|before| before.fpdu() < payload.fpdu());
                let begin = payload.fpdu() + before.map(|before| before.span().len()).sum::<usize>();
                self.to = begin.saturating_sub(sent);
                return Err(Lost { payload: *payload, error, within: sent > begin });
            }
        }
        self.append(octets.get(from..).unwrap_or_default(), &mut skip);
        Ok(())
    }

    /// Appends octets without the first ones, as many as there are to `skip`.
    fn append(&mut self, octets: &[u8], skip: &mut usize) {
        let (_, octets) = octets.split_at(skipped(octets.len(), skip));
        if let Some(room) = self.buffer.get_mut(self.to..self.to + octets.len()) {
            room.copy_from_slice(octets);
            self.to += octets.len();
        }
    }

    /// As [`Self::append`], out of registered memory.
    fn append_span(&mut self, memory: &View, span: &Span, skip: &mut usize) -> Result<(), MemoryError> {
        let skipped = skipped(span.len(), skip);
        let left = span.len() - skipped;
        if let Some(room) = self.buffer.get_mut(self.to..self.to + left).filter(|room| !room.is_empty()) {
            read(memory, span, skipped, room)?;
            self.to += left;
        }
        Ok(())
    }
}

/// The octets to skip of the next `len`, which `skip` then counts no more.
fn skipped(len: usize, skip: &mut usize) -> usize {
    let skipped = len.min(*skip);
    *skip -= skipped;
    skipped
}

/// Copies payload from octet `skip` on.
fn read(memory: &View, span: &Span, skip: usize, to: &mut [u8]) -> Result<(), MemoryError> {
    match span {
        Span::Local(sge, _) => memory.read_local(sge.lkey, sge.addr.wrapping_add(skip as u64), to, 0),
        Span::Remote { rkey, addr, .. } => memory.read_remote(*rkey, addr.wrapping_add(skip as u64), to, 0),
    }
}
