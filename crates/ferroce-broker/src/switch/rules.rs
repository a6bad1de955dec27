//! The rules that a frame must meet to pass. They open no socket.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroce_wire::{ETHERTYPE_ROCE, Encapsulation, Flow, Frame, Gid, Grh, LinkLayer, Qpn, RoceVersion, icrc};

/// An address that packets may come from or go to: a GID, with its type and its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// RoCE version.
    pub version: RoceVersion,
    /// The GID.
    pub gid: Gid,
    /// The interface that holds it.
    pub ifindex: u32,
}

/// Why a frame went no further. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No IP header or GRH with a BTH behind it.
    Malformed,
    /// A program sends from an address that no device of its has, by another interface, or in another RoCE
    /// version.
    Source,
    /// A program sends to queue pair 0 or 1, to a group's number at a single address, or names a queue pair
    /// that is not its own as the sender of a datagram.
    QueuePair,
    /// Longer than the interface takes.
    Length,
    /// The interface is gone, is no Ethernet, or cannot be sent by.
    Port,
    /// The destination does not answer on its link, or is on no link.
    Neighbour,
    /// The interface's queue is full, or the system refused.
    Refused,
    /// Arrived for an address that we do not have there.
    Stranger,
    /// Arrived for a queue pair of no program.
    Slot,
    /// A program does not take its packets out fast enough.
    Full,
    /// A program's rings make no sense: they were closed, once for each that is counted.
    Rings,
    /// Arrived for a program without sockets, with a wrong ICRC.
    Icrc,
}

impl Reason {
    /// All, with the names of their counters.
    pub const COUNTERS: [(Self, &'static str); 12] = [
        (Self::Malformed, "frame_malformed"),
        (Self::Source, "frame_forged_source"),
        (Self::QueuePair, "frame_forbidden_qp"),
        (Self::Length, "frame_too_long"),
        (Self::Port, "frame_no_interface"),
        (Self::Neighbour, "frame_no_neighbour"),
        (Self::Refused, "frame_not_sent"),
        (Self::Stranger, "frame_not_ours"),
        (Self::Slot, "frame_no_qp"),
        (Self::Full, "frame_ring_full"),
        (Self::Rings, "frame_rings_broken"),
        (Self::Icrc, "frame_icrc_errors"),
    ];
}

/// A packet that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// From whom.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// The addressing, as the packet has it.
    pub way: Flow,
    /// The queue pair there.
    pub dest_qp: Qpn,
    /// Octets from GRH or IP header to ICRC.
    pub len: usize,
}

/// Octets of the shortest packet: BTH and ICRC.
const SHORTEST: usize = 16;
/// Opcodes of datagrams: UD SEND only, with and without immediate (IBTA 9.2, table 38).
const DATAGRAMS: [u8; 2] = [0x64, 0x65];

/// Parses a packet from its GRH or IP header on, if it is of this RoCE version.
fn read(version: RoceVersion, packet: &[u8]) -> Result<(Passed, &[u8]), Reason> {
    let frame = match version {
        RoceVersion::V1 => Frame::parse_grh(packet),
        RoceVersion::V2 => Frame::parse_ip(packet),
    };
    let frame = frame.map_err(|_| Reason::Malformed)?;
    let way = frame.way();
    let [_, _, _, _, _, a, b, c, ..] = *frame.transport else { return Err(Reason::Malformed) };
    if frame.transport.len() < SHORTEST {
        return Err(Reason::Malformed);
    }
    let before = match frame.encapsulation {
        Encapsulation::V1(_) => Grh::LEN,
        Encapsulation::V2 { .. } if way.is_ipv4() => 28,
        Encapsulation::V2 { .. } => 48,
    };
    let passed = Passed {
        source: way.source,
        destination: way.destination,
        way,
        dest_qp: Qpn::from_be_bytes([a, b, c]),
        len: before + frame.transport.len(),
    };
    Ok((passed, frame.transport))
}

