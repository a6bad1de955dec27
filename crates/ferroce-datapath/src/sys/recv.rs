//! Receiving: one or many messages a call, with their control messages.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_int, iovec, mmsghdr, msghdr};

/// Limit of messages a call.
pub(crate) const MAX_MESSAGES: usize = 32;
/// Space for one message: a coalesced one is no longer than the longest UDP payload.
const MESSAGE_ROOM: usize = 65_536;
/// Distance of two messages. It is no multiple of the page size, or all headers would compete for one cache
/// set.
const STRIDE: usize = MESSAGE_ROOM + 9 * 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) traffic_class: u8,
    /// TTL or hop limit; 0 if the kernel did not report it.
    pub(crate) hop_limit: u8,
    pub(crate) len: usize,
    /// Size of each datagram but the last, if the kernel coalesced several.
    pub(crate) segment_size: Option<usize>,
}

/// Memory for [`MAX_MESSAGES`] messages of any size; the kernel allocates only the pages that it writes.
pub(crate) struct Arena {
    data: Vec<u8>,
    /// The kernel writes the sources and control messages of a call here: on the stack they would take 4 KiB.
    names: Vec<Name>,
    controls: Vec<Control>,
    messages: Vec<Message>,
}

/// Space for UDP_GRO, IPV6_TCLASS and IPV6_HOPLIMIT, an `int` each, and one more that an administrator's BPF
/// program may add.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 96]);

/// A source address of either family, as `recvmsg` writes it.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Arena {
    pub(crate) fn new() -> Self {
        // SAFETY: zeros are a valid address of either family.
        let name: Name = unsafe { std::mem::zeroed() };
        Self {
            data: vec![0; MAX_MESSAGES * STRIDE],
            names: vec![name; MAX_MESSAGES],
            controls: vec![Control([MaybeUninit::uninit(); 96]); MAX_MESSAGES],
            messages: Vec::with_capacity(MAX_MESSAGES),
        }
    }

    /// The messages of the last [`receive`].
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The bytes of message `index` of [`Self::messages`].
    pub(crate) fn bytes(&self, index: usize) -> &[u8] {
        &self.data[index * STRIDE..][..self.messages[index].len]
    }
}

/// Receives up to `max` messages, at most [`MAX_MESSAGES`], in one non-blocking call; drops the previous
/// ones. `WouldBlock` if the socket is empty.
pub(crate) fn receive(fd: &impl AsFd, arena: &mut Arena, max: usize) -> io::Result<usize> {
    arena.messages.clear();
    if max <= 1 {
        receive_batch::<1>(fd, arena)
    } else if max <= 8 {
        receive_batch::<8>(fd, arena)
    } else {
        receive_batch::<MAX_MESSAGES>(fd, arena)
    }
}

fn receive_batch<const N: usize>(fd: &impl AsFd, arena: &mut Arena) -> io::Result<usize> {
    const { assert!(N <= MAX_MESSAGES) };
    let raw = fd.as_fd().as_raw_fd();
    let base: *mut u8 = arena.data.as_mut_ptr();
    let names: *mut Name = arena.names.as_mut_ptr();
    let controls: *mut Control = arena.controls.as_mut_ptr();
    // SAFETY: `iovec` and `mmsghdr` are plain old data, for which zeros are valid.
    let (mut vectors, mut headers): ([iovec; N], [mmsghdr; N]) = unsafe { std::mem::zeroed() };
    let vectors_at: *mut iovec = vectors.as_mut_ptr();
    for (i, to) in headers.iter_mut().enumerate() {
        let vector = vectors_at.wrapping_add(i);
        // SAFETY: the i-th of the N vectors.
        unsafe { *vector = iovec { iov_base: base.wrapping_add(i * STRIDE).cast(), iov_len: MESSAGE_ROOM } };
        to.msg_hdr = header(names.wrapping_add(i), vector, controls.wrapping_add(i));
    }
    let count = if N == 1 {
        let n = retry(|| {
            // JUSTIFICATION: `libc::recvmsg` is a cancellation point; its two atomic exchanges are a tenth of
            // a call on an empty socket, and a cancellation here would leave the state half-written. SAFETY:
            // the header's pointers lead to one name, one vector and one control buffer of the lengths in it,
            // and the vector to MESSAGE_ROOM bytes of `arena.data`. The vector is local, the rest belongs to
            // the arena, which is borrowed mutably.
            let n = unsafe {
                libc::syscall(libc::SYS_recvmsg, raw, &raw mut headers[0].msg_hdr, libc::MSG_DONTWAIT)
            };
            n as isize
        })?;
        headers[0].msg_len = n as u32;
        1
    } else {
        retry(|| {
            // SAFETY: as above for each of the N headers: they lead to the i-th name, vector and control
            // buffer, and the i-th vector to bytes i * STRIDE.. of `arena.data`, which has MAX_MESSAGES *
            // STRIDE >= N * STRIDE bytes, so no two overlap.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    raw,
                    headers.as_mut_ptr(),
                    N as u32,
                    libc::MSG_DONTWAIT,
                    ptr::null_mut::<libc::timespec>(),
                )
            };
            n as isize
        })?
    };
    for (header, name) in headers.iter().zip(&arena.names).take(count) {
        // SAFETY: the kernel received this message, so it filled the name and the control buffer to the
        // lengths in the header.
        let message = unsafe { decode(&header.msg_hdr, header.msg_len as usize, name) };
        arena.messages.push(message);
    }
    Ok(count)
}

