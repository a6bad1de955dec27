//! Registered memory for tests: regions that know what may be done with them.

use ferroce_proto::{Bind, Memory, MemoryError, RemoteAccess, Sge};
use ferroce_wire::{Feth, Lkey, Rkey};

/// A region; its lkey and rkey are the same number.
#[derive(Clone, Debug)]
pub struct Region {
    /// The lkey and rkey of the region.
    pub key: u32,
    /// The address of its first octet.
    pub base: u64,
    /// The octets of the region.
    pub bytes: Vec<u8>,
    /// The process may write it: receives, READs and results of atomics.
    pub local_write: bool,
    /// The peer's permissions.
    pub remote: Remote,
    /// May be ended by invalidates, as a type 2 window.
    pub window: bool,
    /// The memory survives loss of power.
    pub persistent: bool,
    /// The pages are gone: copies fail although checks pass.
    pub gone: bool,
}

/// The peer's permissions for a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// RDMA READ.
    pub read: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// Atomics.
    pub atomic: bool,
}

impl Remote {
    /// Everything.
    pub const ALL: Self = Self { read: true, write: true, atomic: true };
    /// Nothing.
    pub const NONE: Self = Self { read: false, write: false, atomic: false };
}

/// The memory of one process.
#[derive(Clone, Debug, Default)]
pub struct Ram {
    /// The regions.
    pub regions: Vec<Region>,
    /// Flushes that were executed: address, length and what for.
    pub flushes: Vec<(u64, u64, Feth)>,
    /// Octets whose writes [`Memory::finish_writes`] makes: key, address and octets. Without this list each
    /// write is made at once.
    pub late: Option<Vec<(u32, u64, Vec<u8>)>>,
}

impl Ram {
    /// Registers `bytes` at `base` with everything permitted.
    pub fn register(&mut self, key: u32, base: u64, bytes: impl Into<Vec<u8>>) -> &mut Region {
        self.regions.push(Region {
            key,
            base,
            bytes: bytes.into(),
            local_write: true,
            remote: Remote::ALL,
            window: false,
            persistent: false,
            gone: false,
        });
        self.regions.last_mut().unwrap()
    }

    /// Ends a region.
    pub fn deregister(&mut self, key: u32) {
        self.regions.retain(|region| region.key != key);
    }

    /// A region.
    ///
    /// # Panics
    ///
    /// If no region has this key.
    pub fn region(&mut self, key: u32) -> &mut Region {
        self.regions.iter_mut().find(|region| region.key == key).unwrap()
    }

    /// The octets of a region.
    pub fn bytes(&self, key: u32) -> &[u8] {
        &self.regions.iter().find(|region| region.key == key).unwrap().bytes
    }

    fn find(&self, key: u32, addr: u64, len: u64) -> Result<(usize, usize), MemoryError> {
        let index = self.regions.iter().position(|region| region.key == key).ok_or(MemoryError::BadKey)?;
        let region = &self.regions[index];
        let start = addr.checked_sub(region.base).ok_or(MemoryError::OutOfRange)?;
        let size = region.bytes.len() as u64;
        if len > size || start > size - len {
            return Err(MemoryError::OutOfRange);
        }
        Ok((index, start as usize))
    }

    fn slice(
        &mut self,
        key: u32,
        addr: u64,
        len: usize,
        may: impl Fn(&Region) -> bool,
    ) -> Result<&mut [u8], MemoryError> {
        assert_ne!(len, 0, "accesses of no length need no memory and are not made");
        let (index, start) = self.find(key, addr, len as u64)?;
        let region = &mut self.regions[index];
        if !may(region) {
            return Err(MemoryError::NoPermission);
        }
        if region.gone {
            return Err(MemoryError::Fault);
        }
        Ok(&mut region.bytes[start..start + len])
    }

    fn shared(
        &self,
        key: u32,
        addr: u64,
        len: usize,
        may: impl Fn(&Region) -> bool,
    ) -> Result<&[u8], MemoryError> {
        assert_ne!(len, 0, "accesses of no length need no memory and are not made");
        let (index, start) = self.find(key, addr, len as u64)?;
        let region = &self.regions[index];
        if !may(region) {
            return Err(MemoryError::NoPermission);
        }
        if region.gone {
            return Err(MemoryError::Fault);
        }
        Ok(&region.bytes[start..start + len])
    }

    /// Writes octets now, or later.
    fn write(
        &mut self,
        key: u32,
        addr: u64,
        data: &[u8],
        may: impl Fn(&Region) -> bool,
    ) -> Result<(), MemoryError> {
        let is_late = self.late.is_some();
        let place = self.slice(key, addr, data.len(), may)?;
        if !is_late {
            place.copy_from_slice(data);
        }
        if let Some(late) = &mut self.late {
            late.push((key, addr, data.to_vec()));
        }
        Ok(())
    }

