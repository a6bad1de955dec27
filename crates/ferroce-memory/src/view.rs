//! Registered memory as a queue pair sees it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ferroce_proto::{Bind, Domain, Memory, MemoryError, RemoteAccess, Sge};
use ferroce_wire::{Feth, Lkey, Qpn, Rkey};

use crate::access::{Access, PdId};
use crate::backing::Backing;
use crate::guard::{self, Fault};
use crate::publisher::Publisher;
use crate::slots::{InUse, Kind, Region, Slots};
use crate::staging::{Named, Staging};
use crate::window;

/// The regions of one protection domain, for its queue pairs: the [`Memory`] of their state machines.
///
/// Each access finds its region anew, and the region outlives the access: [`crate::MemoryTable::deregister`]
/// waits.
#[derive(Clone)]
pub struct View {
    slots: Arc<Slots>,
    /// The protection domain in which keys are looked up now.
    pd: PdId,
    own: PdId,
    qpn: Option<Qpn>,
    /// The queue pair bound a window to itself alone.
    bound: bool,
    /// The key that was looked for last, and its slot: most work requests of a queue pair name the same
    /// region.
    last: Cell<(u32, u32)>,
    /// Payload on its way to or from memory that only a device reaches.
    staging: Staging,
}

impl View {
    pub(crate) fn new(slots: Arc<Slots>, pd: PdId) -> Self {
        Self {
            slots,
            pd,
            own: pd,
            qpn: None,
            bound: false,
            last: Cell::default(),
            staging: Staging::default(),
        }
    }

    /// As one queue pair sees it, with the windows that are bound to it.
    pub fn of(self, qpn: Qpn) -> Self {
        Self { qpn: Some(qpn), ..self }
    }

    /// Ends the bindings that only the peer of its queue pair could use, because that is destroyed.
    pub fn end_windows(&mut self) {
        if let Some(qpn) = self.qpn
            && std::mem::take(&mut self.bound)
        {
            window::end_those_of(&self.slots, qpn);
        }
    }

