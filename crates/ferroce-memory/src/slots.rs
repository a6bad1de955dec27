//! Keys to regions, found without waiting.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferroce_proto::MemoryError;
use ferroce_wire::Qpn;
use parking_lot::{Mutex, MutexGuard};

use crate::access::{Access, PdId};
use crate::backing::Backing;
use crate::key::{Key, SLOT_BITS, Secret, USES};
use crate::publisher::Publisher;

/// Slots that rest before the one that was freed first is used again, if the table can grow instead.
const RESTING: usize = 1024;
const CHUNK: usize = 1024;

/// The memory that a key gives access to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdId,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) iova: u64,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
    pub(crate) backing: Backing,
}

/// The kind of object that owns a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A memory region: for work requests and peers.
    Memory,
    /// No memory: for work requests alone, which read zeros from it and write to nowhere.
    Null,
    /// A bound window: for peers alone; if it names a queue pair, for the peer of that one.
    Window { qpn: Option<Qpn> },
}

impl Region {
    /// Address in the process of the `len` bytes at `va` of the region's address space.
    pub(crate) fn place(&self, va: u64, len: u64) -> Result<u64, MemoryError> {
        let offset = va.checked_sub(self.iova).ok_or(MemoryError::OutOfRange)?;
        // Two comparisons, no sum that could wrap.
        if len > self.len || offset > self.len - len {
            return Err(MemoryError::OutOfRange);
        }
        Ok(self.addr + offset)
    }
}

/// All entries, used or not.
pub(crate) struct Slots {
    secret: Secret,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
    /// Tells peers on this host of each entry, if there is one.
    publisher: OnceLock<Arc<Publisher>>,
}

/// Which slots may be taken.
struct Free {
    /// Lowest slot that was never used.
    never_used: u32,
    /// Freed ones, longest ago first.
    resting: VecDeque<u32>,
}

/// An entry.
///
/// `state`, from the top: the key (32 bits, 0 while the slot is free), which of the two `versions` counts
/// (1), a bit unused, and for each version the number of its readers (15 each; a reader is a thread inside a
/// copy, there are no more).
///
/// A reader announces itself at a version, and sees in the same step whether key and version are what it
/// takes them for; only then it reads that version. A version is written by the holder of `control`, and only
/// while it cannot be read: the key is 0 or the version the other one, and all readers that could have seen
/// it otherwise have left. A late reader that announces itself finds key or version changed, and leaves.
#[derive(Default)]
pub(crate) struct Slot {
    state: AtomicU64,
    versions: [UnsafeCell<Option<Region>>; 2],
    control: Mutex<Control>,
}

/// State that only threads that make, change or end entries use. Lock order: a window's slot, then its
/// region's; the free list alone.
#[derive(Default)]
pub(crate) struct Control {
    /// Times the slot was used.
    uses: u16,
    pub(crate) role: Role,
}

#[derive(Default)]
pub(crate) enum Role {
    /// Nothing.
    #[default]
    Free,
    /// A registration.
    Region {
        key: Key,
        /// How many windows are bound to it.
        windows: u32,
    },
    /// A window, bound or not.
    Window(Window),
}

/// Kind of a window; discriminants are those of `ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_mw_type")]
#[repr(u8)]
pub enum MwType {
    /// For all queue pairs of the domain; bound again, to nothing too, as often as wanted.
    One = 1,
    /// For the queue pair that bound it, until it is invalidated by either side's work request.
    Two = 2,
}

/// A window, bound or not.
pub(crate) struct Window {
    pub(crate) pd: PdId,
    pub(crate) kind: MwType,
    /// The key that it was made with; later ones differ in the low octet.
    pub(crate) key: Key,
    pub(crate) bound: Option<Bound>,
}

/// The binding of a window.
pub(crate) struct Bound {
    pub(crate) key: Key,
    pub(crate) region: Key,
    /// The only queue pair whose peer may use it.
    pub(crate) qpn: Option<Qpn>,
}

const VERSION: u64 = 1 << 31;
/// The count of a single reader, of version 0 and of version 1.
const READER: [u64; 2] = [1, 1 << 15];
const READERS: [u64; 2] = [0x7fff, 0x7fff << 15];

