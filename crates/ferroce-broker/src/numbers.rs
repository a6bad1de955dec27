//! The order in which programs take their queue pair numbers.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use ferroce_ipc::{MEMBER_SLOTS, QpnOrder};

use super::slots::member_of;

/// Least distance of two successive starts on a member: 63 programs have a thousand numbers each before any
/// comes again. It is odd, so that the first numbers of successive programs are of different slots.
const STEP: u16 = 1031;

/// A key for each user of a member, and the last start on each member.
#[derive(Debug, Default)]
pub struct Numbers {
    random: RandomState,
    starts: BTreeMap<u8, u16>,
    /// Connections that the program of a lease has begun, by the first slot.
    used: BTreeMap<u16, u16>,
}

impl Numbers {
    /// The order for a new program of user `uid`, whose first slot is `slot`. The first start on a member is
    /// random, because an earlier broker's programs had the same slots.
    pub fn next(&mut self, uid: u32, slot: u16) -> QpnOrder {
        let member = member_of(slot);
        let random = &self.random;
        let start = self.starts.entry(member).or_insert_with(|| random.hash_one(member) as u16);
        *start = start.wrapping_add(STEP);
        QpnOrder { key: self.random.hash_one((uid, member)).max(1), start: *start }
    }

    /// The program with this slot connects a queue pair. Its peer keeps the number for the time-wait (IBTA
    /// 12.9.8.3.1).
    pub fn connects(&mut self, slot: u16) {
        let used = self.used.entry(slot).or_default();
        *used = used.wrapping_add(1);
    }

    /// The program with this slot is gone. The next one on the member starts behind all numbers that it
    /// connected, in the cycle of the order. `alone`: the program had one slot of the member, which has each
    /// sixteenth number of the order.
    pub fn ended(&mut self, slot: u16, alone: bool) {
        let used = self.used.remove(&slot).unwrap_or(0);
        if let Some(start) = self.starts.get_mut(&member_of(slot)) {
            *start = start.wrapping_add(if alone { used.wrapping_mul(MEMBER_SLOTS) } else { used });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_programs_of_a_user_start_far_apart_in_one_order() {
        let mut numbers = Numbers::default();
        let orders: Vec<_> = (0..63).map(|_| numbers.next(1000, 0x23)).collect();
        assert!(orders.iter().all(|order| order.key == orders[0].key));
        let mut starts: Vec<_> = orders.iter().map(|order| order.start).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 568), "{starts:?}");
    }

    #[test]
    fn a_program_starts_behind_the_numbers_of_the_last_one() {
        for (alone, distance) in [(false, 2000 + STEP), (true, 32_000 + STEP)] {
            let mut numbers = Numbers::default();
            let first = numbers.next(1000, 0x23).start;
            (0..2000).for_each(|_| numbers.connects(0x23));
            numbers.ended(0x23, alone);
            assert_eq!(numbers.next(1000, 0x23).start.wrapping_sub(first), distance);
            numbers.ended(0x23, alone);
            assert_eq!(numbers.next(1000, 0x23).start.wrapping_sub(first), distance + STEP);
        }
    }

    #[test]
    fn users_and_members_have_keys_of_their_own() {
        let mut numbers = Numbers::default();
        let key = numbers.next(1000, 0x23).key;
        assert_ne!(numbers.next(1001, 0x23).key, key);
        assert_ne!(numbers.next(1000, 0x33).key, key);
        assert_eq!(numbers.next(1000, 0x2f).key, key);
    }
}
