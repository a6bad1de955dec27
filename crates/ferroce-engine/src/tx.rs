//! The process's sending sockets.
//!
//! The kernel takes a datagram's source port from the socket, so each source port is a socket.
//! Queue pairs to the same slot of the same destination share a few of them; two slots never
//! share one, because the receiver merges batches of one 5-tuple and steers them by the first
//! packet (DESIGN section 4).

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use crate::pending::udp::{TxSocket, source_ports};
use ferroce_wire::Qpn;
use parking_lot::Mutex;

use crate::fork::Guarded;

/// Sockets that all queue pairs of a process may have together: a program with the common limit
/// of 1,024 descriptors keeps half for itself.
const MAX_SOCKETS: usize = 512;

/// A socket that sends from one source port.
pub(crate) type Sender = Guarded<TxSocket>;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    local: IpAddr,
    scope_id: u32,
    destination: IpAddr,
    slot: u8,
    port: u16,
}

/// From whom to whom a queue pair sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoints {
    pub(crate) local: IpAddr,
    pub(crate) scope_id: u32,
    pub(crate) destination: IpAddr,
    pub(crate) local_qpn: Qpn,
    pub(crate) remote_qpn: Qpn,
}

/// All sending sockets, kept while a queue pair uses them.
pub(crate) struct TxPool {
    secret: u64,
    sockets: Mutex<HashMap<Key, Weak<Sender>>>,
}

impl TxPool {
    pub(crate) fn new(secret: u64) -> Self {
        Self { secret, sockets: Mutex::new(HashMap::new()) }
    }

    /// The socket of a queue pair, for its life: the first of its candidate ports that is open
    /// already or can be bound.
    pub(crate) fn acquire(&self, ends: &Endpoints) -> io::Result<Arc<Sender>> {
        let slot = (ends.remote_qpn.value() >> 16) as u8;
        let mut sockets = self.sockets.lock();
        sockets.retain(|_, socket| socket.strong_count() > 0);
        let full = sockets.len() >= MAX_SOCKETS;
        let mut failure = io::Error::from_raw_os_error(libc::EMFILE);
        let ports = source_ports(
            self.secret,
            ends.destination,
            slot,
            ends.local_qpn.value(),
            ends.remote_qpn.value(),
        );
        for port in ports {
            let key =
                Key { local: ends.local, scope_id: ends.scope_id, destination: ends.destination, slot, port };
            if let Some(socket) = sockets.get(&key).and_then(Weak::upgrade) {
                return Ok(socket);
            }
            if full {
                continue;
            }
            match TxSocket::bind(ends.local, ends.scope_id, port) {
                Ok(socket) => {
                    let socket = Arc::new(Guarded::new(socket));
                    sockets.insert(key, Arc::downgrade(&socket));
                    return Ok(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => failure = error,
                Err(error) => return Err(error),
            }
        }
        Err(failure)
    }
}
