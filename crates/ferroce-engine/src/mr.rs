//! Memory regions.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_ipc::ledger::records::{Block, MrRecord};
use ferroce_ipc::ledger::{Entry, Table};
use ferroce_memory::{Access, Change, FileMapping, Key, MAX_REGIONS, MAX_WINDOWS, RegMrError};
use ferroce_wire::{Lkey, Rkey};
use parking_lot::Mutex;

use crate::Pd;
use crate::device::{MAX_MR, MAX_MW};
use crate::device_memory::{DeviceMemory, UsedMemory};
use crate::error::Busy;
use ferroce_host::fork;

const _: () = assert!(MAX_MR == MAX_REGIONS && MAX_MW == MAX_WINDOWS);

/// A memory region (`ibv_mr`). It stays registered until [`Self::dereg`].
#[doc(alias = "ibv_mr")]
pub struct Mr {
    key: Key,
    /// Without memory, for work requests alone.
    null: bool,
    now: Mutex<Now>,
    /// Memory that is not the program's, until the registration has ended.
    backing: Mutex<Option<Backing>>,
    deregistered: AtomicBool,
    /// The entry in the ledger's list of objects.
    entry: Entry,
    epoch: u64,
}

impl Pd {
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
        let key = self.context().engine().memory.register(self.id(), addr, len, iova, access)?;
        Ok(Mr::new(self, key, addr, len, Kind::Memory))
    }

    /// Registers `len` octets of a file from `offset` on, at least one, which peers address from `iova` on:
    /// of a memfd or a DMA-BUF, whatever can be mapped, or of a GPU's, see [`FileMapping`].
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_file(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, RegMrError> {
        let write = access.contains(Access::LOCAL_WRITE);
        let mapping = FileMapping::new(file, offset, len, iova, write).map_err(RegMrError::File)?;
        let memory = &self.context().engine().memory;
        let key = memory.register(self.id(), mapping.addr(), len, iova, access)?;
        Ok(Mr::new(self, key, mapping.addr(), len, Kind::Backed(Backing::File(mapping))))
    }

    /// Registers `len` octets of device memory from `offset` on, which work requests and peers address from 0
    /// on; `access` needs [`Access::ZERO_BASED`], as the man page says. The registration cannot be changed.
    ///
    /// # Errors
    ///
    /// [`RegMrError::NotZeroBased`] and [`RegMrError::DeviceMemory`] beside those of [`Self::reg_mr`].
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(
        self: &Arc<Self>,
        memory: &Arc<DeviceMemory>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Arc<Mr>, RegMrError> {
        if !access.contains(Access::ZERO_BASED) {
            return Err(RegMrError::NotZeroBased);
        }
        let used = UsedMemory::new(memory, offset, len).map_err(RegMrError::DeviceMemory)?;
        let addr = memory.addr() + offset;
        let key = self.context().engine().memory.register(self.id(), addr, len, 0, access)?;
        Ok(Mr::new(self, key, addr, len, Kind::Backed(Backing::Device(used))))
    }

    /// A region of no memory at every address, for work requests alone: what is read from it is zeros, what
    /// is written to it is lost.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, RegMrError> {
        let key = self.context().engine().memory.register_null(self.id())?;
        Ok(Mr::new(self, key, 0, usize::MAX, Kind::Null))
    }
}

/// The properties that a reregistration can change.
struct Now {
    pd: Arc<Pd>,
    addr: u64,
    len: usize,
}

/// The kind of the registered memory.
enum Kind {
    /// The program's memory.
    Memory,
    /// Memory that the region keeps.
    Backed(Backing),
    /// None.
    Null,
}

