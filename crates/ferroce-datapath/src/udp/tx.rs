use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use ferroce_host::environment;
use ferroce_wire::{BatchLimits, Flow, ROCE_UDP_PORT, TxBatch};
use libc::{IPPROTO_IP, IPPROTO_IPV6, c_int};

use super::{Class, address, open_socket, set_receive_buffer};
use crate::sys::{self, Target};

/// Limit of a batch in octets: the longest UDP payload over IPv4.
pub const MAX_BATCH: usize = 65_507;

/// Requested send buffer in octets: the limit of data in an interface's queue.
const SEND_BUFFER: usize = 4 << 20;

/// An unconnected socket that sends from one UDP source port and receives nothing. Any number of threads and
/// flows may share it.
///
/// A connected one would save 0.4 µs for each message, since the kernel keeps its route. But the kernel
/// counts the IPv4 identifications of a connected socket from a number that nobody knows, and the ICRC covers
/// them (Linux 6.18; cards and rxe then drop what it sends).
#[derive(Debug)]
pub struct TxSocket {
    fd: OwnedFd,
    local: SocketAddr,
    /// [`ROCE_UDP_PORT`] except in tests.
    peer_port: u16,
    /// The socket's values for messages without control messages.
    traffic_class: AtomicU8,
    hop_limit: AtomicU8,
    gso: AtomicBool,
}

/// The outcome of a batch or datagram. Lost datagrams count as lost in the network: the transport retransmits
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "losses must be counted"]
pub struct Sent {
    /// Datagrams that the kernel accepted.
    pub sent: usize,
    /// Datagrams that the kernel refused.
    pub lost: usize,
    /// The reason of the last refusal.
    pub reason: Option<LossReason>,
}

impl Sent {
    const NONE: Self = Self { sent: 0, lost: 0, reason: None };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    /// The send buffer or the interface's queue is full, or memory is short.
    Congested,
    /// A firewall or security policy forbids it.
    Forbidden,
    /// No route, no such local address any more, or the interface is down.
    Unreachable,
    /// The datagram exceeds the interface's MTU.
    TooLong,
    Other,
}

/// The socket itself is unusable: a bug, or the program closed our descriptor.
#[derive(Debug, thiserror::Error)]
#[error("cannot send from {local}")]
pub struct SendError {
    pub local: SocketAddr,
    #[source]
    pub source: io::Error,
}

impl TxSocket {
    /// Opens a socket for source port `port` of local address `ip`; `scope_id` is the interface's index for a
    /// link-local IPv6 address, 0 otherwise.
    ///
    /// An error of kind `AddrInUse` means that this or another process has the port: the caller tries the
    /// next of [`super::source_ports`]. The port is never shared through `SO_REUSEPORT`.
    pub fn bind(ip: IpAddr, scope_id: u32, port: u16) -> io::Result<Self> {
        Self::bind_towards(ip, scope_id, port, ROCE_UDP_PORT)
    }

    pub(super) fn bind_towards(ip: IpAddr, scope_id: u32, port: u16, peer_port: u16) -> io::Result<Self> {
        let socket = open_socket(ip)?;
        set_receive_buffer(&socket, 0)?;
        // A full send buffer causes loss; the kernel grants at most `net.core.wmem_max`.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        sys::drop_all(&socket)?;
        let local = address(ip, scope_id, port);
        socket.bind(&local.into())?;
        let hop_limit = match ip {
            IpAddr::V4(_) => sys::get_int(&socket, IPPROTO_IP, libc::IP_TTL)?,
            IpAddr::V6(_) => sys::get_int(&socket, IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)?,
        };
        Ok(Self {
            local,
            peer_port,
            traffic_class: AtomicU8::new(0),
            hop_limit: AtomicU8::new(hop_limit as u8),
            gso: AtomicBool::new(gso_enabled()),
            fd: socket.into(),
        })
    }

    pub fn port(&self) -> u16 {
        self.local.port()
    }

