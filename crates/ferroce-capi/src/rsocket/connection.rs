//! Making and ending rsockets and their connections.

use std::sync::atomic::Ordering;

use core::ffi::{c_int, c_long};
use ferroce_rsocket::{Datagram, How, Stream};
use libc::{sockaddr, socklen_t};

use super::address;
use super::attempt;
use super::table::{self, Entry, Socket};
use crate::entry::{ConstPtr, Ptr, export};
use crate::errno::Errno;
use crate::{call, log, wait};

/// An rsocket. EOPNOTSUPP for what it cannot be.
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call::minus_one(|_| {
        log::install();
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let status = if kind & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
        let descriptor = if kind & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
        let socket = match (kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Socket::Stream(Stream::new(v6)?),
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Socket::Datagram(Datagram::new(v6)?),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        Ok(table::insert(Entry::new(socket, status, descriptor)))
    })
}

export! {
    /// Gives it an address and a port.
    pub fn rbind(socket: c_int, addr: ConstPtr<sockaddr>, addrlen: socklen_t) -> c_int = call::minus_one |_| {
        let entry = table::get(socket)?;
        // SAFETY: `addrlen` is the length of `addr`.
        let address = unsafe { address::read(addr.as_ptr(), addrlen) }?;
        match &entry.socket {
            Socket::Stream(stream) => stream.bind(address)?,
            Socket::Datagram(datagram) => datagram.bind(address)?,
            Socket::Repoll(_) => return Err(Errno::EBADF),
        }
        Ok(0)
    }
}

/// Takes requests from now on.
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    call::minus_one(|_| {
        table::get(socket)?.socket.stream()?.listen(backlog)?;
        Ok(0)
    })
}

export! {
    /// The oldest connection that was made. EINVAL if it does not listen. A cancellation point.
    pub waiting fn raccept(socket: c_int, addr: Ptr<sockaddr>, addrlen: Ptr<socklen_t>) -> c_int = wait::minus_one |_, woken| {
        woken?;
        let entry = table::get(socket)?;
        attempt(entry.socket.stream()?.accept(entry.is_nonblocking()))?.then(|stream| {
            if let (false, false, Some(peer)) = (addr.is_null(), addrlen.is_null(), stream.peer_addr()) {
                // SAFETY: `addrlen` names the room at `addr`.
                unsafe { address::write(peer, addr.as_ptr(), addrlen.as_ptr()) }?;
            }
            // As rdma-core has it, unlike a socket: what was accepted is non-blocking if the listener is.
            let status = entry.status.load(Ordering::Relaxed);
            Ok(table::insert(Entry::new(
                Socket::Stream(stream),
                status,
                entry.descriptor.load(Ordering::Relaxed),
            )))
        })
    }

    /// Asks for a connection. 0 if there is one. A cancellation point while it waits: the connection is then
    /// made all the same.
    pub waiting fn rconnect(socket: c_int, addr: ConstPtr<sockaddr>, addrlen: socklen_t) -> c_int {
        let mut asked = false;
        wait::minus_one(|_, woken| {
            woken?;
            let entry = table::get(socket)?;
            // SAFETY: `addrlen` is the length of `addr`.
            let address = unsafe { address::read(addr.as_ptr(), addrlen) }?;
            let again = std::mem::replace(&mut asked, true);
            let connected = match &entry.socket {
                Socket::Stream(stream) if again => stream.finish_connect(),
                Socket::Stream(stream) => stream.connect(address, entry.is_nonblocking()),
                Socket::Datagram(datagram) => datagram.connect(address),
                Socket::Repoll(_) => return Err(Errno::EBADF),
            };
            attempt(connected)?.then(|()| Ok(0))
        })
    }
}

/// Stops reading, sending or both, and waits until the peer has what was sent.
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    call::minus_one(|_| {
        let entry = table::get(socket)?;
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(Errno::EINVAL),
        };
        entry.socket.stream()?.shutdown(how)?;
        Ok(0)
    })
}

/// Ends it.
pub extern "C" fn rclose(socket: c_int) -> c_int {
    call::minus_one(|_| {
        match &table::remove(socket)?.socket {
            Socket::Stream(stream) => stream.close(),
            Socket::Datagram(datagram) => datagram.close(),
            Socket::Repoll(repoll) => repoll.changed(),
        }
        Ok(0)
    })
}

export! {
    /// The peer's address.
    pub fn rgetpeername(socket: c_int, addr: Ptr<sockaddr>, addrlen: Ptr<socklen_t>) -> c_int = call::minus_one |_| {
        let peer = match &table::get(socket)?.socket {
            Socket::Stream(stream) => stream.peer_addr(),
            Socket::Datagram(datagram) => datagram.peer_addr(),
            Socket::Repoll(_) => return Err(Errno::EBADF),
        };
        let peer = peer.ok_or(Errno::ENOTCONN)?;
        // SAFETY: `addrlen` names the room at `addr`.
        unsafe { address::write(peer, addr.as_ptr(), addrlen.as_ptr()) }?;
        Ok(0)
    }

    /// The local address of the rsocket.
    pub fn rgetsockname(socket: c_int, addr: Ptr<sockaddr>, addrlen: Ptr<socklen_t>) -> c_int = call::minus_one |_| {
        let own = match &table::get(socket)?.socket {
            Socket::Stream(stream) => stream.local_addr(),
            Socket::Datagram(datagram) => datagram.local_addr()?,
            Socket::Repoll(_) => return Err(Errno::EBADF),
        };
        // SAFETY: `addrlen` names the room at `addr`.
        unsafe { address::write(own, addr.as_ptr(), addrlen.as_ptr()) }?;
        Ok(0)
    }
}

/// Flags of the descriptor. `arg` is that of the commands that have one.
pub extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    call::minus_one(|_| {
        let entry = table::get(socket)?;
        match cmd {
            libc::F_GETFL => Ok(entry.status.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                entry.status.store(arg as c_int, Ordering::Relaxed);
                Ok(0)
            }
            libc::F_GETFD => Ok(entry.descriptor.load(Ordering::Relaxed)),
            libc::F_SETFD => {
                entry.descriptor.store(arg as c_int, Ordering::Relaxed);
                Ok(0)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    })
}
