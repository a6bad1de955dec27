//! The sources of lanes. This file alone tells in what the kinds differ for the users of a lane; each kind
//! receives in a file of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use ferroce_datapath::udp::RxSocket;
use ferroce_host::fork::Guarded;
use ferroce_ipc::pipe::MAX_BATCH;
use ferroce_paths::frames::FramePort;
use ferroce_paths::pipes::Pipes;
use ferroce_paths::rings::RingPort;
use ferroce_paths::streams::Streams;
use ferroce_paths::xdp::XdpPort;
use ferroce_proto::Service;
use ferroce_wire::Instant;

use super::{Endpoint, Lane, Members, Receiver};

/// The source of a lane's packets, with the state that only lanes of that kind have. An enum, because lanes
/// of all kinds are in one list.
pub(crate) enum Source {
    /// Datagrams to an address.
    Udp(Guarded<RxSocket>),
    /// Datagrams to a multicast group.
    Group {
        socket: Guarded<RxSocket>,
        /// The endpoints that are attached.
        members: Members,
    },
    /// Ethernet frames of one endpoint.
    Frames { port: Arc<FramePort>, endpoint: Weak<Endpoint> },
    /// Packets that the broker received.
    Rings {
        port: Arc<RingPort>,
        /// Interfaces where the ICRC does not count.
        unchecked: ArcSwap<Vec<u32>>,
    },
    /// Packets of an interface that came by AF_XDP.
    Xdp(Arc<XdpPort>),
    /// Batches that programs of this host sent by shared memory.
    Pipes(Arc<Pipes>),
    /// Octets of the TCP connections of iWARP.
    Streams(Arc<Streams>),
}

/// The properties of a kind of source.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    /// A program may wait for its descriptor, which tells of packets to the program's own address.
    pub(crate) wakes_programs: bool,
    /// The background thread may look at it again and again. A look at an empty pipe prepares to sleep, so
    /// that thread looks at pipes once.
    pub(crate) can_stay: bool,
    /// A look at it is no system call.
    pub(crate) is_in_memory: bool,
    /// The packets come through the broker.
    pub(crate) is_by_broker: bool,
    /// Few packets come here while a port of AF_XDP of the same device is up.
    pub(super) is_beside_port: bool,
    /// The packets have an ICRC.
    pub(super) has_icrc: bool,
    /// Each packet is copied to many endpoints: a flood must not delay threads that wait for other lanes.
    pub(super) copies: bool,
}

impl Source {
    /// The properties of this kind.
    pub(super) const fn traits(&self) -> Traits {
        const NONE: Traits = Traits {
            wakes_programs: false,
            can_stay: false,
            is_in_memory: false,
            is_by_broker: false,
            is_beside_port: false,
            has_icrc: true,
            copies: false,
        };
        match self {
            Self::Udp(_) => Traits { wakes_programs: true, can_stay: true, is_beside_port: true, ..NONE },
            Self::Group { .. } => Traits { copies: true, ..NONE },
            Self::Frames { .. } => NONE,
            Self::Rings { .. } => Traits { is_by_broker: true, is_beside_port: true, ..NONE },
            Self::Xdp(_) => Traits { wakes_programs: true, can_stay: true, is_in_memory: true, ..NONE },
            Self::Pipes(_) => Traits { wakes_programs: true, is_in_memory: true, has_icrc: false, ..NONE },
            Self::Streams(_) => Traits { wakes_programs: true, can_stay: true, ..NONE },
        }
    }

    /// The descriptor that is readable while something waits.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) | Self::Group { socket, .. } => socket.as_fd(),
            Self::Frames { port, .. } => port.as_fd(),
            Self::Rings { port, .. } => port.fd(),
            Self::Xdp(port) => port.fd(),
            Self::Pipes(pipes) => pipes.fd(),
            Self::Streams(streams) => streams.fd(),
        }
    }

    /// The socket whose datagrams it receives.
    pub(super) const fn socket(&self) -> Option<&Guarded<RxSocket>> {
        match self {
            Self::Udp(socket) | Self::Group { socket, .. } => Some(socket),
            _ => None,
        }
    }

    /// The pipes.
    pub(super) const fn pipes(&self) -> Option<&Arc<Pipes>> {
        match self {
            Self::Pipes(pipes) => Some(pipes),
            _ => None,
        }
    }

    /// Whether its packets come by AF_XDP, and its port is up.
    pub(super) fn is_port_up(&self) -> bool {
        matches!(self, Self::Xdp(port) if port.is_up())
    }

    /// Whether packets for the endpoint may come here that no connection of its own brought.
    pub(super) fn may_bring(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Streams(_) => false,
            Self::Frames { endpoint: of, .. } => ptr::eq(Weak::as_ptr(of), endpoint),
            Self::Group { .. } => endpoint.service == Service::Ud,
            Self::Udp(_) | Self::Rings { .. } | Self::Xdp(_) | Self::Pipes(_) => {
                !matches!(endpoint.service, Service::Iwarp | Service::RawPacket)
            }
        }
    }
}

impl Lane {
    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    pub(super) fn receive(&self, receiver: &mut Receiver, program: bool) -> Option<Instant> {
        receiver.octets = MAX_BATCH;
        match &self.source {
            Source::Udp(socket) => self.receive_udp(receiver, socket, program),
            Source::Group { socket, members } => self.receive_group(receiver, socket, members),
            Source::Frames { port, endpoint } => self.receive_frames(receiver, port, endpoint),
            Source::Rings { port, unchecked } => self.receive_rings(receiver, port, unchecked, program),
            Source::Xdp(port) => self.receive_xdp(receiver, port, program),
            Source::Pipes(pipes) => self.receive_pipes(receiver, pipes, program),
            Source::Streams(streams) => self.receive_streams(receiver, streams),
        }
    }
}
