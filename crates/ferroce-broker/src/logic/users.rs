//! Programs of other users than the broker's: which of them are served, and which requests are not for them.

use std::collections::BTreeSet;

use ferroce_ipc::{CmRequest, Message, Peer, Refusal, RefusalCode};

use super::{Broker, Output};
use crate::privilege::restricts;
use crate::slots::{Slot, Slots};
use crate::system::System;
use crate::{ClientId, refusal};

/// Connections and SIDR requests of all programs of another user, with those that peers asked for: a quarter
/// of those that there may be.
const MOST_CONNECTIONS: usize = 65_536;
/// Ports that all programs of another user may bind together, blocks of ephemeral ports aside.
const MOST_BINDS: usize = 16_384;
/// Blocks of ephemeral ports of all programs of another user.
const MOST_BLOCKS: usize = 64;

impl<S: System> Broker<S> {
    /// Serves programs of every user from now on: those that the server lets connect.
    pub fn serve_all_users(&mut self) {
        self.all_users = true;
        self.cm.bound_users(self.uid, MOST_CONNECTIONS);
        self.record_key = Some(self.system.record_key());
    }

    /// Whether programs of this user may become clients.
    pub fn serves(&self, uid: u32) -> bool {
        uid == self.uid || self.all_users
    }

    /// Tells a client why it is not served, and closes its connection.
    pub fn turn_away(&mut self, client: ClientId, code: RefusalCode, sentence: String) {
        self.send(client, 0, Message::Refused(refusal(code, sentence)), Vec::new());
        self.output.push_back(Output::Close(client));
    }

    /// Whether a program is of another user than this broker.
    pub(super) fn is_foreign(&self, client: ClientId) -> bool {
        self.uid_of(client).is_some_and(|uid| uid != self.uid)
    }

    pub(super) fn uid_of(&self, client: ClientId) -> Option<u32> {
        self.clients.get(&client).map(|known| known.peer.uid)
    }

    /// Refuses what only root and the broker's user may do.
    pub(super) fn only_for_administrators(&self, client: ClientId) -> Result<(), Refusal> {
        if !self.is_restricted(client) {
            return Ok(());
        }
        let who = match self.uid {
            0 => "root".to_owned(),
            uid => format!("root and {}, whose ferroced this is,", Peer::user(uid)),
        };
        Err(refusal(RefusalCode::Permission, format!("only {who} may do this: ask the administrator")))
    }

    /// Whether a client is neither root's nor of the broker's user.
    pub(super) fn is_restricted(&self, client: ClientId) -> bool {
        self.uid_of(client).is_some_and(|uid| self.is_restricted_user(uid))
    }

    /// Whether a user is neither root nor the broker's user.
    pub(super) fn is_restricted_user(&self, uid: u32) -> bool {
        restricts(self.uid, uid)
    }

    /// Whether a client may see the objects of another one.
    pub(super) fn may_see(&self, client: ClientId, other: ClientId) -> bool {
        !self.is_restricted(client) || self.uid_of(client) == self.uid_of(other)
    }

    /// The slots of all programs of a client's user, if that is all that it may see.
    pub(super) fn visible_slots(&self, client: ClientId) -> Option<BTreeSet<u16>> {
        let uid = self.uid_of(client).filter(|_| self.is_restricted(client))?;
        Some(self.owners.iter().filter(|(_, owner)| **owner == uid).map(|(slot, _)| *slot).collect())
    }

    /// Whether a program of another user may have so many leases more: its user holds no more slots than are
    /// free for others.
    pub(super) fn is_within_share(&self, client: ClientId, count: usize) -> Result<(), Refusal> {
        let Some(uid) = self.uid_of(client).filter(|uid| *uid != self.uid) else { return Ok(()) };
        let used = self.slots.single().filter(|(_, state)| *state != Slot::Free).count();
        let own = self.owners.values().filter(|owner| **owner == uid).count();
        if own + count <= Slots::most_single().saturating_sub(used + count) {
            return Ok(());
        }
        let sentence = format!(
            "programs of {} hold {own} slots, and may hold no more than are free for other users: end some of them",
            Peer::user(uid)
        );
        Err(refusal(RefusalCode::NoSlots, sentence))
    }

    /// Whether a program's user may have another connection, port or block.
    pub(super) fn may_request(&self, client: ClientId, request: &CmRequest) -> Result<(), Refusal> {
        let Some(uid) = self.uid_of(client).filter(|uid| *uid != self.uid) else { return Ok(()) };
        let slots = || self.owners.iter().filter(|(_, owner)| **owner == uid).map(|(slot, _)| *slot);
        let (used, most, what) = match request {
            CmRequest::Connect(_) | CmRequest::Resolve(_) | CmRequest::Restore { .. } => {
                (self.cm.connections_of(uid), MOST_CONNECTIONS, "connections")
            }
            CmRequest::Bind(_) => (self.cm.binds_of(slots()), MOST_BINDS, "ports"),
            CmRequest::PortBlock { .. } => (self.cm.blocks_of(slots()), MOST_BLOCKS, "blocks of ports"),
            _ => return Ok(()),
        };
        if used < most {
            return Ok(());
        }
        let sentence =
            format!("programs of {} have {most} {what}, which is all that a user may have", Peer::user(uid));
        Err(refusal(RefusalCode::Full, sentence))
    }
}
