//! Two ends of a connection in one process, over real sockets on lo.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

pub mod orders;
pub mod resets;
pub mod streams;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use ferroce_engine::{
    Access, AhAttr, CompletionChannel, CompletionQueue, Context, Mr, Pd, Qp, QpAccess, QpAttr, QpAttrMask,
    QpCaps, QpInit, QpState, RecvWr, Remote, SendOp, SendWr, Service, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use ferroce_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

pub const PATIENCE: Duration = Duration::from_secs(20);

/// The variable that names a device other than that on lo.
pub const DEVICE: &str = "FORGERS_TEST_DEVICE";

/// The device on lo, of a broker in this process unless one runs already.
pub fn open() -> Arc<Context> {
    static EMBEDDED: Once = Once::new();
    EMBEDDED.call_once(|| {
        ferroce_client::embed_with(ferroce_broker::start_embedded);
        // SAFETY: the first thing every test does, before its threads exist; the test harness
        // itself reads no environment by then.
        unsafe { std::env::set_var("FERROCE_BROKER", "embedded") };
    });
    let device = std::env::var(DEVICE).unwrap_or("fr0".to_owned());
    Context::open(&device).expect("the device of the test")
}

/// The wire, where `auto` would take shared memory. The first thing of every test of a file.
pub fn force_udp() {
    force("udp");
}

/// Rings to the broker, as [`force_udp`].
pub fn force_rings() {
    force("packet");
}

fn force(datapath: &str) {
    static FORCED: Once = Once::new();
    // SAFETY: the threads of the other tests wait here for it, and the test harness itself reads no environment by then.
    FORCED.call_once(|| unsafe { std::env::set_var("FERROCE_DATAPATH", datapath) });
}

/// Stops a thread that would otherwise outlive a panic.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Memory that peers write to: never looked at by reference.
pub struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: only volatile copies touch it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Self {
        let memory = vec![0_u8; len].into_boxed_slice();
        Self { start: Box::into_raw(memory).cast(), len }
    }

    pub fn addr(&self) -> u64 {
        self.start as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, offset: usize) -> u8 {
        assert!(offset < self.len);
        // SAFETY: in bounds of memory that lives for ever.
        unsafe { self.start.add(offset).read_volatile() }
    }

    pub fn set(&self, offset: usize, value: u8) {
        assert!(offset < self.len);
        // SAFETY: in bounds of memory that lives for ever.
        unsafe { self.start.add(offset).write_volatile(value) }
    }

    pub fn fill(&self, seed: usize, len: usize) {
        (0..len).for_each(|i| self.set(i, pattern(seed, i)));
    }

    pub fn check(&self, seed: usize, len: usize) {
        self.check_at(0, seed, len);
    }

    pub fn holds(&self, seed: usize, len: usize) -> bool {
        (0..len).all(|i| self.get(i) == pattern(seed, i))
    }

    pub fn check_at(&self, at: usize, seed: usize, len: usize) {
        if let Some(i) = (0..len).find(|&i| self.get(at + i) != pattern(seed, i)) {
            panic!("octet {i} of {len} is {:#x}, not {:#x}", self.get(at + i), pattern(seed, i));
        }
    }
}

fn pattern(seed: usize, i: usize) -> u8 {
    (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8
}

/// One end: everything a queue pair needs.
pub struct End {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub channel: Option<Arc<CompletionChannel>>,
    pub cq: Arc<CompletionQueue>,
    pub memory: Memory,
    pub mr: Arc<Mr>,
    pub qp: Arc<Qp>,
}

pub struct Wanted {
    pub cqe: u32,
    pub wr: u32,
    pub memory: usize,
    pub events: bool,
    pub service: Service,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { cqe: 256, wr: 128, memory: 1 << 20, events: false, service: Service::Rc }
    }
}

impl End {
    pub fn new(wanted: Wanted) -> Self {
        Self::of(open(), wanted)
    }

    pub fn of(context: Arc<Context>, wanted: Wanted) -> Self {
        let pd = context.alloc_pd().unwrap();
        let channel = wanted.events.then(|| context.create_channel().unwrap());
        let cq = context.create_cq(wanted.cqe, 7, channel.as_ref(), 0).unwrap();
        let memory = Memory::new(wanted.memory);
        let mr = pd.reg_mr(memory.addr(), wanted.memory, memory.addr(), all_access()).unwrap();
        let qp = pd.create_qp(QpInit { service: wanted.service, ..init(&cq, &cq, wanted.wr) }).unwrap();
        Self { context, pd, channel, cq, memory, mr, qp }
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.memory.addr() + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.memory.addr() + offset as u64, rkey: self.mr.rkey() }
    }

    pub fn post(&self, wr_id: u64, op: SendOp, sge: Sge) {
        self.qp.post_send([send(wr_id, op, &[sge])]).unwrap();
    }

    pub fn receive(&self, wr_id: u64, sge: Sge) {
        self.qp.post_recv([RecvWr { wr_id, sges: &[sge] }]).unwrap();
    }

    /// Polls until one completion is there.
    pub fn complete(&self) -> WorkCompletion {
        poll_one(&self.cq)
    }

    pub fn expect(&self, wr_id: u64, opcode: WcOpcode) -> WorkCompletion {
        let completion = self.complete();
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::Success), "{completion:?}");
        assert_eq!(completion.opcode, opcode);
        completion
    }
}

