//! The bytes of rsockets (rdma-core 44, `librdmacm/docs/rsocket`): sockets over queue pairs.
//!
//! **Streams.** Each end has a receive buffer and a table, and the peer fills both by RDMA WRITE. The table
//! holds two [`Grant`]s, which are writable pieces of the peer's receive buffer, and behind them [`Mapping`]s
//! of memory that the peer's program opened. The private data of REQ and REP ([`ConnectData`]) say where both
//! are. A WRITE that concerns the other end carries immediate data, a [`Message`]. Tables are in the byte
//! order of the reading host; everything else is big-endian.
//!
//! **Datagrams.** The first datagram is sent to the UDP port of its destination behind a [`Locator`], which
//! names the sender's UD queue pair; the answer is a locator alone. Later datagrams are sent to the queue
//! pair behind a [`SourceHeader`], which names the sending UDP port.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ferroce_wire::{Imm, Qpn, Rkey};

const VERSION: u8 = 1;
/// The sender is big-endian.
const BIG_ENDIAN: u8 = 1 << 0;
/// The sender's table has mappings behind the grants.
const HAS_MAPPINGS: u8 = 1 << 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    /// Octets in network order, in this order; and back.
    fn turn<const N: usize>(self, mut octets: [u8; N]) -> [u8; N] {
        if self == Self::Little {
            octets.reverse();
        }
        octets
    }
}

/// Memory that the other end may write to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    pub addr: u64,
    pub rkey: Rkey,
    /// In octets; in grants for the table in [`ConnectData`].
    pub length: u32,
}

impl Grant {
    /// Octets on the wire.
    pub const LEN: usize = 16;
    pub const NONE: Self = Self { addr: 0, rkey: Rkey::new(0), length: 0 };

    pub fn emit(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let (rkey, length) = (self.rkey.value().to_be_bytes(), self.length.to_be_bytes());
        join([order.turn(self.addr.to_be_bytes()).as_slice(), &order.turn(rkey), &order.turn(length)])
    }

    pub fn parse(octets: &[u8; Self::LEN], order: ByteOrder) -> Self {
        let mut rest = octets.as_slice();
        let addr = u64::from_be_bytes(order.turn(take(&mut rest)));
        let rkey = Rkey::new(u32::from_be_bytes(order.turn(take(&mut rest))));
        Self { addr, rkey, length: u32::from_be_bytes(order.turn(take(&mut rest))) }
    }
}

/// Memory that a program opened under an offset of its choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The offset of its first octet.
    pub offset: u64,
    pub memory: Grant,
}

impl Mapping {
    /// Octets on the wire.
    pub const LEN: usize = 8 + Grant::LEN;

    pub fn emit(&self, order: ByteOrder) -> [u8; Self::LEN] {
        join([order.turn(self.offset.to_be_bytes()).as_slice(), &self.memory.emit(order)])
    }

    pub fn parse(octets: &[u8; Self::LEN], order: ByteOrder) -> Self {
        let mut rest = octets.as_slice();
        let offset = u64::from_be_bytes(order.turn(take(&mut rest)));
        Self { offset, memory: Grant::parse(&take(&mut rest), order) }
    }
}

/// Encodes a count of mappings in an octet: literally to 128, above in units of 256.
fn count_to_code(count: u16) -> u8 {
    match u8::try_from(count) {
        Ok(count) if count <= 0x80 => count,
        _ => 0x80 | (count >> 8) as u8,
    }
}

fn code_to_count(code: u8) -> u16 {
    if code <= 0x80 { u16::from(code) } else { u16::from(code & 0x7f) << 8 }
}

/// Returns the size of a table for `count` mappings: smaller where the octet of [`ConnectData`] cannot encode
/// the count.
pub fn mappings_for(count: u16) -> u16 {
    code_to_count(count_to_code(count))
}

/// The private data of REQ and REP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// The sender's byte order, in which the peer writes the table.
    pub order: ByteOrder,
    /// Receive WQEs that the sender has posted.
    pub credits: u16,
    /// Capacity of the sender's table for mappings, see [`mappings_for`].
    pub mappings: u16,
    pub table: Grant,
    /// The first grant: the receiver may write to it at once.
    pub first: Grant,
}

/// The private data are not those of an rsocket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer is no rsocket, or one of version {0}")]
pub struct NoRsocket(pub u8);

impl ConnectData {
    /// Octets on the wire.
    pub const LEN: usize = 8 + 2 * Grant::LEN;

