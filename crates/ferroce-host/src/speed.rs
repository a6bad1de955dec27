//! The speed that a device's port reports.

use crate::ethtool;
use crate::rtnetlink::has_virtual_wire;

/// The speed assumed of interfaces that report none, in Mb/s: about the limit of the UDP datapath.
pub const DEFAULT_SPEED: u32 = 40_000;

/// The speed assumed of interfaces without a wire, in Mb/s: `lo`, a veth and interfaces above veths alone.
/// The 10 Gb/s that Linux reports for a veth are invented. It is as fast as memory, and a program that
/// compares a port with memory must see that: UCX copies messages in pieces of 8 KiB to a port that seems
/// slower than `memcpy`.
pub const VIRTUAL_SPEED: u32 = 100_000;

/// The speed that an interface reports, in Mb/s.
pub fn of(ifindex: u32, netdev: &str) -> Option<u32> {
    match has_virtual_wire(ifindex) {
        true => Some(VIRTUAL_SPEED),
        false => ethtool::link_speed(netdev),
    }
}

/// The codes of `active_width` and of the lane speed with the product closest to `mbps` Mb/s, as the kernel
/// chooses them for RoCE.
pub fn width_and_speed(mbps: u32) -> (u8, u32) {
    const LANES_1: u8 = 1;
    const LANES_4: u8 = 2;
    const SDR: u32 = 1;
    const DDR: u32 = 2;
    const FDR10: u32 = 8;
    const EDR: u32 = 32;
    const HDR: u32 = 64;
    const NDR: u32 = 128;
    const XDR: u32 = 256;
    const UP_TO: [(u32, (u8, u32)); 9] = [
        (1_000, (LANES_1, SDR)),
        (10_000, (LANES_1, FDR10)),
        (20_000, (LANES_4, DDR)),
        (25_000, (LANES_1, EDR)),
        (40_000, (LANES_4, FDR10)),
        (50_000, (LANES_1, HDR)),
        (100_000, (LANES_4, EDR)),
        (200_000, (LANES_4, HDR)),
        (400_000, (LANES_4, NDR)),
    ];
    UP_TO.iter().find(|(most, _)| mbps <= *most).map_or((LANES_4, XDR), |(_, codes)| *codes)
}
