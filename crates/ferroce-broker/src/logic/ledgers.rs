//! Ledgers of programs: what all of them counted, and what those that ended left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ferroce_ipc::ledger::{DEVICE_COUNTERS, LedgerReader, Totals};
use ferroce_ipc::{DeviceInfo, LeaseEntry, Message, Peer, Refusal, RefusalCode, Strange};
use tracing::{debug, warn};

use super::{Broker, ClientId, ProcessId, Slot, addresses};
use crate::gsi::Traffic;
use crate::privilege::restricts;
use crate::refusal;
use crate::switch::{Counts, Reason};
use crate::system::System;
use ferroce_host::netdev::Address;

/// Most programs whose ledgers one answer brings: as many descriptors may wait for a user.
const MOST_LEDGERS: usize = 900;

/// How long the broker tells the name of a process that it read once: an asker chooses how often it is asked
/// for.
const KEPT: Duration = Duration::from_secs(1);

/// Octets of one user's ledgers that the broker reads in a second at most, on its only thread: some
/// milliseconds.
const SHARE: i64 = 16 << 20;
/// Octets that a user has saved up at most.
const MOST_SAVED: i64 = 4 << 20;

/// The ledgers that the broker reads. Their owners choose how long that takes, so each user has a share.
/// Programs count in the meantime as they were last read.
#[derive(Debug)]
pub(super) struct Ledgers {
    /// Ledgers of programs that are connected.
    live: BTreeMap<ClientId, Kept>,
    /// Ledgers of processes whose connection is gone, while slots wait for them.
    away: Vec<Kept>,
    /// The shares of the users whose ledgers were read within one.
    shares: BTreeMap<u32, Share>,
    /// The time, as the broker was last told it.
    now: Instant,
    /// How many ledgers were read.
    turn: u64,
    /// Counters of programs that exited, by device.
    left: BTreeMap<u32, Totals>,
    /// Frames that were dropped, by device.
    frames: BTreeMap<u32, Counts>,
}

/// A ledger, and what was last read from it.
#[derive(Debug)]
struct Kept {
    reader: LedgerReader,
    process: ProcessId,
    uid: u32,
    /// Sums by device. Names that no device had are left out.
    last: BTreeMap<String, Totals>,
    /// When it was read, in the order of [`Ledgers::turn`].
    turn: u64,
}

/// Octets that a user has left. Less than nothing after a ledger that is longer.
#[derive(Debug)]
struct Share {
    left: i64,
    at: Instant,
}

impl Share {
    /// The share of a user as it is now.
    fn of(shares: &mut BTreeMap<u32, Self>, uid: u32, now: Instant) -> &mut Self {
        let share = shares.entry(uid).or_insert(Self { left: MOST_SAVED, at: now });
        let passed = now.saturating_duration_since(share.at).as_micros().min(3_600_000_000) as i64;
        let more = passed * SHARE / 1_000_000;
        if more > 0 {
            (share.left, share.at) = ((share.left + more).min(MOST_SAVED), now);
        }
        share
    }
}

impl Ledgers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            live: BTreeMap::new(),
            away: Vec::new(),
            shares: BTreeMap::new(),
            now,
            turn: 0,
            left: BTreeMap::new(),
            frames: BTreeMap::new(),
        }
    }

    /// Time has passed.
    pub(super) fn clock(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }
}

impl Kept {
    /// Reads the ledger, unless nothing is left of the `share` of its user. `None`: the time does not count.
    fn read(&mut self, share: Option<&mut Share>, turn: &mut u64, is_device: impl Fn(&str) -> bool) {
        if share.as_ref().is_some_and(|share| share.left <= 0) {
            return;
        }
        let before = self.reader.octets_read();
        match self.reader.devices() {
            Ok(blocks) => {
                self.last.clear();
                for block in blocks.into_iter().filter(|block| is_device(&block.name)) {
                    let sum = self.last.entry(block.name).or_default();
                    sum.add(&block.totals.device, &block.totals.transport);
                }
            }
            Err(e) => debug!("what a program counts cannot be read: {e}"),
        }
        *turn += 1;
        self.turn = *turn;
        if let Some(share) = share {
            share.left -= (self.reader.octets_read() - before) as i64;
        }
    }
}

