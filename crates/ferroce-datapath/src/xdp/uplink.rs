//! The privileged side: maps and programs of an interface, and the ports of programs.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferroce_host::rtnetlink;
use rustix::fs::{MemfdFlags, SealFlags};

use super::drops::DropReason;
use super::filters::{self, Addresses, DIRECT_QUEUE, Direct, Drops, Ports, Sockets};
use super::{CHUNK, FRAMES, HALF, rings};
use crate::sys::{self, Map, MapKind, XdpMode};

/// Addresses of one uplink, at most.
pub const MAX_ADDRESSES: usize = 1024;
/// The highest slot: 12 bits.
pub const MAX_SLOT: u16 = 0xfff;

/// How the kernel runs the XDP program of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The driver runs it.
    Native,
    /// The kernel runs it, after the driver made a socket buffer.
    Generic,
}

/// Why an interface has no [`Uplink`].
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process lacks CAP_NET_ADMIN, CAP_NET_RAW or CAP_BPF.
    #[error("CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF are needed: {0}")]
    Permission(io::Error),
    /// The kernel lacks AF_XDP, `bpf(2)` or a helper that the programs call.
    #[error("this kernel has no AF_XDP or no bpf(2): {0}")]
    Unsupported(io::Error),
    /// Another XDP program is attached to the interface.
    #[error("another XDP program is attached to the interface")]
    Busy,
    /// Any other error.
    #[error(transparent)]
    Io(io::Error),
}

/// The ends of a program's pair of veth interfaces, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The end where the kernel checks and redirects.
    pub near: u32,
    /// The end where the AF_XDP socket is.
    pub far: u32,
}

/// The XDP program of an interface. It leaves the interface when this is dropped or the process ends. Its
/// ports can still send then, so drop them as well.
#[derive(Debug)]
pub struct Uplink {
    _link: OwnedFd,
    mode: Mode,
    addresses: BTreeSet<IpAddr>,
    shared: Arc<Shared>,
}

/// Maps and programs that an uplink has in common with its ports.
#[derive(Debug)]
struct Shared {
    addresses: Addresses,
    direct: Direct,
    ports: Ports,
    drops: Drops,
    /// The interface.
    ifindex: u32,
    /// The programs of near ends, while their port lives and afterwards.
    near: OwnedFd,
    closed: OwnedFd,
}

/// A program's access. It ends when this is dropped.
///
/// A pair remains, and its near end then drops everything that the program sends. A direct port receives
/// nothing any more. The program can send by it until it closes its descriptor of the socket, or loses its
/// link.
#[derive(Debug)]
pub struct Port {
    socket: OwnedFd,
    memory: OwnedFd,
    place: Place,
    slots: BTreeSet<u16>,
    shared: Arc<Shared>,
}

/// The interface that the socket of a port is bound to.
#[derive(Debug)]
enum Place {
    /// At the far end of a pair, whose program the link attaches.
    Pair { pair: Pair, _link: OwnedFd },
    /// At the interface itself.
    Direct,
}

impl From<io::Error> for AttachError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission(error),
            Some(libc::ENOSYS | libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => Self::Unsupported(error),
            Some(libc::EBUSY | libc::EEXIST) => Self::Busy,
            _ => Self::Io(error),
        }
    }
}

/// The kernel answers `EINVAL` to types of maps, helpers and attributes that it does not know.
fn unsupported(error: io::Error) -> AttachError {
    if error.kind() == io::ErrorKind::InvalidInput { AttachError::Unsupported(error) } else { error.into() }
}

impl Uplink {
    /// Attaches the program, in the driver if that is possible. It takes nothing until
    /// [`Uplink::set_addresses`].
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn attach(ifindex: u32) -> Result<Self, AttachError> {
        // Tells early that AF_XDP is absent or CAP_NET_RAW.
        drop(sys::open_xsk()?);
        let shared = Shared::new(ifindex).map_err(unsupported)?;
        let (link, mode) = shared.attach(ifindex)?;
        Ok(Self { _link: link, mode, addresses: BTreeSet::new(), shared: Arc::new(shared) })
    }

