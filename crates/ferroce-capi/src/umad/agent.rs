//! The port's own answers to management datagrams: its attributes and its counters. Ethernet has no subnet
//! manager that would send such datagrams; programs on this host do.

use ferroce_engine::{DeviceInfo, PortAttr};

/// Octets of a datagram.
pub const MAD: usize = 256;
/// Offset of the data of an attribute, in octets, in every class here.
const DATA: usize = 64;

const SUBNET: u8 = 0x01;
const SUBNET_DIRECTED: u8 = 0x81;
const PERFORMANCE: u8 = 0x04;

const GET: u8 = 0x01;
const RESPONSE: u8 = 0x80;

/// IBTA 13.4.7: bits 2 to 4.
const BAD_VERSION: u16 = 0x04;
const NO_METHOD: u16 = 0x08;
const NO_ATTRIBUTE: u16 = 0x0c;
const BAD_FIELD: u16 = 0x1c;
/// Bit of a directed route: the answer is on its way back (IBTA 14.2.1.2).
const DIRECTION: u16 = 0x8000;

/// The port that is asked, as it is now.
pub struct Asked<'a> {
    /// The device of the port.
    pub info: &'a DeviceInfo,
    /// The port's counters, summed over all programs, by name.
    pub counters: &'a dyn Fn() -> Vec<(String, u64)>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The datagram is no request: EINVAL.
    Malformed,
    /// The datagram is for another port, which a path by LIDs does not reach on Ethernet: EINVAL.
    Elsewhere,
    /// No agent here serves its class: the sender gets a time-out.
    Nobody,
}

/// The port's answer to one datagram.
pub fn answer(request: &[u8], port: &Asked<'_>) -> Result<[u8; MAD], NoAnswer> {
    let mut mad = [0; MAD];
    if request.len() > MAD {
        return Err(NoAnswer::Malformed);
    }
    let Some([version, class, _, method, _, _, _, hops, ..]) = request.get(..24) else {
        return Err(NoAnswer::Malformed);
    };
    if *version != 1 || method & RESPONSE != 0 {
        return Err(NoAnswer::Malformed);
    }
    let (class, method, hops) = (*class, *method, *hops);
    mad[..request.len()].copy_from_slice(request);
    if class == SUBNET_DIRECTED && hops != 0 {
        return Err(NoAnswer::Elsewhere);
    }
    let mut data = [0; MAD - DATA];
    let attribute = u16::from_be_bytes([mad[16], mad[17]]);
    let modifier = u32::from_be_bytes([mad[20], mad[21], mad[22], mad[23]]);
    let select = mad[DATA + 1];
    let status = match (class, mad[2], method, attribute) {
        (SUBNET | SUBNET_DIRECTED | PERFORMANCE, version, ..) if version != 1 => BAD_VERSION,
        (SUBNET | SUBNET_DIRECTED | PERFORMANCE, _, method, _) if method != GET => NO_METHOD,
        (SUBNET | SUBNET_DIRECTED, _, _, 0x10) => put(&mut data, 0, b"ferroce"),
        (SUBNET | SUBNET_DIRECTED, _, _, 0x11) => node_info(&mut data, port.info),
        (SUBNET | SUBNET_DIRECTED, _, _, 0x15) if modifier > 1 => BAD_FIELD,
        (SUBNET | SUBNET_DIRECTED, _, _, 0x15) => port_info(&mut data, port.info),
        (SUBNET | SUBNET_DIRECTED, _, _, 0x16) => put(&mut data, 0, &[0xff, 0xff]),
        (PERFORMANCE, _, _, 0x01) => class_info(&mut data),
        (PERFORMANCE, _, _, 0x12 | 0x1d) if !matches!(select, 1 | 0xff) => BAD_FIELD,
        (PERFORMANCE, _, _, 0x12) => counters(&mut data, select, &(port.counters)()),
        (PERFORMANCE, _, _, 0x1d) => extended_counters(&mut data, select, &(port.counters)()),
        (SUBNET | SUBNET_DIRECTED | PERFORMANCE, ..) => NO_ATTRIBUTE,
        _ => return Err(NoAnswer::Nobody),
    };
    let returned = if class == SUBNET_DIRECTED { DIRECTION } else { 0 };
    mad[3] = method | RESPONSE;
    mad[4..6].copy_from_slice(&(status | returned).to_be_bytes());
    if status == 0 {
        // In a datagram with a directed route, the path follows after 64 octets of data.
        let length = if class == SUBNET_DIRECTED { 64 } else { data.len() };
        mad[DATA..DATA + length].copy_from_slice(&data[..length]);
    }
    Ok(mad)
}

