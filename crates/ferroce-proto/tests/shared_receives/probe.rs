//! One queue pair of any service in the hands of a test, its memory in several protection domains, and shared queues.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use ferroce_proto::{
    AsyncEventKind, Bind, Budget, Domain, DropReason, Memory, MemoryError, QpAccess, QpAttr, QpAttrMask,
    QpCaps, QpConfig, QpEvent, QpState, QueuePair, ReceiveSource, RecvWqe, RecvWr, RemoteAccess, SendOp,
    SendTo, SendWr, Service, Sge, SharedReceiveQueue, SharedReceives, Taken, WcStatus,
};
use ferroce_wire::{
    BatchLimits, Bth, CreditCode, Feth, Flow, IcrcStatus, Instant, Lkey, Operation, Packet, PathMtu, Psn,
    Qkey, Qpn, RcPacket, Request, Response, Reth, Rkey, SrqNumber, Syndrome, TxBatch,
};

use crate::ram::Ram;

pub const QPN: Qpn = Qpn::new(0x01_0011);
pub const PEER: Qpn = Qpn::new(0x02_0022);
pub const KEY: u32 = 0x1234;
pub const BASE: u64 = 0x10_0000;
/// First PSN of the peer's requests, and of ours.
pub const THEIRS: u32 = 0x65_4321;
pub const OURS: u32 = 0x12_3456;
/// The queue pair's own domain.
pub const HOME: u32 = 1;

pub static DATA: [u8; 4096] = {
    let mut data = [0; 4096];
    let mut i = 0;
    while i < data.len() {
        data[i] = (i * 7 + (i >> 8)) as u8;
        i += 1;
    }
    data
};

/// Memory of several protection domains, each with one region of the same key and address.
pub struct Domains {
    rams: BTreeMap<u32, Ram>,
    here: u32,
}

impl Domains {
    pub fn new(domains: &[u32]) -> Self {
        let ram = |id: &u32| {
            let mut ram = Ram::default();
            ram.register(KEY, BASE, vec![0; 64 << 10]);
            (*id, ram)
        };
        Self { rams: domains.iter().map(ram).collect(), here: HOME }
    }

    pub fn of(&mut self, domain: u32) -> &mut Ram {
        self.rams.entry(domain).or_default()
    }

    fn ram(&self) -> Result<&Ram, MemoryError> {
        self.rams.get(&self.here).ok_or(MemoryError::BadKey)
    }

    fn ram_mut(&mut self) -> Result<&mut Ram, MemoryError> {
        self.rams.get_mut(&self.here).ok_or(MemoryError::BadKey)
    }
}

impl Memory for Domains {
    fn check_local(&self, sge: &Sge, write: bool) -> Result<(), MemoryError> {
        self.ram()?.check_local(sge, write)
    }
    fn read_local(&self, lkey: Lkey, addr: u64, out: &mut [u8], _: u64) -> Result<(), MemoryError> {
        self.ram()?.read_local(lkey, addr, out, 0)
    }
    fn write_local(&mut self, lkey: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.ram_mut()?.write_local(lkey, addr, data)
    }
    fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.ram()?.read_inline(addr, out)
    }
    fn check_remote(&self, rkey: Rkey, addr: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryError> {
        self.ram()?.check_remote(rkey, addr, len, access)
    }
    fn read_remote(&self, rkey: Rkey, addr: u64, out: &mut [u8], _: u64) -> Result<(), MemoryError> {
        self.ram()?.read_remote(rkey, addr, out, 0)
    }
    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.ram_mut()?.write_remote(rkey, addr, data)
    }
    fn compare_swap(&mut self, rkey: Rkey, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.ram_mut()?.compare_swap(rkey, addr, compare, swap)
    }
    fn fetch_add(&mut self, rkey: Rkey, addr: u64, add: u64) -> Result<u64, MemoryError> {
        self.ram_mut()?.fetch_add(rkey, addr, add)
    }
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryError> {
        self.ram_mut()?.invalidate(rkey)
    }
    fn bind(&mut self, bind: &Bind) -> Result<(), MemoryError> {
        self.ram_mut()?.bind(bind)
    }
    fn atomic_write(&mut self, rkey: Rkey, addr: u64, octets: [u8; 8]) -> Result<(), MemoryError> {
        self.ram_mut()?.atomic_write(rkey, addr, octets)
    }
    fn flush(&mut self, rkey: Rkey, addr: u64, len: u64, feth: Feth) -> Result<(), MemoryError> {
        self.ram_mut()?.flush(rkey, addr, len, feth)
    }
    fn enter(&mut self, domain: Option<Domain>) {
        self.here = domain.map_or(HOME, |Domain(id)| id);
    }
}

/// A shared receive queue behind a lock, as an engine would have it.
#[derive(Debug)]
pub struct Queue(pub Mutex<SharedReceiveQueue>);