impl<S: System> Broker<S> {
    /// A program hands over its ledger. If the file is no ledger, the broker closes it and does not count for
    /// this program.
    pub(super) fn take_ledger(&mut self, client: ClientId, file: Strange) {
        let Some(known) = self.clients.get(&client) else { return };
        let (pid, uid, process) = (known.peer.pid, known.peer.uid, known.process);
        let reader = match LedgerReader::new(file) {
            Ok(reader) => reader,
            Err(e) => {
                warn!(pid, "what a program counts cannot be read: {e}");
                return;
            }
        };
        let inode = reader.inode();
        let same = |kept: &Kept| kept.process == process && kept.reader.inode() == inode;
        // The process has another connection, by which its ledger counts already.
        if self.ledgers.live.iter().any(|(other, kept)| *other != client && same(kept)) {
            return;
        }
        let away = self.ledgers.away.iter().position(same).map(|at| self.ledgers.away.remove(at));
        let last = away.map_or_else(BTreeMap::new, |kept| kept.last);
        let new = Kept { reader, process, uid, last, turn: 0 };
        match self.ledgers.live.insert(client, new) {
            // The process gave this file before, by another connection.
            Some(earlier) if earlier.reader.inode() == inode => {
                if let Some(kept) = self.ledgers.live.get_mut(&client) {
                    kept.last = earlier.last;
                }
            }
            Some(earlier) => self.leave_behind(earlier),
            None => {}
        }
    }

    /// A client is gone; `waits`: its process may come back.
    pub(super) fn put_ledger_away(&mut self, client: ClientId, waits: bool) {
        let Some(kept) = self.ledgers.live.remove(&client) else { return };
        match waits {
            true => self.ledgers.away.push(kept),
            false => self.leave_behind(kept),
        }
    }

    /// Slots became free: keeps what their holders counted.
    pub(super) fn settle_ledgers(&mut self) {
        let away = std::mem::take(&mut self.ledgers.away);
        if away.is_empty() {
            return;
        }
        let waited_for: BTreeSet<ProcessId> = self
            .slots
            .iter()
            .filter_map(|(_, state)| match state {
                Slot::Away { process, .. } => Some(process),
                _ => None,
            })
            .collect();
        let (kept, ended): (Vec<_>, Vec<_>) =
            away.into_iter().partition(|kept| waited_for.contains(&kept.process));
        self.ledgers.away = kept;
        ended.into_iter().for_each(|kept| self.leave_behind(kept));
    }

    fn leave_behind(&mut self, mut kept: Kept) {
        let counts = restricts(self.uid, kept.uid);
        let Self { ledgers, devices, .. } = self;
        let Ledgers { shares, now, turn, .. } = ledgers;
        let share = counts.then(|| Share::of(shares, kept.uid, *now));
        kept.read(share, turn, |name| devices.all().any(|device| device.name == name));
        for (name, totals) in kept.last {
            if let Some(id) = devices.all().find(|device| device.name == name).map(|device| device.id) {
                ledgers.left.entry(id).or_default().add(&totals.device, &totals.transport);
            }
        }
    }

