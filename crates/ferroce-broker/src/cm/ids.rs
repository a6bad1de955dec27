//! Binds and connections of all programs, for administrators.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroce_cm::{ConnectionManager, Seen};
use ferroce_ipc::{CmIdEntry, CmIdState, Message};
use ferroce_wire::cm::{PortSpace, Transport};

use super::{Bound, Cm};

/// As many as fit a message.
const MOST: usize = 1200;

impl Cm {
    /// Binds and connections of the slots that `sees` accepts, after the first `without`.
    pub fn ids(&self, without: usize, sees: impl Fn(u16) -> bool) -> Message {
        let seen = || (0..1 << 12).filter(|slot| sees(*slot));
        let binds = seen().flat_map(|slot| self.binds.range((slot, 0)..=(slot, u64::MAX)));
        let binds = binds.map(|((slot, handle), bound)| of_bind(*slot, *handle, bound));
        let connections = seen().flat_map(|slot| self.manager.seen(slot)).map(of_connection);
        let mut ids: Vec<CmIdEntry> = binds.chain(connections).skip(without).take(MOST + 1).collect();
        let more = ids.len() > MOST;
        ids.truncate(MOST);
        Message::CmIds { ids, more }
    }
}

fn of_bind(slot: u16, handle: u64, bound: &Bound) -> CmIdEntry {
    let none = match bound.bind.address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    CmIdEntry {
        number: u32::from(slot) << 20 | (handle as u32 & 0x000f_ffff),
        slot,
        state: if bound.listener.is_some() { CmIdState::Listen } else { CmIdState::AddrBound },
        qp_type: 0,
        space: bound.bind.space as u16,
        qpn: 0,
        local: SocketAddr::new(bound.bind.address, bound.bind.port),
        remote: SocketAddr::new(none, 0),
    }
}

fn of_connection(seen: Seen) -> CmIdEntry {
    CmIdEntry {
        number: seen.id.0,
        slot: ConnectionManager::owner(seen.id),
        state: if seen.ending { CmIdState::Disconnect } else { CmIdState::Connect },
        // `enum ibv_qp_type`; the end that a program asks from is XRC's initiator.
        qp_type: match seen.transport {
            Transport::Rc => 2,
            Transport::Uc => 3,
            Transport::XRC => 9,
            Transport::Rd | Transport::Extended(_) => 0,
        },
        space: seen.space.map_or(0, |space: PortSpace| space as u16),
        qpn: seen.qpn.map_or(0, |qpn| qpn.value()),
        local: SocketAddr::new(seen.route.local, seen.local_port),
        remote: SocketAddr::new(seen.route.remote, seen.remote_port),
    }
}
