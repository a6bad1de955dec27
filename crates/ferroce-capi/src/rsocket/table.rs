//! Which number is which rsocket.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use core::ffi::c_int;
use ferroce_engine::rsocket::{PerProcess, Stream};
use parking_lot::{Mutex, RwLock};

use super::option::Options;
use crate::errno::Errno;

/// An rsocket, as its program sees it.
pub(super) struct Entry {
    pub(super) stream: Arc<Stream>,
    /// `F_GETFL` and `F_GETFD`.
    pub(super) status: AtomicI32,
    pub(super) descriptor: AtomicI32,
    pub(super) options: Mutex<Options>,
}

impl Entry {
    pub(super) fn new(stream: Arc<Stream>, status: c_int, descriptor: c_int) -> Arc<Self> {
        let (status, descriptor) = (AtomicI32::new(status), AtomicI32::new(descriptor));
        Arc::new(Self { stream, status, descriptor, options: Mutex::default() })
    }

    /// O_NONBLOCK is set.
    pub(super) fn is_nonblocking(&self) -> bool {
        self.status.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }
}

static TABLE: PerProcess<RwLock<Vec<Option<Arc<Entry>>>>> = PerProcess::new();

/// Gives an rsocket its number.
pub(super) fn insert(entry: Arc<Entry>) -> c_int {
    let number = entry.stream.fd().as_raw_fd();
    let index = number as usize;
    let mut table = TABLE.get().write();
    if table.len() <= index {
        table.resize(index + 1, None);
    }
    // One that is there was closed as a plain descriptor.
    let stale = table[index].replace(entry);
    drop(table);
    drop(stale);
    number
}

/// The rsocket of a number, if it is one.
pub(super) fn find(number: c_int) -> Option<Arc<Entry>> {
    let index = usize::try_from(number).ok()?;
    TABLE.get().read().get(index).cloned().flatten()
}

/// The rsocket of a number; EBADF if it is none.
pub(super) fn get(number: c_int) -> Result<Arc<Entry>, Errno> {
    find(number).ok_or(Errno::EBADF)
}

/// Takes the number back.
pub(super) fn remove(number: c_int) -> Result<Arc<Entry>, Errno> {
    let index = usize::try_from(number).map_err(|_| Errno::EBADF)?;
    TABLE.get().write().get_mut(index).and_then(Option::take).ok_or(Errno::EBADF)
}
