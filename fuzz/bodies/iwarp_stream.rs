// Applies one input to the stream of an iWARP queue pair: verbs calls, FPDUs and any other octets. Included by the fuzz target and by
// the test that replays its corpus, so it has no doc comment of its own.

#[allow(dead_code, clippy::duplicate_mod, reason = "tests use more of it, and load it with another body too")]
#[path = "../../crates/ferroce-sim/src/ram.rs"]
mod ram;

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroce_proto::iwarp::{Rtr, StreamConfig};
use ferroce_proto::{
    Budget, NoSharedQueue, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, QpEvent, QpState, QueuePair,
    RecvWr, SendOp, SendTo, SendWr, Service, Sge, StreamState, WcStatus, WorkCompletion,
};
use ferroce_wire::iwarp::crc::Crc32c;
use ferroce_wire::iwarp::{Opcode, Queue, ReadRequest, SegmentHeader, Stag, pad};
use ferroce_wire::{Imm, Lkey, PathMtu, Qpn, Rkey};

use ram::{Ram, Remote};

/// Everything is permitted.
const OPEN: u32 = 1;
/// Nothing may write to it: its octets never change.
const SEALED: u32 = 2;
/// May be invalidated.
const WINDOW: u32 = 3;
const SIZE: usize = 10_000;
const BASE: u64 = 0x4000;
const SEAL: u8 = 0x5a;
/// The most octets that wait behind a message without a receive.
const MOST_WAITING: usize = 4096;

/// The input, octet by octet; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes([0; 4].map(|_| self.byte()))
    }

    fn key(&mut self) -> u32 {
        match self.byte() {
            0..248 => OPEN,
            248..251 => SEALED,
            251..254 => WINDOW,
            other => u32::from(other),
        }
    }

    fn addr(&mut self) -> u64 {
        match self.byte() {
            0..252 => BASE + u64::from(self.byte()) * 16,
            _ => u64::from(self.u32()) << 30,
        }
    }

    fn length(&mut self) -> u32 {
        match self.byte() {
            0..40 => 0,
            40..240 => u32::from(self.byte() % 64),
            _ => u32::from(self.byte()) * 20,
        }
    }

    /// Near the number that counts, or anywhere.
    fn near(&mut self, number: u32) -> u32 {
        match self.byte() {
            0..248 => number,
            248..252 => number.wrapping_add(u32::from(self.byte() % 4)).wrapping_sub(1),
            _ => self.u32(),
        }
    }
}

struct Run<'a> {
    input: Input<'a>,
    qp: QueuePair,
    mem: Ram,
    config: StreamConfig,
    /// Sequence numbers that the queue pair expects, as far as the harness knows: of sends and of reads.
    msn: [u32; 2],
    /// Work requests that must complete, once each.
    sends: BTreeSet<u64>,
    receives: BTreeSet<u64>,
    /// The octets that arrived behind a message without a receive.
    waiting: Vec<u8>,
    next_id: u64,
    /// Octets written and not taken by TCP.
    untaken: usize,
    buffer: Vec<u8>,
}

/// First octets: the queue pair and its stream; then one step after the other. Panics on a broken promise.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let caps = QpCaps {
        max_send_wr: u32::from(input.byte() % 9),
        max_recv_wr: u32::from(input.byte() % 33),
        max_send_sge: u32::from(input.byte() % 5),
        max_recv_sge: u32::from(input.byte() % 5),
        max_inline: u32::from(input.byte() % 32),
    };
    let qp = QueuePair::new(QpConfig {
        qpn: Qpn::new(0x12_0034),
        service: Service::Iwarp,
        caps,
        srq: None,
        sq_sig_all: true,
        port_mtu: PathMtu::B4096,
        seed: 1,
        early_resends: true,
        budget: Arc::new(Budget::new(1 << 20)),
    });
    let flags = input.byte();
    let config = StreamConfig {
        initiator: flags & 1 != 0,
        crc: flags & 2 != 0,
        send_markers: flags & 12 == 12,
        receive_markers: flags & 48 == 48,
        ird: input.byte() % 9,
        ord: input.byte() % 9,
        rtr: [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][usize::from(input.byte() % 4)],
        large_fpdus: flags & 64 != 0,
        extensions: flags & 128 != 0,
    };
    let mut mem = Ram::default();
    mem.register(OPEN, BASE, vec![0; SIZE]);
    let sealed = mem.register(SEALED, BASE, vec![SEAL; SIZE]);
    sealed.local_write = false;
    sealed.remote = Remote { read: true, write: false, atomic: false };
    mem.register(WINDOW, BASE, vec![0; SIZE]).window = true;
    let mut run = Run {
        input,
        qp: qp.unwrap(),
        mem,
        config,
        msn: [1, 1],
        sends: BTreeSet::new(),
        receives: BTreeSet::new(),
        waiting: Vec::new(),
        next_id: 0,
        untaken: 0,
        buffer: vec![0; 160 << 10],
    };
    let access = QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC;
    let init = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
    run.qp.modify(&init, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS).unwrap();
    let segment = run.input.u32() as u16;
    run.qp.begin_stream(&run.config, segment).unwrap();
    while !run.input.0.is_empty() {
        run.step();
        run.events();
    }
    run.qp.stream_ended();
    run.events();
    assert!(run.sends.is_empty() && run.receives.is_empty(), "what was posted is completed");
    assert_eq!(run.qp.stream_state(), StreamState::Closing);
}