const fn version(state: u64) -> usize {
    (state & VERSION != 0) as usize
}

// SAFETY: `versions` are read and written under the protocol above.
unsafe impl Sync for Slot {}

/// A region that does not change or end while this lives.
pub(crate) struct InUse<'a> {
    slot: &'a Slot,
    version: usize,
}

impl Slots {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        let chunks = (0..(1 << SLOT_BITS) / CHUNK).map(|_| OnceLock::new()).collect();
        // Slot 0 stays unused, so that there is one entry less than slots.
        let free = Mutex::new(Free { never_used: 1, resting: VecDeque::new() });
        Self { secret: Secret::new(seed), chunks, free, publisher: OnceLock::new() }
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(crate) fn publisher(&self) -> Option<&Arc<Publisher>> {
        self.publisher.get()
    }

    /// From now on entries are published. Called once, before the first of them is made.
    pub(crate) fn set_publisher(&self, publisher: Arc<Publisher>) {
        let first = self.publisher.set(publisher).is_ok();
        debug_assert!(first && self.len() == 0);
    }

    /// Lets a key stand for a region. There was none; the holder of `control` does it.
    pub(crate) fn publish(&self, slot: &Slot, control: &mut Control, key: Key, region: Region) {
        slot.publish(control, key, region);
        self.tell(key.value(), &region);
    }

    /// Lets the key stand for another region. A user of the key sees all of the old or all of the new; when
    /// this returns, nothing uses the old any more.
    pub(crate) fn replace(&self, slot: &Slot, control: &mut Control, region: Region) {
        let key = slot.key();
        let before = slot.current(control);
        self.untell(key);
        slot.replace(control, region);
        drain(before);
        self.tell(key, &region);
    }

    /// Ends the key. When this returns, nobody uses it any more.
    pub(crate) fn retract(&self, slot: &Slot, control: &mut Control) {
        let before = slot.current(control);
        self.untell(slot.key());
        slot.retract(control);
        drain(before);
    }

    fn tell(&self, key: u32, region: &Region) {
        let Some(publisher) = self.publisher.get() else { return };
        // The kernel cannot copy a device's memory.
        if region.backing.device().is_some() {
            return;
        }
        let qpn = match region.kind {
            Kind::Memory => None,
            Kind::Null => return,
            Kind::Window { qpn } => qpn,
        };
        let Region { pd, addr, len, iova, access, kind: _, backing: _ } = *region;
        let (pd, access) = (pd.value(), access.bits());
        let published = ferroce_ipc::published::Region { key, pd, addr, len, iova, access, qpn };
        publisher.put_region(self.secret.slot(key), &published);
    }

    fn untell(&self, key: u32) {
        if let Some(publisher) = self.publisher.get() {
            publisher.end_region(self.secret.slot(key), key);
        }
    }

