//! The lanes of a process.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use ferroce_datapath::udp::RxSocket;
use ferroce_paths::frames::FramePort;
use ferroce_paths::permitted;
use ferroce_paths::pipes::Pipes;
use ferroce_paths::rings::RingPort;
use ferroce_paths::streams::Streams;
use ferroce_paths::tx::SharedTxSocket;
use ferroce_paths::xdp::XdpPort;
use ferroce_wire::Flow;
use parking_lot::Mutex;

use super::{Endpoint, Hub, Lane, Members, Source};
use crate::congestion;
use ferroce_client::{BrokerClient, BrokerError, LeasedAddress, RingsOffer};

/// A port of AF_XDP and its lane.
pub(crate) type PortLane = (Arc<XdpPort>, Arc<Lane>);

/// All lanes, which the background thread and pollers serve.
pub(crate) struct Lanes {
    hub: Arc<Hub>,
    list: ArcSwap<Vec<Arc<Lane>>>,
    next: AtomicU64,
    /// Made when the first address needs them.
    rings: OnceLock<(Arc<RingPort>, Arc<Lane>)>,
    /// The pipes to other programs and their lane, unless `FERROCE_DATAPATH` excludes them.
    pipes: OnceLock<(Arc<Pipes>, Arc<Lane>)>,
    /// The ports of AF_XDP and their lanes, one for each interface.
    ports: ArcSwap<Vec<PortLane>>,
    /// The connections of iWARP and their lane, made when the first one carries messages.
    streams: OnceLock<(Arc<Streams>, Arc<Lane>)>,
    /// Held while `rings`, `streams` or a port is made.
    opening: Mutex<()>,
}

impl Lanes {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        let (list, next) = (ArcSwap::default(), AtomicU64::new(0));
        let (rings, pipes, streams) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (ports, opening) = (ArcSwap::default(), Mutex::new(()));
        Self { hub, list, next, rings, pipes, ports, streams, opening }
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The lanes, as they are now.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Lane>>> {
        self.list.load_full()
    }

    /// Calls `act` for each lane, without taking a reference to the list: for the end of the process.
    pub(crate) fn each(&self, act: impl Fn(&Lane)) {
        self.list.load().iter().for_each(|lane| act(lane));
    }

    /// The lane of a local address.
    pub(crate) fn of(&self, ip: IpAddr, scope_id: u32) -> Option<Arc<Lane>> {
        let list = self.list.load();
        list.iter().find(|lane| lane.local() == ip && lane.scope_id() == scope_id).cloned()
    }

    /// The socket that an address handle opened for datagrams of this flow.
    pub(crate) fn datagram_socket(&self, flow: &Flow) -> Option<Arc<SharedTxSocket>> {
        let list = self.list.load();
        let mut of_address = list.iter().filter(|lane| lane.local() == flow.source);
        of_address.find_map(|lane| lane.tx_sockets().datagrams_from(flow.source_port))
    }

    /// A lane for a leased address, in the place of an earlier one of the same address. Returns the octets
    /// that the kernel keeps for its socket.
    pub(crate) fn add(&self, address: LeasedAddress) -> io::Result<usize> {
        let socket = RxSocket::from_fd(address.fd)?;
        if permitted::v2_by_broker() {
            socket.drop_all()?;
        }
        let granted = socket.granted_rcvbuf()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let lane = Lane::new(id, address.scope_id, socket, Arc::clone(&self.hub));
        lane.follow_settings(&self.hub.devices.all());
        if congestion::reads_marks() {
            lane.receive_headers();
        }
        let lane = Arc::new(lane);
        self.list.rcu(|lanes| {
            let other =
                |known: &&Arc<Lane>| known.local() != lane.local() || known.scope_id() != lane.scope_id();
            let kept = lanes.iter().filter(other).cloned();
            kept.chain([Arc::clone(&lane)]).collect::<Vec<_>>()
        });
        Ok(granted)
    }

    /// A lane for the membership of a multicast group.
    pub(crate) fn open_group(&self, socket: RxSocket, ifindex: u32, members: &Members) -> Arc<Lane> {
        let members = Arc::clone(members);
        self.open(|id, hub| Lane::of_group(id, ifindex, socket, members, hub))
    }

    /// A lane for the frames of a raw packet queue pair.
    pub(crate) fn open_frames(&self, port: &Arc<FramePort>, endpoint: &Arc<Endpoint>) -> Arc<Lane> {
        let endpoint = Arc::downgrade(endpoint);
        self.open(|id, hub| {
            Lane::without_address(id, Source::Frames { port: Arc::clone(port), endpoint }, hub)
        })
    }

