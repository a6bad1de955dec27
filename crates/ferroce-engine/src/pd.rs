//! Protection domains and the memory registered in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferroce_ipc::ledger::records::{Block, PdRecord};
use ferroce_ipc::ledger::{Entry, Table};
use ferroce_memory::{Advice, AdviseError, PdId};
use ferroce_proto::Sge;

use crate::Context;
use crate::device::MAX_PD;
use crate::error::{Busy, LimitReached};
use ferroce_host::fork;

/// A protection domain (`ibv_pd`): queue pairs reach only memory of their own.
#[doc(alias = "ibv_pd")]
pub struct Pd {
    context: Arc<Context>,
    id: PdId,
    base: Base,
    users: AtomicUsize,
    deallocated: AtomicBool,
    /// The entry in the ledger's list of objects; a domain imported or derived from another has none.
    entry: Option<Entry>,
    epoch: u64,
}

/// The base of a domain: none, or the domain under it.
enum Base {
    /// Nothing: it is one of the device's.
    Own,
    /// A parent domain: what it was made from.
    Parent(Arc<Pd>, Option<Arc<ThreadDomain>>),
    /// An import of the domain into another context.
    Import(Arc<Pd>),
}

impl Context {
    /// Makes a protection domain.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, LimitReached> {
        if !self.engine().pds.take() {
            return Err(LimitReached { what: "protection domains", max: MAX_PD });
        }
        self.engine().objects_changed();
        Ok(Pd::new(self, self.engine().next_pd()))
    }

    /// Makes a thread domain.
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(self: &Arc<Self>) -> Arc<ThreadDomain> {
        Arc::new(ThreadDomain { context: Arc::clone(self), users: AtomicUsize::new(0), epoch: fork::epoch() })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // An import that was forgotten, not deallocated, and whose objects are gone.
        if let Base::Import(original) = &self.base
            && !self.deallocated.load(Ordering::Acquire)
        {
            original.remove_user();
        }
    }
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>, id: PdId) -> Arc<Self> {
        let entry = context.record(Table::Pd);
        entry.put(&PdRecord { block: Block::new(context.block()), context: context.number() });
        Self::with_base(context, id, Base::Own, Some(entry))
    }

    fn with_base(context: &Arc<Context>, id: PdId, base: Base, entry: Option<Entry>) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::clone(context),
            id,
            base,
            users: AtomicUsize::new(0),
            deallocated: AtomicBool::new(false),
            entry,
            epoch: fork::epoch(),
        })
    }

    /// Makes a parent domain: this domain under another name, which counts the objects made in it by itself,
    /// and which may have a thread domain. Keys of one are good in the other.
    ///
    /// `None` if the thread domain is of another context, or if this is a parent domain itself.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn parent_domain(self: &Arc<Self>, td: Option<&Arc<ThreadDomain>>) -> Option<Arc<Self>> {
        let foreign = td.is_some_and(|td| !Arc::ptr_eq(&td.context, &self.context));
        if foreign || self.is_parent_domain() {
            return None;
        }
        self.add_user();
        td.inspect(|td| td.add_user());
        let base = Base::Parent(Arc::clone(self), td.cloned());
        Some(Self::with_base(&self.context, self.id, base, None))
    }

    /// Made by [`Self::parent_domain`].
    pub fn is_parent_domain(&self) -> bool {
        matches!(self.base, Base::Parent(..))
    }

    /// Imports the domain into another context of the device. The domain cannot end before the import does:
    /// by [`Self::dealloc`] of the import, which ends both, or when it and its objects are dropped.
    #[doc(alias = "ibv_import_pd")]
    pub fn import(self: &Arc<Self>, context: &Arc<Context>) -> Arc<Self> {
        self.add_user();
        Self::with_base(context, self.id, Base::Import(Arc::clone(self)), None)
    }

    /// Made by [`Self::import`].
    pub fn is_imported(&self) -> bool {
        matches!(self.base, Base::Import(_))
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn id(&self) -> PdId {
        self.id
    }

    /// Number of the domain in the ledger.
    pub(crate) fn number(&self) -> u32 {
        match (&self.entry, &self.base) {
            (Some(entry), _) => entry.number(),
            (None, Base::Parent(base, _) | Base::Import(base)) => base.number(),
            (None, Base::Own) => 0,
        }
    }

    /// Whether memory of the other one is memory of this one: it is the same, or the parent domain of the
    /// same.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Follows advice on ranges of regions of this domain that were registered on demand, one after the
    /// other.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice, ranges: &[Sge]) -> Result<(), AdviseError> {
        let memory = &self.context.engine().memory;
        ranges.iter().try_for_each(|range| memory.advise(self.id, advice, range))
    }

    /// Ends the domain. Refused while memory regions, windows, queue pairs, shared receive queues or address
    /// handles are in it.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        let users = self.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(Busy { users });
        }
        if self.deallocated.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.entry.iter().for_each(Entry::end);
        match &self.base {
            Base::Parent(base, td) => {
                base.remove_user();
                td.as_ref().inspect(|td| td.remove_user());
            }
            Base::Import(original) => {
                original.remove_user();
                if let Err(busy) = original.dealloc() {
                    original.add_user();
                    self.deallocated.store(false, Ordering::Release);
                    return Err(busy);
                }
            }
            Base::Own => {
                self.context.engine().pds.give_back();
                self.context.engine().objects_changed();
            }
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

/// A thread domain (`ibv_td`): the program promises that one thread at a time uses the objects made in parent
/// domains that have it. Here their locks stay, which nobody then contends for.
#[doc(alias = "ibv_td")]
pub struct ThreadDomain {
    context: Arc<Context>,
    users: AtomicUsize,
    epoch: u64,
}

impl ThreadDomain {
    /// Ends it. Refused while parent domains have it.
    #[doc(alias = "ibv_dealloc_td")]
    pub fn dealloc(&self) -> Result<(), Busy> {
        match self.users.load(Ordering::Acquire) {
            users if users > 0 && self.epoch == fork::epoch() => Err(Busy { users }),
            _ => Ok(()),
        }
    }

    fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}
