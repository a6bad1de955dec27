//! Sending: one buffer that the kernel segments, or several messages a call.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_int, iovec, mmsghdr, msghdr};

use super::recv::retry;

/// Limit of segments in a batch: what each kernel with segmentation offload accepts.
pub(crate) const MAX_SEGMENTS: usize = 64;

/// Limit of messages in [`send_many`]. Their headers are on the stack, 80 octets each, and programs have
/// stacks of 16 KiB.
const MAX_MESSAGES: usize = 32;

/// The destination of a message and its options, in the kernel's form.
pub(crate) struct Target {
    name: Name,
    name_len: libc::socklen_t,
    control: Control,
    control_len: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Space for three control messages of an `int`.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 72]);

impl Target {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let (name, name_len) = match to {
            SocketAddr::V4(to) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: to.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (Name { v4 }, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(to) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: to.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                    sin6_scope_id: to.scope_id(),
                };
                (Name { v6 }, size_of::<libc::sockaddr_in6>())
            }
        };
        Self {
            name,
            name_len: name_len as libc::socklen_t,
            control: Control([MaybeUninit::uninit(); 72]),
            control_len: 0,
        }
    }

    /// Makes the kernel segment the message into datagrams of `size` bytes; the last one may be shorter.
    pub(crate) fn segment(&mut self, size: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, size);
    }

    /// Sets the TOS or traffic class of this message.
    pub(crate) fn traffic_class(&mut self, family: IpAddr, value: u8) {
        match family {
            IpAddr::V4(_) => self.push(libc::IPPROTO_IP, libc::IP_TOS, c_int::from(value)),
            IpAddr::V6(_) => self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(value)),
        }
    }

    /// Sets the TTL or hop limit of this message; the kernel refuses 0.
    pub(crate) fn hop_limit(&mut self, family: IpAddr, value: u8) {
        match family {
            IpAddr::V4(_) => self.push(libc::IPPROTO_IP, libc::IP_TTL, c_int::from(value)),
            IpAddr::V6(_) => self.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, c_int::from(value)),
        }
    }

    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        // SAFETY: both compute numbers.
        let (space, len) = unsafe {
            (libc::CMSG_SPACE(size_of::<T>() as u32) as usize, libc::CMSG_LEN(size_of::<T>() as u32))
        };
        let end = self.control_len + space;
        assert!(end <= size_of::<Control>(), "a target has at most three control messages");
        let at = (&raw mut self.control).cast::<u8>();
        // SAFETY: `control_len` is inside the buffer, by the assertion; as a sum of CMSG_SPACE values it
        // keeps the buffer's alignment.
        let at = unsafe { at.add(self.control_len) }.cast::<libc::cmsghdr>();
        // SAFETY: `space` bytes from there are inside the buffer and have room for a header; zeroing first
        // leaves no padding uninitialised.
        unsafe { at.cast::<u8>().write_bytes(0, space) };
        // SAFETY: the header is inside the buffer, aligned and initialised by the zeros.
        let header = unsafe { &mut *at };
        header.cmsg_level = level;
        header.cmsg_type = kind;
        header.cmsg_len = len as _;
        // SAFETY: CMSG_DATA leads to the `size_of::<T>()` bytes behind the header that CMSG_SPACE counted.
        unsafe { libc::CMSG_DATA(at).cast::<T>().write_unaligned(value) };
        self.control_len = end;
    }

    /// The header for the message in `vector`. The kernel writes through none of its pointers when it sends.
    fn header(&self, vector: *mut iovec) -> msghdr {
        // SAFETY: `msghdr` is plain old data, for which zeros are valid.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw const self.name).cast_mut().cast();
        header.msg_namelen = self.name_len;
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        if self.control_len > 0 {
            header.msg_control = (&raw const self.control).cast_mut().cast();
            header.msg_controllen = self.control_len as _;
        }
        header
    }
}

/// Sends `bytes` as one message, without blocking.
pub(crate) fn send_one(fd: &impl AsFd, target: &Target, bytes: &[u8]) -> io::Result<()> {
    let raw = fd.as_fd().as_raw_fd();
    if target.control_len == 0 {
        // Saves a tenth of a microsecond: the kernel fetches and checks no header and vector.
        retry(|| {
            // SAFETY: `bytes` and the target's name have the lengths given, outlive the call and are only
            // read.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    raw,
                    bytes.as_ptr(),
                    bytes.len(),
                    libc::MSG_DONTWAIT,
                    &raw const target.name,
                    target.name_len,
                )
            };
            n as isize
        })?;
        return Ok(());
    }
    let mut vector = vector(bytes);
    let header = target.header(&raw mut vector);
    retry(|| {
        // JUSTIFICATION: as in `receive`, no cancellation point.
        // SAFETY: the header leads to the target's name and control messages, of the lengths in it, and to
        // one vector, which leads to `bytes`; all of them outlive the call.
        let n = unsafe { libc::syscall(libc::SYS_sendmsg, raw, &raw const header, libc::MSG_DONTWAIT) };
        n as isize
    })?;
    Ok(())
}

/// Sends the first [`MAX_MESSAGES`] of `segments` as separate messages, without blocking. Returns the number
/// that the kernel accepted, or the error of the first.
pub(crate) fn send_many<'a>(
    fd: &impl AsFd,
    target: &Target,
    segments: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let raw = fd.as_fd().as_raw_fd();
    let mut vectors = [const { vector(&[]) }; MAX_MESSAGES];
    // SAFETY: `mmsghdr` is plain old data, for which zeros are valid.
    let mut headers: [mmsghdr; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    for ((at, header), segment) in vectors.iter_mut().zip(&mut headers).zip(segments) {
        *at = vector(segment);
        header.msg_hdr = target.header(ptr::from_mut(at));
        count += 1;
    }
    retry(|| {
        // SAFETY: `count` headers are initialised, each as in `send_one` with its own vector; the kernel
        // writes only their `msg_len`.
        let n = unsafe {
            libc::syscall(libc::SYS_sendmmsg, raw, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT)
        };
        n as isize
    })
}

const fn vector(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