/// A header with room for an address and control messages.
pub(super) fn header<N, C>(name: *mut N, vector: *mut iovec, control: *mut C) -> msghdr {
    // SAFETY: `msghdr` is plain old data, for which zeros are valid (musl pads it, so it has no literal).
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.cast();
    header.msg_namelen = size_of::<N>() as libc::socklen_t;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.cast();
    header.msg_controllen = size_of::<C>() as _;
    header
}

/// # Safety
///
/// `recvmsg` or `recvmmsg` filled `header`; its name pointer leads to `name`, its control pointer to a live
/// buffer.
unsafe fn decode(header: &msghdr, len: usize, name: &Name) -> Message {
    // SAFETY: the kernel wrote `msg_namelen` bytes to `name`, by this function's contract.
    let (source, source_port) = unsafe { decode_name(header.msg_namelen as usize, name) };
    let len = len.min(MESSAGE_ROOM);
    let mut message =
        Message { source, source_port, traffic_class: 0, hop_limit: 0, len, segment_size: None };
    let each = |control: &ControlMessage| {
        // SAFETY: any octets are an integer.
        let int = || unsafe { control.read::<c_int>() };
        match (control.level, control.kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = int().and_then(|size| usize::try_from(size).ok());
                message.segment_size = size.filter(|size| *size > 0 && *size < len);
            }
            // The type is a byte for IPv4, an int for IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: any octet is an integer.
                message.traffic_class = unsafe { control.read() }.unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => message.traffic_class = int().unwrap_or(0) as u8,
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                message.hop_limit = int().unwrap_or(0) as u8;
            }
            _ => {}
        }
    };
    // SAFETY: the call filled the header, by this function's contract.
    unsafe { each_control(header, each) };
    message
}

/// A control message of a received message.
pub(super) struct ControlMessage {
    pub(super) level: c_int,
    pub(super) kind: c_int,
    data: *const u8,
    len: usize,
}

impl ControlMessage {
    /// Reads the data, if they are long enough.
    ///
    /// # Safety
    ///
    /// Any octets are a value of `T`.
    #[inline]
    pub(super) unsafe fn read<T: Copy>(&self) -> Option<T> {
        // SAFETY: `data` leads to `len` octets, which are enough by the check; they may be unaligned.
        (self.len >= size_of::<T>()).then(|| unsafe { self.data.cast::<T>().read_unaligned() })
    }
}

/// Passes each control message to `each`.
///
/// # Safety
///
/// `recvmsg` or `recvmmsg` filled `header`, and its control pointer leads to a live buffer.
#[inline]
pub(super) unsafe fn each_control(header: &msghdr, mut each: impl FnMut(&ControlMessage)) {
    // SAFETY: control pointer and length are those of recvmsg: a well-formed list of control messages.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole, aligned header inside the list.
        let (level, kind, len) = unsafe { ((*at).cmsg_level, (*at).cmsg_type, (*at).cmsg_len as usize) };
        // SAFETY: as above; CMSG_DATA only computes a pointer.
        let data = unsafe { libc::CMSG_DATA(at) };
        // SAFETY: CMSG_LEN computes a number.
        let len = len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        each(&ControlMessage { level, kind, data, len });
        // SAFETY: `at` is a header of this list.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
}

/// Returns the unspecified address for any other family, which no socket of ours receives.
///
/// # Safety
///
/// The kernel wrote `len` bytes of an address to `name`.
unsafe fn decode_name(len: usize, name: &Name) -> (IpAddr, u16) {
    const NONE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    if len < size_of::<libc::sa_family_t>() {
        return NONE;
    }
    // SAFETY: the kernel wrote at least the family, by the check; any octets are a valid number.
    match c_int::from(unsafe { name.family }) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the kernel wrote a whole sockaddr_in, by the check; any bytes are valid.
            let v4 = unsafe { name.v4 };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            (ip.into(), u16::from_be(v4.sin_port))
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above, for sockaddr_in6.
            let v6 = unsafe { name.v6 };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            (ip.into(), u16::from_be(v6.sin6_port))
        }
        _ => NONE,
    }
}

/// Repeats a call that a signal interrupted.
pub(super) fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(n) => return Ok(n),
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.raw_os_error() != Some(libc::EINTR) {
                    return Err(e);
                }
            }
        }
    }
}
