//! An endpoint of RC over a port of AF_XDP, or over a pipe, whose other end is in the hands of the test.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ferroce_ipc::QpnOrder;
use ferroce_ipc::ledger::Table;
use ferroce_ipc::pipe::MAX_BATCH;
use ferroce_memory::{MemoryTable, PdId};
use ferroce_paths::pipes::{PeerPipe, PipeEnd, Pipes};
use ferroce_paths::rx::Arrival;
use ferroce_paths::tx::{Destination, TxSockets};
use ferroce_paths::tx_path::TxPath;
use ferroce_paths::xdp::fake::Wire;
use ferroce_proto::{Budget, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, SendOp, SendWr, Sge};
use ferroce_wire::{
    Aeth, BatchLimits, Bth, CreditCode, Flow, Frame, IcrcStatus, Lkey, Msn, Operation, Packet, PathMtu, Psn,
    RcPacket, Request, Response, Reth, Rkey, RoceVersion, Sink, Syndrome, TxBatch,
};

use super::*;
use crate::handover::NEVER;
use crate::lane::Lanes;

const SLOT: u16 = 7 * 16;
const LOCAL: [u8; 4] = [127, 77, 4, 1];
/// An address of no device. The only datagram sent there makes the kernel look for its hardware address.
const REMOTE: [u8; 4] = [127, 77, 4, 2];
const REMOTE_QPN: Qpn = Qpn::new(0x1234);
const PD: PdId = PdId::new(1);

/// The queues of a program that asks for events of its completions, or does not.
struct Queues {
    by_events: bool,
    hub: Arc<Hub>,
    /// Batches that had left when the completions of the last batch became visible.
    calls_before: AtomicU64,
}

impl Queues {
    fn new(by_events: bool, hub: &Arc<Hub>) -> Arc<Self> {
        Arc::new(Self { by_events, hub: Arc::clone(hub), calls_before: AtomicU64::new(0) })
    }
}

impl Outputs for Queues {
    fn publish(&self, transport: &mut QueuePair, _: &Entry, _now: Instant) -> Published {
        let calls = self.hub.ledger.device(0).tx_calls.load(Ordering::Relaxed);
        self.calls_before.store(calls, Ordering::Relaxed);
        while transport.poll_event().is_some() {}
        Published { receives: 1, overrun: 0 }
    }

    fn reports_by_events(&self) -> bool {
        self.by_events
    }

    fn wakes_program(&self) -> bool {
        self.by_events
    }

    fn send_polls(&self) -> u64 {
        0
    }

    fn fail_overrun(&self) {}

    fn add_lane(&self, _lane: &Arc<Lane>) {}

    fn remove_lane(&self, _lane: &Arc<Lane>) {}

    fn take(&self, _number: Option<SrqNumber>, _wqe: &mut RecvWqe, _least: u64) -> Taken {
        unreachable!("there is no shared receive queue")
    }

    fn domain_of(&self, _number: SrqNumber) -> Option<Domain> {
        None
    }
}

/// An endpoint in RTS, and the key of a region that reads as zeros.
fn endpoint(
    qpn: Qpn,
    hub: Arc<Hub>,
    queues: Arc<Queues>,
    lane: Arc<Lane>,
    socket: TxPath,
) -> (Arc<Endpoint>, Lkey) {
    let memory = MemoryTable::new().unwrap();
    let lkey = Lkey::new(memory.register_null(PD).unwrap().value());
    let transport = connected(qpn, socket.flow());
    let path = Attachment::Connected(Some(ConnectedPath { lane, beside: None, socket }));
    let core = Core::new(transport, memory.view(PD).of(qpn), path);
    let endpoint = Arc::new_cyclic(|me| Endpoint {
        me: me.clone(),
        owner: Weak::<()>::new(),
        qpn,
        name: QpName { qp: 0, dev: "fr0".into() },
        service: Service::Rc,
        device: 0,
        block: 0,
        core: Mutex::new(core),
        deadline: AtomicU64::new(u64::MAX),
        place: AtomicUsize::new(usize::MAX),
        entry: hub.ledger.record(Table::Qp),
        hub,
        outputs: queues,
    });
    (endpoint, lkey)
}

fn post_send(endpoint: &Endpoint, lkey: Lkey) {
    let sges = [Sge { addr: 0, length: 64, lkey }];
    let mut locked = endpoint.lock();
    let Core { transport, memory, .. } = &mut *locked.core;
    transport.post_send(&SendWr::signaled(1, SendOp::Send, &sges), memory).unwrap();
}

