//! The GID table of one port: addresses come and go, an index means one address while it is there.

use std::net::IpAddr;

use ferroce_ipc::{GidEntry, GidType};
use ferroce_wire::Gid;

/// Entries of a port's table.
pub const GID_TABLE: usize = 1024;

/// On interfaces other than `lo`, index 0 belongs to the link-local GID (the default one while no link-local
/// address works), so that IPv4 is at index 1 as on rxe; with two types of GIDs it has indices 0 and 1. Other
/// addresses follow in order of arrival. The index of one that left is given away only when every other has
/// been used; should it come back before, it finds its index.
#[derive(Clone, Debug, Default)]
pub struct GidTable {
    slots: Vec<Slot>,
    /// Types of the link-local GID's entries, which are the first ones; nothing where it has no place of its
    /// own.
    reserved: &'static [GidType],
    /// Counts departures, so that the index free for longest is reused first.
    departures: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Used(Holder),
    /// Free: since which departure, and whose.
    Left(u64, Option<Holder>),
}

/// An address, its interface, and the type of the entry.
pub type Holder = (IpAddr, u32, GidType);

impl GidTable {
    /// An empty table; `reserved` are the types of GIDs for which the first indices are the link-local GID's.
    pub fn new(reserved: &'static [GidType]) -> Self {
        Self { slots: vec![Slot::Left(0, None); reserved.len()], reserved, departures: 0 }
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
        let new = Slot::Used((entry.gid.to_ip(), entry.ifindex, entry.gid_type));
        if let Some(slot @ Slot::Left(..)) = self.slots.get_mut(index) {
            *slot = new;
        }
    }

