//! Finds the process that holds a name or a port, for messages.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use ferroce_wire::ROCE_UDP_PORT;

use ferroce_host::netdev::Address;

/// A UDP socket of `/proc/net/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSocket {
    /// User id of the owner.
    pub uid: u32,
    /// Inode of the socket; 0 for a socket of the kernel itself.
    pub inode: u64,
    /// Bound to every address.
    pub wildcard: bool,
}

/// The sockets that a bind to port 4791 of this address meets: those of the address and of the wildcard.
/// `None` without `/proc`.
pub fn sockets_on_port(address: Address) -> Option<Vec<UdpSocket>> {
    let tables = tables()?;
    Some(tables.iter().flat_map(|table| table.lines()).filter_map(|line| parse(line, address.ip)).collect())
}

/// How many sockets there are on port 4791 of one address, the most of all addresses but the wildcards and
/// those that `known` names; 0 without `/proc`.
pub fn most_sockets_but(known: &dyn Fn(IpAddr) -> bool) -> usize {
    count_most(tables().iter().flatten().flat_map(|table| table.lines()), known)
}

fn count_most<'a>(lines: impl Iterator<Item = &'a str>, known: &dyn Fn(IpAddr) -> bool) -> usize {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for address in lines.filter_map(|line| local_address(&line.split_whitespace().collect::<Vec<_>>())) {
        if !address.is_unspecified() && !known(address) {
            *counts.entry(address).or_default() += 1;
        }
    }
    counts.into_values().max().unwrap_or(0)
}

/// The kernel's lists of UDP sockets.
fn tables() -> Option<[String; 2]> {
    let v6 = std::fs::read_to_string("/proc/thread-self/net/udp6").unwrap_or_default();
    Some([std::fs::read_to_string("/proc/thread-self/net/udp").ok()?, v6])
}

/// The address of a socket on port 4791, by the fields of its line.
fn local_address(fields: &[&str]) -> Option<IpAddr> {
    let (local, port) = fields.get(1)?.split_once(':')?;
    (u16::from_str_radix(port, 16).ok()? == ROCE_UDP_PORT).then(|| hex_address(local))?
}

/// The socket of one line, if it is on port 4791 of `ip` or of a wildcard that covers it.
fn parse(line: &str, ip: IpAddr) -> Option<UdpSocket> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let local = local_address(&fields)?;
    let wildcard = match (local, ip) {
        // A dual-stack socket's wildcard covers IPv4 as well.
        (IpAddr::V6(v6), _) => v6 == Ipv6Addr::UNSPECIFIED,
        (IpAddr::V4(v4), IpAddr::V4(_)) => v4 == Ipv4Addr::UNSPECIFIED,
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    };
    if local != ip && !wildcard {
        return None;
    }
    Some(UdpSocket { uid: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()?, wildcard })
}

/// The kernel prints addresses as 32-bit words in host order.
fn hex_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::with_capacity(16);
    for word in text.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()),
        _ => None,
    }
}

/// The process that holds port 4791 of an address: `process 17 (nc, uid 1000)`.
pub fn of_port(address: Address) -> String {
    let Some(sockets) = sockets_on_port(address).filter(|sockets| !sockets.is_empty()) else {
        return "somebody whom /proc does not show".to_owned();
    };
    if sockets.iter().all(|socket| socket.inode == 0) {
        return "the kernel (its own rxe driver, rdma_rxe?)".to_owned();
    }
    for socket in &sockets {
        if let Some(pid) = processes_with(socket.inode).first() {
            return process(*pid, socket.uid);
        }
    }
    let uids: Vec<String> = sockets.iter().map(|socket| socket.uid.to_string()).collect();
    format!("a process of uid {} that we may not see, or the kernel's rxe driver", uids.join(", "))
}

