//! Which number is which rsocket.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use core::ffi::c_int;
use ferroce_engine::{CompletionChannel, PerProcess};
use ferroce_rsocket::{Datagram, Ready, RsocketError, Stream, Waker};
use parking_lot::{Mutex, RwLock};

use super::repoll::Repoll;
use crate::errno::Errno;

pub(super) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
    /// None, but it has a number like one.
    Repoll(Repoll),
}

impl Socket {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stream(stream) => stream.fd(),
            Self::Datagram(datagram) => datagram.fd(),
            Self::Repoll(repoll) => repoll.fd(),
        }
    }

    /// The stream of the entry; EOPNOTSUPP for another kind.
    pub(super) fn stream(&self) -> Result<&Arc<Stream>, Errno> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Datagram(_) => Err(Errno::EOPNOTSUPP),
            Self::Repoll(_) => Err(Errno::EBADF),
        }
    }

    /// The set that the entry is; EINVAL if it is an rsocket.
    pub(super) fn repoll(&self) -> Result<&Repoll, Errno> {
        match self {
            Self::Repoll(repoll) => Ok(repoll),
            Self::Stream(_) | Self::Datagram(_) => Err(Errno::EINVAL),
        }
    }

    pub(super) fn ready(&self) -> Ready {
        match self {
            Self::Stream(stream) => stream.ready(),
            Self::Datagram(datagram) => datagram.ready(),
            Self::Repoll(_) => Ready::default(),
        }
    }

    /// Returns the ready events, and the completion channels on which the caller sleeps as well.
    pub(super) fn watch(
        &self,
        waker: &Arc<Waker>,
    ) -> Result<(Ready, Vec<Arc<CompletionChannel>>), RsocketError> {
        match self {
            Self::Stream(stream) => {
                let (ready, channel) = stream.watch(waker);
                Ok((ready, channel.into_iter().collect()))
            }
            Self::Datagram(datagram) => datagram.watch(waker),
            Self::Repoll(_) => Ok((Ready::default(), Vec::new())),
        }
    }

    pub(super) fn unwatch(&self, waker: &Arc<Waker>) {
        match self {
            Self::Stream(stream) => stream.unwatch(waker),
            Self::Datagram(datagram) => datagram.unwatch(waker),
            Self::Repoll(_) => {}
        }
    }
}

/// Options that are kept for the program, and change nothing here.
#[derive(Default)]
pub(super) struct Options {
    pub(super) reuse: bool,
    pub(super) keepalive: bool,
    /// `TCP_KEEPIDLE` in seconds; `None` until asked for.
    pub(super) keep_idle: Option<u32>,
    pub(super) oob_inline: bool,
    pub(super) no_linger: bool,
    pub(super) no_delay: bool,
    pub(super) v6_only: bool,
    pub(super) route: Vec<u8>,
}

/// An rsocket, as its program sees it.
pub(super) struct Entry {
    pub(super) socket: Socket,
    /// `F_GETFL` and `F_GETFD`.
    pub(super) status: AtomicI32,
    pub(super) descriptor: AtomicI32,
    pub(super) options: Mutex<Options>,
}

impl Entry {
    pub(super) fn new(socket: Socket, status: c_int, descriptor: c_int) -> Arc<Self> {
        let (status, descriptor) = (AtomicI32::new(status), AtomicI32::new(descriptor));
        Arc::new(Self { socket, status, descriptor, options: Mutex::default() })
    }

    /// O_NONBLOCK is set.
    pub(super) fn is_nonblocking(&self) -> bool {
        self.status.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }
}

static TABLE: PerProcess<RwLock<Vec<Option<Arc<Entry>>>>> = PerProcess::new();

/// Gives an rsocket its number.
pub(super) fn insert(entry: Arc<Entry>) -> c_int {
    let number = entry.socket.fd().as_raw_fd();
    let index = number as usize;
    let mut table = TABLE.get().write();
    if table.len() <= index {
        table.resize(index + 1, None);
    }
    // An existing entry means that the program closed the rsocket as a plain descriptor.
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

/// The rsocket of a number; EBADF for a number of no rsocket.
pub(super) fn get(number: c_int) -> Result<Arc<Entry>, Errno> {
    find(number).ok_or(Errno::EBADF)
}

/// Takes the number back.
pub(super) fn remove(number: c_int) -> Result<Arc<Entry>, Errno> {
    let index = usize::try_from(number).map_err(|_| Errno::EBADF)?;
    TABLE.get().write().get_mut(index).and_then(Option::take).ok_or(Errno::EBADF)
}
