//! The driver as a task of tokio.

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::Driver;
use crate::Error;

impl Driver {
    /// Spawns a task on the caller's tokio runtime that calls [`Self::turn`] whenever the descriptor is
    /// readable. The task ends with the first error, which it returns, when it is aborted, or with the
    /// runtime. The endpoints make no progress without it.
    ///
    /// # Errors
    ///
    /// The kernel's error, if the runtime cannot wait for the descriptor.
    ///
    /// # Panics
    ///
    /// If the caller does not run in a tokio runtime with I/O enabled.
    pub fn spawn_on_tokio(&self) -> Result<JoinHandle<Error>, Error> {
        #[allow(deprecated, reason = "its successor is unsafe for types that change their descriptor")]
        let driver = AsyncFd::with_interest(self.clone(), Interest::READABLE)?;
        Ok(tokio::spawn(async move {
            loop {
                let turned = match driver.readable().await {
                    Ok(mut ready) => {
                        // Before the turn, so that an event meanwhile is not missed.
                        ready.clear_ready();
                        driver.get_ref().turn()
                    }
                    Err(error) => Err(error.into()),
                };
                if let Err(error) = turned {
                    return error;
                }
            }
        }))
    }
}
