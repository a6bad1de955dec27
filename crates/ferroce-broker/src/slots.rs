//! The table of slots and their holders. It opens no socket.

use std::time::Instant;

use super::{ClientId, ProcessId};

/// Slots 1 to 254 can be leased; slot 0 is the broker, slot 255 never exists.
pub const LAST_SLOT: u8 = 254;

/// State of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Open, held by nobody.
    Free,
    /// Held by a connected program (slot 0: by the broker, whose id is no client's).
    Leased(ClientId),
    /// Its program lives but is not connected: it may come back and resume. After `until` it will not: it called exec.
    Away {
        /// The program.
        process: ProcessId,
        /// When to give up; never if the broker closed the connection.
        until: Option<Instant>,
    },
    /// Open since an earlier broker, and nobody said yet that it is his. Not before `until` is it looked at again.
    Unknown {
        /// When to look whether any process has its socket open.
        until: Instant,
    },
}

/// The state of every slot that is open, by number.
#[derive(Debug, Default)]
pub struct Slots(Vec<Slot>);

impl Slots {
    /// Number of open slots, which is the size of every group.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Opens the next slot.
    pub fn push(&mut self, state: Slot) {
        self.0.push(state);
    }

    /// State of a slot, `None` if it is not open.
    pub fn get(&self, slot: u8) -> Option<Slot> {
        self.0.get(usize::from(slot)).copied()
    }

    /// Changes the state of an open slot; of any other nothing.
    pub fn set(&mut self, slot: u8, state: Slot) {
        if let Some(entry) = self.0.get_mut(usize::from(slot)) {
            *entry = state;
        }
    }

    /// All slots but the broker's own, with their state.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Slot)> + '_ {
        self.0.iter().enumerate().skip(1).map(|(slot, &state)| (slot as u8, state))
    }

    /// The slots in a state that `which` accepts.
    pub fn select(&self, which: impl Fn(Slot) -> bool) -> Vec<u8> {
        self.iter().filter(|(_, state)| which(*state)).map(|(slot, _)| slot).collect()
    }

    /// Slots that a client holds.
    pub fn of(&self, client: ClientId) -> Vec<u8> {
        self.select(|state| state == Slot::Leased(client))
    }

    /// Whether no program holds any, nor might.
    pub fn all_free(&self) -> bool {
        self.iter().all(|(_, state)| state == Slot::Free)
    }
}
