//! Work of a higher module on the background thread.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Engine;

/// Waits and timers of a higher module, which the background thread serves beside the lanes.
pub(crate) trait Attendant: Any + Send + Sync {
    /// Readable when [`Self::serve`] has something to do before the time that it named.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Does what is due at `now`, and returns when to call again, in nanoseconds. `ready`: the descriptor is
    /// readable.
    fn serve(&self, now: u64, ready: bool) -> u64;
    /// The process ends: waits, a moment at most, until [`Self::serve`] has done the work that the exit would
    /// cut off. It runs on the thread that calls `exit`, perhaps in a signal handler, and takes no lock.
    fn at_exit(&self);
}

impl Engine {
    /// The one attendant, made at the first call, which the background thread serves from then on.
    ///
    /// # Errors
    /// Returns the error of `make`, if `make` fails.
    pub(crate) fn attendant<T: Attendant>(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<Arc<T>> {
        let _one = self.starting.lock();
        let attendant: Arc<dyn Any + Send + Sync> = match self.attendant.get() {
            Some(attendant) => Arc::clone(attendant) as _,
            None => {
                let made = Arc::new(make()?);
                drop(self.attendant.set(Arc::clone(&made) as _));
                self.hub().request_look(0);
                made
            }
        };
        Ok(attendant.downcast().expect("there is one kind of attendant"))
    }
}
