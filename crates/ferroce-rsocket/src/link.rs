//! The queue pair of a stream, its memory and its protocol state.

use std::sync::Arc;

use crate::message::ConnectData;
use crate::protocol::{
    CONTROL_INLINE, Fault, Incoming, OwnMemory, Payload, Phase, Sizes, StreamProtocol, Write,
};
use ferroce_wire::{Imm, Lkey};

use super::device::{Device, Queues};
use super::region::Region;
use crate::error::RsocketError;
use ferroce_engine::cm::attributes::ConnectedAttr;
use ferroce_engine::cm::steps;
use ferroce_engine::{
    Access, AhAttr, QpCaps, QpState, RecvWr, SendOp, SendTo, SendWr, Service, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use ferroce_engine::{MAX_INLINE, MAX_QP_WR};

/// Ids of receive work requests: with this bit, and the place of the message below. The protocol chooses
/// those of sends, which lack it.
const RECEIVE: u64 = 1 << 63;
/// Id of a WRITE whose message is a SEND behind it.
const SILENT: u64 = RECEIVE | 1 << 62;
/// Octets of a message that is a SEND: a number in the byte order of the host, unlike immediate data (seen:
/// rstream of rdma-core 44 on siw).
const MESSAGE: usize = 4;
/// Control messages need no credit. On iWARP one without a receive WQE would end the connection, so there are
/// some more of those.
const UNCREDITED: u32 = 16;
const BATCH: usize = 16;

pub(super) struct Link {
    // Dropped first: the queue pair uses the regions.
    pub(super) queues: Queues,
    pub(super) device: Arc<Device>,
    pub(super) sizes: Sizes,
    /// `None` until the peer's connection data are known.
    pub(super) protocol: Option<StreamProtocol>,
    receive: Region,
    send: Region,
    table: Region,
    /// Memory in which messages that are SENDs arrive, for iWARP. iWARP has no immediate data, so its
    /// rsockets send a WRITE and then the message (rdma-core 44 rsocket.c).
    messages: Option<Region>,
}

impl Link {
    /// Creates a queue pair in Init with all receives posted.
    pub(super) fn new(device: Arc<Device>, sizes: Sizes) -> Result<Self, RsocketError> {
        let mut sizes = sizes.possible(u16::try_from(MAX_QP_WR).unwrap_or(u16::MAX));
        sizes.inline = sizes.inline.min(MAX_INLINE);
        let (context, pd) = (&device.context, &device.pd);
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let receive = Region::new(pd, sizes.receive_buffer as usize, written)?;
        let table = Region::new(pd, sizes.table_len(), written)?;
        let send = Region::new(pd, sizes.send_buffer as usize, Access::LOCAL_WRITE)?;
        let by_sends = context.info().is_iwarp();
        let (sends, receives) = match by_sends {
            // At most each other one is a WRITE.
            true => (2 * u32::from(sizes.send_queue), u32::from(sizes.receive_queue) + UNCREDITED),
            false => (u32::from(sizes.send_queue), u32::from(sizes.receive_queue)),
        };
        let room = MESSAGE * receives as usize;
        let messages = by_sends.then(|| Region::new(pd, room, Access::LOCAL_WRITE)).transpose()?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: sizes.inline.max(CONTROL_INLINE),
        };
        let queues = Queues::new(&device, Service::Rc, caps)?;
        let link = Self { queues, device, sizes, protocol: None, receive, send, table, messages };
        let (attr, mask) = steps::init(steps::access(false));
        link.queues.qp.modify(&attr, mask).map_err(RsocketError::resource)?;
        (0..receives).try_for_each(|place| link.post_receive(place.into()))?;
        Ok(link)
    }

    /// The private data of our REQ or REP.
    pub(super) fn connect_data(&self) -> ConnectData {
        StreamProtocol::connect_data(&self.sizes, &self.own())
    }

    fn own(&self) -> OwnMemory {
        OwnMemory { receive: self.receive.remote(), table: self.table.remote() }
    }

    /// Moves the queue pair to RTS. It sends nothing yet: the peer's queue pair may not be ready.
    pub(super) fn connect(
        &mut self,
        agreed: &ConnectedAttr,
        ah: AhAttr,
        peer: ConnectData,
    ) -> Result<(), RsocketError> {
        self.begin(peer)?;
        for to in [QpState::Rtr, QpState::Rts] {
            let (attr, mask) = steps::step(Service::Rc, to, agreed, ah);
            self.queues.qp.modify(&attr, mask).map_err(RsocketError::resource)?;
        }
        Ok(())
    }

    /// The peer's connection data begin the protocol.
    pub(super) fn begin(&mut self, peer: ConnectData) -> Result<(), RsocketError> {
        let protocol = StreamProtocol::new(self.sizes, self.own(), peer).map_err(RsocketError::Peer)?;
        self.protocol = Some(protocol);
        Ok(())
    }

    /// Posts the receive WQE with this place.
    fn post_receive(&self, place: u64) -> Result<(), RsocketError> {
        let sge = self
            .messages
            .as_ref()
            .map(|messages| messages.sge(place as u32 * MESSAGE as u32, MESSAGE as u32));
        let wr = RecvWr { wr_id: RECEIVE | place, sges: sge.as_slice() };
        self.queues.qp.post_recv([wr]).map_err(|(_, error)| RsocketError::resource(error))
    }

    /// Whether the device is gone. Failed receives do not tell: they say only that the queue pair is in the
    /// error state, in which a disconnect leaves it as well.
    pub(super) fn is_dead(&self) -> bool {
        self.device.context.is_dead()
    }

    /// Takes completions, and posts the work that follows from them. Returns whether there were any. The
    /// death of the device fails the protocol, and counts as a completion.
    pub(super) fn pump(&mut self) -> bool {
        let moved = self.take_completions();
        if self.is_dead()
            && let Some(protocol) = self.protocol.as_mut().filter(|known| known.phase() == Phase::Connected)
        {
            protocol.fail(Fault::DeviceGone);
            return true;
        }
        moved
    }

    fn take_completions(&mut self) -> bool {
        self.post_control();
        let mut moved = false;
        let mut batch = [WorkCompletion::BLANK; BATCH];
        loop {
            let Some(protocol) = &mut self.protocol else { return false };
            let count = match self.queues.cq.poll_awake(&mut batch) {
                Ok(count) => count,
                Err(error) => {
                    tracing::error!(%error, "an rsocket cannot poll its completion queue");
                    protocol.fail(Fault::Write(WcStatus::FatalErr));
                    return true;
                }
            };
            for completion in &batch[..count] {
                if completion.wr_id & RECEIVE == 0 {
                    protocol.sent(completion.wr_id, completion.status);
                } else if completion.wr_id == SILENT {
                    if completion.status != WcStatus::Success {
                        protocol.fail(Fault::Write(completion.status));
                    }
                } else if completion.status == WcStatus::Success {
                    protocol.received(incoming(completion, self.messages.as_ref()), &self.table);
                }
            }
            moved |= count > 0;
            let received = |c: &&WorkCompletion| c.wr_id & SILENT == RECEIVE && c.status == WcStatus::Success;
            for completion in batch[..count].iter().filter(received) {
                // Posting fails only after the queue pair has ended; a send or the peer reports that.
                let _ = self.post_receive(completion.wr_id & !RECEIVE);
            }
            self.post_control();
            if count < BATCH {
                return moved;
            }
        }
    }

    /// Posts the control messages that are due.
    pub(super) fn post_control(&mut self) {
        while let Some(write) = self.protocol.as_mut().and_then(StreamProtocol::control) {
            self.post(&write);
        }
    }

    /// Posts a WRITE; its octets are in the send buffer already.
    pub(super) fn post(&mut self, write: &Write) {
        let captured = |octets: &[u8]| Sge {
            addr: octets.as_ptr() as u64,
            length: octets.len() as u32,
            lkey: Lkey::new(0),
        };
        let (sges, used, inline) = match &write.payload {
            Payload::None => ([Sge::default(); 2], 0, false),
            Payload::Grant(octets) => ([captured(octets), Sge::default()], 1, true),
            Payload::Mapping(octets) => ([captured(octets), Sge::default()], 1, true),
            &Payload::Buffer { at, first, wrapped, inline } => {
                let used = if wrapped > 0 { 2 } else { 1 };
                ([self.send.sge(at, first), self.send.sge(0, wrapped)], used, inline)
            }
        };
        let remote = write.remote;
        let wr = |wr_id, op, sges, inline| SendWr {
            wr_id,
            op,
            to: SendTo::Peer,
            sges,
            signaled: true,
            solicited: false,
            fence: false,
            inline,
        };
        let payload = &sges[..used];
        let posted = match write.imm {
            Some(imm) if self.messages.is_some() => {
                let octets = u32::from_be_bytes(imm.0).to_ne_bytes();
                let message = [captured(&octets)];
                let silent = wr(SILENT, SendOp::Write { remote }, payload, inline);
                let behind = wr(write.wr_id, SendOp::Send, &message[..], true);
                self.queues.qp.post_send((used > 0).then_some(silent).into_iter().chain([behind]))
            }
            Some(imm) => {
                self.queues.qp.post_send([wr(write.wr_id, SendOp::WriteImm { remote, imm }, payload, inline)])
            }
            None => self.queues.qp.post_send([wr(write.wr_id, SendOp::Write { remote }, payload, inline)]),
        };
        if let Err((_, error)) = posted {
            tracing::debug!(%error, "an rsocket could not post a WRITE");
            if let Some(protocol) = &mut self.protocol {
                protocol.fail(Fault::Write(WcStatus::WrFlushErr));
            }
        }
    }

    /// Sends as much of `pieces` as possible now, and returns the number of octets.
    pub(super) fn send(&mut self, pieces: &mut Pieces<'_>, piece: &mut u32) -> usize {
        let mut sent = 0;
        while let Some(protocol) = &mut self.protocol {
            let octets = u32::try_from(pieces.left()).unwrap_or(u32::MAX).min(*piece);
            let Some(write) = protocol.transfer(octets, &self.table) else { break };
            sent += self.fill(&write.payload, pieces);
            self.post(&write);
            *piece = StreamProtocol::next_piece(*piece);
        }
        sent
    }

    /// As [`Self::send`], to the memory that the peer mapped at `offset`.
    pub(super) fn send_direct(
        &mut self,
        pieces: &mut Pieces<'_>,
        piece: &mut u32,
        offset: u64,
    ) -> Result<usize, crate::protocol::NoMapping> {
        let mut sent = 0;
        while let Some(protocol) = &mut self.protocol {
            let octets = u32::try_from(pieces.left()).unwrap_or(u32::MAX).min(*piece);
            if octets == 0 {
                break;
            }
            let write = match protocol.direct(offset.wrapping_add(sent as u64), octets) {
                Ok(Some(write)) => write,
                Ok(None) => break,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            };
            sent += self.fill(&write.payload, pieces);
            self.post(&write);
            *piece = StreamProtocol::next_piece(*piece);
        }
        Ok(sent)
    }

    fn fill(&self, payload: &Payload, pieces: &mut Pieces<'_>) -> usize {
        let &Payload::Buffer { at, first, wrapped, .. } = payload else { return 0 };
        pieces.take(first as usize, |done, octets| self.send.write(at as usize + done, octets));
        pieces.take(wrapped as usize, |done, octets| self.send.write(done, octets));
        (first + wrapped) as usize
    }

    /// Copies readable octets to `out` and returns their number. With `peek` they stay readable.
    pub(super) fn receive(&mut self, out: &mut [&mut [u8]], peek: bool) -> usize {
        let Some(protocol) = &mut self.protocol else { return 0 };
        let room = out.iter().map(|piece| piece.len()).sum();
        let (at, first, wrapped) = protocol.readable_at(room);
        let (first, wrapped) = (first as usize, wrapped as usize);
        let mut done = 0;
        for piece in out {
            let mut filled = 0;
            while filled < piece.len() && done < first + wrapped {
                let (from, left) = if done < first {
                    (at as usize + done, first - done)
                } else {
                    (done - first, first + wrapped - done)
                };
                let count = left.min(piece.len() - filled);
                self.receive.read(from, &mut piece[filled..filled + count]);
                filled += count;
                done += count;
            }
        }
        if !peek {
            protocol.consume(done as u32);
            self.post_control();
        }
        done
    }

    /// Moves the queue pair to the error state: outstanding requests complete, and sleeping threads wake.
    pub(super) fn move_to_error(&self) {
        let attr = ferroce_engine::QpAttr {
            state: ferroce_engine::QpState::Error,
            ..ferroce_engine::QpAttr::default()
        };
        if let Err(error) = self.queues.qp.modify(&attr, ferroce_engine::QpAttrMask::STATE) {
            tracing::debug!(%error, "an rsocket cannot move its queue pair to Error");
        }
    }

    /// The next completion raises an event on the channel.
    pub(super) fn arm(&self) {
        self.queues.cq.req_notify(false);
    }
}

