//! An open device.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ferroce_ipc::ledger::records::{Block, ContextRecord};
use ferroce_ipc::ledger::{Entry, Table};
use ferroce_memory::guard;
use ferroce_paths::clock;
use ferroce_paths::faults::{self, Verb, VerbFacts};
use ferroce_proto::AsyncEventKind;
use ferroce_wire::{Instant, Pkey};
use parking_lot::Mutex;

use crate::async_queue::AsyncQueue;
use crate::device::{self, DeviceAttr, DeviceInfo, GidEntry, KnownSpeed, LinkKind, LinkSettings, PortAttr};
use crate::engine::{DeviceChange, Engine, OpenDevice};
use crate::error::{OpenError, QueryError};
use crate::lane::Hub;
use ferroce_host::fork;
use ferroce_ipc::ledger::DeviceCounters;

/// Ends a completion channel, if it is still there.
type EndsChannel = Arc<dyn Fn() + Send + Sync>;

/// An open device (`ibv_context`). Contexts are independent: each has its own objects and
/// asynchronous events.
#[doc(alias = "ibv_context")]
pub struct Context {
    engine: Arc<Engine>,
    name: Arc<str>,
    /// The device's attributes at the time of the open; reported if the device is gone.
    opened: DeviceInfo,
    speed: KnownSpeed,
    events: AsyncQueue,
    /// Ends the completion channels of the context, by the channel's address, so that each can take itself
    /// out.
    channels: Mutex<BTreeMap<usize, EndsChannel>>,
    closed: AtomicBool,
    dead: AtomicBool,
    on_fatal: OnceLock<Box<dyn Fn() + Send + Sync>>,
    on_mac_change: OnceLock<Box<dyn Fn(u32) + Send + Sync>>,
    hub: Arc<Hub>,
    /// Index of the device's block of the ledger.
    block: usize,
    entry: Entry,
    epoch: u64,
}

