//! Members of multicast groups.

use std::io;
use std::net::IpAddr;

use ferroce_wire::ROCE_UDP_PORT;
use libc::{IPPROTO_IP, IPPROTO_IPV6, c_int};
use socket2::InterfaceIndexOrAddress;

use super::group::configure_receiver;
use super::{RECEIVE_BUFFER, RxSocket, TxSocket, address, open_socket, set_receive_buffer};
use crate::sys;

impl RxSocket {
    /// Joins multicast group `group` on the interface `ifindex`: IGMP for IPv4, MLD for IPv6.
    ///
    /// The socket is bound to the group's address on UDP port 4791 and to the interface, so it receives only
    /// datagrams to this group there. Any number of sockets and processes may join one group; each receives a
    /// copy.
    ///
    /// An error of kind `InvalidInput` if `group` is no multicast address; otherwise the kernel's: `ENODEV`
    /// if the interface is gone, `ENOBUFS` or `EMFILE` if there are too many memberships.
    pub fn join(group: IpAddr, ifindex: u32) -> io::Result<Self> {
        if !group.is_multicast() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let socket = open_socket(group)?;
        socket.set_reuse_address(true)?;
        // For IPv4 the membership selects the interface; for IPv6 the kernel checks only the group.
        sys::set_int(&socket, libc::SOL_SOCKET, sys::SO_BINDTOIFINDEX, index(ifindex)?)?;
        configure_receiver(&socket, group)?;
        set_receive_buffer(&socket, RECEIVE_BUFFER)?;
        socket.bind(&address(group, ifindex, ROCE_UDP_PORT).into())?;
        match group {
            IpAddr::V4(group) => {
                socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex))?
            }
            IpAddr::V6(group) => socket.join_multicast_v6(&group, ifindex)?,
        }
        let joined = Self::from_fd(socket.into())?;
        joined.receive_headers()?;
        Ok(joined)
    }

    /// Leaves the group of [`RxSocket::join`], so that the socket receives nothing more.
    pub fn leave(&self, ifindex: u32) -> io::Result<()> {
        let socket = socket2::SockRef::from(self);
        match self.local_addr().ip() {
            IpAddr::V4(group) => {
                socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex))
            }
            IpAddr::V6(group) => socket.leave_multicast_v6(&group, ifindex),
        }
    }
}

impl TxSocket {
    /// Sends multicast datagrams by the interface `ifindex` from now on, with loopback to the members on this
    /// host. Without it the routing table selects the interface, which need not be that of the local address.
    ///
    /// `ENODEV` if the interface is gone.
    pub fn set_multicast_interface(&self, ifindex: u32) -> io::Result<()> {
        match self.local_addr().ip() {
            IpAddr::V4(_) => {
                sys::set_multicast_interface_v4(self, index(ifindex)?)?;
                sys::set_int(self, IPPROTO_IP, libc::IP_MULTICAST_LOOP, 1)
            }
            IpAddr::V6(_) => {
                sys::set_int(self, IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index(ifindex)?)?;
                sys::set_int(self, IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 1)
            }
        }
    }
}

fn index(ifindex: u32) -> io::Result<c_int> {
    c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput.into())
}
