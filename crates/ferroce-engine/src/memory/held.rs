//! Registrations that a copy of the kernel's uses.

use ferroce_proto::{MemoryError, Sge};

use super::View;
use super::slots::InUse;

/// Registrations that are in use until this is dropped: their end waits.
pub(crate) struct Held<'a> {
    view: &'a View,
    held: [Option<(u32, InUse<'a>)>; MAX],
    count: usize,
}

/// Most registrations that are held at once.
const MAX: usize = 8;

impl<'a> Held<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        Self { view, held: [const { None }; MAX], count: 0 }
    }

    /// The place of an SGE that is not empty, whose memory may be read, or with `write` written. `None` if too many are held.
    pub(crate) fn place(&mut self, sge: &Sge, write: bool) -> Result<Option<u64>, MemoryError> {
        let key = sge.lkey.value();
        // Lists mostly name the same few keys again.
        let known = self.held[..self.count].iter().flatten().rev().find(|(known, _)| *known == key);
        if let Some((_, in_use)) = known {
            return self.view.place_of(in_use, sge, write).map(Some);
        }
        if self.count == MAX {
            return Ok(None);
        }
        let (in_use, place) = self.view.hold(sge, write)?;
        self.held[self.count] = Some((key, in_use));
        self.count += 1;
        Ok(Some(place))
    }
}
