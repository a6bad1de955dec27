use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{TxSocket, source_ports};

/// The sending sockets of one local address, opened when a queue pair needs them and closed with the last
/// user.
///
/// Queue pairs of one class towards one slot of one destination share at most about eight sockets, and a
/// socket serves any number of destinations, so a process with thousands of queue pairs needs fewer than 1024
/// descriptors.
#[derive(Debug)]
pub struct TxPorts {
    ip: IpAddr,
    scope_id: u32,
    secret: u64,
    open: Mutex<BTreeMap<u16, Open>>,
}

/// A socket, with the class and slots of its packets.
#[derive(Debug)]
struct Open {
    class: Class,
    socket: Weak<TxSocket>,
}

/// The properties that all packets of one socket share, because the kernel derives the priority of frames
/// from the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Class {
    pub traffic_class: u8,
    /// Service level: 0 to 15.
    pub service_level: u8,
}

impl TxPorts {
    /// Opens no socket yet. `scope_id` as for [`TxSocket::bind`], `secret` as for [`source_ports`]: one
    /// random number for the whole process.
    pub fn new(ip: IpAddr, scope_id: u32, secret: u64) -> Self {
        Self { ip, scope_id, secret, open: Mutex::default() }
    }

    /// Returns a socket for datagrams to one slot of a destination: an open one that may serve the slot, or a
    /// new one. A process that sends to very many destinations thus has at most 256 of them.
    ///
    /// Errors as for [`Self::get`].
    pub fn get_any(&self, destination: IpAddr, slot: u8, class: Class) -> io::Result<Arc<TxSocket>> {
        let open = {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let mut candidates = source_ports(self.secret, destination, slot, 0, 0);
            candidates.find_map(|port| open.get(&port)?.of(class))
        };
        open.map_or_else(|| self.get(destination, slot, 0, 0, class), Ok)
    }

    /// Returns the socket for a pair of queue pairs, which keeps it for life: a flow does not change its
    /// port.
    ///
    /// An error of kind `AddrInUse` if other processes have all 64 candidates. Without free descriptors or
    /// candidates it returns any open socket that may serve the slot; frames then have the priority of its
    /// class.
    pub fn get(
        &self,
        destination: IpAddr,
        slot: u8,
        local_qpn: u32,
        remote_qpn: u32,
        class: Class,
    ) -> io::Result<Arc<TxSocket>> {
        let candidates = source_ports(self.secret, destination, slot, local_qpn, remote_qpn);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failure = io::ErrorKind::AddrInUse.into();
        for port in candidates.clone() {
            if let Some(open) = open.get(&port)
                && open.socket.strong_count() > 0
            {
                match open.of(class) {
                    Some(socket) => return Ok(socket),
                    None => continue,
                }
            }
            match TxSocket::bind(self.ip, self.scope_id, port) {
                Ok(socket) => {
                    socket.set_class(class)?;
                    open.retain(|_, open| open.socket.strong_count() > 0);
                    let socket = Arc::new(socket);
                    open.insert(port, Open { class, socket: Arc::downgrade(&socket) });
                    return Ok(socket);
                }
                Err(e) => {
                    let taken = e.kind() == io::ErrorKind::AddrInUse;
                    failure = e;
                    if !taken {
                        break;
                    }
                }
            }
        }
        candidates.filter_map(|port| open.get(&port)?.socket.upgrade()).next().ok_or(failure)
    }
}

impl Open {
    /// Returns the socket if it has this class and is in use.
    fn of(&self, class: Class) -> Option<Arc<TxSocket>> {
        self.socket.upgrade().filter(|_| self.class == class)
    }
}
