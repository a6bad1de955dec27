//! Registrations that a copy of the kernel's uses.

use ferroce_proto::iwarp::Span;
use ferroce_proto::{MemoryError, Sge};

use crate::View;
use crate::access::Access;
use crate::slots::InUse;

/// Registrations that are in use until this is dropped: their end waits.
pub(crate) struct HeldRegions<'a> {
    view: &'a View,
    held: [Option<(u32, InUse<'a>)>; MAX],
    count: usize,
}

/// Most registrations that are held at once.
const MAX: usize = 8;

impl<'a> HeldRegions<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        Self { view, held: [const { None }; MAX], count: 0 }
    }

    /// The place of an SGE that is not empty, whose memory may be read, or with `write` written. `None` if
    /// too many are held.
    pub(crate) fn place(&mut self, sge: &Sge, write: bool) -> Result<Option<u64>, MemoryError> {
        self.find(sge.lkey.value(), |view, in_use| view.place_of(in_use, sge, write))
    }

    /// As [`Self::place`], for memory that payload of a stream leaves from or arrives in.
    pub(crate) fn place_of_span(&mut self, span: &Span, write: bool) -> Result<Option<u64>, MemoryError> {
        match span {
            Span::Local(sge, _) => self.place(sge, write),
            Span::Remote { rkey, addr, length } => {
                let access = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
                self.find(rkey.value(), |view, in_use| {
                    view.place_of_peer(in_use, *addr, (*length).into(), access)
                })
            }
        }
    }

    /// Holds what a key stands for, if `place` finds something there.
    fn find(
        &mut self,
        key: u32,
        place: impl FnOnce(&View, &InUse<'a>) -> Result<u64, MemoryError>,
    ) -> Result<Option<u64>, MemoryError> {
        // Lists mostly name the same few keys again.
        let known = self.held[..self.count].iter().flatten().rev().find(|(known, _)| *known == key);
        if let Some((_, in_use)) = known {
            return place(self.view, in_use).map(Some);
        }
        if self.count == MAX {
            return Ok(None);
        }
        let in_use = self.view.hold(key)?;
        let place = place(self.view, &in_use)?;
        self.held[self.count] = Some((key, in_use));
        self.count += 1;
        Ok(Some(place))
    }
}
