//! Fields that several messages share.

use core::fmt;
use core::time::Duration;

use crate::bits::Bits;
use crate::{Psn, Qpn};

/// Communication id: the id that one end chose for a connection; never 0 for a live one. Request ids of SIDR
/// share the space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommId(pub u32);

impl CommId {
    /// No connection, as in a REJ from a sender that has none.
    pub const NONE: Self = Self(0);
}

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({:#010x})", self.0)
    }
}

/// A time as a code of 5 bits: 4.096 µs × 2^code (IBTA 12.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct CmTime(u8);

impl CmTime {
    /// `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// Creates a time from a code; codes above 31 become 31.
    pub const fn saturating(code: u8) -> Self {
        if code < 32 { Self(code) } else { Self(31) }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The duration: 4.096 µs to 8796 s.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The shortest time that lasts at least `duration`; code 31 if none does.
    pub fn at_least(duration: Duration) -> Self {
        (0..31).map(Self).find(|time| time.duration() >= duration).unwrap_or(Self(31))
    }
}

/// Private data of a message, zero padded to its full size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

/// The private data exceed the message's field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} octets of private data, the message has room for {max}")]
pub struct PrivateDataTooLong {
    /// Octets of the given data.
    pub given: usize,
    /// Octets of the field.
    pub max: usize,
}

impl<const N: usize> PrivateData<N> {
    /// Octets of the field.
    pub const LEN: usize = N;
    /// Private data with zeros only.
    pub const EMPTY: Self = Self([0; N]);

    /// Copies `data` and fills the rest with zeros.
    ///
    /// # Errors
    ///
    /// Returns [`PrivateDataTooLong`] if `data` exceeds the field.
    pub fn new(data: &[u8]) -> Result<Self, PrivateDataTooLong> {
        Self::concat(&[], data)
    }

    /// Concatenates `head` and `tail`, and fills the rest with zeros.
    ///
    /// # Errors
    ///
    /// Returns [`PrivateDataTooLong`] if both together exceed the field.
    pub fn concat(head: &[u8], tail: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let max = N.saturating_sub(head.len());
        let given = tail.len();
        let mut field = [0; N];
        let room = field.get_mut(..head.len()).ok_or(PrivateDataTooLong { given, max })?;
        room.copy_from_slice(head);
        let end = head.len().saturating_add(given);
        let room = field.get_mut(head.len()..end).ok_or(PrivateDataTooLong { given, max })?;
        room.copy_from_slice(tail);
        Ok(Self(field))
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// Prints the octets without trailing zeros.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|octet| *octet != 0).map_or(0, |last| last.saturating_add(1));
        for octet in self.0.iter().take(used) {
            write!(f, "{octet:02x}")?;
        }
        write!(f, "+{}", N - used)
    }
}

/// Additional information of a REJ, APR or SIDR_REP. Only the first `len` octets of the field are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// The length in the message, which may be wrong.
    pub len: u8,
    /// The whole field.
    pub bytes: PrivateData<72>,
}

impl Info {
    /// No information.
    pub const NONE: Self = Self { len: 0, bytes: PrivateData::EMPTY };

    /// Copies the first 72 octets of `data`.
    pub fn new(data: &[u8]) -> Self {
        let data = data.get(..72).unwrap_or(data);
        // At most 72 octets fit both.
        Self { len: data.len() as u8, bytes: PrivateData::new(data).unwrap_or_default() }
    }

    /// The valid octets; the whole field if its length is wrong.
    pub fn get(&self) -> &[u8] {
        self.bytes.0.get(..usize::from(self.len)).unwrap_or(&self.bytes.0)
    }
}

impl Default for Info {
    fn default() -> Self {
        Self::NONE
    }
}

/// Enhanced connection establishment: options of a vendor. The vendor id is in the message, the options in
/// the attribute modifier of the MAD header. Without a vendor id the options have no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_ece")]
pub struct Ece {
    /// 24 bits; 0 means none.
    pub vendor_id: u32,
    /// Options that the vendor defines.
    pub options: u32,
}

/// Transport of a connection, from two fields of the REQ.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Transport {
    /// Reliable Connection.
    #[default]
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Reliable Datagram, which no implementation supports.
    Rd,
    /// A value of the extended transport type, 3 bits.
    Extended(u8),
}

impl Transport {
    /// Extended Reliable Connection.
    pub const XRC: Self = Self::Extended(1);

    /// Combines the two fields; the second is valid only if the first is 3.
    pub(super) const fn from_bits(transport: u8, extended: u8) -> Self {
        match transport & 3 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended(extended & 7),
        }
    }

    pub(super) const fn bits(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Extended(extended) => (3, extended & 7),
        }
    }
}

