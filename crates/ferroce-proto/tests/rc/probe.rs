//! One queue pair whose peer is the test: give it packets, read what it says as text.

use std::time::Duration;

use ferroce_proto::{
    AsyncEventKind, DropReason, NoSharedQueue, QpAttr, QpAttrMask, QpState, QueuePair, RecvWr, SendOp,
    SendWr, Sge, WcStatus,
};
use ferroce_wire::{
    Aeth, BatchLimits, Bth, CreditCode, IcrcStatus, Instant, Lkey, Msn, NakCode, Operation, Packet, Psn, Qpn,
    RcPacket, Request, Response, Reth, Rkey, RnrTimer, SendTail, Syndrome, TxBatch,
};

use crate::ram::Ram;
use crate::world::{End, QPNS, Setup, flow};

/// A key of [`Probe`]'s memory that everything may be done with: 64 KiB at [`BASE`].
pub const KEY: u32 = 0x1234;
pub const BASE: u64 = 0x10_0000;

/// A queue pair (side 0 of a pair) in the hands of a test.
pub struct Probe {
    pub end: End<Ram>,
    pub now: Instant,
    pub setup: Setup,
    /// Packets that one batch takes.
    pub batch: usize,
}

pub fn reth(offset: u64, dma_len: u32) -> Reth {
    Reth { va: BASE + offset, rkey: Rkey::new(KEY), dma_len }
}

pub fn local(offset: u64, length: u32) -> Sge {
    Sge { addr: BASE + offset, length, lkey: Lkey::new(KEY) }
}

pub const fn remote(offset: u64) -> ferroce_proto::Remote {
    ferroce_proto::Remote { addr: BASE + offset, rkey: Rkey::new(KEY) }
}

pub const ACK: Syndrome = Syndrome::Ack { credits: CreditCode::UNLIMITED };

pub fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

pub fn rnr(code: u8) -> Syndrome {
    Syndrome::RnrNak(RnrTimer::new(code).unwrap())
}

pub fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: Msn::new(0) }
}

impl Probe {
    pub fn new(setup: Setup) -> Self {
        Self::in_state(setup, QpState::Rts)
    }

    pub fn in_state(setup: Setup, state: QpState) -> Self {
        Self::with(setup, setup.queue_pair(0), state)
    }

    /// Takes a queue pair that is in RESET.
    pub fn with_queue_pair(setup: Setup, queue_pair: QueuePair) -> Self {
        Self::with(setup, queue_pair, QpState::Rts)
    }

    fn with(setup: Setup, mut qp: QueuePair, state: QpState) -> Self {
        setup.bring(&mut qp, 0, state);
        let mut mem = Ram::default();
        mem.register(KEY, BASE, vec![0; 64 << 10]);
        let mut probe = Self { end: End::new(qp, mem), now: Instant::ZERO, setup, batch: 64 };
        assert_eq!(probe.out(), [""; 0]);
        probe
    }

    /// Modifies attributes named by `mask`.
    pub fn modify(&mut self, attr: QpAttr, mask: QpAttrMask) {
        self.end.qp.modify(&attr, mask).unwrap();
    }

