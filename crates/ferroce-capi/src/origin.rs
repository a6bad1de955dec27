//! Which `ibv_open_device` a context comes from, and the objects that can be imported from it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use ferroce_engine::PerProcess;
use parking_lot::Mutex;

use crate::device::DeviceHandle;
use crate::errno::Errno;

/// Which `ibv_open_device` contexts come from: the file behind their `cmd_fd`, however often it was
/// duplicated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Origin {
    device: u64,
    inode: u64,
}

impl Origin {
    /// The file behind a descriptor; EBADF for an unused descriptor.
    pub(crate) fn of(fd: RawFd) -> Result<Self, Errno> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` may be written to; any number may be given for the descriptor.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: fstat succeeded, so it filled `stat`.
        let stat = unsafe { stat.assume_init() };
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Objects by the number that C calls their handle.
pub(crate) struct Registry<T>(PerProcess<Mutex<Numbered<T>>>);

type Numbered<T> = BTreeMap<u32, (Origin, Weak<T>)>;

impl<T: Send + Sync> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new())
    }

    pub(crate) fn insert(&self, number: u32, origin: Origin, object: &Arc<T>) {
        self.0.get().lock().insert(number, (origin, Arc::downgrade(object)));
    }

    pub(crate) fn remove(&self, number: u32) {
        self.0.get().lock().remove(&number);
    }

    /// The object of that number; EINVAL unless it is of that origin.
    pub(crate) fn find(&self, number: u32, origin: Origin) -> Result<Arc<T>, Errno> {
        let objects = self.0.get().lock();
        let (of, object) = objects.get(&number).ok_or(Errno::EINVAL)?;
        if *of != origin {
            return Err(Errno::EINVAL);
        }
        object.upgrade().ok_or(Errno::EINVAL)
    }
}

/// The devices behind the files of open contexts, and how many contexts there are of each.
pub(crate) static OPEN: PerProcess<Mutex<BTreeMap<Origin, (&'static DeviceHandle, u32)>>> = PerProcess::new();

/// A context of `device` is open.
pub(crate) fn opened(origin: Origin, device: &'static DeviceHandle) {
    OPEN.get().lock().entry(origin).or_insert((device, 0)).1 += 1;
}

/// A context is closed.
pub(crate) fn closed(origin: Origin) {
    let mut open = OPEN.get().lock();
    if let Some((_, contexts)) = open.get_mut(&origin) {
        *contexts -= 1;
        if *contexts == 0 {
            open.remove(&origin);
        }
    }
}

/// A file of its own for each `ibv_open_device`: nothing is ever in it.
pub(crate) fn command_file() -> Result<(OwnedFd, Origin), Errno> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"ferroce".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: just made, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let origin = Origin::of(file.as_raw_fd())?;
    Ok((file, origin))
}
