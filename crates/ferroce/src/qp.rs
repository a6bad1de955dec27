//! Queue pairs, with their state and service in the type.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{AhAttr, QpAccess, QpAttr, QpState, Remote, SendOp, SendTo, SendWr, Sge};
use ferroce_wire::{Imm, Lkey, Psn, Qkey, Qpn, Rkey, SrqNumber};

use crate::capacity::Capacity;
use crate::service::{Connected, Rc, Uc, Ud};
use crate::{
    Access, Address, AddressHandle, CompletionQueue, Connection, Error, MemoryRegion, MemoryWindow,
    ProtectionDomain, QpError, SendOptions, SharedReceiveQueue, Slice,
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

/// A location in the peer's memory, as received from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Its address at the peer.
    pub addr: u64,
    /// The peer's key.
    pub rkey: Rkey,
}

impl From<RemoteMemory> for Remote {
    fn from(RemoteMemory { addr, rkey }: RemoteMemory) -> Self {
        Self { addr, rkey }
    }
}

/// A send work request, for [`QueuePair::post_send`]. Start from one of the constructors.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct WorkRequest {
    wr_id: u64,
    op: SendOp,
    to: SendTo,
    sges: Vec<Sge>,
    /// The inline octets; `sges` has their address.
    inline: Option<Arc<[u8]>>,
    signaled: bool,
    solicited: bool,
    fence: bool,
}

impl WorkRequest {
    fn new(wr_id: u64, op: SendOp, memory: &[Slice]) -> Self {
        let sges = memory.iter().map(|slice| slice.sge()).collect();
        let to = SendTo::Peer;
        Self { wr_id, op, to, sges, inline: None, signaled: true, solicited: false, fence: false }
    }

    /// Sends a message to the peer's next receive.
    pub fn send(wr_id: u64, from: &[Slice]) -> Self {
        Self::new(wr_id, SendOp::Send, from)
    }

    /// As [`Self::send`], with immediate data for the peer's completion.
    pub fn send_imm(wr_id: u64, from: &[Slice], imm: Imm) -> Self {
        Self::new(wr_id, SendOp::SendImm(imm), from)
    }

    /// As [`Self::send`], and invalidates a key of the peer.
    pub fn send_invalidate(wr_id: u64, from: &[Slice], rkey: Rkey) -> Self {
        Self::new(wr_id, SendOp::SendInvalidate(rkey), from)
    }

    /// Writes to the peer's memory, without a completion there.
    pub fn write(wr_id: u64, from: &[Slice], to: RemoteMemory) -> Self {
        Self::new(wr_id, SendOp::Write { remote: to.into() }, from)
    }

    /// As [`Self::write`], and completes the peer's next receive with `imm`.
    pub fn write_imm(wr_id: u64, from: &[Slice], to: RemoteMemory, imm: Imm) -> Self {
        Self::new(wr_id, SendOp::WriteImm { remote: to.into(), imm }, from)
    }

    /// Reads the peer's memory.
    pub fn read(wr_id: u64, to: &[Slice], from: RemoteMemory) -> Self {
        Self::new(wr_id, SendOp::Read { remote: from.into() }, to)
    }

    /// Replaces eight octets of the peer by `swap` if they equal `compare`; their previous value is stored in `old`.
    pub fn compare_swap(wr_id: u64, old: Slice, at: RemoteMemory, compare: u64, swap: u64) -> Self {
        Self::new(wr_id, SendOp::CompareSwap { remote: at.into(), compare, swap }, &[old])
    }

    /// Adds to eight octets of the peer; their previous value is stored in `old`.
    pub fn fetch_add(wr_id: u64, old: Slice, at: RemoteMemory, add: u64) -> Self {
        Self::new(wr_id, SendOp::FetchAdd { remote: at.into(), add }, &[old])
    }

    /// Stores eight octets (in memory order) as one word in the peer's memory, after all earlier operations. The peer
    /// must support this newer operation, as ferroce does.
    pub fn atomic_write(wr_id: u64, octets: [u8; 8], to: RemoteMemory) -> Self {
        Self::new(wr_id, SendOp::AtomicWrite { remote: to.into(), octets: Some(octets) }, &[])
    }

