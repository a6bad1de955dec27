//! Connections as administrators see them.

use ferroce_wire::Qpn;
use ferroce_wire::cm::{CommId, IpCmHeader, PortSpace, Transport};

use super::connection::{Role, State};
use super::{ConnectionManager, Route};

/// A connection, its ports included where it is one of the RDMA IP CM service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub id: CommId,
    /// One end is ending it, or it is over.
    pub ending: bool,
    pub route: Route,
    /// Our queue pair, once it is known.
    pub qpn: Option<Qpn>,
    /// Service of the queue pairs.
    pub transport: Transport,
    /// The table of its ports.
    pub space: Option<PortSpace>,
    /// Our port, or 0.
    pub local_port: u16,
    /// The peer's port, or 0.
    pub remote_port: u16,
}

impl ConnectionManager {
    /// The connections of an owner that it has not closed.
    pub fn seen(&self, owner: u8) -> impl Iterator<Item = Seen> + '_ {
        self.connections_of(owner).filter_map(|id| self.connections.get(&id)).map(|connection| {
            let service = connection.req.service_id;
            let (space, listening) = service.port().map_or((None, 0), |(space, port)| (Some(space), port));
            let header = service.is_ip().then(|| IpCmHeader::parse(&connection.req.private.0).ok());
            let asking = header.flatten().map_or(0, |(header, _)| header.source_port);
            let (local_port, remote_port) = match connection.role {
                Role::Active => (asking, listening),
                Role::Passive => (listening, asking),
            };
            Seen {
                id: connection.id,
                ending: matches!(connection.state, State::DreqSent(_) | State::DreqRcvd | State::TimeWait(_)),
                route: connection.route,
                qpn: connection.local_qpn(),
                transport: connection.req.transport,
                space,
                local_port,
                remote_port,
            }
        })
    }
}