impl Queue {
    pub fn new(max_wr: u32, domain: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SharedReceiveQueue::new(max_wr, 2, Domain(domain)).unwrap())))
    }

    /// Posts one of `length` octets at BASE.
    pub fn post(&self, wr_id: u64, length: u32) {
        let sge = Sge { addr: BASE, length, lkey: Lkey::new(KEY) };
        self.0.lock().unwrap().post(&RecvWr { wr_id, sges: &[sge] }).unwrap();
    }

    pub fn len(&self) -> u32 {
        self.0.lock().unwrap().len()
    }
}

/// An XRC domain: its queues by number, each with its protection domain.
#[derive(Debug, Default)]
pub struct Xrcd(pub Mutex<BTreeMap<u32, (u32, Arc<Queue>)>>);

impl Xrcd {
    pub fn add(&self, number: u32, domain: u32) -> Arc<Queue> {
        let queue = Queue::new(16, domain);
        self.0.lock().unwrap().insert(number, (domain, Arc::clone(&queue)));
        queue
    }
}

/// Where a queue pair takes receive WQEs from.
#[derive(Clone)]
pub enum Source {
    Own,
    Queue(Arc<Queue>),
    Xrc { xrcd: Arc<Xrcd>, own_memory: bool },
}

impl Source {
    pub fn config(&self) -> Option<SharedReceives> {
        match self {
            Self::Own => None,
            Self::Queue(_) => Some(SharedReceives::Queue { max_sge: 2 }),
            Self::Xrc { own_memory, .. } => {
                Some(SharedReceives::XrcDomain { max_sge: 2, own_memory: *own_memory })
            }
        }
    }
}

impl ReceiveSource for Source {
    fn take(&mut self, number: Option<SrqNumber>, wqe: &mut RecvWqe, least: u64) -> Taken {
        match (self, number) {
            (Self::Queue(queue), None) => queue.0.lock().unwrap().take(wqe, least),
            (Self::Xrc { xrcd, .. }, Some(number)) => match xrcd.0.lock().unwrap().get(&number.value()) {
                Some((_, queue)) => queue.0.lock().unwrap().take(wqe, least),
                None => Taken::Empty,
            },
            _ => unreachable!("a queue pair takes from what it was created with"),
        }
    }

    fn domain_of(&self, number: SrqNumber) -> Option<Domain> {
        let Self::Xrc { xrcd, .. } = self else { return None };
        xrcd.0.lock().unwrap().get(&number.value()).map(|(domain, _)| Domain(*domain))
    }
}

pub struct Probe {
    pub qp: QueuePair,
    pub source: Source,
    pub mem: Domains,
    pub now: Instant,
}

fn flow(from: u8) -> Flow {
    let address = |host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
    Flow {
        source: address(from),
        destination: address(3 - from),
        source_port: 0xc000 + u16::from(from),
        traffic_class: 0,
        hop_limit: 64,
        link: Default::default(),
    }
}

/// An attribute set that fits every transition.
pub fn attr(state: QpState) -> QpAttr {
    QpAttr {
        state,
        path_mtu: PathMtu::B1024,
        rq_psn: Psn::new(THEIRS),
        sq_psn: Psn::new(OURS),
        dest_qp: PEER,
        qkey: Qkey::new(7),
        access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC,
        path: flow(1),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        ..QpAttr::default()
    }
}

/// The attributes that a transition of a service names, as programs name them for RC.
pub fn mask(service: Service, state: QpState) -> QpAttrMask {
    use QpAttrMask as M;
    let datagram = service == Service::Ud;
    let reliable = !matches!(service, Service::Uc | Service::Ud);
    M::STATE
        | match (state, datagram, reliable) {
            (QpState::Init, true, _) => M::PKEY_INDEX | M::PORT | M::QKEY,
            (QpState::Init, false, _) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            (QpState::Rtr, true, _) => M::empty(),
            (QpState::Rtr, false, false) => M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            (QpState::Rtr, false, true) => {
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
            }
            (QpState::Rts, _, true) => {
                M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC
            }
            (QpState::Rts, _, false) => M::SQ_PSN,
            _ => M::empty(),
        }
}

impl Probe {
    pub fn new(service: Service, source: Source, domains: &[u32]) -> Self {
        let qp = QueuePair::new(QpConfig {
            qpn: QPN,
            service,
            caps: QpCaps {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline: 64,
            },
            srq: source.config(),
            sq_sig_all: false,
            port_mtu: PathMtu::B1024,
            seed: 5,
            early_resends: false,
            budget: Arc::new(Budget::new(1 << 20)),
        });
        Self { qp: qp.unwrap(), source, mem: Domains::new(domains), now: Instant::ZERO }
    }

    /// From RESET to `state`.
    pub fn bring(mut self, service: Service, state: QpState) -> Self {
        for next in [QpState::Init, QpState::Rtr, QpState::Rts] {
            if self.qp.state() != state {
                self.qp.modify(&attr(next), mask(service, next)).unwrap();
            }
        }
        if self.qp.state() != state {
            self.to(state);
        }
        self
    }

