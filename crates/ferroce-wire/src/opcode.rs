//! The table of all opcodes.

/// Transport service of an opcode: its bits 7 to 5 (IBTA 9.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable Connection.
    Rc = 0x00,
    /// Unreliable Connection.
    Uc = 0x20,
    /// Reliable Datagram: known only to name the refused packets.
    Rd = 0x40,
    /// Unreliable Datagram.
    Ud = 0x60,
    /// Congestion notification (RoCEv2 A17.9.3): no transport, its own class of opcodes.
    Cnp = 0x80,
    /// Extended Reliable Connection (annex A14).
    Xrc = 0xa0,
    /// Opcodes that IBTA leaves to manufacturers (table 38). Ferroce has one.
    Manufacturer = 0xc0,
}

/// The opcode octet of a BTH: any value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WireOpcode(pub u8);

impl WireOpcode {
    /// Congestion notification packet.
    pub const CNP: Self = Self(0x81);

    /// Ferroce's report of held requests, to a peer that agreed to selective repeat.
    pub const SACK: Self = Self(0xc1);

    /// The table entry; `None` if no service assigns the opcode.
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE.get(usize::from(self.0)).and_then(Option::as_ref)
    }

    /// The opcode of `operation` on `service`, if the service has it. The only one of CNP is
    /// [`WireOpcode::CNP`].
    pub fn of(service: Service, operation: RcOpcode) -> Option<Self> {
        let opcode = Self(service as u8 | operation as u8);
        opcode.info().filter(|info| info.operation == Some(operation)).map(|_| opcode)
    }
}

/// The set of extension headers after the BTH. Their order is fixed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Headers(u16);

impl Headers {
    /// No extension header.
    pub const NONE: Self = Self(0);
    /// XRCETH, 4 octets.
    pub const XRCETH: Self = Self(1);
    /// RDETH, 4 octets.
    pub const RDETH: Self = Self(1 << 1);
    /// DETH, 8 octets.
    pub const DETH: Self = Self(1 << 2);
    /// FETH, 4 octets.
    pub const FETH: Self = Self(1 << 3);
    /// RETH, 16 octets.
    pub const RETH: Self = Self(1 << 4);
    /// AtomicETH, 28 octets.
    pub const ATOMIC: Self = Self(1 << 5);
    /// AETH, 4 octets.
    pub const AETH: Self = Self(1 << 6);
    /// AtomicAckETH, 8 octets.
    pub const ATOMIC_ACK: Self = Self(1 << 7);
    /// ImmDt, 4 octets.
    pub const IMM: Self = Self(1 << 8);
    /// IETH, 4 octets.
    pub const IETH: Self = Self(1 << 9);
    /// The 16 reserved octets of a CNP.
    pub const CNP: Self = Self(1 << 10);
    /// The 16 octets of a SACK: which requests are held.
    pub const HELD: Self = Self(1 << 11);

    const LENGTHS: [u8; 12] = [4, 4, 8, 4, 16, 28, 4, 8, 4, 4, 16, 16];

    /// The union of both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all headers of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Octets of all headers together.
    #[expect(clippy::indexing_slicing, reason = "the bound is the array's; const code has no iterators")]
    pub const fn octets(self) -> usize {
        let (mut sum, mut bit) = (0, 0);
        while bit < Self::LENGTHS.len() {
            if self.0 & (1 << bit) != 0 {
                sum += Self::LENGTHS[bit] as usize;
            }
            bit += 1;
        }
        sum
    }
}

/// The payload that an opcode may carry (IBTA 9.7.4.1.4, C9-92 to C9-94).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// No payload.
    None,
    /// Exactly the path MTU: First and Middle.
    Full,
    /// 1 octet to the path MTU: Last.
    NotEmpty,
    /// 0 octets to the path MTU: Only.
    Any,
    /// 8 octets: ATOMIC WRITE.
    Eight,
}

impl PayloadRule {
    /// Whether the rule allows a payload of `len` octets at this path MTU.
    pub const fn allows(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::None => len == 0,
            Self::Full => len == mtu,
            Self::NotEmpty => len != 0 && len <= mtu,
            Self::Any => len <= mtu,
            Self::Eight => len == 8,
        }
    }
}

/// An entry of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The service of the opcode.
    pub service: Service,
    /// The operation by its name on RC, which other services share; `None` for CNP, SACK and RD's ReSync.
    pub operation: Option<RcOpcode>,
    /// Extension headers.
    pub headers: Headers,
    /// Octets of BTH and extension headers.
    pub header_len: usize,
    /// The payload that may follow.
    pub payload: PayloadRule,
}

/// An operation by its opcode on RC, whose low five bits name the same operation in every service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of IBTA table 38")]
pub enum RcOpcode {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadFirst = 0x0d,
    ReadMiddle = 0x0e,
    ReadLast = 0x0f,
    ReadOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
}

impl RcOpcode {
    /// The rule for the payload of this operation.
    pub fn payload_rule(self) -> PayloadRule {
        WireOpcode(self as u8).info().map_or(PayloadRule::None, |info| info.payload)
    }
}

/// A line of [`OPERATIONS`]: the operation, its headers on RC, payload, direction, and the other services
/// that have it.
type Row = (RcOpcode, Headers, PayloadRule, bool, u8);

const UC: u8 = 1;
const UD: u8 = 2;
const RD: u8 = 4;
const XRC: u8 = 8;