/// A queue pair in RTS with a region that reads as zeros.
struct Bed {
    wire: Wire,
    queues: Arc<Queues>,
    endpoint: Arc<Endpoint>,
    lkey: Lkey,
    to_local: Flow,
}

impl Bed {
    fn new(by_events: bool) -> Self {
        let (hub, _) = Hub::new(&[SLOT], false, 1, QpnOrder { key: 1, start: 0 }, Arc::default()).unwrap();
        let lanes = Lanes::new(Arc::new(hub));
        let hub = Arc::clone(lanes.hub());
        let port = lanes.open_port(1).unwrap();
        let (_, lane) = lanes.ports()[0].clone();
        let wire = Wire::install(&port, 64);
        let qpn = hub.table.allocate().unwrap();
        let ends = Destination {
            destination: REMOTE.into(),
            local_qpn: qpn,
            remote_qpn: REMOTE_QPN,
            class: Default::default(),
            hop_limit: 64,
        };
        let sender = TxSockets::new(LOCAL.into(), 0, 1).acquire(&ends).unwrap();
        port.prepare(REMOTE.into(), &sender, Instant::ZERO);
        let path = sender.flow();
        let queues = Queues::new(by_events, &hub);
        let (endpoint, lkey) = endpoint(qpn, hub, Arc::clone(&queues), lane, TxPath::Xdp(port, sender));
        let to_local = Flow { source: path.destination, destination: path.source, ..path };
        Self { wire, queues, endpoint, lkey, to_local }
    }

    /// An ACK of the peer arrives at the port.
    fn ack_arrives(&self, psn: u32) {
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: CreditCode::UNLIMITED }, msn: Msn::new(1) };
        let op = Operation::Rc(RcPacket::Response(Response::Acknowledge { aeth }));
        let bth = Bth::new(self.endpoint.qpn, Psn::new(psn));
        let packet = Packet { bth, op, icrc: IcrcStatus::Checked };
        let mut buffer = [0; 64];
        let mut batch = TxBatch::new(&mut buffer, BatchLimits { max_segments: 1, gso: false });
        batch.push(&self.to_local, &packet, 0, |_| Ok::<_, ()>(())).unwrap();
        let mut headers = [0; 48];
        let len = self.to_local.write_headers(0, batch.bytes().len(), &mut headers);
        self.wire.arrive(RoceVersion::V2, &[&headers[..len], batch.bytes()].concat());
    }

    /// The peer writes no octet and asks for an ACK, which leaves with the next batch.
    fn receive_write(&self, psn: u32) {
        let mut bth = Bth::new(self.endpoint.qpn, Psn::new(psn));
        bth.ack_req = true;
        let reth = Reth { va: 0, rkey: Rkey::new(0), dma_len: 0 };
        let request = Request::WriteOnly { reth, payload: &[], imm: None };
        let packet = Packet { bth, op: Operation::Rc(RcPacket::Request(request)), icrc: IcrcStatus::Checked };
        let arrival = Arrival::new(&self.to_local, &[]);
        self.endpoint.lock().receive(Instant::ZERO, &arrival, &packet, self.endpoint.counters());
    }

    fn post_send(&self) {
        post_send(&self.endpoint, self.lkey);
    }

    /// The batches given to the port since the start, each of which is one system call.
    fn calls(&self) -> u64 {
        self.endpoint.counters().tx_calls.load(Ordering::Relaxed)
    }

    /// Sends all that may leave. Returns the number of batches, and for each packet whether it is an ACK.
    fn send(&self) -> (u64, Vec<bool>) {
        let before = self.calls();
        self.endpoint.lock().finish_batch(Instant::ZERO);
        (self.calls() - before, self.sent())
    }

    /// The packets that left. Returns for each whether it is an ACK.
    fn sent(&self) -> Vec<bool> {
        let is_ack = |packet: Vec<u8>| {
            let frame = Frame::parse_ip(&packet).unwrap();
            let op = Packet::parse(frame.transport).unwrap().op;
            matches!(op, Operation::Rc(RcPacket::Response(Response::Acknowledge { .. })))
        };
        self.wire.sent().into_iter().map(is_ack).collect()
    }
}

