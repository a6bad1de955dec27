//! The lifetime of a queue pair and its work requests.

use std::sync::Arc;

use super::driver::{Driver, Watch};
use super::end::{Effects, End};
use crate::cm::{Acceptor, Connected, Connector, Pending};
use crate::{Error, Status};

/// The object that owns the queue pair.
pub(super) enum Link {
    Asks(Connector),
    Answers(Acceptor),
    Pending(Pending),
    Connected(Connected),
    /// The queue pair was destroyed.
    Gone,
}

/// A queue pair and its work requests. Dropping it ends both.
pub(super) struct Owner {
    pub(super) link: Link,
    pub(super) end: Arc<End>,
    pub(super) watch: Watch,
}

impl Owner {
    /// Adds the queue pair to the driver.
    ///
    /// # Errors
    ///
    /// The reason why the driver failed.
    pub(super) fn new(driver: &Driver, link: Link, end: End) -> Result<Box<Self>, Error> {
        let owner = Box::new(Self { link, end: Arc::new(end), watch: driver.shared.watch() });
        driver.shared.add(&owner.end)?;
        Ok(owner)
    }

    /// Completes all work requests, with an error if they are outstanding.
    pub(super) fn end(&self) {
        self.end.fail();
        // An error of the driver ends the endpoint too.
        let _ = self.watch.shared().take_completions();
        let mut effects = Effects::default();
        self.end.end(Status::WrFlushErr, &mut effects);
        effects.finish();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child the parent's threads may have left locks locked.
        if !self.watch.shared().context.open.is_of_this_process() {
            return;
        }
        self.end();
        // Before the queue pair is destroyed, because another one may then get its number.
        self.watch.shared().remove(&self.end);
        self.link = Link::Gone;
        let mut effects = Effects::default();
        self.end.flush(&mut effects);
        effects.finish();
    }
}
