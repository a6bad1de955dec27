//! A queue pair's side of multicast groups.

use std::sync::Arc;

use ferroce_proto::Service;
use ferroce_wire::Gid;

use super::Qp;
use crate::error::{AttachError, DetachError};

impl Qp {
    /// From now on it is given a copy of every packet to the multicast group `mgid`: `ff…`, or an IPv4 address of class D
    /// (`::ffff:a.b.c.d`). Attaching again changes nothing, there is one copy.
    ///
    /// Its own sends to the group come back too.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(self: &Arc<Self>, mgid: Gid) -> Result<(), AttachError> {
        if self.service != Service::Ud {
            return Err(AttachError::Service);
        }
        if !mgid.is_multicast() {
            return Err(AttachError::NotAGroup { mgid });
        }
        let engine = self.context().engine();
        engine.groups().attach(self, mgid, &self.context().info(), engine)
    }

    /// Takes back [`Self::attach`].
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(self: &Arc<Self>, mgid: Gid) -> Result<(), DetachError> {
        let engine = self.context().engine();
        engine.groups().detach(self, mgid, self.context().id(), engine)
    }

    pub(super) fn detach_all(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let groups = self.core.lock().groups.clone();
        for mgid in groups {
            // Another thread may have been faster.
            let _ = me.detach(mgid);
        }
    }

    /// Notes that it is attached; `false` if it was destroyed.
    pub(crate) fn join(&self, mgid: Gid) -> bool {
        let mut core = self.core.lock();
        if !core.destroyed {
            core.groups.push(mgid);
        }
        !core.destroyed
    }

    /// Takes back [`Self::join`].
    pub(crate) fn leave(&self, mgid: Gid) {
        self.core.lock().groups.retain(|group| *group != mgid);
    }
}
