//! Addresses that a program gives and is given, with their lengths.

use std::net::SocketAddr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::errno::Errno;
use crate::rdmacm::address;

fn length_of(address: &SocketAddr) -> usize {
    if address.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() }
}

/// The address that a program gives. EFAULT for NULL, EINVAL if it is cut, EAFNOSUPPORT for other families.
///
/// # Safety
///
/// `from` is NULL or readable for `length` octets.
pub(super) unsafe fn read(from: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Errno> {
    if from.is_null() {
        return Err(Errno::EFAULT);
    }
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `from` has `length` octets, which are enough.
    let family = i32::from(unsafe { from.cast::<libc::sa_family_t>().read_unaligned() });
    let whole = match family {
        libc::AF_INET => size_of::<sockaddr_in>(),
        // The scope was added later.
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    if length < whole {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as was just checked, all of it may be read.
    unsafe { address::parse(from) }
}

/// Gives a program an address: as much as there is room for, and how long it is.
///
/// # Safety
///
/// `length` is NULL or says how much may be written to `to`.
pub(super) unsafe fn write(
    address: SocketAddr,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    if length.is_null() {
        return Err(Errno::EFAULT);
    }
    let storage = address::storage(address);
    let whole = length_of(&address);
    // SAFETY: not NULL, so readable.
    let room = unsafe { length.read() } as usize;
    let count = room.min(whole);
    if count > 0 && to.is_null() {
        return Err(Errno::EFAULT);
    }
    if count > 0 {
        // SAFETY: the storage has room for any address, and `to` has `room` octets.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(&storage).cast::<u8>(), to.cast(), count) };
    }
    // SAFETY: not NULL, so writable.
    unsafe { length.write(whole as socklen_t) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_honoured() {
        for text in ["192.0.2.1:7", "[2001:db8::1]:9"] {
            let address: SocketAddr = text.parse().expect("an address");
            let mut room = [0xaa_u8; 64];
            let mut length: socklen_t = 5;
            // SAFETY: the room has more.
            unsafe { write(address, room.as_mut_ptr().cast(), &mut length) }.expect("written");
            assert_eq!((length as usize, room[5]), (length_of(&address), 0xaa));
            length = 64;
            // SAFETY: as above.
            unsafe { write(address, room.as_mut_ptr().cast(), &mut length) }.expect("written");
            for short in 0..length {
                // SAFETY: as above.
                assert_eq!(unsafe { read(room.as_ptr().cast(), short) }, Err(Errno::EINVAL));
            }
            // SAFETY: as above.
            assert_eq!(unsafe { read(room.as_ptr().cast(), length) }, Ok(address));
            // SAFETY: NULL is allowed where nothing is written.
            unsafe { write(address, std::ptr::null_mut(), &mut 0) }.expect("the length alone");
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(std::ptr::null(), 16) }, Err(Errno::EFAULT));
    }
}
