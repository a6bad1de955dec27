//! Whether a program may send any frame in this network namespace without ferroce.
//!
//! The kernel gives a packet socket to a process with CAP_NET_RAW over the network namespace. A program is judged when it asks, by what the
//! kernel says of its process then:
//!
//! - A pidfd of the connection names the process (`SO_PEERPIDFD`). It lives before and after all else is read, so that its number is of no
//!   other process meanwhile.
//! - Every thread has CAP_NET_RAW in its effective set. The threads share their memory, so none of them counts alone.
//! - The process is in the user namespace of the broker, where its capabilities are counted as the broker's, and in its network namespace.
//! - No thread has a seccomp filter, which could deny the socket.
//! - The real, effective, saved and file system users are one. A set-user-ID program acts for a user without these rights, and usually
//!   drops them later.
//!
//! A program that drops its rights later keeps the socket, as it would keep a packet socket, and so do children that it forks. A process that hands its connection to another
//! one hands its rights over as well, as with any descriptor. A security module may deny packet sockets to a program that passes here:
//! the setting `xdp-ports pairs` is for such systems.

use std::fmt;
use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Number of CAP_NET_RAW (`linux/capability.h`).
const NET_RAW: u32 = 13;

/// Why a program does not count as one that may send any frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unprivileged {
    /// It was not judged, or the kernel does not tell its process or its rights.
    Unknown,
    /// A thread lacks CAP_NET_RAW.
    NoCapability,
    /// It is in another user namespace, or one that the broker may not see.
    UserNamespace,
    /// It is in another network namespace.
    NetworkNamespace,
    /// A seccomp filter decides about its system calls.
    Seccomp,
    /// It is a set-user-ID program.
    SetUser,
}

impl fmt::Display for Unprivileged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the kernel does not tell the rights of the program's process (Linux 6.5 does)",
            Self::NoCapability => "the program lacks CAP_NET_RAW",
            Self::UserNamespace => "the program is not in the user namespace of ferroced, or hides it",
            Self::NetworkNamespace => "the program is not in the network namespace of ferroced",
            Self::Seccomp => "the program has a seccomp filter",
            Self::SetUser => "the program is a set-user-ID one",
        })
    }
}

/// Judges the process at the other end of a connection.
///
/// # Errors
/// The first condition that does not hold.
pub fn judge(connection: BorrowedFd<'_>) -> Result<(), Unprivileged> {
    let pidfd = getsockopt(&connection, PeerPidfd).map_err(|_| Unprivileged::Unknown)?;
    judge_process(pidfd.as_fd())
}

fn judge_process(pidfd: BorrowedFd<'_>) -> Result<(), Unprivileged> {
    let pid = number_of(pidfd).ok_or(Unprivileged::Unknown)?;
    let folder = format!("/proc/{pid}");
    let judged = judge_folder(Path::new(&folder));
    // Everything above was of this process if the process lives still.
    let lives = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec::default())) == Ok(0);
    if lives { judged } else { Err(Unprivileged::Unknown) }
}

/// The number of a pidfd's process in the pid namespace of our `/proc`.
fn number_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // 0 is a process outside the namespace, and -1 one that ended.
    number.trim().parse().ok().filter(|pid| *pid > 0)
}

fn judge_folder(folder: &Path) -> Result<(), Unprivileged> {
    let unknown = |_| Unprivileged::Unknown;
    let mut threads = 0;
    for thread in std::fs::read_dir(folder.join("task")).map_err(unknown)? {
        let thread = thread.map_err(unknown)?.path();
        let status = match std::fs::read_to_string(thread.join("status")) {
            Ok(status) => status,
            // It ended meanwhile.
            Err(_) => continue,
        };
        judge_status(&status)?;
        let own = Path::new("/proc/thread-self/ns");
        for (name, other) in [("user", Unprivileged::UserNamespace), ("net", Unprivileged::NetworkNamespace)]
        {
            if !is_same(&own.join(name), &thread.join("ns").join(name)) {
                return Err(other);
            }
        }
        threads += 1;
    }
    if threads > 0 { Ok(()) } else { Err(Unprivileged::Unknown) }
}

/// Judges a `/proc/PID/status`.
fn judge_status(status: &str) -> Result<(), Unprivileged> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).ok_or(Unprivileged::Unknown)
    };
    let effective = u64::from_str_radix(field("CapEff")?, 16).map_err(|_| Unprivileged::Unknown)?;
    if effective >> NET_RAW & 1 == 0 {
        return Err(Unprivileged::NoCapability);
    }
    let mut users = field("Uid")?.split_whitespace();
    let first = users.next().ok_or(Unprivileged::Unknown)?;
    if users.any(|user| user != first) {
        return Err(Unprivileged::SetUser);
    }
    // A kernel without seccomp has no such line.
    match field("Seccomp") {
        Ok("0") | Err(_) => Ok(()),
        Ok(_) => Err(Unprivileged::Seccomp),
    }
}

/// Whether two links of `/proc` lead to one namespace.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (one.metadata().map(identity), other.metadata().map(identity)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
