//! Whether the kernel gives a program a right by a capability, so that ferroce may give it as well: to send
//! any frame in this network namespace (CAP_NET_RAW), or to take ports below 1024 (CAP_NET_BIND_SERVICE).
//!
//! A program is judged when it asks, by what the kernel says of its process then:
//!
//! - The process that connected sent the request itself (`SCM_CREDENTIALS`). A process that executes a
//!   set-user-ID program, or one with capabilities of its own, may have left its connection to a child.
//! - The real, effective and saved users are one, and the one that connected (`SO_PEERCRED`). A set-user-ID
//!   program acts for a user without these rights, and usually drops them later.
//! - The process has the capability in its effective set, in the user namespace of the broker, where its
//!   capabilities are counted as the broker's.
//!
//! A packet socket lasts, so for the right to send any frame there is more:
//!
//! - A pidfd of the connection names the process (`SO_PEERPIDFD`). It lives before and after all else is
//!   read, so that its number is of no other process meanwhile. For ports, kernels before 6.5 have to do
//!   without.
//! - Every thread has the capability. The threads share their memory, so none of them counts alone.
//! - The process is in the broker's network namespace, and no thread has a seccomp filter, which could deny
//!   the socket.
//!
//! A program that drops its rights later keeps the socket, as it would keep a packet socket, and so do
//! children that it forks. A program that asks and executes another one with capabilities of its own, of the
//! same user, before the broker reads the request, is judged as that one. A security module may deny packet
//! sockets to a program that passes here: the setting `xdp-ports pairs` is for such systems.

use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ferroce_ipc::packet::Sender;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A right that a capability gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To send any frame.
    Frames,
    /// To take ports below 1024.
    LowPorts,
}

impl Right {
    /// The number of the capability (`linux/capability.h`).
    const fn capability(self) -> u32 {
        match self {
            Self::Frames => 13,
            Self::LowPorts => 10,
        }
    }
}

/// Why a program does not have a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unprivileged {
    /// The program was not judged, or the kernel does not tell its process or its rights.
    #[error("the kernel does not tell the rights of the program's process (Linux 6.5 does)")]
    Unknown,
    /// The process lacks the capability.
    #[error("the program lacks CAP_NET_RAW")]
    NoCapability,
    /// The program is in another user namespace, or one that the broker may not see.
    #[error("the program is not in the user namespace of ferroced, or hides it")]
    UserNamespace,
    /// The program is in another network namespace.
    #[error("the program is not in the network namespace of ferroced")]
    NetworkNamespace,
    /// A seccomp filter decides about its system calls.
    #[error("the program has a seccomp filter")]
    Seccomp,
    /// The process runs a set-user-ID program, or is of another user than the one that connected.
    #[error("the program is a set-user-ID one")]
    SetUser,
    /// Another process than the one that connected sent the request.
    #[error("another process than the one that connected to ferroced asks")]
    OtherProcess,
}

/// Judges the process at the other end of a connection, from which a request came.
///
/// # Errors
/// The first condition that does not hold.
pub fn judge(connection: BorrowedFd<'_>, sender: Option<Sender>, right: Right) -> Result<(), Unprivileged> {
    let peer = getsockopt(&connection, PeerCredentials).map_err(|_| Unprivileged::Unknown)?;
    let sender = sender.ok_or(Unprivileged::Unknown)?;
    if i64::from(sender.pid) != i64::from(peer.pid().max(0)) {
        return Err(Unprivileged::OtherProcess);
    }
    let pidfd = match (getsockopt(&connection, PeerPidfd), right) {
        (Ok(pidfd), _) => Some(pidfd),
        (Err(_), Right::Frames) => return Err(Unprivileged::Unknown),
        (Err(_), Right::LowPorts) => {
            Pid::from_raw(peer.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        }
    };
    let judged =
        pidfd.map_or(Err(Unprivileged::Unknown), |pidfd| judge_process(pidfd.as_fd(), peer.uid(), right));
    match judged {
        // `/proc` may not show a process; then only its users are known.
        Err(Unprivileged::Unknown) if right == Right::LowPorts && (peer.uid(), sender.uid) == (0, 0) => {
            Ok(())
        }
        judged => judged,
    }
}

fn judge_process(pidfd: BorrowedFd<'_>, uid: u32, right: Right) -> Result<(), Unprivileged> {
    let pid = number_of(pidfd).ok_or(Unprivileged::Unknown)?;
    let folder = format!("/proc/{pid}");
    let judged = match right {
        Right::Frames => judge_threads(Path::new(&folder), uid),
        Right::LowPorts => judge_thread(Path::new(&folder), uid, right),
    };
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

/// Judges all threads of a process for the right to send any frame.
fn judge_threads(folder: &Path, uid: u32) -> Result<(), Unprivileged> {
    let unknown = |_| Unprivileged::Unknown;
    let mut threads = 0;
    for thread in std::fs::read_dir(folder.join("task")).map_err(unknown)? {
        let thread = thread.map_err(unknown)?.path();
        match judge_thread(&thread, uid, Right::Frames) {
            // The thread ended meanwhile.
            Err(Unprivileged::Unknown) if !thread.exists() => continue,
            judged => judged?,
        }
        threads += 1;
    }
    if threads > 0 { Ok(()) } else { Err(Unprivileged::Unknown) }
}

/// Judges the thread, or the first thread of the process, that has this folder.
fn judge_thread(folder: &Path, uid: u32, right: Right) -> Result<(), Unprivileged> {
    let status = std::fs::read_to_string(folder.join("status")).map_err(|_| Unprivileged::Unknown)?;
    judge_status(&status, uid, right)?;
    let own = Path::new("/proc/thread-self/ns");
    let same = |name: &str| is_same(&own.join(name), &folder.join("ns").join(name));
    if !same("user") {
        return Err(Unprivileged::UserNamespace);
    }
    if right == Right::Frames && !same("net") {
        return Err(Unprivileged::NetworkNamespace);
    }
    Ok(())
}

/// Judges a `/proc/PID/status`. `uid`: the user that connected.
fn judge_status(status: &str, uid: u32, right: Right) -> Result<(), Unprivileged> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).ok_or(Unprivileged::Unknown)
    };
    let effective = u64::from_str_radix(field("CapEff")?, 16).map_err(|_| Unprivileged::Unknown)?;
    if effective >> right.capability() & 1 == 0 {
        return Err(Unprivileged::NoCapability);
    }
    // The fourth one, the user for file systems, matters for no port.
    let count = if right == Right::Frames { 4 } else { 3 };
    let users: Vec<u32> =
        field("Uid")?.split_whitespace().take(count).filter_map(|uid| uid.parse().ok()).collect();
    if users.len() < count {
        return Err(Unprivileged::Unknown);
    }
    if users.iter().any(|user| *user != uid) {
        return Err(Unprivileged::SetUser);
    }
    match field("Seccomp") {
        // A kernel without seccomp has no such line.
        Ok("0") | Err(_) => Ok(()),
        Ok(_) if right == Right::LowPorts => Ok(()),
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

/// Whether a broker of user `own` keeps programs of `uid` within bounds. Root's programs may stop it anyway.
pub(crate) fn restricts(own: u32, uid: u32) -> bool {
    uid != own && uid != 0
}

#[cfg(test)]
mod tests;
