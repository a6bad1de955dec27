//! Management datagrams: the header that all classes share (IBTA 13.4).

use crate::bits::{Bits, Fields};

/// Octets of every MAD, header included (IBTA 13.4).
pub const MAD_LEN: usize = 256;
/// Octets behind the common header.
pub const BODY_LEN: usize = MAD_LEN - HEADER_LEN;
const HEADER_LEN: usize = 24;
/// The only base version.
const BASE_VERSION: u8 = 1;

/// Management class (IBTA 13.4).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Connection management.
    pub const COMM_MGT: Self = Self(0x07);
}

/// Method; bit 7 marks a response (IBTA 13.4).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MadMethod(pub u8);

impl MadMethod {
    /// A message of a protocol with its own rules: all of the CM.
    pub const SEND: Self = Self(0x03);
}

/// The common header (IBTA 13.4). The base version is always 1.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MadHeader {
    /// The management class that defines the body.
    pub class: MgmtClass,
    /// Version of that class: 2 for the CM, 1 for performance management.
    pub class_version: u8,
    /// The requested action.
    pub method: MadMethod,
    /// 0 in requests and in all messages of the CM.
    pub status: u16,
    /// Used only in directed-route MADs.
    pub class_specific: u16,
    /// An answer carries the transaction id of its request.
    pub transaction_id: u64,
    /// Id of the attribute, or of the message in the CM.
    pub attribute: u16,
    /// A part of the attribute; ECE options in some messages of the CM.
    pub attribute_modifier: u32,
}

/// The bytes are no MAD, or none of the expected class. Such bytes are counted and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MadError {
    /// The length is not 256 octets.
    #[error("{0} octets, a MAD has 256")]
    Length(usize),
    /// The base version is not 1.
    #[error("base version {0}, only 1 is known")]
    BaseVersion(u8),
    /// The MAD is of another class.
    #[error("management class {:#04x}", .0.0)]
    Class(MgmtClass),
    /// The class version is unknown. The CM answers such a REQ with a REJ.
    #[error("class version {0}")]
    ClassVersion(u8),
    /// The class does not have this method.
    #[error("method {:#04x}", .0.0)]
    Method(MadMethod),
    /// The class does not have this attribute.
    #[error("attribute {0:#06x}")]
    Attribute(u16),
}

impl Fields for MadHeader {
    fn pass(&self, io: &mut Bits<'_>) -> Self {
        io.u8(8, BASE_VERSION);
        Self {
            class: MgmtClass(io.u8(8, self.class.0)),
            class_version: io.u8(8, self.class_version),
            method: MadMethod(io.u8(8, self.method.0)),
            status: io.u16(16, self.status),
            class_specific: io.u16(16, self.class_specific),
            transaction_id: io.u64(self.transaction_id),
            attribute: io.u16(16, self.attribute),
            attribute_modifier: io.skip(16).u32(32, self.attribute_modifier),
        }
    }
}

impl MadHeader {
    /// Splits a MAD into header and body.
    ///
    /// # Errors
    ///
    /// Returns [`MadError::Length`] or [`MadError::BaseVersion`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, [u8; BODY_LEN]), MadError> {
        let length = MadError::Length(bytes.len());
        let (header, body) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(length)?;
        let body = body.try_into().map_err(|_| length)?;
        match *header {
            [BASE_VERSION, ..] => Ok((Self::default().read(*header), body)),
            [version, ..] => Err(MadError::BaseVersion(version)),
        }
    }

    /// Joins header and body to a MAD.
    pub fn emit(&self, body: &[u8; BODY_LEN]) -> [u8; MAD_LEN] {
        let mut out = self.write();
        out[HEADER_LEN..].copy_from_slice(body);
        out
    }
}
