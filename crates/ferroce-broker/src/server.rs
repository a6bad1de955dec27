//! The broker's loop over real sockets: one thread, in `ferroced` or in a program.

mod clients;
mod pipes;
mod queue;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_cm::Route;
use ferroce_ipc::{BROKER_NAME, Closer, Connection, Listener, Message, Peer, Refusal, RefusalCode, Strange};
use ferroce_wire::RoceVersion;
use ferroce_wire::mad::MAD_LEN;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::{debug, error, info, warn};

use super::access::Access;
use super::gsi::{self, Gsi};
use super::keep_alive::KeepAlive;
use super::logic::{Broker, Output};
use super::switch::{Switch, ToGsi};
use super::system::{Kernel, secret};
use super::{ClientId, ProcessId, holder, namespace, refusal, sys};
use clients::Link;
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::{Address, Netdev};
use ferroce_host::rtnetlink::{self, Monitor};
use ferroce_host::runtime_dir::{RuntimeDir, random_guid};
use queue::UserLoad;

/// Turns that clients may have before what peers said is looked at.
const ROUNDS: usize = 8;
/// Connections whose memory is worth the time to give it back: some megabytes.
const MANY_CONNECTIONS: usize = 4096;
/// MADs that the broker sends to a socket of its own before it reads that socket. The receive buffer of an
/// unprivileged socket has room for about 300.
const OWN_MADS_PER_READ: usize = 64;
/// Interval between two looks at links whose messages wait.
const HELD: Duration = Duration::from_millis(100);
/// Longest time that a leaving broker waits for its remaining connections to close.
const LEAVE_GRACE: Duration = Duration::from_millis(500);

/// Open files that a broker must be allowed: a socket for each slot on each local address, and connections.
pub const FEWEST_DESCRIPTORS: u64 = 256;

/// How a broker runs.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The abstract name.
    pub name: String,
    /// Ends when nobody has needed it for so long; `None`: never.
    pub idle: Option<Duration>,
    /// Serves programs of all users that may connect; `None`: of its own user.
    pub access: Option<Access>,
    /// The broker is a thread of a program.
    pub embedded: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            name: BROKER_NAME.to_owned(),
            idle: Some(Duration::from_secs(60)),
            access: None,
            embedded: false,
        }
    }
}

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The name is held by a process of our user or of root: the broker is there already.
    #[error("ferroced runs already, as process {}", .0.pid)]
    Running(Peer),
    /// The name is held by somebody else.
    #[error(
        "@{name} is held by {holder}: stop it, or run in a network namespace of your own: \
         ferroce run --private-net -- CMD"
    )]
    Taken {
        /// The abstract name.
        name: String,
        /// A process, for people.
        holder: String,
    },
    /// The hard limit of open files is too low.
    #[error(
        "ferroced needs {FEWEST_DESCRIPTORS} open files, and this process may have {0}: raise the hard limit \
         (ulimit -Hn), or start ferroced from elsewhere"
    )]
    Limit(u64),
    /// The system failed.
    #[error("cannot {action}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// A broker that holds its name.
#[derive(Debug)]
pub struct Server {
    listener: Guarded<Listener>,
    monitor: Option<Guarded<Monitor>>,
    broker: Broker<Kernel>,
    access: Option<Access>,
    gsi: Gsi,
    switch: Switch,
    /// The count of changes that the switch has received.
    switch_changes: u64,
    /// The count of changes that the sockets of `gsi` reflect.
    gsi_changes: u64,
    links: BTreeMap<ClientId, Link>,
    /// For each other user: what closes that user's descriptors, and what waits for that user's programs.
    strangers: BTreeMap<u32, (Closer, Arc<UserLoad>)>,
    processes: BTreeMap<ProcessId, Guarded<OwnedFd>>,
    next_client: u64,
    /// The last client of each user whose turn ended before all of its clients were served.
    last_served: BTreeMap<u32, ClientId>,
    /// Only of a service with a watchdog.
    keep_alive: Option<KeepAlive>,
    idle: Option<Duration>,
    idle_since: Option<Instant>,
    /// Since when it makes way for another user's program.
    leaving_since: Option<Instant>,
    /// While nobody uses it: when to look next whether its network namespace is deserted, and whether it was
    /// so last.
    unused: Option<(Instant, bool)>,
    /// The most connections that there were since memory was last given back; `None` in a program, whose
    /// memory is its own.
    most_connections: Option<usize>,
    stop: Arc<Guarded<OwnedFd>>,
    buffer: Vec<u8>,
    /// Taken from `gsi` and not yet looked at.
    mads: VecDeque<(Route, [u8; MAD_LEN])>,
    /// MADs that were sent to addresses of our own since one of them was last read.
    to_ourselves: usize,
}

