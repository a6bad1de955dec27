//! The system calls.
#![allow(unsafe_code)]

use std::io;

use libc::pid_t;

/// A piece of memory, laid out as `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) len: u64,
}

const _: () = assert!(size_of::<Piece>() == size_of::<libc::iovec>());

/// Copies from our memory to that of the process of `tid`; the octets copied, all or up to the first that
/// cannot be.
pub(super) fn write(tid: pid_t, local: &[Piece], remote: &[Piece]) -> io::Result<u64> {
    let (local, remote, locals, remotes) = vectors(local, remote);
    // SAFETY: the pointers and counts are those of slices. The kernel reads our memory, and answers EFAULT
    // where nothing is mapped; it is memory that was registered, or captured inline data, and stays so during
    // the call. The other process published its memory to be written to.
    result(unsafe { libc::process_vm_writev(tid, local, locals, remote, remotes, 0) })
}

/// Copies from the memory of the process of `tid` to ours; as [`write()`].
pub(super) fn read(tid: pid_t, local: &[Piece], remote: &[Piece]) -> io::Result<u64> {
    let (local, remote, locals, remotes) = vectors(local, remote);
    // SAFETY: the pointers and counts are those of slices. The kernel writes to our memory only what its
    // owner registered for writing, and answers EFAULT where nothing is mapped; it stays registered during
    // the call.
    result(unsafe { libc::process_vm_readv(tid, local, locals, remote, remotes, 0) })
}

/// A word of the memory of the process of `tid`.
pub(super) fn read_word(tid: pid_t, addr: u64) -> io::Result<u64> {
    let mut word = 0_u64;
    let local = Piece { addr: (&raw mut word).expose_provenance() as u64, len: 8 };
    let copied = read(tid, &[local], &[Piece { addr, len: 8 }])?;
    if copied == 8 { Ok(word) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

type Vector = *const libc::iovec;

fn vectors(local: &[Piece], remote: &[Piece]) -> (Vector, Vector, libc::c_ulong, libc::c_ulong) {
    (local.as_ptr().cast(), remote.as_ptr().cast(), local.len() as _, remote.len() as _)
}

fn result(copied: isize) -> io::Result<u64> {
    u64::try_from(copied).map_err(|_| io::Error::last_os_error())
}
