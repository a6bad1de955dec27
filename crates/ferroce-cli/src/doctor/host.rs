//! Facts about this host or container.

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ferroce_host::environment;
use ferroce_host::rtnetlink::{self, RouteMtu};
use ferroce_ipc::{BROKER_NAME, ClientError, DeviceInfo};
use ferroce_wire::ROCE_UDP_PORT;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::firewall::{self, Firewall};
use crate::broker;
use crate::ports::Ports;
use crate::run::{self, LIBRARIES};

/// Numbers of capabilities (capabilities(7)).
pub const CAP_NET_ADMIN: u32 = 12;
pub const CAP_NET_RAW: u32 = 13;
pub const CAP_SYS_ADMIN: u32 = 21;
pub const CAP_BPF: u32 = 39;

#[derive(Debug, Default)]
pub struct Host {
    /// Release of the kernel.
    pub kernel: String,
    /// Folders with ferroce's libraries.
    pub libraries: Vec<Folder>,
    /// Network devices by name.
    pub netdevs: BTreeMap<String, Netdev>,
    pub broker: Broker,
    /// The AF_XDP ports of each device that has some, by name.
    pub xdp_ports: BTreeMap<String, Ports>,
    /// Sockets on the port, except the broker's.
    pub port: Vec<Holder>,
    /// RDMA devices of the kernel on network devices of this namespace.
    pub kernel_devices: Vec<KernelDevice>,
    /// `net.core.rmem_max` and `wmem_max`, if they are visible.
    pub buffers: [Option<u64>; 2],
    /// Limits of open files: soft and hard.
    pub files: Option<(u64, u64)>,
    /// Whether we, and so the broker, may set devices up.
    pub net_admin: bool,
    /// The effective capabilities of the broker, one bit each, and its program, if they are visible.
    pub broker_capabilities: Option<u64>,
    pub broker_program: Option<PathBuf>,
    /// The reason why no namespace can be made.
    pub no_namespace: Option<String>,
    /// The sign that this is a container.
    pub container: Option<String>,
    /// Whether there are NAT rules.
    pub nat_rules: bool,
    /// The reason why `ferroce` starts no broker.
    pub no_starter: Option<String>,
    /// Descriptors in flight of this user, unless the kernel does not count them for us.
    pub in_flight: Option<u64>,
    /// `kernel.yama.ptrace_scope`, if there is one.
    pub ptrace_scope: Option<u64>,
    /// Whether a seccomp filter judges our system calls.
    pub seccomp: bool,
    pub firewall: Firewall,
    /// Routes with an MTU of their own.
    pub routes: Vec<RouteMtu>,
}

