//! Direct ports of AF_XDP at both ends of a veth, each in a network namespace without a name, which the kernel removes with the test's
//! thread.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferroce_datapath::xdp::{AttachError, HARDWARE, Pair, Port, Rx, Tx, Uplink, join};
use ferroce_wire::RoceVersion;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::Uid;

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const SLOT: u16 = 0x123;
const OTHER_SLOT: u16 = 0xabc;
/// The kernel frees the queue of a closed socket a moment later.
const PATIENCE: Duration = Duration::from_secs(60);

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn eventually<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The namespaces of the interfaces `net0` and `net1`, which are the ends of a veth.
struct World([File; 2]);

impl World {
    fn at<T>(&self, end: usize, body: impl FnOnce() -> T) -> T {
        setns(&self.0[end], CloneFlags::CLONE_NEWNET).unwrap();
        body()
    }

    /// An uplink that takes the packets of its end.
    fn attach(&self, end: usize) -> Uplink {
        self.at(end, || {
            let index = if_nametoindex(format!("net{end}").as_str()).unwrap();
            let mut uplink = Uplink::attach(index).unwrap();
            uplink.set_addresses(&BTreeSet::from([IpAddr::V4(IPS[end])])).unwrap();
            uplink
        })
    }

    fn direct(&self, end: usize, uplink: &mut Uplink, slots: &[u16]) -> Port {
        self.at(end, || {
            eventually("the queue is free", || match uplink.open_direct(slots) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => None,
                other => Some(other.unwrap()),
            })
        })
    }

    /// A socket of the kernel at the port of RoCE.
    fn udp(&self, end: usize) -> UdpSocket {
        let socket = self.at(end, || UdpSocket::bind((IPS[end], 4791)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

fn in_namespaces(body: impl FnOnce(&World) + Send + 'static) {
    if !Uid::effective().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: XDP and namespaces need root, links the program ip");
        return;
    }
    let thread = std::thread::spawn(move || {
        let namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let (second, first) = (namespace(), namespace());
        let path = format!("/proc/{}/fd/{}", std::process::id(), second.as_raw_fd());
        run(&format!("ip link add net0 type veth peer name net1 netns {path}"));
        let world = World([first, second]);
        for end in [1, 0] {
            world.at(end, || {
                let other = 1 - end;
                run(&format!("ip link set net{end} address 02:00:00:00:00:0{}", end + 1));
                run(&format!("ip addr add {}/24 dev net{end}", IPS[end]));
                run(&format!("ip link set net{end} up"));
                let lladdr = format!("02:00:00:00:00:0{}", other + 1);
                run(&format!("ip neigh replace {} lladdr {lladdr} dev net{end} nud permanent", IPS[other]));
            });
        }
        let index = if_nametoindex("net0").unwrap();
        if let Err(AttachError::Unsupported(why)) = Uplink::attach(index) {
            eprintln!("skipped: the kernel has no AF_XDP for these programs: {why}");
            return;
        }
        body(&world);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

/// The halves of a port at `end`, whose frames have the addresses of the wire.
fn halves(end: usize, port: &Port) -> (Rx, Tx) {
    let (rx, mut tx) = join(duplicate(port.socket()), duplicate(port.memory())).unwrap();
    let mut hardware = [0; HARDWARE];
    hardware[..6].copy_from_slice(&MACS[1 - end]);
    hardware[6..].copy_from_slice(&MACS[end]);
    tx.set_hardware(hardware);
    (rx, tx)
}

/// A packet from `end` to the other one: its headers, and BTH to ICRC.
fn packet(end: usize, slot: u16, mark: u8, payload: usize) -> (Vec<u8>, Vec<u8>) {
    let mut segment = vec![0x04, 0x40, 0xff, 0xff];
    segment.extend((u32::from(slot) << 12 | 5).to_be_bytes());
    segment.extend([0, 0, 0, mark]);
    segment.extend((0..payload + 4).map(|at| at as u8 ^ mark));
    let udp = segment.len() as u16 + 8;
    let mut headers = vec![0x45, 0];
    headers.extend((20 + udp).to_be_bytes());
    headers.extend([0, 1, 0x40, 0, 64, 17, 0, 0]);
    headers.extend(IPS[end].octets());
    headers.extend(IPS[1 - end].octets());
    let sum: u32 = headers.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    headers[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    headers.extend([0xc1, 0x23]);
    headers.extend(4791u16.to_be_bytes());
    headers.extend(udp.to_be_bytes());
    headers.extend([0, 0]);
    (headers, segment)
}

fn send(tx: &mut Tx, (headers, segment): &(Vec<u8>, Vec<u8>)) {
    tx.push(RoceVersion::V2, headers, segment).unwrap();
    tx.flush().unwrap();
}

fn expect(rx: &mut Rx, what: &str) -> Vec<u8> {
    eventually(what, || rx.next().map(|received| received.packet.to_vec()))
}

fn whole((headers, segment): &(Vec<u8>, Vec<u8>)) -> Vec<u8> {
    [&headers[..], segment].concat()
}

/// A pair for a program, at the end 0.
fn pair() -> Pair {
    run("ip link add near0 type veth peer name far0");
    for name in ["near0", "far0"] {
        run(&format!("ip link set {name} addrgenmode none"));
        run(&format!("ip link set {name} up"));
    }
    std::fs::write("/proc/sys/net/ipv4/conf/near0/forwarding", "1").unwrap();
    Pair { near: if_nametoindex("near0").unwrap(), far: if_nametoindex("far0").unwrap() }
}

#[test]
fn packets_cross_between_two_direct_ports() {
    in_namespaces(|world| {
        let (mut first, mut second) = (world.attach(0), world.attach(1));
        let ports = [world.direct(0, &mut first, &[SLOT]), world.direct(1, &mut second, &[SLOT, OTHER_SLOT])];
        assert!(ports.iter().all(Port::is_direct));
        let [(mut rx0, mut tx0), (mut rx1, mut tx1)] = [halves(0, &ports[0]), halves(1, &ports[1])];
        // Each frame of both halves several times, with lengths up to that of a path MTU of 1024.
        for number in 0..3000usize {
            let slot = if number % 3 == 0 { OTHER_SLOT } else { SLOT };
            let there = packet(0, slot, number as u8, number % 1100);
            send(&mut tx0, &there);
            assert_eq!(expect(&mut rx1, "a packet to the end 1"), whole(&there), "{number}");
            let back = packet(1, SLOT, number as u8, 1100 - number % 1100);
            send(&mut tx1, &back);
            assert_eq!(expect(&mut rx0, "a packet to the end 0"), whole(&back), "{number}");
        }
        assert!(rx0.next().is_none() && rx1.next().is_none());
    });
}

#[test]
fn a_direct_port_leaves_all_others_to_pairs_and_to_the_kernel() {
    in_namespaces(|world| {
        let (mut first, mut second) = (world.attach(0), world.attach(1));
        let direct = world.direct(0, &mut first, &[SLOT]);
        let (beside, by_pair) = world.at(0, || {
            let pair = pair();
            let port = first.open(pair, &[OTHER_SLOT]).unwrap();
            let halves = join(duplicate(port.socket()), duplicate(port.memory())).unwrap();
            (port, halves)
        });
        assert!(!beside.is_direct());
        let far = world.direct(1, &mut second, &[SLOT]);
        let ((mut rx, _tx), (mut pair_rx, mut pair_tx)) = (halves(0, &direct), by_pair);
        let (mut far_rx, mut far_tx) = halves(1, &far);

        let (to_direct, to_pair) = (packet(1, SLOT, 1, 64), packet(1, OTHER_SLOT, 2, 64));
        send(&mut far_tx, &to_pair);
        send(&mut far_tx, &to_direct);
        assert_eq!(expect(&mut rx, "the slot of the direct port"), whole(&to_direct));
        assert_eq!(expect(&mut pair_rx, "the slot of the pair"), whole(&to_pair));
        let from_pair = packet(0, SLOT, 3, 64);
        send(&mut pair_tx, &from_pair);
        assert_eq!(expect(&mut far_rx, "from the pair to a direct port"), whole(&from_pair));

        // No port has this slot, and the kernel answers a ping.
        let socket = world.udp(0);
        let to_kernel = packet(1, 0x777, 4, 64);
        send(&mut far_tx, &to_kernel);
        let mut buffer = [0; 2048];
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], to_kernel.1);
        world.at(1, || run("ping -c 1 -W 5 10.9.0.1"));
        assert!(rx.next().is_none() && pair_rx.next().is_none());
    });
}

#[test]
fn slots_and_the_queue_are_free_after_a_direct_port() {
    in_namespaces(|world| {
        let (mut first, mut second) = (world.attach(0), world.attach(1));
        let mut port = world.direct(0, &mut first, &[SLOT, OTHER_SLOT]);
        let far = world.direct(1, &mut second, &[SLOT]);
        let (_, mut tx) = halves(1, &far);
        let (mut rx, _) = halves(0, &port);
        let busy = world.at(0, || first.open_direct(&[0x777]));
        assert_eq!(busy.map(drop).map_err(|e| e.raw_os_error()), Err(Some(libc::EBUSY)), "one at a time");

        let socket = world.udp(0);
        let mut buffer = [0; 2048];
        let (kept, given_up) = (packet(1, SLOT, 1, 8), packet(1, OTHER_SLOT, 2, 8));
        port.set_slots(&[SLOT]).unwrap();
        assert_eq!(port.set_slots(&[0x1000]).map_err(|e| e.kind()), Err(io::ErrorKind::InvalidInput));
        send(&mut tx, &given_up);
        send(&mut tx, &kept);
        assert_eq!(expect(&mut rx, "a slot that stays"), whole(&kept));
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], given_up.1, "the kernel has the slot that was given up");

        // Although the program still has the socket.
        drop(port);
        send(&mut tx, &kept);
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], kept.1);
        assert!(rx.next().is_none());
        drop(rx);
        let next = world.direct(0, &mut first, &[SLOT]);
        let (mut rx, _) = halves(0, &next);
        send(&mut tx, &kept);
        assert_eq!(expect(&mut rx, "the next program"), whole(&kept));

        // Without the uplink everything is the kernel's. A frame that comes while the kernel takes the
        // program off is lost.
        drop(first);
        socket.set_nonblocking(true).unwrap();
        let len = eventually("a frame for the kernel", || {
            send(&mut tx, &kept);
            std::thread::sleep(Duration::from_millis(10));
            socket.recv(&mut buffer).ok()
        });
        assert_eq!(buffer[..len], kept.1);
    });
}
