//! Which port and connection of this process is whose.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_ipc::{CmNews, CmRequest, CmRoute, CmWhat};
use ferroce_proto::cm::Route;
use ferroce_wire::cm::CommId;
use parking_lot::{Mutex, MutexGuard};

use super::blocks::Blocks;
use super::event::{EventKind, Target};
use super::routes::Routes;
use super::{Connection, Question};
use crate::engine::{ConnectionEvents, Engine};

/// Ports and connections of this process, and who is told of them.
#[derive(Default)]
pub(super) struct Directory {
    next: AtomicU64,
    entries: Mutex<Entries>,
    blocks: Mutex<Blocks>,
    routes: Routes,
}

#[derive(Default)]
struct Entries {
    ports: BTreeMap<u64, Option<Target>>,
    connections: BTreeMap<CommId, Target>,
}

impl Directory {
    /// A handle that no port had.
    pub(super) fn handle(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Ports that this process gives out itself.
    pub(super) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock()
    }

    /// What is known of routes.
    pub(super) fn routes(&self) -> &Routes {
        &self.routes
    }

    pub(super) fn listens(&self, handle: u64, target: Target) {
        self.entries.lock().ports.insert(handle, Some(target));
    }

    pub(super) fn forget_port(&self, handle: u64) {
        self.entries.lock().ports.remove(&handle);
    }

    pub(super) fn set(&self, id: CommId, target: Target) {
        self.entries.lock().connections.insert(id, target);
    }

    pub(super) fn forget(&self, id: CommId) {
        self.entries.lock().connections.remove(&id);
    }

    fn target(&self, id: CommId) -> Option<Target> {
        self.entries.lock().connections.get(&id).cloned()
    }

    /// A request at a port is its listener's for now; refused if that is gone.
    fn adopt(&self, engine: &Arc<Engine>, id: CommId, handle: u64) -> Option<Target> {
        let mut entries = self.entries.lock();
        let target = entries.ports.get(&handle).cloned().flatten();
        match &target {
            Some(target) => {
                entries.connections.insert(id, target.clone());
            }
            None => {
                drop(entries);
                engine.broker().tell(CmRequest::Close(id));
            }
        }
        target
    }
}

impl ConnectionEvents for Directory {
    fn news(&self, engine: &Arc<Engine>, news: CmNews) {
        let id = news.id;
        let (target, kind) = match news.what {
            CmWhat::Request { handle: Some(handle), route, starting_psn, req } => {
                let Some(target) = self.adopt(engine, id, handle) else { return };
                let connection = Connection::adopted(Arc::clone(engine), id);
                let route = told(route);
                (Some(target), EventKind::Request { connection, route, starting_psn, req })
            }
            CmWhat::SidrRequest { handle, route, req } => {
                let Some(target) = self.adopt(engine, id, handle) else { return };
                let question = Question::adopted(Arc::clone(engine), id);
                (Some(target), EventKind::Asked { question, route: told(route), req })
            }
            CmWhat::Request { handle: None, starting_psn, req, .. } => {
                (self.target(id), EventKind::CrossingRequest { starting_psn, req })
            }
            CmWhat::Reply(rep) => (self.target(id), EventKind::Reply(rep)),
            CmWhat::Established => (self.target(id), EventKind::Established),
            CmWhat::Rejected(rej) => (self.target(id), EventKind::Rejected(rej)),
            CmWhat::Unreachable => (self.target(id), EventKind::Unreachable),
            CmWhat::Disconnected(end) => (self.target(id), EventKind::Disconnected(end)),
            CmWhat::TimeWaitOver => (self.target(id), EventKind::TimeWaitOver),
            CmWhat::SidrReply(rep) => (self.target(id), EventKind::Answered(rep)),
        };
        if let Some(target) = target {
            target.tell(kind);
        }
    }

    fn lost(&self, id: CommId) {
        if let Some(target) = self.target(id) {
            target.tell(EventKind::Lost);
        }
    }

    fn lost_slots(&self, slots: &[u8]) {
        self.blocks.lock().clear();
        let of = |id: &CommId| slots.contains(&((id.0 >> 24) as u8));
        let lost: Vec<Target> = {
            let entries = self.entries.lock();
            entries.connections.iter().filter(|(id, _)| of(id)).map(|(_, target)| target.clone()).collect()
        };
        for target in lost {
            target.tell(EventKind::Lost);
        }
    }
}

impl Engine {
    /// Whose connections and binds are whose.
    pub(super) fn connections(&self) -> &Directory {
        let events: &dyn Any = self.connection_events(|| Box::new(Directory::default()));
        events.downcast_ref().expect("nothing else follows connections")
    }
}

fn told(route: CmRoute) -> Route {
    Route { local: route.local, remote: route.remote, interface: route.interface }
}
