//! Options of rsockets.

use std::os::fd::AsRawFd;
use std::time::Duration;

use core::ffi::{c_int, c_void};
use ferroce_rsocket::message::mappings_for;
use ferroce_rsocket::{Settings, Sizes};
use libc::{linger, socklen_t};

use super::table::{self, Entry, Socket};
use crate::call;
use crate::entry::{Ptr, export};
use crate::errno::Errno;

/// `SOL_RDMA` of `<rdma/rsocket.h>`, and its options.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// The sockets' default, in seconds.
const KEEPALIVE_TIME: u32 = 7200;
/// `TCP_MAXSEG` in octets of a stream whose path is not known.
const USUAL_MAXSEG: c_int = 2048;
/// `struct tcp_info`: its length, its state and its window.
const TCP_INFO_LEN: usize = 104;
const TCP_INFO_CWND: usize = 80;
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
const MAX_ROUTE: usize = 4096;

fn keepalive_time() -> u32 {
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
    said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(KEEPALIVE_TIME)
}

/// A number that a program gives.
///
/// # Safety
///
/// `value` is NULL or readable for `length` octets.
unsafe fn number(value: *const c_void, length: socklen_t) -> Result<c_int, Errno> {
    if value.is_null() {
        return Err(Errno::EFAULT);
    }
    if (length as usize) < size_of::<c_int>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `value` has `length` octets, which are enough; a program may have it anywhere.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

export! {
    /// Sets an option. EOPNOTSUPP for unknown ones, as rdma-core has it; EINVAL for sizes of queues once
    /// there is a connection.
    pub fn rsetsockopt(
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: socklen_t,
    ) -> c_int = call::minus_one |_| {
        let entry = table::get(socket)?;
        if (level, optname) == (SOL_RDMA, RDMA_ROUTE) {
            if optval.is_null() {
                return Err(Errno::EFAULT);
            }
            if optlen as usize > MAX_ROUTE {
                return Err(Errno::EINVAL);
            }
            // SAFETY: not NULL, and `optlen` is its length.
            let route = unsafe { std::slice::from_raw_parts(optval.cast::<u8>(), optlen as usize) };
            // There is one kind of way on RoCE: what the program knows of it is what we know.
            entry.options.lock().route = route.to_vec();
            return Ok(0);
        }
        if let (Socket::Datagram(datagram), true) = (&entry.socket, level != SOL_RDMA) {
            // SAFETY: the system checks what it is given.
            let refused =
                unsafe { libc::setsockopt(datagram.fd().as_raw_fd(), level, optname, optval, optlen) };
            if refused != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            if is_udp(level, optname) {
                return Ok(0);
            }
        }
        // SAFETY: `optlen` is the length of `optval`. A `struct linger` begins with such a number.
        let value = unsafe { number(optval, optlen) }?;
        set(&entry, level, optname, value)?;
        Ok(0)
    }
}

fn set(entry: &Entry, level: c_int, optname: c_int, value: c_int) -> Result<(), Errno> {
    if matches!(entry.socket, Socket::Repoll(_)) {
        return Err(Errno::EBADF);
    }
    let on = value != 0;
    let doubled = (value as u32).saturating_mul(2);
    let size = u16::try_from(value.clamp(0, 0xfffe)).unwrap_or(0);
    let choose = |change: &dyn Fn(&mut Settings)| match &entry.socket {
        Socket::Stream(stream) => stream.choose(change),
        Socket::Datagram(datagram) => datagram.choose(change),
        Socket::Repoll(_) => false,
    };
    let sizes = |change: &dyn Fn(&mut Sizes)| {
        if choose(&|settings| change(&mut settings.sizes)) { Ok(()) } else { Err(Errno::EINVAL) }
    };
    let mut options = entry.options.lock();
    match (level, optname) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            options.reuse = on;
            choose(&|settings| settings.reuse = on);
        }
        // Too late is no error, as with sockets that take what they can.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            choose(&|settings| settings.sizes.receive_buffer = doubled);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            choose(&|settings| settings.sizes.send_buffer = doubled);
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => options.no_linger = !on,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline = on,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            options.keepalive = on;
            let seconds = *options.keep_idle.get_or_insert_with(keepalive_time);
            entry.socket.stream()?.set_keepalive(on.then(|| Duration::from_secs(seconds.into())))?;
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let seconds = u32::try_from(value).ok().filter(|seconds| *seconds > 0).ok_or(Errno::EINVAL)?;
            options.keep_idle = Some(seconds);
            if options.keepalive {
                entry.socket.stream()?.set_keepalive(Some(Duration::from_secs(seconds.into())))?;
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay = on,
        // Everything is acknowledged, and segments are packets.
        (
            libc::IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
        ) => {}
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            choose(&|settings| settings.tos = Some(value as u8));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            options.v6_only = on;
            choose(&|settings| settings.v6_only = on);
        }
        (SOL_RDMA, RDMA_SQSIZE) => sizes(&|sizes| sizes.send_queue = size)?,
        (SOL_RDMA, RDMA_RQSIZE) => sizes(&|sizes| sizes.receive_queue = size)?,
        (SOL_RDMA, RDMA_INLINE) => sizes(&|sizes| sizes.inline = size.into())?,
        (SOL_RDMA, RDMA_IOMAPSIZE) => sizes(&|sizes| sizes.mappings = mappings_for(size))?,
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(())
}