    /// Finds what a key stands for; `index` is the slot that the [secret](Self::secret) finds for it. It
    /// waits for nobody; it tries again if the region was changed in this very moment.
    #[inline]
    pub(crate) fn get(&self, index: u32, key: u32) -> Result<InUse<'_>, MemoryError> {
        let slot = self.slot(index).ok_or(MemoryError::BadKey)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            // A wrong key leaves no trace, so that nobody delays a deregistration by guessing.
            if state >> 32 != u64::from(key) || key == 0 {
                return Err(MemoryError::BadKey);
            }
            let version = version(state);
            state = slot.state.fetch_add(READER[version], Ordering::Acquire);
            let in_use = InUse { slot, version };
            if state >> 32 == u64::from(key) && self::version(state) == version {
                return Ok(in_use);
            }
        }
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        self.chunks[index as usize / CHUNK].get().map(|chunk| &chunk[index as usize % CHUNK])
    }

    /// The slot that a key names, whatever it holds, and its number.
    pub(crate) fn named(&self, key: u32) -> Option<(u32, &Slot)> {
        let index = self.secret.slot(key);
        Some((index, self.slot(index)?))
    }

    /// Takes a free slot and gives it a role, which `role` makes of its next key. `None`: all are in use.
    pub(crate) fn take(&self, role: impl FnOnce(Key) -> Role) -> Option<(Key, &Slot)> {
        let index = {
            let mut free = self.free.lock();
            match free.never_used {
                n if n < 1 << SLOT_BITS && free.resting.len() < RESTING => {
                    free.never_used += 1;
                    n
                }
                _ => free.resting.pop_front()?,
            }
        };
        let chunk =
            self.chunks[index as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        let slot = &chunk[index as usize % CHUNK];
        let mut control = slot.control.lock();
        let key = loop {
            let key = self.secret.key(index, control.uses);
            control.uses = (control.uses + 1) % USES;
            // 0 is no key, and a number that looks like an error is better left out; also among those that a
            // window's owner can make of it by the low octet.
            if !matches!(key.value() >> 8, 0 | 0xff_ffff) {
                break key;
            }
        };
        control.role = role(key);
        drop(control);
        Some((key, slot))
    }

    /// Gives a slot back that has neither key nor role any more.
    pub(crate) fn give_back(&self, index: u32) {
        self.free.lock().resting.push_back(index);
    }

    /// Slots in use.
    pub(crate) fn len(&self) -> usize {
        let free = self.free.lock();
        free.never_used as usize - 1 - free.resting.len()
    }

    /// All slots that were ever used.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Slot> {
        let end = self.free.lock().never_used;
        (1..end).filter_map(|index| self.slot(index))
    }
}

/// Waits for the copies that were begun while the region was there.
fn drain(region: Option<Region>) {
    if let Some(device) = region.and_then(|region| region.backing.device()) {
        device.drain();
    }
}

impl Slot {
    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock()
    }

    /// The region of the key now. The caller holds `control`.
    pub(crate) fn current(&self, _control: &Control) -> Option<Region> {
        let version = version(self.state.load(Ordering::Relaxed));
        // SAFETY: versions are written by the holder of `control` alone, which the caller is.
        unsafe { *self.versions[version].get() }
    }

    /// The key now, 0 while the slot is free.
    fn key(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) >> 32) as u32
    }

    /// See [`Slots::publish`].
    fn publish(&self, _control: &mut Control, key: Key, region: Region) {
        let state = self.state.load(Ordering::Relaxed);
        debug_assert_eq!(state >> 32, 0);
        // SAFETY: the key is 0, and `retract` waited for the readers of the former one; only the holder of
        // `control`, which the caller is, makes another.
        unsafe { *self.versions[version(state)].get() = Some(region) };
        self.state.fetch_add(u64::from(key.value()) << 32, Ordering::Release);
    }

    /// See [`Slots::replace`].
    fn replace(&self, _control: &mut Control, region: Region) {
        let old = version(self.state.load(Ordering::Relaxed));
        // SAFETY: the other version: whoever read it left before `replace` returned that last changed away
        // from it, and nobody can have begun since.
        unsafe { *self.versions[1 - old].get() = Some(region) };
        self.state.fetch_xor(VERSION, Ordering::AcqRel);
        self.wait_for_readers(READERS[old]);
    }

    /// See [`Slots::retract`].
    fn retract(&self, _control: &mut Control) {
        self.state.fetch_and(0xffff_ffff, Ordering::AcqRel);
        self.wait_for_readers(READERS[0] | READERS[1]);
    }

    /// A reader is in a copy of 64 KiB at most, but may be preempted in it or wait for a page from a disk.
    fn wait_for_readers(&self, mask: u64) {
        for turn in 0_u32.. {
            if self.state.load(Ordering::Acquire) & mask == 0 {
                return;
            }
            match turn {
                0..64 => std::hint::spin_loop(),
                64..128 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
}

impl InUse<'_> {
    /// The region of the key.
    pub(crate) fn region(&self) -> Result<&Region, MemoryError> {
        // SAFETY: this reader is announced at the version and saw that it counts, so nobody writes it until
        // it leaves.
        unsafe { &*self.slot.versions[self.version].get() }.as_ref().ok_or(MemoryError::BadKey)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.slot.state.fetch_sub(READER[self.version], Ordering::Release);
    }
}
