//! XRC domains.

use std::os::fd::AsFd;
use std::sync::Arc;

use ferroce_engine::{Inode, XrcdInit};

use crate::shared::Xrcd;
use crate::{Context, Error};

/// An XRC domain: its targets receive into the queue that the peer names. Clones are the same one; it closes
/// after the last clone and the last object created from it are dropped.
#[derive(Clone)]
#[doc(alias = "ibv_xrcd")]
pub struct XrcDomain {
    pub(crate) shared: Arc<Xrcd>,
}

impl Context {
    /// Opens a private XRC domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain(&self) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, None)
    }

    /// Opens the XRC domain of a file; the first opener creates it.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn xrc_domain_of(&self, file: impl AsFd) -> Result<XrcDomain, Error> {
        XrcDomain::open(self, Some(Inode::of(file.as_fd())?))
    }
}

impl XrcDomain {
    fn open(context: &Context, inode: Option<Inode>) -> Result<Self, Error> {
        let init = XrcdInit { inode, create: true, exclusive: false };
        let xrcd = context.open.context.open_xrcd(&init)?;
        Ok(Self { shared: Arc::new(Xrcd { xrcd, _open: Arc::clone(&context.open) }) })
    }
}
