//! The sockets of all local addresses: groups of one size, parked.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use ferroce_datapath::udp::OpenError;
use tracing::{info, warn};

use super::parking::{self, Parking};
use super::system::{Sockets, System};
use ferroce_host::netdev::Address;

/// A group for each local address. Every group has a member for every open slot, so that a slot's number is
/// the same on all addresses; members are never closed while any program lives.
#[derive(Debug)]
pub struct Groups<G> {
    groups: BTreeMap<Address, G>,
    parking: Option<Parking>,
    /// Addresses whose groups an earlier broker opened.
    taken_back: BTreeSet<Address>,
    /// Grows whenever a group comes or goes.
    changes: u64,
}

/// Why the groups could not grow.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The kernel has more members than we know: a program that knows them has not come back yet.
    #[error("a program that survived an earlier ferroced has not answered yet")]
    Incomplete,
    /// A socket could not be opened.
    #[error("cannot open another slot on {address}")]
    Open {
        /// Where.
        address: Address,
        /// Why.
        source: OpenError,
    },
    /// Descriptors could not be parked.
    #[error("cannot park descriptors{}", cure(.0))]
    Park(#[from] io::Error),
}

/// The kernel counts the descriptors in flight of a user, over all processes and network namespaces, against
/// the soft limit of open files of the process that sends another one (unix(7)).
fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ETOOMANYREFS) => {
            " (all brokers of this user together have more in flight than this one may open files: raise `ulimit -Hn` before it starts, \
             or stop others with `ferroce stop` in their network namespaces)"
        }
        _ => "",
    }
}