/// Ends a running [`Server`] from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Guarded<OwnedFd>>);

impl Stopper {
    /// Makes [`Server::run`] return soon.
    pub fn stop(&self) {
        // An event counter that is full is an event all the same.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Server {
    /// Takes the name and looks at the host. From now on clients may connect; they are served by
    /// [`Server::run`].
    ///
    /// # Errors
    /// [`ServerError::Running`] is no failure for who only wants that there is a broker.
    pub fn bind(options: &ServerOptions) -> Result<Self, ServerError> {
        let failed = |action| move |source| ServerError::Io { action, source };
        let mut tries = 0;
        let listener = loop {
            match Listener::bind(&options.name) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => match taken(&options.name) {
                    // Somebody who does not listen, or who dies at this moment.
                    ServerError::Taken { .. } if tries < 10 => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    taken => return Err(taken),
                },
                other => break other.map_err(failed("take the broker's name"))?,
            }
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = stop.map_err(|e| failed("make an event counter")(e.into()))?;
        let monitor =
            Monitor::open().inspect_err(|e| warn!("changes of interfaces will not be seen: {e}")).ok();
        let netdevs = look();
        raise_loopback(&netdevs);
        let guid = RuntimeDir::open().and_then(|dir| dir.node_guid()).unwrap_or_else(|e| {
            warn!("the node GUID is not kept: {e}");
            random_guid()
        });
        let uid = nix::unistd::geteuid().as_raw();
        let kernel = Kernel::new(options.embedded);
        let switch = Switch::new(kernel.ports()).map_err(failed("make an event counter"))?;
        let mut broker = Broker::new(kernel, uid, guid, look());
        if options.access.is_some() {
            broker.serve_all_users();
        }
        // The holder of this name is the only broker of the network namespace.
        if options.name == BROKER_NAME {
            broker.remove_left_pairs();
        }
        Ok(Self {
            listener: Guarded::new(listener),
            monitor: monitor.map(Guarded::new),
            broker,
            access: options.access.clone(),
            gsi: Gsi::new(secret()),
            switch,
            // No view has been shown to the switch yet, and configured links may have ports.
            switch_changes: u64::MAX,
            gsi_changes: 0,
            links: BTreeMap::new(),
            strangers: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_client: 1,
            last_served: BTreeMap::new(),
            keep_alive: None,
            idle: options.idle,
            idle_since: Some(Instant::now()),
            leaving_since: None,
            unused: None,
            most_connections: (!options.embedded).then_some(0),
            stop: Arc::new(Guarded::new(stop)),
            buffer: Vec::new(),
            mads: VecDeque::new(),
            to_ourselves: 0,
        })
    }

    /// Raises this process's soft limit of open files to the hard one: slots times addresses are more than
    /// the usual 1,024. For `ferroced`; a program's limit is its own.
    ///
    /// # Errors
    /// [`ServerError::Limit`] if the hard limit, which a broker inherits from the program that starts it, is
    /// below [`FEWEST_DESCRIPTORS`]: such a broker would fail all programs after the first few.
    pub fn raise_descriptor_limit() -> Result<(), ServerError> {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let limits = getrlimit(Resource::RLIMIT_NOFILE);
        if let Ok((_, hard)) = limits
            && hard < FEWEST_DESCRIPTORS
        {
            return Err(ServerError::Limit(hard));
        }
        let raised = limits.and_then(|(soft, hard)| match soft < hard {
            true => setrlimit(Resource::RLIMIT_NOFILE, hard, hard),
            false => Ok(()),
        });
        if let Err(e) = raised {
            warn!("the limit of open files stays: {e}");
        }
        Ok(())
    }

    /// A handle that ends [`Server::run`].
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Serves until nobody has needed it for the idle time, or it is stopped.
    ///
    /// # Errors
    /// The errors of `poll(2)`: everything else costs single clients at most.
    pub fn run(mut self) -> io::Result<()> {
        let result = self.serve_all();
        self.broker.end();
        result
    }

    /// Tells a service manager with a watchdog that the thread of [`Self::run`] goes on.
    pub fn tell_watchdog(&mut self) {
        self.keep_alive = KeepAlive::from_environment(Instant::now());
    }

    fn serve_all(&mut self) -> io::Result<()> {
        loop {
            if let Some(keep_alive) = &mut self.keep_alive {
                keep_alive.beat(Instant::now());
            }
            let ready = self.wait()?;
            let now = Instant::now();
            if ready.stop {
                return Ok(());
            }
            // Deaths first: a process id may belong to somebody else afterwards.
            for process in ready.dead {
                self.bury(now, process);
            }
            self.deliver(now);
            if ready.frames {
                self.gather_frames();
            }
            if ready.settled {
                self.answer_settled();
            }
            self.receive(now, ready.gsi, ready.links)?;
            if ready.netdevs && self.monitor.as_ref().is_some_and(|monitor| monitor.drain()) {
                self.broker.netdevs_changed(look());
            }
            if ready.listener {
                self.accept();
            }
            if self.broker.deadline().is_some_and(|deadline| deadline <= now) {
                self.broker.tick(now);
            }
            self.deliver(now);
            self.follow_changes();
            self.return_memory();
            if self.is_over(now) {
                return Ok(());
            }
        }
    }

    /// Gives memory back when half of many connections are gone.
    fn return_memory(&mut self) {
        let Some(most) = &mut self.most_connections else { return };
        let now = self.broker.connections.cm.manager.in_use();
        *most = now.max(*most);
        if *most >= MANY_CONNECTIONS && now <= *most / 2 {
            *most = now;
            self.broker.shrink();
            sys::return_memory();
        }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        if self.broker.is_stopped() {
            info!("told to end");
            return true;
        }
        let Some(idle) = self.idle else { return false };
        if self.broker.is_exhausted() {
            error!(
                "there are no descriptors to serve anybody with: this broker ends, the next one may have more"
            );
            return true;
        }
        if self.broker.is_leaving() {
            let since = *self.leaving_since.get_or_insert_with(|| {
                info!("making way for another user's program");
                now
            });
            return self.links.is_empty() || now.saturating_duration_since(since) >= LEAVE_GRACE;
        }
        self.leaving_since = None;
        if !self.broker.is_idle() {
            self.idle_since = None;
            return self.is_deserted(now, idle);
        }
        self.unused = None;
        let since = *self.idle_since.get_or_insert(now);
        let over = now.saturating_duration_since(since) >= idle;
        if over {
            info!("nobody has needed this broker for {} s: it ends", idle.as_secs());
        }
        over
    }

    /// Whether only this broker, for the sake of links that nobody uses, keeps its network namespace alive.
    /// Looks twice, so that a process that starts another one and ends is not overlooked.
    fn is_deserted(&mut self, now: Instant, period: Duration) -> bool {
        if !self.broker.is_unused() {
            self.unused = None;
            return false;
        }
        let (at, before) = self.unused.get_or_insert((now + period, false));
        if now < *at {
            return false;
        }
        let deserted = namespace::is_deserted();
        let over = deserted && *before;
        (*at, *before) = (now + period, deserted);
        if over {
            info!("nobody is left in this network namespace: its broker ends");
        }
        over
    }

    fn wait(&self) -> io::Result<Ready> {
        let mut fds =
            vec![PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        // In place of a monitor that there is not: a descriptor that says nothing.
        match &self.monitor {
            Some(monitor) => fds.push(PollFd::new(monitor, PollFlags::IN)),
            None => fds.push(PollFd::new(&self.stop, PollFlags::empty())),
        }
        fds.push(PollFd::from_borrowed_fd(self.switch.gsi_fd(), PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.switch.settled_fd(), PollFlags::IN));
        for (_, socket) in self.gsi.descriptors() {
            fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
        }
        for pidfd in self.processes.values() {
            fds.push(PollFd::new(pidfd, PollFlags::IN));
        }
        for link in self.links.values() {
            fds.push(PollFd::new(&link.connection, link.interest()));
        }
        let mut deadline = self.broker.deadline();
        let idle_end = self.idle.zip(self.idle_since).map(|(idle, since)| since + idle);
        let left = self.leaving_since.map(|since| since + LEAVE_GRACE).into_iter();
        let left = left.chain(self.unused.map(|(at, _)| at));
        let left = left.chain(self.keep_alive.as_ref().map(KeepAlive::due));
        for end in self.links.values().filter_map(|link| link.closing).chain(idle_end).chain(left) {
            deadline = Some(deadline.map_or(end, |deadline| deadline.min(end)));
        }
        if self.links.values().any(Link::is_held) {
            let soon = Instant::now() + HELD;
            deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
        }
        if !self.mads.is_empty() {
            deadline = Some(Instant::now());
        }
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
            // Up to the next millisecond, so as not to wake too early and spin.
            let left = if self.mads.is_empty() { left + Duration::from_millis(1) } else { Duration::ZERO };
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(e) => return Err(e.into()),
        }
        let now = Instant::now();
        let mut events = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = || events.next().unwrap_or(false);
        let (stop, listener, netdevs, frames, settled) = (next(), next(), next(), next(), next());
        let gsi = self.gsi.descriptors().map(|(address, _)| address).filter(|_| next()).collect();
        let dead = self.processes.keys().copied().filter(|_| next()).collect();
        let late = |link: &Link| link.closing.is_some_and(|end| end <= now);
        let links =
            self.links.iter().filter(|(_, link)| next() | late(link)).map(|(client, _)| *client).collect();
        Ok(Ready { stop, listener, netdevs, frames, settled, gsi, dead, links })
    }

    /// Receives from peers and programs. The requests that a program sent before a peer sent its message are
    /// handled before that message, which may be their consequence: a program that no longer listens, and
    /// tells another so, gets no request any more.
    fn receive(
        &mut self,
        now: Instant,
        addresses: Vec<Address>,
        mut clients: Vec<ClientId>,
    ) -> io::Result<()> {
        addresses.into_iter().for_each(|address| self.gather(address));
        self.broker.connections.no_mads(self.gsi.take_no_mad());
        for (address, traffic) in self.gsi.take_traffic() {
            self.broker.mads_passed(address, &traffic);
        }
        // The MADs are here, so whatever caused them is in the sockets by now, perhaps since we last looked.
        let rounds = if self.mads.is_empty() { 0 } else { ROUNDS };
        for round in 0..=rounds {
            if round > 0 {
                clients = self.waiting_clients()?;
            }
            if clients.is_empty() {
                break;
            }
            self.serve_in_turn(now, &clients);
            clients.clear();
        }
        // MADs that these produce are processed in a later turn.
        for _ in 0..self.mads.len() {
            let Some((route, mad)) = self.mads.pop_front() else { break };
            self.broker.mad(now, route, &mad);
            self.deliver(now);
        }
        Ok(())
    }

    /// Takes what waits at queue pair 1 of an address, to be looked at in its turn.
    fn gather(&mut self, address: Address) {
        let Self { gsi, mads, broker, .. } = self;
        gsi.receive(address, broker.checks_crc(address), |route, mad| {
            mads.extend(mad.try_into().map(|mad| (route, mad)))
        });
    }

    /// Takes the MADs that came as frames, to be looked at in their turn.
    fn gather_frames(&mut self) {
        while let Some(ToGsi { link, packet }) = self.switch.take_gsi() {
            let found = gsi::of_frame(link.ifindex, &packet);
            match found.and_then(|(route, mad)| Ok((route, mad.try_into().map_err(|_| "not 256 octets")?))) {
                Ok(mad) => self.mads.push_back(mad),
                Err(why) => {
                    self.broker.connections.no_mads(1);
                    debug!("dropped a frame to queue pair 1: {why}");
                }
            }
        }
    }

    /// Answers the programs whose packets the switch has moved.
    fn answer_settled(&mut self) {
        for (client, id) in self.switch.take_settled() {
            self.send(client, id, Message::Done, Vec::new());
        }
    }

    /// Tells the switch which programs there are, and forgets processes that matter no more. Once a turn:
    /// with a thousand programs it takes longer than a request.
    fn follow_changes(&mut self) {
        if self.broker.view_changes() == self.switch_changes {
            return;
        }
        self.switch_changes = self.broker.view_changes();
        let Self { switch, broker, .. } = self;
        switch
            .follow(broker.switch_view(), |address, member| broker.addresses.divided_socket(address, member));
        let known = broker.processes();
        self.processes.retain(|process, _| known.contains(process));
    }

    /// Does what the broker wants.
    fn deliver(&mut self, now: Instant) {
        if self.broker.addresses.groups.changes() != self.gsi_changes {
            self.gsi_changes = self.broker.addresses.groups.changes();
            let Self { gsi, broker, .. } = self;
            gsi.follow(&broker.addresses.groups.addresses(), |address| broker.addresses.own_socket(address));
        }
        while let Some(output) = self.broker.poll_output() {
            match output {
                Output::OpenRings { client, id, bell } => {
                    self.follow_changes();
                    let (answer, descriptors) = match self.switch.open(client, bell) {
                        Ok(descriptors) => (Message::Rings, descriptors.map(Strange::from).into()),
                        Err(e) => (Message::Refused(no_rings(&e)), Vec::new()),
                    };
                    self.send(client, id, answer, descriptors);
                }
                Output::SettleRings { client, id } => {
                    if let Some(before) = self.switch.settle(client, id) {
                        let sentence = "a later request of this program stands for this one".to_owned();
                        let refused = refusal(RefusalCode::Busy, sentence);
                        self.send(client, before, Message::Refused(refused), Vec::new());
                    }
                }
                Output::OpenPipe { id, ends } => self.open_pipe(id, ends),
                Output::Mad(transmit) if transmit.route.version() == RoceVersion::V1 => {
                    if let Some((flow, packet)) = gsi::frame(&transmit) {
                        self.switch.send(&flow, &packet);
                    }
                }
                Output::Mad(transmit) => {
                    let Route { local, remote, interface } = transmit.route;
                    let to = Address { ip: remote, scope_id: interface };
                    let from = Address { ip: local, scope_id: interface };
                    if !self.gsi.serves(to) {
                        self.gsi.send(&transmit);
                    } else if !self.broker.shows(&transmit) {
                        // No packet need say what one hand tells the other; a card's and rxe's do not either.
                        if self.gsi.serves(from) {
                            let route = Route { local: remote, remote: local, interface };
                            self.mads.push_back((route, *transmit.mad));
                        }
                    } else {
                        self.gsi.send(&transmit);
                        self.to_ourselves += 1;
                        if self.to_ourselves >= OWN_MADS_PER_READ {
                            self.to_ourselves = 0;
                            self.gather(to);
                        }
                    }
                }
                Output::Send { client, id, message, descriptors } => {
                    self.send(client, id, message, descriptors.into_iter().map(Strange::from).collect())
                }
                Output::Close(client) => self.close(now, client),
            }
        }
    }
}

#[derive(Debug, Default)]
struct Ready {
    stop: bool,
    listener: bool,
    netdevs: bool,
    /// Frames to queue pair 1.
    frames: bool,
    /// Requests of [`Message::SettleRings`] that can be answered.
    settled: bool,
    gsi: Vec<Address>,
    dead: Vec<ProcessId>,
    links: Vec<ClientId>,
}

fn no_rings(error: &io::Error) -> Refusal {
    let (code, sentence) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            RefusalCode::Permission,
            "ferroced may not send Ethernet frames: start it with CAP_NET_RAW, or in a namespace where you have it \
             (ferroce run --private-net)"
                .to_owned(),
        ),
        io::ErrorKind::InvalidInput => {
            (RefusalCode::BadRequest, "a doorbell is one end of a socket pair".to_owned())
        }
        io::ErrorKind::NotFound => {
            (RefusalCode::Failed, "no device has an address for frames: ferroce link set DEV roce-mode both".to_owned())
        }
        _ => (RefusalCode::Failed, format!("ferroced cannot make rings: {error}")),
    };
    refusal(code, sentence)
}