    pub fn emit(&self) -> [u8; Self::LEN] {
        let order = if self.order == ByteOrder::Big { BIG_ENDIAN } else { 0 };
        let [high, low] = self.credits.to_be_bytes();
        let head = [VERSION, HAS_MAPPINGS | order, high, low, 0, 0, 0, count_to_code(self.mappings)];
        join([head.as_slice(), &self.table.emit(ByteOrder::Big), &self.first.emit(ByteOrder::Big)])
    }

    /// Parses private data; further octets are ignored.
    ///
    /// # Errors
    ///
    /// For another version, and for too few octets.
    pub fn parse(private: &[u8]) -> Result<Self, NoRsocket> {
        let version = private.first().copied().unwrap_or(0);
        let octets: &[u8; Self::LEN] = private.first_chunk().ok_or(NoRsocket(version))?;
        if version != VERSION {
            return Err(NoRsocket(version));
        }
        let mut rest = octets.as_slice();
        let [_, flags, high, low, _, _, _, code] = take(&mut rest);
        let table = Grant::parse(&take(&mut rest), ByteOrder::Big);
        let first = Grant::parse(&take(&mut rest), ByteOrder::Big);
        Ok(Self {
            order: if flags & BIG_ENDIAN != 0 { ByteOrder::Big } else { ByteOrder::Little },
            credits: u16::from_be_bytes([high, low]),
            mappings: if flags & HAS_MAPPINGS != 0 { code_to_count(code) } else { 0 },
            table,
            first,
        })
    }
}

/// The immediate data of a WRITE: three bits of kind, 29 bits of value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// The number of octets written behind the previous ones, below 2^29.
    Data(u32),
    /// The sender has receive WQEs for all messages before this number; it may also have written a grant.
    Credits(u16),
    /// The sender wrote the mapping of this index.
    Mapped(u16),
    /// Neither end sends any more.
    Disconnect,
    Keepalive,
    /// The sender sends no more.
    Shutdown,
}

/// The immediate data have a reserved kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("immediate data {0:#010x} mean nothing")]
pub struct NoMessage(pub u32);

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;
const KIND_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl Message {
    pub fn imm(self) -> Imm {
        let (kind, value) = match self {
            Self::Data(octets) => (DATA, octets & VALUE_MASK),
            Self::Credits(limit) => (CREDITS, u32::from(limit)),
            Self::Mapped(index) => (MAPPED, u32::from(index)),
            Self::Disconnect => (CONTROL, 0),
            Self::Keepalive => (CONTROL, 1),
            Self::Shutdown => (CONTROL, 2),
        };
        Imm((kind << KIND_SHIFT | value).to_be_bytes())
    }

    /// Parses immediate data. Credits and indices use 16 bits, as in rdma-core.
    ///
    /// # Errors
    ///
    /// For reserved kinds.
    pub fn parse(imm: Imm) -> Result<Self, NoMessage> {
        let word = u32::from_be_bytes(imm.0);
        let value = word & VALUE_MASK;
        match (word >> KIND_SHIFT, value) {
            (DATA, octets) => Ok(Self::Data(octets)),
            (CREDITS, limit) => Ok(Self::Credits(limit as u16)),
            (MAPPED, index) => Ok(Self::Mapped(index as u16)),
            (CONTROL, 0) => Ok(Self::Disconnect),
            (CONTROL, 1) => Ok(Self::Keepalive),
            (CONTROL, 2) => Ok(Self::Shutdown),
            _ => Err(NoMessage(word)),
        }
    }
}

/// The datagram has no valid header and is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no header of a datagram rsocket")]
pub struct NoHeader;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocatorKind {
    /// Data follow, and the sender expects an answer.
    Data,
    Answer,
}

/// The header of a datagram on the UDP socket: the sender's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locator {
    pub kind: LocatorKind,
    pub qpn: Qpn,
    /// The sender's address.
    pub address: IpAddr,
}

impl Locator {
    pub const MAX_LEN: usize = Self::HEAD + 16;
    const HEAD: usize = 12;
    const TAG: u32 = 0x5555_5555;
    const V4: u8 = 16;
    const V6: u8 = 28;

    /// Writes the header and returns its length.
    pub fn emit(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        let kind = match self.kind {
            LocatorKind::Data => DATA,
            LocatorKind::Answer => CONTROL,
        } as u8;
        let (version, length) = if self.address.is_ipv4() { (4, Self::V4) } else { (6, Self::V6) };
        let mut address = [0; 16];
        put_address(&mut address, self.address);
        let head = [version, kind, length, 0];
        let qpn = self.qpn.value().to_be_bytes();
        *out = join([Self::TAG.to_be_bytes().as_slice(), &head, &qpn, &address]);
        usize::from(length)
    }

