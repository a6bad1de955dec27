//! The three XDP programs: for the uplink, for the near end of a pair, and for its far end.

use std::io;

use super::MAX_PACKET;
use super::drops::DropReason;
use super::program::{Alu, Helper, If, Label, Program, Reg, Size};
use crate::sys::Map;

/// Addresses, IPv4 as v4-mapped IPv6; the values mean nothing.
pub(super) type Addresses = Map<16, 4>;
/// Near ends (an index of an interface) by slot.
pub(super) type Ports = Map<4, 4>;
/// Counts by [`DropReason`].
pub(super) type Drops = Map<4, 8>;
/// The socket of a port.
pub(super) type Sockets = Map<4, 4>;
/// Sockets at the interface itself by slot, on the receive queue [`DIRECT_QUEUE`].
pub(super) type Direct = Map<4, 4>;

/// The receive queue of direct ports.
pub(super) const DIRECT_QUEUE: u32 = 0;

/// Results of XDP programs.
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;

/// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_INGRESS: i16 = 12;
const MD_QUEUE: i16 = 16;

/// Offsets in an Ethernet frame.
const ETHER_TYPE: i16 = 12;
const ETHER_LEN: i16 = 14;

const ROCE_PORT: u16 = 4791;
const UDP: i32 = 17;
/// The NextHdr of a GRH (IBTA 8.3).
const IBA_TRANSPORT: i32 = 0x1b;
const BTH_LEN: i16 = 12;
const DETH_LEN: i16 = 8;
const ICRC_LEN: i16 = 4;
/// The upper three bits of an opcode tell the service; these are those of UD (IBTA 9.2, table of opcodes).
const SERVICE: i32 = 0xe0;
const SERVICE_UD: i32 = 0x60;
const QPN: i32 = 0x00ff_ffff;
const SLOT_SHIFT: i32 = 12;

/// `struct bpf_fib_lookup`, at the end of the stack, and what the programs keep below it.
const FIB_LEN: i16 = 64;
const FIB: i16 = -FIB_LEN;
const SOURCE: i16 = FIB - 16;
const DESTINATION: i16 = SOURCE - 16;
/// TOS (IPv4), or traffic class and flow label (IPv6), in the form of `struct bpf_fib_lookup`.
const TOS: i16 = DESTINATION - 8;
/// The ports of UDP, as in the packet.
const PORTS: i16 = TOS - 4;
/// Length of the packet from the IP header or GRH on.
const LENGTH: i16 = PORTS - 4;
/// A key of 32 bits.
const KEY: i16 = LENGTH - 4;
/// The first error of the two queries to the routing table.
const FIRST: i16 = KEY - 12;
/// Length of the frame.
const FRAME: i16 = FIRST - 8;

/// Offsets in `struct bpf_fib_lookup`.
const FIB_FAMILY: i16 = FIB;
const FIB_PROTOCOL: i16 = FIB + 1;
const FIB_PORTS: i16 = FIB + 2;
const FIB_TOTAL: i16 = FIB + 6;
const FIB_IFINDEX: i16 = FIB + 8;
const FIB_TOS: i16 = FIB + 12;
const FIB_SOURCE: i16 = FIB + 16;
const FIB_DESTINATION: i16 = FIB + 32;
const FIB_HARDWARE_SOURCE: i16 = FIB + 52;
const FIB_HARDWARE_DESTINATION: i16 = FIB + 58;
const FIB_OUTPUT: i32 = 2;
const FIB_NO_NEIGHBOUR: i32 = 7;
const FIB_TOO_LONG: i32 = 8;
const FIB_FORWARDING_OFF: i32 = 5;

/// A 16-bit word as a load finds it in a packet.
const fn in_packet(value: u16) -> i32 {
    value.to_be() as i32
}

/// The frames that the programs know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    V4,
    V6,
    /// RoCE v1.
    Grh,
}

impl Format {
    const fn ether_type(self) -> i32 {
        in_packet(match self {
            Self::V4 => 0x0800,
            Self::V6 => 0x86dd,
            Self::Grh => 0x8915,
        })
    }

    /// Offset of the BTH in the frame.
    const fn bth(self) -> i16 {
        ETHER_LEN
            + match self {
                Self::V4 => 20 + 8,
                Self::V6 => 40 + 8,
                Self::Grh => 40,
            }
    }
}