impl Run<'_> {
    fn step(&mut self) {
        match self.input.byte() % 32 {
            0..6 => self.post_send(),
            6..14 => self.post_recv(),
            14..22 => self.fpdu(),
            22 if self.input.byte() > 240 => {
                let len = usize::from(self.input.byte());
                let octets: Vec<u8> = (0..len).map(|_| self.input.byte()).collect();
                self.arrive(&octets);
            }
            22..28 => {
                let room = if self.input.byte() < 250 { self.buffer.len() } else { 100 };
                let len = self.qp.poll_stream(&mut self.mem, &mut self.buffer[..room]);
                assert!(len <= room && len.is_multiple_of(4));
                self.untaken += len;
                let taken = if self.input.byte() < 200 { self.untaken } else { self.untaken / 2 };
                self.untaken -= taken;
                self.qp.stream_taken(taken);
            }
            28 => self.qp.release_stream(),
            29 if self.input.byte() > 240 => self.mem.region(OPEN).gone ^= true,
            30 if self.input.byte() > 200 => {
                let error = QpAttr { state: QpState::Error, ..QpAttr::default() };
                self.qp.modify(&error, QpAttrMask::STATE).unwrap();
            }
            31 if self.input.byte() > 200 => self.qp.set_fatal(),
            _ => {}
        }
    }

    fn post_send(&mut self) {
        let remote = ferroce_proto::Remote { addr: self.input.addr(), rkey: Rkey::new(self.input.key()) };
        let value = u64::from(self.input.byte());
        let op = match self.input.byte() % 8 {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendInvalidate(Rkey::new(WINDOW)),
            3 => SendOp::Write { remote },
            4 => SendOp::WriteImm { remote, imm: Imm([5; 4]) },
            5 => SendOp::Read { remote },
            6 => SendOp::FetchAdd { remote, add: value },
            _ if value > 240 => SendOp::LocalInvalidate(Rkey::new(self.input.key())),
            _ => SendOp::Send,
        };
        let sges = self.sges();
        let flags = self.input.byte();
        let wr = SendWr {
            wr_id: self.next_id,
            op,
            to: SendTo::Peer,
            sges: &sges,
            signaled: true,
            solicited: flags & 2 != 0,
            fence: flags & 4 != 0,
            inline: false,
        };
        if self.qp.post_send(&wr, &self.mem).is_ok() {
            self.sends.insert(self.next_id);
            self.next_id += 1;
        }
    }

    fn post_recv(&mut self) {
        let whole = Sge { addr: BASE, length: 9000, lkey: Lkey::new(OPEN) };
        let sges = if self.input.byte() < 240 { vec![whole] } else { self.sges() };
        if self.qp.post_recv(&RecvWr { wr_id: self.next_id, sges: &sges }).is_ok() {
            self.receives.insert(self.next_id);
            self.next_id += 1;
        }
    }

    fn sges(&mut self) -> Vec<Sge> {
        let count = self.input.byte() % 3;
        let sge = |_| Sge {
            addr: self.input.addr(),
            length: self.input.length(),
            lkey: Lkey::new(self.input.key()),
        };
        (0..count).map(sge).collect()
    }

    /// An FPDU that may be what the queue pair expects.
    fn fpdu(&mut self) {
        let last = self.input.byte() < 248;
        let stag = Stag(self.input.key());
        let code = match self.input.byte() {
            0..80 => 0,
            80..130 => 3,
            130..240 => 12,
            other => other % 13,
        };
        let untagged = |opcode: Opcode, msn, offset| SegmentHeader::Untagged {
            opcode,
            last,
            invalidate: Stag(WINDOW),
            queue: opcode.queue(),
            msn,
            offset,
        };
        let [send, read] = self.msn;
        let msn = self.input.near(if matches!(code, 3..5) { read } else { send });
        let offset = if self.input.byte() < 250 { 0 } else { u32::from(self.input.byte()) };
        let (header, payload) = match code {
            0 | 1 => {
                let offset = self.input.addr();
                let payload = vec![1; self.input.length() as usize];
                (SegmentHeader::Tagged { opcode: Opcode::Write, last, stag, offset }, payload)
            }
            2 => {
                let offset = self.input.addr();
                let payload = vec![2; self.input.length() as usize];
                (SegmentHeader::Tagged { opcode: Opcode::ReadResponse, last, stag, offset }, payload)
            }
            3 | 4 => {
                let (source_offset, length) = (self.input.addr(), self.input.length());
                let request = ReadRequest { sink: stag, sink_offset: 0, length, source: stag, source_offset };
                self.msn[1] = msn.wrapping_add(1);
                (untagged(Opcode::ReadRequest, msn, offset), request.emit().to_vec())
            }
            5 => {
                let payload = (0..52).map(|_| self.input.byte()).collect();
                (untagged(Opcode::AtomicRequest, read, offset), payload)
            }
            6 => (untagged(Opcode::Immediate, msn, offset), vec![9; 8]),
            7 => {
                let payload = (0..12).map(|_| self.input.byte()).collect();
                (untagged(Opcode::AtomicResponse, 1, offset), payload)
            }
            8 if self.input.byte() > 240 => (untagged(Opcode::Terminate, 1, 0), vec![0; 4]),
            9 => {
                let queue = Queue(u32::from(self.input.byte() % 5));
                let opcode = Opcode::Send;
                let header = SegmentHeader::Untagged { opcode, last, invalidate: stag, queue, msn, offset };
                (header, Vec::new())
            }
            10 => (untagged(Opcode::SendInvalidate, msn, offset), vec![3; self.input.length() as usize]),
            _ => (untagged(Opcode::Send, msn, offset), vec![4; self.input.length() as usize]),
        };
        if last && matches!(code, 6 | 10..) {
            self.msn[0] = msn.wrapping_add(1);
        }
        let ulpdu = header.len() + payload.len();
        let mut octets = (ulpdu as u16).to_be_bytes().to_vec();
        octets.extend(&header.emit()[..header.len()]);
        octets.extend(payload);
        octets.resize(octets.len() + pad(ulpdu), 0);
        let mut crc = Crc32c::new();
        crc.update(&octets);
        octets.extend(crc.octets());
        let cut = usize::from(self.input.byte()).min(octets.len());
        self.arrive(&octets[..cut]);
        self.arrive(&octets[cut..]);
    }

    /// Octets behind a message without a receive wait for one, or for the end of the program's patience.
    fn arrive(&mut self, octets: &[u8]) {
        let arrived = [&core::mem::take(&mut self.waiting), octets].concat();
        let mut octets = &arrived[..];
        while !octets.is_empty() || self.qp.stream_starves() {
            let taken = self.qp.handle_stream(octets, &mut NoSharedQueue, &mut self.mem);
            octets = &octets[taken..];
            let before = self.sends.len() + self.receives.len();
            self.events();
            if self.qp.stream_starves() {
                if octets.len() < MOST_WAITING && self.input.byte() < 200 {
                    self.waiting = octets.to_vec();
                    return;
                }
                self.qp.stream_waited_in_vain();
                self.events();
                assert_eq!(self.qp.state(), QpState::Error, "the wait is over");
                continue;
            }
            assert!(
                taken > 0 || self.sends.len() + self.receives.len() < before,
                "octets stay behind only while completions or receives are missing"
            );
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                QpEvent::Send(completion) => self.completed(completion, true),
                QpEvent::Recv(completion) => self.completed(completion, false),
                QpEvent::RecvXrc(..) => panic!("no XRC"),
                QpEvent::Async(_) => {}
            }
        }
        assert!(self.mem.bytes(SEALED).iter().all(|octet| *octet == SEAL), "sealed memory was written");
        if self.qp.state() == QpState::Error {
            assert!(self.sends.is_empty() && self.receives.is_empty(), "the error state flushes");
        }
    }

    fn completed(&mut self, completion: WorkCompletion, send: bool) {
        let outstanding = if send { &mut self.sends } else { &mut self.receives };
        assert_eq!(outstanding.first(), Some(&completion.wr_id), "in the order of the posts, each once");
        outstanding.pop_first();
        if completion.status == WcStatus::Success && !send {
            assert!(completion.byte_len <= 9000 || completion.imm.is_some());
        }
    }
}