/// The message that a MRA or REJ refers to: 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct About(pub u8);

impl About {
    /// The REQ.
    pub const REQ: Self = Self(0);
    /// The REP.
    pub const REP: Self = Self(1);
    /// In a MRA the LAP; in a REJ no particular message.
    pub const OTHER: Self = Self(2);
}

/// The fields that several messages have.
impl Bits<'_> {
    pub(super) fn id(&mut self, id: CommId) -> CommId {
        CommId(self.u32(32, id.0))
    }

    /// The code of a time: 5 bits.
    pub(super) fn time(&mut self, time: CmTime) -> CmTime {
        CmTime(self.u8(5, time.0))
    }

    pub(super) fn qpn(&mut self, qpn: Qpn) -> Qpn {
        Qpn::new(self.u32(24, qpn.value()))
    }

    pub(super) fn psn(&mut self, psn: Psn) -> Psn {
        Psn::new(self.u32(24, psn.value()))
    }

    pub(super) fn private<const N: usize>(&mut self, data: PrivateData<N>) -> PrivateData<N> {
        PrivateData(self.octets(data.0))
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident($int:ty) { $($(#[$cdoc:meta])* $code:ident = $value:literal, $text:literal;)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$cdoc])* #[doc = $text] pub const $code: Self = Self($value);)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$code => f.write_str($text),)*
                    Self(other) => write!(f, "code {other}"),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({self})", self.0)
            }
        }
    )*};
}

codes! {
    /// The reason for refusing a connection (IBTA 12.6.7).
    RejReason(u16) {
        NO_QP = 1, "no queue pair";
        NO_EEC = 2, "no end-to-end context";
        NO_RESOURCES = 3, "no resources";
        TIMEOUT = 4, "timeout";
        UNSUPPORTED = 5, "unsupported request";
        INVALID_COMM_ID = 6, "invalid communication id";
        INVALID_COMM_INSTANCE = 7, "invalid communication instance";
        INVALID_SERVICE_ID = 8, "invalid service id: nobody listens";
        INVALID_TRANSPORT_TYPE = 9, "invalid transport type";
        STALE_CONNECTION = 10, "stale connection";
        RDC_MISSING = 11, "RDC does not exist";
        INVALID_GID = 12, "primary remote port GID rejected";
        INVALID_LID = 13, "primary remote port LID rejected";
        INVALID_SL = 14, "invalid primary SL";
        INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
        INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
        INVALID_PACKET_RATE = 17, "invalid primary packet rate";
        INVALID_ALT_GID = 18, "alternate remote port GID rejected";
        INVALID_ALT_LID = 19, "alternate remote port LID rejected";
        INVALID_ALT_SL = 20, "invalid alternate SL";
        INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
        INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
        INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
        PORT_CM_REDIRECT = 24, "port and CM redirection";
        PORT_REDIRECT = 25, "port redirection";
        INVALID_MTU = 26, "invalid path MTU";
        INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
        CONSUMER = 28, "consumer reject";
        RNR_RETRY_COUNT = 29, "RNR retry count rejected";
        DUPLICATE_COMM_ID = 30, "duplicate local communication id";
        CLASS_VERSION = 31, "unsupported class version";
        INVALID_FLOW_LABEL = 32, "invalid primary flow label";
        INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
        VENDOR_OPTION = 35, "vendor option not supported";
    }

    /// The result of a LAP (IBTA 12.8.2).
    AprStatus(u8) {
        OK = 0, "alternate path loaded";
        INVALID_COMM_ID = 1, "invalid communication id";
        UNSUPPORTED = 2, "alternate paths are not supported";
        REJECTED = 3, "rejected";
        REDIRECT = 4, "redirected";
        IS_CURRENT = 5, "the path is current already";
        INVALID_QPN = 6, "wrong queue pair number or EECN";
        INVALID_LID = 7, "LID rejected";
        INVALID_GID = 8, "GID rejected";
        INVALID_FLOW_LABEL = 9, "flow label rejected";
        INVALID_TRAFFIC_CLASS = 10, "traffic class rejected";
        INVALID_HOP_LIMIT = 11, "hop limit rejected";
        INVALID_PACKET_RATE = 12, "packet rate rejected";
        INVALID_SL = 13, "SL rejected";
    }

    /// The result of a SIDR_REQ (IBTA 12.11).
    SidrStatus(u8) {
        VALID = 0, "valid";
        UNSUPPORTED = 1, "service id not supported";
        REJECTED = 2, "rejected";
        NO_QP = 3, "no queue pair";
        REDIRECT = 4, "redirected";
        UNSUPPORTED_VERSION = 5, "unsupported class version";
    }
}
