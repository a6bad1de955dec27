//! Socket options.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, sock_filter, sock_fprog};

/// Sets an option whose value is a C `int`.
pub(crate) fn set_int(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_value(fd, level, name, &value)
}

/// Sets an option to a value of the kind that it takes; the kernel checks the size.
pub(super) fn set_value<T: Copy>(fd: &impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `value`, which lives through the call; the descriptor is open
    // because it is borrowed.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option whose value is a C `int`.
pub(crate) fn get_int(fd: &impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value = [0 as c_int];
    get_ints(fd, level, name, &mut value)?;
    Ok(value[0])
}

fn get_ints(fd: &impl AsFd, level: c_int, name: c_int, values: &mut [c_int]) -> io::Result<()> {
    let mut len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `values`, and any bytes make valid integers.
    let rc = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, values.as_mut_ptr().cast(), &raw mut len)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds a socket to an interface by its index; for unprivileged processes too since Linux 5.7.
pub(crate) const SO_BINDTOIFINDEX: c_int = 62;

/// Multicast datagrams of this IPv4 socket leave by the interface `ifindex`.
pub(crate) fn set_multicast_interface_v4(fd: &impl AsFd, ifindex: c_int) -> io::Result<()> {
    let any = libc::in_addr { s_addr: libc::INADDR_ANY };
    let value = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: ifindex };
    set_value(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &value)
}

/// Datagrams the kernel dropped because the receive buffer was full, since the socket was made (`SO_MEMINFO`).
pub(crate) fn receive_drops(fd: &impl AsFd) -> io::Result<u32> {
    const SO_MEMINFO: c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0 as c_int; 16];
    get_ints(fd, libc::SOL_SOCKET, SO_MEMINFO, &mut info)?;
    Ok(info[SK_MEMINFO_DROPS] as u32)
}

/// Steers a reuseport group by one byte of the UDP payload: the datagram goes to the member whose index is the byte at
/// `offset`. The program sees the payload alone, in both families. A datagram shorter than that goes to member 0, an
/// index beyond the group falls back to the kernel's hash.
pub(crate) fn steer_by_payload_byte(fd: &impl AsFd, offset: u32) -> io::Result<()> {
    let program = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Makes the socket drop everything that arrives.
pub(crate) fn drop_all(fd: &impl AsFd) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, &[instruction(libc::BPF_RET | libc::BPF_K, 0)])
}

/// Lets only UDP datagrams to `port` through, whole ones, from the Ethernet header on: over IPv4 or over IPv6, which is the
/// only protocol that the socket receives.
pub(crate) fn accept_udp(fd: &impl AsFd, v6: bool, port: u16) -> io::Result<()> {
    const UDP: u32 = 17;
    let load = |size: u32, at: u32| instruction(libc::BPF_LD | size | libc::BPF_ABS, at);
    // To the last instruction but one if it is not so.
    let unless = |k: u32, left: u8| sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: left,
        k,
    };
    let (accept, refuse) =
        (instruction(libc::BPF_RET | libc::BPF_K, u32::MAX), instruction(libc::BPF_RET | libc::BPF_K, 0));
    if v6 {
        let program = [
            load(libc::BPF_B, 20),
            unless(UDP, 3),
            load(libc::BPF_H, 56),
            unless(port.into(), 1),
            accept,
            refuse,
        ];
        return attach(fd, libc::SO_ATTACH_FILTER, &program);
    }
    let program = [
        load(libc::BPF_B, 23),
        unless(UDP, 6),
        load(libc::BPF_H, 20),
        // Fragments have another offset than 0, or more of them follow.
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, jt: 4, jf: 0, k: 0x3fff },
        instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 14),
        instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 16),
        unless(port.into(), 1),
        accept,
        refuse,
    ];
    attach(fd, libc::SO_ATTACH_FILTER, &program)
}

/// Takes back [`drop_all`].
pub(crate) fn accept_everything(fd: &impl AsFd) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, &[instruction(libc::BPF_RET | libc::BPF_K, u32::MAX)])
}

fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn attach(fd: &impl AsFd, option: c_int, program: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: `sock_fprog` is what both options take; the kernel copies the `len` instructions it points to, and they
    // outlive the call; it writes to none of them.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast(),
            size_of::<sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
