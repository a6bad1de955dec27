//! Two queue pairs and the TCP stream between them, which delivers octets in pieces of any size.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_proto::iwarp::StreamConfig;
use ferroce_proto::{
    AsyncEvent, Budget, NoSharedQueue, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, QpEvent, QpState,
    QueuePair, RecvWr, Remote, SendOp, SendWr, Service, Sge, WorkCompletion,
};
use ferroce_wire::{Lkey, PathMtu, Qpn, Rkey};

use crate::ram::Ram;

/// The key of the registered memory of each end.
pub const KEY: u32 = 0x1100;
/// The address of its first octet.
pub const BASE: u64 = 0x10_0000;
/// Octets of it.
pub const SIZE: usize = 256 << 10;

/// One end.
pub struct End {
    pub qp: QueuePair,
    pub ram: Ram,
    pub completions: Vec<WorkCompletion>,
    pub events: Vec<AsyncEvent>,
    /// Octets that left and did not arrive.
    pub sent: VecDeque<u8>,
}

impl End {
    pub fn new(caps: QpCaps) -> Self {
        let qp = QueuePair::new(QpConfig {
            qpn: Qpn::new(7),
            service: Service::Iwarp,
            caps,
            srq: None,
            sq_sig_all: false,
            port_mtu: PathMtu::B1024,
            seed: 1,
            early_resends: true,
            budget: Arc::new(Budget::new(1 << 20)),
        });
        let mut ram = Ram::default();
        ram.register(KEY, BASE, vec![0; SIZE]);
        let mut end =
            Self { qp: qp.unwrap(), ram, completions: Vec::new(), events: Vec::new(), sent: VecDeque::new() };
        let access = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC;
        let init = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
        end.qp.modify(&init, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
        end
    }

    /// Takes octets as they arrive.
    pub fn receive(&mut self, octets: &[u8]) {
        let mut rest = octets;
        while !rest.is_empty() {
            let taken = self.qp.handle_stream(rest, &mut NoSharedQueue, &mut self.ram);
            rest = &rest[taken..];
            self.collect();
        }
    }

    /// Sends what it has, all of which TCP takes.
    pub fn send(&mut self) -> usize {
        let mut out = vec![0xee; 192 << 10];
        let mut sum = 0;
        loop {
            let len = self.qp.poll_stream(&mut self.ram, &mut out);
            self.sent.extend(&out[..len]);
            self.qp.stream_taken(len);
            self.collect();
            sum += len;
            if len == 0 {
                return sum;
            }
        }
    }

    fn collect(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                QpEvent::Send(completion) | QpEvent::Recv(completion) => self.completions.push(completion),
                QpEvent::RecvXrc(..) => panic!("no XRC"),
                QpEvent::Async(event) => self.events.push(event),
            }
        }
    }

    /// Posts a signaled request on `length` octets of memory from `offset` on.
    pub fn post(&mut self, wr_id: u64, op: SendOp, offset: u64, length: u32) {
        let sges = [sge(offset, length)];
        let sges = if length == 0 { &[][..] } else { &sges };
        self.qp.post_send(&SendWr::signaled(wr_id, op, sges), &self.ram).unwrap();
    }

    pub fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        self.qp.post_recv(&RecvWr { wr_id, sges: &[sge(offset, length)] }).unwrap();
    }

    /// Fills its memory with a pattern of its own.
    pub fn fill(&mut self, seed: u64) {
        let bytes = &mut self.ram.region(KEY).bytes;
        let mut x = seed | 1;
        for byte in bytes {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (x >> 56) as u8;
        }
    }

    pub fn at(&self, offset: u64, length: u32) -> &[u8] {
        &self.ram.bytes(KEY)[offset as usize..][..length as usize]
    }
}

pub fn sge(offset: u64, length: u32) -> Sge {
    Sge { lkey: Lkey::new(KEY), addr: BASE + offset, length }
}

pub fn remote(offset: u64) -> Remote {
    Remote { rkey: Rkey::new(KEY), addr: BASE + offset }
}

pub const CAPS: QpCaps =
    QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline: 64 };

pub const CONFIG: StreamConfig = StreamConfig {
    initiator: true,
    crc: true,
    send_markers: false,
    receive_markers: false,
    ird: 4,
    ord: 4,
    rtr: None,
    large_fpdus: false,
    extensions: true,
};

/// Two ends, the first of which is the initiator.
pub struct World {
    pub ends: [End; 2],
    chunk: u64,
}

impl World {
    /// `config` is the initiator's view; `chunk` seeds the sizes of the pieces.
    pub fn new(config: &StreamConfig, segment: u16, chunk: u64) -> Self {
        let mut ends = [End::new(CAPS), End::new(CAPS)];
        let of_responder = StreamConfig {
            initiator: false,
            send_markers: config.receive_markers,
            receive_markers: config.send_markers,
            ird: config.ord,
            ord: config.ird,
            ..*config
        };
        ends[0].qp.begin_stream(config, segment).unwrap();
        ends[1].qp.begin_stream(&of_responder, segment).unwrap();
        ends[1].qp.release_stream();
        ends[0].fill(1);
        ends[1].fill(2);
        Self { ends, chunk }
    }

    fn piece(&mut self) -> usize {
        self.chunk = self.chunk.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        match self.chunk >> 61 {
            0 => 1,
            1 => 3,
            2 => 17,
            3 => 600,
            _ => (self.chunk >> 44) as usize % 70_000 + 1,
        }
    }

    /// Moves octets until nothing moves.
    pub fn run(&mut self) {
        loop {
            let mut moved = 0;
            for from in 0..2 {
                moved += self.ends[from].send();
                let piece = self.piece().min(self.ends[from].sent.len());
                let octets: Vec<u8> = self.ends[from].sent.drain(..piece).collect();
                moved += octets.len();
                self.ends[1 - from].receive(&octets);
            }
            if moved == 0 {
                return;
            }
        }
    }
}