    fn atomic(&mut self, rkey: Rkey, addr: u64, new: impl Fn(u64) -> u64) -> Result<u64, MemoryError> {
        if !addr.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        let cell = self.slice(rkey.value(), addr, 8, |region| region.remote.atomic)?;
        let old = u64::from_ne_bytes(cell.try_into().unwrap());
        cell.copy_from_slice(&new(old).to_ne_bytes());
        Ok(old)
    }
}

/// Inline data of tests lies at the address itself: a slice of the test's own.
pub fn inline_addr(bytes: &'static [u8]) -> u64 {
    INLINE.with(|table| {
        let mut table = table.borrow_mut();
        table.push(bytes);
        (table.len() as u64) << 32
    })
}

thread_local! {
    static INLINE: std::cell::RefCell<Vec<&'static [u8]>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Memory for Ram {
    fn check_local(&self, sge: &Sge, write: bool) -> Result<(), MemoryError> {
        let (index, _) = self.find(sge.lkey.value(), sge.addr, u64::from(sge.length))?;
        if write && !self.regions[index].local_write { Err(MemoryError::NoPermission) } else { Ok(()) }
    }

    fn read_local(&self, lkey: Lkey, addr: u64, out: &mut [u8], _: u64) -> Result<(), MemoryError> {
        out.copy_from_slice(self.shared(lkey.value(), addr, out.len(), |_| true)?);
        Ok(())
    }

    fn write_local(&mut self, lkey: Lkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.write(lkey.value(), addr, data, |region| region.local_write)
    }

    fn read_inline(&self, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        INLINE.with(|table| {
            let table = table.borrow();
            let bytes = (addr >> 32).checked_sub(1).and_then(|index| table.get(index as usize));
            let bytes =
                bytes.and_then(|bytes| bytes.get(addr as u32 as usize..)).ok_or(MemoryError::Fault)?;
            out.copy_from_slice(bytes.get(..out.len()).ok_or(MemoryError::Fault)?);
            Ok(())
        })
    }

    fn check_remote(&self, rkey: Rkey, addr: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryError> {
        let (index, _) = self.find(rkey.value(), addr, len)?;
        let may = self.regions[index].remote;
        let permitted = match access {
            RemoteAccess::Read => may.read,
            RemoteAccess::Write | RemoteAccess::AtomicWrite => may.write,
            RemoteAccess::Atomic => may.atomic,
        };
        if permitted { Ok(()) } else { Err(MemoryError::NoPermission) }
    }

    fn read_remote(&self, rkey: Rkey, addr: u64, out: &mut [u8], _: u64) -> Result<(), MemoryError> {
        out.copy_from_slice(self.shared(rkey.value(), addr, out.len(), |region| region.remote.read)?);
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.write(rkey.value(), addr, data, |region| region.remote.write)
    }

    fn finish_writes(&mut self) -> Result<(), MemoryError> {
        let late = self.late.as_mut().map(std::mem::take).unwrap_or_default();
        late.into_iter().try_for_each(|(key, addr, data)| {
            self.slice(key, addr, data.len(), |_| true)?.copy_from_slice(&data);
            Ok(())
        })
    }

    fn compare_swap(&mut self, rkey: Rkey, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.atomic(rkey, addr, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&mut self, rkey: Rkey, addr: u64, add: u64) -> Result<u64, MemoryError> {
        self.atomic(rkey, addr, |old| old.wrapping_add(add))
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), MemoryError> {
        let key = rkey.value();
        if !self.regions.iter().any(|region| region.key == key && region.window) {
            return Err(MemoryError::BadKey);
        }
        self.deregister(key);
        Ok(())
    }

    fn atomic_write(&mut self, rkey: Rkey, addr: u64, octets: [u8; 8]) -> Result<(), MemoryError> {
        if !addr.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        self.slice(rkey.value(), addr, 8, |region| region.remote.write)?.copy_from_slice(&octets);
        Ok(())
    }

    fn flush(&mut self, rkey: Rkey, addr: u64, len: u64, feth: Feth) -> Result<(), MemoryError> {
        let whole = feth.selectivity == Feth::WHOLE_REGION;
        let region =
            self.regions.iter().find(|region| region.key == rkey.value()).ok_or(MemoryError::BadKey)?;
        if feth.placement & Feth::PERSISTENCE != 0 && !region.persistent {
            return Err(MemoryError::NoPermission);
        }
        if !whole {
            self.find(rkey.value(), addr, len)?;
        }
        self.flushes.push((addr, len, feth));
        Ok(())
    }

    /// A window has octets of its own, copied when it is bound: enough for keys and order.
    fn bind(&mut self, bind: &Bind) -> Result<(), MemoryError> {
        let key = bind.window.value() & !0xff | bind.rkey.value() & 0xff;
        if self.regions.iter().any(|region| region.window && region.key >> 8 == key >> 8) {
            return Err(MemoryError::NoPermission);
        }
        let (index, start) = self.find(bind.region.value(), bind.addr, bind.length)?;
        let bytes = self.regions[index].bytes[start..start + bind.length as usize].to_vec();
        self.register(key, bind.addr, bytes).window = true;
        Ok(())
    }
}