const REQUEST: bool = true;
const RESPONSE: bool = false;

/// IBTA table 38, annexes A14 and A19.
#[rustfmt::skip]
const OPERATIONS: [Row; 25] = {
    use Headers as H;
    use PayloadRule as P;
    use RcOpcode::*;
    [
        (SendFirst,          H::NONE,                     P::Full,     REQUEST,  UC | RD | XRC),
        (SendMiddle,         H::NONE,                     P::Full,     REQUEST,  UC | RD | XRC),
        (SendLast,           H::NONE,                     P::NotEmpty, REQUEST,  UC | RD | XRC),
        (SendLastImm,        H::IMM,                      P::NotEmpty, REQUEST,  UC | RD | XRC),
        (SendOnly,           H::NONE,                     P::Any,      REQUEST,  UC | UD | RD | XRC),
        (SendOnlyImm,        H::IMM,                      P::Any,      REQUEST,  UC | UD | RD | XRC),
        (WriteFirst,         H::RETH,                     P::Full,     REQUEST,  UC | RD | XRC),
        (WriteMiddle,        H::NONE,                     P::Full,     REQUEST,  UC | RD | XRC),
        (WriteLast,          H::NONE,                     P::NotEmpty, REQUEST,  UC | RD | XRC),
        (WriteLastImm,       H::IMM,                      P::NotEmpty, REQUEST,  UC | RD | XRC),
        (WriteOnly,          H::RETH,                     P::Any,      REQUEST,  UC | RD | XRC),
        (WriteOnlyImm,       H::RETH.with(H::IMM),        P::Any,      REQUEST,  UC | RD | XRC),
        (ReadRequest,        H::RETH,                     P::None,     REQUEST,  RD | XRC),
        (ReadFirst,          H::AETH,                     P::Full,     RESPONSE, RD | XRC),
        (ReadMiddle,         H::NONE,                     P::Full,     RESPONSE, RD | XRC),
        (ReadLast,           H::AETH,                     P::NotEmpty, RESPONSE, RD | XRC),
        (ReadOnly,           H::AETH,                     P::Any,      RESPONSE, RD | XRC),
        (Acknowledge,        H::AETH,                     P::None,     RESPONSE, RD | XRC),
        (AtomicAcknowledge,  H::AETH.with(H::ATOMIC_ACK), P::None,     RESPONSE, RD | XRC),
        (CompareSwap,        H::ATOMIC,                   P::None,     REQUEST,  RD | XRC),
        (FetchAdd,           H::ATOMIC,                   P::None,     REQUEST,  RD | XRC),
        (SendLastInvalidate, H::IETH,                     P::NotEmpty, REQUEST,  XRC),
        (SendOnlyInvalidate, H::IETH,                     P::Any,      REQUEST,  XRC),
        (Flush,              H::FETH.with(H::RETH),       P::None,     REQUEST,  RD | XRC),
        (AtomicWrite,        H::RETH,                     P::Eight,    REQUEST,  RD | XRC),
    ]
};

/// Octets of a BTH.
pub(crate) const BTH_LEN: usize = 12;
/// Octets of the ICRC.
pub(crate) const ICRC_LEN: usize = 4;

const fn line(
    service: Service,
    operation: Option<RcOpcode>,
    headers: Headers,
    payload: PayloadRule,
) -> Option<OpcodeInfo> {
    let header_len = BTH_LEN + headers.octets();
    Some(OpcodeInfo { service, operation, headers, header_len, payload })
}

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time: out of bounds does not compile")]
const fn build() -> [Option<OpcodeInfo>; 256] {
    use Headers as H;
    let mut table = [None; 256];
    let mut i = 0;
    while i < OPERATIONS.len() {
        let (op, headers, payload, request, services) = OPERATIONS[i];
        let (low, some) = (op as usize, Some(op));
        table[low] = line(Service::Rc, some, headers, payload);
        if services & UC != 0 {
            table[Service::Uc as usize | low] = line(Service::Uc, some, headers, payload);
        }
        if services & UD != 0 {
            table[Service::Ud as usize | low] = line(Service::Ud, some, headers.with(H::DETH), payload);
        }
        if services & RD != 0 {
            let extra = if request { H::RDETH.with(H::DETH) } else { H::RDETH };
            table[Service::Rd as usize | low] = line(Service::Rd, some, headers.with(extra), payload);
        }
        if services & XRC != 0 {
            let extra = if request { H::XRCETH } else { H::NONE };
            table[Service::Xrc as usize | low] = line(Service::Xrc, some, headers.with(extra), payload);
        }
        i += 1;
    }
    table[0x55] = line(Service::Rd, None, H::RDETH.with(H::DETH), PayloadRule::None);
    // The whole class is CNP: 0x81 by A17, 0x80 by Linux's and tshark's tables.
    let mut cnp = Service::Cnp as usize;
    while cnp < Service::Xrc as usize {
        table[cnp] = line(Service::Cnp, None, H::CNP, PayloadRule::None);
        cnp += 1;
    }
    table[WireOpcode::SACK.0 as usize] =
        line(Service::Manufacturer, None, H::AETH.with(H::HELD), PayloadRule::None);
    table
}

static TABLE: [Option<OpcodeInfo>; 256] = build();

#[cfg(test)]
mod tests;