/// Labels for packets that a program does not take.
struct Refusals {
    malformed: Label,
    fragment: Label,
    foreign_port: Label,
    reserved_qp: Label,
    foreign_qp: Label,
}

/// The program of the uplink: redirects the packets to `addresses` by slot, to a socket of the interface or
/// else to the near end of a pair, and passes everything else to the kernel.
///
/// The headers must be in the frame's first buffer. The kernel copies the others to the socket as well.
pub(super) fn uplink(addresses: &Addresses, direct: &Direct, ports: &Ports) -> io::Result<Vec<u64>> {
    let mut p = Program::new();
    let pass = p.label();
    let refusals =
        Refusals { malformed: pass, fragment: pass, foreign_port: pass, reserved_qp: pass, foreign_qp: pass };
    begin(&mut p, pass);
    // Frames to a group are the kernel's.
    p.load(Size::Octet, Reg::R1, Reg::R7, 0);
    p.jump_if(If::AnyBit, Reg::R1, 1, pass);
    parse(&mut p, &refusals, None);
    look_up(&mut p, addresses, DESTINATION);
    p.jump_if(If::Equal, Reg::R0, 0, pass);
    let by_pair = p.label();
    // The kernel drops a frame that is redirected to a socket of another queue than its own.
    p.load(Size::Word, Reg::R1, Reg::R6, MD_QUEUE);
    p.jump_if(If::NotEqual, Reg::R1, DIRECT_QUEUE as i32, by_pair);
    redirect_by_slot(&mut p, direct, XDP_PASS);
    p.jump_if(If::NotEqual, Reg::R0, XDP_REDIRECT, by_pair);
    p.exit();
    p.here(by_pair);
    redirect_by_slot(&mut p, ports, XDP_PASS);
    p.exit();
    p.here(pass);
    p.mov(Reg::R0, XDP_PASS);
    p.exit();
    p.finish()
}

/// The program of near ends: checks what a program sends, and redirects it to another port or to the
/// interface `uplink`. It passes nothing to the kernel.
pub(super) fn near(addresses: &Addresses, ports: &Ports, drops: &Drops, uplink: u32) -> io::Result<Vec<u64>> {
    let uplink = i32::try_from(uplink).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut p = Program::new();
    let reasons = DropReason::ALL.map(|reason| (reason, p.label()));
    let label = |reason: DropReason| reasons.iter().find(|(of, _)| *of == reason).map(|(_, label)| *label);
    let [malformed, fragment, foreign_port, foreign_source, reserved_qp, foreign_qp, no_port, ..] =
        reasons.map(|(_, label)| label);
    begin(&mut p, malformed);
    let refusals = Refusals { malformed, fragment, foreign_port, reserved_qp, foreign_qp };
    parse(&mut p, &refusals, Some(ports));

    look_up(&mut p, addresses, SOURCE);
    p.jump_if(If::Equal, Reg::R0, 0, foreign_source);
    look_up(&mut p, addresses, DESTINATION);
    let remote = p.label();
    p.jump_if(If::Equal, Reg::R0, 0, remote);
    redirect_by_slot(&mut p, ports, XDP_DROP);
    p.jump_if(If::NotEqual, Reg::R0, XDP_REDIRECT, no_port);
    p.exit();

    p.here(remote);
    let (found, second_failed, judge) = (p.label(), p.label(), p.label());
    // The interface where the packet arrived: its forwarding is on.
    p.load(Size::Word, Reg::R2, Reg::R6, MD_INGRESS);
    look_up_route(&mut p, 0);
    p.store(Size::Double, Reg::Fp, FIRST, Reg::R0);
    let not_found = p.label();
    p.jump_if(If::NotEqual, Reg::R0, 0, not_found);
    p.load(Size::Word, Reg::R1, Reg::Fp, FIB_IFINDEX);
    p.jump_if(If::Equal, Reg::R1, uplink, found);
    // Two interfaces in one subnet need the route of this very interface. The kernel tells it only if
    // forwarding is on there, which is the administrator's decision.
    p.here(not_found);
    p.mov(Reg::R2, uplink);
    look_up_route(&mut p, FIB_OUTPUT);
    p.jump_if(If::NotEqual, Reg::R0, 0, second_failed);
    p.load(Size::Word, Reg::R1, Reg::Fp, FIB_IFINDEX);
    p.jump_if(If::Equal, Reg::R1, uplink, found);
    p.here(second_failed);
    p.jump_if(If::NotEqual, Reg::R0, FIB_FORWARDING_OFF, judge);
    p.load(Size::Double, Reg::R0, Reg::Fp, FIRST);
    p.here(judge);
    for (result, reason) in [
        (0, DropReason::OtherInterface),
        (FIB_NO_NEIGHBOUR, DropReason::NoNeighbour),
        (FIB_TOO_LONG, DropReason::TooLong),
        (FIB_FORWARDING_OFF, DropReason::ForwardingOff),
    ] {
        p.jump_if(If::Equal, Reg::R0, result, label(reason).ok_or(io::ErrorKind::InvalidInput)?);
    }
    p.jump(label(DropReason::NoRoute).ok_or(io::ErrorKind::InvalidInput)?);

    p.here(found);
    for (to, from) in [(0, FIB_HARDWARE_DESTINATION), (6, FIB_HARDWARE_SOURCE)] {
        // The field is aligned to two octets only.
        for octets in [0, 2, 4] {
            p.load(Size::Half, Reg::R1, Reg::Fp, from + octets);
            p.store(Size::Half, Reg::R7, to + octets, Reg::R1);
        }
    }
    p.mov(Reg::R1, uplink);
    p.mov(Reg::R2, 0);
    p.call(Helper::Redirect);
    p.exit();

    let count = p.label();
    for (reason, label) in reasons {
        p.here(label);
        p.store(Size::Word, Reg::Fp, KEY, i32::from(reason as u8));
        p.jump(count);
    }
    p.here(count);
    let end = p.label();
    p.map(Reg::R1, drops);
    stack_address(&mut p, Reg::R2, KEY);
    p.call(Helper::MapLookup);
    p.jump_if(If::Equal, Reg::R0, 0, end);
    p.mov(Reg::R1, 1);
    p.atomic_add(Reg::R0, Reg::R1);
    p.here(end);
    p.mov(Reg::R0, XDP_DROP);
    p.exit();
    p.finish()
}