    pub fn to(&mut self, state: QpState) {
        self.modify(QpAttr { state, ..self.setup.attr(0) }, QpAttrMask::STATE);
    }

    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.end.qp.post_recv(&RecvWr { wr_id, sges }).unwrap();
    }

    /// Posts a signaled work request.
    pub fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.post_wr(SendWr::signaled(wr_id, op, sges));
    }

    pub fn post_wr(&mut self, wr: SendWr<'_>) {
        self.end.qp.post_send(&wr, &self.end.mem).unwrap();
    }

    /// Gives it a packet from its peer without fetching its answer.
    pub fn give(&mut self, bth: Bth, op: RcPacket<'_>) -> Result<(), DropReason> {
        let packet = Packet { bth, op: Operation::Rc(op), icrc: IcrcStatus::Checked };
        self.end.qp.handle_datagram(self.now, &flow(1), &packet, &mut NoSharedQueue, &mut self.end.mem)
    }

    /// A request, by its distance from the first PSN, with A set.
    pub fn request(&mut self, psn: u32, request: Request<'_>) -> Result<(), DropReason> {
        let mut bth = Bth::new(QPNS[0], Psn::new(self.setup.psn[1]).add(psn));
        bth.ack_req = true;
        self.give(bth, RcPacket::Request(request))
    }

    /// As [`Self::request`], with A clear.
    pub fn quiet_request(&mut self, psn: u32, request: Request<'_>) -> Result<(), DropReason> {
        let bth = Bth::new(QPNS[0], Psn::new(self.setup.psn[1]).add(psn));
        self.give(bth, RcPacket::Request(request))
    }

    /// An answer, by its distance from the first PSN.
    pub fn response(&mut self, psn: u32, response: Response<'_>) -> Result<(), DropReason> {
        let bth = Bth::new(QPNS[0], Psn::new(self.setup.psn[0]).add(psn));
        self.give(bth, RcPacket::Response(response))
    }

    pub fn ack(&mut self, psn: u32, syndrome: Syndrome) -> Result<(), DropReason> {
        self.response(psn, Response::Acknowledge { aeth: aeth(syndrome) })
    }

    /// Everything it sends now, as text.
    pub fn out(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(batch) = self.out_batch() {
            said.extend(batch);
        }
        self.end.events();
        said
    }

    /// The packets of one batch.
    pub fn out_batch(&mut self) -> Option<Vec<String>> {
        let mut buffer = vec![0; 64 << 10];
        let limits = BatchLimits { max_segments: self.batch, gso: false };
        let mut batch = TxBatch::new(&mut buffer, limits);
        let any = self.end.qp.poll_transmit(self.now, &mut self.end.mem, &mut batch);
        assert_eq!(any, !batch.is_empty());
        let text = |segment| describe(&Packet::parse(segment).unwrap(), &self.setup);
        any.then(|| batch.segments().map(text).collect())
    }

    /// Lets time pass and runs timers when due. Returns the packets sent, each with the microseconds since the start.
    pub fn wait(&mut self, duration: Duration) -> Vec<(u64, String)> {
        let until = self.now + duration;
        let mut said = Vec::new();
        while let Some(due) = self.end.qp.poll_timeout()
            && due <= until
        {
            self.now = self.now.max(due);
            self.end.qp.handle_timeout(self.now);
            let at = self.now.as_nanos() / 1000;
            said.extend(self.out().into_iter().map(|text| (at, text)));
            assert!(self.end.qp.poll_timeout().is_none_or(|due| due > self.now), "time stands still");
        }
        self.now = until;
        said
    }

    /// Completions of the send queue so far.
    pub fn sends(&mut self) -> Vec<(u64, WcStatus)> {
        self.end.events();
        self.end.sends.drain(..).map(|completion| (completion.wr_id, completion.status)).collect()
    }

    /// Completions of the receive queue so far.
    pub fn recvs(&mut self) -> Vec<(u64, WcStatus)> {
        self.end.events();
        self.end.recvs.drain(..).map(|completion| (completion.wr_id, completion.status)).collect()
    }

    pub fn asyncs(&mut self) -> Vec<AsyncEventKind> {
        self.end.events();
        std::mem::take(&mut self.end.asyncs)
    }

    pub fn bytes(&self) -> &[u8] {
        self.end.mem.bytes(KEY)
    }

    pub fn fill(&mut self, byte: u8) {
        self.end.mem.region(KEY).bytes.fill(byte);
    }
}