impl GrowError {
    /// Whether descriptors have run out.
    pub fn is_out_of_descriptors(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
            if matches!(code, Some(libc::EMFILE | libc::ENFILE)) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl<G: Sockets> Groups<G> {
    /// No group.
    pub fn new() -> Self {
        Self { groups: BTreeMap::new(), parking: None, taken_back: BTreeSet::new(), changes: 0 }
    }

    /// Number of addresses with a group.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// The addresses that have one.
    pub fn addresses(&self) -> Vec<Address> {
        self.groups.keys().copied().collect()
    }

    /// Another number than before, if a group came or went since.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether this address has one.
    pub fn contains(&self, address: Address) -> bool {
        self.groups.contains_key(&address)
    }

    /// Members of the largest group: the number of open slots, the broker's own included.
    pub fn size(&self) -> usize {
        self.groups.values().map(Sockets::len).max().unwrap_or(0)
    }

    /// Whether some were taken over from an earlier broker.
    pub fn adopted(&self) -> bool {
        !self.taken_back.is_empty()
    }

    /// The end of the parked descriptors that programs hold.
    pub fn parked(&self) -> io::Result<OwnedFd> {
        let parking = self.parking.as_ref().ok_or(io::ErrorKind::NotFound)?;
        parking.reader().try_clone_to_owned()
    }

    /// Duplicates of one address's members for these slots.
    pub fn members(&self, address: Address, slots: &[u8]) -> io::Result<Vec<OwnedFd>> {
        let group = self.groups.get(&address).ok_or(io::ErrorKind::NotFound)?;
        let member = |slot: &u8| group.member(*slot).ok_or(io::ErrorKind::NotFound)?.try_clone_to_owned();
        slots.iter().map(member).collect()
    }

    /// Whether an address's group has all these slots: not while it is short, because the address was gone.
    pub fn has(&self, address: Address, slots: &[u8]) -> bool {
        self.groups.get(&address).is_some_and(|group| slots.iter().all(|slot| group.member(*slot).is_some()))
    }

    /// Empties slots on one address and gives them buffers.
    pub fn lease(&self, address: Address, slots: &[u8]) -> io::Result<()> {
        let group = self.groups.get(&address).ok_or(io::ErrorKind::NotFound)?;
        slots.iter().try_for_each(|slot| group.lease(*slot))
    }

    /// Whether an address's group is from an earlier broker.
    pub fn is_adopted(&self, address: Address) -> bool {
        self.taken_back.contains(&address)
    }

    /// Takes a slot's buffers on all addresses.
    pub fn release(&self, slot: u8) {
        for (address, group) in &self.groups {
            if let Err(e) = group.release(slot) {
                warn!(%address, slot, "cannot empty a free slot: {e}");
            }
        }
    }

    /// Opens the group of one more address, as large as the others, and parks it. Returns whether the parked
    /// descriptors moved into a new pair.
    pub fn open(&mut self, system: &mut impl System<Group = G>, address: Address) -> Result<bool, GrowError> {
        let group = system.open(address).map_err(|source| GrowError::Open { address, source })?;
        self.groups.insert(address, group);
        self.changes += 1;
        let size = self.size();
        let moved = self.park_from(address, 0)?;
        Ok(self.level(size)? | moved)
    }

    /// Whether there is a group of this address, on any link.
    pub fn contains_ip(&self, ip: IpAddr) -> bool {
        self.groups.keys().any(|address| address.ip == ip)
    }

    /// Opens the next slot on every address. Returns its number, and whether the parked descriptors moved.
    pub fn grow(&mut self, system: &mut impl System<Group = G>) -> Result<(u8, bool), GrowError> {
        let complete = |address: &Address| {
            let ours = self.groups.get(address).map(Sockets::len);
            system.members_in_kernel(*address).is_none_or(|members| ours.is_none_or(|ours| ours == members))
        };
        if !self.taken_back.iter().all(complete) {
            return Err(GrowError::Incomplete);
        }
        let slot = self.size();
        let moved = self.level(slot + 1)?;
        Ok((slot as u8, moved))
    }

    /// Brings every group to `size` members, parking each new one at once: a member that only we hold when we
    /// die was the last of its group, and its end moves none. The group of an address that is no more cannot
    /// grow and stays short until the address comes back; that is an error only when no group has `size`
    /// members then.
    pub fn level(&mut self, size: usize) -> Result<bool, GrowError> {
        let mut moved = false;
        let mut gone = None;
        let addresses: Vec<Address> = self.groups.keys().copied().collect();
        for address in addresses {
            while let Some(group) = self.groups.get_mut(&address)
                && group.len() < size
            {
                let slot = group.len();
                match group.add_member() {
                    Ok(()) => moved |= self.park_from(address, slot as u8)?,
                    Err(source @ OpenError::NoAddress(_)) => {
                        gone = Some(GrowError::Open { address, source });
                        break;
                    }
                    Err(source) => return Err(GrowError::Open { address, source }),
                }
            }
        }
        match gone {
            Some(error) if self.size() < size => Err(error),
            _ => Ok(moved),
        }
    }

    /// Parks the members of one group from slot `first` on.
    fn park_from(&mut self, address: Address, first: u8) -> Result<bool, GrowError> {
        let Some(parking) = &self.parking else {
            self.park_all()?;
            return Ok(true);
        };
        let Some(group) = self.groups.get(&address) else { return Ok(false) };
        match parking.park(address, first, &members_from(group, first)) {
            Ok(()) => Ok(false),
            // The pair is full, with one packet a member: in a new one there is a packet a group.
            Err(_) => {
                self.park_all()?;
                Ok(true)
            }
        }
    }

    /// Parks everything in a new pair. The earlier one stays as long as programs hold it.
    pub fn park_all(&mut self) -> io::Result<()> {
        // Should it fail, the next slot tries again.
        self.parking = None;
        let parking = Parking::new()?;
        for (address, group) in &self.groups {
            parking.park(*address, 0, &members_from(group, 0))?;
        }
        self.parking = Some(parking);
        Ok(())
    }

    /// Takes what an earlier broker parked: whole groups that we do not have, and members beyond those we
    /// know. Returns whether there was any.
    pub fn adopt(&mut self, system: &mut impl System<Group = G>, parked: BorrowedFd<'_>) -> io::Result<bool> {
        let mut found: BTreeMap<Address, BTreeMap<u8, OwnedFd>> = BTreeMap::new();
        // A group that we opened ourselves was free of survivors then; only adopted ones can be incomplete.
        let wanted = |groups: &BTreeMap<Address, G>, address, slot: u8| match groups.get(&address) {
            Some(group) => self.taken_back.contains(&address) && usize::from(slot) >= group.len(),
            None => true,
        };
        parking::peek(parked, |parked| {
            if wanted(&self.groups, parked.address, parked.slot) {
                found.entry(parked.address).or_default().entry(parked.slot).or_insert(parked.fd);
            }
        })?;
        let mut any = false;
        for (address, parked) in found {
            let known = self.groups.get(&address).map_or(0, Sockets::len) as u8;
            let mut members = self.members(address, &(0..known).collect::<Vec<u8>>()).unwrap_or_default();
            for (slot, fd) in parked {
                if usize::from(slot) == members.len() {
                    members.push(fd);
                }
            }
            let count = members.len();
            match system.adopt(address, members) {
                Ok(group) => {
                    info!(%address, count, "took back the sockets of an earlier ferroced");
                    self.groups.insert(address, group);
                    self.taken_back.insert(address);
                    self.changes += 1;
                    any = true;
                }
                Err(e) => warn!(%address, "parked sockets are not a group: {e}"),
            }
        }
        Ok(any)
    }

    /// Closes the groups of other addresses than these, the parked duplicates included, which would hold the
    /// port of an address that comes back. Only while no program holds a slot.
    pub fn retain(&mut self, keep: impl Fn(Address) -> bool) {
        let before = self.groups.len();
        self.groups.retain(|address, _| keep(*address));
        self.changes += 1;
        self.taken_back.retain(|address| keep(*address));
        if self.groups.is_empty() {
            self.parking = None;
        } else if self.groups.len() < before
            && let Err(e) = self.park_all()
        {
            warn!("cannot park the sockets anew: {e}");
        }
    }
}

fn members_from<G: Sockets>(group: &G, first: u8) -> Vec<BorrowedFd<'_>> {
    (usize::from(first)..group.len()).filter_map(|slot| group.member(slot as u8)).collect()
}
