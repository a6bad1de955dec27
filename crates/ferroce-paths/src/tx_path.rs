//! The ways by which a queue pair's packets leave: sockets, AF_XDP, shared memory, or the rings to the
//! broker.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

use ferroce_datapath::udp::{SendError, Sent, TxSocket};
use ferroce_memory::direct::Direct;
use ferroce_wire::{BatchLimits, Flow, Instant, TxBatch};

use crate::pipes::{PeerPipe, PipeEnd, Room};
use crate::rings::RingPort;
use crate::tx::SharedTxSocket;
use crate::xdp::XdpPort;

/// A way by which packets leave.
pub trait Transmit {
    /// Sends a batch; `None` if what its flow leaves by is gone.
    fn send(&self, batch: &mut TxBatch<'_>, now: Instant) -> Option<Result<Sent, SendError>>;
    /// The limits of a batch.
    fn limits(&self) -> BatchLimits;
    /// Whether batches of any length can be sent now.
    fn room(&self, _now: Instant) -> Room {
        Room::ForAll
    }
    /// Others have their turn before the rest is sent.
    fn has_more(&self) {}
    /// Notes that the queue pair has nothing left to send.
    fn has_no_more(&self) {}
    /// Whether packets leave by shared memory, which needs no ICRC.
    fn is_pipe(&self) -> bool {
        false
    }
}

/// The path of a connection.
pub enum TxPath {
    /// A socket.
    Socket(SharedTxSocket),
    /// A port of AF_XDP, and the socket for the time when it is down. The socket has the UDP source port.
    Xdp(Arc<XdpPort>, SharedTxSocket),
    /// The rings, with the addressing of what leaves there and the place of the newest packet.
    Rings(Arc<RingPort>, Flow, Cell<u32>),
    /// Shared memory to a program of this host, with the addressing of what leaves there.
    Pipe(PipeEnd, Flow),
}

impl TxPath {
    /// The addressing of what this queue pair sends.
    pub fn flow(&self) -> Flow {
        match self {
            Self::Socket(sender) | Self::Xdp(_, sender) => sender.flow(),
            Self::Rings(_, flow, _) | Self::Pipe(_, flow) => *flow,
        }
    }

    /// Whether the packets of a batch may arrive one by one. A peer that sleeps until it gets events may then
    /// see an answer before the ACK behind it, which no card lets happen: Debian's `ib_send_lat -e` waits for
    /// ever.
    pub fn may_part(&self) -> bool {
        match self {
            // Within a host nothing cuts what was sent in one piece.
            Self::Socket(sender) => {
                let flow = sender.flow();
                flow.source != flow.destination || !TxSocket::limits(sender).gso
            }
            Self::Rings(..) | Self::Xdp(..) => true,
            Self::Pipe(..) => false,
        }
    }

    /// Whether each packet of a batch takes a system call of its own, so that a peer has time to act between
    /// two of them.
    pub fn sends_one_by_one(&self) -> bool {
        match self {
            // A single `sendto` makes the kernel send all frames of the ring.
            Self::Xdp(port, _) if port.is_up() => false,
            _ => !self.limits().gso,
        }
    }

    /// Whether the newest packet cannot have got lost and waits: until the peer, which lives, answers it, or
    /// until the broker takes it.
    pub fn keeps_waiting(&self) -> bool {
        match self {
            Self::Pipe(end, _) => end.keeps_waiting(),
            Self::Rings(port, _, newest) => port.keeps(newest.get()),
            Self::Socket(_) | Self::Xdp(..) => false,
        }
    }

    /// The peer's process and the addressing, if its memory can be copied to and from without packets.
    pub fn direct(&self) -> Option<(&Direct, &Flow)> {
        match self {
            Self::Socket(_) | Self::Xdp(..) | Self::Rings(..) => None,
            Self::Pipe(end, flow) => Some((end.direct()?, flow)),
        }
    }
}

impl Transmit for TxPath {
    // The result is copied at each call, which costs more than the match.
    #[inline(always)]
    fn send(&self, batch: &mut TxBatch<'_>, now: Instant) -> Option<Result<Sent, SendError>> {
        Some(match self {
            Self::Socket(sender) => TxSocket::send(sender, batch),
            Self::Xdp(port, sender) => port.send(batch, sender, now),
            Self::Rings(port, _, newest) => Ok(port.send(batch, newest)),
            Self::Pipe(end, _) => Ok(end.send(batch)),
        })
    }