    /// Finds what a key stands for.
    #[inline]
    fn find(&self, key: u32) -> Result<InUse<'_>, MemoryError> {
        let (known, mut index) = self.last.get();
        if known != key {
            index = self.slots.secret().slot(key);
            self.last.set((key, index));
        }
        self.slots.get(index, key)
    }

    /// Finds what a work request's key stands for and hands it to `touch`, during which it stays.
    #[inline]
    fn local<T>(
        &self,
        key: Lkey,
        access: Access,
        touch: impl FnOnce(&Region) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let in_use = self.find(key.value())?;
        let region = in_use.region()?;
        self.permit(region, access)?;
        match region.kind {
            Kind::Memory | Kind::Null => touch(region),
            Kind::Window { .. } => Err(MemoryError::BadKey),
        }
    }

    /// Finds the bytes that a peer names and hands their address to `touch`, during which the registration
    /// stays.
    #[inline]
    fn remote<T>(
        &self,
        key: Rkey,
        va: u64,
        len: u64,
        access: Access,
        touch: impl FnOnce(&Backing, u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        self.region_of_peer(key, access, |region| touch(&region.backing, region.place(va, len)?))
    }

    /// Reads bytes of a region whose backing and place were found.
    #[inline]
    fn read(
        &self,
        (key, access): (u32, Access),
        (backing, place): (&Backing, u64),
        out: &mut [u8],
        rest: u64,
    ) -> Result<(), MemoryError> {
        match backing {
            Backing::Processor => Ok(guard::read(place, out)?),
            Backing::Device(memory) => {
                self.staging.read(Named { key, pd: self.pd, access }, *memory, place, out, rest)
            }
        }
    }

    /// Writes bytes to a region whose backing and place were found, and which is held: at once, or for a
    /// device's memory until [`Memory::finish_writes`] has returned.
    #[inline]
    fn write(
        &self,
        (key, access): (u32, Access),
        (backing, place): (&Backing, u64),
        va: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        match backing {
            // SAFETY: the owner of the memory registered it for writing, and it stays registered during the
            // copy.
            Backing::Processor => Ok(unsafe { guard::write(place, data) }?),
            Backing::Device(memory) => self.staging.write(
                &self.slots,
                Named { key, pd: self.pd, access },
                *memory,
                (va, place),
                data,
            ),
        }
    }

    /// Forgets what has arrived of messages that have not ended, and what was fetched for some, because the
    /// queue pair is reset.
    pub fn forget_messages(&mut self) {
        self.staging.forget();
    }

    /// Finds what a peer's key stands for and hands it to `touch`, during which it stays.
    #[inline]
    fn region_of_peer<T>(
        &self,
        key: Rkey,
        access: Access,
        touch: impl FnOnce(&Region) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let in_use = self.find(key.value())?;
        touch(self.permit_peer(&in_use, access)?)
    }

    /// The region of a key, if the peer may access it so.
    #[inline]
    fn permit_peer<'a>(&self, in_use: &'a InUse<'_>, access: Access) -> Result<&'a Region, MemoryError> {
        let region = in_use.region()?;
        self.permit(region, access)?;
        match region.kind {
            Kind::Memory | Kind::Window { qpn: None } => Ok(region),
            Kind::Window { qpn } if qpn == self.qpn => Ok(region),
            Kind::Window { .. } => Err(MemoryError::WrongPd),
            Kind::Null => Err(MemoryError::BadKey),
        }
    }

    /// Finds the registration of a key, which stays until the result is dropped.
    pub(crate) fn hold(&self, key: u32) -> Result<InUse<'_>, MemoryError> {
        self.find(key)
    }

    /// The place of an SGE, not empty, that lies in memory of a registration that is held.
    pub(crate) fn place_of(&self, in_use: &InUse<'_>, sge: &Sge, write: bool) -> Result<u64, MemoryError> {
        let region = in_use.region()?;
        self.permit(region, if write { Access::LOCAL_WRITE } else { Access::empty() })?;
        match region.kind {
            Kind::Memory => of_kernel(region)?.place(sge.addr, sge.length.into()),
            Kind::Null | Kind::Window { .. } => Err(MemoryError::BadKey),
        }
    }

    /// As [`Self::place_of`], for bytes that the peer names.
    pub(crate) fn place_of_peer(
        &self,
        in_use: &InUse<'_>,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<u64, MemoryError> {
        of_kernel(self.permit_peer(in_use, access)?)?.place(va, len)
    }

    /// The publisher of its table.
    pub fn publisher(&self) -> Option<&Arc<Publisher>> {
        self.slots.publisher()
    }

    /// The domain of its queue pair.
    pub fn domain(&self) -> PdId {
        self.own
    }

    fn permit(&self, region: &Region, access: Access) -> Result<(), MemoryError> {
        if region.pd != self.pd {
            Err(MemoryError::WrongPd)
        } else if !region.access.contains(access) {
            Err(MemoryError::NoPermission)
        } else {
            Ok(())
        }
    }

    fn atomic<T>(
        &self,
        rkey: Rkey,
        va: u64,
        touch: impl FnOnce(&Backing, u64) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        self.remote(rkey, va, 8, Access::REMOTE_ATOMIC, |backing, place| {
            aligned(va, place)?;
            touch(backing, place)
        })
    }
}

/// Copies inline data out of a device's memory.
#[cold]
#[inline(never)]
fn read_inline_of_device(addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
    let device = ferroce_gpu::find(addr, out.len() as u64).ok().flatten();
    device.ok_or(MemoryError::Fault)?.read(addr, out).map_err(|_| MemoryError::Fault)
}

/// The region, if the kernel can copy its memory, as a device's it cannot.
fn of_kernel(region: &Region) -> Result<&Region, MemoryError> {
    if region.backing.device().is_some() { Err(MemoryError::Fault) } else { Ok(region) }
}

/// IBTA C9-185 asks it of the address in the packet, the processor of the place.
fn aligned(va: u64, place: u64) -> Result<(), MemoryError> {
    if (va | place).is_multiple_of(8) { Ok(()) } else { Err(MemoryError::Misaligned) }
}

impl Memory for View {
    fn check_local(&self, sge: &Sge, write: bool) -> Result<(), MemoryError> {
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        self.local(sge.lkey, access, |region| match region.kind {
            Kind::Null => Ok(()),
            _ => region.place(sge.addr, sge.length.into()).map(drop),
        })
    }

    fn read_local(&self, lkey: Lkey, addr: u64, out: &mut [u8], rest: u64) -> Result<(), MemoryError> {
        self.local(lkey, Access::empty(), |region| match region.kind {
            Kind::Null => {
                out.fill(0);
                Ok(())
            }
            _ => {
                let place = region.place(addr, out.len() as u64)?;
                self.read((lkey.value(), Access::empty()), (&region.backing, place), out, rest)
            }
        })
    }