/// The program of a near end whose port has ended.
pub(super) fn closed() -> io::Result<Vec<u64>> {
    let mut p = Program::new();
    p.mov(Reg::R0, XDP_DROP);
    p.exit();
    p.finish()
}

/// The program of a far end: everything that looks like RoCE is for the socket. The rest is what the kernel
/// itself sends into a pair, such as reports of its IPv6 groups.
pub(super) fn far(sockets: &Sockets) -> io::Result<Vec<u64>> {
    let mut p = Program::new();
    let (take, ignore) = (p.label(), p.label());
    begin(&mut p, ignore);
    need(&mut p, ETHER_LEN + 20, ignore);
    p.load(Size::Half, Reg::R1, Reg::R7, ETHER_TYPE);
    p.jump_if(If::Equal, Reg::R1, Format::Grh.ether_type(), take);
    for (format, protocol) in [(Format::V4, ETHER_LEN + 9), (Format::V6, ETHER_LEN + 6)] {
        let next = p.label();
        p.jump_if(If::NotEqual, Reg::R1, format.ether_type(), next);
        p.load(Size::Octet, Reg::R2, Reg::R7, protocol);
        p.jump_if(If::Equal, Reg::R2, UDP, take);
        p.here(next);
    }
    p.here(ignore);
    p.mov(Reg::R0, XDP_DROP);
    p.exit();
    p.here(take);
    p.map(Reg::R1, sockets);
    p.mov(Reg::R2, 0);
    p.mov(Reg::R3, XDP_DROP);
    p.call(Helper::RedirectMap);
    p.exit();
    p.finish()
}

/// `r6` = the context, `r7` = the frame, `r8` = its end. The frame has an Ethernet header.
fn begin(p: &mut Program, short: Label) {
    p.mov(Reg::R6, Reg::R1);
    p.load(Size::Word, Reg::R7, Reg::R6, MD_DATA);
    p.load(Size::Word, Reg::R8, Reg::R6, MD_DATA_END);
    need(p, ETHER_LEN, short);
}