pub fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

pub fn send(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr::signaled(wr_id, op, sges)
}

pub fn init(send_cq: &Arc<CompletionQueue>, recv_cq: &Arc<CompletionQueue>, wr: u32) -> QpInit {
    QpInit {
        service: Service::Rc,
        send_cq: Arc::clone(send_cq),
        recv_cq: Arc::clone(recv_cq),
        srq: None,
        caps: QpCaps { max_send_wr: wr, max_recv_wr: wr, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 },
        sq_sig_all: false,
        user: 9,
    }
}

pub fn poll_one(cq: &CompletionQueue) -> WorkCompletion {
    let mut one = [blank()];
    let start = Instant::now();
    while cq.poll(&mut one).unwrap() == 0 {
        assert!(start.elapsed() < PATIENCE, "no completion");
    }
    one[0]
}

pub fn blank() -> WorkCompletion {
    WorkCompletion::BLANK
}

/// Where a queue pair is, as programs tell each other.
#[derive(Clone, Copy)]
pub struct Address {
    pub qpn: Qpn,
    pub gid: Gid,
}

pub fn address(context: &Context, qp: &Qp, gid_index: u8) -> Address {
    let gid = context.gid(u32::from(gid_index)).unwrap().expect("a GID").gid;
    Address { qpn: qp.qpn(), gid }
}

/// Of every queue pair of datagrams here.
pub const QKEY: Qkey = Qkey::new(0x1111_1111);

/// Brings a queue pair of datagrams to RTS.
pub fn ud_to_rts(qp: &Qp) {
    to_init(qp);
    for state in [QpState::Rtr, QpState::Rts] {
        let attr = QpAttr { state, sq_psn: Psn::new(0x00ff_fff0), ..QpAttr::default() };
        let psn = if state == QpState::Rts { QpAttrMask::SQ_PSN } else { QpAttrMask::empty() };
        qp.modify(&attr, QpAttrMask::STATE | psn).unwrap();
    }
}

pub fn to_init(qp: &Qp) {
    let access =
        QpAccess::LOCAL_WRITE | QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ | QpAccess::REMOTE_ATOMIC;
    let attr = QpAttr { state: QpState::Init, access, qkey: QKEY, ..QpAttr::default() };
    let key = if qp.service() == Service::Ud { QpAttrMask::QKEY } else { QpAttrMask::ACCESS_FLAGS };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | key;
    qp.modify(&attr, mask).unwrap();
}

pub fn to_rts(qp: &Qp, peer: Address, gid_index: u8, mtu: PathMtu) {
    bring_up(qp, &rtr(peer, gid_index, mtu));
}

/// The attributes of the change to RTR.
pub fn rtr(peer: Address, gid_index: u8, mtu: PathMtu) -> QpAttr {
    QpAttr {
        state: QpState::Rtr,
        ah: AhAttr { dgid: peer.gid, sgid_index: gid_index, ..AhAttr::default() },
        dest_qp: peer.qpn,
        path_mtu: mtu,
        rq_psn: Psn::new(0x00ff_fff0),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        ..QpAttr::default()
    }
}

/// Brings a queue pair up to RTS by way of RTR with these attributes.
pub fn bring_up(qp: &Qp, attr: &QpAttr) {
    let reliable = qp.service() == Service::Rc;
    let mut mask =
        QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
    if reliable {
        mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    }
    qp.modify(attr, mask).unwrap();
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(0x00ff_fff0),
        max_rd_atomic: 16,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let mut mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    if reliable {
        mask |= QpAttrMask::MAX_QP_RD_ATOMIC
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY;
    }
    qp.modify(&attr, mask).unwrap();
}

/// Connects two queue pairs of this process.
pub fn connect(a: &End, b: &End, gid_index: u8, mtu: PathMtu) {
    connect_qps(&a.context, &a.qp, &b.qp, gid_index, mtu);
}

pub fn connect_qps(context: &Context, a: &Qp, b: &Qp, gid_index: u8, mtu: PathMtu) {
    to_init(a);
    to_init(b);
    to_rts(a, address(context, b, gid_index), gid_index, mtu);
    to_rts(b, address(context, a, gid_index), gid_index, mtu);
}

/// Two connected ends over IPv4.
pub fn pair() -> (End, End) {
    let (a, b) = (End::new(Wanted::default()), End::new(Wanted::default()));
    connect(&a, &b, 0, PathMtu::B1024);
    (a, b)
}