/// Describes the holder of the name, from the listener's credentials or from `/proc`.
fn taken(name: &str) -> ServerError {
    let peer = Connection::connect(name).and_then(|connection| connection.peer());
    match peer {
        Ok(peer) if peer.uid == nix::unistd::geteuid().as_raw() || peer.uid == 0 => {
            ServerError::Running(peer)
        }
        Ok(peer) => ServerError::Taken { name: name.to_owned(), holder: holder::process(peer.pid, peer.uid) },
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            ServerError::Taken { name: name.to_owned(), holder: holder::of_name(name) }
        }
        Err(source) => ServerError::Io { action: "reach the holder of the broker's name", source },
    }
}

/// The host's interfaces; where the system tells nothing, `lo` as it nearly always is.
fn look() -> Vec<Netdev> {
    rtnetlink::netdevs().unwrap_or_else(|e| {
        warn!("interfaces cannot be listed, only lo is assumed: {e}");
        vec![Netdev::assumed_loopback()]
    })
}

/// In a fresh network namespace `lo` is down, and without it there is no address.
fn raise_loopback(netdevs: &[Netdev]) {
    for lo in netdevs.iter().filter(|n| n.loopback && !n.up) {
        match rtnetlink::set_up(lo.ifindex) {
            Ok(()) => info!("{} was down, is up now", lo.name),
            Err(e) => warn!("{} is down: ip link set {} up ({e})", lo.name, lo.name),
        }
    }
}
