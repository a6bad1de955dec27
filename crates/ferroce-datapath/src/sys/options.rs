//! Socket options.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, sock_filter, sock_fprog};

/// Sets an option of type `int`.
pub(crate) fn set_int(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_value(fd, level, name, &value)
}

/// Sets an option; the kernel checks the size of the value.
pub(super) fn set_value<T: Copy>(fd: &impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length are those of `value`, which outlives the call; the borrowed descriptor is
    // open.
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

/// Reads an option of type `int`.
pub(crate) fn get_int(fd: &impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value = [0 as c_int];
    get_ints(fd, level, name, &mut value)?;
    Ok(value[0])
}

fn get_ints(fd: &impl AsFd, level: c_int, name: c_int, values: &mut [c_int]) -> io::Result<()> {
    let mut len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `values`, and any bytes make valid
    // integers.
    let rc = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, values.as_mut_ptr().cast(), &raw mut len)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds a socket to an interface by its index; Linux 5.7 and later permit it without privilege.
pub(crate) const SO_BINDTOIFINDEX: c_int = 62;

/// Multicast datagrams of this IPv4 socket leave by the interface `ifindex`.
pub(crate) fn set_multicast_interface_v4(fd: &impl AsFd, ifindex: c_int) -> io::Result<()> {
    let any = libc::in_addr { s_addr: libc::INADDR_ANY };
    let value = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: ifindex };
    set_value(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &value)
}

/// Datagrams that the kernel dropped since the socket was opened because the receive buffer was full
/// (`SO_MEMINFO`).
pub(crate) fn receive_drops(fd: &impl AsFd) -> io::Result<u32> {
    const SO_MEMINFO: c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0 as c_int; 16];
    get_ints(fd, libc::SOL_SOCKET, SO_MEMINFO, &mut info)?;
    Ok(info[SK_MEMINFO_DROPS] as u32)
}

/// Makes a reuseport group deliver each datagram to the member with the index in the byte at `offset` of the
/// UDP payload; the BPF program sees only the payload. A shorter datagram is delivered to member 0; for an
/// index beyond the group the kernel uses its hash.
pub(crate) fn steer_by_payload_byte(fd: &impl AsFd, offset: u32) -> io::Result<()> {
    let program = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Makes the socket drop all arriving data.
pub(crate) fn drop_all(fd: &impl AsFd) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, &[instruction(libc::BPF_RET | libc::BPF_K, 0)])
}

/// Makes the socket drop all frames but unfragmented UDP datagrams to `port`, over IPv4 or IPv6; the socket
/// receives only that protocol.
pub(crate) fn accept_udp(fd: &impl AsFd, v6: bool, port: u16) -> io::Result<()> {
    const UDP: u32 = 17;
    let load = |size: u32, at: u32| instruction(libc::BPF_LD | size | libc::BPF_ABS, at);
    // Unless equal, jumps to the last instruction but one.
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
        // A fragment has an offset other than 0, or the flag for more fragments.
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, jt: 4, jf: 0, k: 0x3fff },
        instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 14),
        instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 16),
        unless(port.into(), 1),
        accept,
        refuse,
    ];
    attach(fd, libc::SO_ATTACH_FILTER, &program)
}

/// Undoes [`drop_all`].
pub(crate) fn accept_everything(fd: &impl AsFd) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, &[instruction(libc::BPF_RET | libc::BPF_K, u32::MAX)])
}

fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn attach(fd: &impl AsFd, option: c_int, program: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: both options take a `sock_fprog`; the kernel copies the `len` instructions behind its pointer,
    // which outlive the call, and writes to none.
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