fn connected(qpn: Qpn, path: Flow) -> QueuePair {
    let mut transport = QueuePair::new(QpConfig {
        qpn,
        service: Service::Rc,
        caps: QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 },
        srq: None,
        sq_sig_all: false,
        port_mtu: PathMtu::B1024,
        seed: 1,
        early_resends: false,
        budget: Arc::new(Budget::new(1 << 20)),
    })
    .unwrap();
    let attr = QpAttr {
        path_mtu: PathMtu::B1024,
        dest_qp: REMOTE_QPN,
        access: QpAccess::REMOTE_WRITE | QpAccess::REMOTE_READ,
        path,
        max_rd_atomic: 1,
        timeout: 14,
        retry_cnt: 7,
        max_dest_rd_atomic: 1,
        ..QpAttr::default()
    };
    use QpAttrMask as M;
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        ),
        (QpState::Rts, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC),
    ] {
        transport.modify(&QpAttr { state, port_num: 1, ..attr }, mask | M::STATE).unwrap();
    }
    transport
}

/// The kernel sends all frames of a port's ring in one system call, so a peer that polls gains nothing by an
/// ACK of its own call.
#[test]
fn over_a_port_an_ack_shares_the_system_call_of_the_answer() {
    let bed = Bed::new(false);
    for psn in 0..3 {
        bed.receive_write(psn);
        bed.post_send();
        assert_eq!(bed.send(), (1, vec![false, true]), "message {psn}");
    }
    bed.receive_write(3);
    assert_eq!(bed.send(), (1, vec![true]), "without an answer the ACK leaves alone");
}

/// The peer of a program that sleeps may take the first event for that of its own message, so the ACK leaves
/// before.
#[test]
fn over_a_port_the_ack_of_a_program_that_sleeps_leaves_first() {
    let bed = Bed::new(true);
    for psn in 0..3 {
        bed.receive_write(psn);
        bed.post_send();
        assert_eq!(bed.send(), (2, vec![true, false]), "message {psn}");
    }
}

/// A program may end its buffers when a message wakes it up, and with them the peer's last chance: the
/// acknowledgement was on its way before the completion was visible.
#[test]
fn the_ack_of_a_message_that_wakes_a_program_leaves_first() {
    for (by_events, left) in [(true, vec![true]), (false, vec![])] {
        let bed = Bed::new(by_events);
        bed.receive_write(0);
        let delayed = bed.endpoint.lock().finish_batch_delaying_ack(Instant::ZERO, false);
        assert_eq!((delayed.is_none(), bed.sent()), (by_events, left));
        assert_eq!(bed.queues.calls_before.load(Ordering::Relaxed), u64::from(by_events));
    }
}

/// An endpoint whose peer is the other end of a pipe.
struct PipeBed {
    endpoint: Arc<Endpoint>,
    lkey: Lkey,
    here: Pipes,
    peer: Option<Pipes>,
    /// The peer's end of the pipe.
    far: Arc<PeerPipe>,
    to_local: Flow,
}

impl PipeBed {
    fn new() -> Self {
        let (hub, _) = Hub::new(&[SLOT], false, 1, QpnOrder { key: 1, start: 0 }, Arc::default()).unwrap();
        let lanes = Lanes::new(Arc::new(hub));
        let hub = Arc::clone(lanes.hub());
        lanes.open_port(1).unwrap();
        let (_, lane) = lanes.ports()[0].clone();
        let ([(here, pipe), (peer, far)], _) = ferroce_paths::pipes::testing::connected();
        let flow = Flow {
            source: LOCAL.into(),
            destination: REMOTE.into(),
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        };
        let qpn = hub.table.allocate().unwrap();
        let queues = Queues::new(false, &hub);
        let (endpoint, lkey) =
            endpoint(qpn, hub, queues, lane, TxPath::Pipe(PipeEnd::new(pipe, &flow), flow));
        post_send(&endpoint, lkey);
        endpoint.lock().finish_batch(Instant::ZERO);
        let to_local = Flow { source: flow.destination, destination: flow.source, ..flow };
        Self { endpoint, lkey, here, peer: Some(peer), far, to_local }
    }

    /// The peer takes what was sent, and does not come to an answer. Returns the batches.
    fn take(&self) -> Vec<Vec<u8>> {
        let peer = self.peer.as_ref().unwrap();
        let mut buffer: Box<[u8; MAX_BATCH]> = vec![0; MAX_BATCH].into_boxed_slice().try_into().unwrap();
        let list = peer.all();
        std::iter::from_fn(|| peer.receive(&list, &mut buffer).map(|(_, batch)| buffer[..batch.len].to_vec()))
            .collect()
    }

