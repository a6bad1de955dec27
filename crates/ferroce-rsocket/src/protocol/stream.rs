//! An end of a connected stream.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use crate::message::{ByteOrder, ConnectData, Grant, Mapping, Message};
use ferroce_wire::Rkey;

use super::types::{
    CONTROL_SLOTS, Fault, GRANTS, How, Incoming, LOW_WATER, MAX_TRANSFER, NoMapping, OwnMemory, Payload,
    Phase, Sizes, Table, Write,
};
use ferroce_proto::{Remote, WcStatus};

/// The kind of a work request and its octets, encoded in its id: the kind in the upper half, octets in the
/// lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Posted {
    Data(u32),
    Mapping,
    Control,
    Disconnect,
}

impl Posted {
    const fn id(self) -> u64 {
        match self {
            Self::Data(octets) => octets as u64,
            Self::Mapping => 1 << 32,
            Self::Control => 2 << 32,
            Self::Disconnect => 3 << 32,
        }
    }

    const fn of(id: u64) -> Self {
        match id >> 32 {
            0 => Self::Data(id as u32),
            1 => Self::Mapping,
            2 => Self::Control,
            _ => Self::Disconnect,
        }
    }
}

/// An end of a connected stream.
///
/// After each call, the caller drains [`StreamProtocol::control`] and posts every returned [`Write`] in
/// order. It passes completions to [`StreamProtocol::sent`] and [`StreamProtocol::received`] in order, and
/// posts another receive WQE for each of the latter.
#[derive(Debug)]
pub struct StreamProtocol {
    sizes: Sizes,
    own: OwnMemory,
    phase: Phase,
    readable: bool,
    writable: bool,

    // Sending.
    peer: ConnectData,
    /// Number of the next message, and the first that the peer has no room for.
    number: u16,
    limit: u16,
    /// Free send WQEs, without those for control messages.
    slots: u16,
    control: u16,
    /// Sent as soon as a slot is free.
    pending_end: Option<Message>,
    send_at: u32,
    send_free: u32,
    /// The rest of the grant in use, the table index of the next one, and the number of grants that arrived
    /// unused.
    grant: Grant,
    next_grant: usize,
    untaken: usize,
    /// Memory that the peer mapped.
    mapped: Vec<Option<Mapping>>,

    // Receiving.
    /// Octets that the peer may still write.
    granted: u32,
    /// The unread octets of each received message.
    messages: VecDeque<u32>,
    available: u32,
    read_at: u32,
    /// Octets read but not granted again, and their start.
    ungranted: u32,
    grant_at: u32,
    /// Messages read, and the count at which credits are due.
    read: u16,
    due: u16,
    /// Index of our next grant in the peer's table.
    peer_index: u32,
}

impl StreamProtocol {
    /// Builds one end after both ends exchanged their connection data.
    ///
    /// # Errors
    ///
    /// If the peer's table is too small.
    pub fn new(sizes: Sizes, own: OwnMemory, peer: ConnectData) -> Result<Self, Fault> {
        if (peer.table.length as usize) < GRANTS {
            return Err(Fault::PeerTable(peer.table.length));
        }
        let half = sizes.receive_buffer / 2;
        Ok(Self {
            sizes,
            own,
            phase: Phase::Connected,
            readable: true,
            writable: true,
            peer,
            number: 0,
            limit: peer.credits,
            slots: sizes.send_queue.saturating_sub(CONTROL_SLOTS),
            control: 0,
            pending_end: None,
            send_at: 0,
            send_free: sizes.send_buffer,
            grant: peer.first,
            next_grant: 1,
            untaken: 0,
            mapped: vec![None; usize::from(sizes.mappings)],
            granted: half,
            messages: VecDeque::with_capacity(usize::from(sizes.receive_queue)),
            available: 0,
            read_at: 0,
            ungranted: half,
            grant_at: half,
            read: 0,
            due: sizes.receive_queue / 2,
            peer_index: 1,
        })
    }

