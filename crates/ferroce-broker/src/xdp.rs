//! AF_XDP as the broker's logic sees it: traits, and the kernel's implementation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use ferroce_datapath::xdp::{Port, Uplink};
use ferroce_host::rtnetlink;
use tracing::{debug, warn};

pub use ferroce_datapath::xdp::{AttachError, MAX_PACKET, Mode, Pair};

/// The place where the socket of a port is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the far end of a pair, behind the check of its near end.
    Pair(Pair),
    /// At the interface itself.
    Direct,
}

impl Place {
    /// Returns the pair, if there is one.
    pub fn pair(self) -> Option<Pair> {
        match self {
            Self::Pair(pair) => Some(pair),
            Self::Direct => None,
        }
    }
}

/// The XDP program of an interface. It leaves the interface when this is dropped.
pub trait XdpUplink: Debug {
    /// The access of a program.
    type Port: XdpPort;

    /// Returns how the kernel runs the program.
    fn mode(&self) -> Mode;
    /// Takes the packets that are sent to these addresses, and lets out the packets that come from them.
    fn set_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<()>;
    /// Opens the port of a program that holds `slots`.
    fn open(&mut self, place: Place, slots: &[u16]) -> io::Result<Self::Port>;
    /// Returns the numbers of dropped packets by reason since the program was attached.
    fn drops(&self) -> BTreeMap<&'static str, u64>;
}

/// A program's access to an interface. After [`XdpPort::set_slots`] with no slot, no packet arrives there,
/// and dropping it has no effect on the slots of other ports.
pub trait XdpPort: Debug {
    /// Returns the socket and the memory, for the program.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>>;
    /// The program holds these slots now.
    fn set_slots(&mut self, slots: &[u16]) -> io::Result<()>;
}

impl XdpUplink for Uplink {
    type Port = Port;

    fn mode(&self) -> Mode {
        Self::mode(self)
    }

    fn set_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
        Self::set_addresses(self, addresses)
    }

    fn open(&mut self, place: Place, slots: &[u16]) -> io::Result<Port> {
        match place {
            Place::Pair(pair) => Self::open(self, pair, slots),
            Place::Direct => self.open_direct(slots),
        }
    }

    fn drops(&self) -> BTreeMap<&'static str, u64> {
        match Self::drops(self) {
            Ok(drops) => drops.into_iter().map(|(reason, count)| (reason.name(), count)).collect(),
            Err(error) => {
                debug!("the counts of an XDP program cannot be read: {error}");
                BTreeMap::new()
            }
        }
    }
}

impl XdpPort for Port {
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.socket().try_clone_to_owned()?, self.memory().try_clone_to_owned()?])
    }

    fn set_slots(&mut self, slots: &[u16]) -> io::Result<()> {
        Self::set_slots(self, slots)
    }
}

/// Pair numbers are tried from 0 on; this many may be in use by a pair that is about to be removed, or by
/// other interfaces.
const MOST_TRIES: u32 = 4096;

/// Makes pairs of veth interfaces, and removes them on a thread of its own: the kernel takes tens of
/// milliseconds to remove one.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Number at which the next search for a free number begins.
    next: u32,
    remover: Option<(Sender<Removal>, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Removal {
    /// Closed first.
    port: Option<Port>,
    /// Either end of its pair.
    ifindex: Option<u32>,
}

impl Removal {
    fn execute(self) {
        drop(self.port);
        let Some(ifindex) = self.ifindex else { return };
        match rtnetlink::delete_link(ifindex) {
            Ok(()) => {}
            // The interface went with its other end.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
            Err(e) => warn!(ifindex, "a veth interface cannot be removed: {e}"),
        }
    }
}

impl Pairs {
    /// Makes a pair whose packets are up to `mtu` octets long.
    pub fn make(&mut self, mtu: u32) -> io::Result<Pair> {
        for _ in 0..MOST_TRIES {
            let number = self.next;
            self.next = (self.next + 1) % MOST_TRIES;
            match rtnetlink::create_pair(number, mtu) {
                Ok(rtnetlink::VethPair { near, far }) => return Ok(Pair { near, far }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Closes the port and removes its pair soon.
    pub fn remove(&mut self, port: Option<Port>, place: Place) {
        self.queue(Removal { port, ifindex: place.pair().map(|pair| pair.near) });
    }

    /// Removes the pairs that an earlier broker left. The caller is the only broker of this network
    /// namespace.
    pub fn remove_left(&mut self) {
        match rtnetlink::own_ends() {
            Ok(ends) => ends
                .into_iter()
                .for_each(|ifindex| self.queue(Removal { port: None, ifindex: Some(ifindex) })),
            Err(e) => debug!("no search for veth interfaces of an earlier ferroced: {e}"),
        }
    }

    /// Waits until all removals are done.
    pub fn finish(&mut self) {
        if let Some((removals, thread)) = self.remover.take() {
            drop(removals);
            if thread.join().is_err() {
                warn!("the thread that removes veth interfaces panicked");
            }
        }
    }

    fn queue(&mut self, removal: Removal) {
        if self.remover.is_none() {
            let (removals, received) = channel::<Removal>();
            let thread = std::thread::Builder::new().name("ferroce-veth".to_owned());
            match thread.spawn(move || received.into_iter().for_each(Removal::execute)) {
                Ok(thread) => self.remover = Some((removals, thread)),
                Err(e) => warn!("no thread to remove veth interfaces: {e}"),
            }
        }
        match &self.remover {
            Some((removals, _)) => {
                if let Err(unsent) = removals.send(removal) {
                    unsent.0.execute();
                }
            }
            None => removal.execute(),
        }
    }
}
