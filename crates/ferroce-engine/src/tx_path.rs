//! Where a queue pair's packets leave: sockets, or the rings to the broker.

use std::sync::Arc;

use ferroce_datapath::udp::{SendError, Sent, TxSocket};
use ferroce_wire::{BatchLimits, Flow, TxBatch};

use crate::rings::RingPort;
use crate::tx::SharedTxSocket;

/// Where packets leave.
pub(crate) trait Transmit {
    /// Sends a batch; `None` if what its flow leaves by is gone.
    fn send(&self, batch: &mut TxBatch<'_>) -> Option<Result<Sent, SendError>>;
    /// The limits of a batch.
    fn limits(&self) -> BatchLimits;
}

/// The path of a connection.
pub(crate) enum TxPath {
    /// A socket.
    Socket(SharedTxSocket),
    /// The rings, with the addressing of what leaves there.
    Rings(Arc<RingPort>, Flow),
}

impl TxPath {
    /// The addressing of what this queue pair sends.
    pub(crate) fn flow(&self) -> Flow {
        match self {
            Self::Socket(sender) => sender.flow(),
            Self::Rings(_, flow) => *flow,
        }
    }
}

impl Transmit for TxPath {
    fn send(&self, batch: &mut TxBatch<'_>) -> Option<Result<Sent, SendError>> {
        Some(match self {
            Self::Socket(sender) => TxSocket::send(sender, batch),
            Self::Rings(port, _) => Ok(port.send(batch)),
        })
    }

    fn limits(&self) -> BatchLimits {
        match self {
            Self::Socket(sender) => TxSocket::limits(sender),
            Self::Rings(..) => RingPort::limits(),
        }
    }
}

/// The sockets of a queue pair of datagrams, by source port: found without a lock, and open as long as the queue pair may have
/// something for them, whatever becomes of the address handle. At most 256 for each local address.
#[derive(Default)]
pub(crate) struct DatagramPaths(Vec<Arc<SharedTxSocket>>, Option<Arc<RingPort>>);

impl DatagramPaths {
    fn place(&self, flow: &Flow) -> Result<usize, usize> {
        let key = |flow: &Flow| (flow.source_port, flow.source);
        self.0.binary_search_by_key(&key(flow), |sender| key(&sender.flow()))
    }

    /// Sees to it that `flow` has its socket, unless that is closed. `rings` and `socket` find what packets can leave by.
    pub(crate) fn open(
        &mut self,
        flow: &Flow,
        rings: impl FnOnce() -> Option<Arc<RingPort>>,
        socket: impl FnOnce() -> Option<Arc<SharedTxSocket>>,
    ) {
        if goes_by_rings(flow) {
            if self.1.is_none() {
                self.1 = rings();
            }
            return;
        }
        if let Err(place) = self.place(flow)
            && let Some(sender) = socket()
        {
            self.0.insert(place, sender);
        }
    }
}

impl Transmit for DatagramPaths {
    fn send(&self, batch: &mut TxBatch<'_>) -> Option<Result<Sent, SendError>> {
        let flow = batch.flow()?;
        if goes_by_rings(flow) {
            return self.1.as_ref().map(|port| Ok(port.send(batch)));
        }
        let socket = self.place(flow).ok().and_then(|place| self.0.get(place));
        socket.map(|sender| TxSocket::send(sender, batch))
    }

    /// They agree, but where the system refused to cut for one of them; that one sees to it.
    fn limits(&self) -> BatchLimits {
        // Without any socket packets are lost one by one.
        let none = BatchLimits { max_segments: 1, gso: false };
        let rings = self.1.as_ref().map_or(none, |_| RingPort::limits());
        self.0.first().map_or(rings, |sender| TxSocket::limits(sender))
    }
}

/// Sockets know their interface from the address; who names it sends frames there.
const fn goes_by_rings(flow: &Flow) -> bool {
    flow.link.ifindex != 0
}