/// Jumps to `short` if the frame has fewer octets.
fn need(p: &mut Program, octets: i16, short: Label) {
    p.mov(Reg::R0, Reg::R7);
    p.alu(Alu::Add, Reg::R0, i32::from(octets));
    p.jump_if(If::Greater, Reg::R0, Reg::R8, short);
}

/// Checks a frame. After that `r9` is the DestQP, and the addresses are at [`DESTINATION`] and, for a check
/// of what a program sends, [`SOURCE`].
///
/// That check has the map of `ports`. It also demands that the frame ends with the packet, and that the
/// source queue pair of a UD packet is one of the sender.
fn parse(p: &mut Program, refusals: &Refusals, ports: Option<&Ports>) {
    let done = p.label();
    // Without CAP_PERFMON the verifier lets nobody subtract the beginning from the end, or add a variable to
    // either.
    p.mov(Reg::R1, Reg::R6);
    p.call(Helper::FrameLength);
    p.store(Size::Double, Reg::Fp, FRAME, Reg::R0);
    p.load(Size::Half, Reg::R1, Reg::R7, ETHER_TYPE);
    for format in [Format::V4, Format::V6, Format::Grh] {
        let next = p.label();
        p.jump_if(If::NotEqual, Reg::R1, format.ether_type(), next);
        parse_format(p, format, refusals, ports);
        p.jump(done);
        p.here(next);
    }
    p.jump(refusals.malformed);
    p.here(done);
    p.jump_if(If::LessOrEqual, Reg::R9, 1, refusals.reserved_qp);
    p.jump_if(If::Equal, Reg::R9, QPN, refusals.reserved_qp);
}

fn parse_format(p: &mut Program, format: Format, refusals: &Refusals, ports: Option<&Ports>) {
    let malformed = refusals.malformed;
    let bth = format.bth();
    need(p, bth + BTH_LEN + ICRC_LEN, malformed);

    // Version, header length, protocol, and r2 = the length of the packet from the IP header or GRH on.
    p.load(Size::Octet, Reg::R1, Reg::R7, ETHER_LEN);
    if format == Format::V4 {
        p.jump_if(If::NotEqual, Reg::R1, 0x45, malformed);
        // More fragments follow, or the offset is not 0.
        p.load(Size::Half, Reg::R1, Reg::R7, ETHER_LEN + 6);
        p.jump_if(If::AnyBit, Reg::R1, in_packet(0x3fff), refusals.fragment);
        p.load(Size::Octet, Reg::R1, Reg::R7, ETHER_LEN + 9);
        p.load(Size::Half, Reg::R2, Reg::R7, ETHER_LEN + 2);
        p.swap(Reg::R2, 16);
    } else {
        p.alu(Alu::Shr, Reg::R1, 4);
        p.jump_if(If::NotEqual, Reg::R1, 6, malformed);
        p.load(Size::Octet, Reg::R1, Reg::R7, ETHER_LEN + 6);
        p.load(Size::Half, Reg::R2, Reg::R7, ETHER_LEN + 4);
        p.swap(Reg::R2, 16);
        p.alu(Alu::Add, Reg::R2, 40);
    }
    let protocol = if format == Format::Grh { IBA_TRANSPORT } else { UDP };
    p.jump_if(If::NotEqual, Reg::R1, protocol, refusals.foreign_port);
    if format != Format::Grh {
        p.load(Size::Half, Reg::R1, Reg::R7, bth - 6);
        p.jump_if(If::NotEqual, Reg::R1, in_packet(ROCE_PORT), refusals.foreign_port);
    }

    // The packet is inside the frame, and neither shorter than its headers nor longer than a receiver's
    // buffer.
    p.jump_if(If::Less, Reg::R2, i32::from(bth - ETHER_LEN + BTH_LEN + ICRC_LEN), malformed);
    p.jump_if(If::Greater, Reg::R2, MAX_PACKET as i32, malformed);
    p.mov(Reg::R3, Reg::R2);
    p.alu(Alu::Add, Reg::R3, i32::from(ETHER_LEN));
    p.load(Size::Double, Reg::R1, Reg::Fp, FRAME);
    p.jump_if(If::Greater, Reg::R3, Reg::R1, malformed);
    if ports.is_some() {
        p.jump_if(If::NotEqual, Reg::R3, Reg::R1, malformed);
        p.store(Size::Word, Reg::Fp, LENGTH, Reg::R2);
    }
    if format != Format::Grh {
        p.load(Size::Half, Reg::R1, Reg::R7, bth - 4);
        p.swap(Reg::R1, 16);
        p.alu(Alu::Add, Reg::R1, i32::from(bth - 8 - ETHER_LEN));
        p.jump_if(If::NotEqual, Reg::R1, Reg::R2, malformed);
    }

    let (source, destination) = match format {
        Format::V4 => (ETHER_LEN + 12, ETHER_LEN + 16),
        Format::V6 | Format::Grh => (ETHER_LEN + 8, ETHER_LEN + 24),
    };
    address(p, format, destination, DESTINATION, malformed);
    if let Some(ports) = ports {
        address(p, format, source, SOURCE, malformed);
        routing_key(p, format);
        source_queue_pair(p, bth, ports, refusals);
    }
    p.load(Size::Word, Reg::R9, Reg::R7, bth + 4);
    p.swap(Reg::R9, 32);
    p.alu(Alu::And, Reg::R9, QPN);
}