/// A folder with libraries of ferroce.
#[derive(Debug, Default)]
pub struct Folder {
    pub path: PathBuf,
    /// Device and inode of each file, by name.
    pub files: BTreeMap<String, (u64, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Netdev {
    pub up: bool,
    pub loopback: bool,
    pub addresses: Vec<IpAddr>,
}

/// The broker's state.
#[derive(Debug, Default)]
pub enum Broker {
    #[default]
    None,
    /// A usable one, with its devices.
    Runs { pid: u32, uid: u32, devices: Vec<DeviceInfo> },
    /// The reason why it is unusable; the text contains the remedy.
    Unusable(String),
}

/// The owner of a socket on the port.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    pub address: IpAddr,
    pub uid: u32,
    /// The kernel itself owns the socket.
    pub kernel: bool,
    /// The process, if it is visible.
    pub process: Option<String>,
}

impl Holder {
    /// Whether the socket takes the port of an address; that of `::` takes the port of IPv4 as well.
    pub fn covers(&self, address: IpAddr) -> bool {
        let wildcard = self.address.is_unspecified() && (self.address.is_ipv6() || address.is_ipv4());
        self.address == address || wildcard
    }
}

/// An RDMA device of the kernel.
#[derive(Debug)]
pub struct KernelDevice {
    pub name: String,
    pub netdev: String,
    /// rxe; otherwise a card, which takes the port's packets before the kernel receives them.
    pub rxe: bool,
}

/// The facts about the port alone.
pub fn of_port() -> Host {
    let broker = who_answers();
    let netdevs = netdevs();
    Host { port: port(&broker), broker, kernel_devices: kernel_devices(&netdevs), netdevs, ..Host::default() }
}

pub fn gather() -> Host {
    let netdevs = netdevs();
    let broker = who_answers();
    let net_admin = capabilities(&read("/proc/self/status")).is_some_and(|set| set >> CAP_NET_ADMIN & 1 == 1);
    let broker_pid = match &broker {
        Broker::Runs { pid, .. } if *pid != 0 => Some(*pid),
        _ => None,
    };
    Host {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        libraries: folders(),
        port: port(&broker),
        xdp_ports: match &broker {
            Broker::Runs { devices, .. } => Ports::of_all(devices),
            _ => BTreeMap::new(),
        },
        broker,
        kernel_devices: kernel_devices(&netdevs),
        netdevs,
        buffers: ["rmem_max", "wmem_max"]
            .map(|name| read(&format!("/proc/sys/net/core/{name}")).trim().parse().ok()),
        files: limits(&read("/proc/self/limits")),
        net_admin,
        broker_capabilities: broker_pid.and_then(|pid| capabilities(&read(&format!("/proc/{pid}/status")))),
        broker_program: broker_pid.and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok()),
        no_namespace: no_namespace(),
        container: container(),
        nat_rules: ["ip_tables_names", "ip6_tables_names"]
            .iter()
            .any(|table| read(&format!("/proc/net/{table}")).lines().any(|line| line == "nat")),
        no_starter: broker::program().err().map(|error| format!("{error:#}")),
        in_flight: in_flight(),
        ptrace_scope: read("/proc/sys/kernel/yama/ptrace_scope").trim().parse().ok(),
        seccomp: read("/proc/self/status")
            .lines()
            .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2")),
        firewall: firewall::look(net_admin),
        routes: rtnetlink::route_mtus().unwrap_or_default(),
    }
}

/// Returns an empty text if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Folders where the loader may find ferroce's libraries.
fn folders() -> Vec<Folder> {
    let asked = environment::variable("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = [
        "/usr/local/lib",
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ];
    let mut found: Vec<Folder> = Vec::new();
    for path in run::library_dir()
        .ok()
        .into_iter()
        .chain(std::env::split_paths(&asked))
        .chain(usual.map(PathBuf::from))
    {
        let Ok(path) = path.canonicalize() else { continue };
        if found.iter().any(|folder| folder.path == path) {
            continue;
        }
        let file = |name: &&str| {
            let file = path.join(name);
            let is = fs::metadata(&file).ok()?;
            is_ours(&file).then(|| ((*name).to_owned(), (is.dev(), is.ino())))
        };
        let files: BTreeMap<_, _> = LIBRARIES.iter().filter_map(file).collect();
        if !files.is_empty() {
            found.push(Folder { path, files });
        }
    }
    found
}

fn is_ours(file: &Path) -> bool {
    has_note(&fs::read(file).unwrap_or_default())
}

/// Returns whether a library has ferroce's ELF note.
pub fn has_note(library: &[u8]) -> bool {
    const NAME: &[u8] = b"ferroce\0";
    library.windows(NAME.len()).any(|window| window == NAME)
}

