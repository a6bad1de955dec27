//! A queue pair's side of multicast groups.

use ferroce_proto::Service;
use ferroce_wire::Gid;

use super::Qp;
use crate::error::{AttachError, NotAttached};

impl Qp {
    /// From now on it is given a copy of every packet to the multicast group `mgid`: `ff…`, or an IPv4
    /// address of class D (`::ffff:a.b.c.d`). Attaching again changes nothing, there is one copy.
    ///
    /// Its own sends to the group come back too.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, mgid: Gid) -> Result<(), AttachError> {
        if self.context().is_iwarp() {
            return Err(AttachError::Iwarp);
        }
        if self.endpoint.service != Service::Ud {
            return Err(AttachError::Service);
        }
        if !mgid.is_multicast() {
            return Err(AttachError::NotAGroup { mgid });
        }
        let engine = self.context().engine();
        engine.groups.attach(&self.endpoint, mgid, &self.context().info(), engine.lanes())
    }

    /// Takes back [`Self::attach`].
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, mgid: Gid) -> Result<(), NotAttached> {
        let engine = self.context().engine();
        engine.groups.detach(&self.endpoint, mgid, self.context().id(), engine.lanes())
    }

    pub(super) fn detach_all(&self) {
        let groups = self.endpoint.core.lock().groups.clone();
        for mgid in groups {
            // Another thread may have been faster.
            let _ = self.detach(mgid);
        }
    }
}