/// Copies an address of the frame to the stack, as a key of the map.
fn address(p: &mut Program, format: Format, from: i16, to: i16, malformed: Label) {
    if format == Format::V4 {
        p.store(Size::Double, Reg::Fp, to, 0);
        p.store(Size::Word, Reg::Fp, to + 8, 0x0000_ffff_u32.to_be() as i32);
        p.load(Size::Word, Reg::R1, Reg::R7, from);
        p.store(Size::Word, Reg::Fp, to + 12, Reg::R1);
        return;
    }
    for word in [0, 4, 8, 12] {
        p.load(Size::Word, Reg::R1, Reg::R7, from + word);
        p.store(Size::Word, Reg::Fp, to + word, Reg::R1);
    }
    if format == Format::V6 {
        // A v4-mapped address never appears on the wire (RFC 4291 section 2.5.5.2), and here it would pass
        // for an IPv4 address.
        let other = p.label();
        unless_mapped(p, to, other);
        p.jump(malformed);
        p.here(other);
    }
}

/// Jumps to `other` if the address on the stack is not v4-mapped.
fn unless_mapped(p: &mut Program, key: i16, other: Label) {
    p.load(Size::Double, Reg::R1, Reg::Fp, key);
    p.jump_if(If::NotEqual, Reg::R1, 0, other);
    p.load(Size::Half, Reg::R1, Reg::Fp, key + 8);
    p.jump_if(If::NotEqual, Reg::R1, 0, other);
    p.load(Size::Half, Reg::R1, Reg::Fp, key + 10);
    p.jump_if(If::NotEqual, Reg::R1, 0xffff, other);
}

/// Keeps what rules of the routing table may ask for besides the addresses.
fn routing_key(p: &mut Program, format: Format) {
    p.store(Size::Word, Reg::Fp, TOS, 0);
    match format {
        Format::V4 => {
            p.load(Size::Octet, Reg::R1, Reg::R7, ETHER_LEN + 1);
            p.store(Size::Octet, Reg::Fp, TOS, Reg::R1);
        }
        Format::V6 => {
            p.load(Size::Word, Reg::R1, Reg::R7, ETHER_LEN);
            // In the packet's order, without the version.
            p.alu(Alu::And, Reg::R1, 0x0fff_ffff_u32.to_be() as i32);
            p.store(Size::Word, Reg::Fp, TOS, Reg::R1);
        }
        Format::Grh => {}
    }
    match format {
        Format::V4 | Format::V6 => p.load(Size::Word, Reg::R1, Reg::R7, format.bth() - 8),
        Format::Grh => p.mov(Reg::R1, 0),
    }
    p.store(Size::Word, Reg::Fp, PORTS, Reg::R1);
}

