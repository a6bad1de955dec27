//! A private network namespace: with its own UDP port 4791 and broker, and only the loopback device.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use nix::unistd::{Gid, Uid, getegid, geteuid};

/// The error if users cannot make namespaces, with the cause.
pub fn no_namespaces() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let sysctl = |path: &str| Some(read(&format!("/proc/sys/{path}")).trim().to_owned());
    refusal(sysctl, &read("/proc/self/status"))
}

/// The cause by the values of settings, and by `/proc/self/status`.
fn refusal(sysctl: impl Fn(&str) -> Option<String>, status: &str) -> String {
    let settings = [
        ("kernel/unprivileged_userns_clone", "0"),
        ("user/max_user_namespaces", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    let set = settings.into_iter().find(|(path, value)| sysctl(path).as_deref() == Some(value));
    let filtered =
        status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    match set {
        Some((path, value)) => {
            format!(
                "this system lets no user make a namespace (sysctl {} is {value})",
                path.replace('/', ".")
            )
        }
        None if filtered => {
            "a seccomp filter, such as that of a container, lets no user make a namespace".to_owned()
        }
        None => "the kernel lets no user make a namespace here, as in a chroot".to_owned(),
    }
}

/// Loopback is the first device of every network namespace.
const LOOPBACK: i32 = 1;

/// Moves this process (which has one thread) into a new network namespace with loopback up. Without root it
/// also makes a user namespace, in which the caller keeps its uid and gid.
pub fn enter() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    if uid.is_root() {
        unshare(CloneFlags::CLONE_NEWNET).context("no network namespace for this process")?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).with_context(no_namespaces)?;
        keep_identity(uid, gid)?;
    }
    raise_loopback().context("cannot raise lo in the private network namespace")
}

/// Maps the caller's uid and gid to themselves in a new user namespace.
pub fn keep_identity(uid: Uid, gid: Gid) -> Result<()> {
    std::fs::write("/proc/self/setgroups", "deny").context("/proc/self/setgroups")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).context("/proc/self/uid_map")?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).context("/proc/self/gid_map")
}

/// `ip link set lo up`, over netlink: RTM_NEWLINK with IFF_UP, acknowledged.
fn raise_loopback() -> Result<()> {
    const NLM_F_REQUEST_ACK: u16 = 0x1 | 0x4;
    const RTM_NEWLINK: u16 = 16;
    const NLMSG_ERROR: u16 = 2;
    const IFF_UP: u32 = 1;
    let fd =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    // nlmsghdr: length, type, flags, sequence, port; ifinfomsg: family and padding, type, index, flags,
    // change.
    let mut message = Vec::with_capacity(32);
    message.extend(32u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend(1u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    sendto(fd.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 256];
    let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // The acknowledgement is an nlmsgerr: after the header of 16 octets, 0 or a negated errno.
    let field = |at: usize| answer.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    anyhow::ensure!(length >= 20 && kind == Some(NLMSG_ERROR), "netlink gave no acknowledgement");
    match field(16) {
        Some(0) => Ok(()),
        Some(errno) => Err(std::io::Error::from_raw_os_error(errno.wrapping_neg()).into()),
        None => anyhow::bail!("netlink gave a short answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn the_cause_of_a_refused_namespace_is_named() {
        let cause = |set: &str, status: &str| refusal(|path| (path == set).then(|| "0".to_owned()), status);
        assert!(
            cause("user/max_user_namespaces", "Seccomp:\t2\n")
                .contains("sysctl user.max_user_namespaces is 0")
        );
        assert!(cause("", "Name:\tx\nSeccomp:\t2\n").contains("seccomp"));
        assert!(cause("", "Seccomp:\t0\n").contains("chroot"));
    }
}
