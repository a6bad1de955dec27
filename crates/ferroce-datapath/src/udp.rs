//! RoCEv2 over unprivileged UDP sockets.
//!
//! | purpose | socket |
//! |---|---|
//! | receive | one *group* of `SO_REUSEPORT` sockets for each local address, bound to port 4791; a classic BPF program sends each datagram to the member whose index is bits 23..16 of the destination QPN, the *slot* |
//! | receive multicast | a socket of its own for each multicast group and interface, bound to the group's address |
//! | send | one unconnected socket for each UDP source port, because the kernel takes the source port from the socket alone |
//!
//! The ICRC covers the IPv4 identification and the DF bit, which the kernel writes after us. An unconnected
//! IPv4 socket with path MTU discovery `PROBE` sends identification 0 with DF; with `UDP_SEGMENT`, segment
//! *k* of a call leaves with identification *k*. IPv6 has no identification. `WANT`, the default, and
//! connected sockets are unpredictable.

mod group;
mod multicast;
mod port;
mod ports;
mod rx;
mod tx;

pub use group::{Group, OpenError, SLOTS};
pub use port::{PORTS, source_ports};
pub use ports::{Class, TxPorts};
pub use rx::{Datagram, Datagrams, RxBuffer, RxSocket};
pub use tx::{LossReason, MAX_BATCH, SendError, Sent, TxSocket};

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use ferroce_host::environment;
use libc::{IPPROTO_IP, IPPROTO_IPV6, c_int};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use socket2::Socket;

use crate::sys;

/// Receive buffer requested for a leased member, in bytes of payload and kernel overhead; the kernel grants
/// at most `net.core.rmem_max`, often 208 KiB.
pub const RECEIVE_BUFFER: usize = 8 << 20;

/// Opens an unbound datagram socket of the family of `ip`, with the options common to sending and receiving.
fn open_socket(ip: IpAddr) -> io::Result<Socket> {
    // A direct system call: an interposed library such as librspreload would otherwise create a socket of its
    // own.
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: Socket =
        rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?.into();
    match ip {
        IpAddr::V4(_) => {
            // With DO instead of PROBE, a smaller route MTU or a forged ICMP message causes EMSGSIZE.
            sys::set_int(&socket, IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            sys::set_int(&socket, IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        }
        IpAddr::V6(_) => {
            socket.set_only_v6(true)?;
            sys::set_int(&socket, IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            // PROBE alone lets the kernel fragment locally.
            sys::set_int(&socket, IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
            sys::set_int(&socket, IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
        }
    }
    Ok(socket)
}

/// Sets the receive buffer and returns the size that the kernel granted, in its own accounting: it doubles
/// the requested number, and charges about 8 KiB for a datagram of 4,156 bytes.
fn set_receive_buffer(fd: &impl AsFd, bytes: usize) -> io::Result<usize> {
    let bytes = c_int::try_from(bytes.min(receive_buffer_cap())).unwrap_or(c_int::MAX / 2);
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    granted_receive_buffer(fd)
}

/// `FERROCE_RCVBUF`, in bytes, caps every request. It imitates a small `net.core.rmem_max` in tests, since
/// that sysctl is not per network namespace.
fn receive_buffer_cap() -> usize {
    static CAP: OnceLock<usize> = OnceLock::new();
    *CAP.get_or_init(|| {
        environment::text("FERROCE_RCVBUF").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX)
    })
}

fn granted_receive_buffer(fd: &impl AsFd) -> io::Result<usize> {
    let granted = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    Ok(granted.max(0) as usize)
}

fn address(ip: IpAddr, scope_id: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope_id).into(),
    }
}

#[cfg(test)]
mod tests;
