//! Listeners, and the search for the one that takes a request.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use ferroce_wire::Gid;
use ferroce_wire::cm::{IpCmHeader, ServiceId};

use super::error::{CmDropReason, CmError};
use super::types::{Bind, Kind, ListenParams, ListenerId, Route};

#[derive(Clone, Copy, Debug)]
struct Listener {
    owner: u16,
    params: ListenParams,
    /// Requests that the program has not fetched yet.
    waiting: usize,
}

#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenerId, Listener>,
    by_service: BTreeMap<ServiceId, Vec<ListenerId>>,
    next: u64,
}

/// The kind of request: REQ or SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Connection,
    Datagram,
}

impl Listeners {
    pub(super) fn add(&mut self, owner: u16, mut params: ListenParams) -> Result<ListenerId, CmError> {
        if params.backlog == 0 || params.backlog > ListenParams::MAX_BACKLOG {
            params.backlog = ListenParams::MAX_BACKLOG;
        }
        params.bind = match params.bind {
            Bind::Address(ip) => Bind::Address(canonical(ip)),
            Bind::Scoped(ip, interface) => Bind::Scoped(canonical(ip), interface),
            all => all,
        };
        let others = self.by_service.entry(params.service_id).or_default();
        if others.iter().any(|id| self.by_id.get(id).is_some_and(|other| clash(&other.params, &params))) {
            return Err(CmError::InUse(params.service_id));
        }
        let id = ListenerId(self.next);
        self.next = self.next.wrapping_add(1);
        others.push(id);
        self.by_id.insert(id, Listener { owner, params, waiting: 0 });
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ListenerId) {
        let Some(listener) = self.by_id.remove(&id) else { return };
        let service_id = listener.params.service_id;
        if let Some(ids) = self.by_service.get_mut(&service_id) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_service.remove(&service_id);
            }
        }
    }

    pub(super) fn remove_owner(&mut self, owner: u16) {
        self.by_id.retain(|_, listener| listener.owner != owner);
        self.by_service.retain(|_, ids| {
            ids.retain(|id| self.by_id.contains_key(id));
            !ids.is_empty()
        });
    }

    /// The listener that takes a request: of those that match, the one with the narrowest destination.
    pub(super) fn find(&self, service_id: ServiceId, route: &Route, ask: Ask) -> Option<ListenerId> {
        let ids = self.by_service.get(&service_id)?;
        let takes = |id: &&ListenerId| {
            let params = self.by_id.get(id)?.params;
            let asked = match params.kind {
                Kind::Both => true,
                Kind::Connections => ask == Ask::Connection,
                Kind::Datagrams => ask == Ask::Datagram,
            };
            if asked { narrowness(params.bind, route) } else { None }
        };
        ids.iter().filter(|id| takes(id).is_some()).max_by_key(takes).copied()
    }

    pub(super) fn owner(&self, id: ListenerId) -> Option<u16> {
        self.by_id.get(&id).map(|listener| listener.owner)
    }

    /// Counts one more pending request. Returns the listener's owner; `None` if the backlog is full.
    pub(super) fn wait(&mut self, id: ListenerId) -> Option<u16> {
        let listener = self.by_id.get_mut(&id)?;
        if listener.waiting >= listener.params.backlog {
            return None;
        }
        listener.waiting = listener.waiting.saturating_add(1);
        Some(listener.owner)
    }

    /// Counts one pending request less.
    pub(super) fn answered(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}

/// Whether two listeners would take the same requests.
fn clash(a: &ListenParams, b: &ListenParams) -> bool {
    let kinds = a.kind == b.kind || a.kind == Kind::Both || b.kind == Kind::Both;
    kinds && a.bind == b.bind
}

/// Whether a bind covers a destination, and how narrow it is.
fn narrowness(bind: Bind, route: &Route) -> Option<u16> {
    match bind {
        Bind::Scoped(address, interface) => {
            (address == route.local && interface == route.ifindex()).then_some(3)
        }
        Bind::Address(address) => (address == route.local).then_some(2),
        Bind::AnyV4 => route.local.is_ipv4().then_some(1),
        Bind::AnyV6 => route.local.is_ipv6().then_some(1),
        Bind::Any => Some(0),
    }
}

/// Checks that the addresses in the private data are those of the packet. A listener on 127.0.0.1 must not be
/// reachable from elsewhere by means of that address, and a peer must not report a foreign address to
/// programs.
pub(super) fn check_addresses(
    service_id: ServiceId,
    private: &[u8],
    route: &Route,
) -> Result<bool, CmDropReason> {
    if !service_id.is_ip() {
        return Ok(true);
    }
    let (header, _) = IpCmHeader::parse(private).map_err(|_| CmDropReason::Invalid)?;
    Ok(canonical(header.source) == route.remote && canonical(header.destination) == route.local)
}

/// Turns an IPv4-mapped address into the IPv4 address, as in GIDs.
fn canonical(ip: IpAddr) -> IpAddr {
    Gid::from_ip(ip).to_ip()
}
