//! A lane's endpoints whose small messages wait to fill a batch, see `endpoint/gathering.rs`.

use std::sync::Arc;

use ferroce_wire::Instant;

use super::{Endpoint, Lane, Visit};
use crate::handover::NEVER;

impl Lane {
    /// Messages of an endpoint wait until then; the endpoint was in no list, and its lock is held. `false` if
    /// the list is in use: by another thread, or by this one, which a signal handler interrupted to post.
    /// Then nothing may wait.
    pub(super) fn gather(&self, endpoint: &Arc<Endpoint>, until: Instant) -> bool {
        let Some(mut gatherers) = self.gatherers.try_lock() else { return false };
        gatherers.list.push(Arc::clone(endpoint));
        // Under the lock, so that a thread that takes the list and the time sees both.
        self.state.gather_until(until.as_nanos());
        drop(gatherers);
        self.hub.request_look(until.as_nanos());
        true
    }

    /// Goes through the endpoints with waiting messages, if there are any, and if no other thread uses their
    /// list. No lock of an endpoint is held.
    pub(crate) fn visit_gatherers(&self, visit: Visit, now: impl FnOnce() -> Instant) {
        let Some(mut list) = self.take_gatherers() else { return };
        let now = now();
        for endpoint in list.drain(..) {
            let until = endpoint.lock().visit_gathering(visit, now);
            if until.is_some_and(|until| !self.gather(&endpoint, until)) {
                endpoint.lock().end_gathering(now);
            }
        }
        if let Some(mut gatherers) = self.gatherers.try_lock() {
            gatherers.spare = list;
        }
    }

    fn take_gatherers(&self) -> Option<Vec<Arc<Endpoint>>> {
        if self.state.gathers_until() == NEVER {
            return None;
        }
        let mut gatherers = self.gatherers.try_lock()?;
        self.state.gathers_no_more();
        let spare = std::mem::take(&mut gatherers.spare);
        Some(std::mem::replace(&mut gatherers.list, spare))
    }
}
