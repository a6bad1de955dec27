//! A system for the broker's logic that is none: sockets are `/dev/null`, the port's sockets are counted.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use ferroce_datapath::udp::OpenError;

use super::link_file::ConfiguredLink;
use super::system::{Hardware, Sockets, System};
use ferroce_host::netdev::{Address, Netdev};

/// State that outlives a broker: the sockets on the port, and its holder.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// Sockets of each address.
    pub(crate) members: BTreeMap<Address, usize>,
    /// Addresses whose port is somebody else's.
    pub(crate) taken: BTreeSet<Address>,
    /// Addresses that are listed and do not work.
    pub(crate) absent: BTreeSet<Address>,
    /// Whether some process has the sockets of slots open that nobody reported.
    pub(crate) open_elsewhere: bool,
    /// No socket can be opened any more.
    pub(crate) out_of_files: bool,
    /// Addresses that this host does not have any more.
    pub(crate) gone: BTreeSet<Address>,
    /// How often slots were emptied for a new holder.
    pub(crate) emptied: Vec<(Address, u8)>,
    /// The users of slots that are leased without sockets.
    pub(crate) owners: BTreeMap<u16, u32>,
    /// The links in the file.
    pub(crate) configured: Vec<ConfiguredLink>,
    /// Frames may not be sent.
    pub(crate) no_frames: bool,
    /// VLANs whose frames have their sockets' priorities.
    pub(crate) mapped: Vec<String>,
    /// That file cannot be written.
    pub(crate) disk_full: bool,
}

/// The system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake {
    pub(crate) port: Rc<RefCell<Port>>,
}

#[derive(Debug)]
pub(crate) struct FakeGroup {
    address: Address,
    members: Vec<OwnedFd>,
    port: Rc<RefCell<Port>>,
}

impl System for Fake {
    type Group = FakeGroup;

    fn open(&mut self, address: Address) -> Result<FakeGroup, OpenError> {
        let socket_address = SocketAddr::new(address.ip, 4791);
        let held = {
            let port = self.port.borrow();
            port.taken.contains(&address) || port.members.get(&address).is_some_and(|members| *members > 0)
        };
        if self.port.borrow().absent.contains(&address) {
            return Err(OpenError::NoAddress(socket_address));
        }
        if held {
            return Err(OpenError::InUse(socket_address));
        }
        let mut group = FakeGroup { address, members: Vec::new(), port: Rc::clone(&self.port) };
        group.add_member()?;
        Ok(group)
    }

    fn adopt(&mut self, address: Address, members: Vec<OwnedFd>) -> Result<FakeGroup, OpenError> {
        match members.len() {
            0 => Err(OpenError::Count(0)),
            _ => Ok(FakeGroup { address, members, port: Rc::clone(&self.port) }),
        }
    }

    fn members_in_kernel(&self, address: Address) -> Option<usize> {
        Some(self.port.borrow().members.get(&address).copied().unwrap_or(0))
    }

    fn port_holder(&self, _address: Address) -> String {
        "process 99 (nc, uid 0)".to_owned()
    }

    fn is_open_elsewhere(&self, _socket: BorrowedFd<'_>) -> bool {
        self.port.borrow().open_elsewhere
    }

    fn may_bind_low(&self, _pid: u32, uid: u32) -> bool {
        uid == 0
    }

    fn command(&self, pid: u32) -> String {
        format!("program{pid}")
    }

    fn secret(&mut self) -> [u64; 2] {
        [1, 2]
    }

    fn free_ports(&self) -> (u16, u16) {
        (40_000, 40_099)
    }

    fn may_send_frames(&self) -> bool {
        !self.port.borrow().no_frames
    }

    fn hardware(&self, netdev: &Netdev) -> Hardware {
        Hardware { driver: netdev.kind.clone(), ..Hardware::default() }
    }

    fn map_priorities(&mut self, netdev: &Netdev) -> io::Result<()> {
        self.port.borrow_mut().mapped.push(netdev.name.clone());
        Ok(())
    }

    fn keep_owner(&mut self, slot: u16, uid: Option<u32>) {
        let mut port = self.port.borrow_mut();
        match uid {
            Some(uid) => drop(port.owners.insert(slot, uid)),
            None => drop(port.owners.remove(&slot)),
        }
    }

    fn owners(&self) -> BTreeMap<u16, u32> {
        self.port.borrow().owners.clone()
    }

    fn configured_links(&self) -> Vec<ConfiguredLink> {
        self.port.borrow().configured.clone()
    }

    fn configure_links(&mut self, links: &[ConfiguredLink]) -> io::Result<()> {
        let mut port = self.port.borrow_mut();
        if port.disk_full {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        port.configured = links.to_vec();
        Ok(())
    }
}

impl Sockets for FakeGroup {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn member(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        self.members.get(usize::from(slot)).map(AsFd::as_fd)
    }

    fn add_member(&mut self) -> Result<(), OpenError> {
        let address = SocketAddr::new(self.address.ip, 4791);
        let failed = |source| OpenError::Io { address, action: "open a socket", source };
        if self.port.borrow().out_of_files {
            return Err(failed(io::Error::from_raw_os_error(libc::EMFILE)));
        }
        if self.port.borrow().gone.contains(&self.address) {
            return Err(OpenError::NoAddress(address));
        }
        self.members.push(File::open("/dev/null").map_err(failed)?.into());
        *self.port.borrow_mut().members.entry(self.address).or_default() += 1;
        Ok(())
    }

    fn lease(&self, slot: u8) -> io::Result<()> {
        self.member(slot).ok_or(io::ErrorKind::NotFound)?;
        self.port.borrow_mut().emptied.push((self.address, slot));
        Ok(())
    }

    fn release(&self, slot: u8) -> io::Result<()> {
        self.member(slot).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// An interface with addresses; index 1 is `lo`.
pub(crate) fn netdev(ifindex: u32, addresses: &[&str]) -> Netdev {
    let addresses: Vec<IpAddr> = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
    match ifindex {
        1 => Netdev { addresses, ..Netdev::assumed_loopback() },
        _ => Netdev {
            ifindex,
            name: format!("eth{}", ifindex - 2),
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
            up: true,
            running: true,
            addresses,
            ..Netdev::default()
        },
    }
}