    /// Returns how the kernel runs the program.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Takes the packets that are sent to these addresses, and lets out the packets that come from them.
    ///
    /// # Errors
    /// `E2BIG` for more than [`MAX_ADDRESSES`]; the errors of `bpf(2)`.
    pub fn set_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
        if addresses.len() > MAX_ADDRESSES {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let gone: Vec<_> = self.addresses.difference(addresses).copied().collect();
        for address in gone {
            self.shared.addresses.remove(&key(address))?;
            self.addresses.remove(&address);
        }
        for address in addresses {
            if !self.addresses.contains(address) {
                self.shared.addresses.update(&key(*address), &[1, 0, 0, 0])?;
                self.addresses.insert(*address);
            }
        }
        Ok(())
    }

    /// Opens the port of a program that holds `slots` (DestQP >> 12) at a pair of veth interfaces, both up,
    /// which nobody else uses.
    ///
    /// # Errors
    /// The errors of `socket(2)`, `setsockopt(2)`, `bind(2)` and `bpf(2)`: `ENOBUFS` at the limit of locked
    /// memory, `EBUSY` if another socket has the far end, or had it some milliseconds ago: the kernel frees
    /// the queue of a closed socket later. `InvalidInput` for a slot above [`MAX_SLOT`].
    pub fn open(&mut self, pair: Pair, slots: &[u16]) -> io::Result<Port> {
        let (socket, memory) = new_socket()?;
        let sockets = Sockets::new(MapKind::XskMap, 1, "fr_sockets")?;
        let far = sys::load_xdp(&filters::far(&sockets)?, "fr_far", true)?;
        // For several buffers, because veth refuses other programs if the near end's MTU exceeds about 3,500.
        // The driver must run it: otherwise veth refuses what other drivers' programs redirect to the pair.
        let link = sys::link_xdp(&far, pair.far, XdpMode::Native)?;
        sys::bind_xsk(&socket, pair.far, 0)?;
        sockets.update(&0u32.to_ne_bytes(), &number(&socket))?;
        rings::provide_frames(&socket)?;
        let shared = Arc::clone(&self.shared);
        // Before anybody has the socket, and before anything can be sent to it.
        rtnetlink::keep_xdp(pair.near, &shared.near)?;
        let place = Place::Pair { pair, _link: link };
        let mut port = Port { socket, memory, place, slots: BTreeSet::new(), shared };
        port.set_slots(slots)?;
        Ok(port)
    }

    /// Opens the direct port of a program that holds `slots`: a socket of the interface's first receive
    /// queue, without a pair. The program can then send any frame by the interface, and writes the hardware
    /// addresses itself. There is one direct port of an interface at a time.
    ///
    /// Packets that arrive on another receive queue reach the kernel's UDP sockets.
    ///
    /// # Errors
    /// As of [`Uplink::open`]. `EBUSY` if another socket has the queue, or had it a moment ago; this does not
    /// wait.
    pub fn open_direct(&mut self, slots: &[u16]) -> io::Result<Port> {
        let (socket, memory) = new_socket()?;
        sys::bind_xsk(&socket, self.shared.ifindex, DIRECT_QUEUE)?;
        rings::provide_frames(&socket)?;
        let shared = Arc::clone(&self.shared);
        let mut port = Port { socket, memory, place: Place::Direct, slots: BTreeSet::new(), shared };
        port.set_slots(slots)?;
        Ok(port)
    }

    /// Returns how many frames of programs were dropped at the near ends since the uplink was attached, by
    /// reason, in the order of [`DropReason::ALL`].
    ///
    /// # Errors
    /// The errors of `bpf(2)`.
    pub fn drops(&self) -> io::Result<[(DropReason, u64); DropReason::ALL.len()]> {
        let mut all = DropReason::ALL.map(|reason| (reason, 0));
        for (reason, count) in &mut all {
            let value = self.shared.drops.get(&u32::from(*reason as u8).to_ne_bytes())?;
            *count = value.map_or(0, u64::from_ne_bytes);
        }
        Ok(all)
    }
}

impl Shared {
    fn new(ifindex: u32) -> io::Result<Self> {
        let addresses = Addresses::new(MapKind::Hash, MAX_ADDRESSES as u32, "fr_addresses")?;
        let direct = Direct::new(MapKind::XskMap, u32::from(MAX_SLOT) + 1, "fr_direct")?;
        let ports = Ports::new(MapKind::DevMap, u32::from(MAX_SLOT) + 1, "fr_ports")?;
        let drops: Drops = Map::new(MapKind::Array, DropReason::ALL.len() as u32, "fr_drops")?;
        let near = filters::near(&addresses, &ports, &drops, ifindex)?;
        Ok(Self {
            // Programs that share a map of interfaces agree on several buffers.
            near: sys::load_xdp(&near, "fr_near", true)?,
            closed: sys::load_xdp(&filters::closed()?, "fr_closed", false)?,
            addresses,
            direct,
            ports,
            drops,
            ifindex,
        })
    }

