//! Names and services, as `getaddrinfo` has them, with what connecting needs beside an address.

use std::ptr;

use core::ffi::{c_char, c_int, c_void};
use ferroce_abi as abi;
use libc::{addrinfo, sockaddr, socklen_t};

use super::address::AF_IB;
use super::ep::RAI_PASSIVE;
use crate::call;
use crate::errno::Errno;

const RAI_NUMERICHOST: c_int = 2;
/// There is nothing lengthy to leave out: routes are the kernel's.
const RAI_NOROUTE: c_int = 4;
const RAI_FAMILY: c_int = 8;

/// The kind of queue pair, 0 for any.
fn socket_type(qp_type: c_int) -> c_int {
    match qp_type as abi::ibv_qp_type {
        abi::IBV_QPT_RC | abi::IBV_QPT_UC | abi::IBV_QPT_XRC_SEND | abi::IBV_QPT_XRC_RECV => {
            libc::SOCK_STREAM
        }
        abi::IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    }
}

fn protocol(ps: c_int) -> c_int {
    match ps as abi::rdma_port_space {
        abi::RDMA_PS_TCP => libc::IPPROTO_TCP,
        abi::RDMA_PS_UDP => libc::IPPROTO_UDP,
        _ => 0,
    }
}

/// Frees what [`rdma_getaddrinfo`] made; a results list is taken apart by its allocator's rules: all of it is malloc's.
struct List(*mut abi::rdma_addrinfo);

impl Drop for List {
    fn drop(&mut self) {
        let mut next = self.0;
        while !next.is_null() {
            // SAFETY: an element of a list that nobody else uses any more.
            let info = unsafe { next.read() };
            let parts: [*mut c_void; 7] = [
                info.ai_src_addr.cast(),
                info.ai_dst_addr.cast(),
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_route,
                info.ai_connect,
                next.cast(),
            ];
            for part in parts {
                // SAFETY: from malloc, or NULL.
                unsafe { libc::free(part) };
            }
            next = info.ai_next;
        }
    }
}

/// A copy that `free` takes.
///
/// # Safety
///
/// `length` octets can be read at `from`.
unsafe fn copy(from: *const c_void, length: usize) -> Result<*mut c_void, Errno> {
    // SAFETY: malloc has no preconditions.
    let to = unsafe { libc::malloc(length.max(1)) };
    if to.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: as the caller says, and the new memory is as long.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), length) };
    Ok(to)
}

/// An address with its length, copied; nothing if there is none.
///
/// # Safety
///
/// `address` is NULL or readable for `length` octets.
unsafe fn copy_address(
    address: *const sockaddr,
    length: socklen_t,
) -> Result<(*mut sockaddr, socklen_t), Errno> {
    if address.is_null() || length == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: as the caller says.
    Ok((unsafe { copy(address.cast(), length as usize) }?.cast(), length))
}

/// What the system's resolver found first; a positive `EAI_` or negative one is its own.
enum Found {
    Address(System),
    Failure(c_int),
}

/// A list of the system's.
struct System(*mut addrinfo);