impl Context {
    /// Opens the device named `name`, and starts the engine if this is the first.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Arc<Self>, OpenError> {
        let engine = Engine::global().map_err(OpenError::from)?;
        Self::open_on(&engine, name)
    }

    pub(crate) fn open_on(engine: &Arc<Engine>, name: &str) -> Result<Arc<Self>, OpenError> {
        let opened = engine.device(name).ok_or_else(|| OpenError::NoSuchDevice { name: name.to_owned() })?;
        // Programs install handlers of their own at any time; each open sees to it that ours is in front.
        guard::install().map_err(OpenError::Resources)?;
        engine.start()?;
        engine.use_port(&opened);
        let hub = Arc::clone(engine.hub());
        let block = hub.ledger.block_of(opened.id, &opened.name);
        let entry = hub.ledger.record(Table::Context);
        entry.put(&ContextRecord { block: Block::new(block) });
        let context = Arc::new(Self {
            engine: Arc::clone(engine),
            name: name.into(),
            speed: KnownSpeed::new(&opened),
            opened,
            events: AsyncQueue::new().map_err(OpenError::Resources)?,
            channels: Mutex::default(),
            closed: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            on_fatal: OnceLock::new(),
            on_mac_change: OnceLock::new(),
            hub,
            block,
            entry,
            epoch: fork::epoch(),
        });
        engine.add_device(Arc::downgrade(&context) as Weak<_>);
        Ok(context)
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// Judges a call of the program that is for this device, see [`faults::verb`].
    #[inline]
    pub fn judge(&self, verb: Verb) -> Option<i32> {
        faults::verb(|| VerbFacts { verb, dev: Some(&self.name), qp: None })
    }

    pub(crate) fn id(&self) -> u32 {
        self.opened.id
    }

    /// The device as it is now.
    pub fn info(&self) -> DeviceInfo {
        self.engine.device_by_id(self.opened.id).unwrap_or_else(|| DeviceInfo {
            port_active: false,
            gids: Vec::new(),
            ..self.opened.clone()
        })
    }

    /// The administrator's settings for the device.
    pub(crate) fn settings(&self) -> LinkSettings {
        self.engine.with_device(self.opened.id, |info| Some(info.settings.clone())).unwrap_or_default()
    }

    /// Limits and identity.
    #[doc(alias = "ibv_query_device")]
    pub fn attr(&self) -> DeviceAttr {
        let roce = DeviceAttr {
            kind: LinkKind::Rxe,
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            node_guid: self.opened.node_guid,
            sys_image_guid: self.opened.node_guid,
            max_mr_size: u64::MAX,
            max_qp: device::MAX_QP,
            max_qp_wr: device::MAX_QP_WR,
            max_sge: device::MAX_SGE,
            max_sge_rd: device::MAX_SGE,
            max_inline: device::MAX_INLINE,
            max_cq: device::MAX_CQ,
            max_cqe: device::MAX_CQE,
            max_mr: device::MAX_MR,
            max_mw: device::MAX_MW,
            max_dm_size: device::MAX_DM_SIZE,
            max_pd: device::MAX_PD,
            max_ah: device::MAX_AH,
            max_srq: device::MAX_SRQ,
            max_srq_wr: device::MAX_SRQ_WR,
            max_srq_sge: device::MAX_SRQ_SGE,
            max_qp_rd_atom: device::MAX_RD_ATOM,
            max_qp_init_rd_atom: device::MAX_RD_ATOM,
            max_res_rd_atom: device::MAX_QP * device::MAX_RD_ATOM,
            max_mcast_grp: device::MAX_MCAST_GRP,
            max_mcast_qp_attach: device::MAX_MCAST_QP_ATTACH,
            max_total_mcast_qp_attach: device::MAX_TOTAL_MCAST_QP_ATTACH,
            phys_port_cnt: 1,
            num_comp_vectors: self.num_comp_vectors(),
            local_ca_ack_delay: 15,
        };
        if self.is_iwarp() { roce.of_iwarp() } else { roce }
    }

    /// Whether the device speaks iWARP, and not RoCE.
    pub fn is_iwarp(&self) -> bool {
        self.opened.is_iwarp()
    }

    /// See [`ferroce_paths::devices::is_polled`].
    pub(crate) fn is_polled(&self, ifindex: u32) -> bool {
        let polled = |info: &DeviceInfo| Some(ferroce_paths::devices::is_polled(info, ifindex));
        self.engine.with_device(self.opened.id, polled).unwrap_or(false)
    }

    /// Whether there is such a port: 1 only.
    pub fn check_port(&self, port: u8) -> Result<(), QueryError> {
        if port == 1 { Ok(()) } else { Err(QueryError::Port { port }) }
    }

    /// State of a port; there is port 1 only.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, port: u8) -> Result<PortAttr, QueryError> {
        self.check_port(port)?;
        let counters = self.counters();
        Ok(PortAttr {
            bad_pkeys: counters.rx_wrong_pkey.load(Ordering::Relaxed),
            bad_qkeys: counters.rx_wrong_qkey.load(Ordering::Relaxed),
            ..self.speed.port(&self.info())
        })
    }

    /// An entry of the GID table; `None` if it is empty.
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self, index: u32) -> Result<Option<GidEntry>, QueryError> {
        let len = u32::from(self.opened.gid_table_len());
        if index >= len {
            return Err(QueryError::Index { index, len });
        }
        Ok(self.engine.with_device(self.opened.id, |info| {
            info.gid_table().iter().find(|entry| u32::from(entry.index) == index).copied()
        }))
    }

    /// The entries of the GID table that are in use, by index.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Vec<GidEntry> {
        self.info().gid_table().into_owned()
    }

    /// An entry of the P_Key table; there is index 0 only, and none on iWARP.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, index: u32) -> Result<Pkey, QueryError> {
        let len = u32::from(!self.is_iwarp());
        if index < len { Ok(Pkey::DEFAULT) } else { Err(QueryError::Index { index, len }) }
    }

    /// Completion vectors: as many as CPUs. They mean nothing here, but programs spread over them.
    pub fn num_comp_vectors(&self) -> u32 {
        self.engine.num_comp_vectors()
    }

    /// Events of this context.
    pub fn async_events(&self) -> &AsyncQueue {
        &self.events
    }

    /// The device is dead for this program: it is gone, or a bug of ours stopped one of its calls. Its queue
    /// pairs enter the error state and stay there, so that nothing is sent or received by them any more. Each
    /// thread that waits for an event of the device wakes, and waits fail with EIO from now on. A second call
    /// does nothing.
    pub fn report_fatal(&self) {
        if self.closed.load(Ordering::Acquire) || self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(tell) = self.on_fatal.get() {
            tell();
        }
        // After a bug the state of a queue pair may be such that it cannot be ended either.
        if catch_unwind(AssertUnwindSafe(|| self.stop_queue_pairs())).is_err() {
            tracing::error!("the queue pairs of a dead device cannot be stopped");
        }
        self.events.push_device(AsyncEventKind::DeviceFatal);
        self.events.end();
        // Without the lock, which the last owner of a channel takes.
        let channels: Vec<EndsChannel> = self.channels.lock().values().cloned().collect();
        channels.iter().for_each(|end| end());
    }

    /// Has `end` called, which ends the completion channel at `address`, if the device dies or died already.
    pub(crate) fn add_channel(&self, address: usize, end: EndsChannel) {
        self.channels.lock().insert(address, Arc::clone(&end));
        if self.is_dead() {
            end();
        }
    }

    /// Takes back [`Self::add_channel`].
    pub(crate) fn remove_channel(&self, address: usize) {
        self.channels.lock().remove(&address);
    }

    /// Whether the device is dead for this program, see [`Self::report_fatal`].
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Has `tell` called, on any thread, when the device is dead, before the event of it can be read. Once a
    /// context.
    pub fn on_fatal(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_fatal.set(Box::new(tell));
    }

    /// Has `tell` called, on the engine's background thread, with the index of an interface that holds GIDs
    /// of the device and has another hardware address now. It must not wait. Once a context.
    pub fn on_mac_change(&self, tell: impl Fn(u32) + Send + Sync + 'static) {
        let _ = self.on_mac_change.set(Box::new(tell));
    }

    /// The engine's counters of this device in this process.
    pub fn counters(&self) -> &DeviceCounters {
        self.hub.ledger.device(self.block)
    }

    /// Index of the device's block of the ledger.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    /// Number of the context in the ledger.
    pub(crate) fn number(&self) -> u32 {
        self.entry.number()
    }

    /// A record for an object of it.
    pub(crate) fn record(&self, table: Table) -> Entry {
        self.hub.ledger.record(table)
    }

    /// The clock of completions: `CLOCK_MONOTONIC`.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn raw_clock(&self) -> Instant {
        clock::now()
    }

    /// Nothing is told of it any more; `false` if that was so before. In a forked child nothing happens.
    pub(crate) fn end(&self) -> bool {
        let ends = self.epoch == fork::epoch() && !self.closed.swap(true, Ordering::AcqRel);
        if ends {
            self.engine.remove_device(self);
        }
        ends
    }

    /// Record of the context in the ledger.
    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl OpenDevice for Context {
    fn device_id(&self) -> u32 {
        self.opened.id
    }

    fn changed(&self, change: DeviceChange) {
        match change {
            DeviceChange::Gids => self.events.push_port(AsyncEventKind::GidChange, 1),
            DeviceChange::PortActive => self.events.push_port(AsyncEventKind::PortActive, 1),
            DeviceChange::PortDown => self.events.push_port(AsyncEventKind::PortErr, 1),
            DeviceChange::Mac(ifindex) => {
                self.on_mac_change.get().inspect(|tell| tell(ifindex));
            }
            DeviceChange::Dead => self.report_fatal(),
        }
    }
}
