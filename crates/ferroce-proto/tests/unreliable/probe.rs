//! One queue pair whose peer is the test: give it packets, read what it says as text.

use ferroce_proto::{
    AsyncEventKind, DropReason, NoSharedQueue, QpAttr, QpAttrMask, QpState, RecvWr, Remote, SendOp, SendTo,
    SendWr, Service, Sge, WcStatus,
};
use ferroce_wire::{
    BatchLimits, Bth, Deth, Flow, IcrcStatus, Imm, Instant, Lkey, Operation, Packet, Psn, Qkey, Qpn, Request,
    Reth, Rkey, SendTail, TxBatch, UdPacket,
};

use crate::ram::Ram;
use crate::world::{End, QKEY, QPNS, Setup, flow};

/// A key of the probe's memory that everything may be done with: 64 KiB at [`BASE`].
pub const KEY: u32 = 0x1234;
pub const BASE: u64 = 0x10_0000;
/// Octets that are like no others near them.
pub static DATA: [u8; 8192] = {
    let mut data = [0; 8192];
    let mut i = 0;
    while i < data.len() {
        data[i] = (i * 7 + (i >> 8)) as u8 | 1;
        i += 1;
    }
    data
};

/// A queue pair (side 0 of a pair) in the hands of a test.
pub struct Probe {
    pub end: End<Ram>,
    pub setup: Setup,
}

pub const UC: Setup = setup(Service::Uc);
pub const UD: Setup = setup(Service::Ud);

const fn setup(service: Service) -> Setup {
    Setup {
        mtu: ferroce_wire::PathMtu::B1024,
        caps: ferroce_proto::QpCaps {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
        },
        rd_atomic: 0,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        min_rnr_timer: 0,
        psn: [0x12_3456, 0xff_fffe],
        rcvbuf: 1 << 20,
        early_resends: true,
        access: ferroce_proto::QpAccess::REMOTE_WRITE,
        service,
        selective_repeat: ferroce_proto::SelectiveRepeat::Off,
        ecn: false,
    }
}

pub fn local(offset: u64, length: u32) -> Sge {
    Sge { addr: BASE + offset, length, lkey: Lkey::new(KEY) }
}

pub fn remote(offset: u64) -> Remote {
    Remote { addr: BASE + offset, rkey: Rkey::new(KEY) }
}

pub fn reth(offset: u64, dma_len: u32) -> Reth {
    Reth { va: BASE + offset, rkey: Rkey::new(KEY), dma_len }
}

pub fn send_only(payload: &[u8]) -> Request<'_> {
    Request::SendOnly { payload, tail: SendTail::None }
}

pub fn write_only(reth: Reth, payload: &[u8]) -> Request<'_> {
    Request::WriteOnly { reth, payload, imm: None }
}

/// To the peer's address.
pub fn datagram(qpn: Qpn, qkey: Qkey) -> SendTo {
    SendTo::Datagram { path: flow(0), qpn, qkey }
}

impl Probe {
    pub fn new(setup: Setup) -> Self {
        Self::in_state(setup, QpState::Rts)
    }

    pub fn in_state(setup: Setup, state: QpState) -> Self {
        let mut qp = setup.queue_pair(0);
        setup.bring(&mut qp, 0, state);
        let mut mem = Ram::default();
        mem.register(KEY, BASE, vec![0; 64 << 10]);
        Self { end: End::new(qp, mem), setup }
    }

