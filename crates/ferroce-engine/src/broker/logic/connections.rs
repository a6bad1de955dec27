//! Connections, as far as clients, slots and addresses matter for them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ferroce_ipc::{CmRequest, Message, Refusal};
use ferroce_proto::cm::Route;
use tracing::warn;

use super::{Broker, Output};
use crate::broker::ClientId;
use crate::broker::cm::Asker;
use crate::broker::netdev::Address;
use crate::broker::slots::Slot;
use crate::broker::world::World;

impl<W: World> Broker<W> {
    /// A MAD came to queue pair 1 of an address.
    pub fn mad(&mut self, now: Instant, from: Route, mad: &[u8]) {
        self.cm.clock(now);
        self.cm.mad(from, mad);
        self.connections_settle();
    }

    /// The addresses that have queue pair 1.
    pub fn own_addresses(&self) -> Vec<Address> {
        self.groups.addresses()
    }

    /// Another number than before, if these, or their sockets, changed.
    pub fn group_changes(&self) -> u64 {
        self.groups.changes()
    }

    /// A duplicate of the broker's own socket on an address: close it when [`Broker::group_changes`] changes.
    pub fn own_socket(&self, address: Address) -> io::Result<OwnedFd> {
        self.groups.members(address, &[0])?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A client's request about connections.
    pub(super) fn connections(&mut self, client: ClientId, request: CmRequest) -> Result<Message, Refusal> {
        let slots = self.slots.of(client);
        let root = self.clients.get(&client).is_some_and(|known| known.peer.uid == 0);
        let groups = &self.groups;
        let done =
            self.cm.request(Asker { slots: &slots, root }, request, |address| groups.contains(address))?;
        Ok(Message::CmDone(done))
    }

    /// Passes on what came of it: MADs to peers, news to owners.
    pub(super) fn connections_settle(&mut self) {
        while let Some(transmit) = self.cm.poll_transmit() {
            self.output.push_back(Output::Mad(transmit));
        }
        while let Some((slot, news)) = self.cm.poll_news() {
            match self.slots.get(slot) {
                Some(Slot::Leased(client)) if self.clients.contains_key(&client) => {
                    self.send(client, 0, Message::CmNews(news), Vec::new());
                }
                Some(Slot::Away { .. }) => self.cm.hold(slot, news),
                _ => warn!(slot, id = ?news.id, "news of a connection that belongs to nobody"),
            }
        }
    }

    /// A program is there again.
    pub(super) fn connections_resume(&mut self, client: ClientId, slots: &[u8]) {
        for slot in slots {
            for news in self.cm.take_held(*slot) {
                self.send(client, 0, Message::CmNews(news), Vec::new());
            }
        }
    }
}
