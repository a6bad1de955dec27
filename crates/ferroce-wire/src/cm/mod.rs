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
mod view;

pub use self::field::{
    About, AprStatus, CmTime, CommId, Ece, Info, PrivateData, PrivateDataTooLong, RejReason, SidrStatus,
    Transport,
};
pub use self::ip::{IpCmError, IpCmHeader, PortSpace, ServiceId};
pub use self::path::Path;
pub use self::req::{Rep, Req};
pub use self::short::{Apr, Drep, Dreq, Lap, Mra, Rej, Rtu};
pub use self::sidr::{SidrRep, SidrReq};
use self::view::View;
use crate::mad::{BODY_LEN, MAD_LEN, MadError, MadHeader, MadMethod, MgmtClass};

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
        let options = header.attribute_modifier;
        let message = match header.attribute {
            attribute::REQ => Message::Req(Req::read(&of(body), options)),
            attribute::MRA => Message::Mra(of::<view::Mra>(body).into()),
            attribute::REJ => Message::Rej(of::<view::Rej>(body).into()),
            attribute::REP => Message::Rep(Rep::read(&of(body), options)),
            attribute::RTU => Message::Rtu(of::<view::Ids>(body).into()),
            attribute::DREQ => Message::Dreq(of::<view::Dreq>(body).into()),
            attribute::DREP => Message::Drep(of::<view::Ids>(body).into()),
            attribute::SIDR_REQ => Message::SidrReq(of::<view::SidrReq>(body).into()),
            attribute::SIDR_REP => Message::SidrRep(SidrRep::read(&of(body), options)),
            attribute::LAP => Message::Lap(of::<view::Lap>(body).into()),
            attribute::APR => Message::Apr(of::<view::Apr>(body).into()),
            other => return Err(MadError::Attribute(other)),
        };
        Ok(Self { transaction_id: header.transaction_id, message })
    }

    /// Writes the message as a MAD.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let (attribute, body) = match &self.message {
            Message::Req(req) => (attribute::REQ, body(&req.write())),
            Message::Mra(mra) => (attribute::MRA, body(&view::Mra::from(*mra))),
            Message::Rej(rej) => (attribute::REJ, body(&view::Rej::from(*rej))),
            Message::Rep(rep) => (attribute::REP, body(&rep.write())),
            Message::Rtu(rtu) => (attribute::RTU, body(&view::Ids::from(*rtu))),
            Message::Dreq(dreq) => (attribute::DREQ, body(&view::Dreq::from(*dreq))),
            Message::Drep(drep) => (attribute::DREP, body(&view::Ids::from(*drep))),
            Message::SidrReq(req) => (attribute::SIDR_REQ, body(&view::SidrReq::from(*req))),
            Message::SidrRep(rep) => (attribute::SIDR_REP, body(&rep.write())),
            Message::Lap(lap) => (attribute::LAP, body(&view::Lap::from(*lap))),
            Message::Apr(apr) => (attribute::APR, body(&view::Apr::from(*apr))),
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
        alien.then(|| (header.transaction_id, CommId(of::<view::Req>(body).local_id.get())))
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

/// Converts the body to one of the views, which all have its length.
fn of<T: View>(body: &[u8; BODY_LEN]) -> T {
    T::of(*body)
}

fn body<T: View>(view: &T) -> [u8; BODY_LEN] {
    view.body()
}

/// The lower `bits` of a number that is stored in a wider type.
const fn low(value: u8, bits: u32) -> u8 {
    value & ((1 << bits) - 1)
}

const fn bit(set: bool, place: u32) -> u8 {
    if set { 1 << place } else { 0 }
}

const fn is_set(octet: u8, place: u32) -> bool {
    octet >> place & 1 != 0
}

#[cfg(test)]
mod tests;
