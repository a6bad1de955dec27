//! Which port and connection of this process is whose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_client::PortBlocks;
use ferroce_cm::{CmEvent, CmEventKind, ConnectionManager, ListenerId};
use ferroce_host::routes::Routes;
use ferroce_wire::cm::CommId;
use parking_lot::{Mutex, MutexGuard};

use super::connection::{Connection, Owned, SidrRequest, Transport};
use super::event::{EventKind, EventSink, Request, RoceRequest};
use crate::engine::{ConnectionEvent, Engine};

/// Ports and connections of this process, and the receivers of their events.
#[derive(Default)]
pub(super) struct Directory {
    next: AtomicU64,
    entries: Mutex<Entries>,
    blocks: Mutex<PortBlocks>,
    routes: Routes,
}

#[derive(Default)]
struct Entries {
    ports: BTreeMap<u64, Option<EventSink>>,
    connections: BTreeMap<CommId, EventSink>,
}

impl Directory {
    /// A handle that no port had.
    pub(super) fn handle(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Ports that this process gives out itself.
    pub(super) fn blocks(&self) -> MutexGuard<'_, PortBlocks> {
        self.blocks.lock()
    }

    /// The cached routes.
    pub(super) fn routes(&self) -> &Routes {
        &self.routes
    }

    pub(super) fn listens(&self, handle: u64, sink: EventSink) {
        self.entries.lock().ports.insert(handle, Some(sink));
    }

    pub(super) fn forget_port(&self, handle: u64) {
        self.entries.lock().ports.remove(&handle);
    }

    pub(super) fn set(&self, id: CommId, sink: EventSink) {
        self.entries.lock().connections.insert(id, sink);
    }

    pub(super) fn forget(&self, id: CommId) {
        self.entries.lock().connections.remove(&id);
    }

    fn sink(&self, id: CommId) -> Option<EventSink> {
        self.entries.lock().connections.get(&id).cloned()
    }

    /// A request at a port is its listener's for now.
    fn adopt(&self, id: CommId, handle: u64) -> Option<EventSink> {
        let mut entries = self.entries.lock();
        let sink = entries.ports.get(&handle).cloned().flatten()?;
        entries.connections.insert(id, sink.clone());
        Some(sink)
    }

    /// Hands an event to the owner of its connection.
    fn follow(&self, engine: &Arc<Engine>, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Cm(event) => self.deliver(engine, event),
            ConnectionEvent::Lost(id) => {
                self.sink(id).into_iter().for_each(|sink| sink.deliver(EventKind::Lost))
            }
            ConnectionEvent::SlotsLost(slots) => self.lost_slots(&slots),
        }
    }

    fn deliver(&self, engine: &Arc<Engine>, event: CmEvent) {
        let CmEvent { id, kind, .. } = event;
        let owned = || Owned::new(Arc::clone(engine), id);
        let (sink, kind) = match kind {
            CmEventKind::Request { listener: Some(ListenerId(handle)), route, req, starting_psn } => {
                // Dropped, it is refused.
                let connection = Connection(Transport::Roce(owned()));
                let roce = Box::new(RoceRequest { route, req: *req, starting_psn });
                let request = Request::by_roce(connection, roce);
                (self.adopt(id, handle), request.map(|request| EventKind::Request(Box::new(request))))
            }
            CmEventKind::SidrRequest { listener: ListenerId(handle), route, req } => {
                (self.adopt(id, handle), EventKind::of_sidr(SidrRequest(owned()), route, &req))
            }
            kind => (self.sink(id), EventKind::of_roce(kind)),
        };
        match (sink, kind) {
            (Some(sink), Some(kind)) => sink.deliver(kind),
            (Some(_), None) => tracing::warn!(?id, "a request is refused: it names no port or no address"),
            (None, _) => {}
        }
    }

    fn lost_slots(&self, slots: &[u16]) {
        self.blocks.lock().clear();
        let of = |id: &CommId| slots.contains(&ConnectionManager::owner(*id));
        let lost: Vec<EventSink> = {
            let entries = self.entries.lock();
            entries.connections.iter().filter(|(id, _)| of(id)).map(|(_, sink)| sink.clone()).collect()
        };
        for sink in lost {
            sink.deliver(EventKind::Lost);
        }
    }
}

impl Engine {
    /// The owners of connections and binds.
    pub(super) fn connections(&self) -> Arc<Directory> {
        let directory = self.shared(Directory::default);
        let follows = Arc::clone(&directory);
        self.follow_connections(move |engine, event| follows.follow(engine, event));
        directory
    }
}
