//! Protection domains and the memory registered in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::attr::QpInit;
use crate::error::{Busy, CreateQpError};
use crate::memory::{Access, Key, PdId, RegMrError};
use crate::{Context, Qp, fork};

/// A protection domain (`ibv_pd`): queue pairs reach only memory of their own.
#[doc(alias = "ibv_pd")]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
    users: AtomicUsize,
    deallocated: AtomicBool,
    epoch: u64,
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>, id: PdId) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(context),
            id,
            users: AtomicUsize::new(0),
            deallocated: AtomicBool::new(false),
            epoch: fork::epoch(),
        })
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Registers `len` octets at `addr`, which peers address from `iova` on. Checks that the
    /// memory is mapped and allows what `access` asks for; pins nothing.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, RegMrError> {
        let key = self.context.engine().memory().register(self.id, addr, len, iova, access)?;
        self.add_user();
        self.context.engine().objects_changed();
        Ok(Arc::new(Mr { pd: Arc::clone(self), key, addr, len, deregistered: AtomicBool::new(false) }))
    }

    /// Makes a queue pair in the RESET state.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, CreateQpError> {
        Qp::create(self, init)
    }

    /// Ends the domain. Refused while memory regions or queue pairs are in it.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        let users = self.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(Busy { users });
        }
        if !self.deallocated.swap(true, Ordering::AcqRel) {
            self.context.engine().pds().give_back();
            self.context.engine().objects_changed();
        }
        Ok(())
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A memory region (`ibv_mr`). It stays registered until [`Self::dereg`].
#[doc(alias = "ibv_mr")]
pub struct Mr {
    pd: Arc<Pd>,
    key: Key,
    addr: u64,
    len: usize,
    deregistered: AtomicBool,
}

impl Mr {
    /// Key for work requests of our own.
    pub fn lkey(&self) -> ferroce_wire::Lkey {
        ferroce_wire::Lkey::new(self.key.value())
    }

    /// Key to give to peers.
    pub fn rkey(&self) -> ferroce_wire::Rkey {
        ferroce_wire::Rkey::new(self.key.value())
    }

    /// First octet, as registered.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Ends the registration. When it returns nobody touches the memory any more; later accesses
    /// by its key are refused with a NAK. A second call does nothing.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(&self) -> Result<(), Busy> {
        if self.pd.epoch != fork::epoch() || self.deregistered.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.pd.context.engine().memory().deregister(self.key);
        self.pd.remove_user();
        self.pd.context.engine().objects_changed();
        Ok(())
    }
}
