//! One end of a connected stream.

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

/// What a work request was, in its id: the kind in the upper half, octets in the lower.
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

/// One end of a connected stream.
///
/// After each call, [`Stream::control`] is asked until it has nothing more; every [`Write`] that was returned is posted, in
/// that order. Completions come to [`Stream::sent`] and [`Stream::received`], in their order; for each of the latter another
/// receive WQE is posted.
#[derive(Debug)]
pub struct Stream {
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
    /// Send WQEs for all but control messages.
    slots: u16,
    control: u16,
    /// Said as soon as there is a slot.
    farewell: Option<Message>,
    send_at: u32,
    send_free: u32,
    /// What is left of the grant in use, the place of the next, and how many came that were not taken.
    grant: Grant,
    next_grant: usize,
    untaken: usize,
    /// What the peer mapped.
    mapped: Vec<Option<Mapping>>,

    // Receiving.
    /// Octets that the peer may still write.
    granted: u32,
    /// Messages that were not read to their end: octets left of each.
    messages: VecDeque<u32>,
    available: u32,
    read_at: u32,
    /// Octets read that were not granted again, and where they begin.
    ungranted: u32,
    grant_at: u32,
    /// Messages read, and the number of them at which credits are due.
    read: u16,
    due: u16,
    /// Place of our next grant in the peer's table.
    peer_place: u32,
}

