//! Two queue pairs and the TCP stream between them, which delivers octets in pieces of any size.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroce_proto::iwarp::{Expected, Payloads, Span, StreamConfig};
use ferroce_proto::{
    AsyncEventKind, Budget, Memory, MemoryError, NoSharedQueue, QpAccess, QpAttr, QpAttrMask, QpCaps,
    QpConfig, QpEvent, QpState, QueuePair, RecvWr, Remote, SendOp, SendWr, Service, Sge, WorkCompletion,
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
    /// Octets behind a message that waits for a receive.
    waiting: Vec<u8>,
    pub qp: QueuePair,
    pub ram: Ram,
    pub completions: Vec<WorkCompletion>,
    pub events: Vec<AsyncEventKind>,
    /// Octets that left and did not arrive.
    pub sent: VecDeque<u8>,
    /// Payload leaves from memory and arrives in memory where the queue pair allows it.
    pub in_place: bool,
    /// Octets of payload that left from memory, and that arrived in memory.
    pub around: usize,
    pub placed: usize,
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
        let mut end = Self {
            qp: qp.unwrap(),
            ram,
            completions: Vec::new(),
            events: Vec::new(),
            sent: VecDeque::new(),
            in_place: false,
            around: 0,
            placed: 0,
            waiting: Vec::new(),
        };
        let access = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC;
        let init = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
        end.qp.modify(&init, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
        end
    }

    /// Takes octets as they arrive, and those that waited for a receive before them.
    pub fn receive(&mut self, octets: &[u8]) {
        let octets = [&std::mem::take(&mut self.waiting), octets].concat();
        let mut rest = &octets[..];
        while !rest.is_empty() || self.qp.stream_starves() {
            let Expected { memory, most } =
                if self.in_place { self.qp.stream_expected() } else { Expected::default() };
            if let Some(span) = memory {
                let (front, behind) = rest.split_at(span.len().min(rest.len()));
                // As the kernel, which answers EFAULT, does not receive.
                if write(&mut self.ram, &span, front).is_ok() {
                    self.qp.stream_placed(front.len());
                    self.placed += front.len();
                    rest = behind;
                }
            }
            let (mut front, behind) = rest.split_at(most.unwrap_or(usize::MAX).min(rest.len()));
            rest = behind;
            while !front.is_empty() || self.qp.stream_starves() {
                let taken = self.qp.handle_stream(front, &mut NoSharedQueue, &mut self.ram);
                front = &front[taken..];
                self.collect();
                if self.qp.stream_starves() {
                    self.waiting = [front, rest].concat();
                    return;
                }
            }
        }
    }

    /// Sends what it has, all of which TCP takes.
    pub fn send(&mut self) -> usize {
        let mut sum = 0;
        loop {
            let octets = if self.in_place { self.send_around() } else { self.send_whole() };
            self.sent.extend(&octets);
            self.qp.stream_taken(octets.len());
            self.collect();
            sum += octets.len();
            if octets.is_empty() {
                return sum;
            }
        }
    }

    fn send_whole(&mut self) -> Vec<u8> {
        let mut out = vec![0xee; 192 << 10];
        let len = self.qp.poll_stream(&mut self.ram, &mut out);
        out.truncate(len);
        out
    }

    fn send_around(&mut self) -> Vec<u8> {
        let (mut out, mut payloads) = (vec![0xee; 192 << 10], Payloads::new());
        let len = self.qp.poll_stream_around(&mut self.ram, &mut out, &mut payloads);
        let (mut octets, mut from) = (Vec::new(), 0);
        for payload in payloads.as_slice() {
            octets.extend(&out[from..payload.at()]);
            from = payload.at();
            octets.extend(read(&self.ram, payload.span()).unwrap());
        }
        octets.extend(&out[from..len]);
        assert_eq!(octets.len(), len + payloads.octets());
        self.around += payloads.octets();
        octets
    }

    fn collect(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                QpEvent::Send(completion) | QpEvent::Recv(completion) => {
                    self.qp.count(&completion);
                    self.completions.push(completion);
                }
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

/// Copies payload out of memory.
pub fn read(ram: &Ram, span: &Span) -> Result<Vec<u8>, MemoryError> {
    let mut octets = vec![0; span.len()];
    match span {
        Span::Local(sge, None) => ram.read_local(sge.lkey, sge.addr, &mut octets, 0)?,
        Span::Local(_, Some(domain)) => panic!("{domain:?}"),
        Span::Remote { rkey, addr, .. } => ram.read_remote(*rkey, *addr, &mut octets, 0)?,
    }
    Ok(octets)
}

/// Copies the first octets of payload into memory.
fn write(ram: &mut Ram, span: &Span, octets: &[u8]) -> Result<(), MemoryError> {
    match span {
        Span::Local(sge, None) => ram.write_local(sge.lkey, sge.addr, octets),
        Span::Local(_, Some(domain)) => panic!("{domain:?}"),
        Span::Remote { rkey, addr, .. } => ram.write_remote(*rkey, *addr, octets),
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
        Self::prepared(config, segment, chunk, |_| {})
    }

    /// As [`Self::new`], with ends that were prepared before their streams begin.
    pub fn prepared(
        config: &StreamConfig,
        segment: u16,
        chunk: u64,
        prepare: impl FnOnce(&mut [End; 2]),
    ) -> Self {
        let mut ends = [End::new(CAPS), End::new(CAPS)];
        prepare(&mut ends);
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