/// Writes octets at a place of the data; the status of what succeeded.
fn put(data: &mut [u8], at: usize, octets: &[u8]) -> u16 {
    data[at..at + octets.len()].copy_from_slice(octets);
    0
}

/// IBTA 14.2.5.3.
fn node_info(data: &mut [u8], info: &DeviceInfo) -> u16 {
    const ADAPTER: u8 = 1;
    put(data, 0, &[1, 1, ADAPTER, 1]);
    for at in [4, 12, 20] {
        put(data, at, &info.node_guid);
    }
    put(data, 28, &1_u16.to_be_bytes());
    // The local port, and the vendor id of no vendor.
    put(data, 36, &[1, 0xff, 0xff, 0xff])
}

/// IBTA 14.2.5.6, as far as a port on Ethernet has such things: no LID, no virtual lanes but one.
fn port_info(data: &mut [u8], info: &DeviceInfo) -> u16 {
    let attr = PortAttr::of(info);
    let (width, speed) = attr.width_and_speed();
    // Speeds beyond QDR have a field of their own; the nearest of the first ones stands for them, as on other
    // RoCE ports.
    let speed = speed.min(4) as u8;
    let physical = attr.phys_state as u8;
    let mtu = attr.active_mtu as u8;
    put(data, 8, &[0xfe, 0x80]);
    put(data, 20, &0x0001_0000_u32.to_be_bytes());
    put(data, 28, &[1, width, width, width]);
    put(data, 32, &[speed << 4 | attr.state as u8, physical << 4 | 2, 0, speed << 4 | speed]);
    put(data, 36, &[mtu << 4, 1 << 4]);
    put(data, 41, &[attr.max_mtu as u8, 0, 1 << 4]);
    put(data, 50, &[1]);
    0
}

/// IBTA 13.4.8.1: all ports may be selected at once (there is one), and there are counters of 64 bits, but
/// none of unicast and multicast apart.
fn class_info(data: &mut [u8]) -> u16 {
    const ALL_PORTS: u16 = 0x0100;
    const WIDE_WITHOUT_CASTS: u16 = 0x0400;
    put(data, 0, &[1, 1]);
    put(data, 2, &(ALL_PORTS | WIDE_WITHOUT_CASTS).to_be_bytes())
}

fn of(counters: &[(String, u64)]) -> impl Fn(&str) -> u64 {
    let counters = ferroce_engine::port_counters(counters);
    move |wanted| counters.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, value)| *value)
}

/// IBTA 16.1.3.5: a counter stops at its largest value.
fn counters(data: &mut [u8], select: u8, counters: &[(String, u64)]) -> u16 {
    let value = of(counters);
    let octet = |name| value(name).min(0xff) as u8;
    let half = |name| (value(name).min(0xffff) as u16).to_be_bytes();
    let word = |name| (value(name).min(0xffff_ffff) as u32).to_be_bytes();
    put(data, 1, &[select]);
    put(data, 6, &[octet("link_error_recovery"), octet("link_downed")]);
    put(data, 16, &[octet("port_xmit_constraint_errors"), octet("port_rcv_constraint_errors")]);
    for (at, name) in [
        (4, "symbol_error"),
        (8, "port_rcv_errors"),
        (10, "port_rcv_remote_physical_errors"),
        (12, "port_rcv_switch_relay_errors"),
        (14, "port_xmit_discards"),
        (22, "VL15_dropped"),
    ] {
        put(data, at, &half(name));
    }
    for (at, name) in [
        (24, "port_xmit_data"),
        (28, "port_rcv_data"),
        (32, "port_xmit_packets"),
        (36, "port_rcv_packets"),
        (40, "port_xmit_wait"),
    ] {
        put(data, at, &word(name));
    }
    0
}

