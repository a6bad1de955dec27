//! The programs that are connected: of which users they are, what they may do and see, and what the server is
//! to do for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;
use ferroce_ipc::{
    ALL_USERS, DeviceInfo, Hello, LeaseEntry, Message, Peer, Refusal, RefusalCode, ResourceCounts, Strange,
};

use super::{Output, PipeEnd};
use crate::privilege::{Right, Unprivileged, restricts};
use crate::slots::{Slot, Slots};
use crate::system::System;
use crate::{ClientId, ProcessId, refusal};

/// Programs that a refusal names.
const MOST_NAMED: usize = 5;

/// How long the broker tells the name of a process that it read once: an asker chooses how often it is asked
/// for.
const COMMAND_LIFETIME: Duration = Duration::from_secs(1);

/// The clients by id, and the actions that wait for the server.
#[derive(Debug)]
pub(crate) struct Clients {
    /// The user of the broker.
    uid: u32,
    /// Programs of all users are served, not only those of `uid` and root.
    all_users: bool,
    known: BTreeMap<ClientId, Client>,
    output: VecDeque<Output>,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) peer: Peer,
    pub(super) process: ProcessId,
    /// Whether its death can be seen apart from its connection's end.
    pub(super) watched: bool,
    pub(super) greeted: bool,
    /// Whether the program's packets are to be seen, MADs within the host included.
    pub(super) shows_mads: bool,
    /// Whether the program sends its packets of RoCE v2 as frames.
    pub(super) frames_v2: bool,
    /// Doorbell of the program for pipes, and the file about its memory; empty if it takes no pipes.
    pub(super) offered: Vec<Guarded<Strange>>,
    pub(super) view: Option<u32>,
    /// The devices as the client last received them.
    pub(super) devices: Vec<DeviceInfo>,
    /// The devices that the client knew from an earlier broker.
    pub(super) devices_before: Vec<DeviceInfo>,
    /// Addresses whose sockets the program has.
    pub(super) addresses: BTreeSet<Address>,
    pub(super) resources: ResourceCounts,
    /// Whether it may send any frame anyway, as of its last request for a port of AF_XDP.
    pub(super) privilege: Result<(), Unprivileged>,
    /// Whether it may take ports below 1024, as of its last request for one.
    pub(super) low_ports: bool,
    /// The name of its process, and when the broker read that.
    command: Option<(Instant, String)>,
}

impl Clients {
    pub(super) fn new(uid: u32) -> Self {
        Self { uid, all_users: false, known: BTreeMap::new(), output: VecDeque::new() }
    }

    /// The user of the broker.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Serves programs of every user from now on: those that the server lets connect.
    pub(super) fn serve_all_users(&mut self) {
        self.all_users = true;
    }

    /// Whether programs of this user may become clients.
    pub(crate) fn serves(&self, uid: u32) -> bool {
        uid == self.uid || self.all_users
    }

    /// Takes a client and says hello to it.
    pub(super) fn add(&mut self, client: ClientId, peer: Peer, process: ProcessId, watched: bool) {
        let new = Client {
            peer,
            process,
            watched,
            greeted: false,
            shows_mads: false,
            frames_v2: false,
            offered: Vec::new(),
            view: None,
            devices: Vec::new(),
            devices_before: Vec::new(),
            addresses: BTreeSet::new(),
            resources: ResourceCounts::default(),
            privilege: Err(Unprivileged::Unknown),
            low_ports: false,
            command: None,
        };
        self.known.insert(client, new);
        let mut hello = Hello::ours("");
        hello.features |= if self.all_users { ALL_USERS } else { 0 };
        self.send(client, 0, Message::Hello(hello), Vec::new());
    }

    pub(super) fn remove(&mut self, client: ClientId) -> Option<Client> {
        self.known.remove(&client)
    }

