//! Queue pairs: the transport's state machine, joined to memory, sockets and completion queues.

mod answers;
mod datagrams;
mod flows;
mod ledger;
mod locked;
mod mcast;
mod of_context;
mod parts;
mod patience;
mod receives;
mod send_batch;
mod share;

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use ferroce_ipc::ledger::{Entry, Table};
use ferroce_proto::{
    MAX_FRAME, PostRecvError, PostSendError, QpAttrMask, QpCaps, QpConfig, QpState, QueuePair, RecvWr,
    SendWr, Service,
};
use ferroce_wire::{Flow, Gid, Qpn};
use parking_lot::Mutex;

use crate::ah::{self, Way};
use crate::async_queue::{AckCount, EventSource};
use crate::attr::{AhAttr, QpAttr};
use crate::device::{MAX_INLINE, MAX_QP, MAX_QP_WR, MAX_SGE};
use crate::error::{Busy, CreateQpError, ModifyQpError, PathError};
use crate::frames::Frames;
use crate::handover::NEVER;
use crate::outlets::{Exit, Outlets};
use crate::tx::Endpoints;
use crate::{CompletionQueue, Context, Pd, Srq, Xrcd, clock};
use ferroce_host::fork;

use answers::Answers;
pub(crate) use locked::Locked;
use locked::{Core, Inside, Path};
pub(crate) use parts::Parts;
pub use parts::QpInit;
use parts::Target;
use patience::Patience;
pub use send_batch::SendBatch;
use send_batch::Stage;
pub use share::QpShare;
use share::{Left, Sharing};

/// A queue pair (`ibv_qp`). Thread safe; posts transmit on the caller's thread.
#[doc(alias = "ibv_qp")]
pub struct Qp {
    me: Weak<Qp>,
    pd: Arc<Pd>,
    send_cq: Option<Arc<CompletionQueue>>,
    recv_cq: Option<Arc<CompletionQueue>>,
    srq: Option<Arc<Srq>>,
    target: Option<Target>,
    frames: Option<Frames>,
    qpn: Qpn,
    service: Service,
    caps: QpCaps,
    sq_sig_all: bool,
    user: u64,
    core: Mutex<Core>,
    stage: Arc<Mutex<Stage>>,
    /// When the transport wants its timers run, see `Lane::note_deadline`.
    deadline: AtomicU64,
    /// Place in the lane's list, guarded by that list's lock.
    place: AtomicUsize,
    async_acks: AckCount,
    /// What others see of it.
    entry: Entry,
    epoch: u64,
}

impl Qp {
    pub(crate) fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>, CreateQpError> {
        Self::assemble(pd, init.into())
    }