    fn limits(&self) -> BatchLimits {
        match self {
            Self::Xdp(port, _) if port.is_up() => XdpPort::limits(),
            Self::Socket(sender) | Self::Xdp(_, sender) => TxSocket::limits(sender),
            Self::Rings(..) => RingPort::limits(),
            Self::Pipe(..) => PeerPipe::limits(),
        }
    }

    fn room(&self, now: Instant) -> Room {
        match self {
            Self::Pipe(end, _) => end.room(now),
            _ => Room::ForAll,
        }
    }

    fn has_more(&self) {
        if let Self::Pipe(end, _) = self {
            end.set_owing(true);
        }
    }

    fn has_no_more(&self) {
        if let Self::Pipe(end, _) = self {
            end.set_owing(false);
        }
    }

    fn is_pipe(&self) -> bool {
        matches!(self, Self::Pipe(..))
    }
}

/// The sockets of a queue pair of datagrams, by source port: found without a lock, and open as long as the
/// queue pair may have something for them, whatever becomes of the address handle. At most 256 for each local
/// address.
#[derive(Default)]
pub struct DatagramPaths {
    sockets: Vec<Arc<SharedTxSocket>>,
    rings: Option<Arc<RingPort>>,
    /// The port of the device's interface, and the addresses on that interface. Others leave by sockets.
    xdp: Option<(Arc<XdpPort>, Vec<IpAddr>)>,
}

impl DatagramPaths {
    fn place(&self, flow: &Flow) -> Result<usize, usize> {
        let key = |flow: &Flow| (flow.source_port, flow.source);
        self.sockets.binary_search_by_key(&key(flow), |sender| key(&sender.flow()))
    }

    /// Sees to it that `flow` has its socket, unless that is closed. `rings` and `socket` find what packets
    /// can leave by.
    pub fn open(
        &mut self,
        flow: &Flow,
        rings: impl FnOnce() -> Option<Arc<RingPort>>,
        socket: impl FnOnce() -> Option<Arc<SharedTxSocket>>,
    ) {
        if goes_by_rings(flow) {
            if self.rings.is_none() {
                self.rings = rings();
            }
            return;
        }
        if let Err(place) = self.place(flow)
            && let Some(sender) = socket()
        {
            self.sockets.insert(place, sender);
        }
    }

    /// Datagrams from these addresses leave by a port.
    pub fn set_port(&mut self, xdp: Option<(Arc<XdpPort>, Vec<IpAddr>)>) {
        self.xdp = xdp;
    }

    /// The port for datagrams of this source, if it is up.
    fn port(&self, source: IpAddr) -> Option<&XdpPort> {
        let (port, addresses) = self.xdp.as_ref()?;
        (port.is_up() && addresses.contains(&source)).then_some(port)
    }
}

impl Transmit for DatagramPaths {
    fn send(&self, batch: &mut TxBatch<'_>, now: Instant) -> Option<Result<Sent, SendError>> {
        let flow = batch.flow()?;
        if goes_by_rings(flow) {
            return self.rings.as_ref().map(|port| Ok(port.send(batch, &Cell::new(0))));
        }
        let socket = self.place(flow).ok().and_then(|place| self.sockets.get(place));
        let port = self.port(flow.source);
        socket.map(|sender| match port {
            Some(port) => port.send(batch, sender, now),
            None => TxSocket::send(sender, batch),
        })
    }

    /// Limits of a batch. All sockets have the same limits, unless the system refused segmentation (GSO) for
    /// one of them; that socket sends the packets of a batch one by one.
    fn limits(&self) -> BatchLimits {
        // Without any socket packets are lost one by one.
        let none = BatchLimits { max_segments: 1, gso: false };
        let rings = self.rings.as_ref().map_or(none, |_| RingPort::limits());
        match &self.xdp {
            Some((port, _)) if port.is_up() => XdpPort::limits(),
            _ => self.sockets.first().map_or(rings, |sender| TxSocket::limits(sender)),
        }
    }
}

/// Sockets know their interface from the address; who names it sends frames there.
const fn goes_by_rings(flow: &Flow) -> bool {
    flow.link.ifindex != 0
}