    /// Returns the private data of our REQ or REP.
    pub fn connect_data(sizes: &Sizes, own: &OwnMemory) -> ConnectData {
        let grant = |memory: Remote, length| Grant { addr: memory.addr, rkey: memory.rkey, length };
        ConnectData {
            order: ByteOrder::NATIVE,
            credits: sizes.receive_queue,
            mappings: sizes.mappings,
            table: grant(own.table, GRANTS as u32),
            first: grant(own.receive, sizes.receive_buffer / 2),
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// The peer may send more, or received octets are unread.
    pub fn is_readable(&self) -> bool {
        self.readable && self.is_connected()
    }

    /// This end has not shut down sending, and the peer is connected.
    pub fn is_writable(&self) -> bool {
        self.writable && self.is_connected()
    }

    pub fn available(&self) -> u32 {
        self.available
    }

    pub fn can_send(&self) -> bool {
        self.is_writable()
            && self.slots > 0
            && self.send_free >= LOW_WATER
            && self.number != self.limit
            && self.grant.length > 0
    }

    /// All octets sent have arrived.
    pub fn is_drained(&self) -> bool {
        let all = self.sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        self.slots == all && self.control == 0 && self.pending_end.is_none()
    }

    /// The first piece of a transfer; see [`StreamProtocol::transfer`].
    pub const FIRST_PIECE: u32 = LOW_WATER;

    /// The piece after one of `piece` octets: small first pieces leave early, large later ones cost less.
    pub fn next_piece(piece: u32) -> u32 {
        piece.saturating_mul(2).min(MAX_TRANSFER)
    }

    /// Sends up to `octets`; the payload gives the number. Returns `None` if nothing can be sent now.
    pub fn transfer(&mut self, octets: u32, table: &impl Table) -> Option<Write> {
        if !self.can_send() || octets == 0 {
            return None;
        }
        let length = octets.min(self.send_free).min(self.grant.length);
        let remote = Remote { addr: self.grant.addr, rkey: self.grant.rkey };
        self.grant.addr = self.grant.addr.wrapping_add(u64::from(length));
        self.grant.length -= length;
        self.number = self.number.wrapping_add(1);
        let payload = self.buffer(length);
        self.take_grant(table);
        Some(Write {
            wr_id: Posted::Data(length).id(),
            payload,
            remote,
            imm: Some(Message::Data(length).imm()),
        })
    }

    /// Writes up to `octets` to the memory that the peer mapped at `offset`. Returns `None` if nothing can be
    /// sent now.
    ///
    /// # Errors
    ///
    /// If the peer mapped no memory there.
    pub fn direct(&mut self, offset: u64, octets: u32) -> Result<Option<Write>, NoMapping> {
        let within = |mapping: &&Mapping| {
            offset.checked_sub(mapping.offset).is_some_and(|past| past < u64::from(mapping.memory.length))
        };
        let mapping = self.mapped.iter().flatten().find(within).ok_or(NoMapping(offset))?;
        let past = offset - mapping.offset;
        let left = mapping.memory.length - past as u32;
        let remote = Remote { addr: mapping.memory.addr.wrapping_add(past), rkey: mapping.memory.rkey };
        if !self.can_send() || octets == 0 {
            return Ok(None);
        }
        let length = octets.min(self.send_free).min(left);
        let payload = self.buffer(length);
        Ok(Some(Write { wr_id: Posted::Data(length).id(), payload, remote, imm: None }))
    }

    /// Capacity of the peer's table for mappings.
    pub fn peer_mappings(&self) -> u16 {
        self.peer.mappings
    }

    /// Announces the mapping of `index`, which is below [`StreamProtocol::peer_mappings`]. Returns `None` if
    /// nothing can be sent now.
    pub fn announce_mapping(&mut self, index: u16, mapping: &Mapping) -> Option<Write> {
        if !self.can_send() {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        self.slots -= 1;
        let grants = u64::from(self.peer.table.length) * Grant::LEN as u64;
        let at = grants + u64::from(index) * Mapping::LEN as u64;
        Some(Write {
            wr_id: Posted::Mapping.id(),
            payload: Payload::Mapping(mapping.emit(self.peer.order)),
            remote: self.in_peer_table(at),
            imm: Some(Message::Mapped(index).imm()),
        })
    }

    fn in_peer_table(&self, at: u64) -> Remote {
        Remote { addr: self.peer.table.addr.wrapping_add(at), rkey: self.peer.table.rkey }
    }

    /// Takes room in the send buffer. Inline octets are captured at once, but count until they arrive.
    fn buffer(&mut self, length: u32) -> Payload {
        self.slots -= 1;
        self.send_free -= length;
        let at = self.send_at;
        let first = length.min(self.sizes.send_buffer - at);
        let wrapped = length - first;
        let inline = length <= self.sizes.inline;
        if !inline {
            self.send_at = if wrapped > 0 { wrapped } else { at + first };
            if self.send_at == self.sizes.send_buffer {
                self.send_at = 0;
            }
        }
        Payload::Buffer { at, first, wrapped, inline }
    }

    /// Takes the next grant if the current one is used up.
    fn take_grant(&mut self, table: &impl Table) {
        if self.grant.length > 0 || self.untaken == 0 {
            return;
        }
        self.grant = grant_at(self.next_grant, table);
        // A grant that is there was not taken: so it is found if no length of its WRITE tells of it.
        table.clear(self.next_grant * Grant::LEN, Grant::LEN);
        self.next_grant = (self.next_grant + 1) % GRANTS;
        self.untaken -= 1;
        if self.grant.length == 0 {
            self.fail(Fault::EmptyGrant);
        }
    }

    /// Returns the next control message that is due.
    pub fn control(&mut self) -> Option<Write> {
        if !self.is_connected() || self.control == CONTROL_SLOTS {
            return None;
        }
        let half = self.sizes.receive_buffer / 2;
        let grants = self.ungranted >= half;
        if grants || self.read.wrapping_sub(self.due) as i16 >= 0 {
            self.control += 1;
            self.due = self.read.wrapping_add(self.sizes.receive_queue / 2);
            let limit = self.read.wrapping_add(self.sizes.receive_queue);
            let (wr_id, imm) = (Posted::Control.id(), Some(Message::Credits(limit).imm()));
            if !grants {
                return Some(Write { wr_id, payload: Payload::None, remote: NOWHERE, imm });
            }
            let (payload, remote) = self.grant_half(half);
            return Some(Write { wr_id, payload, remote, imm });
        }
        let message = self.pending_end.take()?;
        self.control += 1;
        let posted = if message == Message::Disconnect { Posted::Disconnect } else { Posted::Control };
        Some(Write { wr_id: posted.id(), payload: Payload::None, remote: NOWHERE, imm: Some(message.imm()) })
    }

    fn grant_half(&mut self, half: u32) -> (Payload, Remote) {
        let memory = self.own.receive;
        let addr = memory.addr.wrapping_add(u64::from(self.grant_at));
        let grant = Grant { addr, rkey: memory.rkey, length: half };
        let remote = self.in_peer_table(u64::from(self.peer_index) * Grant::LEN as u64);
        self.ungranted -= half;
        self.granted += half;
        self.grant_at = if self.grant_at == 0 { half } else { 0 };
        self.peer_index = (self.peer_index + 1) % self.peer.table.length;
        (Payload::Grant(grant.emit(self.peer.order)), remote)
    }

    /// Returns a keepalive message if a slot is free. The peer's queue pair acknowledges it; its program does
    /// not notice.
    pub fn keepalive(&mut self) -> Option<Write> {
        if !self.is_connected() || self.control == CONTROL_SLOTS {
            return None;
        }
        self.control += 1;
        Some(Write { wr_id: Posted::Control.id(), payload: Payload::None, remote: NOWHERE, imm: None })
    }

    /// Shuts down reading, sending or both. Octets sent before still arrive: see
    /// [`StreamProtocol::is_drained`].
    pub fn shutdown(&mut self, how: How) {
        if !self.is_connected() {
            return;
        }
        let (before_read, before_write) = (self.readable, self.writable);
        self.readable &= how == How::Write;
        self.writable &= how == How::Read;
        if (self.readable, self.writable) == (before_read, before_write) {
            return;
        }
        self.pending_end = match (self.readable, self.writable) {
            (false, false) => Some(Message::Disconnect),
            (true, false) => Some(Message::Shutdown),
            (_, true) => self.pending_end,
        };
    }

    /// The connection has ended.
    pub fn hang_up(&mut self) {
        if self.is_connected() {
            self.phase = Phase::Disconnected;
        }
    }

    /// Ends the stream with a fault, unless it has one.
    pub fn fail(&mut self, fault: Fault) {
        if self.is_connected() {
            self.phase = Phase::Failed(fault);
        }
    }

    /// A WRITE completed.
    pub fn sent(&mut self, wr_id: u64, status: WcStatus) {
        match Posted::of(wr_id) {
            Posted::Data(octets) => {
                self.slots += 1;
                self.send_free += octets;
            }
            Posted::Mapping => self.slots += 1,
            Posted::Control => self.control -= 1,
            Posted::Disconnect => {
                self.control -= 1;
                self.hang_up();
            }
        }
        if status != WcStatus::Success {
            self.fail(Fault::Write(status));
        }
    }

    /// A message arrived.
    pub fn received(&mut self, incoming: Incoming, table: &impl Table) {
        if let Err(fault) = self.take(incoming, table) {
            self.fail(fault);
        }
    }

    fn take(&mut self, Incoming { imm, written }: Incoming, table: &impl Table) -> Result<(), Fault> {
        let stands_for = |announced| match written {
            Some(written) if written != announced => Err(Fault::Length { announced, written }),
            Some(_) | None => Ok(()),
        };
        match Message::parse(imm.ok_or(Fault::NoImmediate)?)? {
            Message::Data(octets) => {
                stands_for(octets)?;
                self.take_data(octets)
            }
            Message::Credits(limit) => {
                self.limit = limit;
                let behind = (self.next_grant + self.untaken) % GRANTS;
                let alone = match written {
                    Some(octets) => octets == 0,
                    None => self.untaken == GRANTS || grant_at(behind, table).length == 0,
                };
                if alone {
                    return Ok(());
                }
                stands_for(Grant::LEN as u32)?;
                self.untaken += 1;
                self.take_grant(table);
                if self.untaken > GRANTS { Err(Fault::Grants) } else { Ok(()) }
            }
            Message::Mapped(index) => {
                stands_for(Mapping::LEN as u32)?;
                let place = self.mapped.get_mut(usize::from(index)).ok_or(Fault::MappingIndex(index))?;
                let mut octets = [0; Mapping::LEN];
                table.read(GRANTS * Grant::LEN + usize::from(index) * Mapping::LEN, &mut octets);
                *place = Some(Mapping::parse(&octets, ByteOrder::NATIVE));
                // A mapping is a numbered message, so it counts as read. (rdma-core 44 omits this, and loses
                // a credit each time.)
                self.read = self.read.wrapping_add(1);
                Ok(())
            }
            Message::Keepalive => Ok(()),
            Message::Shutdown if self.writable => {
                self.readable = false;
                Ok(())
            }
            Message::Shutdown | Message::Disconnect => {
                self.hang_up();
                Ok(())
            }
        }
    }

    fn take_data(&mut self, octets: u32) -> Result<(), Fault> {
        self.granted = self
            .granted
            .checked_sub(octets)
            .ok_or(Fault::Overrun { announced: octets, granted: self.granted })?;
        if octets == 0 {
            self.read = self.read.wrapping_add(1);
            return Ok(());
        }
        if self.messages.len() >= usize::from(self.sizes.receive_queue) {
            return Err(Fault::Credit);
        }
        self.messages.push_back(octets);
        self.available += octets;
        Ok(())
    }

    /// Locates up to `octets` readable octets in the receive buffer: the start, the count to the end of the
    /// ring, and the count from its beginning.
    pub fn readable_at(&self, octets: usize) -> (u32, u32, u32) {
        let length = u32::try_from(octets).unwrap_or(u32::MAX).min(self.available);
        let first = length.min(self.sizes.receive_buffer - self.read_at);
        (self.read_at, first, length - first)
    }

    /// Marks `octets` as read, at most [`StreamProtocol::available`].
    pub fn consume(&mut self, octets: u32) {
        let mut left = octets.min(self.available);
        self.available -= left;
        self.ungranted += left;
        self.read_at = self.read_at.wrapping_add(left);
        if self.read_at >= self.sizes.receive_buffer {
            self.read_at -= self.sizes.receive_buffer;
        }
        while let Some(front) = self.messages.front_mut() {
            if *front > left {
                *front -= left;
                return;
            }
            left -= *front;
            self.messages.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }
}

/// The grant in a place of our table.
fn grant_at(index: usize, table: &impl Table) -> Grant {
    let mut octets = [0; Grant::LEN];
    table.read(index * Grant::LEN, &mut octets);
    Grant::parse(&octets, ByteOrder::NATIVE)
}

/// Target of a WRITE without octets.
const NOWHERE: Remote = Remote { addr: 0, rkey: Rkey::new(0) };
