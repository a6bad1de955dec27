//! Queue pairs, with their state and service in the type.

use std::marker::PhantomData;
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{AhAttr, QpAccess, QpAttr, QpCaps, QpInit, QpState as EngineState, Service, Sge};
use ferroce_wire::{Psn, Qkey, Qpn};

use crate::capacity::Requests;
use crate::declare::setters;
use crate::error::Cause;
use crate::service::{self, Connected, Rc, Shares, Uc, Ud};
use crate::shared::Capacity;
use crate::{
    Access, Address, AddressHandle, CompletionQueue, Connection, Error, ProtectionDomain, QpError, QpState,
    RemoteMemory, SendOptions, SharedReceiveQueue, Slice, WorkRequest,
};

/// RESET: after creation.
#[derive(Debug)]
pub struct Reset(());
/// INIT: accepts receives, but no packets.
#[derive(Debug)]
pub struct Init(());
/// RTR: receives, but cannot send yet.
#[derive(Debug)]
pub struct ReadyToReceive(());
/// RTS: sends and receives.
#[derive(Debug)]
pub struct ReadyToSend(());

/// A queue pair. Its type names the last state that the program requested; an error may have moved it to
/// [`QpState::Error`] since, as its completions then show.
#[doc(alias = "ibv_qp")]
pub struct QueuePair<State, Service = Rc> {
    parts: Parts,
    state: PhantomData<(State, Service)>,
}

/// Dropped in this order: the queue pair first, then the objects it uses.
struct Parts {
    qp: Owned,
    _domain: ProtectionDomain,
    send: CompletionQueue,
    receive: CompletionQueue,
    _shared: Option<SharedReceiveQueue>,
    _capacity: Box<[Capacity; 2]>,
    /// The first PSN in our address.
    psn: Psn,
}

pub(crate) struct Owned(pub(crate) Arc<engine::Qp>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
#[non_exhaustive]
pub struct QpOptions {
    /// Limit of outstanding send work requests, at most 16,384.
    pub max_send_wr: u32,
    /// Limit of outstanding receive work requests, at most 16,384.
    pub max_recv_wr: u32,
    /// Limit of slices in one send work request, at most 32.
    pub max_send_sge: u32,
    /// Limit of slices in one receive work request, at most 32.
    pub max_recv_sge: u32,
    /// Limit of octets in an inline send or write ([`WorkRequest::inline`](crate::WorkRequest::inline)), at
    /// most 1,024.
    pub max_inline: u32,
}

impl Default for QpOptions {
    /// 128 work requests in each direction, one slice each, 64 octets inline.
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 }
    }
}

setters! {
    QpOptions {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline: u32,
    }
}

impl ProtectionDomain {
    /// Creates a reliable connected queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn rc_queue_pair(
        &self,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset>, Error> {
        self.queue_pair(Service::Rc, send, receive, None, options)
    }

    /// Creates an unreliable connected queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn uc_queue_pair(
        &self,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, Uc>, Error> {
        self.queue_pair(Service::Uc, send, receive, None, options)
    }

    /// Creates an unreliable datagram queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn ud_queue_pair(
        &self,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, Ud>, Error> {
        self.queue_pair(Service::Ud, send, receive, None, options)
    }

    /// Creates a queue pair that takes its receives from a shared queue; the receive sizes in its options are
    /// ignored.
    #[doc(alias = "ibv_create_qp")]
    pub fn queue_pair_on<S: Shares>(
        &self,
        shared: &SharedReceiveQueue,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, S>, Error> {
        self.queue_pair(service::service_of::<S>(), send, receive, Some(shared), options)
    }

    fn queue_pair<S>(
        &self,
        service: Service,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, S>, Error> {
        let receives = match shared {
            Some(shared) => shared.requests(),
            None => Requests::Own(options.max_recv_wr),
        };
        let capacity = [
            Capacity::new(&send.shared, Requests::Own(options.max_send_wr))?,
            Capacity::new(&receive.shared, receives)?,
        ];
        let QpOptions { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline } = options;
        let init = QpInit {
            service,
            send_cq: Arc::clone(send.engine()),
            recv_cq: Arc::clone(receive.engine()),
            srq: shared.map(|shared| Arc::clone(shared.engine())),
            caps: QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline },
            sq_sig_all: false,
            user: 0,
        };
        let qp = self.shared.pd.create_qp(init)?;
        Ok(QueuePair::new(qp, self.clone(), send.clone(), receive.clone(), shared.cloned(), capacity))
    }
}

type Stepped<From, To, S = Rc> = Result<QueuePair<To, S>, QpError<QueuePair<From, S>>>;

impl<State, S> QueuePair<State, S> {
    /// Returns its number.
    pub fn qpn(&self) -> Qpn {
        self.engine().qpn()
    }

    /// Returns its actual state.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> QpState {
        QpState::of(self.engine().state())
    }