    /// Attaches the uplink's program: by the driver, or else by the kernel. It is loaded for several buffers,
    /// without which a driver may refuse it at a large MTU.
    fn attach(&self, ifindex: u32) -> Result<(OwnedFd, Mode), AttachError> {
        let program = filters::uplink(&self.addresses, &self.direct, &self.ports)?;
        let loaded = sys::load_xdp(&program, "fr_uplink", true).map_err(unsupported)?;
        match sys::link_xdp(&loaded, ifindex, XdpMode::Native) {
            Ok(link) => Ok((link, Mode::Native)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EEXIST | libc::EPERM)) => {
                Err(e.into())
            }
            Err(_) => Ok((sys::link_xdp(&loaded, ifindex, XdpMode::Generic)?, Mode::Generic)),
        }
    }

    /// Redirects a slot to a port.
    fn assign(&self, slot: u16, place: &Place, socket: &OwnedFd) -> io::Result<()> {
        let key = u32::from(slot).to_ne_bytes();
        match place {
            Place::Pair { pair, .. } => self.ports.update(&key, &pair.near.to_ne_bytes()),
            Place::Direct => self.direct.update(&key, &number(socket)),
        }
    }

    /// Ends the redirection of a slot, unless another port has taken it over.
    fn release(&self, slot: u16, place: &Place) -> io::Result<()> {
        let key = u32::from(slot).to_ne_bytes();
        match place {
            // The kernel tells nobody which socket an entry has, and there is one direct port at a time.
            Place::Direct => self.direct.remove(&key),
            Place::Pair { pair, .. } if self.ports.get(&key)? == Some(pair.near.to_ne_bytes()) => {
                self.ports.remove(&key)
            }
            Place::Pair { .. } => Ok(()),
        }
    }
}

impl Port {
    /// Returns the socket for the program.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the memory for the program.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Returns whether the socket is bound at the interface itself.
    pub fn is_direct(&self) -> bool {
        matches!(self.place, Place::Direct)
    }

    /// The program holds these slots now. A slot that another port at a pair has is taken over. A slot of a
    /// direct port stays there until that port gives it up.
    ///
    /// # Errors
    /// The errors of `bpf(2)`. `InvalidInput` for a slot above [`MAX_SLOT`]; nothing changes then.
    pub fn set_slots(&mut self, slots: &[u16]) -> io::Result<()> {
        if slots.iter().any(|slot| *slot > MAX_SLOT) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slots: BTreeSet<u16> = slots.iter().copied().collect();
        let gone: Vec<_> = self.slots.difference(&slots).copied().collect();
        for slot in gone {
            self.shared.release(slot, &self.place)?;
            self.slots.remove(&slot);
        }
        for slot in slots {
            // Again also what this port had: the kernel forgets a slot when its interface goes, or another
            // port took it.
            self.shared.assign(slot, &self.place, &self.socket)?;
            self.slots.insert(slot);
        }
        Ok(())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Errors mean that the pair is gone, and then the kernel has forgotten its slots.
        for slot in &self.slots {
            let _ = self.shared.release(*slot, &self.place);
        }
        if let Place::Pair { pair, .. } = &self.place {
            let _ = rtnetlink::keep_xdp(pair.near, &self.shared.closed);
        }
    }
}

/// A socket with its rings, and its memory.
fn new_socket() -> io::Result<(OwnedFd, OwnedFd)> {
    let memory = rustix::fs::memfd_create("ferroce-xdp", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, 2 * HALF as u64)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let socket = sys::open_xsk()?;
    sys::set_up_xsk(&socket, &memory, 2 * HALF, CHUNK, FRAMES)?;
    // Otherwise the kernel takes about a quarter of the transmit ring at once. Without the right to do that,
    // it still works.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, 2 * HALF);
    Ok((socket, memory))
}

/// The key of the map of addresses.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn number(socket: &OwnedFd) -> [u8; 4] {
    std::os::fd::AsRawFd::as_raw_fd(socket).to_ne_bytes()
}
