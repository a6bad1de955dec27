//! Work of a higher module on the background thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Engine;

/// Waits and timers of a higher module, which the background thread serves beside the lanes.
pub(crate) trait Attendant: Send + Sync {
    /// Readable when [`Self::serve`] has something to do before the time that it named.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Does what is due at `now`, and returns when to call again, in nanoseconds. `ready`: the descriptor is
    /// readable.
    fn serve(&self, engine: &Arc<Engine>, now: u64, ready: bool) -> u64;
    /// The process ends: waits, a moment at most, until [`Self::serve`] has done the work that the exit would
    /// cut off. It runs on the thread that calls `exit`, perhaps in a signal handler, and takes no lock.
    fn at_exit(&self);
}

impl Engine {
    /// Has the background thread serve `attendant` from now on, if it serves no attendant yet.
    ///
    /// # Errors
    /// Returns the error of `make`, if `make` fails.
    pub(crate) fn attend<T: Attendant + 'static>(
        &self,
        make: impl FnOnce() -> io::Result<Arc<T>>,
    ) -> io::Result<()> {
        let _one = self.starting.lock();
        if self.attendant.get().is_none() {
            let made: Arc<dyn Attendant> = make()?;
            drop(self.attendant.set(made));
            self.hub().request_look(0);
        }
        Ok(())
    }

    /// The attendant, if there is one.
    pub(super) fn attendant(&self) -> Option<&Arc<dyn Attendant>> {
        self.attendant.get()
    }
}
