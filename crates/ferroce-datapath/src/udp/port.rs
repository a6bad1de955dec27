//! UDP source ports of flows.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ferroce_wire::mix;

/// UDP source ports of RoCEv2 flows.
pub const PORTS: RangeInclusive<u16> = 0xC000..=0xFFFF;

/// Ports that one process may use towards one slot of one destination.
const CANDIDATES: u16 = 64;
/// Number of different first candidates: a process keeps at most about this many sockets open for each slot
/// it sends to.
const SPREAD: u64 = 8;
const _: () = assert!(SPREAD * SPREAD == CANDIDATES as u64);

/// The source ports that a queue pair may use, best first, without repetition.
///
/// With the same `secret`, two slots of one destination never share a candidate: the receiving kernel merges
/// datagrams of one pair of addresses and ports, and delivers all to the first one's slot. So the lower eight
/// bits are the slot under a mask of process and destination, and the upper six are free. The first candidate
/// derives them from the pair of queue pairs, which spreads queue pairs over paths and the receiver's queues.
/// The candidates differ in low and high bits alike, because bonds and switches select by few bits: Linux's
/// bond of two by about the ninth.
///
/// `secret` is a random number of the sending process, so that the processes of this host usually prefer
/// different ports.
pub fn source_ports(
    secret: u64,
    destination: IpAddr,
    slot: u8,
    local_qpn: u32,
    remote_qpn: u32,
) -> impl Iterator<Item = u16> + Clone {
    let destination = match destination {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let mask = mix(mix(secret ^ destination as u64) ^ (destination >> 64) as u64);
    let low = u16::from(slot ^ mask as u8);
    let pair = mix(mask ^ (u64::from(local_qpn) << 32 | u64::from(remote_qpn)));
    let choice = pair % SPREAD;
    let first = (choice * SPREAD + (choice ^ ((mask >> 8) % SPREAD))) as u16;
    (0..CANDIDATES).map(move |i| PORTS.start() | ((first + i) % CANDIDATES) << 8 | low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the port of one flow in each of 8,000 processes: each of the fourteen bits below 0xC000 is set
    /// in about half of the ports, within five standard deviations, and no port is preferred.
    #[test]
    fn source_ports_are_even() {
        const DRAWS: u64 = 8000;
        let destination = IpAddr::from([192, 0, 2, 7]);
        let port = |n: u64| source_ports(mix(n), destination, 1, 0x01_0011, 0x02_0022).next().unwrap();
        let ports: Vec<u16> = (0..DRAWS).map(port).collect();
        for bit in 0..14 {
            let set = ports.iter().filter(|port| *port >> bit & 1 == 1).count() as f64;
            assert!((set - DRAWS as f64 / 2.0).abs() < 224.0, "bit {bit}: {set}");
        }
        let mut counts = std::collections::BTreeMap::new();
        ports.iter().for_each(|port| *counts.entry(port).or_insert(0) += 1);
        // 8,000 draws of 16,384 are 6,330 different ones in the mean.
        assert!((6_130..6_530).contains(&counts.len()), "{}", counts.len());
        assert!(counts.values().all(|count| *count < 9), "{counts:?}");
    }
}