    /// The peer takes what was sent, and has no answer. Returns the number of batches.
    fn read(&self) -> usize {
        let taken = self.take().len();
        self.peer.as_ref().unwrap().settle();
        taken
    }

    /// The peer's request to read no octet arrives. The answer leaves if there is room.
    fn receive_read(&self, psn: u32) {
        let reth = Reth { va: 0, rkey: Rkey::new(0), dma_len: 0 };
        self.receive(psn, false, Request::ReadRequest { reth });
    }

    /// A request of the peer arrives. The answer leaves if there is room.
    fn receive(&self, psn: u32, ack_req: bool, request: Request<'_>) {
        let mut buffer: Box<[u8; MAX_BATCH]> = vec![0; MAX_BATCH].into_boxed_slice().try_into().unwrap();
        self.here.receive(&self.here.all(), &mut buffer).unwrap();
        let bth = Bth { ack_req, ..Bth::new(self.endpoint.qpn, Psn::new(psn)) };
        let packet = Packet { bth, op: Operation::Rc(RcPacket::Request(request)), icrc: IcrcStatus::Checked };
        let mut locked = self.endpoint.lock();
        let arrival = Arrival::new(&self.to_local, &[]);
        locked.receive(Instant::ZERO, &arrival, &packet, self.endpoint.counters());
        locked.finish_batch(Instant::ZERO);
    }

    /// Others fill the pipe.
    fn fill(&self) {
        let locked = self.endpoint.lock();
        let Some(ConnectedPath { socket: TxPath::Pipe(pipe, ..), .. }) = locked.core.path() else {
            unreachable!("the path is a pipe")
        };
        ferroce_paths::pipes::testing::fill(pipe);
    }

    /// Runs the next timer in its time.
    fn expire(&self) {
        self.expire_after(Duration::ZERO);
    }

    /// Runs the next timer so late.
    fn expire_after(&self, late: Duration) {
        let now = Instant::from_nanos(self.endpoint.deadline.load(Ordering::SeqCst)) + late;
        let mut locked = self.endpoint.lock();
        locked.expire(now);
        locked.finish_batch(now);
    }

    fn state(&self) -> QpState {
        self.endpoint.lock().core.transport.state()
    }

    /// Timers until the connection ended.
    fn expiries(&self, mut before_each: impl FnMut()) -> usize {
        let is_over = |_: &usize| {
            before_each();
            self.expire();
            self.state() == QpState::Error
        };
        (1..100).find(is_over).expect("the connection ends")
    }
}

/// Shared memory loses nothing: a peer that has not read is stopped or has no processor. A peer that reads
/// and never answers has no such queue pair any more.
#[test]
fn over_a_pipe_silence_proves_nothing_until_the_peer_has_read() {
    let bed = PipeBed::new();
    for _ in 0..100 {
        bed.expire();
    }
    assert_eq!(bed.state(), QpState::Rts);
    assert_eq!(bed.endpoint.lock().core.transport.counters().timeouts, 0);
    post_send(&bed.endpoint, bed.lkey);
    bed.endpoint.lock().finish_batch(Instant::from_nanos(u64::from(u32::MAX)));
    assert_eq!(bed.read(), 2, "nothing was sent again");
    assert_eq!(
        bed.expiries(|| {
            bed.read();
        }),
        8
    );
}

/// The peer is stopped behind its look at the request, and in front of its answer, as by a breakpoint.
#[test]
fn over_a_pipe_silence_proves_nothing_until_the_peer_has_answered() {
    let bed = PipeBed::new();
    assert_eq!(bed.take().len(), 1);
    for _ in 0..100 {
        bed.expire();
    }
    assert_eq!(bed.state(), QpState::Rts);
    assert_eq!(bed.endpoint.lock().core.transport.counters().timeouts, 0);
    assert_eq!(bed.take().len(), 0, "nothing was sent again");
    assert_eq!(
        bed.expiries(|| {
            bed.read();
        }),
        8
    );
}

