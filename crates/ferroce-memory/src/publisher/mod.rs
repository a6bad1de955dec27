//! The memory regions and queue pairs of this process, published for the direct copies of peers on this host.
//!
//! A peer that copies checks its operation against [`ferroce_ipc::published`], and announces it before in a
//! hazard word that both processes map. To end an entry, this process first removes it from the file, and
//! then waits until no hazard word names it: a peer's later look finds nothing, and its earlier one shows as
//! a hazard. The fences of both sides order the two steps. A peer that died, or that executes another
//! program, copies no more.

mod copier;
mod life;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferroce_host::environment;
use ferroce_ipc::published::{Identity, Publication, QueuePair, Region};
use ferroce_wire::{Qpn, Rkey};
use parking_lot::Mutex;

use copier::Hazard;
pub(crate) use copier::{Copier, Hazards, pid_of};

/// A wait for a peer's copy that takes longer is reported.
const LONG: Duration = Duration::from_secs(1);

/// Whether `FERROCE_DIRECT` permits direct copies, to this process and by it.
pub fn is_permitted() -> bool {
    // Read once, by the thread of the program that opens the first device.
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| match environment::text("FERROCE_DIRECT").as_deref() {
        Some("off") => false,
        Some("on" | "") | None => true,
        Some(other) => {
            tracing::warn!("FERROCE_DIRECT={other} is neither on nor off: on is used");
            true
        }
    })
}

/// Publishes for this process.
pub struct Publisher {
    publication: Publication,
    /// The word by which a peer recognises this process; its address is published.
    _nonce: Box<AtomicU64>,
    copiers: Mutex<Vec<Arc<Copier>>>,
}

impl Publisher {
    /// An empty publication. Keys become slots by `secret`.
    pub fn create(secret: [u64; 4]) -> io::Result<Self> {
        let mut octets = [0; 8];
        getrandom::fill(&mut octets).map_err(io::Error::other)?;
        let nonce = Box::new(AtomicU64::new(u64::from_ne_bytes(octets)));
        let identity = Identity {
            nonce: nonce.load(Ordering::Relaxed),
            nonce_address: (&raw const *nonce).addr() as u64,
            secret,
        };
        let publication = Publication::create(&identity)?;
        Ok(Self { publication, _nonce: nonce, copiers: Mutex::default() })
    }

    /// The file for peers.
    pub fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.publication.file()
    }

    /// From now on the publication is valid until the calling thread, or the address space, ends.
    pub fn live_with_this_thread(self: &Arc<Self>) -> io::Result<()> {
        // The lock in the publication must stay mapped until the thread ends.
        std::mem::forget(Arc::clone(self));
        let tid = life::hold(self.publication.life())?;
        self.publication.set_owner(tid);
        Ok(())
    }

    /// Whether the thread of [`Self::live_with_this_thread`] lives, by its own publication.
    #[cfg(test)]
    pub(crate) fn is_held(&self) -> bool {
        use std::os::fd::AsFd;
        ferroce_ipc::published::Published::open(&self.file().as_fd()).unwrap().owner().is_some()
    }

    /// Says that another thread lives instead, as a hostile process may.
    #[cfg(test)]
    pub(crate) fn forge(&self, tid: u32) {
        self.publication.life()[0].store(tid.into(), Ordering::Relaxed);
        self.publication.set_owner(tid);
    }

    /// A peer that may copy from now on.
    pub(crate) fn add_copier(&self, copier: Arc<Copier>) {
        self.copiers.lock().push(copier);
    }

    /// Takes back [`Self::add_copier`]: the peer was told to stop, or is gone.
    pub(crate) fn remove_copier(&self, copier: &Arc<Copier>) {
        self.copiers.lock().retain(|known| !Arc::ptr_eq(known, copier));
    }

    pub(crate) fn put_region(&self, slot: u32, region: &Region) {
        self.publication.put_region(slot, region);
    }

    /// Ends the key of a slot. When this returns, no peer copies by it any more.
    pub(crate) fn end_region(&self, slot: u32, key: u32) {
        self.publication.end_region(slot);
        self.wait_for_copies(|hazard| hazard.rkey() == Rkey::new(key));
    }

    pub fn put_queue_pair(&self, queue_pair: &QueuePair) {
        self.publication.put_queue_pair(queue_pair);
    }

    /// Ends the service of a queue pair. When this returns, its peer copies no more.
    pub fn end_queue_pair(&self, qpn: Qpn) {
        self.publication.end_queue_pair(qpn);
        self.wait_for_copies(|hazard| hazard.is_of(qpn));
    }

    /// A copy under way takes some milliseconds at most, unless its thread does not run or waits for a page.
    fn wait_for_copies(&self, which: impl Fn(Hazard) -> bool) {
        fence(Ordering::SeqCst);
        let mut started = None;
        let mut reported = false;
        for turn in 0_u32.. {
            let busy = self.copiers.lock().iter().find(|copier| copier.copies(&which)).map(Arc::clone);
            let Some(copier) = busy else { return };
            match turn {
                0..64 => std::hint::spin_loop(),
                64..128 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
            if turn.is_multiple_of(16) && turn >= 128 && copier.is_gone() {
                copier.forget();
                continue;
            }
            let started = *started.get_or_insert_with(Instant::now);
            if !reported && started.elapsed() > LONG {
                reported = true;
                tracing::warn!(
                    pid = copier.pid(),
                    "a copy by another process is not finished; memory that it uses stays registered until then"
                );
            }
        }
    }
}
