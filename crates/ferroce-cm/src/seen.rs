//! Connections in the form that administrators see.

use ferroce_wire::Qpn;
use ferroce_wire::cm::{CommId, IpCmHeader, PortSpace, Transport};

use super::connection::{CmState, Role};
use super::{ConnectionManager, Route};

/// A connection, with its ports if it belongs to the RDMA IP CM service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub id: CommId,
    /// An end has begun to end it, or it has ended.
    pub ending: bool,
    pub route: Route,
    /// Our queue pair; `None` until it is known.
    pub qpn: Option<Qpn>,
    /// Service of the queue pairs.
    pub transport: Transport,
    /// The port space of its ports.
    pub space: Option<PortSpace>,
    /// Our port; 0 if unknown.
    pub local_port: u16,
    /// The peer's port; 0 if unknown.
    pub remote_port: u16,
}

impl ConnectionManager {
    /// The connections that an owner has not closed.
    pub fn seen(&self, owner: u16) -> impl Iterator<Item = Seen> + '_ {
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
                ending: matches!(
                    connection.state,
                    CmState::DreqSent(_) | CmState::DreqRcvd | CmState::TimeWait(_)
                ),
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
