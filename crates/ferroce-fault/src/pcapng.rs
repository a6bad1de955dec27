//! Captures in the format pcapng, as Wireshark reads them: blocks with a packet and a comment each.
//!
//! A program writes packet blocks alone. A file begins with [`head`], which describes their interfaces.

use ferroce_wire::{Flow, RoceVersion};

use crate::facts::Dir;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Octets of a block beside its body: type and length in front, the length again behind.
const FRAME: usize = 12;
/// Octets of a packet block's body in front of the packet: interface, time, lengths.
const PACKET_HEAD: usize = 20;
/// Longest block, in octets: a packet of 64 KiB and its comment.
pub const LONGEST: usize = 1 << 17;

const COMMENT: u16 = 1;
const FLAGS: u16 = 2;

/// The link types of packets; the number of each interface in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// RoCE v2: from the IP header on (LINKTYPE_RAW).
    Ip = 0,
    /// RoCE v1: an Ethernet frame.
    Ethernet = 1,
}

/// A packet of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Captured<'a> {
    /// Nanoseconds since 1970 (UTC).
    pub nanos: u64,
    /// The interface.
    pub link: Link,
    /// `None` if the file does not say it.
    pub dir: Option<Dir>,
    /// From the first octet of the link type on.
    pub octets: &'a [u8],
    /// The comment of the block.
    pub comment: &'a [u8],
}

/// The front of a file: the section with the names of the application and the operating system, and the
/// interfaces in the order of [`Link`].
pub fn head(application: &str, system: &str) -> Vec<u8> {
    let mut out = Vec::new();
    block(&mut out, SECTION, |out| {
        // Byte order, version 1.0, unknown length.
        out.extend(0x1a2b_3c4d_u32.to_le_bytes());
        out.extend([1, 0, 0, 0]);
        out.extend([0xff; 8]);
        option(out, 3, system.as_bytes());
        option(out, 4, application.as_bytes());
        option(out, 0, &[]);
    });
    for (name, link_type) in [("RoCE v2", 101_u16), ("RoCE v1", 1)] {
        block(&mut out, INTERFACE, |out| {
            out.extend(link_type.to_le_bytes());
            // No limit on the length of packets.
            out.extend([0; 6]);
            option(out, 2, name.as_bytes());
            // Times in units of 10^-9 s.
            option(out, 9, &[9]);
            option(out, 0, &[]);
        });
    }
    out
}

/// Adds a packet, from BTH to ICRC, behind the headers that it travels in. Returns the link type.
pub fn put_frame(out: &mut Vec<u8>, flow: &Flow, ip_id: u16, transport: &[u8]) -> Link {
    let is_v1 = flow.link.version == RoceVersion::V1;
    let mut headers = [0; 48];
    let len = flow.write_headers(ip_id, transport.len(), &mut headers);
    if is_v1 {
        // The addresses are not known here.
        out.extend([0; 12]);
        out.extend(ferroce_wire::ETHERTYPE_ROCE.to_be_bytes());
    } else if !flow.is_ipv4() {
        let checksum = udp_checksum(&headers, transport).to_be_bytes();
        headers.iter_mut().skip(46).zip(checksum).for_each(|(to, octet)| *to = octet);
    }
    out.extend(headers.iter().take(len));
    out.extend(transport);
    if is_v1 { Link::Ethernet } else { Link::Ip }
}

/// The checksum of UDP behind an IPv6 header, where there must be one (RFC 8200 section 8.1).
fn udp_checksum(headers: &[u8; 48], transport: &[u8]) -> u16 {
    // The pseudo header has the addresses, the length and the protocol.
    let [_, _, _, _, high, low, _, _, covered @ ..] = headers;
    let length = [*high, *low];
    let words = covered.chunks(2).chain([&length[..], &[0, 17]]).chain(transport.chunks(2));
    let sum: u64 = words
        .map(|word| word.iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet)) << (8 * (2 - word.len())))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    match !((folded & 0xffff) + (folded >> 16)) as u16 {
        0 => u16::MAX,
        checksum => checksum,
    }
}

/// Adds the block of a packet.
pub fn put(out: &mut Vec<u8>, packet: &Captured<'_>) {
    let &Captured { nanos, link, dir, octets, comment } = packet;
    block(out, PACKET, |out| {
        let len = octets.len() as u32;
        for word in [link as u32, (nanos >> 32) as u32, nanos as u32, len, len] {
            out.extend(word.to_le_bytes());
        }
        padded(out, octets);
        option(out, COMMENT, comment);
        let flags: u32 = match dir {
            None => 0,
            Some(Dir::Rx) => 1,
            Some(Dir::Tx) => 2,
        };
        option(out, FLAGS, &flags.to_le_bytes());
        option(out, 0, &[]);
    });
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = ((out.len() - start + 4) as u32).to_le_bytes();
    out.extend(len);
    if let Some(place) = out.get_mut(start + 4..start + 8) {
        place.copy_from_slice(&len);
    }
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(out, value);
}

