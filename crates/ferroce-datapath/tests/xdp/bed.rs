//! Two namespaces, the pairs of programs, and the peer's wire.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferroce_datapath::packet::{FrameBuffer, PacketSocket};
use ferroce_datapath::xdp::{Pair, Port, Rx, Tx, Uplink, join};
use ferroce_wire::RoceVersion;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Uid;

pub const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The slot of the first program, and that of the second one.
pub const SLOT: u16 = 0x123;
pub const OTHER_SLOT: u16 = 0xabc;

pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn shown(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub struct World {
    host: File,
    peer: File,
}

impl World {
    pub fn peer<T>(&self, body: impl FnOnce() -> T) -> T {
        setns(&self.peer, CloneFlags::CLONE_NEWNET).unwrap();
        let result = body();
        setns(&self.host, CloneFlags::CLONE_NEWNET).unwrap();
        result
    }

    /// A packet socket of the peer that receives all.
    pub fn wire(&self) -> Wire {
        self.peer(|| Wire::open("peer"))
    }
}

pub fn forwarding(interface: &str, on: bool) {
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/{interface}/forwarding");
        std::fs::write(&path, if on { "1" } else { "0" }).unwrap();
    }
}

pub fn up(interface: &str) {
    run(&format!("ip link set {interface} up"));
    eventually(interface, || shown(&format!("ip link show {interface}")).contains("state UP"));
}

pub fn pair(number: u32) -> Pair {
    let (near, far) = (format!("near{number}"), format!("far{number}"));
    run(&format!("ip link add {near} type veth peer name {far}"));
    for end in [&near, &far] {
        run(&format!("ip link set {end} addrgenmode none"));
        run(&format!("ip link set {end} up"));
    }
    up(&near);
    up(&far);
    forwarding(&near, true);
    Pair { near: if_nametoindex(near.as_str()).unwrap(), far: if_nametoindex(far.as_str()).unwrap() }
}

/// Runs a test in two namespaces, with `mtu` on the wire between them.
pub fn in_namespaces(mtu: u32, body: impl FnOnce(&World) + Send + 'static) {
    if !Uid::effective().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: XDP and namespaces need root, links the program ip");
        return;
    }
    if !kernel_can() {
        eprintln!("skipped: AF_XDP with these programs needs Linux 5.18 or later with CONFIG_XDP_SOCKETS");
        return;
    }
    let thread = std::thread::spawn(move || {
        let namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let (peer, host) = (namespace(), namespace());
        let path = format!("/proc/{}/fd/{}", std::process::id(), peer.as_raw_fd());
        run(&format!("ip link add net0 mtu {mtu} type veth peer name peer mtu {mtu} netns {path}"));
        let world = World { host, peer };
        run("ip link set net0 address 02:00:00:00:00:01");
        run("ip addr add 10.9.0.1/24 dev net0");
        run("ip addr add fd09::1/64 dev net0 nodad");
        run("ip link set net0 up");
        world.peer(|| {
            run("ip link set peer address 02:00:00:00:00:02");
            run("ip addr add 10.9.0.2/24 dev peer");
            run("ip addr add fd09::2/64 dev peer nodad");
            up("peer");
        });
        up("net0");
        for address in ["10.9.0.2", "fd09::2"] {
            run(&format!("ip neigh replace {address} lladdr 02:00:00:00:00:02 dev net0 nud permanent"));
        }
        body(&world);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub fn kernel_can() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return io::Error::last_os_error().raw_os_error() != Some(libc::EAFNOSUPPORT);
    }
    // SAFETY: the kernel has just returned this descriptor, so it is open and has no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(socket) });
    version >= (5, 18)
}

pub fn addresses(list: &[&str]) -> BTreeSet<IpAddr> {
    list.iter().map(|address| address.parse().unwrap()).collect()
}

pub fn attach() -> Uplink {
    attach_to("net0")
}

pub fn attach_to(interface: &str) -> Uplink {
    let mut uplink = Uplink::attach(if_nametoindex(interface).unwrap()).unwrap();
    uplink.set_addresses(&addresses(&["10.9.0.1", "fd09::1"])).unwrap();
    uplink
}

/// Opens a port at a pair whose last socket was closed a moment ago: the kernel frees the queue some milliseconds later, and until then
/// the attempt fails with `EBUSY`.
pub fn open_again(uplink: &mut Uplink, pair: Pair, slots: &[u16]) -> Port {
    let mut opened = None;
    eventually("the queue of the closed socket is free", || match uplink.open(pair, slots) {
        Ok(port) => {
            opened = Some(port);
            true
        }
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(libc::EBUSY), "{e}");
            false
        }
    });
    opened.unwrap()
}

pub fn duplicate(fd: std::os::fd::BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

pub fn halves(port: &Port) -> (Rx, Tx) {
    join(duplicate(port.socket()), duplicate(port.memory())).unwrap()
}

/// A packet socket, and the frames of RoCE that it sees.
pub struct Wire {
    socket: PacketSocket,
    buffer: FrameBuffer,
}

impl Wire {
    pub fn open(interface: &str) -> Self {
        let socket = PacketSocket::open(if_nametoindex(interface).unwrap()).unwrap();
        socket.accept(None, true).unwrap();
        socket.listen(true, false).unwrap();
        Self { socket, buffer: FrameBuffer::new() }
    }

    pub fn send(&self, frame: &[u8]) {
        self.socket.send(frame).unwrap();
    }

    pub fn next(&mut self) -> Option<Vec<u8>> {
        while let Some(frame) = self.socket.recv(&mut self.buffer).unwrap() {
            let roce = frame.bytes.get(12..14) == Some(&[0x89, 0x15])
                || frame.bytes.windows(2).take(58).any(|pair| pair == 4791u16.to_be_bytes());
            if roce {
                return Some(frame.bytes.to_vec());
            }
        }
        None
    }

    pub fn expect(&mut self, what: &str) -> Vec<u8> {
        let mut found = None;
        eventually(what, || {
            found = self.next();
            found.is_some()
        });
        found.unwrap()
    }
}

pub fn expect(rx: &mut Rx, what: &str) -> (RoceVersion, Vec<u8>) {
    let mut found = None;
    eventually(what, || {
        found = rx.next().map(|received| (received.version, received.packet.to_vec()));
        found.is_some()
    });
    found.unwrap()
}

pub fn drops(uplink: &Uplink) -> BTreeMap<&'static str, u64> {
    let all = uplink.drops().unwrap();
    all.into_iter().filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.name(), count)).collect()
}

pub const DESCRIPTORS: &str = "XDP_TEST_DESCRIPTORS";

/// Runs a part of a test in another process, in the same network namespace.
pub fn part(name: &str, value: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(DESCRIPTORS, value)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
