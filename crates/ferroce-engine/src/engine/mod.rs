//! The engine: everything that a process has once, however many devices it opens.

mod attendant;
mod background;
mod follow;
mod ports;

use std::any::Any;
use std::io;
use std::net::IpAddr;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ferroce_cm::CmEvent;
use ferroce_ipc::{Listing, Origin, QpnOrder, ResourceCounts};
use ferroce_memory::publisher::{self, Publisher};
use ferroce_memory::{Limit, MemoryTable, PdId};
use ferroce_paths::clock;
use ferroce_paths::devices::{self, Devices};
use ferroce_paths::faults;
use ferroce_paths::permitted;
use ferroce_paths::pipes::{PeerPipe, Pipes};
use ferroce_paths::rings::RingPort;
use ferroce_paths::streams::MOST_PATIENCE;
use ferroce_proto::Budget;
use ferroce_wire::Gid;
use ferroce_wire::cm::CommId;
use parking_lot::Mutex;

use crate::device::{self, DeviceInfo, GidEntry, GidType};
use crate::error::{DeviceError, OpenError};
use crate::handover::NEVER;
use crate::lane::{Hub, Lane, Lanes};
use crate::mcast::Groups;
use crate::moderation::{Moderate, Moderated};
use ferroce_client::{BrokerClient, BrokerError, BrokerMode};
use ferroce_host::{fork, process};

pub(crate) use attendant::Attendant;

/// The devices that this process lists, see [`Listing`]. The default device stays in the list while the
/// process has it open.
///
/// # Errors
/// [`DeviceError::Broker`] if there is no broker and none can be started.
pub fn devices() -> Result<Vec<DeviceInfo>, DeviceError> {
    let engine = Engine::global()?;
    let devices = engine.current_devices()?;
    let listing = engine.broker.listing();
    let default = devices.iter().find(|device| device.origin == Origin::Default);
    let open =
        default.is_some_and(|device| engine.open_devices().iter().any(|open| open.device_id() == device.id));
    Ok(Listing { loopback: listing.loopback || open, ..listing }.of(&devices))
}

/// The device of that name, listed or not; `None` if no device has the name.
///
/// # Errors
/// As those of [`devices()`].
pub fn device_named(name: &str) -> Result<Option<DeviceInfo>, DeviceError> {
    let devices = Engine::global()?.current_devices()?;
    Ok(devices.iter().find(|device| device.name == name).cloned())
}

/// The counters of a device, summed over all programs, by name.
pub fn device_statistics(name: &str) -> Result<Vec<(String, u64)>, DeviceError> {
    Engine::global()?.broker.statistics(name).map_err(|error| DeviceError::Broker(error.into()))
}

/// Waits for the removal of a device that the program has not opened.
pub struct RemovalWatch {
    device: u32,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl RemovalWatch {
    /// Calls `tell`, on any thread, when the device with this id is gone, unless the watch is dropped before.
    /// The call starts the thread that follows the broker.
    ///
    /// # Errors
    ///
    /// As those of [`Context::open`](crate::Context::open).
    pub fn start(device: u32, tell: impl Fn() + Send + Sync + 'static) -> Result<Arc<Self>, OpenError> {
        let engine = Engine::global()?;
        let watch = Arc::new(Self { device, tell: Box::new(tell) });
        engine.add_device(Arc::downgrade(&watch) as Weak<_>);
        engine.start()?;
        // The device may have gone before the watch was in the list.
        engine.refresh_devices()?;
        if engine.device_by_id(device).is_none() {
            (watch.tell)();
        }
        Ok(watch)
    }
}

impl OpenDevice for RemovalWatch {
    fn device_id(&self) -> u32 {
        self.device
    }