fn netdevs() -> BTreeMap<String, Netdev> {
    let mut found: BTreeMap<String, Netdev> = BTreeMap::new();
    for entry in getifaddrs().into_iter().flatten() {
        let netdev = found.entry(entry.interface_name).or_default();
        netdev.up = entry.flags.contains(InterfaceFlags::IFF_UP);
        netdev.loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        netdev.addresses.extend(entry.address.as_ref().and_then(ip));
    }
    found
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

pub fn who_answers() -> Broker {
    match broker::running() {
        Ok((peer, devices)) => Broker::Runs { pid: peer.pid, uid: peer.uid, devices },
        Err(error) => match error.downcast_ref::<ClientError>() {
            Some(ClientError::NoBroker) => Broker::None,
            _ => Broker::Unusable(format!("@{BROKER_NAME}: {error:#}")),
        },
    }
}

/// Further looks at a socket that seems to be nobody's: one that is being closed is in the table for a moment
/// without its process.
const LOOKS: usize = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The owners of sockets on the port, without the broker. Its open files identify the broker's sockets; if it
/// is outside our pid namespace, its user does.
fn port(broker: &Broker) -> Vec<Holder> {
    let mut found = port_now(broker, udp_tables);
    for _ in 0..LOOKS {
        if found.iter().all(|holder| holder.kernel || holder.process.is_some()) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        found = port_now(broker, udp_tables);
    }
    found
}

fn port_now(broker: &Broker, tables: impl FnOnce() -> String) -> Vec<Holder> {
    // The table before the broker's files: a socket that the broker opens in between is in these alone. In
    // the other order it would be in the table alone, and the broker would count as somebody else.
    let tables = tables();
    let own = match broker {
        Broker::Runs { pid, .. } => sockets_of(*pid),
        _ => Vec::new(),
    };
    let brokers = |inode: u64, uid: u32| match broker {
        Broker::Runs { uid: its, .. } if own.is_empty() => uid == *its,
        _ => own.contains(&inode),
    };
    let sockets = tables.lines().filter_map(socket);
    let others = sockets.filter(|(address, uid, inode)| !address.is_multicast() && !brokers(*inode, *uid));
    let holder = |(address, uid, inode)| {
        let process = process_with(inode)
            .map(|pid| format!("process {pid} ({})", read(&format!("/proc/{pid}/comm")).trim()));
        Holder { address, uid, kernel: inode == 0, process }
    };
    others.map(holder).collect()
}

/// The kernel's lists of the UDP sockets of our network namespace.
fn udp_tables() -> String {
    ["udp", "udp6"].map(|table| read(&format!("/proc/thread-self/net/{table}"))).concat()
}

/// Address, user and inode of a socket on the port, from a line of `/proc/net/udp`.
fn socket(line: &str) -> Option<(IpAddr, u32, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, port) = fields.get(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_UDP_PORT {
        return None;
    }
    // 32-bit words in host byte order.
    let word = |at: usize| u32::from_str_radix(local.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address: IpAddr = match local.len() {
        8 => word(0)?.into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            <[u8; 16]>::try_from(words.concat()).ok()?.into()
        }
        _ => return None,
    };
    Some((address, fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?))
}

/// Inodes of a process's sockets.
fn sockets_of(pid: u32) -> Vec<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.filter_map(inode).collect()
}

fn process_with(inode: u64) -> Option<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| inode != 0 && sockets_of(*pid).contains(&inode))
}

fn kernel_devices(netdevs: &BTreeMap<String, Netdev>) -> Vec<KernelDevice> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let parent = fs::read_to_string(path.join("parent")).ok().map(|parent| parent.trim().to_owned());
        let rxe = parent.is_some();
        let cards = fs::read_dir(path.join("device/net")).into_iter().flatten().flatten();
        let of_card = cards.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // sysfs may show another network namespace.
        for netdev in parent.into_iter().chain(of_card).filter(|netdev| netdevs.contains_key(netdev)) {
            found.push(KernelDevice { name: name.clone(), netdev, rxe });
        }
    }
    found
}

/// Parses `Max open files            1024                 1048576              files`.
fn limits(table: &str) -> Option<(u64, u64)> {
    let line = table.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let number = |word: &str| word.parse().ok().or_else(|| (word == "unlimited").then_some(u64::MAX));
    let mut words = line.split_whitespace().map(number);
    Some((words.next()??, words.next()??))
}

/// The effective capabilities in `/proc/PID/status`, one bit each.
fn capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Tries it: a copy of this program enters a namespace, prints its version, and exits.
fn no_namespace() -> Option<String> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(["run", "--private-net", "--", "/proc/self/exe", "--version"]);
    command.env("FERROCE_BROKER", "none").stdin(Stdio::null());
    let output = command.output().ok()?;
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches("ferroce: ").to_owned();
    // Without the libraries it exits before that, which another check reports.
    (!output.status.success() && message.contains("namespace")).then_some(message)
}

