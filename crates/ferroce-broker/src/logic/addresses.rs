//! The addresses with sockets, and why others have none.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ferroce_datapath::udp::OpenError;
use ferroce_host::netdev::Address;
use ferroce_ipc::{LAST_MEMBER, Message, Refusal, RefusalCode};
use tracing::{error, warn};

use super::Clients;
use crate::groups::{Groups, GrowError};
use crate::refusal;
use crate::slots::Slots;
use crate::system::{Sockets, System};

/// Time between two looks whether ports that others hold are free.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The groups of sockets by address, and the addresses that could not get one.
#[derive(Debug)]
pub(crate) struct Addresses<G> {
    pub(crate) groups: Groups<G>,
    /// Addresses whose port somebody else holds: not in any GID table.
    taken: BTreeSet<Address>,
    /// Time of the next look whether those ports are free.
    next_look: Instant,
    /// Addresses that the system lists and does not have.
    absent: BTreeSet<Address>,
    /// Programs of an earlier broker may hold sockets of any address, also of one that the host has lost.
    unseen: bool,
    /// Whether a descriptor could not be had.
    pub(super) exhausted: bool,
}

/// The sockets of an address that was to be opened.
#[derive(Debug)]
pub(super) enum Opened {
    /// The sockets are open. The flag tells whether the parked descriptors moved.
    Yes(bool),
    /// Programs of an earlier broker may give them back.
    NotYet,
    /// Another process holds the port, as the sentence tells.
    Taken(String),
    Absent,
}

impl<G: Sockets> Addresses<G> {
    pub(super) fn new(system: &impl System<Group = G>) -> Self {
        Self {
            groups: Groups::new(),
            taken: BTreeSet::new(),
            next_look: Instant::now(),
            absent: BTreeSet::new(),
            unseen: system.most_members_but(&|_| false) > 1,
            exhausted: false,
        }
    }

    /// Whether no device may have this address.
    pub(super) fn hides(&self, address: Address) -> bool {
        self.taken.contains(&address) || self.absent.contains(&address)
    }

    /// The addresses whose port somebody else holds.
    pub(super) fn taken(&self) -> &BTreeSet<Address> {
        &self.taken
    }

