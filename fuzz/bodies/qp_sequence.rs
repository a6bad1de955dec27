// Applies one input to a queue pair: verbs calls, packets and time. Included by the fuzz target and by the test that
// replays its corpus, so it has no doc comment of its own.

#[path = "qp_sequence/input.rs"]
mod input;
#[allow(dead_code, clippy::duplicate_mod, reason = "tests use more of it, and so does another target")]
#[path = "../../crates/ferroce-sim/src/ram.rs"]
mod ram;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroce_proto::{
    Bind, Budget, CongestionControl, NoSharedQueue, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, QpEvent,
    QpState, QueuePair, RecvWr, SelectiveRepeat, SendOp, SendTo, SendWr, Service, SqMark, WcStatus,
    WindowAccess,
};
use ferroce_wire::{
    Aeth, AtomicEth, BatchLimits, Bth, CreditCode, Feth, Flow, IcrcStatus, Imm, Instant, Lkey, Msn, NakCode,
    Operation, Packet, PathMtu, Pkey, Psn, Qpn, RcPacket, Request, Response, Reth, Rkey, RnrTimer, SendTail,
    Syndrome, TxBatch,
};

use input::Input;
use ram::{Ram, Remote};

const QPN: Qpn = Qpn::new(0x12_0034);
const PEER: Qpn = Qpn::new(0x56_0078);
const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const DESTINATION: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
/// How the peer's packets come.
const FROM: Flow = Flow {
    source: DESTINATION,
    destination: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    source_port: 0xc000,
    traffic_class: 0,
    hop_limit: 64,
    link: ferroce_wire::LinkLayer::UDP,
};

/// Everything is permitted.
const OPEN: u32 = 1;
/// Nothing may write to it: its octets never change.
const SEALED: u32 = 2;
/// May be invalidated.
const WINDOW: u32 = 3;
const SIZE: usize = 10_000;
const BASE: u64 = 0x4000;
const SEAL: u8 = 0x5a;

struct Run<'a> {
    input: Input<'a>,
    qp: QueuePair,
    mem: Ram,
    now: Instant,
    attr: QpAttr,
    caps: QpCaps,
    budget: Arc<Budget>,
    mark: Option<(SqMark, u64)>,
    /// Work requests posted, in order of their numbers; taken out when they complete.
    sends: BTreeSet<u64>,
    receives: BTreeSet<u64>,
    next_id: u64,
    buffer: Vec<u8>,
    /// How the peer's packets come.
    from: Flow,
    /// Some steps are reports, notifications and marks.
    extras: bool,
}

/// The place of the octet whose upper bits choose selective repeat and congestion control. All zero, the input means what it meant before
/// there was a choice.
#[allow(dead_code, reason = "the test of the corpus uses it")]
pub const CHOICES: usize = 7;

fn selective_repeat(choice: u8) -> SelectiveRepeat {
    [SelectiveRepeat::Off, SelectiveRepeat::Offered, SelectiveRepeat::Agreed, SelectiveRepeat::Off]
        [usize::from(choice % 4)]
}

fn congestion_control(choice: u8) -> CongestionControl {
    [CongestionControl::React, CongestionControl::Off, CongestionControl::Full, CongestionControl::Full]
        [usize::from(choice % 4)]
}

