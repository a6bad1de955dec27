//! Descriptors that another user may have made.
//!
//! `close(2)` of the last reference to such a file may wait for as long as its maker likes: a TCP socket with
//! `SO_LINGER` waits for its peer, and a Unix socket closes whatever is in its queue. A thread of its own
//! therefore closes them, and nobody waits for that thread. [`pass_rights`] keeps such files out where the
//! kernel can.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};

/// `SO_PASSRIGHTS` (Linux 6.16), which has one number on all architectures with the generic list of socket
/// options.
const SO_PASSRIGHTS: libc::c_int = 83;

nix::setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, nix::sys::socket::sockopt::SetBool);

#[derive(Clone, Copy, Debug)]
struct PassRights;

/// Lets a Unix socket take descriptors, or not: whoever sends some to it then gets EPERM. Sockets that
/// connect to a listener have the listener's setting. Returns whether the kernel knows the option.
pub fn pass_rights(socket: &impl AsFd, may: bool) -> bool {
    nix::sys::socket::setsockopt(socket, PassRights, &may).is_ok()
}

/// The thread that closes the descriptors of one user. The thread exists only while there are some.
#[derive(Clone, Debug, Default)]
pub struct Closer(Arc<Mutex<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    waiting: Vec<OwnedFd>,
    /// How many the thread has taken and not closed yet.
    taken: usize,
    runs: bool,
}

impl Closer {
    /// How many descriptors are not closed yet.
    pub fn pending(&self) -> usize {
        let pending = self.lock();
        pending.waiting.len() + pending.taken
    }

    /// Whether nothing else holds this closer, and nothing waits for it.
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.pending() == 0
    }

    /// Closes a descriptor some time later.
    pub fn close(&self, fd: OwnedFd) {
        let mut pending = self.lock();
        pending.waiting.push(fd);
        if !pending.runs {
            // Without a thread the descriptor waits for the next call.
            let this = self.clone();
            pending.runs = spawn(move || this.run()).is_ok();
        }
    }

    fn run(&self) {
        loop {
            let mut pending = self.lock();
            pending.taken = 0;
            let Some(next) = pending.waiting.pop() else {
                pending.runs = false;
                return;
            };
            pending.taken = 1;
            drop(pending);
            drop(next);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Starts a thread that takes none of the program's signals.
fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = std::thread::Builder::new().name("ferroce-close".to_owned()).spawn(run);
    before.thread_set_mask()?;
    thread.map(drop)
}

/// A descriptor that its [`Closer`] closes.
#[derive(Debug)]
pub struct Strange {
    fd: Option<OwnedFd>,
    /// `None` for a descriptor of our own, or of somebody who may stop this process anyway.
    closer: Option<Closer>,
}

impl Strange {
    pub fn new(fd: OwnedFd, closer: Option<Closer>) -> Self {
        Self { fd: Some(fd), closer }
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// The errors of `fcntl(2)`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.like(self.as_fd().try_clone_to_owned()?))
    }

    /// A descriptor of the same user.
    pub fn like(&self, fd: OwnedFd) -> Self {
        Self::new(fd, self.closer.clone())
    }

    /// The descriptor of somebody who is trusted.
    ///
    /// # Panics
    /// Never: the destructor alone empties the value.
    #[expect(clippy::expect_used, reason = "the destructor alone empties it")]
    pub fn into_owned(mut self) -> OwnedFd {
        self.closer = None;
        self.fd.take().expect("only the destructor empties it")
    }

    /// Whether another user may have made the descriptor.
    pub fn has_closer(&self) -> bool {
        self.closer.is_some()
    }

    /// Names another closer.
    pub(crate) fn set_closer(&mut self, closer: Option<Closer>) {
        self.closer = closer;
    }
}

impl From<OwnedFd> for Strange {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd, None)
    }
}

#[expect(clippy::expect_used, reason = "the destructor alone empties it")]
impl AsFd for Strange {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only the destructor empties it").as_fd()
    }
}

impl Drop for Strange {
    fn drop(&mut self) {
        if let (Some(fd), Some(closer)) = (self.fd.take(), &self.closer) {
            closer.close(fd);
        }
    }
}
