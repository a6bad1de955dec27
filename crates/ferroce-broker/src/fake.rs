//! A fake system for the broker's logic: sockets are `/dev/null`, the port's sockets are counted.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use ferroce_datapath::udp::OpenError;

use super::link_file::ConfiguredLink;
use super::record_key::RecordKey;
use super::system::{PortOf, Sockets, System};
use super::xdp::{AttachError, Mode, Pair, Place, XdpPort, XdpUplink};
use ferroce_host::netdev::{Address, Netdev};

/// State that outlives a broker: the sockets on the port, and its holder.
#[derive(Debug, Default)]
pub(crate) struct FakePort {
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
    /// How often the name of a process was read.
    pub(crate) commands: Cell<usize>,
    /// A broker made the key of records.
    pub(crate) has_record_key: Cell<bool>,
    /// The links in the file.
    pub(crate) configured: Vec<ConfiguredLink>,
    /// Frames may not be sent.
    pub(crate) no_frames: bool,
    /// VLANs whose frames have their sockets' priorities.
    pub(crate) mapped: Vec<String>,
    /// That file cannot be written.
    pub(crate) disk_full: bool,
    /// Interfaces beside the taps.
    pub(crate) host: Vec<Netdev>,
    /// The ports of DPDK that are open: device arguments and `keep` by tap.
    pub(crate) dpdk: BTreeMap<String, (String, bool)>,
    /// DPDK has none of its devices any more.
    pub(crate) no_dpdk: bool,
    /// AF_XDP.
    pub(crate) xdp: FakeXdp,
}

/// XDP programs and pairs of interfaces.
#[derive(Debug, Default)]
pub(crate) struct FakeXdp {
    /// Why no program can be attached.
    pub(crate) refusal: Option<fn() -> AttachError>,
    /// How often that was tried, by interface.
    pub(crate) attempts: BTreeMap<u32, u32>,
    /// Interfaces with a program, and their addresses.
    pub(crate) attached: BTreeMap<u32, BTreeSet<IpAddr>>,
    /// More addresses than this are refused.
    pub(crate) most_addresses: Option<usize>,
    /// The errors of the next attempts to open a port.
    pub(crate) open_errors: Vec<i32>,
    /// Interfaces with a direct port.
    pub(crate) direct: BTreeSet<u32>,
    /// The receive queues of all interfaces, if not one.
    pub(crate) queues: Option<u32>,
    /// The near end that receives the packets of a slot, by interface and slot; 0 for a direct port.
    pub(crate) slots: BTreeMap<(u32, u16), u32>,
    /// Why no pair can be made.
    pub(crate) no_pair: Option<i32>,
    /// Pairs by near end, with their MTU.
    pub(crate) pairs: BTreeMap<u32, u32>,
    /// The system removed what it was to remove.
    pub(crate) finished: bool,
    /// Packets that were dropped at each interface.
    pub(crate) drops: BTreeMap<&'static str, u64>,
    next_pair: u32,
}

/// The system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake {
    pub(crate) port: Rc<RefCell<FakePort>>,
}

#[derive(Debug)]
pub(crate) struct FakeGroup {
    address: Address,
    members: Vec<OwnedFd>,
    port: Rc<RefCell<FakePort>>,
}

#[derive(Debug)]
pub(crate) struct FakeUplink {
    ifindex: u32,
    port: Rc<RefCell<FakePort>>,
}

impl Drop for FakeUplink {
    fn drop(&mut self) {
        let xdp = &mut self.port.borrow_mut().xdp;
        xdp.attached.remove(&self.ifindex);
        xdp.direct.remove(&self.ifindex);
        xdp.slots.retain(|(ifindex, _), _| *ifindex != self.ifindex);
    }
}

#[derive(Debug)]
pub(crate) struct FakeXdpPort {
    ifindex: u32,
    near: u32,
    port: Rc<RefCell<FakePort>>,
}

impl XdpUplink for FakeUplink {
    type Port = FakeXdpPort;

    fn mode(&self) -> Mode {
        if self.ifindex.is_multiple_of(2) { Mode::Native } else { Mode::Generic }
    }

    fn set_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
        let xdp = &mut self.port.borrow_mut().xdp;
        if xdp.most_addresses.is_some_and(|most| addresses.len() > most) {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        xdp.attached.insert(self.ifindex, addresses.clone());
        Ok(())
    }

    fn open(&mut self, place: Place, slots: &[u16]) -> io::Result<FakeXdpPort> {
        if let Some(error) = self.port.borrow_mut().xdp.open_errors.pop() {
            return Err(io::Error::from_raw_os_error(error));
        }
        let near = place.pair().map_or(0, |pair| pair.near);
        let held = place == Place::Direct && !self.port.borrow_mut().xdp.direct.insert(self.ifindex);
        assert!(!held, "two sockets of one queue");
        let mut port = FakeXdpPort { ifindex: self.ifindex, near, port: Rc::clone(&self.port) };
        port.set_slots(slots)?;
        Ok(port)
    }