/// First octets: the queue pair; then one step after the other. Panics on a broken promise.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let caps = QpCaps {
        max_send_wr: u32::from(input.byte() % 9),
        max_recv_wr: u32::from(input.byte() % 9),
        max_send_sge: u32::from(input.byte() % 5),
        max_recv_sge: u32::from(input.byte() % 5),
        max_inline: u32::from(input.byte()),
    };
    let budget = Arc::new(Budget::new(1 << (input.byte() % 24)));
    let blocks = budget.hold_blocks_available();
    let sq_sig_all = input.bit();
    let choices = input.byte();
    let config = QpConfig {
        qpn: QPN,
        service: Service::Rc,
        caps,
        srq: None,
        sq_sig_all,
        port_mtu: PathMtu::B4096,
        seed: 1,
        early_resends: choices & 1 != 0,
        budget: budget.clone(),
    };
    let mut mem = Ram::default();
    mem.register(OPEN, BASE, vec![0; SIZE]);
    let sealed = mem.register(SEALED, BASE, vec![SEAL; SIZE]);
    sealed.local_write = false;
    sealed.remote = Remote { read: true, write: false, atomic: false };
    mem.register(WINDOW, BASE, vec![0; SIZE]).window = true;
    let attr = QpAttr {
        path_mtu: PathMtu::ALL[usize::from(input.byte() % 5)],
        rq_psn: Psn::new(input.u32()),
        sq_psn: Psn::new(input.u32()),
        dest_qp: PEER,
        access: admitted(input.byte()),
        path: Flow {
            source: SOURCE,
            destination: DESTINATION,
            source_port: 0xc000,
            traffic_class: if choices & 0x20 != 0 { Flow::ECN_CAPABLE } else { 0 },
            hop_limit: 64,
            link: ferroce_wire::LinkLayer::UDP,
        },
        max_rd_atomic: input.byte() % 20,
        max_dest_rd_atomic: input.byte() % 20,
        min_rnr_timer: input.byte() % 32,
        timeout: input.byte() % 32,
        retry_cnt: input.byte() % 8,
        rnr_retry: input.byte() % 8,
        ..QpAttr::default()
    };
    let mut run = Run {
        input,
        qp: QueuePair::new(config).unwrap(),
        mem,
        now: Instant::ZERO,
        attr,
        caps,
        budget,
        mark: None,
        sends: BTreeSet::new(),
        receives: BTreeSet::new(),
        next_id: 0,
        buffer: vec![0; 20_000],
        from: FROM,
        extras: choices & 0x3e != 0,
    };
    run.qp.set_selective_repeat(selective_repeat(choices >> 1));
    run.qp.set_congestion_control(congestion_control(choices >> 3));
    run.connect();
    while !run.input.0.is_empty() {
        run.step();
        run.check();
    }
    let Run { qp, budget, .. } = run;
    drop(qp);
    assert_eq!((budget.reads_in_use(), budget.destination_in_use(DESTINATION)), (0, 0), "all is given back");
    assert_eq!(budget.hold_blocks_available(), blocks, "and all blocks");
}