    /// Makes the table hold exactly `present`, one entry each. Addresses beyond the table's
    /// end are left out.
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
        let own = self.reserved.iter().position(|kind| link_local && *kind == holder.2);
        if let Some(index) = own
            && matches!(self.slots.get(index), Some(Slot::Left(..)))
        {
            return self.slots.get_mut(index);
        }
        if self.slots.len() < GID_TABLE {
            self.slots.push(Slot::Left(0, None));
            return self.slots.last_mut();
        }
        let free_since = |slot: &Slot| match *slot {
            Slot::Left(when, _) => Some(when),
            Slot::Used(_) => None,
        };
        let others = self.slots.iter_mut().skip(self.reserved.len());
        others.filter(|slot| free_since(slot).is_some()).min_by_key(|slot| free_since(slot))
    }

    /// The entries in use, by ascending index.
    pub fn entries(&self) -> Vec<GidEntry> {
        let entry = |(index, slot): (usize, &Slot)| match *slot {
            Slot::Used((ip, ifindex, gid_type)) => {
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
    use ferroce_ipc::GidType::{RoceV1, RoceV2};
    use ferroce_ipc::RoceMode;

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
        let mut table = GidTable::new(&[]);
        table.update(&[(ip("127.0.0.1"), 1, RoceV2), (ip("::1"), 1, RoceV2)]);
        assert_eq!(shown(&table), want(&[(0, "127.0.0.1"), (1, "::1")]));
    }

    #[test]
    fn index_0_waits_for_the_link_local_address() {
        let mut table = GidTable::new(RoceMode::V2.types());
        table.update(&[(ip("192.0.2.1"), 2, RoceV2)]);
        assert_eq!(shown(&table), want(&[(1, "192.0.2.1")]));
        table.update(&[(ip("192.0.2.1"), 2, RoceV2), (ip("fe80::1"), 2, RoceV2), (ip("fe80::2"), 3, RoceV2)]);
        assert_eq!(shown(&table), want(&[(0, "fe80::1"), (1, "192.0.2.1"), (2, "fe80::2")]));
    }

    #[test]
    fn indices_stay_and_those_that_left_are_reused_last() {
        let mut table = GidTable::new(&[]);
        table.update(&[
            (ip("10.0.0.1"), 2, RoceV2),
            (ip("10.0.0.2"), 2, RoceV2),
            (ip("10.0.0.3"), 2, RoceV2),
        ]);
        table.update(&[(ip("10.0.0.3"), 2, RoceV2), (ip("10.0.0.4"), 2, RoceV2)]);
        assert_eq!(shown(&table), want(&[(2, "10.0.0.3"), (3, "10.0.0.4")]));
        let many: Vec<_> =
            (0..GID_TABLE as u32 - 4).map(|n| (IpAddr::V4((0x0b00_0000 + n).into()), 2, RoceV2)).collect();
        let mut all = vec![(ip("10.0.0.3"), 2, RoceV2), (ip("10.0.0.4"), 2, RoceV2)];
        all.extend(many);
        table.update(&all);
        assert!(table.entries().iter().all(|e| e.index >= 2), "0 and 1 are still unused");
        all.push((ip("10.0.0.5"), 2, RoceV2));
        all.push((ip("10.0.0.6"), 2, RoceV2));
        all.push((ip("10.0.0.7"), 2, RoceV2)); // finds no place
        table.update(&all);
        assert_eq!(table.entries().len(), GID_TABLE);
        assert_eq!(shown(&table)[..2], want(&[(0, "10.0.0.5"), (1, "10.0.0.6")])[..]);
    }

    #[test]
    fn who_comes_back_finds_its_index() {
        let mut table = GidTable::new(&[]);
        table.update(&[(ip("127.0.0.1"), 1, RoceV2), (ip("::1"), 1, RoceV2)]);
        table.update(&[(ip("::1"), 1, RoceV2)]);
        table.update(&[(ip("::1"), 1, RoceV2), (ip("10.0.0.1"), 1, RoceV2)]);
        table.update(&[(ip("::1"), 1, RoceV2), (ip("127.0.0.1"), 1, RoceV2)]);
        assert_eq!(shown(&table), want(&[(0, "127.0.0.1"), (1, "::1")]));
    }

    #[test]
    fn an_earlier_brokers_indices_come_back() {
        let mut first = GidTable::new(RoceMode::V2.types());
        first.update(&[(ip("10.0.0.1"), 2, RoceV2), (ip("10.0.0.2"), 2, RoceV2)]);
        first.update(&[(ip("10.0.0.2"), 2, RoceV2)]);
        let mut second = GidTable::new(RoceMode::V2.types());
        first.entries().iter().for_each(|e| second.restore(e));
        second.update(&[(ip("10.0.0.9"), 2, RoceV2), (ip("10.0.0.2"), 2, RoceV2)]);
        assert_eq!(shown(&second), want(&[(2, "10.0.0.2"), (3, "10.0.0.9")]));
    }

    #[test]
    fn both_types_stand_side_by_side() {
        let shown = |table: &GidTable| -> Vec<String> {
            let entry = |e: &GidEntry| format!("{} {} {}", e.index, e.gid.to_ip(), e.gid_type.name());
            table.entries().iter().map(entry).collect()
        };
        let mut table = GidTable::new(RoceMode::Both.types());
        let of = |addresses: &[&str]| -> Vec<Holder> {
            let both = |text: &&str| [(ip(text), 2, RoceV2), (ip(text), 2, RoceV1)];
            addresses.iter().flat_map(both).collect()
        };
        table.update(&of(&["192.168.1.70", "2001:db8::7"]));
        table.update(&of(&["192.168.1.70", "2001:db8::7", "fe80::1"]));
        let want = [
            "0 fe80::1 v2",
            "1 fe80::1 v1",
            "2 192.168.1.70 v2",
            "3 192.168.1.70 v1",
            "4 2001:db8::7 v2",
            "5 2001:db8::7 v1",
        ];
        assert_eq!(shown(&table), want);
        let mut restored = GidTable::new(RoceMode::Both.types());
        table.entries().iter().for_each(|entry| restored.restore(entry));
        restored.update(&of(&["fe80::1", "2001:db8::7", "192.168.1.70"]));
        assert_eq!(shown(&restored), want);
    }
}