    fn write_local(&mut self, lkey: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.local(lkey, Access::LOCAL_WRITE, |region| {
            if region.kind == Kind::Null {
                return Ok(());
            }
            let place = region.place(addr, data.len() as u64)?;
            self.write((lkey.value(), Access::LOCAL_WRITE), (&region.backing, place), addr, data)
        })
    }

    fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        // Inline data needs no key, so only a fault tells that it lies in a device's memory.
        guard::read(addr, out).or_else(|Fault| read_inline_of_device(addr, out))
    }

    fn check_remote(&self, rkey: Rkey, addr: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryError> {
        let needed = match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write | RemoteAccess::AtomicWrite => Access::REMOTE_WRITE,
            RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        };
        self.remote(rkey, addr, len, needed, |_, place| match access {
            RemoteAccess::Atomic | RemoteAccess::AtomicWrite => aligned(addr, place),
            RemoteAccess::Read | RemoteAccess::Write => Ok(()),
        })
    }

    fn read_remote(&self, rkey: Rkey, addr: u64, out: &mut [u8], rest: u64) -> Result<(), MemoryError> {
        self.remote(rkey, addr, out.len() as u64, Access::REMOTE_READ, |backing, place| {
            self.read((rkey.value(), Access::REMOTE_READ), (backing, place), out, rest)
        })
    }

    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.remote(rkey, addr, data.len() as u64, Access::REMOTE_WRITE, |backing, place| {
            self.write((rkey.value(), Access::REMOTE_WRITE), (backing, place), addr, data)
        })
    }

    #[inline]
    fn finish_writes(&mut self) -> Result<(), MemoryError> {
        if self.staging.is_unused() { Ok(()) } else { self.staging.finish(&self.slots) }
    }

    fn compare_swap(&mut self, rkey: Rkey, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.atomic(rkey, addr, |backing, place| match backing {
            // SAFETY: as for writes; both addresses are multiples of 8.
            Backing::Processor => Ok(unsafe { guard::compare_swap(place, compare, swap) }?),
            Backing::Device(memory) => {
                let change = |before| if before == compare { swap } else { before };
                memory.update(place, change).map_err(|_| MemoryError::Fault)
            }
        })
    }

    fn fetch_add(&mut self, rkey: Rkey, addr: u64, add: u64) -> Result<u64, MemoryError> {
        self.atomic(rkey, addr, |backing, place| match backing {
            // SAFETY: as for writes; both addresses are multiples of 8.
            Backing::Processor => Ok(unsafe { guard::fetch_add(place, add) }?),
            Backing::Device(memory) => {
                memory.update(place, |before| before.wrapping_add(add)).map_err(|_| MemoryError::Fault)
            }
        })
    }

    fn enter(&mut self, domain: Option<Domain>) {
        self.pd = domain.map_or(self.own, |Domain(id)| PdId::new(id));
    }

    fn atomic_write(&mut self, rkey: Rkey, addr: u64, octets: [u8; 8]) -> Result<(), MemoryError> {
        self.remote(rkey, addr, 8, Access::REMOTE_WRITE, |backing, place| {
            aligned(addr, place)?;
            match backing {
                // SAFETY: as for writes; both addresses are multiples of 8.
                Backing::Processor => Ok(unsafe { guard::store(place, octets) }?),
                Backing::Device(memory) => memory.write(place, &octets).map_err(|_| MemoryError::Fault),
            }
        })
    }

    fn flush(&mut self, rkey: Rkey, addr: u64, len: u64, feth: Feth) -> Result<(), MemoryError> {
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.placement & Feth::GLOBAL_VISIBILITY != 0);
        access.set(Access::FLUSH_PERSISTENT, feth.placement & Feth::PERSISTENCE != 0);
        self.region_of_peer(rkey, access, |region| {
            let (from, len) = match feth.selectivity {
                Feth::WHOLE_REGION => (region.addr, region.len),
                _ => (region.place(addr, len)?, len),
            };
            if access.contains(Access::FLUSH_PERSISTENT) {
                guard::persist(from, len)?;
            }
            // All who share the processors' caches see earlier stores in any case; later ones come behind.
            fence(Ordering::SeqCst);
            Ok(())
        })
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryError> {
        window::invalidate(&self.slots, self.pd, self.qpn, rkey)
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), MemoryError> {
        self.bound |= window::bind(&self.slots, self.pd, self.qpn, bind)?;
        Ok(())
    }
}

impl From<Fault> for MemoryError {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}