    /// Returns the completion queue of its sends.
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.parts.send
    }

    /// Returns the completion queue of its receives.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.parts.receive
    }

    /// This end of a connection over the GID at `gid_index`, with a random first PSN.
    pub fn address(&self, gid_index: u8) -> Result<Address, Error> {
        address(self.engine(), gid_index)
    }

    pub(crate) fn engine(&self) -> &Arc<engine::Qp> {
        &self.parts.qp.0
    }

    pub(crate) fn step<To>(self, attr: &QpAttr) -> Stepped<State, To, S> {
        let service = self.engine().service();
        let mut mask = engine::bring_up_mask(service, attr.state);
        if service == engine::Service::Iwarp && attr.state == EngineState::Init {
            // No attribute of an iWARP queue pair is required, so the mask has none.
            mask |= engine::QpAttrMask::ACCESS_FLAGS;
        }
        match self.engine().modify(attr, mask) {
            Ok(()) => Ok(self.moved()),
            Err(error) => Err(QpError { state: self.state(), source: error.into(), queue_pair: self }),
        }
    }

    /// The queue pair, which something else has moved to another state.
    pub(crate) fn moved<To>(self) -> QueuePair<To, S> {
        QueuePair { parts: self.parts, state: PhantomData }
    }

    /// Moves it to RESET; outstanding work requests are dropped without completions.
    pub fn reset(self) -> Stepped<State, Reset, S> {
        self.step(&QpAttr { state: EngineState::Reset, ..QpAttr::default() })
    }

    fn post_recvs(&self, wr_id: u64, memory: &[Slice]) -> Result<(), Error> {
        let sges: Vec<Sge> = memory.iter().map(|slice| slice.sge()).collect();
        self.engine()
            .post_recv([engine::RecvWr { wr_id, sges: &sges }])
            .map_err(|(index, source)| Cause::PostRecv(index, source).into())
    }
}

impl<S> QueuePair<Reset, S> {
    pub(crate) fn new(
        qp: Arc<engine::Qp>,
        domain: ProtectionDomain,
        send: CompletionQueue,
        receive: CompletionQueue,
        shared: Option<SharedReceiveQueue>,
        capacity: [Capacity; 2],
    ) -> Self {
        let psn = Psn::new(0);
        let parts = Parts {
            qp: Owned(qp),
            _domain: domain,
            send,
            receive,
            _shared: shared,
            _capacity: Box::new(capacity),
            psn,
        };
        Self { parts, state: PhantomData }
    }
}

impl QueuePair<Reset, Ud> {
    /// RESET to INIT; `qkey` is the Q_Key that datagrams to it must carry.
    pub fn init(self, qkey: Qkey) -> Stepped<Reset, Init, Ud> {
        let attr = QpAttr { state: EngineState::Init, qkey, ..QpAttr::default() };
        self.step(&attr)
    }
}

impl<S: Connected> QueuePair<Reset, S> {
    /// RESET to INIT; `access` are the rights of the peer.
    pub fn init(self, access: Access) -> Stepped<Reset, Init, S> {
        let attr = QpAttr {
            state: EngineState::Init,
            access: QpAccess::from_bits_retain(access.engine().bits()),
            ..QpAttr::default()
        };
        self.step(&attr)
    }
}

impl<S> QueuePair<Init, S> {
    /// Posts a receive; packets are accepted only from RTR on.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, memory: &[Slice]) -> Result<(), Error> {
        self.post_recvs(wr_id, memory)
    }
}

impl QueuePair<Init, Ud> {
    /// INIT to RTR: from now on it accepts datagrams to any address of the device.
    pub fn ready_to_receive(self) -> Stepped<Init, ReadyToReceive, Ud> {
        self.step(&QpAttr { state: EngineState::Rtr, ..QpAttr::default() })
    }
}

impl<S: Connected> QueuePair<Init, S> {
    /// INIT to RTR: from now on it accepts the peer's packets.
    pub fn ready_to_receive(self, connection: &Connection) -> Stepped<Init, ReadyToReceive, S> {
        let attr = match receiving(connection) {
            Ok(attr) => attr,
            Err(source) => return Err(QpError { state: self.state(), source, queue_pair: self }),
        };
        let mut stepped = self.step(&attr)?;
        stepped.parts.psn = connection.local.psn;
        Ok(stepped)
    }
}

impl<S> QueuePair<ReadyToReceive, S> {
    /// Posts a receive.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, memory: &[Slice]) -> Result<(), Error> {
        self.post_recvs(wr_id, memory)
    }

    fn send_unanswered(self) -> Stepped<ReadyToReceive, ReadyToSend, S> {
        let attr = QpAttr { state: EngineState::Rts, sq_psn: self.parts.psn, ..QpAttr::default() };
        self.step(&attr)
    }
}

