//! The GID table of one port: addresses come and go, an index means one address while it is there.

use std::net::IpAddr;

use ferroce_ipc::{GidEntry, GidType};
use ferroce_wire::Gid;

/// Entries of a port's table.
pub const GID_TABLE: usize = 1024;

/// On interfaces other than `lo`, index 0 belongs to the link-local GID and is empty when none works, so that IPv4 is at
/// index 1 as on rxe. Other addresses follow in order of arrival. The index of one that left is given away only when
/// every other has been used; should it come back before, it finds its index.
#[derive(Clone, Debug, Default)]
pub struct GidTable {
    slots: Vec<Slot>,
    reserve_first: bool,
    /// Counts departures, so that the index free for longest is reused first.
    departures: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Used(Holder),
    /// Free: since which departure, and whose.
    Left(u64, Option<Holder>),
}

/// An address and its interface.
type Holder = (IpAddr, u32);

impl GidTable {
    /// An empty table; `reserve_first` keeps index 0 for the link-local GID.
    pub fn new(reserve_first: bool) -> Self {
        let slots = if reserve_first { vec![Slot::Left(0, None)] } else { Vec::new() };
        Self { slots, reserve_first, departures: 0 }
    }

    /// Puts an entry where an earlier broker had it; one that does not fit is left to [`GidTable::update`].
    pub fn restore(&mut self, entry: &GidEntry) {
        let index = usize::from(entry.index);
        if index >= GID_TABLE {
            return;
        }
        while self.slots.len() <= index {
            self.slots.push(Slot::Left(0, None));
        }
        let new = Slot::Used((entry.gid.to_ip(), entry.ifindex));
        if let Some(slot @ Slot::Left(..)) = self.slots.get_mut(index) {
            *slot = new;
        }
    }

    /// Makes the table hold exactly `present`: each address with its interface. Addresses beyond the table's end are left
    /// out.
    pub fn update(&mut self, present: &[Holder]) {
        for slot in &mut self.slots {
            if let Slot::Used(holder) = *slot
                && !present.contains(&holder)
            {
                self.departures += 1;
                *slot = Slot::Left(self.departures, Some(holder));
            }
        }
        for &holder in present {
            let here = |slot: &Slot| matches!(*slot, Slot::Used(other) if other == holder);
            if !self.slots.iter().any(here)
                && let Some(slot) = self.place_for(holder)
            {
                *slot = Slot::Used(holder);
            }
        }
    }

    fn place_for(&mut self, holder: Holder) -> Option<&mut Slot> {
        let own = |slot: &Slot| matches!(*slot, Slot::Left(_, Some(other)) if other == holder);
        if let Some(index) = self.slots.iter().position(own) {
            return self.slots.get_mut(index);
        }
        let link_local = matches!(holder.0, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if self.reserve_first && link_local && matches!(self.slots.first(), Some(Slot::Left(..))) {
            return self.slots.first_mut();
        }
        if self.slots.len() < GID_TABLE {
            self.slots.push(Slot::Left(0, None));
            return self.slots.last_mut();
        }
        let free_since = |slot: &Slot| match *slot {
            Slot::Left(when, _) => Some(when),
            Slot::Used(_) => None,
        };
        let others = self.slots.iter_mut().skip(usize::from(self.reserve_first));
        others.filter(|slot| free_since(slot).is_some()).min_by_key(|slot| free_since(slot))
    }

    /// The entries in use, by ascending index.
    pub fn entries(&self) -> Vec<GidEntry> {
        let entry = |(index, slot): (usize, &Slot)| match *slot {
            Slot::Used((ip, ifindex)) => {
                let gid_type = GidType::RoceV2;
                Some(GidEntry { index: index as u16, gid: Gid::from_ip(ip), gid_type, ifindex })
            }
            Slot::Left(..) => None,
        };
        self.slots.iter().enumerate().filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn shown(table: &GidTable) -> Vec<(u16, String)> {
        table.entries().iter().map(|e| (e.index, e.gid.to_ip().to_string())).collect()
    }

    fn want(rows: &[(u16, &str)]) -> Vec<(u16, String)> {
        rows.iter().map(|(i, s)| (*i, (*s).to_owned())).collect()
    }

    #[test]
    fn loopback_has_ipv4_first() {
        let mut table = GidTable::new(false);
        table.update(&[(ip("127.0.0.1"), 1), (ip("::1"), 1)]);
        assert_eq!(shown(&table), want(&[(0, "127.0.0.1"), (1, "::1")]));
    }

    #[test]
    fn index_0_waits_for_the_link_local_address() {
        let mut table = GidTable::new(true);
        table.update(&[(ip("192.0.2.1"), 2)]);
        assert_eq!(shown(&table), want(&[(1, "192.0.2.1")]));
        table.update(&[(ip("192.0.2.1"), 2), (ip("fe80::1"), 2), (ip("fe80::2"), 3)]);
        assert_eq!(shown(&table), want(&[(0, "fe80::1"), (1, "192.0.2.1"), (2, "fe80::2")]));
    }

    #[test]
    fn indices_stay_and_those_that_left_are_reused_last() {
        let mut table = GidTable::new(false);
        table.update(&[(ip("10.0.0.1"), 2), (ip("10.0.0.2"), 2), (ip("10.0.0.3"), 2)]);
        table.update(&[(ip("10.0.0.3"), 2), (ip("10.0.0.4"), 2)]);
        assert_eq!(shown(&table), want(&[(2, "10.0.0.3"), (3, "10.0.0.4")]));
        let many: Vec<_> =
            (0..GID_TABLE as u32 - 4).map(|n| (IpAddr::V4((0x0b00_0000 + n).into()), 2)).collect();
        let mut all = vec![(ip("10.0.0.3"), 2), (ip("10.0.0.4"), 2)];
        all.extend(many);
        table.update(&all);
        assert!(table.entries().iter().all(|e| e.index >= 2), "0 and 1 are still unused");
        all.push((ip("10.0.0.5"), 2));
        all.push((ip("10.0.0.6"), 2));
        all.push((ip("10.0.0.7"), 2)); // finds no place
        table.update(&all);
        assert_eq!(table.entries().len(), GID_TABLE);
        assert_eq!(shown(&table)[..2], want(&[(0, "10.0.0.5"), (1, "10.0.0.6")])[..]);
    }

    #[test]
    fn who_comes_back_finds_its_index() {
        let mut table = GidTable::new(false);
        table.update(&[(ip("127.0.0.1"), 1), (ip("::1"), 1)]);
        table.update(&[(ip("::1"), 1)]);
        table.update(&[(ip("::1"), 1), (ip("10.0.0.1"), 1)]);
        table.update(&[(ip("::1"), 1), (ip("127.0.0.1"), 1)]);
        assert_eq!(shown(&table), want(&[(0, "127.0.0.1"), (1, "::1")]));
    }

    #[test]
    fn an_earlier_brokers_indices_come_back() {
        let mut first = GidTable::new(true);
        first.update(&[(ip("10.0.0.1"), 2), (ip("10.0.0.2"), 2)]);
        first.update(&[(ip("10.0.0.2"), 2)]);
        let mut second = GidTable::new(true);
        first.entries().iter().for_each(|e| second.restore(e));
        second.update(&[(ip("10.0.0.9"), 2), (ip("10.0.0.2"), 2)]);
        assert_eq!(shown(&second), want(&[(2, "10.0.0.2"), (3, "10.0.0.9")]));
    }
}
