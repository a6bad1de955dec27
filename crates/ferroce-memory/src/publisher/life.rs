//! A lock that the kernel marks when its holder's address space ends.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_ipc::published::LIFE;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= LIFE * 8);
const _: () = assert!(align_of::<libc::pthread_mutex_t>() <= 8);

/// Makes a robust mutex in `room` and locks it for the life of the calling thread, whose id is returned. The
/// kernel marks the lock word, the first 32 bits, when the thread ends: at the end of the process, and before
/// it executes another program.
pub(super) fn hold(room: &[AtomicU64]) -> io::Result<u32> {
    let (Some(first), LIFE) = (room.first(), room.len()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mutex = room.as_ptr().cast_mut().cast::<libc::pthread_mutex_t>();
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: pthread_mutexattr_init initialises the attributes that it is given.
    check(unsafe { libc::pthread_mutexattr_init(attributes.as_mut_ptr()) })?;
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes are initialised.
    check(unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) })?;
    // SAFETY: the attributes are initialised.
    check(unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) })?;
    // SAFETY: `mutex` points to zeroed memory of sufficient size and alignment (asserted above), which only
    // the functions of pthread and atomic loads use, and which is mapped as long as the process lives: the
    // caller never unmaps it.
    check(unsafe { libc::pthread_mutex_init(mutex, attributes) })?;
    // SAFETY: the mutex is initialised.
    check(unsafe { libc::pthread_mutex_lock(mutex) })?;
    // glibc has a function of this name since 2.30 only.
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let [b0, b1, b2, b3, ..] = first.load(Ordering::Relaxed).to_ne_bytes();
    // Another C library may keep the lock word elsewhere; then there are no direct copies.
    if u32::from_ne_bytes([b0, b1, b2, b3]) == tid { Ok(tid) } else { Err(io::ErrorKind::Unsupported.into()) }
}

fn check(errno: libc::c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}
