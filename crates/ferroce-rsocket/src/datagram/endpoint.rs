//! The UD queue pair of a datagram rsocket on one device.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::message::SourceHeader;
use ferroce_wire::{Flow, Psn, Qkey, Qpn};

use crate::device::{Device, Queues};
use crate::error::RsocketError;
use crate::region::Region;
use crate::settings::Settings;
use ferroce_engine::error::PostSendError;
use ferroce_engine::{
    Access, Ah, QpAttr, QpAttrMask, QpCaps, QpState, RecvWr, SendOp, SendWr, Service, Sge, WcStatus,
    WorkCompletion,
};
use ferroce_engine::{MAX_INLINE, MAX_QP_WR};

/// The Q_Key of all rsockets (`RDMA_UDP_QKEY`).
const QKEY: Qkey = Qkey::new(0x0123_4567);
/// Octets of a message slot, header included.
pub(super) const SLOT: usize = 2048;
/// The GRH area precedes each received message.
const GRH: usize = Flow::GRH_AREA;
/// This bit marks the ids of receive work requests; the low bits are the slot.
const RECEIVE: u64 = 1 << 63;
const BATCH: usize = 16;
const MIN_SLOTS: u32 = 16;

pub(super) struct Endpoint {
    // Dropped first: the queue pair uses the regions.
    pub(super) queues: Queues,
    pub(super) device: Arc<Device>,
    send: Region,
    receive: Region,
    inline: usize,
    /// Send slots without an outstanding send.
    free: Vec<u32>,
    slots: u32,
    /// The device is gone, and the socket knows it.
    pub(super) ended: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Received {
    slot: u32,
    /// Octets, header included.
    pub(super) length: usize,
    /// The sender that the header names, which has the address that the message came from.
    pub(super) from: SocketAddr,
    /// Octets of the header.
    pub(super) header: usize,
}

fn slots(buffer: u32, queue: u16) -> u32 {
    (buffer / SLOT as u32).min(queue.into()).clamp(MIN_SLOTS, MAX_QP_WR)
}

impl Endpoint {
    pub(super) fn new(device: Arc<Device>, settings: &Settings) -> Result<Self, RsocketError> {
        let sizes = settings.sizes;
        let (sends, receives) =
            (slots(sizes.send_buffer, sizes.send_queue), slots(sizes.receive_buffer, sizes.receive_queue));
        let send = Region::new(&device.pd, sends as usize * SLOT, Access::LOCAL_WRITE)?;
        let receive = Region::new(&device.pd, receives as usize * (GRH + SLOT), Access::LOCAL_WRITE)?;
        let inline = sizes.inline.min(MAX_INLINE);
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: inline,
        };
        let queues = Queues::new(&device, Service::Ud, caps)?;
        let free = (0..sends).collect();
        let inline = inline as usize;
        let endpoint = Self { queues, device, send, receive, inline, free, slots: sends, ended: false };
        endpoint.start()?;
        (0..receives).try_for_each(|slot| endpoint.post_receive(slot))?;
        Ok(endpoint)
    }

    fn start(&self) -> Result<(), RsocketError> {
        let to = |state, mask| {
            let attr = QpAttr {
                state,
                qkey: QKEY,
                pkey_index: 0,
                port_num: 1,
                sq_psn: Psn::new(0),
                ..QpAttr::default()
            };
            self.queues.qp.modify(&attr, QpAttrMask::STATE | mask).map_err(RsocketError::resource)
        };
        to(QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY)?;
        to(QpState::Rtr, QpAttrMask::empty())?;
        to(QpState::Rts, QpAttrMask::SQ_PSN)
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.queues.qp.qpn()
    }

