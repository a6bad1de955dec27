//! An endpoint of RC over a port of AF_XDP whose wire is in the hands of the test.

use ferroce_ipc::QpnOrder;
use ferroce_ipc::ledger::Table;
use ferroce_proto::{Budget, QpAccess, QpAttr, QpAttrMask, QpCaps, QpConfig, SendOp, SendWr, Sge};
use ferroce_wire::{
    Bth, Flow, Frame, IcrcStatus, Lkey, Operation, Packet, PathMtu, Psn, RcPacket, Request, Response, Reth,
    Rkey,
};

use super::*;
use crate::lane::Lanes;
use crate::memory::{MemoryTable, PdId};
use crate::tx::{Destination, TxSockets};
use crate::tx_path::TxPath;
use crate::xdp::fake::Wire;

const SLOT: u16 = 7 * 16;
const LOCAL: [u8; 4] = [127, 77, 4, 1];
/// Of no device. Nothing is sent there but the datagram that makes the kernel look for its hardware address.
const REMOTE: [u8; 4] = [127, 77, 4, 2];
const REMOTE_QPN: Qpn = Qpn::new(0x1234);
const PD: PdId = PdId::new(1);

/// The queues of a program that asks for events of its completions, or does not.
struct Queues {
    by_events: bool,
}

impl Outputs for Queues {
    fn publish(&self, transport: &mut QueuePair, _now: Instant) -> Published {
        while transport.poll_event().is_some() {}
        Published::default()
    }

    fn reports_by_events(&self) -> bool {
        self.by_events
    }

    fn add_lane(&self, _lane: &Arc<Lane>) {}

    fn remove_lane(&self, _lane: &Arc<Lane>) {}

    fn take(&self, _number: Option<SrqNumber>, _wqe: &mut RecvWqe, _least: u64) -> Taken {
        unreachable!("there is no shared receive queue")
    }

    fn domain_of(&self, _number: SrqNumber) -> Option<Domain> {
        None
    }
}

/// A queue pair in RTS with a region that reads as zeros.
struct Bed {
    wire: Wire,
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
        let memory = MemoryTable::new().unwrap();
        let lkey = Lkey::new(memory.register_null(PD).unwrap().value());
        let core = Core::new(connected(qpn, path), memory.view(PD).of(qpn), Box::default());
        let endpoint = Arc::new_cyclic(|me| Endpoint {
            me: me.clone(),
            owner: Weak::<()>::new(),
            qpn,
            name: QpName { qp: 0, dev: "fr0".into() },
            service: Service::Rc,
            device: 0,
            block: 0,
            frames: None,
            core: Mutex::new(core),
            deadline: AtomicU64::new(u64::MAX),
            place: AtomicUsize::new(usize::MAX),
            entry: hub.ledger.record(Table::Qp),
            hub,
            outputs: Arc::new(Queues { by_events }),
        });
        let socket = TxPath::Xdp(port, sender);
        endpoint.core.lock().path = Some(ConnectedPath { lane, beside: None, socket });
        let to_local = Flow { source: path.destination, destination: path.source, ..path };
        Self { wire, endpoint, lkey, to_local }
    }

    /// The peer writes no octet and asks for an ACK, which leaves with the next batch.
    fn receive_write(&self, psn: u32) {
        let mut bth = Bth::new(self.endpoint.qpn, Psn::new(psn));
        bth.ack_req = true;
        let reth = Reth { va: 0, rkey: Rkey::new(0), dma_len: 0 };
        let request = Request::WriteOnly { reth, payload: &[], imm: None };
        let packet = Packet { bth, op: Operation::Rc(RcPacket::Request(request)), icrc: IcrcStatus::Checked };
        self.endpoint.lock().receive(Instant::ZERO, &self.to_local, &packet, self.endpoint.counters());
    }

    fn post_send(&self) {
        let sges = [Sge { addr: 0, length: 64, lkey: self.lkey }];
        let mut locked = self.endpoint.lock();
        let Core { transport, memory, .. } = &mut *locked.core;
        transport.post_send(&SendWr::signaled(1, SendOp::Send, &sges), memory).unwrap();
    }

    /// The batches given to the port since the start, each of which is one system call.
    fn calls(&self) -> u64 {
        self.endpoint.counters().tx_calls.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Sends all that may leave. Returns the number of batches, and for each packet whether it is an ACK.
    fn send(&self) -> (u64, Vec<bool>) {
        let before = self.calls();
        self.endpoint.lock().finish_batch(Instant::ZERO);
        let is_ack = |packet: Vec<u8>| {
            let frame = Frame::parse_ip(&packet).unwrap();
            let op = Packet::parse(frame.transport).unwrap().op;
            matches!(op, Operation::Rc(RcPacket::Response(Response::Acknowledge { .. })))
        };
        (self.calls() - before, self.wire.sent().into_iter().map(is_ack).collect())
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
        access: QpAccess::REMOTE_WRITE,
        path,
        max_rd_atomic: 1,
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
        transport.modify(&QpAttr { state, port: 1, ..attr }, mask | M::STATE).unwrap();
    }
    transport
}

/// The kernel sends all frames of a port's ring in one system call, so a peer that polls gains nothing by an ACK of its own call.
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

/// The peer of a program that sleeps may take the first event for that of its own message, so the ACK leaves before.
#[test]
fn over_a_port_the_ack_of_a_program_that_sleeps_leaves_first() {
    let bed = Bed::new(true);
    for psn in 0..3 {
        bed.receive_write(psn);
        bed.post_send();
        assert_eq!(bed.send(), (2, vec![true, false]), "message {psn}");
    }
}