impl Run<'_> {
    /// To RTS, so that not every input must find the way.
    fn connect(&mut self) {
        use QpAttrMask as M;
        let steps = [
            (QpState::Reset, M::empty()),
            (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
            (
                QpState::Rtr,
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
            ),
            (QpState::Rts, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC),
        ];
        for (state, mask) in steps {
            self.qp.modify(&QpAttr { state, ..self.attr }, mask | M::STATE).unwrap();
        }
        self.sends.clear();
        self.receives.clear();
        self.mark = None;
    }

    fn step(&mut self) {
        let step = self.input.byte();
        match step % 32 {
            _ if self.extras && step >= 192 => self.extra(step),
            0..6 => self.post_send(),
            6..9 => self.post_recv(),
            9..15 => self.request(),
            15..21 => self.response(),
            21..25 => self.transmit(),
            25..28 => self.pass_time(),
            28 => self.modify(),
            29 => self.raw_packet(),
            30 => match self.input.byte() % 8 {
                0 => self.connect(),
                1 => self.qp.set_fatal(),
                2 => self.mem.region(OPEN).gone ^= true,
                3 => {
                    if !self.mem.regions.iter().any(|region| region.key == WINDOW) {
                        self.mem.register(WINDOW, BASE, vec![0; SIZE]).window = true;
                    }
                }
                4 | 5 => self.mark = Some((self.qp.sq_mark(), self.next_id)),
                _ => {
                    if let Some((mark, id)) = self.mark.take() {
                        self.qp.sq_rollback(mark);
                        // Requests that had started stay and may complete. The others must not, but from outside
                        // that cannot be told.
                        self.next_id = self.next_id.max(id);
                    }
                }
            },
            _ => self.events(),
        }
    }

    /// Reports of held packets, notifications and marks of congestion, and choices.
    fn extra(&mut self, step: u8) {
        match step % 16 {
            0..6 => self.report(),
            6..9 => {
                let psn = Psn::new(self.input.u32());
                let bth = Bth { becn: true, ..self.bth(psn) };
                self.give(bth, Operation::Cnp);
            }
            9..12 => self.from.traffic_class ^= Flow::CONGESTION_EXPERIENCED,
            12 => self.qp.set_selective_repeat(selective_repeat(self.input.byte())),
            13 => self.qp.set_congestion_control(congestion_control(self.input.byte())),
            14 => self.qp.delay_ack(self.input.bit()),
            _ => self.qp.put_ack_first(self.input.bit()),
        }
    }

    /// The peer reports what it holds behind a PSN.
    fn report(&mut self) {
        let back = u32::from(self.input.byte() % 8);
        let psn = self.psn_near(self.qp.query().sq_psn.add(0u32.wrapping_sub(back)));
        let bth = self.bth(psn);
        let aeth = Aeth {
            syndrome: match self.input.byte() {
                0..200 => Syndrome::Ack { credits: CreditCode::UNLIMITED },
                other => Syndrome::from_byte(other),
            },
            msn: Msn::new(u32::from(self.input.byte())),
        };
        let held = match self.input.byte() % 4 {
            0 => 1 << (self.input.byte() % 128),
            1 => u128::from(self.input.u32()),
            2 => u128::from(self.input.u32()) << (self.input.byte() % 128),
            _ => u128::MAX << (self.input.byte() % 128),
        };
        self.give(bth, Operation::Sack { aeth, held });
    }

    fn post_send(&mut self) {
        let remote = ferroce_proto::Remote { addr: self.input.addr(), rkey: Rkey::new(self.input.key()) };
        let value = u64::from(self.input.byte());
        let op = match self.input.byte() % 13 {
            0 | 1 => SendOp::Send,
            2 => SendOp::SendImm(Imm([1, 2, 3, 4])),
            3 => SendOp::SendInvalidate(Rkey::new(WINDOW)),
            4 => SendOp::Write { remote },
            5 => SendOp::WriteImm { remote, imm: Imm([5; 4]) },
            6 => SendOp::Read { remote },
            7 => SendOp::CompareSwap { remote, compare: value, swap: value + 1 },
            8 => SendOp::FetchAdd { remote, add: value },
            9 => SendOp::AtomicWrite { remote, octets: (value % 2 == 0).then_some([value as u8; 8]) },
            10 => {
                let feth = Feth { placement: value as u8 & 7, selectivity: value as u8 >> 3 & 3 };
                SendOp::Flush { remote, length: self.input.length(), feth }
            }
            11 => SendOp::BindMw(Bind {
                window: Rkey::new(WINDOW),
                rkey: Rkey::new(WINDOW),
                region: Lkey::new(self.input.key()),
                addr: remote.addr,
                length: value,
                access: WindowAccess::REMOTE_WRITE,
            }),
            _ => SendOp::LocalInvalidate(Rkey::new(self.input.key())),
        };
        let sges = self.input.sges();
        let flags = self.input.byte();
        let wr = SendWr {
            wr_id: self.next_id,
            op,
            to: SendTo::Peer,
            sges: &sges,
            signaled: flags & 1 != 0,
            solicited: flags & 2 != 0,
            fence: flags & 4 != 0,
            inline: flags & 8 != 0,
        };
        let state = self.qp.state();
        if self.qp.post_send(&wr, &self.mem).is_ok() {
            assert!(matches!(state, QpState::Rts | QpState::Sqd | QpState::Error));
            self.sends.insert(self.next_id);
            self.next_id += 1;
        }
    }

    fn post_recv(&mut self) {
        let sges = self.input.sges();
        let wr = RecvWr { wr_id: self.next_id, sges: &sges };
        if self.qp.post_recv(&wr).is_ok() {
            assert!(self.qp.state() != QpState::Reset);
            assert!(sges.len() <= self.caps.max_recv_sge as usize);
            self.receives.insert(self.next_id);
            self.next_id += 1;
        }
    }

    /// Near the number that counts, or anywhere.
    fn psn_near(&mut self, psn: Psn) -> Psn {
        match self.input.byte() {
            0..160 => psn,
            160..240 => psn.add(u32::from(self.input.byte() % 8)).add(0xff_fffc),
            _ => Psn::new(self.input.u32()),
        }
    }

    fn bth(&mut self, psn: Psn) -> Bth {
        let flags = self.input.byte();
        Bth {
            solicited: flags & 1 != 0,
            mig_req: flags & 2 != 0,
            pkey: if flags & 0x70 == 0x70 { Pkey::new(0x1234) } else { Pkey::DEFAULT },
            fecn: false,
            becn: false,
            dest_qp: if flags >= 0xf8 { PEER } else { QPN },
            ack_req: flags & 4 != 0,
            extended: flags & 8 != 0,
            psn,
        }
    }

    fn request(&mut self) {
        let psn = self.psn_near(self.qp.query().rq_psn);
        let bth = self.bth(psn);
        let mtu = self.attr.path_mtu.bytes();
        let len = match self.input.byte() % 4 {
            0 => mtu,
            1 => usize::from(self.input.byte()),
            2 => mtu - 1,
            _ => self.input.length().min(5000) as usize,
        };
        let data = vec![0xa5; len];
        let payload = &data[..];
        let dma_len = match self.input.byte() % 4 {
            0 => self.input.length(),
            1 => 2 * mtu as u32,
            _ => len as u32,
        };
        let reth = Reth { va: self.input.addr(), rkey: Rkey::new(self.input.key()), dma_len };
        let atomic = AtomicEth { va: reth.va, rkey: reth.rkey, swap_or_add: 3, compare: 0 };
        let imm = self.input.bit().then_some(Imm([7; 4]));
        let tail = match self.input.byte() % 4 {
            0 => SendTail::Imm(Imm([8; 4])),
            1 => SendTail::Invalidate(Rkey::new(self.input.key())),
            _ => SendTail::None,
        };
        let request = match self.input.byte() % 14 {
            0 => Request::SendFirst { payload },
            1 => Request::SendMiddle { payload },
            2 => Request::SendLast { payload, tail },
            3 | 4 => Request::SendOnly { payload, tail },
            5 => Request::WriteFirst { reth, payload },
            6 => Request::WriteMiddle { payload },
            7 => Request::WriteLast { payload, imm },
            8 => Request::WriteOnly { reth, payload, imm },
            9 | 10 => Request::ReadRequest { reth },
            11 => Request::CompareSwap { atomic },
            12 => Request::FetchAdd { atomic },
            _ if imm.is_some() => {
                let placement = bth.psn.value() as u8 & 3;
                Request::Flush { feth: Feth { placement, selectivity: Feth::RANGE }, reth }
            }
            _ => Request::AtomicWrite { reth, payload },
        };
        self.give(bth, Operation::Rc(RcPacket::Request(request)));
    }

    fn response(&mut self) {
        let back = u32::from(self.input.byte() % 8);
        let next = self.qp.query().sq_psn;
        let psn = self.psn_near(next.add(0u32.wrapping_sub(back)));
        let bth = self.bth(psn);
        let mtu = self.attr.path_mtu.bytes();
        let len = match self.input.byte() % 4 {
            0 => mtu,
            1 => usize::from(self.input.byte()),
            2 => 0,
            _ => self.input.length().min(5000) as usize,
        };
        let data = vec![0x3c; len];
        let payload = &data[..];
        let syndrome = match self.input.byte() % 16 {
            0..9 => Syndrome::Ack { credits: CreditCode::UNLIMITED },
            9 => Syndrome::Ack { credits: CreditCode::new(self.input.byte() % 32).unwrap() },
            10 | 11 => Syndrome::Nak(NakCode::PsnSequenceError),
            12 | 13 => Syndrome::RnrNak(RnrTimer::new(self.input.byte() % 32).unwrap()),
            _ => Syndrome::from_byte(self.input.byte()),
        };
        let aeth = Aeth { syndrome, msn: Msn::new(u32::from(self.input.byte())) };
        let response = match self.input.byte() % 8 {
            0 => Response::ReadFirst { aeth, payload },
            1 => Response::ReadMiddle { payload },
            2 => Response::ReadLast { aeth, payload },
            3 => Response::ReadOnly { aeth, payload },
            4 => Response::AtomicAcknowledge { aeth, original: 99 },
            _ => Response::Acknowledge { aeth },
        };
        self.give(bth, Operation::Rc(RcPacket::Response(response)));
    }

    fn raw_packet(&mut self) {
        let len = usize::from(self.input.byte()).min(self.input.0.len());
        let (bytes, rest) = self.input.0.split_at(len);
        self.input.0 = rest;
        if let Ok(packet) = Packet::parse(bytes) {
            let mut bth = packet.bth;
            bth.dest_qp = QPN;
            self.give(bth, packet.op);
        }
    }

    fn give(&mut self, bth: Bth, op: Operation<'_>) {
        let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
        let before = self.qp.query();
        let result =
            self.qp.handle_datagram(self.now, &self.from, &packet, &mut NoSharedQueue, &mut self.mem);
        if bth.dest_qp != QPN {
            assert!(result.is_err());
            assert_eq!(self.qp.query(), before, "not for us");
        }
    }

    /// Sends what there is, in batches of any size.
    fn transmit(&mut self) {
        let size = usize::from(self.input.u16()).clamp(5000, self.buffer.len());
        let limits =
            BatchLimits { max_segments: usize::from(self.input.byte() % 64) + 1, gso: self.input.bit() };
        let once = self.input.bit();
        for batches in 0.. {
            assert!(batches < 100_000, "there is no end to what it sends");
            let mut batch = TxBatch::new(&mut self.buffer[..size], limits);
            let any = self.qp.poll_transmit(self.now, &mut self.mem, &mut batch);
            assert_eq!(any, !batch.is_empty());
            for segment in batch.segments() {
                let packet = Packet::parse(segment).expect("well formed");
                assert_eq!(packet.bth.dest_qp, PEER);
            }
            if !any || once {
                break;
            }
        }
    }

    fn pass_time(&mut self) {
        let step = match self.input.byte() % 4 {
            0 => Duration::from_nanos(u64::from(self.input.u16())),
            1 => Duration::from_micros(u64::from(self.input.u16())),
            2 => Duration::from_millis(u64::from(self.input.u16())),
            _ => {
                // Exactly when it asks for.
                let due = self.qp.poll_timeout().unwrap_or(self.now);
                due.saturating_since(self.now)
            }
        };
        self.now += step;
        self.qp.handle_timeout(self.now);
        self.transmit();
        let due = self.qp.poll_timeout();
        assert!(due.is_none_or(|due| due > self.now), "time stands still: {due:?} at {:?}", self.now);
    }

    fn modify(&mut self) {
        let states = [
            QpState::Reset,
            QpState::Init,
            QpState::Rtr,
            QpState::Rts,
            QpState::Sqd,
            QpState::Sqe,
            QpState::Error,
        ];
        let state = states[usize::from(self.input.byte() % 7)];
        let common = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        let mask = match self.input.byte() % 4 {
            0 => QpAttrMask::from_bits_retain(self.input.u32()),
            1 => common,
            2 => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::TIMEOUT,
            _ => QpAttrMask::STATE,
        };
        let attr = QpAttr {
            state,
            en_sqd_async_notify: self.input.bit(),
            max_rd_atomic: self.input.byte(),
            max_dest_rd_atomic: self.input.byte(),
            timeout: self.input.byte() % 40,
            ..self.attr
        };
        let before = self.qp.query();
        match self.qp.modify(&attr, mask) {
            Ok(()) if state == QpState::Reset && mask.contains(QpAttrMask::STATE) => {
                self.sends.clear();
                self.receives.clear();
                self.mark = None;
            }
            Ok(()) => {}
            Err(_) => assert_eq!(self.qp.query(), before, "a failed modify changes nothing"),
        }
    }

    /// Fetches all events: each work request completes once, in order.
    fn events(&mut self) {
        for events in 0.. {
            assert!(events < 1000, "there is no end to what it reports");
            let Some(event) = self.qp.poll_event() else { break };
            let (posted, completion) = match event {
                QpEvent::Send(completion) => (&mut self.sends, completion),
                QpEvent::Recv(completion) | QpEvent::RecvXrc(_, completion) => {
                    (&mut self.receives, completion)
                }
                QpEvent::Async(_) => continue,
            };
            assert!(posted.contains(&completion.wr_id), "{completion:?} was not posted or has completed");
            // Earlier work requests were unsignaled or taken back.
            *posted = posted.split_off(&(completion.wr_id + 1));
            assert_eq!(completion.qpn, QPN);
            if completion.status != WcStatus::Success && completion.wr_id % 2 == 0 {
                assert_eq!(completion.byte_len, 0);
            }
        }
        if self.qp.state() == QpState::Error && self.mark.is_none() {
            assert!(self.receives.is_empty(), "all are flushed");
        }
    }

    fn check(&mut self) {
        assert!(self.mem.bytes(SEALED).iter().all(|byte| *byte == SEAL), "nobody may write there");
        let state = self.qp.state();
        let attr = self.qp.query();
        assert_eq!((attr.state, attr.cur_state), (state, state));
        assert!(!attr.sq_draining || state == QpState::Sqd);
        let most = self.budget.read_limit().max(4096 + 256);
        assert!(self.budget.reads_in_use() <= most, "{} of {most}", self.budget.reads_in_use());
    }
}

/// The peer's rights: writes in any case, flushes by the two bits that have no other meaning.
fn admitted(byte: u8) -> QpAccess {
    QpAccess::from_bits_retain(u32::from(byte | 2) | u32::from(byte & 0xc0) << 2)
}