/// The slot of a UD packet's source queue pair belongs to the pair where the frame arrived.
fn source_queue_pair(p: &mut Program, bth: i16, ports: &Ports, refusals: &Refusals) {
    let other = p.label();
    p.load(Size::Octet, Reg::R1, Reg::R7, bth);
    p.alu(Alu::And, Reg::R1, SERVICE);
    p.jump_if(If::NotEqual, Reg::R1, SERVICE_UD, other);
    need(p, bth + BTH_LEN + DETH_LEN + ICRC_LEN, refusals.malformed);
    // The Q_Key comes first.
    p.load(Size::Word, Reg::R1, Reg::R7, bth + BTH_LEN + 4);
    p.swap(Reg::R1, 32);
    p.alu(Alu::And, Reg::R1, QPN);
    p.alu(Alu::Shr, Reg::R1, SLOT_SHIFT);
    p.store(Size::Word, Reg::Fp, KEY, Reg::R1);
    p.map(Reg::R1, ports);
    stack_address(p, Reg::R2, KEY);
    p.call(Helper::MapLookup);
    p.jump_if(If::Equal, Reg::R0, 0, refusals.foreign_qp);
    p.load(Size::Word, Reg::R1, Reg::R0, 0);
    p.load(Size::Word, Reg::R2, Reg::R6, MD_INGRESS);
    p.jump_if(If::NotEqual, Reg::R1, Reg::R2, refusals.foreign_qp);
    p.here(other);
}

fn stack_address(p: &mut Program, to: Reg, offset: i16) {
    p.mov(to, Reg::Fp);
    p.alu(Alu::Add, to, i32::from(offset));
}

/// `r0` = the entry of the address on the stack, or 0.
fn look_up(p: &mut Program, addresses: &Addresses, key: i16) {
    p.map(Reg::R1, addresses);
    stack_address(p, Reg::R2, key);
    p.call(Helper::MapLookup);
}

/// `r0` = the result of a redirection to the entry of the DestQP in `r9`; `absent` if the map has no such
/// entry.
fn redirect_by_slot(p: &mut Program, entries: &Map<4, 4>, absent: i32) {
    p.map(Reg::R1, entries);
    p.mov(Reg::R2, Reg::R9);
    p.alu(Alu::Shr, Reg::R2, SLOT_SHIFT);
    p.mov(Reg::R3, absent);
    p.call(Helper::RedirectMap);
}

/// `r0` = the kernel's answer for the packet's addresses; `r2` = the interface that is asked about.
fn look_up_route(p: &mut Program, flags: i32) {
    const AF_INET: i32 = 2;
    const AF_INET6: i32 = 10;
    for at in (FIB..0).step_by(8) {
        p.store(Size::Double, Reg::Fp, at, 0);
    }
    p.store(Size::Word, Reg::Fp, FIB_IFINDEX, Reg::R2);
    p.store(Size::Octet, Reg::Fp, FIB_PROTOCOL, UDP);
    for half in [0, 2] {
        p.load(Size::Half, Reg::R1, Reg::Fp, PORTS + half);
        p.store(Size::Half, Reg::Fp, FIB_PORTS + half, Reg::R1);
    }
    p.load(Size::Word, Reg::R1, Reg::Fp, LENGTH);
    p.store(Size::Half, Reg::Fp, FIB_TOTAL, Reg::R1);
    let (v6, ready) = (p.label(), p.label());
    unless_mapped(p, DESTINATION, v6);
    p.store(Size::Octet, Reg::Fp, FIB_FAMILY, AF_INET);
    p.load(Size::Octet, Reg::R1, Reg::Fp, TOS);
    p.store(Size::Octet, Reg::Fp, FIB_TOS, Reg::R1);
    for (to, from) in [(FIB_SOURCE, SOURCE), (FIB_DESTINATION, DESTINATION)] {
        p.load(Size::Word, Reg::R1, Reg::Fp, from + 12);
        p.store(Size::Word, Reg::Fp, to, Reg::R1);
    }
    p.jump(ready);
    p.here(v6);
    p.store(Size::Octet, Reg::Fp, FIB_FAMILY, AF_INET6);
    p.load(Size::Word, Reg::R1, Reg::Fp, TOS);
    p.store(Size::Word, Reg::Fp, FIB_TOS, Reg::R1);
    for (to, from) in [(FIB_SOURCE, SOURCE), (FIB_DESTINATION, DESTINATION)] {
        for half in [0, 8] {
            p.load(Size::Double, Reg::R1, Reg::Fp, from + half);
            p.store(Size::Double, Reg::Fp, to + half, Reg::R1);
        }
    }
    p.here(ready);
    p.mov(Reg::R1, Reg::R6);
    stack_address(p, Reg::R2, FIB);
    p.mov(Reg::R3, i32::from(FIB_LEN));
    p.mov(Reg::R4, flags);
    p.call(Helper::FibLookup);
}