    /// The rings to the broker and their lane, if they were opened.
    pub(crate) fn rings(&self) -> Option<&(Arc<RingPort>, Arc<Lane>)> {
        self.rings.get()
    }

    /// Opens the rings to the broker, once.
    pub(crate) fn open_rings(
        &self,
        broker: &BrokerClient,
    ) -> Result<&(Arc<RingPort>, Arc<Lane>), BrokerError> {
        if let Some(open) = self.rings.get() {
            return Ok(open);
        }
        let _opening = self.opening.lock();
        if let Some(open) = self.rings.get() {
            return Ok(open);
        }
        let port = RingPort::open(broker)?;
        let lane = self.open(|id, hub| {
            let source = Source::Rings { port: Arc::clone(&port), unchecked: ArcSwap::default() };
            Lane::without_address(id, source, hub)
        });
        Ok(self.rings.get_or_init(|| (port, lane)))
    }

    /// A new broker made other rings.
    pub(crate) fn install_rings(&self, offer: RingsOffer) {
        if let Some((port, _)) = self.rings()
            && let Err(error) = port.install(offer)
        {
            tracing::error!(%error, "the rings of the new broker cannot be used");
        }
    }

    /// The pipes to other programs and their lane, if there are any.
    pub(crate) fn pipes(&self) -> Option<&(Arc<Pipes>, Arc<Lane>)> {
        self.pipes.get()
    }

    /// From now on other programs may send by pipes. Once, before any queue pair exists.
    pub(crate) fn open_pipes(&self, pipes: Arc<Pipes>) {
        let lane = self.open(|id, hub| Lane::without_address(id, Source::Pipes(Arc::clone(&pipes)), hub));
        drop(self.pipes.set((pipes, lane)));
    }

    /// The ports of AF_XDP and their lanes.
    pub(crate) fn ports(&self) -> Arc<Vec<PortLane>> {
        self.ports.load_full()
    }

    /// The port of an interface, without a socket at first.
    ///
    /// # Errors
    /// Without another descriptor.
    pub(crate) fn open_port(&self, ifindex: u32) -> io::Result<Arc<XdpPort>> {
        let _opening = self.opening.lock();
        if let Some((port, _)) = self.ports().iter().find(|(port, _)| port.ifindex() == ifindex) {
            return Ok(Arc::clone(port));
        }
        let Hub { devices, ledger, .. } = &*self.hub;
        let port = Arc::new(XdpPort::new(ifindex, Arc::clone(devices), Arc::clone(ledger))?);
        let lane = self.open(|id, hub| Lane::without_address(id, Source::Xdp(Arc::clone(&port)), hub));
        let added = (Arc::clone(&port), lane);
        self.ports.rcu(|ports| ports.iter().chain([&added]).cloned().collect::<Vec<_>>());
        Ok(port)
    }

    /// The connections of iWARP and their lane, made at the first call.
    ///
    /// # Errors
    /// Without another descriptor.
    pub(crate) fn streams(&self) -> io::Result<&(Arc<Streams>, Arc<Lane>)> {
        if let Some(open) = self.streams.get() {
            return Ok(open);
        }
        let _opening = self.opening.lock();
        if let Some(open) = self.streams.get() {
            return Ok(open);
        }
        let streams = Arc::new(Streams::new()?);
        let lane = self.open(|id, hub| Lane::without_address(id, Source::Streams(Arc::clone(&streams)), hub));
        Ok(self.streams.get_or_init(|| (streams, lane)))
    }

    fn open(&self, make: impl FnOnce(u64, Arc<Hub>) -> Lane) -> Arc<Lane> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let lane = Arc::new(make(id, Arc::clone(&self.hub)));
        lane.follow_settings(&self.hub.devices.all());
        self.list.rcu(|lanes| lanes.iter().chain([&lane]).cloned().collect::<Vec<_>>());
        self.hub.request_look(0);
        lane
    }

    /// No thread serves it any more; its socket is closed when the last thread that looks at it has left.
    pub(crate) fn close(&self, lane: &Arc<Lane>) {
        self.list
            .rcu(|lanes| lanes.iter().filter(|known| !Arc::ptr_eq(known, lane)).cloned().collect::<Vec<_>>());
        self.hub.request_look(0);
    }

    /// Lanes do as their devices' settings say now.
    pub(crate) fn follow_settings(&self) {
        let devices = self.hub.devices.all();
        self.each(|lane| lane.follow_settings(&devices));
    }
}