    fn post_receive(&self, slot: u32) -> Result<(), RsocketError> {
        let sge = self.receive.sge(slot * (GRH + SLOT) as u32, (GRH + SLOT) as u32);
        let wr = RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &[sge] };
        self.queues.qp.post_recv([wr]).map_err(|(_, error)| RsocketError::resource(error))
    }

    /// Takes completions, and passes received messages to `inbox`: only those of `peer`, where the rsocket is
    /// connected. Returns whether there were any completions.
    pub(super) fn pump(&mut self, peer: Option<SocketAddr>, mut inbox: impl FnMut(Received)) -> bool {
        let mut moved = false;
        let mut batch = [WorkCompletion::BLANK; BATCH];
        loop {
            let count = self.queues.cq.poll_awake(&mut batch).unwrap_or(0);
            for completion in &batch[..count] {
                let slot = completion.wr_id as u32;
                if completion.wr_id & RECEIVE == 0 {
                    self.free.push(slot);
                    continue;
                }
                let length = (completion.byte_len as usize).saturating_sub(GRH);
                let successful = completion.status == WcStatus::Success;
                match successful.then(|| self.admit(slot, length, peer)) {
                    Some(Some(message)) => inbox(message),
                    dropped => {
                        if dropped.is_some() {
                            let counters = self.device.context.counters();
                            counters.rx_wrong_source.fetch_add(1, Ordering::Relaxed);
                        }
                        // A message longer than the slot is dropped as well. In the error state a posted
                        // receive completes again at once, for ever.
                        if completion.status != WcStatus::WrFlushErr {
                            let _ = self.post_receive(slot);
                        }
                    }
                }
            }
            moved |= count > 0;
            if count < BATCH {
                return moved;
            }
        }
    }

    /// The message in a slot, unless its header is not valid, or names a sender that it did not come from:
    /// the header is the sender's word, the address in the GRH is not. The ports of a host are not told
    /// apart, because the Q_Key is the same for all rsockets.
    fn admit(&self, slot: u32, length: usize, peer: Option<SocketAddr>) -> Option<Received> {
        let mut octets = [0; GRH + SourceHeader::MAX_LEN];
        let octets = octets.get_mut(..GRH + length.min(SourceHeader::MAX_LEN))?;
        self.receive.read(slot as usize * (GRH + SLOT), octets);
        let (area, message) = octets.split_first_chunk::<GRH>()?;
        let (SourceHeader(from), behind) = SourceHeader::parse(message).ok()?;
        let header = message.len() - behind.len();
        let canonical = |ip: IpAddr| ip.to_canonical();
        let named = canonical(from.ip());
        let honest = canonical(Flow::from_grh_area(area)?.source) == named;
        let wanted = peer.is_none_or(|peer| (canonical(peer.ip()), peer.port()) == (named, from.port()));
        (honest && wanted).then_some(Received { slot, length, from, header })
    }

    /// The device is gone, and the socket does not know it yet.
    pub(super) fn is_lost(&self) -> bool {
        !self.ended && self.device.context.is_dead()
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// No send is outstanding.
    pub(super) fn is_drained(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    /// Sends a message; the caller has checked [`Self::has_room`].
    pub(super) fn send(
        &mut self,
        header: &SourceHeader,
        octets: &[&[u8]],
        ah: &Ah,
        qpn: Qpn,
    ) -> Result<(), RsocketError> {
        let mut room = [0; SourceHeader::MAX_LEN];
        let before = header.emit(&mut room);
        let length = before + octets.iter().map(|piece| piece.len()).sum::<usize>();
        if length > SLOT {
            return Err(RsocketError::TooLong);
        }
        let slot = self.free.pop().ok_or(RsocketError::WouldBlock)?;
        let start = slot as usize * SLOT;
        let mut at = start;
        for piece in std::iter::once(&room[..before]).chain(octets.iter().copied()) {
            self.send.write(at, piece);
            at += piece.len();
        }
        let sge: Sge = self.send.sge(start as u32, length as u32);
        let posted = ah.to(qpn, QKEY).map_err(RsocketError::System).and_then(|to| {
            let wr = SendWr {
                wr_id: u64::from(slot),
                op: SendOp::Send,
                to,
                sges: &[sge],
                signaled: true,
                solicited: false,
                fence: false,
                inline: length <= self.inline,
            };
            self.queues.qp.post_send([wr]).map_err(|(_, error)| match error {
                PostSendError::DatagramTooLong { .. } => RsocketError::TooLong,
                error => RsocketError::resource(error),
            })
        });
        if posted.is_err() {
            self.free.push(slot);
        }
        posted
    }

    /// Copies a message without its header, cut to the size of `out`, and returns its length.
    pub(super) fn read(&self, message: Received, out: &mut [u8]) -> usize {
        let start = message.slot as usize * (GRH + SLOT) + GRH + message.header;
        let length = message.length.saturating_sub(message.header).min(out.len());
        self.receive.read(start, &mut out[..length]);
        length
    }

    /// Posts the slot of a message again.
    pub(super) fn give_back(&self, message: Received) {
        // Posting fails only after the queue pair has ended.
        let _ = self.post_receive(message.slot);
    }

    /// The next completion raises an event on the channel.
    pub(super) fn arm(&self) {
        self.queues.cq.req_notify(false);
    }
}

/// Received messages, each with the index of its endpoint.
pub(super) type Inbox = VecDeque<(usize, Received)>;
