//! The system as the broker's logic sees it: traits, so that tests and the fuzzer can replace it.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferroce_datapath::udp::{Group as UdpGroup, OpenError, RECEIVE_BUFFER};
use ferroce_datapath::xdp::Uplink;

use super::dpdk::Ports;
use super::holder;
use super::link_file::{ConfiguredLink, LinkFile};
use super::owner_file::OwnerFile;
use super::record_key::RecordKey;
use super::xdp::{AttachError, Pair, Pairs, Place, XdpUplink};
use ferroce_host::netdev::{Address, Netdev};
use ferroce_host::rtnetlink;
use ferroce_host::{ethtool, fork};

/// Sockets, processes and interfaces of the host.
pub trait System {
    /// The sockets of one local address.
    type Group: Sockets;
    /// The XDP program of one interface.
    type Uplink: XdpUplink;

    /// Opens the group of an address, with the broker's own member.
    fn open(&mut self, address: Address) -> Result<Self::Group, OpenError>;
    /// Takes back the members of a group, which are in the order of their slots.
    fn adopt(&mut self, address: Address, members: Vec<OwnedFd>) -> Result<Self::Group, OpenError>;
    /// How many sockets the kernel has on an address's port 4791; `None` if it cannot be known.
    fn members_in_kernel(&self, address: Address) -> Option<usize>;
    /// How many sockets the kernel has on port 4791 of one address, the most of all addresses but those that
    /// `known` names; 0 if it cannot be known. Sockets of the wildcard address do not count.
    fn most_members_but(&self, known: &dyn Fn(IpAddr) -> bool) -> usize;
    /// The holder of port 4791 on an address, for a message: `process 17 (nc, uid 0)`.
    fn port_holder(&self, address: Address) -> String;
    /// Whether any process but ours has this socket open.
    fn is_open_elsewhere(&self, socket: BorrowedFd<'_>) -> bool;
    /// A process's name, empty if unknown.
    fn command(&self, pid: u32) -> String;
    /// Random numbers that nobody else knows, others each time.
    fn secret(&mut self) -> [u64; 2];
    /// First and last of the ports to choose from for whom any will do.
    fn free_ports(&self) -> (u16, u16);
    /// Whether this process may send Ethernet frames in this network namespace.
    fn may_send_frames(&self) -> bool;
    /// Makes the frames of a VLAN have the priorities of their sockets.
    fn map_priorities(&mut self, netdev: &Netdev) -> io::Result<()>;
    /// Keeps the user of a slot that is leased without sockets, or that it has none, for the next broker.
    fn keep_owner(&mut self, slot: u16, uid: Option<u32>);
    /// The users that an earlier broker kept.
    fn owners(&self) -> BTreeMap<u16, u32>;
    /// The key of the records of connections that programs of other users keep.
    fn record_key(&self) -> RecordKey;
    /// Attaches an XDP program to an interface.
    fn attach_xdp(&mut self, netdev: &Netdev) -> Result<Self::Uplink, AttachError>;
    /// Makes a pair of veth interfaces for a program, both up, whose packets are up to `mtu` octets long.
    fn make_pair(&mut self, mtu: u32) -> io::Result<Pair>;
    /// Closes a port if there is one, and removes its pair; both may happen later.
    fn remove_port(&mut self, port: Option<PortOf<Self>>, place: Place);
    /// The receive queues that an interface uses.
    fn receive_queues(&self, netdev: &Netdev) -> u32;
    /// Removes the pairs that an earlier broker left. This is the only broker of the network namespace.
    fn remove_left_pairs(&mut self);
    /// Waits until all pairs that were to be removed are gone.
    fn finish_removals(&mut self);
    /// The links that outlived an earlier broker.
    fn configured_links(&self) -> Vec<ConfiguredLink>;
    /// Makes these links outlive this one: all, or as it was before.
    fn configure_links(&mut self, links: &[ConfiguredLink]) -> io::Result<()>;
    /// Opens the port of a device of DPDK with the tap `tap`; with `keep` the tap outlives this process.
    /// Returns the interfaces that there are then. The error is a sentence.
    fn open_dpdk(&mut self, devargs: &str, tap: &str, keep: bool) -> Result<Vec<Netdev>, String>;
    /// Closes the port with this tap; without `keep` the tap is removed.
    fn close_dpdk(&mut self, tap: &str, keep: bool);
}

/// A program's access to an interface, by the XDP program of a system.
pub type PortOf<S> = <<S as System>::Uplink as XdpUplink>::Port;

/// The sockets of one local address, a member a slot. Dropping it is for the broker's end.
pub trait Sockets {
    /// Number of members, the broker's own included.
    fn len(&self) -> usize;
    /// The member of a slot.
    fn member(&self, slot: u8) -> Option<BorrowedFd<'_>>;
    /// Opens the next slot.
    fn add_member(&mut self) -> Result<(), OpenError>;
    /// Empties a slot and gives it a buffer, for its next holder.
    fn lease(&self, slot: u8) -> io::Result<()>;
    /// Empties a slot and takes its buffer.
    fn release(&self, slot: u8) -> io::Result<()>;
}

/// The kernel: UDP sockets of this network namespace.
#[derive(Debug)]
pub struct Kernel {
    links: LinkFile,
    owners: OwnerFile,
    pairs: Pairs,
    dpdk: Arc<Ports>,
}

impl Kernel {
    /// `embedded`: for a broker in a thread of a program.
    pub fn new(embedded: bool) -> Self {
        Self {
            links: LinkFile::default(),
            owners: OwnerFile::default(),
            pairs: Pairs::default(),
            dpdk: Arc::new(Ports::new(embedded)),
        }
    }

