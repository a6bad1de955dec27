//! The ACK extended header and its syndrome.

use crate::{Msn, RnrTimer, view};

/// ACK extended transport header (IBTA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// Acknowledgement, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

impl From<view::Aeth> for Aeth {
    fn from(raw: view::Aeth) -> Self {
        Self { syndrome: Syndrome::from_byte(raw.syndrome), msn: Msn::from_be_bytes(raw.msn) }
    }
}

impl From<Aeth> for view::Aeth {
    fn from(aeth: Aeth) -> Self {
        Self { syndrome: aeth.syndrome.to_byte(), msn: aeth.msn.to_be_bytes() }
    }
}

/// AETH syndrome: every octet has a meaning and is written back unchanged (IBTA table 43).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// The request is acknowledged, with end-to-end credits.
    Ack {
        /// The number of further messages that may use a receive WQE.
        credits: CreditCode,
    },
    /// The responder has no receive WQE: retry after this time.
    RnrNak(RnrTimer),
    /// The responder refused the request.
    Nak(NakCode),
    /// Bit 7 is set, or the type is 2: the receiver drops it.
    Reserved(u8),
}

impl Syndrome {
    /// Decodes an octet.
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 5 {
            0 => Self::Ack { credits: CreditCode(byte & 0x1f) },
            1 => Self::RnrNak(RnrTimer::from_bits(byte)),
            3 => Self::Nak(NakCode::from_bits(byte)),
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes as an octet.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits.0,
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(code) => 0x60 | code.code(),
            Self::Reserved(byte) => byte,
        }
    }
}

/// The reason of a refusal: low five bits of a NAK syndrome (IBTA table 44).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequenceError,
    /// The request is malformed, out of sequence, not permitted by the queue pair, or too long for its
    /// receive WQE.
    InvalidRequest,
    /// Key, range or permission of remote memory is invalid.
    RemoteAccessError,
    /// The responder cannot complete the request because of a local error.
    RemoteOperationalError,
    /// Reliable Datagram only.
    InvalidRdRequest,
    /// The values 5 to 31.
    Reserved(u8),
}

impl NakCode {
    const fn from_bits(bits: u8) -> Self {
        match bits & 0x1f {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other),
        }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & 0x1f,
        }
    }
}

/// End-to-end credits in an AETH: a code of 5 bits (IBTA 9.7.7.2, table 47).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CreditCode(u8);

const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl CreditCode {
    /// No credits are used: kernel rxe always sends this.
    pub const UNLIMITED: Self = Self(31);

    /// `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code for this many receive WQEs, rounded down.
    pub fn encode(receives: u32) -> Self {
        let above = CREDITS.partition_point(|&credits| u32::from(credits) <= receives);
        Self(above.saturating_sub(1) as u8)
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The number of messages beyond the MSN that may be sent; `None` if there is no limit.
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).map(|&credits| u32::from(credits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_round_trips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
            let reserved = matches!(Syndrome::from_byte(byte), Syndrome::Reserved(_));
            assert_eq!(reserved, byte >= 0x80 || byte & 0x60 == 0x40, "{byte:#x}");
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack { credits: CreditCode::UNLIMITED });
        assert_eq!(Syndrome::from_byte(0x61), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome::from_byte(0x7f), Syndrome::Nak(NakCode::Reserved(31)));
        assert_eq!(Syndrome::from_byte(0x36), Syndrome::RnrNak(RnrTimer::new(22).unwrap()));
    }

    /// The code is rounded down, so that the responder never promises more than it has (IBTA 9.7.7.2).
    #[test]
    fn credits_round_down() {
        for (receives, code) in
            [(0, 0), (4, 4), (5, 4), (6, 5), (11, 6), (32767, 29), (32768, 30), (u32::MAX, 30)]
        {
            assert_eq!(CreditCode::encode(receives).code(), code, "{receives}");
        }
        for code in 0..31 {
            let credits = CreditCode::new(code).unwrap().credits().unwrap();
            assert_eq!(CreditCode::encode(credits).code(), code);
        }
        assert_eq!(CreditCode::UNLIMITED.credits(), None);
        assert_eq!(CreditCode::new(32), None);
    }
}