impl Drop for System {
    fn drop(&mut self) {
        // SAFETY: from getaddrinfo, once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

/// Asks the system.
///
/// # Safety
///
/// `node` and `service` are NULL or C strings.
unsafe fn ask(node: *const c_char, service: *const c_char, hints: Option<&abi::rdma_addrinfo>) -> Found {
    // SAFETY: plain data and pointers, for which zero is a value.
    let mut ask: addrinfo = unsafe { std::mem::zeroed() };
    // Without a hint it is a stream, as the port space is TCP's.
    ask.ai_socktype = libc::SOCK_STREAM;
    if let Some(hints) = hints {
        let passive = hints.ai_flags & RAI_PASSIVE != 0;
        let numeric = hints.ai_flags & RAI_NUMERICHOST != 0;
        ask.ai_flags =
            if passive { libc::AI_PASSIVE } else { 0 } | if numeric { libc::AI_NUMERICHOST } else { 0 };
        // An answer of IP stands for a family of GIDs, unless just that is wanted.
        let gids = hints.ai_family == c_int::from(AF_IB) && hints.ai_flags & RAI_FAMILY == 0;
        ask.ai_family = if gids { libc::AF_UNSPEC } else { hints.ai_family };
        ask.ai_protocol = protocol(hints.ai_port_space);
        ask.ai_socktype = match (socket_type(hints.ai_qp_type), ask.ai_protocol) {
            (0, libc::IPPROTO_UDP) => libc::SOCK_DGRAM,
            (0, _) => libc::SOCK_STREAM,
            (given, _) => given,
        };
    }
    let mut list = ptr::null_mut();
    // SAFETY: as the caller says; the hints and the list are in this frame.
    match unsafe { libc::getaddrinfo(node, service, &ask, &mut list) } {
        0 => Found::Address(System(list)),
        failure => Found::Failure(failure),
    }
}

/// Resolves a name and a service for either side. 0, or -1 and errno, or one of `getaddrinfo`'s codes.
///
/// Without `node` the hints say where to; nothing at all is EINVAL. Source, canonical names and routes are given where
/// they are known: the source is left to the routing tables.
///
/// # Safety
///
/// `node` and `service` are NULL or C strings, `hints` NULL or readable with addresses as long as they say, `res` NULL or
/// writable.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const abi::rdma_addrinfo,
    res: *mut *mut abi::rdma_addrinfo,
) -> c_int {
    call::minus_one(|_| {
        // SAFETY: NULL, or readable as the caller says.
        let hints = unsafe { hints.as_ref() };
        if res.is_null() || (node.is_null() && service.is_null() && hints.is_none()) {
            return Err(Errno::EINVAL);
        }
        let known = RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY;
        if hints.is_some_and(|hints| hints.ai_flags & !known != 0) {
            return Ok(libc::EAI_BADFLAGS);
        }
        let found = if node.is_null() && service.is_null() {
            None
        } else {
            // SAFETY: as the caller says.
            match unsafe { ask(node, service, hints) } {
                Found::Address(list) => Some(list),
                Found::Failure(code) => return Ok(code),
            }
        };
        // SAFETY: as the caller says.
        let list = unsafe { answer(found.as_ref(), hints) }?;
        let first = list.0;
        std::mem::forget(list);
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { res.write(first) };
        Ok(0)
    })
}

/// One result: what the system found, and what the hints add.
///
/// # Safety
///
/// The addresses of the hints are as long as they say.
unsafe fn answer(found: Option<&System>, hints: Option<&abi::rdma_addrinfo>) -> Result<List, Errno> {
    // SAFETY: calloc has no preconditions.
    let place = unsafe { libc::calloc(1, size_of::<abi::rdma_addrinfo>()) }.cast::<abi::rdma_addrinfo>();
    // SAFETY: NULL, or all zeros, which is a value of plain data and pointers.
    let info = unsafe { place.as_mut() }.ok_or(Errno::ENOMEM)?;
    let list = List(place);
    if let Some(hints) = hints {
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
    }
    let passive = info.ai_flags & RAI_PASSIVE != 0;
    if let Some(System(first)) = found {
        // SAFETY: the system's list has an element at least.
        let first = unsafe { &**first };
        info.ai_family = first.ai_family;
        let datagrams = first.ai_socktype == libc::SOCK_DGRAM;
        if info.ai_qp_type == 0 {
            let of = if datagrams { abi::IBV_QPT_UD } else { abi::IBV_QPT_RC };
            info.ai_qp_type = of as c_int;
        }
        if info.ai_port_space == 0 {
            let of = if datagrams { abi::RDMA_PS_UDP } else { abi::RDMA_PS_TCP };
            info.ai_port_space = of as c_int;
        }
        // SAFETY: the system's own address.
        let address = unsafe { copy_address(first.ai_addr, first.ai_addrlen) }?;
        if passive {
            (info.ai_src_addr, info.ai_src_len) = address;
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = address;
        }
    }
    if let Some(hints) = hints {
        if info.ai_dst_addr.is_null() && found.is_none() {
            // SAFETY: as the caller says.
            (info.ai_dst_addr, info.ai_dst_len) =
                unsafe { copy_address(hints.ai_dst_addr, hints.ai_dst_len) }?;
        }
        if info.ai_src_addr.is_null() {
            // SAFETY: as the caller says.
            (info.ai_src_addr, info.ai_src_len) =
                unsafe { copy_address(hints.ai_src_addr, hints.ai_src_len) }?;
        }
    }
    Ok(list)
}

/// Frees results.
///
/// # Safety
///
/// `res` is NULL or came from [`rdma_getaddrinfo`], once.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut abi::rdma_addrinfo) {
    drop(List(res));
}