/// The process that holds an abstract Unix name without listening on it.
pub fn of_name(name: &str) -> String {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    // Num RefCount Protocol Flags Type St Inode Path
    let inode = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(7)?.strip_prefix('@')? == name).then(|| fields.get(6)?.parse::<u64>().ok()).flatten()
    });
    match inode.and_then(|inode| processes_with(inode).first().copied()) {
        Some(pid) => match std::fs::metadata(format!("/proc/{pid}")) {
            Ok(meta) => process(pid, std::os::unix::fs::MetadataExt::uid(&meta)),
            Err(_) => format!("process {pid}"),
        },
        None => "a process that /proc does not show us".to_owned(),
    }
}

/// How messages name a process.
pub fn process(pid: u32, uid: u32) -> String {
    let user = ferroce_ipc::Peer::user(uid);
    match (pid, command(pid)) {
        (0, _) => format!("a process outside our pid namespace, of {user}"),
        (pid, command) if command.is_empty() => format!("process {pid} ({user})"),
        (pid, command) => format!("process {pid} ({command}, {user})"),
    }
}

/// A process's name as `/proc/PID/comm` has it, empty if unknown.
pub fn command(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().filter(|c| !c.is_control()).collect()
}

/// Whether any process but ours has this socket open, as far as `/proc` shows it to us.
pub fn is_open_elsewhere(socket: BorrowedFd<'_>) -> bool {
    let Ok(stat) = rustix::fs::fstat(socket) else { return false };
    processes_with(stat.st_ino).iter().any(|pid| *pid != std::process::id())
}

/// The processes that have a socket open.
fn processes_with(inode: u64) -> Vec<u32> {
    let target = format!("socket:[{inode}]");
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| has_open(*pid, &target)).collect()
}

fn has_open(pid: u32, target: &str) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors
        .into_iter()
        .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_net_udp() {
        type Found = Option<(u32, u64)>;
        let cases: &[(&str, &str, Found)] = &[
            (
                "  12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0 0",
                "127.0.0.1",
                Some((1000, 4242)),
            ),
            (
                "  12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0 0",
                "127.0.0.2",
                None,
            ),
            (
                "  12: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0 0",
                "127.0.0.2",
                Some((0, 77)),
            ),
            (
                "  12: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0 0",
                "127.0.0.2",
                None,
            ),
            (
                "  12: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     5        0 78 2 0 0",
                "::1",
                Some((5, 78)),
            ),
            (
                "  12: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     5        0 78 2 0 0",
                "10.0.0.1",
                Some((5, 78)),
            ),
            (
                "  12: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77 2 0 0",
                "::1",
                None,
            ),
            (
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops",
                "::1",
                None,
            ),
            ("", "::1", None),
            ("  12: 0100007F:12B7", "127.0.0.1", None),
        ];
        for (line, ip, want) in cases {
            let got = parse(line, ip.parse().unwrap()).map(|s| (s.uid, s.inode));
            assert_eq!(got, *want, "{line} for {ip}");
        }
    }

    #[test]
    fn the_largest_group_of_another_address_is_counted() {
        let line = |local: &str| format!("  12: {local} 00000000:0000 07 0:0 00:0 0  1000 0 4242 2 0 0");
        let v6 = "00000000000000000000000001000000:12B7";
        let of_wildcard = ["00000000:12B7"; 9];
        let of_lo = ["0100007F:12B7"; 3];
        let others = ["0200007F:12B7", "0200007F:12B7", "0300007F:12B7", "0400007F:12B8", v6, "garbage"];
        let lines: Vec<String> = [&of_wildcard[..], &of_lo, &others].concat().into_iter().map(line).collect();
        let count = |known: &dyn Fn(IpAddr) -> bool| count_most(lines.iter().map(String::as_str), known);
        assert_eq!(count(&|_| false), 3);
        assert_eq!(count(&|ip| ip == Ipv4Addr::LOCALHOST), 2);
        assert_eq!(count(&|ip| ip.is_ipv4()), 1);
        assert_eq!(count(&|_| true), 0);
    }

    #[test]
    fn an_own_socket_is_seen_but_not_elsewhere() {
        use std::os::fd::AsFd;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!is_open_elsewhere(socket.as_fd()));
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        assert_eq!(processes_with(inode), [std::process::id()]);
        assert_eq!(process(0, 5), "a process outside our pid namespace, of uid 5");
    }
}