    pub(crate) fn assemble(pd: &Arc<Pd>, init: Parts) -> Result<Arc<Self>, CreateQpError> {
        let context = pd.context();
        let engine = context.engine();
        let caps = init.caps;
        for (what, asked, max) in [
            ("max_send_wr", caps.max_send_wr, MAX_QP_WR),
            ("max_recv_wr", caps.max_recv_wr, MAX_QP_WR),
            ("max_send_sge", caps.max_send_sge, MAX_SGE),
            ("max_recv_sge", caps.max_recv_sge, MAX_SGE),
            ("max_inline_data", caps.max_inline, MAX_INLINE),
        ] {
            if asked > max {
                return Err(CreateQpError::Capability { what, asked, max });
            }
        }
        for cq in init.send_cq.iter().chain(&init.recv_cq) {
            if !Arc::ptr_eq(cq.context(), context) {
                return Err(CreateQpError::ForeignCq);
            }
        }
        if init.srq.as_ref().is_some_and(|srq| !Arc::ptr_eq(srq.context(), context)) {
            return Err(CreateQpError::ForeignSrq);
        }
        let port = match init.service {
            Service::RawPacket => Some(Self::open_port(context)?),
            _ => None,
        };
        let hub = engine.hub();
        let qpn = hub.table.allocate().ok_or(CreateQpError::Limit { max: MAX_QP })?;
        let config = QpConfig {
            qpn,
            service: init.service,
            caps,
            srq: init.shared_receives(),
            sq_sig_all: init.sq_sig_all,
            port_mtu: context.info().path_mtu(),
            seed: engine.random(),
            early_resends: true,
            budget: Arc::clone(engine.budget()),
        };
        let transport = match QueuePair::new(config) {
            Ok(transport) => transport,
            Err(error) => {
                hub.table.release(qpn);
                return Err(error.into());
            }
        };
        if let Err(error) = init.add_users() {
            hub.table.release(qpn);
            return Err(error);
        }
        pd.add_user();
        let frame = if port.is_some() { vec![0; MAX_FRAME].into() } else { Box::default() };
        let memory = engine.memory().view(pd.id()).of(qpn);
        let qp = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            pd: Arc::clone(pd),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            frames: port.map(|port| {
                port.belongs_to(me);
                Frames { lane: engine.open_frame_lane(&port), port }
            }),
            target: init.xrcd.map(|(xrcd, _)| Target { xrcd, sharing: Sharing::default() }),
            qpn,
            service: init.service,
            caps,
            sq_sig_all: init.sq_sig_all,
            user: init.user,
            core: Mutex::new(Core {
                transport,
                memory,
                ah: AhAttr::default(),
                path: None,
                outlets: Outlets::default(),
                homes: Vec::new(),
                touched: false,
                owes: false,
                patience: Patience::new(),
                answers: Answers::new(),
                destroyed: false,
                groups: Vec::new(),
                frame,
            }),
            stage: Arc::new(Mutex::new(Stage::default())),
            deadline: AtomicU64::new(NEVER),
            place: AtomicUsize::new(usize::MAX),
            async_acks: AckCount::default(),
            entry: context.record(Table::Qp),
            epoch: fork::epoch(),
        });
        qp.introduce();
        hub.table.insert(qpn, Arc::clone(&qp));
        if qp.frames.is_some() {
            qp.settle_in(&mut qp.core.lock());
        }
        engine.objects_changed();
        Ok(qp)
    }

    /// Its number, unique in the network namespace.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The sizes it was made with, at least those asked for.
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// Its service.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Whether every send work request is signaled.
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    /// The caller's own value.
    pub fn user(&self) -> u64 {
        self.user
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Where its send completions go; XRC targets have none.
    pub fn send_cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.send_cq.as_ref()
    }

    /// Where its receive completions go; XRC has none, completions go to those of shared receive queues.
    pub fn recv_cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.recv_cq.as_ref()
    }

    /// Its completion queues; twice the same if both are one.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CompletionQueue>> {
        self.send_cq.iter().chain(&self.recv_cq)
    }

    /// The domain whose shared receive queues it receives into: XRC targets.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.target.as_ref().map(|target| &target.xrcd)
    }

    fn sharing(&self) -> Option<&Sharing> {
        self.target.as_ref().map(|target| &target.sharing)
    }

    /// Those of a context that have it open beside its creator.
    pub(crate) fn shares_of(&self, context: &Arc<Context>) -> Vec<Arc<QpShare>> {
        self.sharing().map(|sharing| sharing.of_context(context)).unwrap_or_default()
    }

    /// Where its receive WQEs come from, if not from a queue of its own.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// The state it is in.
    pub fn state(&self) -> QpState {
        self.core.lock().transport.state()
    }

    /// All attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let core = self.core.lock();
        QpAttr::from_transport(&core.transport.query(), core.ah)
    }

    /// What the transport counted on this queue pair.
    pub fn counters(&self) -> ferroce_proto::Counters {
        *self.core.lock().transport.counters()
    }

    /// Receives and processes what has arrived for a connected queue pair. An acknowledgement may wait in the socket, where a
    /// card would have seen it on arrival; if the queue pair ended now, its request would count as flushed.
    pub fn catch_up(&self) {
        if self.is_foreign() {
            return;
        }
        let lane = {
            let core = self.core.lock();
            let lives = !matches!(core.transport.state(), QpState::Reset | QpState::Init | QpState::Error);
            core.path.as_ref().filter(|_| lives).map(|path| Arc::clone(&path.lane))
        };
        if let Some(lane) = lane {
            lane.catch_up();
        }
    }

    /// Sets the attributes that `mask` names, all or none. What has arrived is processed before the queue pair goes to the
    /// error state.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError> {
        if self.is_foreign() {
            return Err(ModifyQpError::Destroyed);
        }
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Error {
            self.catch_up();
        }
        let mut locked = self.lock();
        if locked.core.destroyed {
            return Err(ModifyQpError::Destroyed);
        }
        let core = &mut *locked.core;
        if mask.contains(QpAttrMask::PORT) && attr.port_num != 1 {
            return Err(ModifyQpError::Port { port: attr.port_num });
        }
        if mask.contains(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0 {
            return Err(ModifyQpError::PkeyIndex { index: attr.pkey_index });
        }
        if mask.contains(QpAttrMask::PATH_MTU) {
            let active = self.context().info().path_mtu();
            if attr.path_mtu > active {
                return Err(ModifyQpError::PathMtu { asked: attr.path_mtu.bytes(), active: active.bytes() });
            }
        }
        self.pay(core);
        let now = clock::now();
        let mut flow = core.transport.query().path;
        let mut fresh = None;
        if mask.contains(QpAttrMask::AV) {
            let dest_qp = if mask.contains(QpAttrMask::DEST_QPN) {
                attr.dest_qp
            } else {
                core.transport.query().dest_qp
            };
            let path = self.resolve(&attr.ah, dest_qp)?;
            flow = path.socket.flow();
            fresh = Some(path);
        }
        core.transport.modify(&attr.to_transport(flow), mask)?;
        if let Some(path) = fresh {
            core.ah = attr.ah;
            self.move_to(core, Some(path));
        }
        let reset = core.transport.state() == QpState::Reset;
        if reset {
            self.move_to(core, None);
            core.ah = AhAttr::default();
            core.outlets = Outlets::default();
        }
        self.settle_in(core);
        locked.settle(now);
        if reset {
            // Providers of cards clean the queues of what a reset queue pair left, programs expect it.
            self.purge();
        }
        Ok(())
    }

    /// The lane and socket for a path, from the tables.
    fn resolve(&self, ah: &AhAttr, dest_qp: Qpn) -> Result<Path, ModifyQpError> {
        let Way { lane, local, class, hop_limit, link } = ah::resolve(self.context(), ah)?;
        if ah.dgid.is_multicast() {
            return Err(PathError::Dgid { dgid: ah.dgid, sgid: Gid::from_ip(local) }.into());
        }
        if link.ifindex != 0
            && let Some((port, _)) = self.context().engine().rings()
        {
            let slot = (dest_qp.value() >> 16) as u8;
            let flow = Flow {
                source: local,
                destination: ah.dgid.to_ip(),
                source_port: ah::rings_port(link, slot),
                traffic_class: class.traffic_class,
                hop_limit,
                link,
            };
            return Ok(Path { lane, socket: Exit::Rings(Arc::clone(port), flow) });
        }
        let ends = Endpoints {
            destination: ah.dgid.to_ip(),
            local_qpn: self.qpn,
            remote_qpn: dest_qp,
            class,
            hop_limit,
        };
        let socket = lane.senders().acquire(&ends).map_err(ModifyQpError::Socket)?;
        Ok(Path { lane, socket: Exit::Socket(socket) })
    }

    /// Leaves the lane it was on, if any, for that of `path`.
    fn move_to(&self, core: &mut Core, path: Option<Path>) {
        let before = std::mem::replace(&mut core.path, path);
        let same = match (&before, &core.path) {
            (Some(before), Some(after)) => Arc::ptr_eq(&before.lane, &after.lane),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(Path { lane, .. }) = before {
            lane.detach(self);
            self.listen_no_more(&lane);
        }
        if let (Some(Path { lane, .. }), Some(me)) = (&core.path, self.me.upgrade()) {
            lane.attach(&me);
            self.listen(lane);
        }
    }

    /// Posts work requests in order and transmits what may leave, on this thread. At the first
    /// that is refused it stops: the ones before it are posted, the error says which one it was.
    /// Each request is copied before the next one is taken from `wrs`.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostSendError)> {
        if self.is_foreign() {
            return Err((0, PostSendError::State(QpState::Reset)));
        }
        let Some(mut locked) = self.lock_to_post() else {
            return Err((0, PostSendError::QueueFull { max: self.caps.max_send_wr }));
        };
        if locked.core.destroyed {
            return Err((0, PostSendError::State(QpState::Reset)));
        }
        let now = clock::now();
        let core = &mut *locked.core;
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            self.open_outlet(core, &wr);
            if let Err(error) = core.transport.post_send(&wr, &core.memory) {
                result = Err((index, error));
                break;
            }
        }
        locked.posted(now);
        locked.settle_posted(now);
        result
    }

    /// Posts receive work requests in order. At the first that is refused it stops: the ones
    /// before it are posted, the error says which one it was. Each request is copied before the
    /// next one is taken from `wrs`.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), (usize, PostRecvError)> {
        if self.is_foreign() {
            return Err((0, PostRecvError::State(QpState::Reset)));
        }
        let Some(mut locked) = self.lock_to_post() else {
            return Err((0, PostRecvError::QueueFull { max: self.caps.max_recv_wr }));
        };
        if locked.core.destroyed {
            return Err((0, PostRecvError::State(QpState::Reset)));
        }
        let core = &mut *locked.core;
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(error) = core.transport.post_recv(&wr) {
                result = Err((index, error));
                break;
            }
        }
        // In the error state the posts flush at once; otherwise there is nothing to send.
        if core.transport.state() == QpState::Error {
            locked.settle(clock::now());
        }
        result
    }

    /// Starts a batch of send work requests that are posted together or not at all. Other batches
    /// of this queue pair wait until it ends; posts and packets do not.
    #[doc(alias = "ibv_wr_start")]
    pub fn sender(self: &Arc<Self>) -> SendBatch {
        SendBatch::new(Arc::clone(self), self.stage.lock_arc())
    }

    /// Posts all of `wrs` or none.
    pub(crate) fn post_all<'a>(&self, wrs: impl Iterator<Item = SendWr<'a>>) -> Result<(), PostSendError> {
        if self.is_foreign() {
            return Err(PostSendError::State(QpState::Reset));
        }
        let Some(mut locked) = self.lock_to_post() else {
            return Err(PostSendError::QueueFull { max: self.caps.max_send_wr });
        };
        if locked.core.destroyed {
            return Err(PostSendError::State(QpState::Reset));
        }
        let now = clock::now();
        let core = &mut *locked.core;
        let mark = core.transport.sq_mark();
        for wr in wrs {
            self.open_outlet(core, &wr);
            if let Err(error) = core.transport.post_send(&wr, &core.memory) {
                core.transport.sq_rollback(mark);
                return Err(error);
            }
        }
        locked.posted(now);
        locked.settle_posted(now);
        Ok(())
    }

    /// Copies from the program's own memory, as inline data is; [`PostSendError::Inline`] if it is not there.
    pub fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), PostSendError> {
        use ferroce_proto::Memory;
        self.core.lock().memory.read_inline(addr, out).map_err(PostSendError::Inline)
    }

    /// Ends the queue pair, after it left every multicast group and gave up its rules; else as [`Self::try_destroy`].
    pub fn destroy(&self) {
        while self.try_destroy().is_err() {
            self.detach_all();
            self.remove_flows();
        }
    }

    /// Ends the queue pair. Outstanding work requests vanish without completions, and completions
    /// that were not polled with them; waits until its asynchronous events are acknowledged. A
    /// second call does nothing.
    ///
    /// [`Busy`] while it is attached to multicast groups or has rules of flows: then nothing happened.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn try_destroy(&self) -> Result<(), Busy> {
        if self.is_foreign() {
            return Ok(());
        }
        let Some(Target { xrcd, sharing }) = &self.target else { return self.end() };
        match sharing.leave() {
            Left::Before => return Ok(()),
            Left::OthersStay => {
                self.context().async_events().purge(self);
                self.async_acks.wait();
            }
            Left::Last => self.end()?,
        }
        xrcd.remove_user();
        Ok(())
    }

    /// Ends it for everybody, after what has arrived: a peer's last request is acknowledged.
    fn end(&self) -> Result<(), Busy> {
        self.catch_up();
        let hub = self.context().engine().hub();
        {
            let mut core = self.core.lock();
            if core.destroyed {
                return Ok(());
            }
            let users = core.groups.len() + self.flows();
            if users > 0 {
                return Err(Busy { users });
            }
            core.destroyed = true;
            self.pay(&mut core);
            self.move_to(&mut core, None);
            self.settle_in(&mut core);
            self.frames.iter().for_each(|frames| self.context().engine().close_lane(&frames.lane));
            core.outlets = Outlets::default();
            self.retire(&core.transport);
            core.memory.end_windows();
            // Gives back what it had in flight.
            let reset = ferroce_proto::QpAttr { state: QpState::Reset, ..Default::default() };
            if let Err(error) = core.transport.modify(&reset, QpAttrMask::STATE) {
                tracing::debug!(%error, "a queue pair could not be reset");
            }
        }
        hub.table.remove(self.qpn);
        self.purge();
        self.context().async_events().purge(self);
        self.async_acks.wait();
        hub.table.release(self.qpn);
        self.cqs().for_each(|cq| cq.remove_user());
        self.srq.iter().for_each(|srq| srq.remove_user());
        self.pd.remove_user();
        self.context().engine().objects_changed();
        Ok(())
    }

    fn purge(&self) {
        self.cqs().for_each(|cq| cq.purge(self.qpn));
        self.xrcd().inspect(|xrcd| xrcd.domain().purge(self.qpn));
    }

    /// Acknowledges one asynchronous event of this queue pair.
    pub fn ack_async_event(&self) {
        self.async_acks.acknowledge(1);
    }

    /// Of the process from which this one was forked: nothing may be sent by its descriptors, whose numbers may be other files' here,
    /// and its lock may be held for ever.
    fn is_foreign(&self) -> bool {
        self.epoch != fork::epoch()
    }

    /// Sends an acknowledgement that was put off, if no thread is inside the queue pair. For the end of the process: the thread
    /// that ends it may be inside, if a signal handler calls `exit`.
    pub(crate) fn pay_if_free(&self) {
        if let Some(mut core) = self.core.try_lock()
            && matches!(&core.path, Some(Path { socket: Exit::Socket(_), .. }))
        {
            self.pay(&mut core);
        }
    }

    pub(crate) fn deadline(&self) -> &AtomicU64 {
        &self.deadline
    }

    pub(crate) fn place(&self) -> &AtomicUsize {
        &self.place
    }

    /// As [`Self::lock`], for posts; `None` if this thread is inside the queue pair already, because a signal handler posts.
    fn lock_to_post(&self) -> Option<Locked<'_>> {
        Inside::unless_interrupted(self).map(|core| Locked { qp: self, core })
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { qp: self, core: Inside::wait(self) }
    }

    /// To the error state, because a completion queue of it was overrun.
    pub(crate) fn fail(&self) {
        let mut locked = self.lock();
        if !locked.core.destroyed {
            locked.core.transport.set_fatal();
            locked.settle(clock::now());
        }
    }
}

impl EventSource for Qp {
    fn async_acks(&self) -> &AckCount {
        &self.async_acks
    }
}
