//! The table of ports of the RDMA IP CM service. It opens no socket.
//!
//! The ports of RDMA are not those of the kernel's TCP and UDP: each port space is a table of its own, shared
//! by all programs of the broker. Conflicts are those of sockets: two bindings of a port conflict if some
//! address belongs to both.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ferroce_cm::Bind;
use ferroce_ipc::{CmBind, PORT_BLOCK};
use ferroce_wire::Gid;
use ferroce_wire::cm::PortSpace;

/// A port below this one needs CAP_NET_BIND_SERVICE.
pub const UNPRIVILEGED: u16 = 1024;
/// Blocks of one program, of all port spaces: those that it does not use are in nobody else's way.
const MOST_BLOCKS: usize = 16;

/// Names a binding, for the broker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingId(u64);

/// Why there is no such binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another binding has one of the addresses at that port: EADDRINUSE.
    #[error("port {0} is in use")]
    InUse(u16),
    /// The same, and one of both bindings is for all addresses: EADDRNOTAVAIL (Linux 6.12, `cma_check_port`).
    #[error("port {0} is in use, and one of its bindings is for all addresses")]
    WildcardInUse(u16),
    /// A port below 1024 without the capability: EACCES.
    #[error("port {0} needs CAP_NET_BIND_SERVICE")]
    Access(u16),
    /// No port of the ephemeral range is free: EADDRNOTAVAIL.
    #[error("all ephemeral ports are in use")]
    Exhausted,
    /// There is no such binding.
    #[error("no such binding")]
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    id: BindingId,
    owner: u16,
    covers: Covers,
    reuse_address: bool,
    listening: bool,
}

/// The addresses of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covers {
    One(IpAddr, u32),
    AllV4,
    AllV6,
    All,
}

impl Covers {
    fn of(request: &CmBind) -> Self {
        match request.address {
            IpAddr::V4(v4) if v4.is_unspecified() => Self::AllV4,
            IpAddr::V6(v6) if v6.is_unspecified() => {
                if request.v6_only {
                    Self::AllV6
                } else {
                    Self::All
                }
            }
            // Canonical: mapped addresses become IPv4 ones.
            address => Self::One(Gid::from_ip(address).to_ip(), request.interface),
        }
    }

    /// The error for two bindings of which one is too many.
    fn conflict(self, other: Self, port: u16) -> BindError {
        match (self, other) {
            (Self::One(..), Self::One(..)) => BindError::InUse(port),
            _ => BindError::WildcardInUse(port),
        }
    }

    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::One(a, scope), Self::One(b, other)) => a == b && scope == other,
            (Self::All, _) | (_, Self::All) => true,
            (Self::One(address, _), Self::AllV4) | (Self::AllV4, Self::One(address, _)) => address.is_ipv4(),
            (Self::One(address, _), Self::AllV6) | (Self::AllV6, Self::One(address, _)) => address.is_ipv6(),
            (Self::AllV4, Self::AllV4) | (Self::AllV6, Self::AllV6) => true,
            (Self::AllV4, Self::AllV6) | (Self::AllV6, Self::AllV4) => false,
        }
    }
}

/// All bindings of all programs.
#[derive(Debug)]
pub struct Ports {
    ephemeral: RangeInclusive<u16>,
    bound: BTreeMap<(PortSpace, u16), Vec<Binding>>,
    places: BTreeMap<BindingId, (PortSpace, u16)>,
    /// Programs' blocks, by their first port.
    blocks: BTreeMap<(PortSpace, u16), u16>,
    next: u64,
}

impl Ports {
    /// With nothing bound. `ephemeral` is what port 0 is chosen from: the namespace's `ip_local_port_range`.
    pub fn new(ephemeral: RangeInclusive<u16>) -> Self {
        Self { ephemeral, bound: BTreeMap::new(), places: BTreeMap::new(), blocks: BTreeMap::new(), next: 0 }
    }

