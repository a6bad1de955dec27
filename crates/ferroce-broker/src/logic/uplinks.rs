//! The state of AF_XDP: the interfaces with an XDP program, and the ports of programs there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_host::netdev::Netdev;
use ferroce_ipc::DatapathState;

use crate::ClientId;
use crate::by_pair::ByPair;
use crate::xdp::{Place, XdpUplink};

pub(super) type PortOf<U> = <U as XdpUplink>::Port;

/// Interfaces by index, and their ports.
#[derive(Debug)]
pub(super) struct Xdp<U: XdpUplink> {
    pub(super) uplinks: BTreeMap<u32, Attached<U>>,
    pub(super) failures: BTreeMap<u32, Failure>,
    pub(super) ports: BTreeMap<(ClientId, u32), OpenPort<PortOf<U>>>,
    /// Ports whose queue is not free yet.
    pub(super) opening: Vec<Opening>,
    /// The count of changes that the slots of the ports reflect.
    pub(super) settled: u64,
    /// Packets that programs which are no longer attached dropped, by device.
    pub(super) dropped: BTreeMap<u32, BTreeMap<String, u64>>,
    /// The time of the last event that came with one.
    pub(super) clock: Instant,
}

#[derive(Debug)]
pub(super) struct Attached<U> {
    pub(super) uplink: U,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// How many ports were opened at a pair, by the reason.
    pub(super) by_pair: BTreeMap<ByPair, u64>,
}

/// An attempt that failed, and what it depended on.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) state: DatapathState,
    pub(super) netdev: Netdev,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// When to try again, and the time until the attempt after that. `None`: only when the interface changes.
    pub(super) again: Option<(Instant, Duration)>,
}

#[derive(Debug)]
pub(super) struct OpenPort<P> {
    pub(super) port: P,
    pub(super) place: Place,
    pub(super) slots: Vec<u16>,
    pub(super) uid: u32,
}

#[derive(Debug)]
pub(super) struct Opening {
    pub(super) client: ClientId,
    /// The request.
    pub(super) id: u32,
    pub(super) ifindex: u32,
    pub(super) uid: u32,
    pub(super) place: Place,
    pub(super) tries: u32,
    pub(super) at: Instant,
}

impl<U: XdpUplink> Xdp<U> {
    pub(super) fn new(clock: Instant) -> Self {
        Self {
            uplinks: BTreeMap::new(),
            failures: BTreeMap::new(),
            ports: BTreeMap::new(),
            opening: Vec::new(),
            settled: 0,
            dropped: BTreeMap::new(),
            clock,
        }
    }

    /// Takes the time of an event.
    pub(super) fn clock(&mut self, now: Instant) {
        self.clock = now;
    }

    /// Time at which to call [`super::Broker::retry_xdp`]; `None` if no attempt is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let attempts = self.failures.values().filter_map(|failure| Some(failure.again?.0));
        attempts.chain(self.opening.iter().map(|opening| opening.at)).min()
    }

    /// The program with the direct port of an interface, or whose request for it is not answered yet.
    pub(super) fn direct(&self, ifindex: u32) -> Option<ClientId> {
        let open =
            self.ports.iter().filter(|((_, index), open)| (*index, open.place) == (ifindex, Place::Direct));
        let opening = self.opening.iter().filter(|o| (o.ifindex, o.place) == (ifindex, Place::Direct));
        open.map(|((client, _), _)| *client).chain(opening.map(|o| o.client)).next()
    }

    /// How many ports the programs of a user have, or all programs.
    pub(super) fn count(&self, uid: Option<u32>) -> usize {
        let open = self.ports.values().map(|open| open.uid);
        let uids = open.chain(self.opening.iter().map(|opening| opening.uid));
        uids.filter(|other| uid.is_none_or(|uid| *other == uid)).count()
    }
}
