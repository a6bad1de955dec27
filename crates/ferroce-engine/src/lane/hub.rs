//! State that lanes, endpoints and the background thread of one engine share.

use ferroce_ipc::QpnOrder;
use ferroce_ipc::ledger::Ledger;
use ferroce_paths::devices::Devices;
use ferroce_wire::Instant;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Endpoint;
use crate::handover::Attention;
use crate::qpn::{ProcessSlots, QpnTable};
use ferroce_host::event;
use ferroce_host::fork::Guarded;

/// Shared without a lock.
pub(crate) struct Hub {
    pub(crate) table: QpnTable<Endpoint>,
    /// Permutes the numbers of shared receive queues.
    srq_key: u64,
    pub(crate) devices: Arc<Devices>,
    /// This process has no receiving sockets: its packets of RoCE v2 travel by the rings as well.
    pub(crate) by_rings: bool,
    /// The counters and the list of objects, for the broker to read.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) attention: Attention,
    /// Random, chosen once for the process.
    pub(crate) secret: u64,
    wake: Guarded<EventFd>,
}

impl Hub {
    /// `order` is of the numbers of queue pairs. `secret` is random: one half permutes the numbers of shared
    /// receive queues, the other chooses ports. With it comes the descriptor of the ledger, if the system
    /// gives one.
    pub(crate) fn new(
        slots: &[u16],
        by_rings: bool,
        secret: u128,
        order: QpnOrder,
        devices: Arc<Devices>,
    ) -> io::Result<(Self, Option<OwnedFd>)> {
        let slots = ProcessSlots::new(slots);
        let (ledger, file) = Ledger::create(slots.first())?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let hub = Self {
            table: QpnTable::new(slots, order),
            srq_key: secret as u64,
            devices,
            by_rings,
            ledger: Arc::new(ledger),
            attention: Attention::new(),
            secret: (secret >> 64) as u64,
            wake: Guarded::new(wake),
        };
        Ok((hub, file))
    }

    /// Numbers for shared receive queues, none of which is used.
    pub(crate) fn numbers_of_srqs<T: Send + Sync + 'static>(&self) -> QpnTable<T> {
        QpnTable::new(Arc::clone(self.table.slots()), QpnOrder { key: self.srq_key, start: 0 })
    }

    /// Has the background thread look at the lanes no later than `at`.
    pub(crate) fn request_look(&self, at: u64) {
        self.attention.request(at, || self.wake());
    }

    /// Gets the background thread out of its sleep.
    pub(crate) fn wake(&self) {
        if let Err(error) = event::signal(&*self.wake)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::error!(%error, "cannot wake the background thread");
        }
    }

    /// Makes [`Self::wake_fd`] unreadable again.
    pub(crate) fn woken(&self) {
        // EAGAIN: nobody called, the time was up.
        let _ = event::silence(&*self.wake);
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// [`crate::handover::NEVER`] or the time as the atomics have it.
    pub(crate) fn deadline(at: Option<Instant>) -> u64 {
        at.map_or(crate::handover::NEVER, Instant::as_nanos)
    }
}
