//! The queue pair of an id.

use std::sync::Arc;

use ferroce_engine::{QpAttr, QpAttrMask, QpState};

use super::state::{IdHandle, Membership};
use crate::call::Scope;
use crate::entry::named;
use crate::errno::Errno;
use crate::handle::{Live, get};
use crate::qp::{LiveQp, QpHandle};

/// Processes what has arrived for the id's queue pair.
pub(super) fn catch_up(id: &'static IdHandle) {
    if let Ok((_, qp)) = queue_pair(id) {
        qp.engine.catch_up();
    }
}

/// The id's queue pair, unless the id has none, the program destroyed it, or its context cannot be used.
pub(super) fn queue_pair(id: &'static IdHandle) -> Result<(&'static QpHandle, Live<LiveQp>), Errno> {
    let qp = get!(id.qp);
    let handle = named!(qp).handle()?;
    let live = handle.live()?;
    if live.context.is_usable() { Ok((handle, live)) } else { Err(Errno::EIO) }
}

/// Takes the id's queue pair to the error state.
pub(super) fn fail_qp(id: &'static IdHandle) {
    if let Ok((handle, qp)) = queue_pair(id) {
        let attr = QpAttr { state: QpState::Error, ..QpAttr::default() };
        let _ = handle.modify(&qp, &attr, QpAttrMask::STATE);
    }
}

/// The id, or its queue pair, ends: detaches that from all groups.
pub(super) fn leave_all(id: &'static IdHandle, memberships: impl IntoIterator<Item = Arc<Membership>>) {
    for membership in memberships {
        if !membership.send_only {
            let _ = detach(id, &membership);
        }
    }
}

/// Detaches the id's queue pair from a group; EINVAL if it is not attached, or if the id has no queue pair.
pub(super) fn detach(id: &'static IdHandle, membership: &Membership) -> Result<(), Errno> {
    let (_, qp) = queue_pair(id)?;
    Ok(qp.engine.detach(membership.mgid)?)
}
