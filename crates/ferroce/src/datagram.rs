//! Addresses of datagrams.

use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{AhAttr, SendTo};
use ferroce_wire::{Flow, Gid, Qkey, Qpn};

use crate::{Error, ProtectionDomain};

/// Octets at the beginning of a datagram's receive buffer, before the payload: the IP header of the packet.
pub const HEADER: usize = Flow::GRH_AREA;

/// The address of another host, for datagrams. Clones are the same handle.
#[derive(Clone)]
#[doc(alias = "ibv_ah")]
pub struct AddressHandle {
    shared: Arc<Shared>,
}

struct Shared {
    ah: Arc<engine::Ah>,
    _domain: ProtectionDomain,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.ah.destroy();
    }
}

impl AddressHandle {
    pub(crate) fn new(domain: &ProtectionDomain, attr: AhAttr) -> Result<Self, Error> {
        let ah = domain.shared.pd.create_ah(attr)?;
        Ok(Self { shared: Arc::new(Shared { ah, _domain: domain.clone() }) })
    }

    /// A queue pair at that host, for [`WorkRequest::to`](crate::WorkRequest::to).
    pub(crate) fn to(&self, qpn: Qpn, qkey: Qkey) -> Result<SendTo, Error> {
        Ok(self.shared.ah.to(qpn, qkey)?)
    }
}

impl ProtectionDomain {
    /// Creates a handle for the path from our GID at `gid_index` to the host of `gid`.
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, gid_index: u8, gid: Gid) -> Result<AddressHandle, Error> {
        AddressHandle::new(self, AhAttr { dgid: gid, sgid_index: gid_index, ..AhAttr::default() })
    }

    /// Creates a handle for the sender of a datagram from the [`HEADER`] in its receive buffer. The queue
    /// pair there is [`Completion::src_qp`](crate::Completion::src_qp).
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn answer(&self, header: &[u8; HEADER]) -> Result<AddressHandle, Error> {
        AddressHandle::new(self, self.shared.open.context.answering(header)?)
    }
}
