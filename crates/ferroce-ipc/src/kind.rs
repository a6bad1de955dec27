//! The kinds of devices.

use crate::words::words;

/// The transport of a device, by the type that rdma(8) has for it in `link add NAME type …`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkKind {
    /// `type rxe`, or `type roce`: RoCE.
    #[default]
    Rxe = 0,
    /// `type siw`: iWARP over TCP.
    Siw = 1,
}

words! {
    LinkKind {
        Rxe => "rxe",
        Siw => "siw",
    }
}

impl LinkKind {
    /// Returns the name of the transport that people write.
    pub const fn transport(self) -> &'static str {
        match self {
            Self::Rxe => "RoCE",
            Self::Siw => "iWARP",
        }
    }
}