/// Memory that a region keeps.
enum Backing {
    /// The mapping of a file.
    File(#[expect(dead_code, reason = "kept to be dropped")] FileMapping),
    /// Device memory.
    Device(#[expect(dead_code, reason = "kept to be dropped")] UsedMemory),
}

/// The changes to a registration; `None` keeps the present value.
#[derive(Clone, Default)]
pub struct MrChange {
    /// Another domain, of the same context.
    pub pd: Option<Arc<Pd>>,
    /// Other memory, by address and octets, which peers address as the program does.
    pub translation: Option<(u64, usize)>,
    /// Other permissions.
    pub access: Option<Access>,
}

impl Mr {
    fn new(pd: &Arc<Pd>, key: Key, addr: u64, len: usize, kind: Kind) -> Arc<Self> {
        pd.add_user();
        pd.context().engine().objects_changed();
        let now = Mutex::new(Now { pd: Arc::clone(pd), addr, len });
        let deregistered = AtomicBool::new(false);
        let null = matches!(kind, Kind::Null);
        let backing = Mutex::new(if let Kind::Backed(backing) = kind { Some(backing) } else { None });
        let entry = pd.context().record(Table::Mr);
        let mr = Arc::new(Self { key, null, now, backing, deregistered, entry, epoch: fork::epoch() });
        mr.show(&mr.now.lock());
        mr
    }

    fn show(&self, now: &Now) {
        self.entry.put(&MrRecord {
            block: Block::new(now.pd.context().block()),
            rkey: self.rkey().value(),
            lkey: self.lkey().value(),
            pd: now.pd.number(),
            length: now.len as u64,
        });
    }

    /// Whether it is without memory, for work requests alone.
    pub fn is_null(&self) -> bool {
        self.null
    }

    /// Key for work requests of our own.
    pub fn lkey(&self) -> Lkey {
        Lkey::new(self.key.value())
    }

    /// Key to give to peers; 0, which is no key, for a region without memory.
    pub fn rkey(&self) -> Rkey {
        Rkey::new(if self.null { 0 } else { self.key.value() })
    }

    /// First octet, as registered.
    pub fn addr(&self) -> u64 {
        self.now.lock().addr
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.now.lock().len
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The domain it is in.
    pub fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.now.lock().pd)
    }

    /// Changes the registration; its keys stay. Accesses meanwhile see all of the old one or all of the new
    /// one. After an error it is as it was. Refused while windows are bound to it, and for a region without
    /// memory or of device memory; a file's memory stays what it is.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&self, change: &MrChange) -> Result<(), RegMrError> {
        match &*self.backing.lock() {
            Some(Backing::Device(_)) => return Err(RegMrError::NoRegion),
            Some(Backing::File(_)) if change.translation.is_some() => return Err(RegMrError::NoRegion),
            _ => {}
        }
        let mut now = self.now.lock();
        let context = Arc::clone(now.pd.context());
        let foreign = |pd: &Arc<Pd>| !Arc::ptr_eq(pd.context(), &context);
        if change.pd.as_ref().is_some_and(foreign) {
            return Err(RegMrError::ForeignPd);
        }
        let pd = change.pd.as_ref().map(|pd| pd.id());
        let MrChange { translation, access, .. } = *change;
        context.engine().memory.reregister(self.key, Change { pd, translation, access })?;
        if let Some(pd) = &change.pd {
            pd.add_user();
            std::mem::replace(&mut now.pd, Arc::clone(pd)).remove_user();
        }
        if let Some((addr, len)) = translation {
            (now.addr, now.len) = (addr, len);
        }
        self.show(&now);
        Ok(())
    }

    /// Ends the registration. When it returns nobody touches the memory any more; later accesses by its key
    /// are refused with a NAK. Refused while windows are bound to it. A second call does nothing.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() || self.deregistered.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let pd = self.pd();
        if let Err(windows) = pd.context().engine().memory.deregister(self.key) {
            self.deregistered.store(false, Ordering::Release);
            return Err(Busy { users: windows as usize });
        }
        self.ended(&pd);
        Ok(())
    }

    /// As [`Self::dereg`], whatever is bound to it: windows are bound to nothing from then on.
    pub fn end(&self) {
        if self.epoch != fork::epoch() || self.deregistered.swap(true, Ordering::AcqRel) {
            return;
        }
        let pd = self.pd();
        pd.context().engine().memory.end(self.key);
        self.ended(&pd);
    }

    fn ended(&self, pd: &Pd) {
        self.backing.lock().take();
        self.entry.end();
        pd.remove_user();
        pd.context().engine().objects_changed();
    }
}
