//! Queries to the drivers of network interfaces by `SIOCETHTOOL`.
#![allow(unsafe_code)]

/// The interface's link speed in Mb/s; `None` if its driver reports none, as `lo`. The value that Linux
/// reports for a veth is invented.
pub fn link_speed(netdev: &str) -> Option<u32> {
    const ETHTOOL_GSET: u32 = 1;
    let mut command = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    // SAFETY: `EthtoolCmd` is `struct ethtool_cmd`, all numbers.
    let answered = unsafe { ethtool(netdev, &mut command) };
    let speed = u32::from(command.speed_high) << 16 | u32::from(command.speed);
    (answered && speed != 0 && speed != u32::MAX && speed != u32::from(u16::MAX)).then_some(speed)
}

/// The pause parameters of an interface: autonegotiation, receive, transmit. `None` if the driver reports
/// none.
pub fn pause(netdev: &str) -> Option<[bool; 3]> {
    const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
    let mut param = [ETHTOOL_GPAUSEPARAM, 0, 0, 0];
    // SAFETY: `param` is `struct ethtool_pauseparam`: the command and three numbers.
    let answered = unsafe { ethtool(netdev, &mut param) };
    answered.then(|| [param[1] != 0, param[2] != 0, param[3] != 0])
}

/// The receive queues that an interface uses; 1 if its driver does not tell.
pub fn receive_queues(netdev: &str) -> u32 {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // The command, four maxima, and the counts: receive, transmit, other, combined.
    let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: `channels` is `struct ethtool_channels`: the command and eight numbers.
    let answered = unsafe { ethtool(netdev, &mut channels) };
    if answered { channels[5].saturating_add(channels[8]).max(1) } else { 1 }
}

/// Executes `command`; returns whether the driver answered.
///
/// # Safety
///
/// `T` is the structure that the kernel reads and writes for the command number at its start, and any bytes
/// are a valid `T`.
unsafe fn ethtool<T>(netdev: &str, command: &mut T) -> bool {
    let kind = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
    let Ok(socket) = rustix::net::socket(kind.0, kind.1, None) else { return false };
    // SAFETY: all members are plain data, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays zero, as the terminator.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(netdev.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(command).cast();
    // SAFETY: the request names an interface, and `ifr_data` points to a `T`, which has the size of its
    // command by this function's contract.
    unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), SIOCETHTOOL, &mut request) == 0 }
}

/// `struct ethtool_cmd` of linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    phy_address: u8,
    transceiver: u8,
    autoneg: u8,
    mdio_support: u8,
    max_tx_packets: u32,
    max_rx_packets: u32,
    speed_high: u16,
    tp_mdix: u8,
    tp_mdix_ctrl: u8,
    lp_advertising: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<EthtoolCmd>() == 44);

const SIOCETHTOOL: libc::Ioctl = 0x8946;