/// The message of a receive completion.
fn incoming(completion: &WorkCompletion, messages: Option<&Region>) -> Incoming {
    let Some(messages) = messages else {
        let imm = completion.imm.filter(|_| completion.opcode == WcOpcode::RecvRdmaWithImm);
        return Incoming { imm, written: Some(completion.byte_len) };
    };
    let mut octets = [0; MESSAGE];
    messages.read((completion.wr_id & !RECEIVE) as usize * MESSAGE, &mut octets);
    let whole = completion.byte_len as usize == MESSAGE;
    let word = u32::from_ne_bytes(octets);
    Incoming { imm: whole.then_some(Imm(word.to_be_bytes())), written: None }
}

/// Octets to send, in several buffers.
pub(super) struct Pieces<'a> {
    rest: &'a [&'a [u8]],
    /// Octets of the first buffer that were taken.
    gone: usize,
    left: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(pieces: &'a [&'a [u8]]) -> Self {
        Self { rest: pieces, gone: 0, left: pieces.iter().map(|piece| piece.len()).sum() }
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.take(count, |_, _| {});
    }

    /// Takes `count` octets, at most those left, and passes each run to `put` with its offset.
    fn take(&mut self, count: usize, mut put: impl FnMut(usize, &[u8])) {
        let mut done = 0;
        while let Some((first, behind)) = self.rest.split_first().filter(|_| done < count) {
            let octets = &first[self.gone..];
            let octets = &octets[..octets.len().min(count - done)];
            put(done, octets);
            done += octets.len();
            self.gone += octets.len();
            if self.gone == first.len() {
                (self.rest, self.gone) = (behind, 0);
            }
        }
        self.left -= done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_across_their_ends() {
        let places: [&[u8]; 4] = [b"ab", b"", b"cdef", b"g"];
        let mut pieces = Pieces::new(&places);
        let mut got = Vec::new();
        for (count, left) in [(1, 6), (3, 3), (3, 0)] {
            let mut room = [0; 3];
            pieces.take(count, |at, octets| room[at..at + octets.len()].copy_from_slice(octets));
            got.extend_from_slice(&room[..count]);
            assert_eq!(pieces.left(), left);
        }
        assert_eq!(got, b"abcdefg");
    }
}
