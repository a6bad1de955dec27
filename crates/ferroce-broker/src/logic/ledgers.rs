//! Ledgers of programs: what all of them counted, and what those that ended left behind.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ferroce_ipc::ledger::{DEVICE_COUNTERS, LedgerReader, Totals};
use ferroce_ipc::{DeviceInfo, LeaseEntry, Message, Refusal, RefusalCode, Strange};
use tracing::{debug, warn};

use super::{Broker, ClientId, ProcessId, Slot, addresses};
use crate::gsi::Traffic;
use crate::refusal;
use crate::switch::{Counts, Reason};
use crate::system::System;
use ferroce_host::netdev::Address;

/// Most programs whose ledgers one answer brings: fewer than the messages that may wait for a client.
const MOST_LEDGERS: usize = 900;

/// The ledgers that the broker reads.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    /// Of programs that are connected.
    live: BTreeMap<ClientId, LedgerReader>,
    /// Of processes whose connection is gone, while slots wait for them.
    away: Vec<(ProcessId, LedgerReader)>,
    /// Counters of programs that exited, by device.
    left: BTreeMap<u32, Totals>,
    /// Frames that were dropped, by device.
    frames: BTreeMap<u32, Counts>,
}

impl<S: System> Broker<S> {
    /// A program hands over its ledger. If the file is no ledger, the broker closes it and does not count for this program.
    pub(super) fn take_ledger(&mut self, client: ClientId, file: Strange) {
        let Some(known) = self.clients.get(&client) else { return };
        match LedgerReader::new(file) {
            Ok(ledger) => {
                let process = known.process;
                self.ledgers.away.retain(|(p, old)| *p != process || old.inode() != ledger.inode());
                if let Some(earlier) = self.ledgers.live.insert(client, ledger)
                    && self.ledgers.live.get(&client).is_some_and(|now| now.inode() != earlier.inode())
                {
                    self.leave_behind(&earlier);
                }
            }
            Err(e) => warn!(pid = known.peer.pid, "what a program counts cannot be read: {e}"),
        }
    }

    /// A client is gone; `process` if it may come back.
    pub(super) fn put_ledger_away(&mut self, client: ClientId, process: Option<ProcessId>) {
        let Some(ledger) = self.ledgers.live.remove(&client) else { return };
        match process {
            Some(process) => self.ledgers.away.push((process, ledger)),
            None => self.leave_behind(&ledger),
        }
    }

    /// Slots became free: keeps what their holders counted.
    pub(super) fn settle_ledgers(&mut self) {
        let waited_for = |process: &ProcessId| {
            self.slots
                .iter()
                .any(|(_, state)| matches!(state, Slot::Away { process: p, .. } if p == *process))
        };
        let away = std::mem::take(&mut self.ledgers.away);
        let (kept, ended): (Vec<_>, Vec<_>) = away.into_iter().partition(|(process, _)| waited_for(process));
        self.ledgers.away = kept;
        ended.iter().for_each(|(_, ledger)| self.leave_behind(ledger));
    }

    fn leave_behind(&mut self, ledger: &LedgerReader) {
        let blocks = match ledger.devices() {
            Ok(blocks) => blocks,
            Err(e) => {
                debug!("what an ended program counted cannot be read: {e}");
                return;
            }
        };
        for block in blocks {
            if let Some(id) = self.devices.all().find(|d| d.name == block.name).map(|d| d.id) {
                let left = self.ledgers.left.entry(id).or_default();
                left.add(&block.totals.device, &block.totals.transport);
            }
        }
    }

    /// Packets of queue pair 1, which is the broker's own, count for the device of their address.
    pub fn mads_passed(&mut self, address: Address, traffic: &Traffic) {
        let has = |device: &&DeviceInfo| addresses(device).any(|known| known == address);
        let Some(id) = self.devices.all().find(has).map(|device| device.id) else { return };
        let left = self.ledgers.left.entry(id).or_default();
        for (name, more) in [
            ("rcvd_pkts", traffic.rcvd_pkts),
            ("rcvd_octets", traffic.rcvd_octets),
            ("sent_pkts", traffic.sent_pkts),
            ("sent_octets", traffic.sent_octets),
            ("send_err", traffic.send_err),
        ] {
            let place = DEVICE_COUNTERS.iter().position(|known| *known == name);
            if let Some(count) = place.and_then(|place| left.device.get_mut(place)) {
                *count = count.wrapping_add(more);
            }
        }
    }

    /// Frames that were dropped at an interface count for the device that stands on it, or has addresses of it.
    pub fn frames_dropped(&mut self, ifindex: u32, more: &Counts) {
        let upper = |device: &&DeviceInfo| device.gids.iter().any(|entry| entry.ifindex == ifindex);
        let own = self.devices.all().find(|device| device.ifindex == ifindex && !device.is_iwarp());
        let Some(id) = own.or_else(|| self.devices.all().find(upper)).map(|device| device.id) else { return };
        let counts = self.ledgers.frames.entry(id).or_default();
        counts.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
    }

    /// Sums the counters of a device over all programs.
    pub(super) fn statistics(&self, device: &str) -> Result<Message, Refusal> {
        let Some(id) = self.devices.all().find(|d| d.name == device).map(|d| d.id) else {
            let sentence = format!("there is no device named {device}");
            return Err(refusal(RefusalCode::UnknownLink, sentence));
        };
        let mut sum = self.ledgers.left.get(&id).cloned().unwrap_or_default();
        let away = self.ledgers.away.iter().map(|(_, ledger)| ledger);
        for ledger in self.ledgers.live.values().chain(away) {
            for block in ledger.devices().unwrap_or_default() {
                if block.name == device {
                    sum.add(&block.totals.device, &block.totals.transport);
                }
            }
        }
        let frames = self.ledgers.frames.get(&id).copied().unwrap_or_default();
        let frames = Reason::ALL.iter().map(Reason::counter).zip(frames);
        let named = sum.named().into_iter().chain(frames).map(|(name, value)| (name.to_owned(), value));
        Ok(Message::Statistics(named.chain(self.xdp_dropped(id)).chain(self.xdp_ports(id)).collect()))
    }

    /// A client that holds slots.
    pub(super) fn lease_entry(&self, client: ClientId) -> Option<LeaseEntry> {
        let known = self.clients.get(&client)?;
        let slots = self.slots.of(client);
        (!slots.is_empty()).then(|| LeaseEntry {
            pid: known.peer.pid,
            uid: known.peer.uid,
            command: self.system.command(known.peer.pid),
            slots,
            resources: known.resources,
        })
    }

    /// How many wait for their program.
    #[cfg(test)]
    pub(super) fn ledgers_away(&self) -> usize {
        self.ledgers.away.len()
    }

    /// Sends the ledgers of all programs to who asked.
    pub(super) fn send_ledgers(&mut self, client: ClientId, id: u32) {
        let share = |(holder, ledger): (&ClientId, &LedgerReader)| -> io::Result<(LeaseEntry, OwnedFd)> {
            let program = self.lease_entry(*holder).ok_or(io::ErrorKind::NotFound)?;
            Ok((program, ledger.as_fd().try_clone_to_owned()?))
        };
        let seen = self.ledgers.live.iter().filter(|(holder, _)| self.may_see(client, **holder));
        let shared: Vec<_> = seen.filter_map(|one| share(one).ok()).take(MOST_LEDGERS).collect();
        self.send(client, id, Message::Ledgers(shared.len() as u16), Vec::new());
        for (program, file) in shared {
            self.send(client, id, Message::LedgerOf(program), vec![file]);
        }
    }
}