/// The answer to a READ and a NAK find the pipe full: they wait for room, and so does the peer.
#[test]
fn answers_that_find_the_pipe_full_are_not_lost() {
    let bed = PipeBed::new();
    bed.read();
    for (psn, is_nak) in [(0, false), (7, true)] {
        bed.fill();
        let place = ferroce_paths::pipes::testing::send(&bed.far);
        bed.receive_read(psn);
        bed.here.settle();
        let is_unanswered = || ferroce_paths::pipes::testing::is_unanswered(&bed.far, place);
        assert!(is_unanswered());
        bed.expire();
        bed.here.settle();
        assert!(is_unanswered(), "there is no room yet");
        bed.read();
        bed.expire();
        assert!(!is_unanswered(), "there is room");
        let answers = bed.take();
        let Operation::Rc(RcPacket::Response(response)) = Packet::parse(&answers[0]).unwrap().op else {
            panic!("no answer")
        };
        assert_eq!((answers.len(), matches!(response, Response::Acknowledge { .. })), (1, is_nak));
    }
    assert_eq!(bed.endpoint.counters().send_err.load(Ordering::Relaxed), 0, "no packet is lost");
}

/// An ACK leaves by the reserve of a pipe that has no room for more. The peer then knows that it waits for
/// nothing else.
#[test]
fn an_ack_that_leaves_by_the_reserve_leaves_no_answer_owing() {
    let bed = PipeBed::new();
    bed.read();
    bed.fill();
    let place = ferroce_paths::pipes::testing::send(&bed.far);
    let sent = || bed.endpoint.counters().pipe_sent_pkts.load(Ordering::Relaxed);
    let before = sent();
    let reth = Reth { va: 0, rkey: Rkey::new(0), dma_len: 0 };
    bed.receive(0, true, Request::WriteOnly { reth, payload: &[], imm: None });
    assert_eq!(sent(), before + 1, "the ACK");
    bed.here.settle();
    assert!(!ferroce_paths::pipes::testing::is_unanswered(&bed.far, place));
}

/// A peer that exited, or that executes another program, never reads.
#[test]
fn over_a_pipe_a_peer_that_is_gone_has_failed() {
    let mut bed = PipeBed::new();
    bed.expire();
    bed.peer = None;
    assert_eq!(bed.expiries(|| ()), 8);
}

/// The peer is stopped, and the packets of others fill the pipe: there is no room even for the first packet.
#[test]
fn a_pipe_that_is_full_is_no_failure_of_the_peer() {
    let bed = PipeBed::new();
    assert_eq!(bed.read(), 1);
    bed.fill();
    post_send(&bed.endpoint, bed.lkey);
    bed.endpoint.lock().finish_batch(Instant::ZERO);
    for _ in 0..10_000 {
        bed.expire();
    }
    // The peer reads, and others fill the pipe again before this queue pair has its turn.
    for _ in 0..1000 {
        bed.read();
        bed.fill();
        bed.expire_after(Duration::from_millis(1));
    }
    assert_eq!(bed.state(), QpState::Rts);
    let timeouts = bed.endpoint.lock().core.transport.counters().timeouts;
    assert_eq!(timeouts, 0, "the peer has not read what came before");
    assert_eq!(
        bed.endpoint.counters().send_err.load(std::sync::atomic::Ordering::Relaxed),
        0,
        "no packet is lost"
    );
    let others = bed.read();
    bed.expire();
    assert!(others > 1 && bed.read() > 0, "there is room again");
    bed.expiries(|| {
        bed.read();
    });
}

/// The scan of the timers finds the endpoint due, and behind that an answer moves its deadline.
#[test]
fn a_deadline_that_moves_behind_a_scan_is_noted() {
    let bed = Bed::new(false);
    let endpoint = &bed.endpoint;
    let lane = Arc::clone(&endpoint.lock().core.path().unwrap().lane);
    lane.attach(endpoint);
    endpoint.hub.table.insert(endpoint.qpn, Arc::clone(endpoint));
    for _ in 0..3 {
        bed.post_send();
        endpoint.lock().finish_batch(clock::now());
    }
    let first = endpoint.deadline.load(Ordering::SeqCst);
    while clock::now().as_nanos() <= first {
        std::thread::sleep(Duration::from_millis(1));
    }
    bed.ack_arrives(0);
    assert!(lane.state.earliest() <= first);
    lane.run_timers(&mut lane.receiver.lock(), clock::now());
    let later = endpoint.deadline.load(Ordering::SeqCst);
    assert!(later > first && later != NEVER, "two requests wait for their answers");
    assert!(lane.state.earliest() <= later);
}
