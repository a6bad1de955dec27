//! The ids of requests that the program did not fetch yet.

use std::sync::Arc;

use ferroce_abi as abi;
use ferroce_engine::cm::resolve::Route;

use super::program_event::ProgramEvent;
use super::route::take_route;
use super::state::{IdHandle, IdState, Link, LiveId, Phase};
use super::{device, id};
use crate::entry::Object;
use crate::handle::{get, set};

/// The id that a peer's request has. The drop refuses the peer, unless the program fetched the request.
pub(super) struct NewId(Option<&'static IdHandle>);

impl NewId {
    /// For a request at the listener `at`. `link` gives the request the id's sink.
    pub(super) fn new(at: &LiveId, link: impl FnOnce(&'static IdHandle, &Arc<LiveId>) -> Link) -> Self {
        let channel = Arc::clone(&at.state.lock().channel);
        let id = id::make(channel, None);
        if let Ok(live) = id.live() {
            let link = link(id, &live);
            let mut state = live.state.lock();
            state.phase = Phase::Requested;
            state.withheld = Some(Vec::new());
            state.link = link;
        }
        Self(Some(id))
    }

    /// The request leaves the listener's backlog (Linux 6.12, `ucma_get_event`).
    pub(super) fn was_fetched(&self) {
        let Some(Ok(live)) = self.0.map(|id| id.live()) else { return };
        let (connection, sidr_request) = {
            let Link { connection, sidr_request, .. } = &live.state.lock().link;
            (connection.clone(), sidr_request.clone())
        };
        sidr_request.iter().for_each(|request| request.was_fetched());
        connection.iter().for_each(|connection| connection.was_fetched());
    }

    /// The program fetches the request, and has the id from now on: it is like the listener, and on `route`.
    /// `complete` adds what else the route gives it. Returns the event without its parameters. `None`: the id
    /// or its device is gone, and the peer is refused.
    pub(super) fn present(
        mut self,
        listen: &'static IdHandle,
        of: &LiveId,
        route: Route,
        complete: impl FnOnce(&'static IdHandle, &mut IdState),
    ) -> Option<ProgramEvent> {
        let id = self.0?;
        let live = id.live().ok()?;
        set!(id.context = get!(listen.context));
        set!(id.ps = get!(listen.ps));
        set!(id.channel = get!(listen.channel));
        set!(id.qp_type = get!(listen.qp_type));
        let home = device::home(&route.local.device).ok()?;
        let options = of.state.lock().options;
        {
            let mut state = live.state.lock();
            state.options = options;
            take_route(id, &mut state, route, home);
            complete(id, &mut state);
        }
        let synchronous = of.state.lock().is_synchronous();
        if synchronous {
            id::migrate(id, &live, Object::NULL).ok()?;
        }
        self.0 = None;
        let event = ProgramEvent::plain(id, abi::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        Some(ProgramEvent { listen_id: listen.c(), ..event })
    }
}

impl Drop for NewId {
    fn drop(&mut self) {
        if let Some(id) = self.0.take() {
            // Refuses the peer.
            let _ = id::destroy(id);
        }
    }
}
