//! The regions and windows of a process.

use std::io;
use std::sync::Arc;

use crate::limit::Limit;
use crate::publisher::Publisher;

use crate::access::{Access, PdId, RegMrError};
use crate::backing::Backing;
use crate::key::{Key, MAX_REGIONS, MAX_WINDOWS};
use crate::slots::{Kind, MwType, Region, Role, Slots, Window};
use crate::{View, guard, mappings, window};

/// All regions and windows of a process. Looking one up is wait-free; making, changing and ending one takes
/// its lock.
pub struct MemoryTable {
    pub(crate) slots: Arc<Slots>,
    regions: Limit,
    windows: Limit,
}

/// The changes of [`MemoryTable::reregister`]; a `None` keeps the present value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// Another domain.
    pub pd: Option<PdId>,
    /// Other memory, by address and octets, which peers address as the program does.
    pub translation: Option<(u64, usize)>,
    /// Other permissions.
    pub access: Option<Access>,
}

impl MemoryTable {
    /// An empty table with a secret of its own. Installs the fault guard.
    pub fn new() -> io::Result<Self> {
        guard::install()?;
        mappings::keep();
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(io::Error::other)?;
        Ok(Self::with_seed(seed))
    }

    pub(crate) fn with_seed(seed: [u8; 32]) -> Self {
        Self {
            slots: Arc::new(Slots::new(seed)),
            regions: Limit::new(MAX_REGIONS),
            windows: Limit::new(MAX_WINDOWS),
        }
    }

    /// Registers `len` bytes at `addr`, which work requests and packets address from `iova` on, or from 0 if
    /// [`Access::ZERO_BASED`]. Zero bytes make a valid region that nothing fits into.
    ///
    /// The memory must be mapped and permit the access, unless [`Access::ON_DEMAND`]. It may be unmapped
    /// later: accesses then fail.
    pub fn register(
        &self,
        pd: PdId,
        addr: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Key, RegMrError> {
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let backing = Backing::Processor;
        let mut region = Region { pd, addr, len: len as u64, iova, access, kind: Kind::Memory, backing };
        region.backing = check(&region)?;
        self.insert(region)
    }

    /// A region of no memory, for work requests alone, at every address: what is read from it is zeros, what
    /// is written to it is lost.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn register_null(&self, pd: PdId) -> Result<Key, RegMrError> {
        let access = Access::LOCAL_WRITE;
        let (kind, backing) = (Kind::Null, Backing::Processor);
        self.insert(Region { pd, addr: 0, len: u64::MAX, iova: 0, access, kind, backing })
    }

    pub(crate) fn insert(&self, region: Region) -> Result<Key, RegMrError> {
        if !self.regions.take() {
            return Err(RegMrError::Limit);
        }
        let role = |key| Role::Region { key, windows: 0 };
        let Some((key, slot)) = self.slots.take(role) else {
            self.regions.give_back();
            return Err(RegMrError::Limit);
        };
        self.slots.publish(slot, &mut slot.control(), key, region);
        Ok(key)
    }

