//! Receives a packet with its descriptors and its sender.
//!
//! The kernel names a sender outside our pid namespace 0, and rustix has no such process id, so this module
//! reads the control messages itself.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;

use super::{MAX_DESCRIPTORS, Sender};

/// The result of `recvmsg(2)`, apart from the octets.
pub(super) struct Taken {
    pub(super) length: usize,
    /// The octets were more than the buffer holds.
    pub(super) cut: bool,
    /// Control messages were cut: descriptors are missing.
    pub(super) control_cut: bool,
    pub(super) descriptors: Vec<OwnedFd>,
    /// `None` unless the socket has SO_PASSCRED.
    pub(super) sender: Option<Sender>,
}

/// A control message with a descriptor of the sender's process (Linux 6.5), on sockets with SO_PASSPIDFD.
const SCM_PIDFD: libc::c_int = 4;

/// Octets for the descriptors and the sender of a packet.
const SPACE: usize = {
    // SAFETY: `CMSG_SPACE` only computes.
    let rights = unsafe { libc::CMSG_SPACE((MAX_DESCRIPTORS * size_of::<RawFd>()) as u32) };
    // SAFETY: as above.
    let sender = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) };
    (rights + sender) as usize
};

/// Calls `recvmsg(2)` without waiting; received descriptors are close-on-exec. `peek`: the packet stays where
/// it is.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], peek: bool) -> io::Result<Taken> {
    let mut space = [0_u64; SPACE.div_ceil(size_of::<u64>())];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all fields of a `msghdr` are numbers and pointers, and 0 is a value of each.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = space.as_mut_ptr().cast();
    header.msg_controllen = SPACE as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | if peek { libc::MSG_PEEK } else { 0 };
    let length = loop {
        // SAFETY: the header names `buffer` and `space` with their lengths; both, and `part`, live through
        // the call and are written to by nobody else.
        let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
        match usize::try_from(length) {
            Ok(length) => break length,
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
        }
    };
    let mut taken = Taken {
        length,
        cut: header.msg_flags & libc::MSG_TRUNC != 0,
        control_cut: header.msg_flags & libc::MSG_CTRUNC != 0,
        descriptors: Vec::new(),
        sender: None,
    };
    // SAFETY: the kernel filled in the header, whose control messages lie in `space`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    // SAFETY: `next` is null or points to a control message in `space`, which is aligned for it.
    while let Some(message) = unsafe { next.as_ref() } {
        // SAFETY: the message lies in `space`, and so does its data.
        let data = unsafe { libc::CMSG_DATA(next) };
        // SAFETY: `CMSG_LEN` only computes.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        #[allow(clippy::unnecessary_cast, reason = "32 bits with musl")]
        let octets = (message.cmsg_len as usize).saturating_sub(head);
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for place in 0..octets / size_of::<RawFd>() {
                    // SAFETY: the kernel wrote at least `place + 1` descriptors there.
                    let raw = unsafe { data.cast::<RawFd>().add(place).read_unaligned() };
                    // SAFETY: the kernel has just made this descriptor for this call, so nothing else owns
                    // it.
                    taken.descriptors.push(unsafe { OwnedFd::from_raw_fd(raw) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if octets >= size_of::<libc::ucred>() => {
                // SAFETY: the kernel wrote at least the octets of a `ucred` there, and any numbers are one.
                let who = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                taken.sender = Some(Sender { pid: u32::try_from(who.pid).unwrap_or(0), uid: who.uid });
            }
            // The owner of the other end can ask for it on a socket that this process reads.
            (libc::SOL_SOCKET, SCM_PIDFD) if octets >= size_of::<RawFd>() => {
                // SAFETY: the kernel wrote a descriptor there, which nothing else owns.
                drop(unsafe { OwnedFd::from_raw_fd(data.cast::<RawFd>().read_unaligned()) });
            }
            _ => {}
        }
        // SAFETY: `next` is a control message of this header.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn pidfds() -> usize {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links
            .filter(|link| {
                std::fs::read_link(link.path()).is_ok_and(|to| to.to_string_lossy().contains("pidfd"))
            })
            .count()
    }

    /// Whoever holds a duplicate of the receiving socket sets its options.
    #[test]
    fn a_descriptor_of_the_sender_that_nobody_asked_for_is_closed() {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let on: libc::c_int = 1;
        const SO_PASSPIDFD: libc::c_int = 76;
        // SAFETY: the kernel reads the number, whose size it is told.
        let set = unsafe {
            let size = size_of_val(&on) as libc::socklen_t;
            libc::setsockopt(
                receiver.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PASSPIDFD,
                (&raw const on).cast(),
                size,
            )
        };
        if set != 0 {
            return println!(
                "skipped a_descriptor_of_the_sender_that_nobody_asked_for_is_closed: no SO_PASSPIDFD before Linux 6.5"
            );
        }
        /// More than other tests of this process have at once.
        const MANY: usize = 100;
        for peek in [true, false] {
            for _ in 0..MANY {
                sender.send(b"rings").unwrap();
                let taken = receive(receiver.as_fd(), &mut [0; 8], peek).unwrap();
                assert_eq!((taken.length, taken.descriptors.len()), (5, 0));
                if peek {
                    receive(receiver.as_fd(), &mut [0; 8], false).unwrap();
                }
            }
            assert!(pidfds() < MANY);
        }
    }
}
