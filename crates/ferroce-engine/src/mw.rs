//! Memory windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_memory::{Key, MwType};
use ferroce_wire::Rkey;

use crate::error::LimitReached;
use crate::{Pd, device};
use ferroce_host::fork;

/// A memory window (`ibv_mw`): a key to a part of a region, bound to it by work requests
/// ([`crate::SendOp::BindMw`]). It exists until [`Self::dealloc`].
#[doc(alias = "ibv_mw")]
pub struct Mw {
    pd: Arc<Pd>,
    kind: MwType,
    key: Key,
    deallocated: AtomicBool,
    epoch: u64,
}

impl Pd {
    /// Makes a memory window that is not bound.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(self: &Arc<Self>, kind: MwType) -> Result<Arc<Mw>, LimitReached> {
        let engine = self.context().engine();
        let limit = LimitReached { what: "memory windows", max: device::MAX_MW };
        let key = engine.memory.alloc_window(self.id(), kind).ok_or(limit)?;
        self.add_user();
        engine.objects_changed();
        let deallocated = AtomicBool::new(false);
        Ok(Arc::new(Mw { pd: Arc::clone(self), kind, key, deallocated, epoch: fork::epoch() }))
    }
}

impl Mw {
    /// The type of the window.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Names it in [`ferroce_proto::Bind::window`]. It is no key to anything until it is bound to one that
    /// ends in the same octet.
    pub fn name(&self) -> Rkey {
        Rkey::new(self.key.value())
    }

    /// The key that it has once it is bound to one with the low octet of `octet`.
    pub fn rkey(&self, octet: u32) -> Rkey {
        Rkey::new(self.key.with_octet_of(octet).value())
    }

    /// Ends it, bound or not. When this returns, nobody uses it any more; later accesses by its key are
    /// refused with a NAK. A second call does nothing.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(&self) {
        if self.epoch != fork::epoch() || self.deallocated.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = self.pd.context().engine();
        engine.memory.dealloc_window(self.key);
        self.pd.remove_user();
        engine.objects_changed();
    }
}