/// IBTA 16.1.4.11.
fn extended_counters(data: &mut [u8], select: u8, counters: &[(String, u64)]) -> u16 {
    let value = of(counters);
    put(data, 1, &[select]);
    for (at, name) in
        [(8, "port_xmit_data"), (16, "port_rcv_data"), (24, "port_xmit_packets"), (32, "port_rcv_packets")]
    {
        put(data, at, &value(name).to_be_bytes());
    }
    0
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ferroce_engine::{Origin, PhysState};

    /// A device on an interface that does not exist.
    pub fn device() -> DeviceInfo {
        DeviceInfo {
            id: 0,
            name: "fr0".to_owned(),
            dev_name: "uverbs0".to_owned(),
            node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, 1],
            netdev: "none".to_owned(),
            ifindex: 9,
            mtu: 1500,
            port_active: true,
            phys_state: PhysState::LinkUp,
            origin: Origin::Default,
            kind: Default::default(),
            datapath: Default::default(),
            gids: Vec::new(),
            settings: Default::default(),
            macs: Default::default(),
        }
    }

    fn request(class: u8, method: u8, attribute: u16) -> Vec<u8> {
        let mut mad = vec![0; MAD];
        (mad[0], mad[1], mad[2], mad[3]) = (1, class, 1, method);
        mad[15] = 77;
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[DATA + 1] = 1;
        mad
    }

    fn ask(request: &[u8]) -> Result<[u8; MAD], NoAnswer> {
        let device = device();
        let counters = || {
            [("sent_pkts", 1 << 33), ("rcvd_pkts", 7), ("rcvd_octets", 403), ("rx_icrc_errors", 70_000)]
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec()
        };
        answer(request, &Asked { info: &device, counters: &counters })
    }

    fn status(mad: &[u8]) -> u16 {
        u16::from_be_bytes([mad[4], mad[5]])
    }

    #[test]
    fn counters_are_told_and_stop_at_their_largest_value() {
        let mad = ask(&request(PERFORMANCE, GET, 0x12)).unwrap();
        assert_eq!((mad[3], status(&mad), mad[15]), (0x81, 0, 77));
        let data = &mad[DATA..];
        assert_eq!(data[1], 1);
        assert_eq!(data[8..10], [0xff, 0xff], "70,000 do not fit 16 bits");
        assert_eq!(data[28..32], 100_u32.to_be_bytes(), "units of 4 octets");
        assert_eq!(data[32..36], [0xff; 4], "nor 2^33 into 32");
        assert_eq!(data[36..40], 7_u32.to_be_bytes());
        let wide = ask(&request(PERFORMANCE, GET, 0x1d)).unwrap();
        assert_eq!(wide[DATA + 24..DATA + 32], (1_u64 << 33).to_be_bytes());
    }

    #[test]
    fn the_port_says_who_it_is() {
        let mad = ask(&request(SUBNET_DIRECTED, GET, 0x11)).unwrap();
        assert_eq!(status(&mad), DIRECTION);
        assert_eq!(mad[DATA + 20..DATA + 28], device().node_guid);
        assert_eq!(mad[DATA + 36], 1);
        let mad = ask(&request(SUBNET, GET, 0x15)).unwrap();
        assert_eq!((status(&mad), mad[DATA + 32] & 15, mad[DATA + 33] >> 4), (0, 4, 5));
        let class = ask(&request(PERFORMANCE, GET, 0x01)).unwrap();
        assert_eq!(class[DATA + 2..DATA + 4], [5, 0]);
    }

    #[test]
    fn what_cannot_be_done_says_so() {
        let version = |mut mad: Vec<u8>| {
            mad[2] = 9;
            mad
        };
        let port = |mut mad: Vec<u8>| {
            mad[DATA + 1] = 2;
            mad
        };
        for (mad, want) in [
            (request(PERFORMANCE, 2, 0x12), NO_METHOD),
            (request(PERFORMANCE, GET, 0x99), NO_ATTRIBUTE),
            (version(request(PERFORMANCE, GET, 0x12)), BAD_VERSION),
            (port(request(PERFORMANCE, GET, 0x12)), BAD_FIELD),
            (request(SUBNET, GET, 0x20), NO_ATTRIBUTE),
        ] {
            assert_eq!(status(&ask(&mad).unwrap()), want, "{:x?}", &mad[..24]);
        }
        let route = |mut mad: Vec<u8>| {
            mad[7] = 1;
            mad
        };
        let base = |mut mad: Vec<u8>| {
            mad[0] = 2;
            mad
        };
        for (mad, want) in [
            (request(0x03, GET, 0x11), NoAnswer::Nobody),
            (route(request(SUBNET_DIRECTED, GET, 0x11)), NoAnswer::Elsewhere),
            (base(request(PERFORMANCE, GET, 0x12)), NoAnswer::Malformed),
            (request(PERFORMANCE, 0x81, 0x12), NoAnswer::Malformed),
            (vec![1; 23], NoAnswer::Malformed),
            (vec![], NoAnswer::Malformed),
            (vec![1; 257], NoAnswer::Malformed),
        ] {
            assert_eq!(ask(&mad), Err(want), "{} octets", mad.len());
        }
    }

    #[test]
    fn every_length_and_octet_is_answered_or_refused() {
        for length in 0..=MAD + 1 {
            for (at, value) in
                [(0, 1), (1, PERFORMANCE), (1, SUBNET_DIRECTED), (3, GET), (17, 0x12), (17, 0x1d)]
            {
                let mut mad = vec![1; length];
                if let Some(octet) = mad.get_mut(at) {
                    *octet = value;
                }
                let _ = ask(&mad);
            }
        }
    }
}