    /// Bindings there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing is bound.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.bound.is_empty() && self.blocks.is_empty()
    }

    /// Takes a port; returns the binding and the port. Port 0 stands for any of the ephemeral range;
    /// `entropy` says where the search for a free one begins. `low_ports`: ports below 1024 may be taken
    /// (CAP_NET_BIND_SERVICE).
    ///
    /// # Errors
    ///
    /// [`BindError`], but not `Unknown`.
    pub fn bind(
        &mut self,
        owner: u16,
        request: &CmBind,
        low_ports: bool,
        entropy: u32,
    ) -> Result<(BindingId, u16), BindError> {
        let port = match request.port {
            0 => self.choose(request, entropy).ok_or(BindError::Exhausted)?,
            port if port < UNPRIVILEGED && !low_ports => return Err(BindError::Access(port)),
            port => self.check(owner, request, port).map(|()| port)?,
        };
        let id = BindingId(self.next);
        self.next = self.next.wrapping_add(1);
        let binding = Binding {
            id,
            owner,
            covers: Covers::of(request),
            reuse_address: request.reuse,
            listening: false,
        };
        self.bound.entry((request.space, port)).or_default().push(binding);
        self.places.insert(id, (request.space, port));
        Ok((id, port))
    }

    fn at(&self, space: PortSpace, port: u16) -> &[Binding] {
        self.bound.get(&(space, port)).map_or(&[], Vec::as_slice)
    }

    /// The slot that holds the block of a port. Inside its block a program announces only the ports that
    /// others could collide with.
    fn holder(&self, space: PortSpace, port: u16) -> Option<u16> {
        self.blocks.get(&(space, port - port % PORT_BLOCK)).copied()
    }

    fn check(&self, owner: u16, request: &CmBind, port: u16) -> Result<(), BindError> {
        let covers = Covers::of(request);
        if self.holder(request.space, port).is_some_and(|holder| holder != owner) {
            return Err(covers.conflict(covers, port));
        }
        let mut others = self.at(request.space, port).iter();
        let conflicts =
            |other: &&Binding| other.covers.overlaps(covers) && !(other.reuse_address && request.reuse);
        others.find(conflicts).map_or(Ok(()), |other| Err(covers.conflict(other.covers, port)))
    }

    /// A port that nobody has.
    fn choose(&self, request: &CmBind, entropy: u32) -> Option<u16> {
        let (first, last) = (*self.ephemeral.start(), *self.ephemeral.end());
        let count = u32::from(last.checked_sub(first)?) + 1;
        let mut ports =
            (0..count).map(|k| first + ((entropy % count + k) % count) as u16).filter(|port| *port != 0);
        let held = |port: &u16| self.holder(request.space, *port).is_some();
        let free = |port: &u16| self.at(request.space, *port).is_empty() && !held(port);
        ports.find(free)
    }

    /// Gives a program a block of ephemeral ports; returns its first port. `first` is the one that it has
    /// already, or had at an earlier broker, 0 for any. All blocks together are at most half of the range.
    ///
    /// # Errors
    ///
    /// [`BindError::Exhausted`]; [`BindError::InUse`] for an invalid block, or another program's.
    pub fn take_block(
        &mut self,
        owner: u16,
        space: PortSpace,
        first: u16,
        entropy: u32,
    ) -> Result<u16, BindError> {
        let first = match first {
            0 => self.choose_block(owner, space, entropy).ok_or(BindError::Exhausted)?,
            first => {
                let known = self.holder(space, first);
                let others = self.block(space, first).any(|binding| binding.owner != owner);
                let is_one = first.is_multiple_of(PORT_BLOCK) && first >= UNPRIVILEGED;
                let too_many = known.is_none() && self.blocks_of(owner) >= MOST_BLOCKS;
                if !is_one || known.is_some_and(|holder| holder != owner) || others || too_many {
                    return Err(BindError::InUse(first));
                }
                first
            }
        };
        self.blocks.insert((space, first), owner);
        Ok(first)
    }

    /// Takes a block back; one that is not the owner's stays.
    pub fn return_block(&mut self, owner: u16, space: PortSpace, first: u16) {
        if self.blocks.get(&(space, first)) == Some(&owner) {
            self.blocks.remove(&(space, first));
        }
    }

    /// The bindings in a block.
    fn block(&self, space: PortSpace, first: u16) -> impl Iterator<Item = &Binding> {
        let last = first.saturating_add(PORT_BLOCK - 1);
        self.bound.range((space, first)..=(space, last)).flat_map(|(_, bindings)| bindings)
    }

    /// Blocks of an owner.
    pub fn blocks_of(&self, owner: u16) -> usize {
        self.blocks.values().filter(|holder| **holder == owner).count()
    }

    /// The one of these owners that has a block.
    pub fn block_owner(&self, owners: &[u16]) -> Option<u16> {
        self.blocks.values().copied().find(|holder| owners.contains(holder))
    }

    fn choose_block(&self, owner: u16, space: PortSpace, entropy: u32) -> Option<u16> {
        let size = u32::from(PORT_BLOCK);
        let begin = u32::from((*self.ephemeral.start()).max(UNPRIVILEGED)).div_ceil(size);
        let count = (u32::from(*self.ephemeral.end()) + 1).checked_div(size)?.checked_sub(begin)?;
        let given = self.blocks.keys().filter(|(of, _)| *of == space).count();
        if self.blocks_of(owner) >= MOST_BLOCKS || given >= count as usize / 2 {
            return None;
        }
        let numbers = (0..count).map(|k| ((begin + (entropy % count + k) % count) * size) as u16);
        numbers.into_iter().find(|first| {
            !self.blocks.contains_key(&(space, *first)) && self.block(space, *first).next().is_none()
        })
    }

    /// Begins to listen. Bindings that share a port do not listen together.
    ///
    /// # Errors
    ///
    /// [`BindError::InUse`], [`BindError::WildcardInUse`] and [`BindError::Unknown`].
    pub fn listen(&mut self, id: BindingId) -> Result<(), BindError> {
        let place = *self.places.get(&id).ok_or(BindError::Unknown)?;
        let bindings = self.bound.get_mut(&place).ok_or(BindError::Unknown)?;
        let covers = bindings.iter().find(|binding| binding.id == id).ok_or(BindError::Unknown)?.covers;
        let conflicts = |other: &&Binding| other.id != id && other.listening && other.covers.overlaps(covers);
        if let Some(other) = bindings.iter().find(conflicts) {
            return Err(covers.conflict(other.covers, place.1));
        }
        if let Some(binding) = bindings.iter_mut().find(|binding| binding.id == id) {
            binding.listening = true;
        }
        Ok(())
    }

    /// Gives a port back. Does nothing for a binding that is gone already.
    pub fn release(&mut self, id: BindingId) {
        let Some(place) = self.places.remove(&id) else { return };
        if let Some(bindings) = self.bound.get_mut(&place) {
            bindings.retain(|binding| binding.id != id);
            if bindings.is_empty() {
                self.bound.remove(&place);
            }
        }
    }

    /// A program is gone with all its ports.
    pub fn release_owner(&mut self, owner: u16) {
        self.bound.retain(|_, bindings| {
            for gone in bindings.extract_if(.., |binding| binding.owner == owner) {
                self.places.remove(&gone.id);
            }
            !bindings.is_empty()
        });
        self.blocks.retain(|_, holder| *holder != owner);
    }

    /// Where a binding is, and which destinations its listener takes.
    pub fn get(&self, id: BindingId) -> Option<(PortSpace, u16, Bind)> {
        let (space, port) = *self.places.get(&id)?;
        let binding = self.at(space, port).iter().find(|binding| binding.id == id)?;
        let bind = match binding.covers {
            Covers::One(address, 0) => Bind::Address(address),
            Covers::One(address, scope) => Bind::Scoped(address, scope),
            Covers::AllV4 => Bind::AnyV4,
            Covers::AllV6 => Bind::AnyV6,
            Covers::All => Bind::Any,
        };
        Some((space, port, bind))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TCP: PortSpace = PortSpace::Tcp;

    fn want(address: &str, port: u16) -> CmBind {
        CmBind {
            handle: 0,
            space: TCP,
            address: address.parse().unwrap(),
            interface: 0,
            port,
            v6_only: false,
            reuse: false,
        }
    }

    fn ports() -> Ports {
        Ports::new(40_000..=40_009)
    }

    #[test]
    fn bindings_conflict_if_their_addresses_overlap() {
        let only = |address: &str| CmBind { v6_only: true, ..want(address, 7174) };
        let both = |address: &str| want(address, 7174);
        let scoped = |address: &str, scope| CmBind { interface: scope, ..want(address, 7174) };
        for (a, b, conflict) in [
            (both("192.0.2.1"), both("192.0.2.1"), true),
            (both("192.0.2.1"), both("192.0.2.2"), false),
            (both("192.0.2.1"), both("::ffff:192.0.2.1"), true),
            (both("0.0.0.0"), both("192.0.2.1"), true),
            (both("0.0.0.0"), both("2001:db8::1"), false),
            (both("0.0.0.0"), both("::"), true),
            (both("0.0.0.0"), only("::"), false),
            (both("0.0.0.0"), both("0.0.0.0"), true),
            (both("::"), both("192.0.2.1"), true),
            (only("::"), both("192.0.2.1"), false),
            (only("::"), both("2001:db8::1"), true),
            (only("::"), only("::"), true),
            (only("::"), both("::"), true),
            (both("2001:db8::1"), both("2001:db8::1"), true),
            (scoped("fe80::1", 2), scoped("fe80::1", 3), false),
            (scoped("fe80::1", 2), scoped("fe80::1", 2), true),
            (scoped("fe80::1", 2), both("::"), true),
        ] {
            for (first, second) in [(a, b), (b, a)] {
                let mut ports = ports();
                let (id, port) = ports.bind(1, &first, false, 0).unwrap();
                assert_eq!(port, 7174);
                let got = ports.bind(2, &second, false, 0).map(|(_, port)| port);
                let wildcard = first.address.is_unspecified() || second.address.is_unspecified();
                let expected = match (conflict, wildcard) {
                    (false, _) => Ok(7174),
                    (true, false) => Err(BindError::InUse(7174)),
                    (true, true) => Err(BindError::WildcardInUse(7174)),
                };
                assert_eq!(got, expected, "{first:?} {second:?}");
                // Another space is another table.
                let elsewhere = CmBind { space: PortSpace::Udp, ..second };
                assert!(ports.bind(2, &elsewhere, false, 0).is_ok());
                ports.release(id);
                assert!(!conflict || ports.bind(2, &second, false, 0).is_ok());
            }
        }
    }

    #[test]
    fn low_ports_need_the_capability() {
        let mut ports = ports();
        assert_eq!(ports.bind(1, &want("0.0.0.0", 1023), false, 0), Err(BindError::Access(1023)));
        assert!(ports.bind(1, &want("0.0.0.0", 1024), false, 0).is_ok());
        let low = want("0.0.0.0", 1023);
        assert!(ports.bind(1, &low, true, 0).is_ok());
        assert_eq!(ports.bind(1, &low, true, 0), Err(BindError::WildcardInUse(1023)));
    }

    #[test]
    fn ephemeral_ports_are_of_the_range_and_free() {
        let mut ports = ports();
        ports.bind(1, &want("192.0.2.7", 40_003), false, 0).unwrap();
        let mut seen = BTreeSet::new();
        for entropy in 0..9 {
            // Another program's binding of a different address at the same port stays untouched.
            let (_, port) = ports.bind(2, &want("192.0.2.1", 0), false, entropy * 3).unwrap();
            assert!((40_000..=40_009).contains(&port) && port != 40_003);
            assert!(seen.insert(port));
        }
        assert_eq!(ports.bind(2, &want("192.0.2.1", 0), false, 5), Err(BindError::Exhausted));
        assert!(ports.bind(2, &CmBind { space: PortSpace::Ib, ..want("::", 0) }, false, 5).is_ok());
        assert_eq!(
            Ports::new(RangeInclusive::new(1, 0)).bind(1, &want("::", 0), false, 5),
            Err(BindError::Exhausted)
        );
        let (_, all) = Ports::new(0..=u16::MAX).bind(1, &want("::", 0), false, 0).unwrap();
        assert_eq!(all, 1);
    }

    #[test]
    fn a_port_block_belongs_to_one_program() {
        let mut ports = Ports::new(40_000..=40_999);
        let first = ports.take_block(1, TCP, 0, 77).unwrap();
        assert!(first.is_multiple_of(PORT_BLOCK) && (40_000..40_999 - PORT_BLOCK).contains(&first));
        let inside = want("192.0.2.1", first + 5);
        assert_eq!(ports.bind(2, &inside, false, 0), Err(BindError::InUse(first + 5)));
        // In another space it is free; its holder may say more of a port.
        assert!(ports.bind(2, &CmBind { space: PortSpace::Udp, ..inside }, false, 0).is_ok());
        let (told, _) = ports.bind(1, &inside, false, 0).unwrap();
        assert_eq!(ports.bind(1, &inside, false, 0), Err(BindError::InUse(first + 5)));
        // A program that takes any port gets none of this block.
        for entropy in 0..900 {
            let (_, port) = ports.bind(2, &want("192.0.2.2", 0), false, entropy).unwrap();
            assert!(!(first..first + PORT_BLOCK).contains(&port));
        }
        assert_eq!(ports.take_block(2, TCP, first, 0), Err(BindError::InUse(first)));
        assert_eq!(ports.take_block(1, TCP, first, 0), Ok(first), "it has it already");
        ports.return_block(2, TCP, first);
        assert_eq!(ports.take_block(2, TCP, first, 0), Err(BindError::InUse(first)), "another's");
        ports.return_block(1, TCP, first);
        assert_eq!(ports.take_block(2, TCP, first, 0), Err(BindError::InUse(first)), "still bound");
        ports.release(told);
        assert_eq!(ports.take_block(2, TCP, first, 0), Ok(first));
        ports.release_owner(2);
        assert!(ports.is_empty());
    }

    #[test]
    fn port_blocks_leave_half_of_the_range() {
        // 15 whole blocks.
        let mut ports = Ports::new(40_000..=40_999);
        let mut given = BTreeSet::new();
        for entropy in 0..7 {
            assert!(given.insert(ports.take_block(1, TCP, 0, entropy * 5).unwrap()));
        }
        assert_eq!(ports.take_block(2, TCP, 0, 0), Err(BindError::Exhausted));
        assert!(ports.take_block(2, PortSpace::Udp, 0, 0).is_ok());
        // One program has not too many; nor are there any where there is no room for two.
        let mut ports = Ports::new(32_768..=60_999);
        for entropy in 0..MOST_BLOCKS as u32 {
            ports.take_block(1, TCP, 0, entropy).unwrap();
        }
        assert_eq!(ports.take_block(1, TCP, 0, 0), Err(BindError::Exhausted));
        assert!(ports.take_block(2, TCP, 0, 0).is_ok());
        for range in [40_000..=40_064, RangeInclusive::new(1, 0), 0..=0] {
            assert_eq!(Ports::new(range).take_block(1, TCP, 0, 3), Err(BindError::Exhausted));
        }
        let mut ports = Ports::new(0..=u16::MAX);
        assert_eq!(ports.take_block(1, TCP, 0, 0), Ok(1024));
        assert_eq!(ports.take_block(1, TCP, 0, 1007), Ok(65_472));
        for wrong in [64, 1025, 65_535] {
            assert_eq!(ports.take_block(1, TCP, wrong, 0), Err(BindError::InUse(wrong)));
        }
    }

    #[test]
    fn shared_ports_have_one_listener() {
        let mut ports = ports();
        let shared = CmBind { reuse: true, ..want("0.0.0.0", 7174) };
        let (a, _) = ports.bind(1, &shared, false, 0).unwrap();
        let (b, _) = ports.bind(2, &shared, false, 0).unwrap();
        assert_eq!(ports.bind(3, &want("0.0.0.0", 7174), false, 0), Err(BindError::WildcardInUse(7174)));
        ports.listen(a).unwrap();
        ports.listen(a).unwrap();
        assert_eq!(ports.listen(b), Err(BindError::WildcardInUse(7174)));
        ports.release(a);
        ports.listen(b).unwrap();
        assert_eq!(ports.listen(a), Err(BindError::Unknown));
        assert_eq!(ports.get(b), Some((TCP, 7174, Bind::AnyV4)));
        assert_eq!(ports.get(a), None);
    }

    #[test]
    fn a_dead_program_holds_no_ports() {
        let mut ports = ports();
        for (owner, port) in [(1, 5000), (1, 5001), (2, 5002)] {
            ports.bind(owner, &want("::", port), false, 0).unwrap();
        }
        ports.release_owner(1);
        assert_eq!(ports.len(), 1);
        assert!(ports.bind(3, &want("::", 5000), false, 0).is_ok());
        assert_eq!(ports.bind(3, &want("::", 5002), false, 0), Err(BindError::WildcardInUse(5002)));
        ports.release_owner(2);
        ports.release_owner(3);
        assert!(ports.is_empty());
    }
}