    /// Reads all ledgers, those first that were not read for longest, as far as the shares of their users go.
    /// A ledger counts for no share if neither the asker nor the owner can keep the broker busy with it.
    fn read_ledgers(&mut self, asker: ClientId) {
        let asked = self.is_restricted(asker);
        let Self { ledgers, devices, uid, .. } = self;
        let restricts = |owner: u32| restricts(*uid, owner);
        let Ledgers { live, away, shares, now, turn, .. } = ledgers;
        let mut all: Vec<&mut Kept> = live.values_mut().chain(away).collect();
        all.sort_by_key(|kept| kept.turn);
        for kept in all {
            let counts = asked || restricts(kept.uid);
            let share = counts.then(|| Share::of(shares, kept.uid, *now));
            kept.read(share, turn, |name| devices.all().any(|device| device.name == name));
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

    /// Frames that were dropped at an interface count for the device that stands on it, or has addresses of
    /// it.
    pub fn frames_dropped(&mut self, ifindex: u32, more: &Counts) {
        let upper = |device: &&DeviceInfo| device.gids.iter().any(|entry| entry.ifindex == ifindex);
        let own = self.devices.all().find(|device| device.ifindex == ifindex && !device.is_iwarp());
        let Some(id) = own.or_else(|| self.devices.all().find(upper)).map(|device| device.id) else { return };
        let counts = self.ledgers.frames.entry(id).or_default();
        counts.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
    }

    /// Sums the counters of a device over all programs.
    pub(super) fn statistics(&mut self, client: ClientId, device: &str) -> Result<Message, Refusal> {
        let Some(id) = self.devices.all().find(|d| d.name == device).map(|d| d.id) else {
            let sentence = format!("there is no device named {device}");
            return Err(refusal(RefusalCode::UnknownLink, sentence));
        };
        self.read_ledgers(client);
        let mut sum = self.ledgers.left.get(&id).cloned().unwrap_or_default();
        for totals in
            self.ledgers.live.values().chain(&self.ledgers.away).filter_map(|kept| kept.last.get(device))
        {
            sum.add(&totals.device, &totals.transport);
        }
        let frames = self.ledgers.frames.get(&id).copied().unwrap_or_default();
        let frames = Reason::ALL.iter().map(Reason::counter).zip(frames);
        let named = sum.named().into_iter().chain(frames).map(|(name, value)| (name.to_owned(), value));
        Ok(Message::Statistics(named.chain(self.xdp_dropped(id)).chain(self.xdp_ports(id)).collect()))
    }

    /// The first `most` clients that hold slots, as far as `asker` may see them. The name of a process is at
    /// most [`KEPT`] old.
    pub(super) fn lease_entries(&mut self, asker: ClientId, most: usize) -> Vec<(ClientId, LeaseEntry)> {
        let held = self.slots.by_client().into_iter().filter(|(holder, _)| self.may_see(asker, *holder));
        let held: Vec<_> = held.take(most).collect();
        let Self { clients, system, ledgers, .. } = self;
        let entry = |(holder, slots)| {
            let known = clients.get_mut(&holder)?;
            let Peer { pid, uid } = known.peer;
            let is_old = |(read, _): &(Instant, _)| ledgers.now.saturating_duration_since(*read) >= KEPT;
            if known.command.as_ref().is_none_or(is_old) {
                known.command = Some((ledgers.now, system.command(pid)));
            }
            let command = known.command.as_ref().map(|(_, command)| command.clone()).unwrap_or_default();
            Some((holder, LeaseEntry { pid, uid, command, slots, resources: known.resources }))
        };
        held.into_iter().filter_map(entry).collect()
    }

    /// How many wait for their program.
    #[cfg(test)]
    pub(super) fn ledgers_away(&self) -> usize {
        self.ledgers.away.len()
    }

    /// Octets of ledgers that were read, as far as they are kept.
    #[cfg(test)]
    pub(super) fn ledger_octets_read(&self) -> u64 {
        self.ledgers.live.values().map(|kept| kept.reader.octets_read()).sum()
    }

    /// Sends the ledgers of all programs to who asked.
    pub(super) fn send_ledgers(&mut self, client: ClientId, id: u32) {
        let entries = self.lease_entries(client, usize::MAX);
        let share = |(holder, program)| {
            let kept = self.ledgers.live.get(&holder)?;
            Some((program, kept.reader.as_fd().try_clone_to_owned().ok()?))
        };
        let shared: Vec<(LeaseEntry, OwnedFd)> =
            entries.into_iter().filter_map(share).take(MOST_LEDGERS).collect();
        self.send(client, id, Message::Ledgers(shared.len() as u16), Vec::new());
        for (program, file) in shared {
            self.send(client, id, Message::LedgerOf(program), vec![file]);
        }
    }
}