    /// Local address and source port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Makes a traffic class the socket's default, which needs no control message, and a service level the
    /// priority of its frames. Other flows of the socket send their traffic class in a control message.
    pub(super) fn set_class(&self, class: Class) -> io::Result<()> {
        let Class { traffic_class, service_level } = class;
        if class == Class::default() {
            return Ok(());
        }
        let (level, name) = match self.local.ip() {
            IpAddr::V4(_) => (IPPROTO_IP, libc::IP_TOS),
            IpAddr::V6(_) => (IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        sys::set_int(&self.fd, level, name, c_int::from(traffic_class))?;
        self.traffic_class.store(traffic_class, Ordering::Relaxed);
        // The kernel derived a priority from the type of service. A priority of 7 needs a privilege.
        let priority = c_int::from(service_level & 7);
        let set = |priority| sys::set_int(&self.fd, libc::SOL_SOCKET, libc::SO_PRIORITY, priority);
        set(priority).or_else(|e| if e.kind() == io::ErrorKind::PermissionDenied { set(6) } else { Err(e) })
    }

    /// Makes a hop limit other than 0 the socket's default, which needs no control message. Other flows of
    /// the socket send theirs in a control message.
    pub fn prefer_hop_limit(&self, hop_limit: u8) -> io::Result<()> {
        if hop_limit == 0 || hop_limit == self.hop_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (level, name) = match self.local.ip() {
            IpAddr::V4(_) => (IPPROTO_IP, libc::IP_TTL),
            IpAddr::V6(_) => (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        };
        sys::set_int(&self.fd, level, name, c_int::from(hop_limit))?;
        self.hop_limit.store(hop_limit, Ordering::Relaxed);
        Ok(())
    }

    /// The limits of a batch for this socket. `gso` is false with `FERROCE_GSO=off`, and permanently false
    /// once the kernel refused to segment.
    pub fn limits(&self) -> BatchLimits {
        BatchLimits { max_segments: sys::MAX_SEGMENTS, gso: self.gso.load(Ordering::Relaxed) }
    }

    /// Sends a batch, in one system call if the kernel segments it. If the kernel refuses to segment, the
    /// batch is sent one by one, with its ICRCs and limits changed.
    pub fn send(&self, batch: &mut TxBatch<'_>) -> Result<Sent, SendError> {
        let Some(flow) = batch.flow() else { return Ok(Sent::NONE) };
        let target = self.target(flow);
        if batch.len() == 1 {
            return self.outcome(1, sys::send_one(&self.fd, &target, batch.bytes()).map(|()| 1));
        }
        if !batch.limits().gso {
            return self.send_one_by_one(&target, batch);
        }
        if !self.gso.load(Ordering::Relaxed) {
            batch.reseal_without_gso();
            return self.send_one_by_one(&target, batch);
        }
        let mut cut = self.target(flow);
        cut.segment(batch.segment_size() as u16);
        match sys::send_one(&self.fd, &cut, batch.bytes()) {
            // EIO: the interface cannot compute checksums while segmenting. EINVAL: segmentation is
            // unsupported, or the source address is gone; only success without segmentation proves the
            // former.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => {
                batch.reseal_without_gso();
                let sent = self.send_one_by_one(&target, batch)?;
                if sent.sent > 0 {
                    self.gso.store(false, Ordering::Relaxed);
                }
                Ok(sent)
            }
            result => self.outcome(batch.len(), result.map(|()| batch.len())),
        }
    }

    fn send_one_by_one(&self, target: &Target, batch: &TxBatch<'_>) -> Result<Sent, SendError> {
        let mut total = Sent::NONE;
        while total.sent + total.lost < batch.len() {
            let done = total.sent + total.lost;
            let result = sys::send_many(&self.fd, target, batch.segments().skip(done));
            // The error concerns the first of them only; after a full queue the others are not tried.
            let full = result.as_ref().is_err_and(|e| loss_reason(e) == Some(LossReason::Congested));
            let part = self.outcome(if full { batch.len() - done } else { 1 }, result)?;
            total.sent += part.sent;
            total.lost += part.lost;
            total.reason = part.reason.or(total.reason);
        }
        Ok(total)
    }

    /// Sends one sealed datagram (BTH to ICRC). The source of `flow` is ignored: it is the socket's.
    ///
    /// A hop limit of 0 leaves the system's default, because the kernel refuses 0.
    pub fn send_datagram(&self, flow: &Flow, bytes: &[u8]) -> Result<Sent, SendError> {
        self.outcome(1, sys::send_one(&self.fd, &self.target(flow), bytes).map(|()| 1))
    }

    fn target(&self, flow: &Flow) -> Target {
        let scope_id = match self.local {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(local) => local.scope_id(),
        };
        let mut target = Target::new(address(flow.destination, scope_id, self.peer_port));
        if flow.traffic_class != self.traffic_class.load(Ordering::Relaxed) {
            target.traffic_class(self.local.ip(), flow.traffic_class);
        }
        // The socket's own hop limit is that of unicasts.
        let own =
            !flow.destination.is_multicast() && flow.hop_limit == self.hop_limit.load(Ordering::Relaxed);
        if flow.hop_limit != 0 && !own {
            target.hop_limit(self.local.ip(), flow.hop_limit);
        }
        target
    }

    /// Sorts the kernel's result for `count` datagrams into loss and failure.
    fn outcome(&self, count: usize, result: io::Result<usize>) -> Result<Sent, SendError> {
        match result {
            Ok(sent) => Ok(Sent { sent, lost: 0, reason: None }),
            Err(source) => match loss_reason(&source) {
                Some(reason) => Ok(Sent { sent: 0, lost: count, reason: Some(reason) }),
                None => Err(SendError { local: self.local, source }),
            },
        }
    }
}

impl AsFd for TxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns whether segmentation offload is enabled: captures on lo show single packets without it.
fn gso_enabled() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| environment::variable("FERROCE_GSO").is_none_or(|value| value != "off"))
}

/// Returns `None` for errors that only a broken socket or a bug causes.
fn loss_reason(e: &io::Error) -> Option<LossReason> {
    Some(match e.raw_os_error()? {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => LossReason::Congested,
        libc::EPERM | libc::EACCES => LossReason::Forbidden,
        // EINVAL: the source address is no longer local.
        libc::ENETUNREACH
        | libc::EHOSTUNREACH
        | libc::ENETDOWN
        | libc::EHOSTDOWN
        | libc::ENODEV
        | libc::ENXIO
        | libc::EADDRNOTAVAIL
        | libc::EINVAL
        | libc::ECONNREFUSED => LossReason::Unreachable,
        libc::EMSGSIZE => LossReason::TooLong,
        libc::EBADF
        | libc::ENOTSOCK
        | libc::EFAULT
        | libc::EDESTADDRREQ
        | libc::EOPNOTSUPP
        | libc::EAFNOSUPPORT
        | libc::EPIPE => return None,
        _ => LossReason::Other,
    })
}