fn padded(out: &mut Vec<u8>, octets: &[u8]) {
    out.extend(octets);
    out.extend(vec![0; octets.len().wrapping_neg() % 4]);
}

/// Octets of the block that begins so; `None` if it is no block that [`head`] or [`put`] makes.
pub fn block_len(start: &[u8; 8]) -> Option<usize> {
    let len = word(start, 4)? as usize;
    (len.is_multiple_of(4) && (FRAME..=LONGEST).contains(&len)).then_some(len)
}

/// The packet of a whole block; `None` if it is another block.
pub fn packet(block: &[u8]) -> Option<Captured<'_>> {
    let body = block.get(8..block.len().checked_sub(4)?).filter(|_| word(block, 0) == Some(PACKET))?;
    let link = match word(body, 0)? {
        0 => Link::Ip,
        1 => Link::Ethernet,
        _ => return None,
    };
    let nanos = u64::from(word(body, 4)?) << 32 | u64::from(word(body, 8)?);
    let len = word(body, 12)? as usize;
    let octets = body.get(PACKET_HEAD..)?.get(..len)?;
    let mut found = Captured { nanos, link, dir: None, octets, comment: &[] };
    let mut options = body.get(PACKET_HEAD + len.next_multiple_of(4)..)?;
    while let [code, code_high, len, len_high, rest @ ..] = options {
        let len = usize::from(u16::from_le_bytes([*len, *len_high]));
        let value = rest.get(..len)?;
        match (u16::from_le_bytes([*code, *code_high]), value) {
            (0, _) => break,
            (COMMENT, comment) => found.comment = comment,
            (FLAGS, [1, ..]) => found.dir = Some(Dir::Rx),
            (FLAGS, [2, ..]) => found.dir = Some(Dir::Tx),
            _ => {}
        }
        options = rest.get(len.next_multiple_of(4)..)?;
    }
    Some(found)
}

fn word(octets: &[u8], at: usize) -> Option<u32> {
    octets.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_reads_as_it_was_written_and_no_part_of_it_does() {
        for (octets, comment, dir) in
            [(&[1, 2, 3, 4, 5][..], &b"rping (PID 7) qp 0x11"[..], Some(Dir::Tx)), (&[], b"", None)]
        {
            let packet =
                Captured { nanos: 0x1234_5678_9abc_def0, link: Link::Ethernet, dir, octets, comment };
            let mut block = Vec::new();
            put(&mut block, &packet);
            let start = block[..8].try_into().unwrap();
            assert_eq!(block_len(&start), Some(block.len()));
            assert_eq!(block[block.len() - 4..], start[4..], "the length stands at both ends");
            assert_eq!(super::packet(&block), Some(packet));
            for len in 0..8 + PACKET_HEAD {
                assert_eq!(super::packet(&block[..len]), None, "{len}");
            }
        }
    }

    #[test]
    fn the_head_has_a_section_and_two_interfaces() {
        let head = head("ferroce", "Linux");
        let (mut kinds, mut rest) = (Vec::new(), &head[..]);
        while let Some(start) = rest.first_chunk() {
            kinds.push(word(start, 0).unwrap());
            let (block, behind) = rest.split_at(block_len(start).unwrap());
            assert_eq!(packet(block), None);
            rest = behind;
        }
        assert_eq!(kinds, [SECTION, INTERFACE, INTERFACE]);
        assert!(head.windows(7).any(|part| part == b"ferroce"));
    }

    #[test]
    fn the_checksum_over_ipv6_holds() {
        let localhost = std::net::Ipv6Addr::LOCALHOST.into();
        let flow = Flow {
            source: localhost,
            destination: localhost,
            source_port: 0xc123,
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        };
        for payload in [&[0x12_u8, 0x34, 0x56, 0x78][..], &[0xff; 33], &[]] {
            let mut packet = Vec::new();
            assert_eq!(put_frame(&mut packet, &flow, 0, payload), Link::Ip);
            let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
            let sum = packet[8..].chunks(2).map(word).sum::<u32>() + packet.len() as u32 - 40 + 17;
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{payload:02x?}");
        }
    }

    #[test]
    fn lengths_that_no_block_has_are_refused() {
        for len in [0_u32, 8, 13, LONGEST as u32 + 4, u32::MAX] {
            let mut start = [0; 8];
            start[4..].copy_from_slice(&len.to_le_bytes());
            assert_eq!(block_len(&start), None, "{len}");
        }
    }
}