/// Whether a program may send a packet: one of its addresses is the source, the queue pairs are such that it
/// may name them, and it fits. MAC addresses, tag and type of the frame are not the program's to write at
/// all.
pub fn may_send(
    ways: &BTreeSet<Way>,
    slots: &[u16],
    mtu: u32,
    link: LinkLayer,
    packet: &[u8],
) -> Result<Passed, Reason> {
    let (passed, transport) = read(link.version, packet)?;
    let way = Way { version: link.version, gid: Gid::from_ip(passed.source), ifindex: link.ifindex };
    if !ways.contains(&way) {
        return Err(Reason::Source);
    }
    // Queue pair 1 is the broker's, at both ends.
    let to_group = passed.dest_qp == Qpn::MULTICAST;
    if passed.dest_qp.value() <= 1 || to_group != passed.destination.is_multicast() {
        return Err(Reason::QueuePair);
    }
    if transport.first().is_some_and(|opcode| DATAGRAMS.contains(opcode)) {
        // The sender's number, in octets 5 to 7 of the DETH.
        let Some([a, b, c]) = transport.get(17..20) else { return Err(Reason::Malformed) };
        if !slots.contains(&Qpn::from_be_bytes([*a, *b, *c]).slot()) {
            return Err(Reason::QueuePair);
        }
    }
    if passed.len > mtu as usize {
        return Err(Reason::Length);
    }
    Ok(passed)
}

/// Whether a frame that arrived is for us: its type, its address. Returns where its packet begins.
pub fn may_receive(
    ways: &BTreeSet<Way>,
    ifindex: u32,
    frame: &[u8],
) -> Result<(LinkLayer, usize, Passed), Reason> {
    const ETHERNET: usize = 14;
    let ethertype = frame.get(12..ETHERNET).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes);
    let packet = frame.get(ETHERNET..).ok_or(Reason::Malformed)?;
    let version = match ethertype {
        Some(ETHERTYPE_ROCE) => RoceVersion::V1,
        _ => RoceVersion::V2,
    };
    let (passed, _) = read(version, packet)?;
    let way = Way { version, gid: Gid::from_ip(passed.destination), ifindex };
    if !ways.contains(&way) {
        return Err(Reason::Stranger);
    }
    Ok((LinkLayer { version, sl: 0, ifindex }, ETHERNET, passed))
}

/// Hands out the packets of RoCE v2 of which a frame was merged, `size` octets of UDP payload each, or the
/// one that it is: in two pieces each, of which the second may be empty.
///
/// Their identifications are lost. They were counted on from the first one's, or all the same, and the ICRC
/// tells.
pub fn cut(packet: &[u8], size: Option<usize>, mut each: impl FnMut(&[u8], &[u8])) {
    let (Some(size), Ok(frame)) = (size, Frame::parse_ip(packet)) else { return each(packet, &[]) };
    let way = frame.way();
    let first = frame.ip_id().unwrap_or(0);
    for (index, transport) in frame.transport.chunks(size).enumerate() {
        let counted = first.wrapping_add(index as u16);
        let same =
            index > 0 && !icrc::verify(&way, counted, transport) && icrc::verify(&way, first, transport);
        let mut headers = [0; 48];
        let len = way.write_headers(if same { first } else { counted }, transport.len(), &mut headers);
        each(headers.get(..len).unwrap_or_default(), transport);
    }
}

/// The hardware address that a GID was made from, as RoCE v1 had it before addresses of IP: the modified
/// EUI-64, in whose middle ff:fe, or the number of a VLAN, stands. With a VLAN only if `source` is of the
/// same one, because other link-local addresses may look so.
pub fn mac_of_gid(gid: Gid, source: Gid) -> Option<[u8; 6]> {
    let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h] = gid.0 else { return None };
    let middle = u16::from_be_bytes([d, e]);
    let same_vlan = middle < 0x1000 && source.0[..8] == gid.0[..8] && source.0[11..13] == [d, e];
    (middle == 0xfffe || same_vlan).then_some([a ^ 2, b, c, f, g, h])
}

