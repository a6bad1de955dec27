//! A process's sending sockets at one local address.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{TxSocket, source_ports};

/// The sending sockets of one local address, opened as queue pairs need them and closed with the last that does.
///
/// Queue pairs of one class towards one slot of one destination share at most about eight sockets, and a socket serves any number of
/// destinations, so a process with thousands of queue pairs keeps within 1024 descriptors.
#[derive(Debug)]
pub struct TxPorts {
    ip: IpAddr,
    scope_id: u32,
    secret: u64,
    open: Mutex<BTreeMap<u16, Open>>,
}

/// A socket, and whose packets it sends.
#[derive(Debug)]
struct Open {
    class: Class,
    socket: Weak<TxSocket>,
}

/// What packets of one socket have in common, because the kernel takes the priority of frames from the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Class {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Service level: 0 to 15.
    pub service_level: u8,
}

impl TxPorts {
    /// No socket yet. `scope_id` as for [`TxSocket::bind`], `secret` as for [`source_ports`]: one random number for the
    /// whole process.
    pub fn new(ip: IpAddr, scope_id: u32, secret: u64) -> Self {
        Self { ip, scope_id, secret, open: Mutex::default() }
    }

    /// A socket for datagrams to one slot of a destination: any that is open and may serve the slot, or a new one. Thus a
    /// process that sends to very many destinations has at most 256 of them.
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

    /// The socket for a pair of queue pairs, to be kept as long as the pair lives: a flow does not change its port.
    ///
    /// An error of kind `AddrInUse` when other processes hold all 64 candidates. When descriptors or candidates run out,
    /// any socket that is open and may serve the slot does; frames then have the priority of its class.
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
    /// The socket, if it is for this class and anybody has it.
    fn of(&self, class: Class) -> Option<Arc<TxSocket>> {
        self.socket.upgrade().filter(|_| self.class == class)
    }
}