    pub fn to(&mut self, state: QpState) {
        self.qp.modify(&attr(state), QpAttrMask::STATE).unwrap();
    }

    pub fn give(&mut self, bth: Bth, op: Operation<'_>) -> Result<(), DropReason> {
        let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
        self.qp.handle_datagram(self.now, &flow(2), &packet, &mut self.source, &mut self.mem)
    }

    /// A request of RC's by its distance from the first PSN, or of XRC's for queue `srq`.
    pub fn request(&mut self, psn: u32, srq: Option<u32>, request: Request<'_>) -> Result<(), DropReason> {
        let mut bth = Bth::new(QPN, Psn::new(THEIRS).add(psn));
        bth.ack_req = true;
        let packet = RcPacket::Request(request);
        self.give(
            bth,
            match srq {
                Some(number) => Operation::Xrc { srq: Some(SrqNumber::new(number)), packet },
                None => Operation::Rc(packet),
            },
        )
    }

    /// An answer of XRC's.
    pub fn response(&mut self, psn: u32, response: Response<'_>) -> Result<(), DropReason> {
        let packet = RcPacket::Response(response);
        self.give(Bth::new(QPN, Psn::new(OURS).add(psn)), Operation::Xrc { srq: None, packet })
    }

    pub fn post(&mut self, wr_id: u64, op: SendOp, to: SendTo, length: u32) -> Result<(), String> {
        let sges = [Sge { addr: BASE, length, lkey: Lkey::new(KEY) }];
        let sges = if length == 0 { &sges[..0] } else { &sges[..] };
        let (signaled, solicited, fence, inline) = (true, false, false, false);
        let wr = SendWr { wr_id, op, to, sges, signaled, solicited, fence, inline };
        self.qp.post_send(&wr, &self.mem).map_err(|error| error.to_string())
    }

    /// The packets sent, as text.
    pub fn out(&mut self) -> Vec<String> {
        let mut buffer = vec![0; 64 << 10];
        let mut out = TxBatch::new(&mut buffer, BatchLimits { max_segments: 64, gso: true });
        let mut sent = Vec::new();
        while self.qp.poll_transmit(self.now, &mut self.mem, &mut out) {
            sent.extend(out.segments().map(|segment| describe(&Packet::parse(segment).unwrap())));
            out.clear();
        }
        sent
    }

    /// The completions, by queue or side, and the events.
    pub fn events(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(event) = self.qp.poll_event() {
            all.push(match event {
                QpEvent::Send(completion) => format!("send {} {:?}", completion.wr_id, completion.status),
                QpEvent::Recv(completion) => format!("recv {} {:?}", completion.wr_id, completion.status),
                QpEvent::RecvXrc(number, completion) => {
                    assert_eq!(completion.qpn, QPN);
                    if completion.status == WcStatus::Success {
                        assert_eq!(completion.src_qp, PEER);
                    }
                    format!("recv {} {:?} on {}", completion.wr_id, completion.status, number.value())
                }
                QpEvent::Async(event) => format!("{event:?}"),
            });
        }
        // The first request in RTR; tests stand in RTS mostly, and this is not what they look for.
        all.retain(|event| *event != format!("{:?}", AsyncEventKind::CommEst));
        all
    }
}

fn describe(packet: &Packet<'_>) -> String {
    let (service, rc) = match &packet.op {
        Operation::Rc(rc) => ("rc".to_owned(), rc),
        Operation::Xrc { srq: Some(number), packet } => (format!("xrc {}", number.value()), packet),
        Operation::Xrc { srq: None, packet } => ("xrc".to_owned(), packet),
        Operation::Uc(_) | Operation::Ud(_) | Operation::Cnp | Operation::Sack { .. } => panic!("{packet:?}"),
    };
    let first = if matches!(rc, RcPacket::Request(_)) { OURS } else { THEIRS };
    let psn = packet.bth.psn.since(Psn::new(first));
    let what = match rc {
        RcPacket::Response(Response::Acknowledge { aeth }) => match aeth.syndrome {
            // Shared queues give no credits (IBTA 9.7.7.2).
            Syndrome::Ack { credits } => {
                assert_eq!(credits, CreditCode::UNLIMITED);
                "Ack".to_owned()
            }
            Syndrome::RnrNak(timer) => format!("Rnr {}", timer.code()),
            syndrome => format!("Nak {:#x}", syndrome.to_byte()),
        },
        rc => format!("{:?}[{}]", rc.opcode(), rc.payload().len()),
    };
    format!("{service}: {what} {psn}")
}

pub fn reth(offset: u64, dma_len: u32) -> Reth {
    Reth { va: BASE + offset, rkey: Rkey::new(KEY), dma_len }
}

pub fn remote(offset: u64) -> ferroce_proto::Remote {
    ferroce_proto::Remote { addr: BASE + offset, rkey: Rkey::new(KEY) }
}
