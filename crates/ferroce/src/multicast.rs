//! Multicast groups.

use ferroce_wire::Gid;

use crate::service::Ud;
use crate::{Error, QueuePair};

impl<State> QueuePair<State, Ud> {
    /// Delivers a copy of every datagram to `group` from now on, if the queue pair's state permits receiving.
    /// The group is an address `ff…`, or an IPv4 one of class D. Own datagrams are included. A second call
    /// changes nothing.
    ///
    /// A sender uses [`Qpn::MULTICAST`](crate::Qpn::MULTICAST) as the destination queue pair. Linux sends to
    /// IPv6 groups over `lo` only with a route that an administrator adds:
    /// `ip -6 route add local ff00::/8 dev lo`.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, group: Gid) -> Result<(), Error> {
        Ok(self.engine().attach(group)?)
    }

    /// Undoes [`Self::attach`]. Dropping the queue pair does so, too.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, group: Gid) -> Result<(), Error> {
        Ok(self.engine().detach(group)?)
    }
}
