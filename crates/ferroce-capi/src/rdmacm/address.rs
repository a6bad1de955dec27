//! Socket addresses, between C and Rust.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use ferroce_abi as abi;
use ferroce_wire::Gid;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::entry::ConstPtr;
use crate::errno::Errno;

/// Addresses that are GIDs; the C library has no name for the family.
pub(crate) const AF_IB: u16 = 27;

/// The address behind a program's pointer. EINVAL for NULL and unknown families; ENODEV for `AF_IB`, as from
/// Linux on RoCE, where no GID of a socket address leads to an interface (Linux 6.12,
/// `cma_resolve_iboe_route`).
pub(crate) fn read(address: ConstPtr<sockaddr>) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the contract of `entry`: not NULL, so readable for as long as its family needs.
    unsafe { parse(address.as_ptr()) }
}

/// The address in room for any family.
pub(super) fn of_storage(address: &sockaddr_storage) -> Result<SocketAddr, Errno> {
    // SAFETY: there is room for any family.
    unsafe { parse(ptr::from_ref(address).cast()) }
}

/// # Safety
///
/// `address` is readable for as long as its family needs.
pub(crate) unsafe fn parse(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: every address begins with its family; programs may have it anywhere.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: all of this family's address may be read.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = v4.sin_addr.s_addr.to_ne_bytes();
            Ok(SocketAddrV4::new(ip.into(), u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let port = u16::from_be(v6.sin6_port);
            let flow = u32::from_be(v6.sin6_flowinfo);
            Ok(SocketAddrV6::new(v6.sin6_addr.s6_addr.into(), port, flow, v6.sin6_scope_id).into())
        }
        _ if family == AF_IB => Err(Errno::ENODEV),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads an address that may be left out: NULL is `None`.
pub(super) fn read_optional(address: ConstPtr<sockaddr>) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Ok(None);
    }
    read(address).map(Some)
}

/// The address of something that may be a group. One of the family `AF_IB` is then a group's GID as it is,
/// which programs call unmapped; of others [`read`] says why not.
pub(super) fn read_group(address: ConstPtr<sockaddr>) -> Result<SocketAddr, Errno> {
    match read(address) {
        Err(Errno::ENODEV) => {
            // SAFETY: the contract of `entry`: the family is `AF_IB`, so all of its address may be read.
            let ib = unsafe { address.as_ptr().cast::<abi::sockaddr_ib>().read_unaligned() };
            // SAFETY: octets, whatever they were written as.
            let gid = Gid(unsafe { ib.sib_addr.ib_u.uib_addr8 });
            if gid.is_multicast() { Ok((gid.to_ip(), 0).into()) } else { Err(Errno::ENODEV) }
        }
        read => read,
    }
}

/// As C has it, in room for any family.
pub(crate) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all of it is plain data, for which zero is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = std::ptr::from_mut(&mut storage);
    match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for every family.
            unsafe { place.cast::<sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
        }
    }
    storage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_come_back_as_they_were() {
        for text in ["192.0.2.1:7174", "[2001:db8::1]:1", "[fe80::1%3]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            let c = storage(address);
            assert_eq!(of_storage(&c), Ok(address));
        }
        let labelled = SocketAddr::V6(SocketAddrV6::new([1; 16].into(), 2, 0x12345, 0));
        let c = storage(labelled);
        assert_eq!(&c_bytes(&c)[4..8], [0, 1, 0x23, 0x45], "network order");
        assert_eq!(of_storage(&c), Ok(labelled));
    }

    fn c_bytes(c: &sockaddr_storage) -> [u8; 128] {
        // SAFETY: plain data of that size, written as a whole.
        unsafe { std::ptr::from_ref(c).cast::<[u8; 128]>().read() }
    }

    #[test]
    fn other_families_are_refused() {
        for (family, want) in [(AF_IB, Errno::ENODEV), (1, Errno::EINVAL), (0, Errno::EINVAL)] {
            let mut c = storage(([0, 0, 0, 0], 0).into());
            c.ss_family = family;
            assert_eq!(of_storage(&c), Err(want));
        }
        assert_eq!(read(ConstPtr::NULL), Err(Errno::EINVAL));
        assert_eq!(read_optional(ConstPtr::NULL), Ok(None));
    }
}
