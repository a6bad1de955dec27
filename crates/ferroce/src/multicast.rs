//! Multicast groups.

use ferroce_wire::Gid;

use crate::service::Ud;
use crate::{Error, QueuePair};

impl<State> QueuePair<State, Ud> {
    /// From now on, as far as its state lets it receive, it is given a copy of every datagram to `group`: an address
    /// `ff…`, or an IPv4 one of class D. Its own are among them. A second time changes nothing.
    ///
    /// Whoever sends to a group names [`Qpn::MULTICAST`](crate::Qpn::MULTICAST) as the queue pair there. Linux has no way to
    /// send to IPv6 groups over `lo` without a route that an administrator adds: `ip -6 route add local ff00::/8 dev lo`.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(&self, group: Gid) -> Result<(), Error> {
        Ok(self.engine().attach(group)?)
    }

    /// Takes back [`Self::attach`]. Dropping the queue pair does that, too.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(&self, group: Gid) -> Result<(), Error> {
        Ok(self.engine().detach(group)?)
    }
}