    pub fn modify(&mut self, state: QpState, mask: QpAttrMask) -> Result<(), ferroce_proto::ModifyQpError> {
        let attr = QpAttr { state, ..self.setup.attr(0) };
        self.end.qp.modify(&attr, mask | QpAttrMask::STATE)
    }

    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.end.qp.post_recv(&RecvWr { wr_id, sges }).unwrap();
    }

    /// A signaled work request to the peer.
    pub fn wr<'a>(&self, wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
        let to = match self.setup.service {
            Service::Ud => datagram(QPNS[1], QKEY),
            _ => SendTo::Peer,
        };
        SendWr { wr_id, op, to, sges, signaled: true, solicited: false, fence: false, inline: false }
    }

    pub fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = self.wr(wr_id, op, sges);
        self.end.qp.post_send(&wr, &self.end.mem).unwrap();
    }

    pub fn give(&mut self, from: &Flow, bth: Bth, op: Operation<'_>) -> Result<(), DropReason> {
        let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
        self.end.qp.handle_datagram(Instant::ZERO, from, &packet, &mut NoSharedQueue, &mut self.end.mem)
    }

    /// A UC request, by its distance from the first PSN.
    pub fn request(&mut self, psn: u32, request: Request<'_>) -> Result<(), DropReason> {
        let bth = Bth::new(QPNS[0], Psn::new(self.setup.psn[1]).add(psn));
        self.give(&flow(1), bth, Operation::Uc(request))
    }

    /// A datagram from the peer.
    pub fn datagram(&mut self, qkey: Qkey, payload: &[u8], imm: Option<Imm>) -> Result<(), DropReason> {
        let deth = Deth { qkey, src_qp: QPNS[1] };
        self.give(&flow(1), Bth::new(QPNS[0], Psn::new(7)), Operation::Ud(UdPacket { deth, payload, imm }))
    }

    /// Everything it sends now, as text; PSNs by their distance from the first.
    pub fn out(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut batch = TxBatch::new(&mut buffer, BatchLimits { max_segments: 64, gso: false });
        while self.end.qp.poll_transmit(Instant::ZERO, &mut self.end.mem, &mut batch) {
            said.extend(batch.segments().map(|segment| self.describe(&Packet::parse(segment).unwrap())));
            batch.clear();
        }
        self.end.events();
        assert_eq!(self.end.qp.poll_timeout(), None, "nothing to wait for");
        said
    }

    pub fn sends(&mut self) -> Vec<(u64, WcStatus)> {
        self.end.events();
        self.end.sends.drain(..).map(|completion| (completion.wr_id, completion.status)).collect()
    }

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

    fn describe(&self, packet: &Packet<'_>) -> String {
        assert!(!packet.bth.ack_req, "nobody answers");
        let psn = packet.bth.psn.since(Psn::new(self.setup.psn[0]));
        let len = packet.op.payload().len();
        let solicited = if packet.bth.solicited { " S" } else { "" };
        let imm = |imm: Option<Imm>| imm.map_or(String::new(), |imm| format!(" imm {:?}", imm.0));
        let at = |reth: Reth| format!("@{:#x}+{}", reth.va.wrapping_sub(BASE), reth.dma_len);
        let tail = |tail: SendTail| match tail {
            SendTail::None => String::new(),
            SendTail::Imm(data) => imm(Some(data)),
            SendTail::Invalidate(_) => panic!("{packet:?}"),
        };
        let text = match packet.op {
            Operation::Ud(UdPacket { deth, imm: data, .. }) => {
                let Deth { qkey, src_qp } = deth;
                assert_eq!(src_qp, QPNS[0]);
                format!(
                    "datagram {psn} to {:#x} key {:#x} [{len}]{}",
                    packet.bth.dest_qp.value(),
                    qkey.value(),
                    imm(data)
                )
            }
            Operation::Uc(request) => match request {
                Request::SendFirst { .. } => format!("send_first {psn} [{len}]"),
                Request::SendMiddle { .. } => format!("send_middle {psn} [{len}]"),
                Request::SendLast { tail: t, .. } => format!("send_last {psn} [{len}]{}", tail(t)),
                Request::SendOnly { tail: t, .. } => format!("send_only {psn} [{len}]{}", tail(t)),
                Request::WriteFirst { reth, .. } => format!("write_first {psn} {} [{len}]", at(reth)),
                Request::WriteMiddle { .. } => format!("write_middle {psn} [{len}]"),
                Request::WriteLast { imm: data, .. } => format!("write_last {psn} [{len}]{}", imm(data)),
                Request::WriteOnly { reth, imm: data, .. } => {
                    format!("write_only {psn} {} [{len}]{}", at(reth), imm(data))
                }
                _ => panic!("{packet:?}"),
            },
            _ => panic!("{packet:?}"),
        };
        text + solicited
    }
}