impl QueuePair<ReadyToReceive, Uc> {
    /// RTR to RTS: from now on it sends messages.
    pub fn ready_to_send(self) -> Stepped<ReadyToReceive, ReadyToSend, Uc> {
        self.send_unanswered()
    }
}

impl QueuePair<ReadyToReceive, Ud> {
    /// RTR to RTS: from now on it sends datagrams.
    pub fn ready_to_send(self) -> Stepped<ReadyToReceive, ReadyToSend, Ud> {
        self.send_unanswered()
    }
}

impl QueuePair<ReadyToReceive> {
    /// RTR to RTS: from now on it sends requests.
    pub fn ready_to_send(self, options: SendOptions) -> Stepped<ReadyToReceive, ReadyToSend> {
        let attr = sending(self.parts.psn, options);
        self.step(&attr)
    }
}

impl<S> QueuePair<ReadyToSend, S> {
    /// Posts a receive.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, memory: &[Slice]) -> Result<(), Error> {
        self.post_recvs(wr_id, memory)
    }

    /// Posts send work requests in order, and transmits on this thread. It stops at the first one that is
    /// refused, see [`Error::index`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(&self, requests: impl IntoIterator<Item = &'a WorkRequest>) -> Result<(), Error> {
        self.engine()
            .post_send(requests.into_iter().map(WorkRequest::as_wr))
            .map_err(|(index, source)| Cause::PostSend(index, source).into())
    }
}

impl QueuePair<ReadyToSend, Ud> {
    /// Posts one [`WorkRequest::send`] with its destination, see [`WorkRequest::to`].
    pub fn send_to(
        &self,
        wr_id: u64,
        from: &[Slice],
        there: &AddressHandle,
        qpn: Qpn,
        qkey: Qkey,
    ) -> Result<(), Error> {
        self.post_send([&WorkRequest::send(wr_id, from).to(there, qpn, qkey)?])
    }
}

impl<S: Connected> QueuePair<ReadyToSend, S> {
    /// Posts one [`WorkRequest::send`].
    pub fn send(&self, wr_id: u64, from: &[Slice]) -> Result<(), Error> {
        self.post_send([&WorkRequest::send(wr_id, from)])
    }

    /// Posts one [`WorkRequest::send`] of `octets`, see [`WorkRequest::inline`]: no registered memory is
    /// needed.
    pub fn send_inline(&self, wr_id: u64, octets: &[u8]) -> Result<(), Error> {
        self.post_send([&WorkRequest::send(wr_id, &[]).inline(octets)])
    }

    /// Posts one [`WorkRequest::write`].
    pub fn write(&self, wr_id: u64, from: &[Slice], to: RemoteMemory) -> Result<(), Error> {
        self.post_send([&WorkRequest::write(wr_id, from, to)])
    }
}

impl QueuePair<ReadyToSend> {
    /// Posts one [`WorkRequest::read`].
    pub fn read(&self, wr_id: u64, to: &[Slice], from: RemoteMemory) -> Result<(), Error> {
        self.post_send([&WorkRequest::read(wr_id, to, from)])
    }
}

/// The address of this end of a connection over the GID at `gid_index`, with a random first PSN.
pub(crate) fn address(qp: &engine::Qp, gid_index: u8) -> Result<Address, Error> {
    let index = u32::from(gid_index);
    let gid = qp.context().gid(index)?.ok_or_else(|| Cause::no_gid(qp.context(), index))?.gid;
    let mtu = qp.context().port(1)?.active_mtu;
    let psn = Psn::new(std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), gid.0) as u32);
    Ok(Address { gid, qpn: qp.qpn(), psn, mtu, gid_index })
}

/// Attributes of RTR.
pub(crate) fn receiving(connection: &Connection) -> Result<QpAttr, Error> {
    let Connection { local, remote, .. } = *connection;
    if local.gid.is_ipv4() != remote.gid.is_ipv4() {
        return Err(Cause::Families { local: local.gid, remote: remote.gid }.into());
    }
    Ok(QpAttr {
        state: EngineState::Rtr,
        path_mtu: connection.path_mtu,
        dest_qp: remote.qpn,
        rq_psn: remote.psn,
        max_dest_rd_atomic: connection.max_dest_rd_atomic,
        min_rnr_timer: connection.min_rnr_timer,
        ah: AhAttr {
            dgid: remote.gid,
            sgid_index: local.gid_index,
            hop_limit: connection.hop_limit,
            traffic_class: connection.traffic_class,
            ..AhAttr::default()
        },
        ..QpAttr::default()
    })
}

/// Attributes of RTS.
pub(crate) fn sending(psn: Psn, options: SendOptions) -> QpAttr {
    QpAttr {
        state: EngineState::Rts,
        sq_psn: psn,
        timeout: options.timeout,
        retry_cnt: options.retry_cnt,
        rnr_retry: options.rnr_retry,
        max_rd_atomic: options.max_rd_atomic,
        ..QpAttr::default()
    }
}