    fn changed(&self, change: DeviceChange) {
        if change == DeviceChange::Dead {
            (self.tell)();
        }
    }
}

/// State of a process: its connection to the broker, and from the first opened device on its slot,
/// lanes and background thread. It lives until the process ends.
pub(crate) struct Engine {
    epoch: u64,
    broker: Arc<BrokerClient>,
    devices: Arc<Devices>,
    running: OnceLock<Running>,
    /// Held while `running` is made.
    starting: Mutex<()>,
    open: Mutex<Vec<Weak<dyn OpenDevice>>>,
    pub(crate) memory: MemoryTable,
    shared: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    /// Time at which to tell the broker of changes; [`NEVER`] without changes.
    report_at: AtomicU64,
    moderated: Moderated,
    pub(crate) groups: Groups,
    connection_events: OnceLock<ConnectionEvents>,
    attendant: OnceLock<Arc<dyn Attendant>>,
    pub(crate) pds: Limit,
    /// Octets of device memory.
    pub(crate) device_memory: Limit,
    pub(crate) cqs: Limit,
    pub(crate) ahs: Limit,
    next_pd: AtomicU32,
    vectors: u32,
    random: AtomicU64,
}

/// The parts of the engine that exist once a slot is leased.
struct Running {
    lanes: Lanes,
    budget: Arc<Budget>,
}

static GLOBAL: ArcSwapOption<Engine> = ArcSwapOption::const_empty();
/// Epoch + 1 of the thread that is making the engine, 0 if none is. No mutex: a forked child would
/// inherit it locked by a thread that it does not have.
static MAKING: AtomicU64 = AtomicU64::new(0);

impl Engine {
    /// The engine of this process, made at the first call, and anew in a forked child.
    pub(crate) fn global() -> Result<Arc<Self>, DeviceError> {
        fork::install();
        let epoch = fork::epoch();
        loop {
            if let Some(engine) = GLOBAL.load_full() {
                if engine.epoch == epoch {
                    return Ok(engine);
                }
                // The parent's: its threads are not here and its locks may be held for ever.
                std::mem::forget(engine);
            }
            let making = MAKING.load(Ordering::Acquire);
            let mine = epoch + 1;
            if making == mine
                || MAKING.compare_exchange(making, mine, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
            let made = match GLOBAL.load_full() {
                Some(engine) if engine.epoch == epoch => Ok(engine),
                _ => Self::new(BrokerMode::from_env()),
            };
            if let Ok(engine) = &made {
                std::mem::forget(GLOBAL.swap(Some(Arc::clone(engine))).filter(|old| old.epoch != epoch));
            }
            MAKING.store(0, Ordering::Release);
            return made;
        }
    }

    /// An engine of its own, for tests.
    pub(crate) fn new(mode: BrokerMode) -> Result<Arc<Self>, DeviceError> {
        let broker = BrokerClient::connect(mode).map_err(|error| DeviceError::Broker(error.into()))?;
        let engine = Arc::new(Self {
            epoch: fork::epoch(),
            broker: Arc::new(broker),
            devices: Arc::default(),
            running: OnceLock::new(),
            starting: Mutex::new(()),
            open: Mutex::default(),
            shared: Mutex::default(),
            memory: MemoryTable::new().map_err(DeviceError::Broker)?,
            report_at: AtomicU64::new(NEVER),
            moderated: Moderated::default(),
            groups: Groups::default(),
            connection_events: OnceLock::new(),
            attendant: OnceLock::new(),
            pds: Limit::new(device::MAX_PD),
            device_memory: Limit::new(device::MAX_DM_SIZE as u32),
            cqs: Limit::new(device::MAX_CQ),
            ahs: Limit::new(device::MAX_AH),
            next_pd: AtomicU32::new(1),
            vectors: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
            random: AtomicU64::new(random_u64().map_err(DeviceError::Broker)?),
        });
        engine.refresh_devices()?;
        Ok(engine)
    }

    /// The devices as they are now.
    pub(crate) fn current_devices(&self) -> Result<Arc<Vec<DeviceInfo>>, DeviceError> {
        self.refresh_devices()?;
        Ok(self.devices.all())
    }

    pub(crate) fn broker(&self) -> &BrokerClient {
        &self.broker
    }

    /// Whether this process made it: in a forked child its descriptors are closed.
    pub(crate) fn is_ours(&self) -> bool {
        self.epoch == fork::epoch()
    }

    /// Asks the broker for the devices as they are now.
    pub(crate) fn refresh_devices(&self) -> Result<(), DeviceError> {
        let devices = self.broker.devices().map_err(|error| DeviceError::Broker(error.into()))?;
        self.devices.set(devices);
        Ok(())
    }

    /// The devices, as last told: at once if [`Self::is_running`], otherwise when they were last asked for.
    pub(crate) fn devices(&self) -> Arc<Vec<DeviceInfo>> {
        self.devices.all()
    }

    /// Whether a device was opened, and with it the thread started that follows the broker.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get().is_some()
    }

    pub(crate) fn device(&self, name: &str) -> Option<DeviceInfo> {
        self.devices.all().iter().find(|info| info.name == name).cloned()
    }