    fn drops(&self) -> BTreeMap<&'static str, u64> {
        self.port.borrow().xdp.drops.clone()
    }
}

impl XdpPort for FakeXdpPort {
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![File::open("/dev/null")?.into(), File::open("/dev/null")?.into()])
    }

    fn set_slots(&mut self, slots: &[u16]) -> io::Result<()> {
        let own = &mut self.port.borrow_mut().xdp.slots;
        own.retain(|(ifindex, _), near| (*ifindex, *near) != (self.ifindex, self.near));
        own.extend(slots.iter().map(|slot| ((self.ifindex, *slot), self.near)));
        Ok(())
    }
}

impl System for Fake {
    type Group = FakeGroup;
    type Uplink = FakeUplink;

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

    fn most_members_but(&self, known: &dyn Fn(IpAddr) -> bool) -> usize {
        let port = self.port.borrow();
        let others = port.members.iter().filter(|(address, _)| !known(address.ip));
        others.map(|(_, members)| *members).max().unwrap_or(0)
    }

    fn port_holder(&self, _address: Address) -> String {
        "process 99 (nc, uid 0)".to_owned()
    }

    fn is_open_elsewhere(&self, _socket: BorrowedFd<'_>) -> bool {
        self.port.borrow().open_elsewhere
    }

    fn command(&self, pid: u32) -> String {
        let port = self.port.borrow();
        port.commands.set(port.commands.get() + 1);
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

    fn record_key(&self) -> RecordKey {
        RecordKey::fake(!self.port.borrow_mut().has_record_key.replace(true))
    }

    fn attach_xdp(&mut self, netdev: &Netdev) -> Result<FakeUplink, AttachError> {
        let xdp = &mut self.port.borrow_mut().xdp;
        *xdp.attempts.entry(netdev.ifindex).or_default() += 1;
        if let Some(refusal) = xdp.refusal {
            return Err(refusal());
        }
        if xdp.attached.insert(netdev.ifindex, BTreeSet::new()).is_some() {
            return Err(AttachError::Busy);
        }
        Ok(FakeUplink { ifindex: netdev.ifindex, port: Rc::clone(&self.port) })
    }

    fn make_pair(&mut self, mtu: u32) -> io::Result<Pair> {
        let xdp = &mut self.port.borrow_mut().xdp;
        if let Some(error) = xdp.no_pair {
            return Err(io::Error::from_raw_os_error(error));
        }
        assert!(!xdp.finished, "a pair that nobody removes");
        xdp.next_pair += 2;
        let near = 1000 + xdp.next_pair;
        xdp.pairs.insert(near, mtu);
        Ok(Pair { near, far: near + 1 })
    }

    fn remove_port(&mut self, port: Option<PortOf<Self>>, place: Place) {
        let near = place.pair().map_or(0, |pair| pair.near);
        let direct = port.as_ref().filter(|_| near == 0).map(|port| port.ifindex);
        if let Some(port) = port {
            assert_eq!(port.near, near);
            let slots = &self.port.borrow().xdp.slots;
            let receives = slots.iter().any(|((ifindex, _), end)| (*ifindex, *end) == (port.ifindex, near));
            assert!(!receives, "a port must have no slots when the system closes it some time");
        }
        let xdp = &mut self.port.borrow_mut().xdp;
        let removed = match direct {
            Some(ifindex) => xdp.direct.remove(&ifindex),
            None => xdp.pairs.remove(&near).is_some(),
        };
        assert!(removed, "removed twice");
    }

    fn receive_queues(&self, _netdev: &Netdev) -> u32 {
        self.port.borrow().xdp.queues.unwrap_or(1)
    }

    fn remove_left_pairs(&mut self) {
        self.port.borrow_mut().xdp.pairs.clear();
    }

    fn finish_removals(&mut self) {
        self.port.borrow_mut().xdp.finished = true;
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

    fn open_dpdk(&mut self, devargs: &str, tap: &str, keep: bool) -> Result<Vec<Netdev>, String> {
        let mut port = self.port.borrow_mut();
        if port.no_dpdk {
            return Err("no such device".to_owned());
        }
        port.dpdk.insert(tap.to_owned(), (devargs.to_owned(), keep));
        let taps = port.dpdk.keys().zip(100..).map(|(tap, ifindex)| Netdev {
            ifindex,
            name: tap.clone(),
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
            up: true,
            running: true,
            addresses: vec![std::net::Ipv4Addr::new(10, 0, 0, ifindex as u8).into()],
            ..Netdev::default()
        });
        Ok(port.host.iter().cloned().chain(taps).collect())
    }

    fn close_dpdk(&mut self, tap: &str, _keep: bool) {
        self.port.borrow_mut().dpdk.remove(tap);
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
