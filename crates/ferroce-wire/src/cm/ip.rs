//! The RDMA IP CM service (IBTA annex A11): service ids with port numbers, and addresses in private data.

use core::fmt;
use core::net::IpAddr;

use crate::Gid;
use crate::bits::Bits;

/// Id of a service, which for IP services contains a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

/// A space of ports; discriminants are those of `rdma_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[doc(alias = "rdma_port_space")]
#[repr(u16)]
pub enum PortSpace {
    /// Sockets Direct Protocol.
    Sdp = 0x0001,
    /// IP over InfiniBand: datagrams.
    Ipoib = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Anything.
    Ib = 0x013f,
}

impl PortSpace {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sdp, Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// `None` if there is no such space.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|space| *space as u16 == code)
    }

    /// The service id of a port.
    pub const fn service_id(self, port: u16) -> ServiceId {
        ServiceId((self as u64) << 16 | port as u64)
    }
}

impl ServiceId {
    /// The port space and port in this id; `None` for ids of other services.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let space = u16::try_from(self.0 >> 16).ok()?;
        Some((PortSpace::from_code(space)?, self.0 as u16))
    }

    /// Whether the service is of the RDMA IP CM service (annex A11), or a port of IPoIB, which Linux treats
    /// alike: the private data begin with an [`IpCmHeader`].
    pub fn is_ip(self) -> bool {
        const ANNEX_11: u64 = 0x0100_0000;
        self.0 & 0xffff_ffff_ff00_0000 == ANNEX_11 || self.0 >> 16 == PortSpace::Ipoib as u64
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "ServiceId({space:?} {port})"),
            None => write!(f, "ServiceId({:#018x})", self.0),
        }
    }
}

/// The header at the start of the private data of a REQ or SIDR_REQ to an IP address (annex A11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpCmHeader {
    /// The requester's port.
    pub source_port: u16,
    /// The requester's address, of the same family as `destination`.
    pub source: IpAddr,
    /// The address that the requester connects to; the port is in the service id.
    pub destination: IpAddr,
}

/// The private data do not begin with a valid header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IpCmError {
    /// The private data are shorter than the header.
    #[error("{0} octets, the header has 36")]
    Length(usize),
    /// A version of the service other than 0.0.
    #[error("version {0:#04x} of the IP CM service, only 0 is known")]
    Version(u8),
    /// The IP version is neither 4 nor 6.
    #[error("IP version {0}")]
    IpVersion(u8),
}

impl IpCmHeader {
    /// Octets of the header: the program can use the private data behind it.
    pub const LEN: usize = 36;

    /// Reads the header. Returns it with the rest of the private data.
    ///
    /// # Errors
    ///
    /// Returns an [`IpCmError`] if the header is invalid. The twelve octets in front of an IPv4 address are
    /// ignored.
    pub fn parse(private: &[u8]) -> Result<(Self, &[u8]), IpCmError> {
        let too_short = IpCmError::Length(private.len());
        let (head, rest) = private.split_first_chunk::<{ Self::LEN }>().ok_or(too_short)?;
        let mut head = *head;
        let mut io = Bits::reading(&mut head);
        let version = io.u8(8, 0);
        if version != 0 {
            return Err(IpCmError::Version(version));
        }
        let v4 = match io.u8(4, 0) {
            4 => true,
            6 => false,
            other => return Err(IpCmError::IpVersion(other)),
        };
        let source_port = io.skip(4).u16(16, 0);
        let [source, destination] = [(); 2].map(|()| read(io.octets([0; 16]), v4));
        Ok((Self { source_port, source, destination }, rest))
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let mut io = Bits::writing(&mut out);
        io.skip(8).u8(4, if self.destination.is_ipv4() { 4 } else { 6 });
        io.skip(4).u16(16, self.source_port);
        for address in [self.source, self.destination] {
            io.octets(write(address));
        }
        out
    }
}

fn read(field: [u8; 16], v4: bool) -> IpAddr {
    if !v4 {
        return IpAddr::V6(field.into());
    }
    let [.., a, b, c, d] = field;
    IpAddr::V4([a, b, c, d].into())
}

/// Writes an IPv4 address to the last four octets, after zeros: unlike in a GID.
fn write(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        }
        IpAddr::V6(_) => Gid::from_ip(ip).0,
    }
}
