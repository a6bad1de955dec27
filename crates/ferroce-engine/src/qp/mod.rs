//! Queue pairs: the transport's state machine, joined to memory, sockets and completion queues.

mod flows;
mod mcast;
mod of_context;
mod parts;
mod path;
mod resources;
mod send_batch;
mod share;
mod stage;

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use ferroce_ipc::ledger::Table;
use ferroce_paths::clock;
use ferroce_paths::faults::{self, Moment, QpName, Verb, VerbFacts};
use ferroce_paths::tx_path::Transmit;
use ferroce_proto::history::{Event, Posted};
use ferroce_proto::{
    CompletionCounter, MAX_FRAME, PostRecvError, PostSendError, QpAttr, QpAttrMask, QpCaps, QpConfig,
    QpState, QueuePair, RecvWr, SendTo, SendWr, Service,
};
use ferroce_wire::{Flow, Qkey, Qpn};
use parking_lot::Mutex;
use rustix::thread::{CapabilitySet, capabilities};

use crate::ah;
use crate::async_queue::{AckCount, EventSource};
use crate::device::{MAX_INLINE, MAX_QP, MAX_QP_WR, MAX_SGE};
use crate::engine::Engine;
use crate::error::{AttachCounterError, Busy, CreateQpError, LimitReached, ModifyQpError};
use crate::handover::NEVER;
use crate::lane::{Attachment, Core, Datagrams, Endpoint, Frames, Lanes, Locked};
use crate::{CompletionQueue, Context, Pd, Srq, Xrcd};
use crate::{congestion, selective_repeat};
use ferroce_host::fork;

pub(crate) use parts::Parts;
pub use parts::QpInit;
use resources::Resources;
pub use send_batch::SendBatch;
pub use share::QpShare;
use share::{Left, Sharing, Target};
use stage::Stage;

/// A queue pair (`ibv_qp`). Thread safe; posts transmit on the caller's thread.
#[doc(alias = "ibv_qp")]
pub struct Qp {
    endpoint: Arc<Endpoint>,
    resources: Arc<Resources>,
    caps: QpCaps,
    sq_sig_all: bool,
    user: u64,
    stage: Arc<Mutex<Stage>>,
    async_acks: AckCount,
    epoch: u64,
}

impl Pd {
    /// Makes a queue pair in the RESET state.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, CreateQpError> {
        use Service::{RawPacket, Uc, Ud, XrcInitiator, XrcTarget};
        // iWARP has connections alone.
        if self.context().is_iwarp() && matches!(init.service, Uc | Ud | RawPacket | XrcInitiator | XrcTarget)
        {
            return Err(CreateQpError::Service);
        }
        let service = if self.context().is_iwarp() { Service::Iwarp } else { init.service };
        Qp::assemble(self, QpInit { service, ..init }.into())
    }
}