    /// Parses the header, and returns the octets behind it.
    ///
    /// # Errors
    ///
    /// Without the tag, for unknown kinds, and for a length that does not fit the IP version.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), NoHeader> {
        let head: &[u8; Self::HEAD] = datagram.first_chunk().ok_or(NoHeader)?;
        let mut rest = head.as_slice();
        let tag = u32::from_be_bytes(take(&mut rest));
        let [version, kind, length, _] = take(&mut rest);
        let qpn = Qpn::new(u32::from_be_bytes(take(&mut rest)) & 0x00ff_ffff);
        if tag != Self::TAG || !matches!((version, length), (4, Self::V4) | (6, Self::V6)) {
            return Err(NoHeader);
        }
        let kind = match u32::from(kind) {
            DATA => LocatorKind::Data,
            CONTROL => LocatorKind::Answer,
            _ => return Err(NoHeader),
        };
        let address = get_address(version, datagram.get(Self::HEAD..).unwrap_or_default()).ok_or(NoHeader)?;
        let behind = datagram.get(usize::from(length)..).ok_or(NoHeader)?;
        Ok((Self { kind, qpn, address }, behind))
    }
}

/// The header of a datagram between queue pairs: the address of the sending UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceHeader(pub SocketAddr);

impl SourceHeader {
    pub const MAX_LEN: usize = 24;
    const V4: u8 = 8;
    const V6: u8 = 24;

    /// Writes the header and returns its length.
    pub fn emit(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        let port = self.0.port().to_be_bytes();
        let mut address = [0; 16];
        put_address(&mut address, self.0.ip());
        match self.0 {
            SocketAddr::V4(_) => {
                *out = join([[4, Self::V4].as_slice(), &port, &address]);
                usize::from(Self::V4)
            }
            SocketAddr::V6(v6) => {
                let flow = v6.flowinfo().to_be_bytes();
                *out = join([[6, Self::V6].as_slice(), &port, &flow, &address]);
                usize::from(Self::V6)
            }
        }
    }

    /// Parses the header, and returns the octets behind it.
    ///
    /// # Errors
    ///
    /// For a length that does not fit the IP version.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), NoHeader> {
        let head: &[u8; 4] = datagram.first_chunk().ok_or(NoHeader)?;
        let [version, length, high, low] = *head;
        let port = u16::from_be_bytes([high, low]);
        let behind = datagram.get(4..).unwrap_or_default();
        let source = match (version, length) {
            (4, Self::V4) => SocketAddr::new(get_address(4, behind).ok_or(NoHeader)?, port),
            (6, Self::V6) => {
                let flow = u32::from_be_bytes(*behind.first_chunk().ok_or(NoHeader)?);
                match get_address(6, behind.get(4..).unwrap_or_default()) {
                    Some(IpAddr::V6(ip)) => SocketAddrV6::new(ip, port, flow, 0).into(),
                    _ => return Err(NoHeader),
                }
            }
            _ => return Err(NoHeader),
        };
        let behind = datagram.get(usize::from(length)..).ok_or(NoHeader)?;
        Ok((Self(source), behind))
    }
}

fn put_address(room: &mut [u8; 16], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => room.iter_mut().zip(v4.octets()).for_each(|(to, from)| *to = from),
        IpAddr::V6(v6) => *room = v6.octets(),
    }
}

fn get_address(version: u8, octets: &[u8]) -> Option<IpAddr> {
    match version {
        4 => octets.first_chunk::<4>().map(|v4| Ipv4Addr::from(*v4).into()),
        _ => octets.first_chunk::<16>().map(|v6| Ipv6Addr::from(*v6).into()),
    }
}

/// Takes the first N octets, or zeros if there are fewer; the callers pass arrays of sufficient size.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let Some((head, tail)) = rest.split_first_chunk() else { return [0; N] };
    *rest = tail;
    *head
}

