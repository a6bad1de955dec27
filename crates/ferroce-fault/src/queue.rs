//! Packets that wait.

use std::collections::BTreeMap;
use std::time::Duration;

use ferroce_wire::Instant;

use crate::effect::Release;

/// The most packets of one queue.
pub const MAX_HELD: usize = 16_384;
/// The most octets of one queue.
pub const MAX_HELD_OCTETS: usize = 32 << 20;
/// A packet that waits for its successors waits no longer than this, because there may be none.
pub(crate) const LONGEST_REORDER: Duration = Duration::from_millis(10);

/// Packets that wait, in order of release. Bounded: a packet that finds no room is lost.
#[derive(Debug)]
pub struct HeldQueue<T> {
    /// The held packets, by time of release, then by order of arrival.
    waiting: BTreeMap<(Instant, u64), HeldPacket<T>>,
    octets: usize,
    sequence: u64,
    /// Number of held packets that a later packet of their flow may release (reordering).
    behind: usize,
}

#[derive(Debug)]
struct HeldPacket<T> {
    packet: T,
    flow: (u32, u32),
    octets: usize,
    behind: u32,
}

impl<T> Default for HeldQueue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), octets: 0, sequence: 0, behind: 0 }
    }
}

impl<T> HeldQueue<T> {
    /// Keeps a packet of `octets` octets until its release. `flow` tells its successors.
    ///
    /// # Errors
    /// The packet, if there is no room.
    pub fn push(&mut self, release: Release, flow: (u32, u32), octets: usize, packet: T) -> Result<(), T> {
        if self.waiting.len() >= MAX_HELD || self.octets + octets > MAX_HELD_OCTETS {
            return Err(packet);
        }
        let Release { at, behind } = release;
        self.octets += octets;
        self.behind += usize::from(behind > 0);
        self.sequence += 1;
        self.waiting.insert((at, self.sequence), HeldPacket { packet, flow, octets, behind });
        Ok(())
    }

    /// A packet of `flow` passed: those that wait for successors are nearer to their release.
    pub fn passed(&mut self, flow: (u32, u32)) {
        if self.behind == 0 {
            return;
        }
        let mut due = Vec::new();
        for (key, held) in &mut self.waiting {
            if held.flow == flow && held.behind > 0 {
                held.behind -= 1;
                if held.behind == 0 {
                    due.push(*key);
                }
            }
        }
        for key in due {
            if let Some(held) = self.waiting.remove(&key) {
                self.behind -= 1;
                self.waiting.insert((Instant::ZERO, key.1), held);
            }
        }
    }

    /// Takes the next packet that is due.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let entry = self.waiting.first_entry().filter(|entry| entry.key().0 <= now)?;
        let held = entry.remove();
        self.octets -= held.octets;
        self.behind -= usize::from(held.behind > 0);
        Some(held.packet)
    }

    /// Time at which the next packet is due; `None` if no packet waits, or all wait until the plan is
    /// cleared.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at).filter(|at| *at != Instant::MAX)
    }

    /// All packets are due now.
    pub fn release_all(&mut self) {
        self.behind = 0;
        let all = std::mem::take(&mut self.waiting);
        let due = |((_, sequence), held): ((Instant, u64), HeldPacket<T>)| {
            ((Instant::ZERO, sequence), HeldPacket { behind: 0, ..held })
        };
        self.waiting = all.into_iter().map(due).collect();
    }

    /// The number of packets that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: (u32, u32) = (0, 0);

    fn release(at: u64, behind: u32) -> Release {
        Release { at: Instant::from_nanos(at), behind }
    }

    #[test]
    fn packets_leave_in_order_of_time() {
        let mut queue = HeldQueue::default();
        for (at, packet) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
            queue.push(release(at, 0), FLOW, 1, packet).unwrap();
        }
        assert_eq!(queue.next(), Some(Instant::from_nanos(10)));
        assert_eq!(queue.pop(Instant::from_nanos(9)), None);
        let all: String = std::iter::from_fn(|| queue.pop(Instant::from_nanos(30))).collect();
        assert_eq!((all.as_str(), queue.is_empty()), ("abcd", true));
    }

    #[test]
    fn a_reordered_packet_waits_for_its_own_successors() {
        let mut queue = HeldQueue::default();
        queue.push(release(1000, 2), FLOW, 1, 'a').unwrap();
        queue.passed((1, 0));
        queue.passed(FLOW);
        assert_eq!(queue.pop(Instant::ZERO), None);
        queue.passed(FLOW);
        assert_eq!(queue.pop(Instant::ZERO), Some('a'));
        queue.push(release(1000, 2), FLOW, 1, 'b').unwrap();
        assert_eq!(queue.pop(Instant::from_nanos(1000)), Some('b'), "without successors");
        queue.passed(FLOW);
    }

    #[test]
    fn the_queue_is_bounded_and_can_be_released() {
        let mut queue = HeldQueue::default();
        let never = Release { at: Instant::MAX, behind: 0 };
        for _ in 0..MAX_HELD {
            queue.push(never, FLOW, 1, ()).unwrap();
        }
        assert_eq!(queue.push(never, FLOW, 1, ()), Err(()));
        assert_eq!((queue.next(), queue.pop(Instant::from_nanos(9))), (None, None));
        queue.release_all();
        assert_eq!(std::iter::from_fn(|| queue.pop(Instant::ZERO)).count(), MAX_HELD);
        assert_eq!(queue.push(never, FLOW, MAX_HELD_OCTETS + 1, ()), Err(()));
    }
}