    /// Changes a registration; its key stays. Accesses meanwhile see all of the old one or all of the new
    /// one, and when this returns nobody uses the old one any more. After an error it is as it was.
    ///
    /// Refused while windows are bound to it. Waits for copies in progress, so it must not be called from
    /// one.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(&self, key: Key, change: Change) -> Result<(), RegMrError> {
        let (_, slot) = self.slots.named(key.value()).ok_or(RegMrError::NoRegion)?;
        let mut control = slot.control();
        match control.role {
            Role::Region { key: current, windows: 0 } if current == key => {}
            Role::Region { key: current, windows } if current == key => {
                return Err(RegMrError::Bound { windows });
            }
            _ => return Err(RegMrError::NoRegion),
        }
        let old = slot.current(&control).filter(|old| old.kind == Kind::Memory);
        let new = changed(old.ok_or(RegMrError::NoRegion)?, change)?;
        self.slots.replace(slot, &mut control, new);
        Ok(())
    }

    /// Ends a registration. When it returns, nobody touches the memory through it any more; a key that is
    /// none is ignored. Refused, with their number, while windows are bound to it.
    ///
    /// Waits for copies in progress, so it must not be called from one.
    pub fn deregister(&self, key: Key) -> Result<(), u32> {
        let Some((index, slot)) = self.slots.named(key.value()) else { return Ok(()) };
        let mut control = slot.control();
        match control.role {
            Role::Region { key: current, windows: 0 } if current == key => {}
            Role::Region { key: current, windows } if current == key => return Err(windows),
            _ => return Ok(()),
        }
        self.slots.retract(slot, &mut control);
        control.role = Role::Free;
        drop(control);
        self.slots.give_back(index);
        self.regions.give_back();
        Ok(())
    }

    /// As [`Self::deregister`], whatever is bound to it: windows are bound to nothing from then on.
    pub fn end(&self, key: Key) {
        // Another may be bound until the registration has ended.
        while self.deregister(key).is_err() {
            window::end_those_on(&self.slots, key);
        }
    }

    /// Makes a window that is not bound. Its first key gives access to nothing, and names it when it is
    /// bound. `None`: [`MAX_WINDOWS`] exist.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_window(&self, pd: PdId, kind: MwType) -> Option<Key> {
        if !self.windows.take() {
            return None;
        }
        let role = |key| Role::Window(Window { pd, kind, key, bound: None });
        let taken = self.slots.take(role).map(|(key, _)| key);
        if taken.is_none() {
            self.windows.give_back();
        }
        taken
    }

    /// Ends a window, bound or not. When this returns, nobody uses it any more; a key that names none is
    /// ignored.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc_window(&self, key: Key) {
        let Some((index, slot)) = self.slots.named(key.value()) else { return };
        let mut control = slot.control();
        if !matches!(&control.role, Role::Window(window) if window.key == key) {
            return;
        }
        window::unbind(&self.slots, slot, &mut control);
        control.role = Role::Free;
        drop(control);
        self.slots.give_back(index);
        self.windows.give_back();
    }

    /// Publishes all regions and windows from now on. Called once, before the first of them is made.
    pub fn set_publisher(&self, publisher: Arc<Publisher>) {
        self.slots.set_publisher(publisher);
    }

    /// The secret by which its keys become slots, for [`Publisher::create`].
    pub fn secret(&self) -> [u64; 4] {
        self.slots.secret().words()
    }

    /// The table as queue pairs of a domain see it.
    pub fn view(&self, pd: PdId) -> View {
        View::new(Arc::clone(&self.slots), pd)
    }

    /// Regions and windows that exist.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether none exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Checks that there is such memory to be registered. Returns how it is reached.
fn check(region: &Region) -> Result<Backing, RegMrError> {
    let &Region { addr, len, iova, access, .. } = region;
    access.check()?;
    if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(RegMrError::Wraps);
    }
    Backing::find(addr, len, access)
}

/// The region as it is to be.
fn changed(old: Region, change: Change) -> Result<Region, RegMrError> {
    let mut new = Region { pd: change.pd.unwrap_or(old.pd), ..old };
    if let Some((addr, len)) = change.translation {
        (new.addr, new.len, new.iova) = (addr, len as u64, addr);
    }
    if let Some(access) = change.access {
        if (access ^ old.access).contains(Access::ON_DEMAND) {
            return Err(RegMrError::OnDemandChanged);
        }
        new.access = access;
    }
    match (new.access.contains(Access::ZERO_BASED), old.access.contains(Access::ZERO_BASED)) {
        (true, _) => new.iova = 0,
        (false, true) => new.iova = new.addr,
        (false, false) => {}
    }
    new.backing = check(&new)?;
    Ok(new)
}
