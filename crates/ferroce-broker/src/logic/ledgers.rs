//! Ledgers of programs: what all of them counted, and what those that ended left behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ferroce_ipc::ledger::{DEVICE_COUNTERS, LedgerReader, Totals};
use ferroce_ipc::{DeviceInfo, LeaseEntry, Message, Strange};
use tracing::{debug, warn};

use super::clients::Clients;
use super::leases::Leases;
use crate::devices::{Devices, has_address};
use crate::gsi::Traffic;
use crate::privilege::restricts;
use crate::switch::{Counts, Reason};
use crate::{ClientId, ProcessId};
use ferroce_host::netdev::Address;

/// Most programs whose ledgers one answer brings: as many descriptors may wait for a user.
const MOST_LEDGERS: usize = 900;

/// Octets of one user's ledgers that the broker reads in a second at most, on its only thread: some
/// milliseconds.
const SHARE: i64 = 16 << 20;
/// Octets that a user has saved up at most.
const MOST_SAVED: i64 = 4 << 20;

/// Programs that ended whose ledgers are kept, so that `ferroce explain` can read them.
pub(super) const MOST_ENDED: usize = 16;

/// The most memory of such a ledger: it is the broker's from now on.
const MOST_ENDED_OCTETS: u64 = 4 << 20;