export! {
    /// Tells an option. EOPNOTSUPP for unknown ones, as rdma-core has it.
    pub fn rgetsockopt(
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: Ptr<socklen_t>,
    ) -> c_int = call::minus_one |_| {
        let entry = table::get(socket)?;
        if let (Socket::Datagram(datagram), true) = (&entry.socket, is_udp(level, optname)) {
            // SAFETY: the system checks what it is given.
            let refused =
                unsafe { libc::getsockopt(datagram.fd().as_raw_fd(), level, optname, optval, optlen.as_ptr()) };
            return if refused == 0 { Ok(0) } else { Err(std::io::Error::last_os_error().into()) };
        }
        let octets = told(&entry, level, optname)?;
        let optlen = optlen.lent().ok_or(Errno::EFAULT)?;
        if optval.is_null() {
            return Err(Errno::EFAULT);
        }
        let room = optlen.read() as usize;
        let count = room.min(octets.len());
        // SAFETY: `optval` has `room` octets.
        unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), optval.cast(), count) };
        optlen.write(count as socklen_t);
        Ok(0)
    }
}

/// Options of datagrams that are the UDP socket's.
fn is_udp(level: c_int, optname: c_int) -> bool {
    level != SOL_RDMA && !matches!((level, optname), (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF))
}

fn told(entry: &Entry, level: c_int, optname: c_int) -> Result<Vec<u8>, Errno> {
    let number = |value: c_int| Ok(value.to_ne_bytes().to_vec());
    let flag = |value: bool| number(c_int::from(value));
    let size = |value: u32| number(c_int::try_from(value).unwrap_or(c_int::MAX));
    let settings = match &entry.socket {
        Socket::Stream(stream) => stream.settings(),
        Socket::Datagram(datagram) => datagram.settings(),
        Socket::Repoll(_) => return Err(Errno::EBADF),
    };
    let stream = || entry.socket.stream();
    let mut options = entry.options.lock();
    match (level, optname) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            number(stream()?.take_failure().map_or(0, |failure| Errno::from(failure).code()))
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => number(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => flag(options.reuse),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => flag(options.keepalive),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => flag(options.oob_inline),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => flag(false),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let told = linger { l_onoff: c_int::from(!options.no_linger), l_linger: 0 };
            Ok([told.l_onoff.to_ne_bytes(), told.l_linger.to_ne_bytes()].concat())
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(settings.sizes.receive_buffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(settings.sizes.send_buffer),
        (libc::IPPROTO_IP, libc::IP_TOS) => number(settings.tos.unwrap_or(0).into()),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => flag(options.v6_only),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => flag(options.no_delay),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            size(*options.keep_idle.get_or_insert_with(keepalive_time))
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION | libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => number(1),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => number(
            stream()?.mtu().map_or(USUAL_MAXSEG, |mtu| c_int::try_from(mtu.bytes()).unwrap_or(USUAL_MAXSEG)),
        ),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let mut info = vec![0; TCP_INFO_LEN];
            info[0] = if stream()?.is_connected() { TCP_ESTABLISHED } else { TCP_CLOSE };
            let window = u32::from(settings.sizes.send_queue);
            info[TCP_INFO_CWND..TCP_INFO_CWND + 4].copy_from_slice(&window.to_ne_bytes());
            Ok(info)
        }
        (SOL_RDMA, RDMA_SQSIZE) => number(settings.sizes.send_queue.into()),
        (SOL_RDMA, RDMA_RQSIZE) => number(settings.sizes.receive_queue.into()),
        (SOL_RDMA, RDMA_INLINE) => size(settings.sizes.inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => number(settings.sizes.mappings.into()),
        (SOL_RDMA, RDMA_ROUTE) => Ok(options.route.clone()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