/// Concatenates `parts` and fills the rest with zeros.
fn join<const N: usize, const PARTS: usize>(parts: [&[u8]; PARTS]) -> [u8; N] {
    let mut whole = [0; N];
    whole.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Private data of the REQ of `cm_rstream.pcap`, behind the header of the IP CM service.
    const CAPTURED: [u8; 40] = [
        1, 2, 0x01, 0x80, 0, 0, 0, 0, // version, flags, 384 credits, no mappings
        0, 0, 0x56, 0x4a, 0xf8, 0x64, 0x60, 0, 0, 0, 0x48, 0xbf, 0, 0, 0, 2, // table
        0, 0, 0x7f, 0x9c, 0x89, 0xba, 0x90, 0, 0, 0, 0x49, 0x8f, 0, 8, 0, 0, // first grant
    ];

    #[test]
    fn connect_data_come_back_as_they_were() {
        let data = ConnectData::parse(&CAPTURED).expect("an rsocket");
        assert_eq!((data.credits, data.mappings, data.order), (384, 0, ByteOrder::Little));
        assert_eq!((data.table.length, data.first.length), (2, 0x8_0000));
        assert_eq!(data.emit(), CAPTURED);
        for length in 0..CAPTURED.len() {
            assert!(ConnectData::parse(&CAPTURED[..length]).is_err(), "{length}");
        }
        let other = ConnectData { order: ByteOrder::Big, mappings: 0x300, ..data };
        assert_eq!(ConnectData::parse(&other.emit()), Ok(other));
        let mut old = CAPTURED;
        (old[1], old[7]) = (0, 9);
        assert_eq!(
            ConnectData::parse(&old).expect("an old rsocket").mappings,
            0,
            "none unless a flag says so"
        );
        old[0] = 2;
        assert_eq!(ConnectData::parse(&old), Err(NoRsocket(2)));
    }

    #[test]
    fn counts_of_mappings_are_rounded() {
        for (asked, got) in
            [(0, 0), (1, 1), (128, 128), (129, 128), (255, 128), (256, 256), (257, 256), (0x7fff, 0x7f00)]
        {
            // 128 is both a literal count and the flag of units with the value 0.
            assert_eq!(mappings_for(asked), got, "{asked}");
        }
    }

    #[test]
    fn tables_have_their_reader_s_order() {
        let memory = Grant { addr: 0x0102_0304_0506_0708, rkey: Rkey::new(0x090a_0b0c), length: 0x0d0e_0f10 };
        let big: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
        assert_eq!(memory.emit(ByteOrder::Big), big);
        assert_eq!(memory.emit(ByteOrder::Little)[..9], [8, 7, 6, 5, 4, 3, 2, 1, 0x0c]);
        let mapping = Mapping { offset: 0x1122, memory };
        for order in [ByteOrder::Big, ByteOrder::Little] {
            assert_eq!(Grant::parse(&memory.emit(order), order), memory);
            assert_eq!(Mapping::parse(&mapping.emit(order), order), mapping);
        }
    }

    fn imm(word: u32) -> Imm {
        Imm(word.to_be_bytes())
    }

    #[test]
    fn messages_are_immediate_data() {
        for (message, word) in [
            (Message::Data(3000), 3000),
            (Message::Data(0x1fff_ffff), 0x1fff_ffff),
            (Message::Credits(0xffff), 0x8000_ffff),
            (Message::Mapped(7), 0xc000_0007),
            (Message::Disconnect, 0xe000_0000),
            (Message::Keepalive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ] {
            assert_eq!(message.imm(), imm(word));
            assert_eq!(Message::parse(imm(word)), Ok(message));
        }
        for word in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::parse(imm(word)), Err(NoMessage(word)));
        }
    }

    #[test]
    fn headers_of_datagrams() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let address: IpAddr = address.parse().expect("an address");
            for kind in [LocatorKind::Data, LocatorKind::Answer] {
                let locator = Locator { kind, qpn: Qpn::new(0x00ab_cdef), address };
                let mut room = [0; Locator::MAX_LEN];
                let length = locator.emit(&mut room);
                assert_eq!(length, if address.is_ipv4() { 16 } else { 28 });
                assert_eq!(Locator::parse(&room[..length]), Ok((locator, [].as_slice())));
                (0..length).for_each(|short| assert_eq!(Locator::parse(&room[..short]), Err(NoHeader)));
                for (at, value) in [(0, 0), (4, 5), (5, 1), (6, 17)] {
                    let mut wrong = room;
                    wrong[at] = value;
                    assert_eq!(Locator::parse(&wrong), Err(NoHeader), "octet {at}");
                }
            }
            let header = SourceHeader(SocketAddr::new(address, 7471));
            let mut room = [0; SourceHeader::MAX_LEN];
            let length = header.emit(&mut room);
            assert_eq!(length, if address.is_ipv4() { 8 } else { 24 });
            assert_eq!(SourceHeader::parse(&room[..length]), Ok((header, [].as_slice())));
            (0..length).for_each(|short| assert_eq!(SourceHeader::parse(&room[..short]), Err(NoHeader)));
        }
    }
}