/// The ledgers that the broker reads. Their owners choose how long that takes, so each user has a share.
/// Programs count in the meantime as they were last read.
#[derive(Debug)]
pub(super) struct Ledgers {
    /// The user of the broker.
    uid: u32,
    /// Ledgers of programs that are connected.
    live: BTreeMap<ClientId, Kept>,
    /// Ledgers of processes whose connection is gone, while slots wait for them.
    away: Vec<Kept>,
    /// Ledgers of programs that ended, the oldest first.
    ended: VecDeque<Kept>,
    /// The shares of the users whose ledgers were read within one.
    shares: BTreeMap<u32, Share>,
    /// The time, as the broker was last told it.
    pub(super) now: Instant,
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
    pid: u32,
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
    pub(super) fn new(uid: u32, now: Instant) -> Self {
        Self {
            uid,
            live: BTreeMap::new(),
            away: Vec::new(),
            ended: VecDeque::new(),
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

    /// A program hands over its ledger. If the file is no ledger, the broker closes it and does not count for
    /// this program.
    pub(super) fn take(&mut self, client: ClientId, file: Strange, clients: &Clients, devices: &Devices) {
        let Some(known) = clients.get(client) else { return };
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
        if self.live.iter().any(|(other, kept)| *other != client && same(kept)) {
            return;
        }
        let away = self.away.iter().position(same).map(|at| self.away.remove(at));
        let last = away.map_or_else(BTreeMap::new, |kept| kept.last);
        let new = Kept { reader, process, pid, uid, last, turn: 0 };
        match self.live.insert(client, new) {
            // The process gave this file before, by another connection.
            Some(earlier) if earlier.reader.inode() == inode => {
                if let Some(kept) = self.live.get_mut(&client) {
                    kept.last = earlier.last;
                }
            }
            Some(earlier) => self.leave_behind(earlier, devices),
            None => {}
        }
    }

    /// A client is gone; `waits`: its process may come back.
    pub(super) fn put_away(&mut self, client: ClientId, waits: bool, devices: &Devices) {
        let Some(kept) = self.live.remove(&client) else { return };
        match waits {
            true => self.away.push(kept),
            false => self.leave_behind(kept, devices),
        }
    }

    /// Slots became free: keeps what their holders counted.
    pub(super) fn settle(&mut self, leases: &Leases, devices: &Devices) {
        if self.away.is_empty() {
            return;
        }
        let waited_for: BTreeSet<ProcessId> = leases.processes_away().collect();
        let ended = self.away.extract_if(.., |kept| !waited_for.contains(&kept.process));
        for kept in ended.collect::<Vec<_>>() {
            self.leave_behind(kept, devices);
        }
    }

    fn leave_behind(&mut self, mut kept: Kept, devices: &Devices) {
        let Self { shares, now, turn, .. } = self;
        let share = restricts(self.uid, kept.uid).then(|| Share::of(shares, kept.uid, *now));
        kept.read(share, turn, |name| devices.id_of(name).is_some());
        for (name, totals) in &kept.last {
            if let Some(id) = devices.id_of(name) {
                self.left.entry(id).or_default().add(&totals.device, &totals.transport);
            }
        }
        if kept.reader.has_recordings() && is_small(&kept.reader) {
            if self.ended.len() >= MOST_ENDED {
                // The user's own ledgers make room first.
                let of_user = self.ended.iter().position(|ended| ended.uid == kept.uid);
                self.ended.remove(of_user.unwrap_or(0));
            }
            self.ended.push_back(kept);
        }
    }

    /// Reads all ledgers, those first that were not read for longest, as far as the shares of their users go.
    /// A ledger counts for no share if neither the asker, whom the broker may restrict, nor the owner can
    /// keep the broker busy with it.
    fn read_all(&mut self, asker_is_restricted: bool, devices: &Devices) {
        let Self { live, away, shares, now, turn, .. } = self;
        let mut all: Vec<&mut Kept> = live.values_mut().chain(away).collect();
        all.sort_by_key(|kept| kept.turn);
        for kept in all {
            let counts = asker_is_restricted || restricts(self.uid, kept.uid);
            let share = counts.then(|| Share::of(shares, kept.uid, *now));
            kept.read(share, turn, |name| devices.id_of(name).is_some());
        }
    }

    /// Packets of queue pair 1, which is the broker's own, count for the device of their address.
    pub(super) fn mads_passed(&mut self, address: Address, traffic: &Traffic, devices: &Devices) {
        let Some(id) = devices.all().find(|device| has_address(device, address)).map(|device| device.id)
        else {
            return;
        };
        let left = self.left.entry(id).or_default();
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
    pub(super) fn frames_dropped(&mut self, ifindex: u32, more: &Counts, devices: &Devices) {
        let upper = |device: &&DeviceInfo| device.gids.iter().any(|entry| entry.ifindex == ifindex);
        let own = devices.all().find(|device| device.ifindex == ifindex && !device.is_iwarp());
        let Some(id) = own.or_else(|| devices.all().find(upper)).map(|device| device.id) else { return };
        let counts = self.frames.entry(id).or_default();
        counts.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
    }

    /// Sums the counters of a device over all programs.
    pub(super) fn statistics(
        &mut self,
        device: &str,
        asker_is_restricted: bool,
        devices: &Devices,
    ) -> Vec<(String, u64)> {
        self.read_all(asker_is_restricted, devices);
        let id = devices.id_of(device);
        let mut sum = id.and_then(|id| self.left.get(&id)).cloned().unwrap_or_default();
        for totals in self.live.values().chain(&self.away).filter_map(|kept| kept.last.get(device)) {
            sum.add(&totals.device, &totals.transport);
        }
        let frames = id.and_then(|id| self.frames.get(&id)).copied().unwrap_or_default();
        let frames = Reason::COUNTERS.into_iter().map(|(_, name)| name).zip(frames);
        sum.named().into_iter().chain(frames).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// How many wait for their program.
    #[cfg(test)]
    pub(super) fn count_away(&self) -> usize {
        self.away.len()
    }

    /// Octets of ledgers that were read, as far as they are kept.
    #[cfg(test)]
    pub(super) fn octets_read(&self) -> u64 {
        self.live.values().map(|kept| kept.reader.octets_read()).sum()
    }

    /// Sends the ledgers of these programs as the answer to a client's request.
    pub(super) fn send_all(
        &self,
        client: ClientId,
        id: u32,
        programs: Vec<(ClientId, LeaseEntry)>,
        clients: &mut Clients,
    ) {
        let share = |(holder, program)| {
            let kept = self.live.get(&holder)?;
            Some((program, kept.reader.as_fd().try_clone_to_owned().ok()?))
        };
        let shared: Vec<(LeaseEntry, OwnedFd)> =
            programs.into_iter().filter_map(share).take(MOST_LEDGERS).collect();
        Self::send(client, id, shared, clients);
    }

    /// Sends the ledgers of programs that ended, as far as the client may see them. The programs have their
    /// names in them.
    pub(super) fn send_ended(&mut self, client: ClientId, id: u32, clients: &mut Clients) {
        // Somebody else may have the file, and write to it.
        self.ended.retain(|ended| is_small(&ended.reader));
        let asker = clients.uid_of(client).filter(|_| clients.is_restricted(client));
        let visible = self.ended.iter().filter(|ended| asker.is_none_or(|uid| uid == ended.uid));
        let share = |ended: &Kept| {
            let program = LeaseEntry { pid: ended.pid, uid: ended.uid, ..LeaseEntry::default() };
            Some((program, ended.reader.as_fd().try_clone_to_owned().ok()?))
        };
        Self::send(client, id, visible.filter_map(share).collect(), clients);
    }

    fn send(client: ClientId, id: u32, shared: Vec<(LeaseEntry, OwnedFd)>, clients: &mut Clients) {
        clients.send(client, id, Message::Ledgers(shared.len() as u16), Vec::new());
        for (program, file) in shared {
            clients.send(client, id, Message::LedgerOf(program), vec![file]);
        }
    }
}

/// Whether the broker can afford to keep the ledger of a program that ended.
fn is_small(ledger: &LedgerReader) -> bool {
    ledger.memory().is_ok_and(|octets| octets <= MOST_ENDED_OCTETS)
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