    /// The ports of DPDK, for the switch.
    pub fn ports(&self) -> Arc<Ports> {
        Arc::clone(&self.dpdk)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.dpdk.close_all();
    }
}

/// A group whose descriptors are not left to forked children, where the broker runs within a program.
#[derive(Debug)]
pub struct KernelGroup(UdpGroup);

impl KernelGroup {
    fn new(group: UdpGroup) -> Self {
        group.members().for_each(|member| fork::record(member.as_raw_fd()));
        Self(group)
    }
}

impl Drop for KernelGroup {
    fn drop(&mut self) {
        self.0.members().for_each(|member| fork::forget(member.as_raw_fd()));
    }
}

impl System for Kernel {
    type Group = KernelGroup;
    type Uplink = Uplink;

    fn open(&mut self, address: Address) -> Result<KernelGroup, OpenError> {
        UdpGroup::open(address.ip, address.scope_id).map(KernelGroup::new)
    }

    fn adopt(&mut self, address: Address, members: Vec<OwnedFd>) -> Result<KernelGroup, OpenError> {
        let group = UdpGroup::adopt(members)?;
        if group.local_addr().ip() != address.ip || group.local_addr().port() != ferroce_wire::ROCE_UDP_PORT {
            return Err(OpenError::NotAMember { slot: 0, reason: "bound to another address" });
        }
        Ok(KernelGroup::new(group))
    }

    fn members_in_kernel(&self, address: Address) -> Option<usize> {
        holder::sockets_on_port(address).map(|found| found.iter().filter(|socket| !socket.wildcard).count())
    }

    fn most_members_but(&self, known: &dyn Fn(IpAddr) -> bool) -> usize {
        holder::most_sockets_but(known)
    }

    fn port_holder(&self, address: Address) -> String {
        holder::of_port(address)
    }

    fn is_open_elsewhere(&self, socket: BorrowedFd<'_>) -> bool {
        holder::is_open_elsewhere(socket)
    }

    fn command(&self, pid: u32) -> String {
        holder::command(pid)
    }

    fn secret(&mut self) -> [u64; 2] {
        [secret(), secret()]
    }

    fn free_ports(&self) -> (u16, u16) {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let mut numbers = range.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(low)), Some(Ok(high))) if low <= high => (low, high),
            _ => (32_768, 60_999),
        }
    }

    fn may_send_frames(&self) -> bool {
        // Without a protocol the socket receives nothing.
        let (family, kind) = (rustix::net::AddressFamily::PACKET, rustix::net::SocketType::RAW);
        rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).is_ok()
    }

    fn map_priorities(&mut self, netdev: &Netdev) -> io::Result<()> {
        rtnetlink::map_priorities(netdev.ifindex)
    }

    fn keep_owner(&mut self, slot: u16, uid: Option<u32>) {
        self.owners.keep(slot, uid);
    }

    fn owners(&self) -> BTreeMap<u16, u32> {
        self.owners.read()
    }

    fn record_key(&self) -> RecordKey {
        RecordKey::of_namespace(std::array::from_fn(|_| secret()))
    }

    fn attach_xdp(&mut self, netdev: &Netdev) -> Result<Uplink, AttachError> {
        Uplink::attach(netdev.ifindex)
    }

    fn make_pair(&mut self, mtu: u32) -> io::Result<Pair> {
        self.pairs.make(mtu)
    }

    fn remove_port(&mut self, port: Option<PortOf<Self>>, place: Place) {
        self.pairs.remove(port, place);
    }

    fn receive_queues(&self, netdev: &Netdev) -> u32 {
        ethtool::receive_queues(&netdev.name)
    }

    fn remove_left_pairs(&mut self) {
        self.pairs.remove_left();
    }

    fn finish_removals(&mut self) {
        self.pairs.finish();
    }

    fn configured_links(&self) -> Vec<ConfiguredLink> {
        self.links.read()
    }

    fn configure_links(&mut self, links: &[ConfiguredLink]) -> io::Result<()> {
        self.links.write(links)
    }

    fn open_dpdk(&mut self, devargs: &str, tap: &str, keep: bool) -> Result<Vec<Netdev>, String> {
        self.dpdk.open(devargs, tap, keep)?;
        rtnetlink::netdevs().map_err(|e| format!("interfaces cannot be listed: {e}"))
    }

    fn close_dpdk(&mut self, tap: &str, keep: bool) {
        self.dpdk.close(tap, keep);
    }
}

/// A random number from the kernel's generator; without that, from what the standard library has instead.
pub fn secret() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => RandomState::new().hash_one(std::process::id()),
    }
}

impl Sockets for KernelGroup {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn member(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        self.0.member(slot)
    }

    fn add_member(&mut self) -> Result<(), OpenError> {
        self.0.add_member()?;
        if let Some(member) = self.0.members().last() {
            fork::record(member.as_raw_fd());
        }
        Ok(())
    }

    fn lease(&self, slot: u8) -> io::Result<()> {
        self.0.lease(slot, RECEIVE_BUFFER).map(drop)
    }

    fn release(&self, slot: u8) -> io::Result<()> {
        self.0.release(slot)
    }
}
