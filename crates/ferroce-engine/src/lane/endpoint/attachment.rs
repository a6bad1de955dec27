//! The attachment of an endpoint: the lanes and sockets by which its packets come and leave.

use std::sync::Arc;

use ferroce_paths::frames::FramePort;
use ferroce_paths::streams::{Remains, StreamPort};
use ferroce_paths::tx_path::{DatagramPaths, TxPath};

use crate::lane::Lane;

/// The connection of a queue pair with its peers, by its service.
pub(crate) enum Attachment {
    /// RC, UC and XRC: the path of the connection, from RTR on.
    Connected(Option<ConnectedPath>),
    /// UD.
    Datagrams(Datagrams),
    /// Raw packets.
    Frames(Frames),
    /// iWARP: the TCP connection, in RTS.
    Tcp(Option<TcpConnection>),
}

impl Attachment {
    /// All lanes on which packets for the endpoint may arrive, but those of groups. The first one runs the
    /// timers.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let (first, more) = match self {
            Self::Connected(path) => match path {
                Some(ConnectedPath { lane, beside, .. }) => (Some(lane), beside.as_slice()),
                None => (None, &[][..]),
            },
            Self::Datagrams(Datagrams { lanes, .. }) => (None, &lanes[..]),
            Self::Frames(Frames { lane, .. }) => (lane.as_ref(), &[][..]),
            Self::Tcp(connection) => (connection.as_ref().map(|connection| &connection.lane), &[][..]),
        };
        first.into_iter().chain(more)
    }
}

/// The path of a connection's packets, from RTR on.
pub(crate) struct ConnectedPath {
    /// Lane on which packets of the connection arrive, and which runs the timers.
    pub(crate) lane: Arc<Lane>,
    /// A second lane where packets may arrive: a socket's beside a port of AF_XDP, or the port's.
    pub(crate) beside: Option<Arc<Lane>>,
    pub(crate) socket: TxPath,
}

/// The ways of a queue pair of datagrams.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// Sockets that datagrams leave from.
    pub(crate) paths: DatagramPaths,
    /// Lanes that datagrams arrive on, from RTR on. The first one runs the timers.
    pub(super) lanes: Vec<Arc<Lane>>,
}

/// The frames of a raw packet queue pair.
pub(crate) struct Frames {
    pub(crate) port: Arc<FramePort>,
    /// The lane of the port, until the queue pair is destroyed.
    pub(super) lane: Option<Arc<Lane>>,
    /// Memory in which a frame is put together.
    pub(super) buffer: Box<[u8]>,
}

impl Frames {
    /// `longest`: octets of a frame at most.
    pub(crate) fn new(port: Arc<FramePort>, longest: usize) -> Self {
        Self { port, lane: None, buffer: vec![0; longest].into() }
    }
}

/// The TCP connection of an endpoint, from the end of the set-up to the end of the connection.
pub(crate) struct TcpConnection {
    pub(super) port: StreamPort,
    pub(super) events: Arc<dyn StreamEvents>,
    /// The lane that receives from it.
    pub(super) lane: Arc<Lane>,
}

/// The receiver of the events of one iWARP connection. The endpoint's lock is held during each call, which may
/// come on any thread, so an implementation only queues the event and wakes the background thread.
pub(crate) trait StreamEvents: Send + Sync {
    /// The responder's queue pair may send, or the peer shows by its first FPDU that it can.
    fn established(&self);
    /// The queue pair has no more use for the connection.
    fn ended(&self, remains: Remains);
}
