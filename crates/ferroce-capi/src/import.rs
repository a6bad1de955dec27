//! Importing: a second context, domain or region over what another context of this process made.
//!
//! The data path lives in the process that opened the device, so only that process can import from it; what comes from
//! another one is refused with EOPNOTSUPP.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::PerProcess;
use parking_lot::Mutex;

use crate::call;
use crate::context;
use crate::device::DeviceHandle;
use crate::entry::{Object, export};
use crate::errno::Errno;
use crate::mr;
use crate::pd;

/// Which `ibv_open_device` contexts come from: the file behind their `cmd_fd`, however often it was duplicated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Origin {
    device: u64,
    inode: u64,
}

impl Origin {
    /// The file behind a descriptor, EBADF if there is none.
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
    fn find(&self, number: u32, origin: Origin) -> Result<Arc<T>, Errno> {
        let objects = self.0.get().lock();
        let (of, object) = objects.get(&number).ok_or(Errno::EINVAL)?;
        if *of != origin {
            return Err(Errno::EINVAL);
        }
        object.upgrade().ok_or(Errno::EINVAL)
    }
}

/// The devices behind the files of open contexts, and how many contexts there are of each.
static OPEN: PerProcess<Mutex<BTreeMap<Origin, (&'static DeviceHandle, u32)>>> = PerProcess::new();

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

export! {
    /// Opens the device of another context of this process by a duplicate of its `cmd_fd`, which closing it closes.
    pub fn ibv_import_device(cmd_fd: c_int) -> *mut abi::ibv_context = call::pointer |_| {
        let origin = Origin::of(cmd_fd)?;
        let device = OPEN.get().lock().get(&origin).map(|(device, _)| *device);
        let Some(device) = device else {
            tracing::error!("ibv_import_device: descriptor {cmd_fd} is of no context of this process");
            return Err(Errno::EOPNOTSUPP);
        };
        // SAFETY: it is open, and the caller's to give away.
        let command = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        context::open(device, command).map_err(|(command, errno)| {
            // Nothing was taken over.
            let _ = std::os::fd::IntoRawFd::into_raw_fd(command);
            errno
        })
    }

    /// A domain of the same origin under another pointer. It ends with `ibv_unimport_pd`, or by `ibv_dealloc_pd` together
    /// with the domain itself.
    pub fn ibv_import_pd(context: Object<abi::ibv_context>, pd_handle: u32) -> *mut abi::ibv_pd = call::pointer |owner| {
        let (handle, live) = context.opened(owner)?;
        let original = pd::REGISTRY.find(pd_handle, live.origin)?;
        Ok(pd::make_numbered(handle, original.import(&live.engine), pd_handle))
    }

    /// Ends an import; the domain itself stays.
    pub fn ibv_unimport_pd(pd: Object<abi::ibv_pd>) -> () = call::nothing |owner| {
        pd::forget(owner, pd)
    }

    /// A region of the same origin under another pointer, whose `addr` is NULL. It ends with `ibv_unimport_mr`, or by
    /// `ibv_dereg_mr` together with the region itself.
    pub fn ibv_import_mr(pd: Object<abi::ibv_pd>, mr_handle: u32) -> *mut abi::ibv_mr = call::pointer |owner| {
        let (_, domain) = pd.enter(owner)?;
        let engine = mr::REGISTRY.find(mr_handle, domain.context.live()?.origin)?;
        Ok(mr::import(pd, domain.context, engine, mr_handle))
    }

    /// Ends an import; the region itself stays.
    pub fn ibv_unimport_mr(mr: Object<abi::ibv_mr>) -> () = call::nothing |owner| {
        mr::forget(owner, mr)
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
