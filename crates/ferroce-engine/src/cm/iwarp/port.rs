//! Ports of TCP.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use ferroce_host::fork::Guarded;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::cm::CmError;

/// A port of TCP that is this process's until it is dropped, or the connection or listener at it ends.
pub(in crate::cm) struct TcpPort {
    local: SocketAddr,
    /// Empty once a connection or a listener has it.
    socket: Mutex<Option<Guarded<OwnedFd>>>,
}

impl TcpPort {
    /// Takes a port at `address`, perhaps the wildcard; port 0 is any that is free. Others may have it too as
    /// long as none of them listens (`SO_REUSEADDR`, as siw). `v6_only`: `::` does not mean the addresses of
    /// IPv4.
    ///
    /// # Errors
    /// [`CmError::InUse`], [`CmError::NoAddress`], [`CmError::Permission`].
    pub(in crate::cm) fn bind(address: SocketAddr, v6_only: bool) -> Result<Self, CmError> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Guarded::new(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?);
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, v6_only)?;
        }
        rustix::net::bind(&socket, &address)?;
        let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Self { local, socket: Mutex::new(Some(socket)) })
    }

    /// Number of the port.
    pub(in crate::cm) fn number(&self) -> u16 {
        self.local.port()
    }

    /// Local address of the port.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The socket, for a connection or a listener.
    pub(super) fn take(&self) -> Result<Guarded<OwnedFd>, CmError> {
        self.socket.lock().take().ok_or_else(|| CmError::Invalid("the port is in use already".to_owned()))
    }

    /// Takes back [`Self::take`].
    pub(super) fn put_back(&self, socket: Guarded<OwnedFd>) {
        *self.socket.lock() = Some(socket);
    }
}

/// Addresses of IPv4 as such, however the socket wrote them.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => (ip, address.port()).into(),
        _ => address,
    }
}