/// A packet of side 0 as text: PSNs by their distance from the first.
fn describe(packet: &Packet<'_>, setup: &Setup) -> String {
    assert_eq!(packet.bth.dest_qp, QPNS[1]);
    let Operation::Rc(op) = packet.op else { panic!("{packet:?}") };
    let start = match op {
        RcPacket::Request(_) => setup.psn[0],
        RcPacket::Response(_) => setup.psn[1],
    };
    let psn = packet.bth.psn.since(Psn::new(start));
    let len = op.payload().len();
    let flags = match (packet.bth.ack_req, packet.bth.solicited) {
        (false, false) => "",
        (true, false) => " A",
        (false, true) => " S",
        (true, true) => " A S",
    };
    let tail = |tail: SendTail| match tail {
        SendTail::None => String::new(),
        SendTail::Imm(imm) => format!(" imm {:?}", imm.0),
        SendTail::Invalidate(rkey) => format!(" invalidate {:#x}", rkey.value()),
    };
    let at = |reth: Reth| format!("@{:#x}+{}", reth.va.wrapping_sub(BASE), reth.dma_len);
    match op {
        RcPacket::Request(request) => match request {
            Request::SendFirst { .. } => format!("send_first {psn} [{len}]{flags}"),
            Request::SendMiddle { .. } => format!("send_middle {psn} [{len}]{flags}"),
            Request::SendLast { tail: t, .. } => format!("send_last {psn} [{len}]{flags}{}", tail(t)),
            Request::SendOnly { tail: t, .. } => format!("send_only {psn} [{len}]{flags}{}", tail(t)),
            Request::WriteFirst { reth, .. } => format!("write_first {psn} {} [{len}]{flags}", at(reth)),
            Request::WriteMiddle { .. } => format!("write_middle {psn} [{len}]{flags}"),
            Request::WriteLast { imm, .. } => {
                format!(
                    "write_last {psn} [{len}]{flags}{}",
                    imm.map_or(String::new(), |imm| tail(SendTail::Imm(imm)))
                )
            }
            Request::WriteOnly { reth, imm, .. } => format!(
                "write_only {psn} {} [{len}]{flags}{}",
                at(reth),
                imm.map_or(String::new(), |imm| tail(SendTail::Imm(imm)))
            ),
            Request::ReadRequest { reth } => format!("read {psn} {}", at(reth)),
            Request::CompareSwap { atomic } => {
                format!("compare_swap {psn} {}->{}", atomic.compare, atomic.swap_or_add)
            }
            Request::FetchAdd { atomic } => format!("fetch_add {psn} {}", atomic.swap_or_add),
            Request::Flush { feth, reth } => {
                format!("flush {psn} {} to {} of {}", at(reth), feth.placement, feth.selectivity)
            }
            Request::AtomicWrite { reth, .. } => format!("atomic_write {psn} {} [{len}]", at(reth)),
        },
        RcPacket::Response(response) => match response {
            Response::ReadFirst { aeth, .. } => format!("read_first {psn} [{len}] msn {}", aeth.msn.value()),
            Response::ReadMiddle { .. } => format!("read_middle {psn} [{len}]"),
            Response::ReadLast { aeth, .. } => format!("read_last {psn} [{len}] msn {}", aeth.msn.value()),
            Response::ReadOnly { aeth, .. } => format!("read_only {psn} [{len}] msn {}", aeth.msn.value()),
            Response::AtomicAcknowledge { aeth, original } => {
                format!("atomic {psn} = {original} msn {}", aeth.msn.value())
            }
            Response::Acknowledge { aeth } => {
                let msn = aeth.msn.value();
                match aeth.syndrome {
                    Syndrome::Ack { credits } => {
                        assert_eq!(credits, CreditCode::UNLIMITED);
                        format!("ack {psn} msn {msn}")
                    }
                    Syndrome::RnrNak(timer) => format!("rnr {psn} timer {} msn {msn}", timer.code()),
                    syndrome => format!("nak {:#x} {psn} msn {msn}", syndrome.to_byte()),
                }
            }
        },
    }
}

/// The payload at the peer's side.
pub static DATA: [u8; 8192] = {
    let mut data = [0; 8192];
    let mut i = 0;
    while i < data.len() {
        data[i] = (i * 7 + (i >> 8)) as u8;
        i += 1;
    }
    data
};

pub fn send_only(payload: &[u8]) -> Request<'_> {
    Request::SendOnly { payload, tail: SendTail::None }
}

pub fn write_only(reth: Reth, payload: &[u8]) -> Request<'_> {
    Request::WriteOnly { reth, payload, imm: None }
}

pub fn unknown_qpn() -> Qpn {
    Qpn::new(0x77)
}
