//! Queue pairs whose peer seems to be remote: the test is the wire, and sends each packet back as if it came
//! from there.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferroce_paths::xdp::fake::Wire;
use ferroce_proto::{QpAccess, QpCaps};
use ferroce_wire::{Flow, Frame, Gid, LinkLayer, PathMtu, Psn, Qkey, Qpn, RoceVersion};

use super::*;
use crate::{
    Access, AhAttr, CompletionQueue, Context, Pd, Qp, QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendOp,
    SendTo, SendWr, Sge, WcStatus, WorkCompletion,
};
use ferroce_client::BrokerMode;

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PATIENCE: Duration = Duration::from_secs(20);
const QKEY: Qkey = Qkey::new(0x1111_1111);
/// Octets of the memory.
const LEN: usize = 1 << 16;

/// An engine of its own with the device on lo, and a peer that is no address of a device.
struct Bed {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<CompletionQueue>,
    memory: &'static [AtomicU64],
    lkey: ferroce_wire::Lkey,
    peer: Ipv4Addr,
    /// At the peer's address.
    socket: UdpSocket,
    port: Option<Arc<XdpPort>>,
    wire: Option<Wire>,
}

impl Bed {
    fn new(last: u8) -> Self {
        ferroce_client::embed_with(ferroce_broker::start_embedded);
        let engine = Engine::new(BrokerMode::Embedded).unwrap();
        let context = Context::open_on(&engine, "fr0").unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, 7, None, 0).unwrap();
        let memory: &[AtomicU64] = Vec::leak((0..LEN / 8).map(|_| AtomicU64::new(0)).collect());
        let at = memory.as_ptr() as u64;
        let mr = pd.reg_mr(at, LEN, at, Access::LOCAL_WRITE).unwrap();
        // Other processes may run the same test.
        let [_, _, a, b] = std::process::id().to_be_bytes();
        let peer = Ipv4Addr::new(127, 64 | (a & 63), b, last);
        let socket = UdpSocket::bind((peer, 4791)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { context, pd, cq, memory, lkey: mr.lkey(), peer, socket, port: None, wire: None }
    }

    fn engine(&self) -> &Arc<Engine> {
        self.context.engine()
    }

    /// The broker gives a socket.
    fn open_port(&mut self) {
        let ifindex = self.context.info().ifindex;
        let port = self.engine().lanes().open_port(ifindex).unwrap();
        self.wire = Some(Wire::install(&port, 256));
        self.port = Some(port);
        self.engine().lanes_changed();
    }

    fn queue_pair(&self, service: Service) -> Arc<Qp> {
        let caps =
            QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let cq = || Arc::clone(&self.cq);
        let init =
            QpInit { service, send_cq: cq(), recv_cq: cq(), srq: None, caps, sq_sig_all: false, user: 0 };
        self.pd.create_qp(init).unwrap()
    }

    fn to_init(qp: &Qp) {
        let attr =
            QpAttr { state: QpState::Init, access: QpAccess::LOCAL_WRITE, qkey: QKEY, ..QpAttr::default() };
        let key = if qp.service() == Service::Ud { QpAttrMask::QKEY } else { QpAttrMask::ACCESS_FLAGS };
        qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | key).unwrap();
    }

    fn ah(&self) -> AhAttr {
        let gids = self.context.gid_table();
        let source = gids.iter().find(|entry| entry.gid == Gid::from_ip(LOCAL.into())).unwrap();
        AhAttr { dgid: Gid::from_ip(self.peer.into()), sgid_index: source.index as u8, ..AhAttr::default() }
    }

    /// Connects a queue pair to another one, which it takes for one of the peer.
    fn connect(&self, qp: &Qp, dest_qp: Qpn) {
        use QpAttrMask as Mask;
        Self::to_init(qp);
        let attr = QpAttr {
            state: QpState::Rtr,
            ah: self.ah(),
            dest_qp,
            path_mtu: PathMtu::B1024,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        let mask = Mask::STATE | Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        qp.modify(&attr, mask | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER).unwrap();
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: Psn::new(0),
            max_rd_atomic: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let mask = Mask::STATE | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC | Mask::TIMEOUT;
        qp.modify(&attr, mask | Mask::RETRY_CNT | Mask::RNR_RETRY).unwrap();
    }

    fn pair(&self) -> (Arc<Qp>, Arc<Qp>) {
        let (a, b) = (self.queue_pair(Service::Rc), self.queue_pair(Service::Rc));
        self.connect(&a, b.qpn());
        self.connect(&b, a.qpn());
        (a, b)
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.memory.as_ptr() as u64 + offset as u64, length: len as u32, lkey: self.lkey }
    }

    /// The packets that left travel to the peer and come back from there, by the way that they took.
    fn turn(&self) {
        let back = |segment: &[u8], source_port| {
            let flow = Flow {
                source: self.peer.into(),
                destination: LOCAL.into(),
                source_port,
                traffic_class: 0,
                hop_limit: 64,
                link: LinkLayer::UDP,
            };
            let mut segment = segment.to_vec();
            ferroce_wire::icrc::seal(&flow, 0, &mut segment);
            (flow, segment)
        };
        for packet in self.wire.iter().flat_map(Wire::sent) {
            let frame = Frame::parse_ip(&packet).unwrap();
            assert!(frame.icrc_holds());
            let way = frame.way();
            assert_eq!((way.source, way.destination), (LOCAL.into(), self.peer.into()));
            let (flow, segment) = back(frame.transport, way.source_port);
            let mut headers = [0; 48];
            let len = flow.write_headers(0, segment.len(), &mut headers);
            self.wire.as_ref().unwrap().arrive(RoceVersion::V2, &[&headers[..len], &segment].concat());
        }
        let mut buffer = [0; 1 << 16];
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            assert_eq!(from.ip(), LOCAL);
            let (_, segment) = back(&buffer[..len], 4791);
            self.socket.send_to(&segment, (LOCAL, 4791)).unwrap();
        }
    }

    fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        let start = Instant::now();
        let mut found = Vec::new();
        while found.len() < count {
            assert!(start.elapsed() < PATIENCE, "{found:?}");
            self.turn();
            let mut one = [WorkCompletion::BLANK];
            if self.cq.poll(&mut one).unwrap() > 0 {
                assert_eq!(one[0].status, WcStatus::Success);
                found.push(one[0]);
            }
        }
        found
    }

    /// A message of some packets from one to the other. Returns the packets that were sent and received in
    /// all, and by AF_XDP.
    fn exchange(&self, from: &Qp, to: &Qp) -> [u64; 4] {
        let value = self.memory[0].load(Ordering::Relaxed) + 1;
        self.memory[0].store(value, Ordering::Relaxed);
        let before = self.counted();
        to.post_recv([RecvWr { wr_id: 1, sges: &[self.sge(LEN / 2, 4096)] }]).unwrap();
        from.post_send([SendWr::signaled(2, SendOp::Send, &[self.sge(0, 3000)])]).unwrap();
        self.completions(2);
        assert_eq!(self.memory[LEN / 16].load(Ordering::Relaxed), value);
        let mut change = self.counted();
        change.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
        change
    }

    fn counted(&self) -> [u64; 4] {
        let of = self.context.counters();
        [&of.sent_pkts, &of.rcvd_pkts, &of.xdp_sent_pkts, &of.xdp_rcvd_pkts]
            .map(|counter| counter.load(Ordering::Relaxed))
    }
}