/// The hardware address of a multicast group (RFC 1112 6.4, RFC 2464 7). RoCE v1 has IPv6's for all.
pub fn mac_of_group(version: RoceVersion, group: IpAddr) -> [u8; 6] {
    match (version, group, Gid::from_ip(group).0) {
        (RoceVersion::V2, IpAddr::V4(v4), _) => {
            let [_, a, b, c] = v4.octets();
            [0x01, 0x00, 0x5e, a & 0x7f, b, c]
        }
        (_, _, [.., a, b, c, d]) => [0x33, 0x33, a, b, c, d],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u16 = 0x30;

    fn way(gid: &str, ifindex: u32, version: RoceVersion) -> Way {
        Way { version, gid: Gid::from_ip(gid.parse().unwrap()), ifindex }
    }

    fn ways() -> BTreeSet<Way> {
        [
            way("10.0.0.1", 2, RoceVersion::V1),
            way("fd00::1", 2, RoceVersion::V1),
            way("10.0.0.1", 2, RoceVersion::V2),
        ]
        .into()
    }

    fn link(version: RoceVersion, ifindex: u32) -> LinkLayer {
        LinkLayer { version, sl: 0, ifindex }
    }

    /// A packet of a queue pair of slot 3 to DestQP, `len` octets from BTH to ICRC.
    fn packet(from: &str, to: &str, version: RoceVersion, opcode: u8, qpn: u32, len: usize) -> Vec<u8> {
        let flow = Flow {
            source: from.parse().unwrap(),
            destination: to.parse().unwrap(),
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            link: link(version, 0),
        };
        let mut transport = vec![0; len];
        transport[0] = opcode;
        transport[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        if len > 17 {
            transport[17] = (SLOT >> 4) as u8;
        }
        let mut out = vec![0; 64 + len];
        let len = Frame::new(None, &flow, 0, &transport).emit(&mut out).unwrap();
        out.truncate(len);
        out
    }

    fn judge(link: LinkLayer, packet: &[u8]) -> Result<u32, Reason> {
        may_send(&ways(), &[SLOT], 1500, link, packet).map(|passed| passed.dest_qp.value())
    }

    #[test]
    fn a_program_sends_from_its_own_addresses() {
        use RoceVersion::{V1, V2};
        let good = |version| packet("10.0.0.1", "10.0.0.2", version, 4, 0x50011, 20);
        assert_eq!(judge(link(V1, 2), &good(V1)), Ok(0x50011));
        assert_eq!(judge(link(V2, 2), &good(V2)), Ok(0x50011));
        assert_eq!(judge(link(V1, 2), &packet("fd00::1", "fd00::2", V1, 4, 0x50011, 20)), Ok(0x50011));
        assert_eq!(judge(link(V1, 3), &good(V1)), Err(Reason::Source), "another interface");
        assert_eq!(
            judge(link(V2, 2), &packet("fd00::1", "fd00::2", V2, 4, 0x50011, 20)),
            Err(Reason::Source)
        );
        let forged = packet("10.0.0.7", "10.0.0.2", V1, 4, 0x50011, 20);
        assert_eq!(judge(link(V1, 2), &forged), Err(Reason::Source), "another's address");
        assert_eq!(
            judge(link(V2, 2), &good(V1)),
            Err(Reason::Malformed),
            "one version in the frame of the other"
        );
    }

    #[test]
    fn a_program_names_queue_pairs_that_it_may() {
        use RoceVersion::V1;
        let to = |qpn, opcode| judge(link(V1, 2), &packet("10.0.0.1", "10.0.0.2", V1, opcode, qpn, 24));
        assert_eq!(to(0, 4), Err(Reason::QueuePair));
        assert_eq!(to(1, 0x64), Err(Reason::QueuePair), "the peer's connection management");
        assert_eq!(to(0xff_ffff, 0x64), Err(Reason::QueuePair), "a group's number, but no group");
        assert_eq!(to(0x20011, 0x64), Ok(0x20011));
        let mut foreign = packet("10.0.0.1", "10.0.0.2", V1, 0x64, 0x20011, 24);
        foreign[40 + 18] = 0x10;
        assert_eq!(judge(link(V1, 2), &foreign), Err(Reason::QueuePair), "another's as the sender");
        foreign[40 + 17] = 0;
        assert_eq!(judge(link(V1, 2), &foreign), Err(Reason::QueuePair), "the broker's as the sender");
        let to_group = packet("fd00::1", "ff0e::1", V1, 0x64, 0xff_ffff, 24);
        assert_eq!(judge(link(V1, 2), &to_group), Ok(0xff_ffff));
        let to_group = packet("fd00::1", "ff0e::1", V1, 0x64, 0x20011, 24);
        assert_eq!(judge(link(V1, 2), &to_group), Err(Reason::QueuePair));
    }

    #[test]
    fn lengths() {
        use RoceVersion::V1;
        let sized = |len| judge(link(V1, 2), &packet("10.0.0.1", "10.0.0.2", V1, 4, 0x50011, len));
        assert_eq!(sized(1460), Ok(0x50011));
        assert_eq!(sized(1464), Err(Reason::Length));
        assert_eq!(sized(12), Err(Reason::Malformed));
        let whole = packet("10.0.0.1", "10.0.0.2", V1, 4, 0x50011, 20);
        for len in 0..whole.len() {
            assert_eq!(judge(link(V1, 2), &whole[..len]), Err(Reason::Malformed), "{len}");
        }
        let padded = [&whole[..], &[0; 9]].concat();
        let passed = may_send(&ways(), &[SLOT], 1500, link(V1, 2), &padded).unwrap();
        assert_eq!(passed.len, whole.len(), "what is behind is not sent");
    }

    #[test]
    fn frames_for_us() {
        use RoceVersion::V1;
        let packet = packet("10.0.0.2", "10.0.0.1", V1, 4, 0x30011, 20);
        let frame = [&[0; 12][..], &[0x89, 0x15], &packet, &[0; 6]].concat();
        let (link, start, passed) = may_receive(&ways(), 2, &frame).unwrap();
        assert_eq!((link.version, start, passed.len), (V1, 14, packet.len()), "padding is left out");
        assert_eq!(may_receive(&ways(), 4, &frame), Err(Reason::Stranger));
        let other = [&[0; 12][..], &[0x08, 0x00], &packet].concat();
        assert_eq!(may_receive(&ways(), 2, &other), Err(Reason::Malformed));
        assert_eq!(may_receive(&ways(), 2, &frame[..13]), Err(Reason::Malformed));
    }

    /// Packets of one sender, with the identifications `id` says, as one merged frame: what comes out is what
    /// went in.
    #[test]
    fn merged_frames_are_cut_again() {
        for (v6, id) in [(false, (|k| 7 + k) as fn(u16) -> u16), (false, |_| 7), (true, |_| 0)] {
            let (source, destination) = match v6 {
                false => ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap()),
                true => ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap()),
            };
            let flow = Flow {
                source,
                destination,
                source_port: 0xc000,
                traffic_class: 1,
                hop_limit: 9,
                link: LinkLayer::UDP,
            };
            let mut merged = Vec::new();
            let mut sent = Vec::new();
            for (k, len) in [64, 64, 64, 20].into_iter().enumerate() {
                let mut transport = vec![k as u8; len];
                icrc::seal(&flow, id(k as u16), &mut transport);
                let mut headers = [0; 48];
                let front = flow.write_headers(id(k as u16), len, &mut headers);
                sent.push([&headers[..front], &transport].concat());
                merged.extend(transport);
            }
            let mut headers = [0; 48];
            let front = flow.write_headers(id(0), merged.len(), &mut headers);
            let frame = [&headers[..front], &merged].concat();
            let mut got = Vec::new();
            cut(&frame, Some(64), |front, back| got.push([front, back].concat()));
            assert_eq!(got, sent);
            got.clear();
            cut(&sent[0], None, |front, back| got.push([front, back].concat()));
            assert_eq!(got, sent[..1]);
        }
    }

    #[test]
    fn addresses_made_from_macs() {
        let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
        let plain = Gid::link_local([0x52, 0x54, 0, 1, 2, 3]);
        assert_eq!(mac_of_gid(plain, plain), Some([0x52, 0x54, 0, 1, 2, 3]));
        let (vlan, other) = (gid("fe80::5054:0:6401:203"), gid("fe80::5054:0:6501:203"));
        assert_eq!(vlan.0[11..13], [0, 0x64]);
        assert_eq!(mac_of_gid(vlan, vlan), Some([0x52, 0x54, 0, 1, 2, 3]), "VLAN 100");
        assert_eq!(mac_of_gid(other, vlan), None, "of another VLAN");
        assert_eq!(mac_of_gid(gid("fe80::1234:5678:9abc:def0"), plain), None, "a random one");
        assert_eq!(mac_of_gid(gid("10.0.0.1"), plain), None);
        assert_eq!(mac_of_group(RoceVersion::V2, "224.129.2.3".parse().unwrap()), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(
            mac_of_group(RoceVersion::V1, "224.129.2.3".parse().unwrap()),
            [0x33, 0x33, 224, 129, 2, 3]
        );
        assert_eq!(mac_of_group(RoceVersion::V2, "ff0e::1:203".parse().unwrap()), [0x33, 0x33, 0, 1, 2, 3]);
    }
}
