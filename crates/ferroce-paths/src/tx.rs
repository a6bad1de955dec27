//! The sending sockets of one local address, in the hands of its queue pairs.
//!
//! [`TxPorts`] knows which source port may serve which queue pair; here their
//! descriptors are recorded for the fork handler as long as some queue pair uses them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use ferroce_datapath::udp::{Class, TxPorts, TxSocket};
use ferroce_wire::{Flow, LinkLayer, Qpn};
use parking_lot::Mutex;

use ferroce_host::fork;

/// The two ends between which a queue pair sends.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    pub destination: IpAddr,
    pub local_qpn: Qpn,
    pub remote_qpn: Qpn,
    pub class: Class,
    pub hop_limit: u8,
}

/// All sending sockets of one local address.
pub struct TxSockets {
    local: IpAddr,
    ports: TxPorts,
    /// Also held while a socket is opened or closed, so that no number is recorded that is closed already.
    users: Mutex<Users>,
}

/// The users of each socket.
#[derive(Default)]
struct Users {
    /// How many queue pairs and routes of datagrams, by descriptor.
    counts: BTreeMap<RawFd, usize>,
    /// The sockets for datagrams, by source port.
    datagrams: BTreeMap<u16, Weak<SharedTxSocket>>,
}

impl TxSockets {
    /// `secret` is one random number for the whole process.
    pub fn new(local: IpAddr, scope_id: u32, secret: u64) -> Arc<Self> {
        let ports = TxPorts::new(local, scope_id, secret);
        Arc::new(Self { local, ports, users: Mutex::default() })
    }

    /// The socket for datagrams to one member of a destination; its users keep it open.
    pub fn of_datagrams(
        self: &Arc<Self>,
        destination: IpAddr,
        member: u8,
        class: Class,
    ) -> io::Result<Arc<SharedTxSocket>> {
        let mut users = self.users.lock();
        let socket = self.ports.get_any(destination, member, class)?;
        let port = socket.port();
        if let Some(sender) = users.datagrams.get(&port).and_then(Weak::upgrade) {
            return Ok(sender);
        }
        let flow = Flow {
            source: self.local,
            destination,
            source_port: port,
            traffic_class: 0,
            hop_limit: 0,
            link: Default::default(),
        };
        let (sender, _) = self.share(&mut users, socket, flow);
        let sender = Arc::new(sender);
        users.datagrams.retain(|_, sender| sender.strong_count() > 0);
        users.datagrams.insert(port, Arc::downgrade(&sender));
        Ok(sender)
    }

    /// The socket that [`Self::of_datagrams`] found before, if it is still in use.
    pub fn datagrams_from(&self, port: u16) -> Option<Arc<SharedTxSocket>> {
        self.users.lock().datagrams.get(&port).and_then(Weak::upgrade)
    }

    /// Counts one more user of a socket; whether it is the first.
    fn share(
        self: &Arc<Self>,
        users: &mut Users,
        socket: Arc<TxSocket>,
        flow: Flow,
    ) -> (SharedTxSocket, bool) {
        let fd = socket.as_fd().as_raw_fd();
        let count = users.counts.entry(fd).or_insert(0);
        *count += 1;
        let first = *count == 1;
        if first {
            fork::record(fd);
        }
        (
            SharedTxSocket { socket: Some(socket), fd, flow, pool: Arc::clone(self), epoch: fork::epoch() },
            first,
        )
    }

    /// The socket of a queue pair, for its life.
    pub fn acquire(self: &Arc<Self>, ends: &Destination) -> io::Result<SharedTxSocket> {
        let member = ends.remote_qpn.member();
        let mut users = self.users.lock();
        let (local, remote) = (ends.local_qpn.value(), ends.remote_qpn.value());
        let socket = self.ports.get(ends.destination, member, local, remote, ends.class)?;
        let flow = Flow {
            source: self.local,
            destination: ends.destination,
            source_port: socket.port(),
            traffic_class: ends.class.traffic_class,
            hop_limit: ends.hop_limit,
            link: LinkLayer { sl: ends.class.service_level, ..LinkLayer::UDP },
        };
        let (sender, first) = self.share(&mut users, socket, flow);
        if first {
            drop(users);
            // The first queue pair's hop limit becomes the socket's default and costs nothing; others may
            // differ.
            sender.prefer_hop_limit(ends.hop_limit)?;
        }
        Ok(sender)
    }
}

/// A queue pair's share of a sending socket.
pub struct SharedTxSocket {
    socket: Option<Arc<TxSocket>>,
    fd: RawFd,
    flow: Flow,
    pool: Arc<TxSockets>,
    epoch: u64,
}

impl SharedTxSocket {
    /// The addressing of what this queue pair sends.
    pub fn flow(&self) -> Flow {
        self.flow
    }
}

impl Deref for SharedTxSocket {
    type Target = TxSocket;

    fn deref(&self) -> &TxSocket {
        self.socket.as_deref().expect("only the destructor empties it")
    }
}

impl Drop for SharedTxSocket {
    fn drop(&mut self) {
        let socket = self.socket.take();
        if self.epoch != fork::epoch() {
            // The number may belong to something else in this forked child.
            std::mem::forget(socket);
            return;
        }
        let mut users = self.pool.users.lock();
        if let Some(count) = users.counts.get_mut(&self.fd) {
            *count -= 1;
            if *count == 0 {
                users.counts.remove(&self.fd);
                fork::forget(self.fd);
            }
        }
        drop(socket);
    }
}
