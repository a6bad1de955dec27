//! Management datagrams: the header that all classes share (IBTA 13.4).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Octets of every MAD, header included (IBTA 13.4).
pub const MAD_LEN: usize = 256;
/// Octets behind the common header.
pub const BODY_LEN: usize = MAD_LEN - HEADER_LEN;
const HEADER_LEN: usize = 24;
/// The only base version.
const BASE_VERSION: u8 = 1;

/// Management class (IBTA 13.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet administration; RoCE has none.
    pub const SUBNET_ADM: Self = Self(0x03);
    /// Performance counters.
    pub const PERF_MGT: Self = Self(0x04);
    /// Connection management.
    pub const COMM_MGT: Self = Self(0x07);
}

/// Method; bit 7 marks a response (IBTA 13.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadMethod(pub u8);

impl MadMethod {
    /// Reads an attribute.
    pub const GET: Self = Self(0x01);
    /// Changes an attribute.
    pub const SET: Self = Self(0x02);
    /// A message of a protocol with its own rules: all of the CM.
    pub const SEND: Self = Self(0x03);
    /// Answer to `GET` or `SET`.
    pub const GET_RESP: Self = Self(0x81);
}

/// The common header (IBTA 13.4). The base version is always 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct View {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction_id: U64,
    attribute: U16,
    reserved: U16,
    attribute_modifier: U32,
}

const _: () = assert!(size_of::<View>() == HEADER_LEN);

impl MadHeader {
    /// Splits a MAD into header and body.
    ///
    /// # Errors
    ///
    /// Returns [`MadError::Length`] or [`MadError::BaseVersion`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8; BODY_LEN]), MadError> {
        let length = MadError::Length(bytes.len());
        let (view, body) = View::ref_from_prefix(bytes).map_err(|_| length)?;
        let body = body.try_into().map_err(|_| length)?;
        if view.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(view.base_version));
        }
        let header = Self {
            class: MgmtClass(view.class),
            class_version: view.class_version,
            method: MadMethod(view.method),
            status: view.status.get(),
            class_specific: view.class_specific.get(),
            transaction_id: view.transaction_id.get(),
            attribute: view.attribute.get(),
            attribute_modifier: view.attribute_modifier.get(),
        };
        Ok((header, body))
    }

    /// Joins header and body to a MAD.
    pub fn emit(&self, body: &[u8; BODY_LEN]) -> [u8; MAD_LEN] {
        let view = View {
            base_version: BASE_VERSION,
            class: self.class.0,
            class_version: self.class_version,
            method: self.method.0,
            status: self.status.into(),
            class_specific: self.class_specific.into(),
            transaction_id: self.transaction_id.into(),
            attribute: self.attribute.into(),
            reserved: 0.into(),
            attribute_modifier: self.attribute_modifier.into(),
        };
        let mut out = [0; MAD_LEN];
        let (head, rest) = out.split_at_mut(HEADER_LEN);
        head.copy_from_slice(view.as_bytes());
        rest.copy_from_slice(body);
        out
    }
}
