//! Frames between the rings of programs and the wire: RoCE v1, and v2 for programs that ask for it.
//!
//! A thread of its own, so that packets do not wait for connection management nor the other way round. It
//! alone has the packet sockets: the holder of one may receive and send anything. Programs write packets from
//! GRH or IP header on into their rings; [`rules`] says which may leave, and hardware addresses, VLAN tag and
//! type of the frame are written here. A packet that arrives is written to the ring of the program that holds
//! the slot in its DestQP; queue pair 1 is the broker's own.
//!
//! A VLAN's frames are sent by the interface below it, with a tag that is written here: so its priority is
//! that of the packet's service level, whatever map the VLAN has. They are received from the VLAN, where the
//! kernel has taken the tag out.

mod drops;
mod group_sockets;
mod lookup;
mod neighbours;
mod poller;
mod relay;
mod rules;
mod settling;
mod table;
mod view;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ferroce_datapath::dpdk::{BURST as BURST_OF_PORT, Burst};
use ferroce_datapath::packet::FrameBuffer;
use ferroce_ipc::Strange;
use ferroce_ipc::doorbell::{self, hear, is_doorbell, ring};
use ferroce_ipc::ring::{MAX_PACKET, Rings};
use ferroce_wire::{Flow, Qpn};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::{error, warn};

use super::ClientId;
use super::dpdk::{DpdkPort, Ports};
pub use drops::Counts;
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;
use ferroce_host::rtnetlink::NeighbourMonitor;
use ferroce_host::thread::{self, spawn_quietly};
use relay::RelayBuffers;
pub use rules::{Reason, Way};
use settling::{Served, Settling};
pub use table::ToGsi;
use table::{Buffers, Leaving, Open, Outgoing, Table, Waits, close};
pub use view::{PortView, ProgramView, RelayView, View};

/// The broker's handle. Dropping it ends the thread.
#[derive(Debug)]
pub struct Switch {
    shared: Arc<Shared>,
    running: bool,
    /// The ports of DPDK.
    dpdk: Arc<Ports>,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// The thread is to look at the table.
    wake: Guarded<OwnedFd>,
    /// Something is in [`Table::gsi`].
    gsi: Guarded<OwnedFd>,
    settling: Settling,
    /// The kernel is to be asked something.
    asked: Condvar,
}