// A packet of an earlier exchange, such as an ACK that was sent twice, may still arrive on its own way. So
// what is sent counts.
fn all_by_port([sent, _, sent_by_port, _]: [u64; 4]) -> bool {
    sent >= 3 && sent == sent_by_port
}

fn none_by_port([sent, _, sent_by_port, _]: [u64; 4]) -> bool {
    sent >= 3 && sent_by_port == 0
}

#[test]
fn a_connection_takes_the_port_and_sockets_while_it_is_down() {
    let mut bed = Bed::new(21);
    bed.open_port();
    let (a, b) = bed.pair();
    assert!(all_by_port(bed.exchange(&a, &b)));
    assert!(all_by_port(bed.exchange(&b, &a)));
    bed.port.as_ref().unwrap().set_down();
    let change = bed.exchange(&a, &b);
    assert!(none_by_port(change), "{change:?}");
    assert!(none_by_port(bed.exchange(&b, &a)));
    // The next broker.
    bed.open_port();
    assert!(all_by_port(bed.exchange(&a, &b)));
    assert!(all_by_port(bed.exchange(&b, &a)));
    a.destroy();
    b.destroy();
}

#[test]
fn a_connection_goes_on_by_a_port_that_is_opened_later() {
    let mut bed = Bed::new(22);
    let (a, b) = bed.pair();
    let change = bed.exchange(&a, &b);
    assert!(none_by_port(change), "{change:?}");
    bed.open_port();
    let change = bed.exchange(&a, &b);
    assert!(all_by_port(change), "{change:?}");
    // The device is not one of AF_XDP, as the broker says.
    bed.engine().follow_ports();
    assert!(!bed.port.as_ref().unwrap().is_up());
    assert!(none_by_port(bed.exchange(&b, &a)));
    a.destroy();
    b.destroy();
}

#[test]
fn datagrams_take_the_port() {
    let mut bed = Bed::new(23);
    bed.open_port();
    let qp = bed.queue_pair(Service::Ud);
    Bed::to_init(&qp);
    for state in [QpState::Rtr, QpState::Rts] {
        let attr = QpAttr { state, ..QpAttr::default() };
        let psn = if state == QpState::Rts { QpAttrMask::SQ_PSN } else { QpAttrMask::empty() };
        qp.modify(&attr, QpAttrMask::STATE | psn).unwrap();
    }
    let ah = bed.pd.create_ah(bed.ah()).unwrap();
    // The first one takes the socket, where it waits for the peer's hardware address.
    let start = Instant::now();
    let mut ways = Vec::new();
    while ways.last() != Some(&true) {
        assert!(start.elapsed() < PATIENCE);
        let before = bed.counted();
        qp.post_recv([RecvWr { wr_id: 1, sges: &[bed.sge(LEN / 2, 1024)] }]).unwrap();
        let to: SendTo = ah.to(qp.qpn(), QKEY).unwrap();
        let wr = SendWr::signaled(2, SendOp::Send, &[]);
        let sges = [bed.sge(0, 200)];
        qp.post_send([SendWr { to, sges: &sges, ..wr }]).unwrap();
        let completions = bed.completions(2);
        let received = completions.iter().find(|completion| completion.wr_id == 1).unwrap();
        assert_eq!((received.byte_len, received.src_qp), (240, qp.qpn()));
        let after = bed.counted();
        assert_eq!(after[2] - before[2], after[3] - before[3]);
        ways.push(after[2] > before[2]);
    }
    assert!(!ways[0]);
    ah.destroy();
    qp.destroy();
}