impl Stream {
    /// One end, when both know each other's data.
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
            farewell: None,
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
            peer_place: 1,
        })
    }

    /// What the peer is told when the connection is made.
    pub fn introduction(sizes: &Sizes, own: &OwnMemory) -> ConnectData {
        let grant = |memory: Remote, length| Grant { addr: memory.addr, rkey: memory.rkey, length };
        ConnectData {
            order: ByteOrder::NATIVE,
            credits: sizes.receive_queue,
            mappings: sizes.mappings,
            table: grant(own.table, GRANTS as u32),
            first: grant(own.receive, sizes.receive_buffer / 2),
        }
    }

    /// How it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// More may come, or came and was not read.
    pub fn is_readable(&self) -> bool {
        self.readable && self.is_connected()
    }

    /// This end did not stop sending, nor did the peer go.
    pub fn is_writable(&self) -> bool {
        self.writable && self.is_connected()
    }

    /// Octets that can be read.
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Something can be sent at once.
    pub fn can_send(&self) -> bool {
        self.is_writable()
            && self.slots > 0
            && self.send_free >= LOW_WATER
            && self.number != self.limit
            && self.grant.length > 0
    }

    /// Everything that was sent has arrived.
    pub fn is_drained(&self) -> bool {
        let all = self.sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        self.slots == all && self.control == 0 && self.farewell.is_none()
    }

    /// The piece to begin with; see [`Stream::transfer`].
    pub const FIRST_PIECE: u32 = LOW_WATER;

    /// The piece to follow one of `piece` octets: small ones leave early, large ones cost less.
    pub fn next_piece(piece: u32) -> u32 {
        piece.saturating_mul(2).min(MAX_TRANSFER)
    }

    /// Sends up to `octets`; how many it says in the payload. `None` if nothing can be sent now.
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

    /// Writes up to `octets` to what the peer mapped at `offset`. `None` if nothing can be sent now.
    ///
    /// # Errors
    ///
    /// If nothing is mapped there.
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

    /// Mappings that the peer's table has room for.
    pub fn peer_mappings(&self) -> u16 {
        self.peer.mappings
    }

    /// Tells the peer what is mapped under `index`, which is below [`Stream::peer_mappings`]. `None` if nothing can be
    /// sent now.
    pub fn tell_mapping(&mut self, index: u16, mapping: &Mapping) -> Option<Write> {
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

    /// Takes room in the send buffer. Inline octets are captured at once, but counted until they arrived.
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

    /// Takes the next grant, if the one in use is used up and another one came.
    fn take_grant(&mut self, table: &impl Table) {
        if self.grant.length > 0 || self.untaken == 0 {
            return;
        }
        let mut octets = [0; Grant::LEN];
        table.read(self.next_grant * Grant::LEN, &mut octets);
        self.grant = Grant::parse(&octets, ByteOrder::NATIVE);
        self.next_grant = (self.next_grant + 1) % GRANTS;
        self.untaken -= 1;
        if self.grant.length == 0 {
            self.fail(Fault::EmptyGrant);
        }
    }

    /// The next thing to tell the peer beside data, if anything is due.
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
        let message = self.farewell.take()?;
        self.control += 1;
        let posted = if message == Message::Disconnect { Posted::Disconnect } else { Posted::Control };
        Some(Write { wr_id: posted.id(), payload: Payload::None, remote: NOWHERE, imm: Some(message.imm()) })
    }

    fn grant_half(&mut self, half: u32) -> (Payload, Remote) {
        let memory = self.own.receive;
        let addr = memory.addr.wrapping_add(u64::from(self.grant_at));
        let grant = Grant { addr, rkey: memory.rkey, length: half };
        let remote = self.in_peer_table(u64::from(self.peer_place) * Grant::LEN as u64);
        self.ungranted -= half;
        self.granted += half;
        self.grant_at = if self.grant_at == 0 { half } else { 0 };
        self.peer_place = (self.peer_place + 1) % self.peer.table.length;
        (Payload::Grant(grant.emit(self.peer.order)), remote)
    }

    /// Says that this end still lives, if that need not wait. The peer's queue pair answers, its program hears nothing.
    pub fn keepalive(&mut self) -> Option<Write> {
        if !self.is_connected() || self.control == CONTROL_SLOTS {
            return None;
        }
        self.control += 1;
        Some(Write { wr_id: Posted::Control.id(), payload: Payload::None, remote: NOWHERE, imm: None })
    }

    /// Stops reading, sending or both. What was sent before still arrives: see [`Stream::is_drained`].
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
        self.farewell = match (self.readable, self.writable) {
            (false, false) => Some(Message::Disconnect),
            (true, false) => Some(Message::Shutdown),
            (_, true) => self.farewell,
        };
    }

    /// The connection is no more.
    pub fn hang_up(&mut self) {
        if self.is_connected() {
            self.phase = Phase::Disconnected;
        }
    }

    /// It ends by a fault; the first one counts.
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

    /// A message came.
    pub fn received(&mut self, incoming: Incoming, table: &impl Table) {
        if let Err(fault) = self.take(incoming, table) {
            self.fail(fault);
        }
    }

    fn take(&mut self, Incoming { imm, written }: Incoming, table: &impl Table) -> Result<(), Fault> {
        let stands_for = |said| if written == said { Ok(()) } else { Err(Fault::Length { said, written }) };
        match Message::parse(imm.ok_or(Fault::Silent)?)? {
            Message::Data(octets) => {
                stands_for(octets)?;
                self.take_data(octets)
            }
            Message::Credits(limit) => {
                self.limit = limit;
                if written == 0 {
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
                // It was numbered, so it is read. (rdma-core 44 forgets this, and loses a credit each time.)
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
        self.granted =
            self.granted.checked_sub(octets).ok_or(Fault::Overrun { said: octets, granted: self.granted })?;
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

    /// Where the next octets to read lie in the receive buffer, at most `octets`: from the first place on so many, then from
    /// its start so many.
    pub fn readable_at(&self, octets: usize) -> (u32, u32, u32) {
        let length = u32::try_from(octets).unwrap_or(u32::MAX).min(self.available);
        let first = length.min(self.sizes.receive_buffer - self.read_at);
        (self.read_at, first, length - first)
    }

    /// So many octets were read, at most [`Stream::available`].
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

/// Of a WRITE without octets.
const NOWHERE: Remote = Remote { addr: 0, rkey: Rkey::new(0) };