fn counter() -> io::Result<Guarded<OwnedFd>> {
    Ok(Guarded::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
}

impl Switch {
    /// A switch that serves nothing.
    ///
    /// # Errors
    /// The errors of `eventfd(2)`.
    pub fn new(dpdk: Arc<Ports>) -> io::Result<Self> {
        let table = Mutex::new(Table::new(Arc::clone(&dpdk)));
        let (wake, gsi, settling) = (counter()?, counter()?, Settling::new(counter()?));
        let shared = Shared { table, wake, gsi, settling, asked: Condvar::new() };
        Ok(Self { shared: Arc::new(shared), running: false, dpdk })
    }

    /// Serves this from now on. `socket` hands out the socket of a member on an address.
    pub fn follow(&mut self, view: View, socket: impl FnMut(Address, u8) -> io::Result<OwnedFd>) {
        if !self.running && !view.ways.is_empty() {
            let shared = Arc::clone(&self.shared);
            match spawn_quietly("ferroce-switch", move || run(&shared)) {
                Ok(()) => self.running = true,
                Err(e) => error!("no frames are sent or received: {e}"),
            }
            let shared = Arc::clone(&self.shared);
            if let Err(e) = spawn_quietly("ferroce-lookup", move || lookup::run(&shared, &lookup::Here)) {
                error!("no neighbours are looked for: {e}");
            }
        }
        self.shared.table.lock().follow(view, socket);
        self.shared.look();
        self.poll_ports();
    }

    /// Starts a thread for each port of DPDK that has none.
    fn poll_ports(&self) {
        for port in self.dpdk.all() {
            let Some(rx) = port.start() else { continue };
            let (shared, polled) = (Arc::clone(&self.shared), Arc::clone(&port));
            let mut buffers = Buffers { frame: FrameBuffer::new(), packet: Box::new([0; MAX_PACKET]) };
            let run = move || {
                poller::run(&polled, rx, |now, burst| shared.serve_port(&polled, now, burst, &mut buffers));
            };
            if let Err(e) = spawn_quietly("ferroce-dpdk", run) {
                error!("nobody receives from the port of {}: {e}", port.name);
                port.end();
            }
        }
    }

    /// Opens rings to a program that [`Switch::follow`] named. Returns their memory and the program's end of
    /// a doorbell that wakes the broker.
    ///
    /// # Errors `NotFound` for any other; `InvalidInput` if `bell` is no doorbell; otherwise those of
    /// [`Rings::create`] and `socketpair(2)`.
    pub fn open(&mut self, client: ClientId, bell: Strange) -> io::Result<[OwnedFd; 2]> {
        if !is_doorbell(&bell) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (near, far) = doorbell::pair()?;
        let heard = Arc::new(Guarded::new(bell.like(near)));
        let mut table = self.shared.table.lock();
        // Between programs here nothing is needed, nor for those whose packets leave by sockets.
        let relayed = table.programs.get(&client).is_some_and(|program| program.view.relayed);
        if !relayed && !table.ports.values().any(|port| port.tx.is_some() || port.view.mac.is_none()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let program = table.programs.get_mut(&client).ok_or(io::ErrorKind::NotFound)?;
        let (rings, memory) = Rings::create()?;
        program.open = Some(Open { rings, bell: Guarded::new(bell), heard });
        table.generation += 1;
        drop(table);
        self.shared.look();
        Ok([memory, far])
    }

    /// Readable when [`Switch::take_gsi`] has something.
    pub fn gsi_fd(&self) -> BorrowedFd<'_> {
        self.shared.gsi.as_fd()
    }

    /// The next packet to queue pair 1.
    pub fn take_gsi(&self) -> Option<ToGsi> {
        let mut table = self.shared.table.lock();
        let next = table.gsi.pop_front();
        if next.is_none() {
            let _ = rustix::io::read(&*self.shared.gsi, &mut [0; 8]);
        }
        next
    }

    /// Has the thread move what is in rings and sockets by now; then [`Switch::take_settled`] returns the
    /// request. Returns the program's earlier request that this one stands for.
    pub fn settle(&self, client: ClientId, id: u32) -> Option<u32> {
        let before = self.shared.settling.ask(client, id);
        match self.running {
            true => self.shared.look(),
            false => self.shared.settling.finish_all(),
        }
        before
    }

    /// Readable when [`Switch::take_settled`] has something.
    pub fn settled_fd(&self) -> BorrowedFd<'_> {
        self.shared.settling.fd()
    }

    /// The requests of [`Switch::settle`] that are done.
    pub fn take_settled(&self) -> Vec<(ClientId, u32)> {
        self.shared.settling.take_done()
    }

    /// Takes the counts of dropped frames since the last call, by interface; key 0 stands for no interface.
    pub fn take_drops(&self) -> BTreeMap<u32, Counts> {
        self.shared.table.lock().drops.take()
    }

    /// Sends a packet of queue pair 1, from the GRH or IP header on. If it cannot be sent, it is lost.
    pub fn send(&self, flow: &Flow, packet: &[u8]) {
        let mut table = self.shared.table.lock();
        let (from, to) = (flow.source, flow.destination);
        table.send(
            Instant::now(),
            &Outgoing { link: flow.link, from, to, dest_qp: Qpn::GSI, by_udp: None, packet },
        );
        self.shared.pass_on(&mut table);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.table.lock().ended = true;
        self.shared.asked.notify_all();
        self.shared.look();
    }
}