impl Qp {
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
        let attachment = match init.service {
            Service::Rc | Service::Uc | Service::XrcInitiator | Service::XrcTarget => {
                Attachment::Connected(None)
            }
            Service::Ud => Attachment::Datagrams(Datagrams::default()),
            Service::RawPacket => Attachment::Frames(Frames::new(Self::open_port(context)?, MAX_FRAME)),
            Service::Iwarp => Attachment::Tcp(None),
        };
        let hub = engine.hub();
        let further = || engine.lease_further_slot().then(|| hub.table.allocate()).flatten();
        let qpn =
            hub.table.allocate().or_else(further).ok_or(LimitReached { what: "queue pairs", max: MAX_QP })?;
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
        let memory = engine.memory.view(pd.id()).of(qpn);
        let name = QpName::next(context.shared_name());
        let qp = Arc::new_cyclic(|me: &Weak<Self>| {
            let resources = Arc::new(Resources {
                me: me.clone(),
                name: name.clone(),
                sent: AtomicU64::new(0),
                pd: Arc::clone(pd),
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                target: init.xrcd.map(|(xrcd, _)| Target { xrcd, sharing: Sharing::default() }),
                overrun: Mutex::default(),
            });
            let endpoint = Arc::new_cyclic(|endpoint| Endpoint {
                me: endpoint.clone(),
                owner: me.clone() as Weak<_>,
                qpn,
                name,
                service: init.service,
                device: context.id(),
                block: context.block(),
                core: Mutex::new(Core::new(transport, memory, attachment)),
                deadline: AtomicU64::new(NEVER),
                place: AtomicUsize::new(usize::MAX),
                entry: context.record(Table::Qp),
                hub: Arc::clone(hub),
                outputs: Arc::clone(&resources) as Arc<_>,
            });
            Self {
                endpoint,
                resources,
                caps,
                sq_sig_all: init.sq_sig_all,
                user: init.user,
                stage: Arc::new(Mutex::new(Stage::default())),
                async_acks: AckCount::default(),
                epoch: fork::epoch(),
            }
        });
        qp.introduce();
        {
            let mut core = qp.endpoint.core.lock();
            core.keep = Some(Arc::clone(&qp) as Arc<_>);
            if let Attachment::Frames(Frames { port, .. }) = &core.attachment {
                let lane = engine.lanes().open_frames(port, &qp.endpoint);
                qp.endpoint.receive_frames_on(&mut core, Some(lane));
            }
        }
        hub.table.insert(qpn, Arc::clone(&qp.endpoint));
        engine.objects_changed();
        Ok(qp)
    }

    /// The queue pair that an endpoint is of; `None` if it is gone.
    fn of(endpoint: &Endpoint) -> Option<Arc<Self>> {
        endpoint.owner.upgrade()?.downcast().ok()
    }

    /// All queue pairs of the process.
    fn all(engine: &Engine) -> impl Iterator<Item = Arc<Self>> {
        engine.hub().table.iter().filter_map(|endpoint| Self::of(&endpoint))
    }

    /// Writes into its record in the ledger what stays as it is.
    fn introduce(&self) {
        let core = self.endpoint.core.lock();
        let number = |cq: Option<&Arc<CompletionQueue>>| cq.map_or(0, |cq| cq.number());
        self.endpoint.entry.put(&ferroce_ipc::ledger::records::QpParts {
            pd: self.pd().number(),
            send_cq: number(self.send_cq()),
            recv_cq: number(self.recv_cq()),
        });
        self.endpoint.show(&core.transport);
    }

    /// Number of the queue pair, unique in the network namespace.
    pub fn qpn(&self) -> Qpn {
        self.endpoint.qpn
    }

    /// The sizes it was made with, at least those asked for.
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// Service of the queue pair.
    pub fn service(&self) -> Service {
        self.endpoint.service
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
        &self.resources.pd
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        self.resources.pd.context()
    }

    /// Completion queue of the sends; `None` for XRC targets.
    pub fn send_cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.resources.send_cq.as_ref()
    }

    /// Completion queue of the receives; `None` for XRC, whose shared receive queues have completion queues.
    pub fn recv_cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.resources.recv_cq.as_ref()
    }

    /// Completion queues of the queue pair; if both are one, it comes twice.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CompletionQueue>> {
        self.resources.cqs()
    }

    /// The domain whose shared receive queues it receives into: XRC targets.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.resources.xrcd()
    }

    fn sharing(&self) -> Option<&Sharing> {
        self.resources.target.as_ref().map(|target| &target.sharing)
    }

    /// The shares by which a context has it open beside its creator.
    pub(crate) fn shares_of(&self, context: &Arc<Context>) -> Vec<Arc<QpShare>> {
        self.sharing().map(|sharing| sharing.of_context(context)).unwrap_or_default()
    }

    /// Shared receive queue that receive WQEs are taken from; `None` with an own receive queue.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.resources.srq.as_ref()
    }

    /// The state it is in.
    pub fn state(&self) -> QpState {
        self.endpoint.core.lock().transport.state()
    }

    /// All attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        self.endpoint.core.lock().transport.query()
    }

    /// The transport's counters of this queue pair.
    pub fn counters(&self) -> ferroce_proto::Counters {
        *self.endpoint.core.lock().transport.counters()
    }

    /// Receives and processes what has arrived for a connected queue pair. An acknowledgement may wait in the
    /// socket, where a card would have seen it on arrival; if the queue pair ended now, its request would
    /// count as flushed. Asks the broker perhaps, so the caller holds no lock.
    pub fn catch_up(&self) {
        if self.is_foreign() {
            return;
        }
        let lanes: Vec<_> = {
            let mut core = self.endpoint.core.lock();
            self.endpoint.flush(&mut core);
            let lives = !matches!(core.transport.state(), QpState::Reset | QpState::Init | QpState::Error);
            core.peer_lanes().filter(|_| lives).cloned().collect()
        };
        Lanes::settle(self.context().engine().broker(), lanes.iter());
        lanes.iter().for_each(|lane| lane.catch_up());
    }

    /// Sets the attributes that `mask` names, all or none. Packets that have arrived are processed before the
    /// queue pair ends its connection, and dropped before it begins one.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyQpError> {
        if self.is_foreign() {
            return Err(ModifyQpError::Destroyed);
        }
        let ends = mask.contains(QpAttrMask::STATE) && matches!(attr.state, QpState::Error | QpState::Reset);
        if ends {
            self.catch_up();
        }
        // Asks the broker perhaps, so no lock is held.
        let pipe = self.find_pipe(attr, mask);
        let mut attr = *attr;
        if mask.contains(QpAttrMask::AV) && !matches!(self.service(), Service::Ud | Service::RawPacket) {
            attr.ah = ah::completed(self.context(), &attr.ah)?;
        }
        let begins = mask.contains(QpAttrMask::STATE) && attr.state == QpState::Rtr;
        if begins {
            let engine = self.context().engine();
            engine.lanes().drop_arrived(engine.broker(), &self.endpoint);
        }
        let mut locked = self.endpoint.lock();
        if locked.core.destroyed || (self.context().is_dead() && !ends) {
            return Err(ModifyQpError::Destroyed);
        }
        let core = &mut *locked.core;
        if mask.contains(QpAttrMask::PORT) && attr.port_num != 1 {
            return Err(ModifyQpError::Port { port: attr.port_num });
        }
        if mask.contains(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0 {
            return Err(ModifyQpError::PkeyIndex { index: attr.pkey_index });
        }
        if mask.contains(QpAttrMask::QKEY) && !Self::may_set(attr.qkey) {
            return Err(ModifyQpError::Qkey { qkey: attr.qkey });
        }
        if mask.contains(QpAttrMask::PATH_MTU) {
            let active = self.context().info().path_mtu();
            if attr.path_mtu > active {
                return Err(ModifyQpError::PathMtu { asked: attr.path_mtu.bytes(), active: active.bytes() });
            }
        }
        if ends {
            self.endpoint.flush_last(core)
        } else {
            self.endpoint.flush(core)
        }
        let now = clock::now();
        let mut fresh = None;
        // A connection of iWARP has no address vector: the transport refuses it.
        if mask.contains(QpAttrMask::AV) && self.service() != Service::Iwarp {
            let dest_qp = if mask.contains(QpAttrMask::DEST_QPN) {
                attr.dest_qp
            } else {
                core.transport.query().dest_qp
            };
            let path = self.resolve(&attr.ah, dest_qp, pipe)?;
            attr.path = path.socket.flow();
            core.transport.set_limited(!path.socket.is_pipe());
            fresh = Some(path);
            core.direct.end_target(&mut core.transport, &core.memory);
            core.changed = true;
        }
        if begins {
            core.transport.set_selective_repeat(selective_repeat::mode(attr.selective_repeat));
            core.transport.set_congestion_control(congestion::mode(&self.context().settings()));
        }
        core.transport.modify(&attr, mask)?;
        let acknowledged = matches!(self.service(), Service::Rc | Service::XrcInitiator);
        core.unused = (begins && acknowledged) || (core.unused && !ends);
        if begins {
            core.direct.receives_from(attr.rq_psn);
        }
        if mask.contains(QpAttrMask::SQ_PSN) {
            core.direct.sends_from(attr.sq_psn);
        }
        if let Some(path) = fresh {
            self.endpoint.move_to(core, Some(path));
        }
        if mask.contains(QpAttrMask::STATE) {
            self.endpoint.entry.happened(Event::entered(now, attr.state));
            self.endpoint.show_ends(&core.transport);
        }
        let reset = core.transport.state() == QpState::Reset;
        match core.transport.state() {
            QpState::Reset => faults::forget(&self.endpoint.name),
            QpState::Rtr if mask.contains(QpAttrMask::STATE) => self.reached(Moment::Rtr),
            QpState::Rts if mask.contains(QpAttrMask::STATE) => self.reached(Moment::Rts),
            _ => {}
        }
        if reset {
            core.held = faults::Held::default();
            core.memory.forget_messages();
            self.endpoint.give_up_paths(core);
        }
        self.follow_lanes(core);
        locked.finish_batch(now);
        if reset {
            // Providers of cards clean the queues of what a reset queue pair left, programs expect it.
            self.purge();
        }
        Ok(())
    }

    /// Has a counter of the same context count the operations of the mask `ops` until the queue pair ends.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_counter(
        &self,
        counter: &Arc<CompletionCounter>,
        ops: u32,
    ) -> Result<(), AttachCounterError> {
        if self.is_foreign() {
            return Err(AttachCounterError::Ended);
        }
        self.endpoint.core.lock().transport.attach_counter(counter, ops)
    }

    /// Whether this thread may give a queue pair the Q_Key. One with the highest bit set is controlled (IBTA
    /// 10.2.5) and needs CAP_NET_RAW, here in the user namespace of the program (Linux 6.12, `modify_qp` in
    /// `uverbs_cmd.c`).
    fn may_set(qkey: Qkey) -> bool {
        let may = || capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::NET_RAW));
        qkey.value() >> 31 == 0 || may()
    }

    /// From RTR on, a queue pair of datagrams receives on all lanes of its device, and sends by the device's
    /// port.
    fn follow_lanes(&self, core: &mut Core) {
        let (engine, device) = (self.context().engine(), self.endpoint.device);
        self.endpoint.follow_lanes(core, || engine.lanes_of(device), || engine.port_for_datagrams(device));
    }

    /// A plan of faults may kill a process at this moment.
    fn reached(&self, at: Moment) {
        faults::moment(at, Some(&self.endpoint.name), None);
    }

    /// Posts work requests in order and transmits what may leave, on this thread. At the first
    /// that is refused it stops: the ones before it are posted, the error says which one it was.
    /// Each request is copied before the next one is taken from `wrs`.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostSendError)> {
        let posts = |sends: &mut Sends<'_>| {
            let each = |(index, wr)| sends.post(&wr).map_err(|error| (index, error));
            wrs.into_iter().enumerate().try_for_each(each)
        };
        self.post_sends(posts).unwrap_or_else(|error| Err((0, error)))
    }

    /// As [`Self::post_send`], by `posts`, which posts one work request after the other.
    #[inline(always)]
    pub fn post_sends<R>(&self, posts: impl FnOnce(&mut Sends<'_>) -> R) -> Result<R, PostSendError> {
        if self.is_foreign() {
            return Err(PostSendError::State(QpState::Reset));
        }
        let Some(locked) = self.lock_to_send() else {
            return Err(PostSendError::QueueFull { max: self.caps.max_send_wr });
        };
        if locked.core.destroyed {
            return Err(PostSendError::State(QpState::Reset));
        }
        let mut sends = Sends { qp: self, locked, posted: Posted::default() };
        let result = posts(&mut sends);
        let Sends { locked, posted, .. } = sends;
        // Posts in the error state, which are flushed, would push out the events that tell why.
        let event = posted.event().filter(|_| locked.core.transport.state() != QpState::Error);
        event.inspect(|event| self.endpoint.entry.happened(*event));
        locked.finish_post(&self.endpoint);
        Ok(result)
    }

    /// A datagram leaves from the socket that its address handle opened.
    #[inline(never)]
    fn open_tx_path(&self, core: &mut Core, path: &Flow) {
        if let Attachment::Datagrams(datagrams) = &mut core.attachment {
            let lanes = self.context().engine().lanes();
            let rings = || lanes.rings().map(|(port, _)| Arc::clone(port));
            datagrams.paths.open(path, rings, || lanes.datagram_socket(path));
        }
    }

    /// Locks it for a post of send work requests. Acknowledgements that arrived before the first one of a
    /// connection are dropped.
    #[inline(always)]
    fn lock_to_send(&self) -> Option<Locked<'_>> {
        let mut locked = self.endpoint.lock_to_post()?;
        if locked.core.unused {
            locked.core.unused = false;
            drop(locked);
            locked = self.lock_for_first_send()?;
        }
        Some(locked)
    }

    #[cold]
    #[inline(never)]
    fn lock_for_first_send(&self) -> Option<Locked<'_>> {
        self.context().engine().lanes().drop_early_answers(&self.endpoint);
        self.endpoint.lock_to_post()
    }

    /// Posts receive work requests in order. At the first that is refused it stops: the ones
    /// before it are posted, the error says which one it was. Each request is copied before the
    /// next one is taken from `wrs`.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), (usize, PostRecvError)> {
        let posts = |receives: &mut Receives<'_>| {
            let each = |(index, wr)| receives.post(&wr).map_err(|error| (index, error));
            wrs.into_iter().enumerate().try_for_each(each)
        };
        self.post_receives(posts).unwrap_or_else(|error| Err((0, error)))
    }

    /// As [`Self::post_recv`], by `posts`, which posts one work request after the other.
    #[inline(always)]
    pub fn post_receives<R>(&self, posts: impl FnOnce(&mut Receives<'_>) -> R) -> Result<R, PostRecvError> {
        if self.is_foreign() {
            return Err(PostRecvError::State(QpState::Reset));
        }
        let Some(locked) = self.endpoint.lock_to_post() else {
            return Err(PostRecvError::QueueFull { max: self.caps.max_recv_wr });
        };
        if locked.core.destroyed {
            return Err(PostRecvError::State(QpState::Reset));
        }
        let mut receives = Receives(locked);
        let result = posts(&mut receives);
        // In the error state the posts flush at once; otherwise there is nothing to send.
        if receives.0.core.transport.state() == QpState::Error {
            receives.0.finish_batch(clock::now());
        }
        Ok(result)
    }

    /// Posts all of `wrs` or none.
    pub(crate) fn post_all<'a>(&self, wrs: impl Iterator<Item = SendWr<'a>>) -> Result<(), PostSendError> {
        self.post_sends(|sends| {
            let mark = sends.locked.core.transport.sq_mark();
            for wr in wrs {
                if let Err(error) = sends.post(&wr) {
                    sends.locked.core.transport.sq_rollback(mark);
                    sends.posted = Posted::default();
                    return Err(error);
                }
            }
            Ok(())
        })?
    }

    /// Copies from the program's own memory, as inline data is; [`PostSendError::Inline`] if it is not there.
    pub fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), PostSendError> {
        use ferroce_proto::Memory;
        self.endpoint.core.lock().memory.read_inline(addr, out).map_err(PostSendError::Inline)
    }

    /// Ends the queue pair, after it left every multicast group and gave up its rules; else as
    /// [`Self::try_destroy`].
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
        let Some(Target { xrcd, sharing }) = &self.resources.target else { return self.end() };
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

    /// Ends it for all its users, after the packets that have arrived: a peer's last request is acknowledged.
    fn end(&self) -> Result<(), Busy> {
        self.catch_up();
        let engine = self.context().engine();
        let hub = engine.hub();
        let keep = {
            let mut core = self.endpoint.core.lock();
            if core.destroyed {
                return Ok(());
            }
            let users = core.groups.len() + Self::flows(&core);
            if users > 0 {
                return Err(Busy { users });
            }
            core.destroyed = true;
            self.endpoint.flush_last(&mut core);
            self.follow_lanes(&mut core);
            self.endpoint.give_up_paths(&mut core);
            self.endpoint.receive_frames_on(&mut core, None).inspect(|lane| engine.lanes().close(lane));
            self.endpoint.retire(&core.transport);
            core.memory.end_windows();
            core.transport.detach_counters();
            // Gives back what it had in flight.
            let reset = QpAttr { state: QpState::Reset, ..Default::default() };
            if let Err(error) = core.transport.modify(&reset, QpAttrMask::STATE) {
                tracing::debug!(%error, "a queue pair could not be reset");
            }
            core.follow_target();
            core.keep.take()
        };
        hub.table.remove(self.qpn());
        self.purge();
        self.context().async_events().purge(self);
        self.async_acks.wait();
        hub.table.release(self.qpn());
        self.cqs().for_each(|cq| cq.remove_user());
        self.srq().inspect(|srq| srq.remove_user());
        self.pd().remove_user();
        engine.objects_changed();
        drop(keep);
        Ok(())
    }

    fn purge(&self) {
        self.cqs().for_each(|cq| cq.purge(self.qpn()));
        self.xrcd().inspect(|xrcd| xrcd.domain().purge(self.qpn()));
    }

    /// Judges a call of the program that is for this queue pair, see [`faults::verb`].
    #[inline]
    pub fn judge(&self, verb: Verb) -> Option<i32> {
        faults::verb(|| {
            let name = &self.endpoint.name;
            VerbFacts { verb, dev: Some(&name.dev), qp: Some(name.qp) }
        })
    }

    /// Acknowledges one asynchronous event of this queue pair.
    pub fn ack_async_event(&self) {
        self.async_acks.acknowledge(1);
    }

    /// Whether the queue pair belongs to the process from which this one was forked. Nothing may be sent by
    /// its descriptors, whose numbers may name other files here, and its lock may be held for ever.
    fn is_foreign(&self) -> bool {
        self.epoch != fork::epoch()
    }
}

/// The queue pair in [`Qp::post_sends`], locked.
pub struct Sends<'a> {
    qp: &'a Qp,
    locked: Locked<'a>,
    posted: Posted,
}

impl Sends<'_> {
    /// Posts a work request, which is copied. Nothing is sent before the last one is posted.
    #[inline(always)]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let core = &mut *self.locked.core;
        if let SendTo::Datagram { path, .. } = &wr.to {
            self.qp.open_tx_path(core, path);
        }
        core.transport.post_send(wr, &core.memory)?;
        self.posted.add(wr);
        Ok(())
    }
}

/// The queue pair in [`Qp::post_receives`], locked.
pub struct Receives<'a>(Locked<'a>);

impl Receives<'_> {
    /// Posts a work request, which is copied.
    #[inline(always)]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.0.core.transport.post_recv(wr)
    }
}

impl EventSource for Qp {
    fn async_acks(&self) -> &AckCount {
        &self.async_acks
    }
}
