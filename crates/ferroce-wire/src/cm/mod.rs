//! Messages of connection management: MADs of class 7 (IBTA 12.6 to 12.11).
//!
//! A [`Mad`] is a message with its transaction id, read from and written as 256 octets. Numbers narrower than
//! their Rust type are truncated when written; reserved bits are ignored and written as 0.

mod field;
mod ip;
mod path;
mod req;
mod short;
mod sidr;

pub use self::field::{
    About, AprStatus, CmTime, CommId, Ece, Info, PrivateData, PrivateDataTooLong, RejReason, SidrStatus,
    Transport,
};
pub use self::ip::{IpCmError, IpCmHeader, PortSpace, ServiceId};
pub use self::path::Path;
pub use self::req::{Rep, Req};
pub use self::short::{Apr, Drep, Dreq, Lap, Mra, Rej, Rtu};
pub use self::sidr::{SidrRep, SidrReq};
use crate::bits::Fields;
use crate::mad::{MAD_LEN, MadError, MadHeader, MadMethod, MgmtClass};

/// The class version that this crate implements (IBTA 12.6).
pub const CLASS_VERSION: u8 = 2;

/// A message and the transaction it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// An answer carries the transaction id of its request. Connections are matched by their ids, not by this
    /// field.
    pub transaction_id: u64,
    /// The message of the transaction.
    pub message: Message,
}

/// A message of connection management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the variants are named as their content")]
pub enum Message {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

/// Attribute ids (IBTA 12.6).
mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
    pub(super) const SIDR_REQ: u16 = 0x17;
    pub(super) const SIDR_REP: u16 = 0x18;
    pub(super) const LAP: u16 = 0x19;
    pub(super) const APR: u16 = 0x1a;
}

impl Mad {
    /// Reads a message of the CM.
    ///
    /// # Errors
    ///
    /// Returns a [`MadError`] if the MAD is no valid message. The values of fields are not checked here.
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let (header, body) = MadHeader::parse(bytes)?;
        if header.class != MgmtClass::COMM_MGT {
            return Err(MadError::Class(header.class));
        }
        if header.class_version != CLASS_VERSION {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != MadMethod::SEND {
            return Err(MadError::Method(header.method));
        }
        let ece = Ece { vendor_id: 0, options: header.attribute_modifier };
        let message = match header.attribute {
            attribute::REQ => Message::Req(Req { ece, ..Req::default() }.read(body)),
            attribute::MRA => Message::Mra(Mra::default().read(body)),
            attribute::REJ => Message::Rej(Rej::default().read(body)),
            attribute::REP => Message::Rep(Rep { ece, ..Rep::default() }.read(body)),
            attribute::RTU => Message::Rtu(Rtu::default().read(body)),
            attribute::DREQ => Message::Dreq(Dreq::default().read(body)),
            attribute::DREP => Message::Drep(Drep::default().read(body)),
            attribute::SIDR_REQ => Message::SidrReq(SidrReq::default().read(body)),
            attribute::SIDR_REP => Message::SidrRep(SidrRep { ece, ..SidrRep::default() }.read(body)),
            attribute::LAP => Message::Lap(Lap::default().read(body)),
            attribute::APR => Message::Apr(Apr::default().read(body)),
            other => return Err(MadError::Attribute(other)),
        };
        Ok(Self { transaction_id: header.transaction_id, message })
    }

    /// Writes the message as a MAD.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let (attribute, body) = match &self.message {
            Message::Req(req) => (attribute::REQ, req.write()),
            Message::Mra(mra) => (attribute::MRA, mra.write()),
            Message::Rej(rej) => (attribute::REJ, rej.write()),
            Message::Rep(rep) => (attribute::REP, rep.write()),
            Message::Rtu(rtu) => (attribute::RTU, rtu.write()),
            Message::Dreq(dreq) => (attribute::DREQ, dreq.write()),
            Message::Drep(drep) => (attribute::DREP, drep.write()),
            Message::SidrReq(req) => (attribute::SIDR_REQ, req.write()),
            Message::SidrRep(rep) => (attribute::SIDR_REP, rep.write()),
            Message::Lap(lap) => (attribute::LAP, lap.write()),
            Message::Apr(apr) => (attribute::APR, apr.write()),
        };
        let header = MadHeader {
            class: MgmtClass::COMM_MGT,
            class_version: CLASS_VERSION,
            method: MadMethod::SEND,
            status: 0,
            class_specific: 0,
            transaction_id: self.transaction_id,
            attribute,
            attribute_modifier: self.message.options(),
        };
        header.emit(&body)
    }

    /// Reads the transaction id and the sender's communication id from a REQ of an unknown class version, so
    /// that the caller can refuse it with [`RejReason::CLASS_VERSION`] (IBTA 12.6.7). `None` for every other
    /// message.
    pub fn foreign_req(bytes: &[u8]) -> Option<(u64, CommId)> {
        let (header, body) = MadHeader::parse(bytes).ok()?;
        let alien = header.class == MgmtClass::COMM_MGT
            && header.class_version != CLASS_VERSION
            && header.method == MadMethod::SEND
            && header.attribute == attribute::REQ;
        // Every version has the communication id first.
        let [a, b, c, d, ..] = body;
        alien.then_some((header.transaction_id, CommId(u32::from_be_bytes([a, b, c, d]))))
    }
}

impl Message {
    /// The id by which the receiver knows the connection or SIDR request. `None` for the two messages that
    /// begin one.
    pub const fn receiver_id(&self) -> Option<CommId> {
        Some(match self {
            Self::Req(_) | Self::SidrReq(_) => return None,
            Self::Mra(mra) => mra.remote_id,
            Self::Rej(rej) => rej.remote_id,
            Self::Rep(rep) => rep.remote_id,
            Self::Rtu(rtu) => rtu.remote_id,
            Self::Dreq(dreq) => dreq.remote_id,
            Self::Drep(drep) => drep.remote_id,
            Self::SidrRep(rep) => rep.request_id,
            Self::Lap(lap) => lap.remote_id,
            Self::Apr(apr) => apr.remote_id,
        })
    }

    /// The attribute modifier: ECE options, if the message has a field for the vendor id.
    const fn options(&self) -> u32 {
        match self {
            Self::Req(req) => req.ece.options,
            Self::Rep(rep) => rep.ece.options,
            Self::SidrRep(rep) => rep.ece.options,
            Self::Mra(_)
            | Self::Rej(_)
            | Self::Rtu(_)
            | Self::Dreq(_)
            | Self::Drep(_)
            | Self::SidrReq(_)
            | Self::Lap(_)
            | Self::Apr(_) => 0,
        }
    }

    /// The name of the message in the specification.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Rej(_) => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu(_) => "RTU",
            Self::Dreq(_) => "DREQ",
            Self::Drep(_) => "DREP",
            Self::SidrReq(_) => "SIDR_REQ",
            Self::SidrRep(_) => "SIDR_REP",
            Self::Lap(_) => "LAP",
            Self::Apr(_) => "APR",
        }
    }
}

#[cfg(test)]
mod tests;