    pub(super) fn get(&self, client: ClientId) -> Option<&Client> {
        self.known.get(&client)
    }

    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        self.known.get_mut(&client)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// All clients, in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.known.iter().map(|(id, client)| (*id, client))
    }

    /// The clients that `which` accepts.
    pub(super) fn select(&self, which: impl Fn(&Client) -> bool) -> Vec<ClientId> {
        self.iter().filter(|(_, client)| which(client)).map(|(id, _)| id).collect()
    }

    /// The actions that the server has not taken yet, the next one first.
    pub(super) fn output(&mut self) -> &mut VecDeque<Output> {
        &mut self.output
    }

    pub(super) fn send(&mut self, client: ClientId, id: u32, message: Message, descriptors: Vec<OwnedFd>) {
        self.output.push_back(Output::Send { client, id, message, descriptors });
    }

    pub(super) fn refuse(&mut self, client: ClientId, id: u32, refused: Refusal) {
        self.send(client, id, Message::Refused(refused), Vec::new());
    }

    /// Tells a client why it is not served, and closes its connection.
    pub(crate) fn turn_away(&mut self, client: ClientId, code: RefusalCode, sentence: String) {
        self.refuse(client, 0, refusal(code, sentence));
        self.output.push_back(Output::Close(client));
    }

    /// Whether a program is of another user than this broker.
    pub(super) fn is_foreign(&self, client: ClientId) -> bool {
        self.foreign_uid(client).is_some()
    }

    /// The user of a program, if that is another user than the broker's.
    pub(super) fn foreign_uid(&self, client: ClientId) -> Option<u32> {
        self.uid_of(client).filter(|uid| *uid != self.uid)
    }

    pub(super) fn uid_of(&self, client: ClientId) -> Option<u32> {
        self.get(client).map(|known| known.peer.uid)
    }

    pub(super) fn pid_of(&self, client: ClientId) -> Option<u32> {
        self.get(client).map(|known| known.peer.pid)
    }

    /// Refuses what only root and the broker's user may do.
    pub(super) fn only_for_administrators(&self, client: ClientId) -> Result<(), Refusal> {
        if !self.is_restricted(client) {
            return Ok(());
        }
        let who = match self.uid {
            0 => "root".to_owned(),
            uid => format!("root and {}, whose ferroced this is,", Peer::user(uid)),
        };
        Err(refusal(RefusalCode::Permission, format!("only {who} may do this: ask the administrator")))
    }

    /// Whether a client is neither root's nor of the broker's user.
    pub(super) fn is_restricted(&self, client: ClientId) -> bool {
        self.uid_of(client).is_some_and(|uid| self.restricts(uid))
    }

    /// Whether a user is neither root nor the broker's user.
    pub(super) fn restricts(&self, uid: u32) -> bool {
        restricts(self.uid, uid)
    }

    /// Whether a client may see the objects of another one.
    fn may_see(&self, client: ClientId, other: ClientId) -> bool {
        !self.is_restricted(client) || self.uid_of(client) == self.uid_of(other)
    }

    /// A program's right was looked at for a request.
    pub(crate) fn judged(&mut self, client: ClientId, right: Right, judged: Result<(), Unprivileged>) {
        if let Some(known) = self.get_mut(client) {
            match right {
                Right::Frames => known.privilege = judged,
                Right::LowPorts => known.low_ports = judged.is_ok(),
            }
        }
    }

    /// Refuses to end a broker that others than `asker` use.
    pub(super) fn refuse_if_used(
        &self,
        asker: ClientId,
        slots: &Slots,
        system: &impl System,
    ) -> Result<(), Refusal> {
        let others = self.iter().filter(|(id, _)| *id != asker);
        let users: BTreeSet<u32> = others.map(|(_, client)| client.peer.pid).collect();
        if users.is_empty() && slots.all_free() {
            return Ok(());
        }
        let named = users.iter().take(MOST_NAMED);
        let names: Vec<String> =
            named.map(|pid| format!("process {pid} ({})", system.command(*pid))).collect();
        let users = if names.is_empty() { "a program that is stopped".to_owned() } else { names.join(", ") };
        let sentence = format!(
            "ferroced is in use by {users}: end them first, or use `ferroce stop --force`: they keep running and start a new ferroced"
        );
        Err(refusal(RefusalCode::Busy, sentence))
    }

    /// The first `most` clients that hold slots, as far as `asker` may see them. The name of a process is at
    /// most [`COMMAND_LIFETIME`] old.
    pub(super) fn lease_entries(
        &mut self,
        asker: ClientId,
        most: usize,
        slots: &Slots,
        system: &impl System,
        now: Instant,
    ) -> Vec<(ClientId, LeaseEntry)> {
        let held = slots.by_client().into_iter().filter(|(holder, _)| self.may_see(asker, *holder));
        let held: Vec<_> = held.take(most).collect();
        let entry = |(holder, slots)| {
            let known = self.get_mut(holder)?;
            let Peer { pid, uid } = known.peer;
            let is_old = |(read, _): &(Instant, _)| now.saturating_duration_since(*read) >= COMMAND_LIFETIME;
            if known.command.as_ref().is_none_or(is_old) {
                known.command = Some((now, system.command(pid)));
            }
            let command = known.command.as_ref().map(|(_, command)| command.clone()).unwrap_or_default();
            Some((holder, LeaseEntry { pid, uid, command, slots, resources: known.resources }))
        };
        held.into_iter().filter_map(entry).collect()
    }

    /// A program wants rings: those who have them send from queue pairs of their slots.
    pub(super) fn open_rings(
        &mut self,
        client: ClientId,
        id: u32,
        v2: bool,
        descriptors: Vec<Strange>,
        slots: &Slots,
    ) -> Result<(), Option<Refusal>> {
        if slots.of(client).is_empty() {
            let sentence = "rings are for programs that hold slots";
            return Err(Some(refusal(RefusalCode::BadRequest, sentence)));
        }
        let bell = descriptors.into_iter().next().ok_or(None)?;
        let known = self.get_mut(client).ok_or(None)?;
        known.frames_v2 = v2;
        self.output.push_back(Output::OpenRings { client, id, bell });
        Ok(())
    }

    /// A program wants a pipe to the holder of `slot`. Both must have offered to take pipes.
    pub(super) fn open_pipe(
        &mut self,
        client: ClientId,
        id: u32,
        slot: u16,
        slots: &Slots,
    ) -> Result<(), Refusal> {
        let Some(Slot::Leased(other)) = slots.get(slot) else {
            return Err(refusal(RefusalCode::UnknownId, format!("no program holds slot {slot}")));
        };
        // A doorbell belongs to all that hold it: another user could shut it down for everybody.
        if self.uid_of(client) != self.uid_of(other) {
            let sentence = "programs of two users exchange packets through ferroced";
            return Err(refusal(RefusalCode::WrongState, sentence));
        }
        let ends = [self.pipe_end(client, slots)?, self.pipe_end(other, slots)?];
        self.output.push_back(Output::OpenPipe { id, ends });
        Ok(())
    }

    fn pipe_end(&self, client: ClientId, slots: &Slots) -> Result<PipeEnd, Refusal> {
        let known = self.get(client).filter(|known| !known.offered.is_empty() && known.watched);
        let Some(known) = known else {
            let sentence = "one of the two programs takes no pipes (FERROCE_DATAPATH)";
            return Err(refusal(RefusalCode::WrongState, sentence));
        };
        let offered: std::io::Result<Vec<_>> = known.offered.iter().map(|fd| fd.try_clone()).collect();
        let offered = offered
            .map_err(|e| refusal(RefusalCode::Failed, format!("ferroced cannot pass descriptors on: {e}")))?;
        Ok(PipeEnd { client, process: known.process, slots: slots.of(client), offered })
    }
}
