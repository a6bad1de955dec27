//! Orders about faults that programs have not answered.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::ClientId;

/// The open orders, by number.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// The number of the last order.
    pub(super) last: u32,
    pub(super) open: BTreeMap<u32, Open>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) program: ClientId,
    /// The client that waits, with its request. `None` once it was answered or is gone; the program may still
    /// answer.
    pub(super) asker: Option<(ClientId, u32)>,
    pub(super) until: Instant,
}

impl Orders {
    /// Time at which the next client has waited long enough; `None` if no client waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.values().filter(|open| open.asker.is_some()).map(|open| open.until).min()
    }
}