    /// Binds a window to `range` of a region, for the peer of the queue pair that it is posted to: `access` is what the
    /// peer may do. After its completion, send [`MemoryWindow::remote`] to the peer.
    ///
    /// The region needs [`Access::MW_BIND`]. A window is bound once; [`Self::local_invalidate`] or the peer's
    /// [`Self::send_invalidate`] frees it.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind(
        wr_id: u64,
        window: &mut MemoryWindow,
        region: &MemoryRegion<'_>,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Self {
        Self::new(wr_id, SendOp::BindMw(window.bind(region, range, access)), &[])
    }

    /// Invalidates a key of our own: that of a bound window.
    pub fn local_invalidate(wr_id: u64, rkey: Rkey) -> Self {
        Self::new(wr_id, SendOp::LocalInvalidate(rkey), &[])
    }

    /// Sets the destination of a datagram: queue pair `qpn` there, with the Q_Key `qkey`. If its bit 31 is set, the
    /// sender's own Q_Key is used.
    ///
    /// The first datagram to a process there opens a socket, which can fail.
    pub fn to(mut self, there: &AddressHandle, qpn: Qpn, qkey: Qkey) -> Result<Self, Error> {
        self.to = there.to(qpn, qkey)?;
        Ok(self)
    }

    /// Sets the peer's shared receive queue that takes the message, or that selects the protection domain: XRC.
    #[must_use]
    pub fn to_queue(mut self, number: SrqNumber) -> Self {
        self.to = SendTo::XrcSrq(number);
        self
    }

    /// Carries `octets` instead of registered memory, in sends and writes; it replaces slices that were given before.
    /// The octets are copied now, and again when the work request is posted.
    ///
    /// Posting fails for more octets than [`QpOptions::max_inline`](crate::QpOptions::max_inline), and for work
    /// requests without a payload of their own (READ, atomics, binds).
    #[must_use]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn inline(mut self, octets: &[u8]) -> Self {
        // Clones share the octets, so their address is valid as long as one of the clones exists.
        let octets: Arc<[u8]> = octets.into();
        let addr = octets.as_ptr().expose_provenance() as u64;
        // A length beyond `u32` exceeds every queue pair's limit.
        let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
        self.sges = vec![Sge { addr, length, lkey: Lkey::new(0) }];
        self.inline = Some(octets);
        self
    }

    /// Requests no completion on success.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Raises a solicited event at the peer.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Starts only after all earlier READs and atomics are done.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    pub(crate) fn as_wr(&self) -> SendWr<'_> {
        let Self { wr_id, op, to, ref sges, ref inline, signaled, solicited, fence } = *self;
        SendWr { wr_id, op, to, sges, signaled, solicited, fence, inline: inline.is_some() }
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
        self.engine().state()
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
        let mask = engine::bring_up_mask(self.engine().service(), attr.qp_state);
        match self.engine().modify(attr, mask) {
            Ok(()) => Ok(QueuePair { parts: self.parts, state: PhantomData }),
            Err(error) => Err(QpError { state: self.state(), source: error.into(), queue_pair: self }),
        }
    }

    /// Moves it to RESET; outstanding work requests are dropped without completions.
    pub fn reset(self) -> Stepped<State, Reset, S> {
        self.step(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() })
    }

    fn post_recvs(&self, wr_id: u64, memory: &[Slice]) -> Result<(), Error> {
        let sges: Vec<Sge> = memory.iter().map(|slice| slice.sge()).collect();
        self.engine()
            .post_recv([engine::RecvWr { wr_id, sges: &sges }])
            .map_err(|(index, source)| Error::PostRecv { index, source })
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
        let attr = QpAttr { qp_state: QpState::Init, qkey, ..QpAttr::default() };
        self.step(&attr)
    }
}

impl<S: Connected> QueuePair<Reset, S> {
    /// RESET to INIT; `access` are the rights of the peer.
    pub fn init(self, access: Access) -> Stepped<Reset, Init, S> {
        let attr = QpAttr {
            qp_state: QpState::Init,
            access: QpAccess::from_bits_retain(access.bits()),
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
        self.step(&QpAttr { qp_state: QpState::Rtr, ..QpAttr::default() })
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
        let attr = QpAttr { qp_state: QpState::Rts, sq_psn: self.parts.psn, ..QpAttr::default() };
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

    /// Posts send work requests in order, and transmits on this thread. It stops at the first one that is refused, see
    /// [`Error::PostSend`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(&self, requests: impl IntoIterator<Item = &'a WorkRequest>) -> Result<(), Error> {
        self.engine()
            .post_send(requests.into_iter().map(WorkRequest::as_wr))
            .map_err(|(index, source)| Error::PostSend { index, source })
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

    /// Posts one [`WorkRequest::send`] of `octets`, see [`WorkRequest::inline`]: no registered memory is needed.
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

/// One end of a connection over the GID at `gid_index`, with a random first PSN.
pub(crate) fn address(qp: &engine::Qp, gid_index: u8) -> Result<Address, Error> {
    let index = u32::from(gid_index);
    let gid = qp.context().gid(index)?.ok_or(Error::EmptyGid { index })?.gid;
    let mtu = qp.context().port(1)?.active_mtu;
    let psn = Psn::new(std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), gid.0) as u32);
    Ok(Address { gid, qpn: qp.qpn(), psn, mtu, gid_index })
}

/// Attributes of RTR.
pub(crate) fn receiving(connection: &Connection) -> Result<QpAttr, Error> {
    let Connection { local, remote, .. } = *connection;
    if local.gid.is_ipv4() != remote.gid.is_ipv4() {
        return Err(Error::Families { local: local.gid, remote: remote.gid });
    }
    Ok(QpAttr {
        qp_state: QpState::Rtr,
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
        qp_state: QpState::Rts,
        sq_psn: psn,
        timeout: options.timeout,
        retry_cnt: options.retry_cnt,
        rnr_retry: options.rnr_retry,
        max_rd_atomic: options.max_rd_atomic,
        ..QpAttr::default()
    }
}