impl Shared {
    fn look(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Gives away the frames that arrived at a port of DPDK, and takes packets from the rings of programs.
    /// Returns whether there are more, or `None` at the end of the switch.
    fn serve_port(
        &self,
        port: &DpdkPort,
        now: Instant,
        burst: Option<&Burst>,
        buffers: &mut Buffers,
    ) -> Option<bool> {
        // Without frames of its own the port's thread waits for nobody.
        let mut table = match burst {
            Some(_) => self.table.lock(),
            None => match self.table.try_lock() {
                Some(table) => table,
                None => return Some(false),
            },
        };
        if table.ended {
            return None;
        }
        // A bit for each frame that is the kernel's.
        const _: () = assert!(BURST_OF_PORT <= 64);
        let mut for_kernel = 0_u64;
        for (index, frame) in burst.into_iter().flat_map(Burst::frames).enumerate() {
            if !table.take_from_dpdk(port.ifindex, port.mac, frame) {
                for_kernel |= 1 << index;
            }
        }
        let more = table.take_from_programs(now, buffers);
        self.pass_on(&mut table);
        drop(table);
        let mut refused = 0;
        for (index, frame) in burst.into_iter().flat_map(Burst::frames).enumerate() {
            if for_kernel & (1 << index) != 0 && port.tap.write(frame).is_err() {
                refused += 1;
            }
        }
        if refused > 0 {
            self.table.lock().drops.count_many(port.ifindex, Reason::Refused, refused);
        }
        Some(more)
    }

    /// Shows programs what was put into their rings, and the other threads what is for them.
    fn pass_on(&self, table: &mut Table) {
        let Table { programs, ports, drops, generation, .. } = table;
        for (ifindex, port) in &*ports {
            if let Some(Leaving::Dpdk(port)) = &port.tx {
                port.flush();
                drops.count_many(*ifindex, Reason::Refused, port.take_lost());
            }
        }
        for program in programs.values_mut() {
            let Some(open) = &mut program.open else { continue };
            match open.rings.tx.publish() {
                Ok(true) => ring(&open.bell),
                Ok(false) => {}
                Err(_) => {
                    *generation += close(program);
                    drops.count(program.interface(ports, 0), Reason::Rings);
                }
            }
        }
        if !table.gsi.is_empty() {
            let _ = rustix::io::write(&*self.gsi, &1_u64.to_ne_bytes());
        }
        if table.neighbours.has_lookups() {
            self.asked.notify_one();
        }
    }
}

fn run(shared: &Shared) {
    // Programs wait for these packets as they do for those that the kernel forwards.
    thread::ask_for_a_short_slice();
    thread::ask_for_precedence();
    let monitor = NeighbourMonitor::open().map(Guarded::new);
    let monitor = monitor.inspect_err(|e| warn!("changes of neighbours will not be seen: {e}")).ok();
    let mut waits = Waits::default();
    let mut more = false;
    let mut served = Served::default();
    let mut relayed = RelayBuffers::new();
    let mut buffers = Buffers { frame: FrameBuffer::new(), packet: Box::new([0; MAX_PACKET]) };
    loop {
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        match &monitor {
            Some(monitor) => fds.push(PollFd::new(monitor, PollFlags::IN)),
            None => fds.push(PollFd::new(&shared.wake, PollFlags::empty())),
        }
        fds.extend(waits.ports.iter().map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN)));
        fds.extend(waits.relays.iter().map(|relay| PollFd::from_borrowed_fd(relay.fd(), PollFlags::IN)));
        fds.extend(waits.bells.iter().map(|(_, bell)| PollFd::new(&**bell, PollFlags::IN)));
        let goes_on = served.begin(&shared.settling) || more;
        let limit = Timespec { tv_sec: if goes_on { 0 } else { 3600 }, tv_nsec: 0 };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => {
                error!("the switch cannot wait: {e}");
                return;
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        if is_ready(0) {
            let _ = rustix::io::read(&*shared.wake, &mut [0; 8]);
        }
        let now = Instant::now();
        let mut table = shared.table.lock();
        if table.ended {
            return;
        }
        if is_ready(1)
            && let Some(monitor) = &monitor
        {
            table.follow_neighbours(monitor);
        }
        let mut left = false;
        for (index, (ifindex, socket)) in waits.ports.iter().enumerate() {
            if is_ready(2 + index) {
                left |= table.receive(*ifindex, socket, &mut buffers);
            }
        }
        let first = 2 + waits.ports.len();
        for (index, relay) in waits.relays.iter().enumerate() {
            if is_ready(first + index) {
                left |= table.receive_relayed(relay, &mut relayed);
            }
        }
        let first = first + waits.relays.len();
        for (index, (client, bell)) in waits.bells.iter().enumerate() {
            if is_ready(first + index) && !hear(bell) {
                table.hang_up(*client, bell);
            }
        }
        more = table.take_from_programs(now, &mut buffers);
        shared.pass_on(&mut table);
        if waits.generation != Some(table.generation) {
            waits = table.waits();
        }
        drop(table);
        served.end_round(&shared.settling, left);
    }
}