    /// Time at which [`Self::is_due`] becomes true.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.taken.is_empty()).then_some(self.next_look)
    }

    /// Whether it is time for [`Self::retry_hidden`], which is then due [`RETRY_INTERVAL`] later.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next_look <= now;
        self.next_look = if due { now + RETRY_INTERVAL } else { self.next_look };
        due
    }

    /// Forgets addresses that are no more: those are examined anew when they come back.
    pub(super) fn retain_hidden(&mut self, listed: impl Fn(&Address) -> bool) {
        self.taken.retain(&listed);
        self.absent.retain(listed);
    }

    /// Opens the sockets of an address that has none. `last_try`: programs of an earlier broker had time to
    /// give them back.
    pub(super) fn open(
        &mut self,
        system: &mut impl System<Group = G>,
        address: Address,
        last_try: bool,
    ) -> Result<Opened, Refusal> {
        match self.groups.open(system, address) {
            Ok(moved) => Ok(Opened::Yes(moved)),
            Err(GrowError::Open { source: OpenError::InUse(_), .. }) if !last_try => Ok(Opened::NotYet),
            Err(GrowError::Open { source: OpenError::InUse(_), .. }) => {
                let sentence = held_sentence(system, address);
                error!("{sentence}");
                self.taken.insert(address);
                Ok(Opened::Taken(sentence))
            }
            Err(GrowError::Open { source: OpenError::NoAddress(_), .. }) => {
                self.absent.insert(address);
                Ok(Opened::Absent)
            }
            Err(e) => Err(self.cannot_grow(&e)),
        }
    }

    /// The answer to a lease for which no address has sockets.
    pub(super) fn none_works(&self, system: &impl System, notices: &[String]) -> Refusal {
        let held = || self.taken.first().map(|address| held_sentence(system, *address));
        match notices.first().cloned().or_else(held) {
            Some(notice) => {
                let sentence = format!(
                    "{notice}: stop it, or run in a network namespace of your own: ferroce run --private-net -- CMD"
                );
                refusal(RefusalCode::PortTaken, sentence)
            }
            None => {
                let sentence = "no device has an address that works; is lo up? (ip link set lo up)";
                refusal(RefusalCode::Failed, sentence)
            }
        }
    }

    /// The answer to a lease whose sockets cannot be opened.
    pub(super) fn cannot_grow(&mut self, error: &GrowError) -> Refusal {
        self.exhausted |= error.is_out_of_descriptors();
        failed(error)
    }

    /// Looks whether ports that others held are free now, and addresses that were not there are. Returns
    /// whether any is.
    pub(super) fn retry_hidden(&mut self, system: &mut impl System<Group = G>) -> bool {
        let before = self.taken.len() + self.absent.len();
        let Self { groups, taken, absent, .. } = self;
        for addresses in [&mut *taken, &mut *absent] {
            addresses.retain(|address| !groups.contains(*address) && groups.open(system, *address).is_err());
        }
        taken.len() + absent.len() < before
    }

    /// Addresses whose groups an earlier broker's programs gave back are not taken.
    pub(super) fn adopted(&mut self) {
        let groups = &self.groups;
        self.taken.retain(|address| !groups.contains(*address));
    }

    /// Whether others hold the port of an address.
    pub(super) fn are_taken(&self, system: &impl System) -> bool {
        self.taken.iter().any(|address| system.members_in_kernel(*address) != Some(0))
    }

    /// The size of the largest group that is not ours, 0 if there is none. Such a group was an earlier
    /// broker's, so there is none any more once none is found.
    pub(super) fn unseen_members(&mut self, system: &impl System) -> usize {
        if !self.unseen {
            return 0;
        }
        let members = system.most_members_but(&|ip| self.groups.contains_ip(ip));
        // A socket alone is no group: the broker has one of each.
        self.unseen = members > 1;
        if self.unseen { members } else { 0 }
    }

    /// Members that programs of an earlier broker may hold. Those that do not answer, because they are
    /// stopped perhaps, hold slots that we know by number alone: as many as their address has sockets. The
    /// host may have lost that address, so that no device has it.
    pub(super) fn members_of_survivors(&mut self, system: &impl System) -> usize {
        let most = usize::from(LAST_MEMBER) + 1;
        let members = |address: &Address| system.members_in_kernel(*address).unwrap_or(most);
        let taken = self.taken.iter().map(members).max().unwrap_or(0);
        taken.max(self.unseen_members(system)).min(most)
    }

    /// Brings every group to `size` members. Returns whether the parked descriptors moved.
    pub(super) fn level(&mut self, size: usize) -> Result<bool, Refusal> {
        self.groups.level(size).map_err(|e| failed(&e))
    }

    /// Sends the parked descriptors to the programs that hold sockets.
    pub(super) fn tell_parked(&self, slots: &Slots, clients: &mut Clients) {
        let all: Vec<_> = clients.iter().map(|(id, _)| id).collect();
        for client in all.into_iter().filter(|client| !slots.members_of(*client).is_empty()) {
            match self.groups.parked() {
                Ok(parked) => clients.send(client, 0, Message::Parked, vec![parked]),
                Err(e) => warn!("cannot pass on the parked descriptors: {e}"),
            }
        }
    }

    /// A duplicate of the broker's own socket on an address: close it when [`Groups::changes`] changes.
    pub(crate) fn own_socket(&self, address: Address) -> io::Result<OwnedFd> {
        self.groups.members(address, &[0])?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A duplicate of the socket of a divided member on an address, emptied and with a buffer.
    pub(crate) fn divided_socket(&self, address: Address, member: u8) -> io::Result<OwnedFd> {
        self.groups.lease(address, &[member])?;
        self.groups.members(address, &[member])?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn held_sentence(system: &impl System, address: Address) -> String {
    format!("UDP port 4791 of {address} is held by {}", system.port_holder(address))
}

fn failed(error: &GrowError) -> Refusal {
    let mut sentence = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        sentence = format!("{sentence}: {cause}");
        source = cause.source();
    }
    refusal(RefusalCode::Failed, sentence)
}