/// Descriptors that this user has in flight, over all network namespaces (unix(7), ETOOMANYREFS). The kernel
/// tells the number to nobody, but refuses to send one more where it is above the soft limit of open files,
/// so a search with that limit finds it.
fn in_flight() -> Option<u64> {
    let old = getrlimit(Resource::Nofile);
    let (left, _right) = UnixStream::pair().ok()?;
    let may_send = |limit: u64| {
        let limit = Rlimit { current: Some(limit), maximum: old.maximum };
        if setrlimit(Resource::Nofile, limit).is_err() {
            return false;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let own = [left.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&own))
            && sendmsg(&left, &[IoSlice::new(b"x")], &mut control, SendFlags::DONTWAIT).is_ok()
    };
    // With one of ours there, only a process that may do more is never refused.
    let most = old.maximum.unwrap_or(1 << 20).min(1 << 20);
    let (mut free, mut full, mut ours) = (most, 0, 0);
    if may_send(most) {
        ours = 1;
        if may_send(0) {
            free = 0;
        }
        while free > full + 1 && ours < 30 {
            let middle = full + (free - full) / 2;
            if may_send(middle) {
                (free, ours) = (middle, ours + 1);
            } else {
                full = middle;
            }
        }
    }
    let _ = setrlimit(Resource::Nofile, old);
    (free > 0).then(|| free.saturating_sub(ours))
}

fn container() -> Option<String> {
    let file = |path: &str| Path::new(path).exists().then(|| path.to_owned());
    let variable = |name: &str| environment::variable(name).map(|_| format!("${name}"));
    file("/.dockerenv")
        .or_else(|| file("/run/.containerenv"))
        .or_else(|| variable("KUBERNETES_SERVICE_HOST"))
        .or_else(|| variable("container"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_on_the_port() {
        let line = |local: &str| {
            format!(
                "  77: {local} 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0 0"
            )
        };
        let found = socket(&line("0100007F:12B7")).unwrap();
        assert_eq!(found, ("127.0.0.1".parse().unwrap(), 1000, 4242));
        let found = socket(&line("00000000000000000000000001000000:12B7")).unwrap();
        assert_eq!(found.0, "::1".parse::<IpAddr>().unwrap());
        for other in ["0100007F:12B8", "0100007F", "0100:12B7", "x100007F:12B7"] {
            assert_eq!(socket(&line(other)), None, "{other}");
        }
        assert_eq!(socket("  sl  local_address rem_address   st"), None);
    }

    /// A broker opens sockets for a new address at any time.
    #[test]
    fn a_socket_that_the_broker_opens_during_the_look_is_its_own() {
        use std::net::UdpSocket;
        use std::os::fd::AsFd;
        let line = |socket: &UdpSocket| {
            let inode = rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
            format!(
                "  77: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 {inode} 2 0 0\n"
            )
        };
        let mut sockets = vec![UdpSocket::bind("127.0.0.1:0").unwrap()];
        let us = std::process::id();
        let broker = Broker::Runs { pid: us, uid: 0, devices: Vec::new() };
        let found = port_now(&broker, || {
            sockets.push(UdpSocket::bind("127.0.0.1:0").unwrap());
            sockets.iter().map(line).collect()
        });
        assert_eq!(found, []);
        let found = port_now(&Broker::None, || sockets.iter().map(line).collect());
        let named = |holder: &Holder| holder.process.as_deref().is_some_and(|p| p.contains(&us.to_string()));
        assert!(found.len() == 2 && found.iter().all(named), "{found:?}");
    }

    #[test]
    fn who_may_set_devices_up() {
        assert_eq!(capabilities("Name:\tsh\nCapEff:\t000001ffffffffff\n"), Some((1 << 41) - 1));
        assert_eq!(capabilities("CapEff:\t0000000000000400\n"), Some(1 << 10));
        assert_eq!((capabilities(""), capabilities("CapEff:\tx\n")), (None, None));
    }

    #[test]
    fn limits_of_open_files() {
        let table = "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max processes             95364                95364                processes \n\
                     Max open files            1024                 unlimited            files     \n";
        assert_eq!(limits(table), Some((1024, u64::MAX)));
        assert_eq!(limits("Max open files\n"), None);
    }
}