    pub(crate) fn device_by_id(&self, id: u32) -> Option<DeviceInfo> {
        self.devices.with(id, |info| Some(info.clone()))
    }

    /// Looks at a device without copying it; `None` if it is gone.
    pub(crate) fn with_device<R>(&self, id: u32, look: impl FnOnce(&DeviceInfo) -> Option<R>) -> Option<R> {
        self.devices.with(id, look)
    }

    /// Leases a slot and starts the background thread, once.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), OpenError> {
        let _starting = self.starting.lock();
        if self.running.get().is_some() {
            return Ok(());
        }
        faults::start().map_err(OpenError::Resources)?;
        let lease = self.broker.lease(1).map_err(|error| OpenError::Broker(error.into()))?;
        let secret = u128::from(random_u64().map_err(OpenError::Resources)?) << 64
            | u128::from(random_u64().map_err(OpenError::Resources)?);
        if lease.slots.is_empty() {
            return Err(OpenError::Broker(io::Error::other("the broker leased no slot")));
        }
        let devices = Arc::clone(&self.devices);
        let [key, start] = [self.random(), self.random()];
        let order = lease.order.unwrap_or(QpnOrder { key, start: start as u16 });
        let (hub, ledger) =
            Hub::new(&lease.slots, lease.by_rings, secret, order, devices).map_err(OpenError::Resources)?;
        match ledger {
            Some(ledger) => self.broker.keep_ledger(ledger),
            None => tracing::warn!("no shared memory: nobody else will see what this program counts"),
        }
        let lanes = Lanes::new(Arc::new(hub));
        let mut granted = None;
        for address in lease.addresses {
            let more = lanes.add(address).map_err(OpenError::Resources)?;
            granted = Some(granted.unwrap_or(more).min(more));
        }
        let budget = Arc::new(Budget::with_turns(granted.unwrap_or(DEFAULT_RECEIVE_BUFFER)));
        let publisher = if permitted::pipes_wanted() { self.publish() } else { None };
        let offered = permitted::pipes_wanted().then(|| {
            let pipes = Pipes::new(publisher.clone())?;
            let bell = pipes.bell()?;
            lanes.open_pipes(Arc::new(pipes));
            let published =
                publisher.as_ref().and_then(|publisher| publisher.file().try_clone_to_owned().ok());
            io::Result::Ok((bell, published))
        });
        let running = Running { lanes, budget };
        if self.running.set(running).is_err() {
            unreachable!("only one thread starts");
        }
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| process::at_exit(flush_all_at_exit));
        if !lease.notice.is_empty() {
            tracing::warn!("{}", lease.notice);
        }
        background::spawn(Arc::clone(self), publisher).map_err(OpenError::Resources)?;
        faults::serve(&self.broker);
        match offered {
            Some(Ok((bell, published))) => {
                if let Err(error) = self.broker.offer_pipes(bell, published) {
                    tracing::warn!(%error, "programs of this host send UDP to this one");
                }
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "no shared memory: programs of this host are sent UDP");
            }
            None => {}
        }
        Ok(())
    }

    /// Begins to publish what peers on this host need for direct copies, if it can be and is permitted.
    fn publish(&self) -> Option<Arc<Publisher>> {
        if !publisher::is_permitted() {
            return None;
        }
        let made = Publisher::create(self.memory.secret());
        let made = made.inspect_err(|error| tracing::debug!(%error, "no direct copies to this process"));
        let publisher = Arc::new(made.ok()?);
        self.memory.set_publisher(Arc::clone(&publisher));
        Some(publisher)
    }

    /// As [`flush_all`].
    pub(crate) fn flush_all(&self) {
        if let Some(Running { lanes, .. }) = self.running.get() {
            lanes.each(Lane::flush_all);
        }
    }

    /// The lanes of the addresses of device `id`.
    pub(crate) fn lanes_of(&self, id: u32) -> Vec<Arc<Lane>> {
        let known =
            self.devices.with(id, |info| Some((info.gids.clone(), devices::is_polled(info, info.ifindex))));
        let (gids, polled) = known.unwrap_or_default();
        let is_ours = |lane: &&Arc<Lane>| {
            let is = |entry: &GidEntry| {
                entry.gid.to_ip() == lane.local()
                    && devices::scope_of(entry.gid, entry.ifindex) == lane.scope_id()
            };
            gids.iter().any(is)
        };
        // RoCE v1 has datagrams as soon as the device has addresses, and the rings tell of them.
        let by_rings = |entry: &GidEntry| entry.gid_type == GidType::RoceV1 || polled || self.v2_by_rings();
        let rings = if gids.iter().any(by_rings) { self.open_rings().ok() } else { None };
        let rings = rings.map(|(_, lane)| lane);
        // The first lane runs the timers. A thread that polls looks at that of a port each time.
        let port = self.port_of(id).map(|(_, lane)| lane);
        let all = self.lanes().all();
        port.iter().chain(all.iter().filter(is_ours)).chain(rings).cloned().collect()
    }

    /// The way of a connection by shared memory, with its lane, if `destination` is an address of this host
    /// and the holder of `slot` there takes pipes.
    pub(crate) fn pipe_to(&self, destination: IpAddr, slot: u16) -> Option<(Arc<PeerPipe>, Arc<Lane>)> {
        let (pipes, lane) = self.lanes().pipes()?;
        let gid = Gid::from_ip(destination);
        let devices = self.devices.all();
        if !devices.iter().flat_map(|device| &device.gids).any(|entry| entry.gid == gid) {
            return None;
        }
        let pipe = pipes.to(slot, &self.hub().table.slots().all(), &self.broker)?;
        Some((pipe, Arc::clone(lane)))
    }

    /// Whether packets of RoCE v2 travel by the rings: because the environment says so, or the broker gave no
    /// sockets.
    pub(crate) fn v2_by_rings(&self) -> bool {
        permitted::v2_by_broker() || self.hub().by_rings
    }

    /// Leases a further slot for a process without sockets whose numbers are all in use. Returns whether
    /// there are more now.
    pub(crate) fn lease_further_slot(&self) -> bool {
        let hub = self.hub();
        let _starting = self.starting.lock();
        if !hub.by_rings || !hub.table.wants_slot() {
            return false;
        }
        match self.broker.lease(1) {
            Ok(lease) => {
                hub.table.slots().add(&lease.slots);
                if let Err(error) = self.broker.repeat_mad_rules() {
                    tracing::warn!(%error, "rules for management datagrams are not for the new slot");
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no further queue pair numbers");
                false
            }
        }
    }

    /// Opens the rings to the broker, once.
    pub(crate) fn open_rings(&self) -> Result<&(Arc<RingPort>, Arc<Lane>), BrokerError> {
        self.lanes().open_rings(&self.broker)
    }

    fn running(&self) -> &Running {
        self.running.get().expect("every context starts the engine before it exists")
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        self.lanes().hub()
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.running().budget
    }

    /// The program made or ended something: `ferroce status` shall know, but not each time.
    pub(crate) fn objects_changed(&self) {
        if self.report_at.load(Ordering::Relaxed) == NEVER
            && let Some(running) = self.running.get()
        {
            let at = clock::now().as_nanos() + REPORT_AFTER;
            if self.report_at.compare_exchange(NEVER, at, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                running.lanes.hub().request_look(at);
            }
        }
    }

    /// Tells the broker, on the background thread, how many objects there are if that is due.
    /// Returns when it will be.
    pub(crate) fn report_objects(&self, now: u64) -> u64 {
        let at = self.report_at.load(Ordering::SeqCst);
        if at > now {
            return at;
        }
        self.report_at.store(NEVER, Ordering::SeqCst);
        self.broker.report(ResourceCounts {
            pds: self.pds.count(),
            cqs: self.cqs.count(),
            qps: self.hub().table.live(),
            mrs: self.memory.len() as u32,
        });
        NEVER
    }

    /// The event of a completion queue waits for more completions, until `due` at the latest.
    pub(crate) fn moderate(&self, cq: Weak<dyn Moderate>, due: u64) {
        self.moderated.add(cq, due);
        self.hub().request_look(due);
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.running().lanes
    }

    pub(crate) fn next_pd(&self) -> PdId {
        PdId::new(self.next_pd.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn num_comp_vectors(&self) -> u32 {
        self.vectors
    }

    /// The next number of a sequence that starts at random: SplitMix64.
    pub(crate) fn random(&self) -> u64 {
        ferroce_wire::mix(self.random.fetch_add(ferroce_wire::MIX_STEP, Ordering::Relaxed))
    }

    /// Not to be guessed by anybody.
    pub(crate) fn secret_random(&self) -> u32 {
        // Without the kernel's generator, with which this engine was made, the sequence has to do.
        random_u64().unwrap_or_else(|_| self.random()) as u32
    }

    /// The state that all objects of one kind in this process share. The first of them makes it; the engine
    /// does not look into it.
    pub(crate) fn shared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = self.shared.lock();
        let known = shared.iter().find_map(|known| Arc::clone(known).downcast().ok());
        known.unwrap_or_else(|| {
            let made = Arc::new(make());
            shared.push(Arc::clone(&made) as Arc<_>);
            made
        })
    }

    /// Has `follow` called, on the background thread, for each event of a connection that the broker tells,
    /// unless another call did so before.
    pub(crate) fn follow_connections(
        &self,
        follow: impl Fn(&Arc<Self>, ConnectionEvent) + Send + Sync + 'static,
    ) {
        self.connection_events.get_or_init(|| Box::new(follow));
    }

    /// From now on `device` is told of changes.
    pub(crate) fn add_device(&self, device: Weak<dyn OpenDevice>) {
        let mut open = self.open.lock();
        open.retain(|known| known.strong_count() > 0);
        open.push(device);
    }

    /// Takes back [`Self::add_device`].
    pub(crate) fn remove_device(&self, device: &dyn OpenDevice) {
        self.open.lock().retain(|known| !ptr::addr_eq(known.as_ptr(), device));
    }

    fn open_devices(&self) -> Vec<Arc<dyn OpenDevice>> {
        self.open.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The engine cannot go on: every open device learns it.
    pub(crate) fn fatal(&self) {
        for device in self.open_devices() {
            device.changed(DeviceChange::Dead);
        }
    }
}

/// A device that the program opened.
pub(crate) trait OpenDevice: Send + Sync {
    /// The number that the broker gave it.
    fn device_id(&self) -> u32;
    /// Something happened to it.
    fn changed(&self, change: DeviceChange);
}

/// A change of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceChange {
    /// The GID table changed.
    Gids,
    /// The interface of this index has another hardware address.
    Mac(u32),
    /// The netdev came up.
    PortActive,
    /// The netdev went down.
    PortDown,
    /// The device is gone.
    Dead,
}

/// An event from the broker for connection management.
pub(crate) enum ConnectionEvent {
    /// Something happened to a connection.
    Cm(CmEvent),
    /// A new broker did not take the connection over.
    Lost(CommId),
    /// These slots are another process's, and with them all connections.
    SlotsLost(Vec<u16>),
}

type ConnectionEvents = Box<dyn Fn(&Arc<Engine>, ConnectionEvent) + Send + Sync>;

/// Sends delayed acknowledgements and messages that wait to fill a batch: the calling thread turns to
/// something else than answering its peer.
pub(crate) fn flush_all() {
    with_ours(Engine::flush_all);
}

/// Acts on the engine of this process, if there is one.
fn with_ours(act: impl FnOnce(&Engine)) {
    if let Some(engine) = GLOBAL.load_full() {
        if engine.is_ours() {
            act(&engine);
        } else {
            std::mem::forget(engine);
        }
    }
}

/// A peer must not wait for a delayed acknowledgement. Programs call `exit` in signal handlers too, so this
/// waits for no lock, which the interrupted thread may hold: such an acknowledgement is lost, and the peer
/// asks again.
extern "C" fn flush_all_at_exit() {
    let _uncancellable = ferroce_host::thread::Uncancellable::new();
    // A network that delays packets would deliver them after the end of their sender.
    faults::release_all();
    let flush = |engine: &Engine| {
        if let Some(Running { lanes, .. }) = engine.running.get() {
            let end_at = AtomicU64::new(0);
            lanes.each(|lane| {
                end_at.fetch_max(lane.flush_all_at_exit().as_nanos(), Ordering::Relaxed);
            });
            // The peer of an iWARP connection that this process leaves open: see `streams::patience`.
            let left = end_at.load(Ordering::Relaxed).saturating_sub(clock::now().as_nanos());
            thread::sleep(Duration::from_nanos(left).min(MOST_PATIENCE));
        }
        engine.broker.take_leave();
        if let Some(attendant) = engine.attendant.get() {
            attendant.at_exit();
        }
    };
    drop(catch_unwind(|| with_ours(flush))); // a bug of ours, reported by the panic itself, is no reason to abort an exit
}

/// Changes within this time are told to the broker at once: 200 ms.
const REPORT_AFTER: u64 = 200_000_000;

/// Taken when no address could be leased: what Linux grants unprivileged programs.
const DEFAULT_RECEIVE_BUFFER: usize = 212_992;

/// From the kernel's generator.
fn random_u64() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(u64::from_ne_bytes(bytes))
}
