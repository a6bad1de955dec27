//! Number types of the protocol.

use core::fmt;
use core::time::Duration;

use crate::Span;

const MASK_24: u32 = 0x00ff_ffff;

macro_rules! number_24 {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// Keeps the low 24 bits.
            pub const fn new(value: u32) -> Self {
                Self(value & MASK_24)
            }

            /// The number, below 2^24.
            pub const fn value(self) -> u32 {
                self.0
            }

            /// The three octets in header order.
            pub const fn to_be_bytes(self) -> [u8; 3] {
                let [_, a, b, c] = self.0.to_be_bytes();
                [a, b, c]
            }

            /// Reads the three octets of a header.
            pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
                let [a, b, c] = bytes;
                Self(u32::from_be_bytes([0, a, b, c]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

macro_rules! sequence {
    ($($name:ident)*) => {$(
        impl $name {
            /// The number `count` later on the circle of 2^24.
            pub const fn add(self, count: u32) -> Self {
                Self::new(self.0.wrapping_add(count))
            }

            /// The next number.
            pub const fn next(self) -> Self {
                self.add(1)
            }

            /// Signed distance from `earlier`: -2^23 to 2^23 - 1.
            pub const fn since(self, earlier: Self) -> i32 {
                ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
            }
        }
    )*};
}

number_24! {
    /// Packet sequence number: 24 bits, wraps. Two PSNs have a distance and no order.
    Psn;
    /// Message sequence number of AETH: messages the responder has completed, 24 bits, wraps.
    Msn;
    /// Send sequence number: the requester's count of messages, compared with [`Msn`] and the credits (IBTA
    /// 9.7.7.2).
    Ssn;
    /// Queue pair number: 24 bits.
    Qpn;
    /// Number of a shared receive queue in XRCETH: 24 bits.
    SrqNumber;
}

sequence!(Psn Msn Ssn);

impl Qpn {
    /// The general services interface of a port: QP1.
    pub const GSI: Self = Self(1);
    /// Destination of every multicast packet (IBTA 10.5.1).
    pub const MULTICAST: Self = Self(MASK_24);

    /// The slot: bits 23 to 12. The broker leases queue pair numbers by slots.
    pub const fn slot(self) -> u16 {
        (self.0 >> 12) as u16
    }

    /// The member: bits 23 to 16, by which the kernel chooses the receiving socket.
    pub const fn member(self) -> u8 {
        (self.0 >> 16) as u8
    }
}

macro_rules! number {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($int);

        impl $name {
            /// Any value is possible.
            pub const fn new(value: $int) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn value(self) -> $int {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

number! {
    /// Queue key of datagram services.
    Qkey(u32);
    /// Local key of a memory region.
    Lkey(u32);
    /// Remote key of a memory region or window.
    Rkey(u32);
    /// Partition key: bit 15 is full membership.
    Pkey(u16);
}

impl Qkey {
    /// Q_Key of QP1 (IBTA 13.5.1.1).
    pub const GSI: Self = Self(0x8001_0000);
}

impl Pkey {
    /// The default partition, full member: the only one on RoCE.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether packets with this key may reach a queue pair with `other`: both name the same partition, and
    /// at least one is a full member (IBTA 10.9.3).
    pub const fn matches(self, other: Self) -> bool {
        const FULL: u16 = 0x8000;
        (self.0 ^ other.0) & !FULL == 0 && (self.0 | other.0) & FULL != 0
    }
}

/// Immediate data: four octets that the receiver's completion reports unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Imm(pub [u8; 4]);

/// Path MTU: payload octets of a full packet. Discriminants are those of `ibv_mtu` and of the MADs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 octets.
    B256 = 1,
    /// 512 octets.
    B512 = 2,
    /// 1024 octets.
    B1024 = 3,
    /// 2048 octets.
    B2048 = 4,
    /// 4096 octets.
    B4096 = 5,
}

impl PathMtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Octets that headers may take in addition to the payload: rxe's budget, by which `active_mtu` is
    /// chosen.
    pub const HEADER_BUDGET: u32 = 80;

    /// Payload octets.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The MTU with exactly this number of payload octets.
    pub fn of_bytes(octets: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == octets)
    }

    /// The largest that fits a netdev of this MTU with its headers, at least 256 (rxe 6.12 `rxe_param.h`).
    pub fn largest_fitting(netdev_mtu: u32) -> Self {
        let room = netdev_mtu.saturating_sub(Self::HEADER_BUDGET);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() as u64 <= u64::from(room)).unwrap_or(Self::B256)
    }
}

/// The value is no `ibv_mtu`: 1 to 5.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no path MTU: 1 (256 octets) to 5 (4096)")]
pub struct InvalidPathMtu(pub u8);

impl TryFrom<u8> for PathMtu {
    type Error = InvalidPathMtu;

    fn try_from(code: u8) -> Result<Self, InvalidPathMtu> {
        match code {
            1 => Ok(Self::B256),
            2 => Ok(Self::B512),
            3 => Ok(Self::B1024),
            4 => Ok(Self::B2048),
            5 => Ok(Self::B4096),
            other => Err(InvalidPathMtu(other)),
        }
    }
}

/// Time to wait after an RNR NAK: a code of 5 bits (IBTA 9.7.5.2.8, table 45).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct RnrTimer(u8);

/// Delay by code, in units of 10 µs. Code 25 is 61.44 ms; rxe waits 61.41 ms for it.
const RNR_DELAY: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// Keeps the low 5 bits.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & 0x1f)
    }

    /// The code, 0 to 31. Code 0 is the longest delay.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The minimum delay: 10 µs to 655.36 ms.
    pub fn delay(self) -> Duration {
        let ten_micros = RNR_DELAY.get(usize::from(self.0)).copied().unwrap_or(65536);
        Duration::from_micros(u64::from(ten_micros) * 10)
    }
}

/// Local ACK timeout: a code of 5 bits (IBTA 9.7.6.1.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The timeout, 4.096 µs × 2^code; `None` for code 0, which turns the timeout off.
    pub const fn delay(self) -> Option<Duration> {
        match self.span() {
            None => None,
            Some(span) => Some(span.duration()),
        }
    }

    /// As [`Self::delay`].
    pub const fn span(self) -> Option<Span> {
        if self.0 == 0 { None } else { Some(Span::from_nanos(4096 << self.0)) }
    }
}

#[cfg(test)]
mod tests;
