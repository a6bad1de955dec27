//! The reads and atomics that the responder remembers to answer their duplicates.

use alloc::collections::VecDeque;

use ferroce_wire::{Psn, Rkey};

use crate::Domain;

/// PSNs before the expected one that are duplicates; a PSN further back counts as ahead (IBTA 9.7.2).
const DUPLICATES: u32 = 1 << 23;

/// How many PSNs `psn` lies before the expected one, 0 to 2^24 - 1. In contrast to [`Psn::since`] it orders
/// all PSNs of a circle, which the longest READ needs: it takes 2^23 and may begin as many behind the
/// expected PSN.
const fn behind(psn: Psn, expected: Psn) -> u32 {
    Psn::new(expected.value().wrapping_sub(psn.value())).value()
}

/// A read or atomic that was executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    pub first: Psn,
    pub last: Psn,
    pub kind: Kind,
}

/// All that a second answer needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Read {
        rkey: Rkey,
        addr: u64,
        length: u32,
        domain: Option<Domain>,
    },
    /// Done once; only its result is repeated.
    Atomic {
        original: u64,
    },
    /// An atomic write: done once, and its result is nothing.
    AtomicWrite,
    /// A flush: what it was asked to bring somewhere is there.
    Flush,
}

/// The newest reads and atomics, as many as the peer may have outstanding. All of them end among the
/// duplicates: PSNs are a circle, and an older entry would be taken for a newer one.
#[derive(Debug)]
pub(crate) struct Resources {
    ring: VecDeque<Resource>,
    depth: usize,
}

impl Resources {
    pub fn new(depth: usize) -> Self {
        Self { ring: VecDeque::with_capacity(depth), depth }
    }

    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Remembers one and forgets the oldest if there is no room.
    pub fn remember(&mut self, resource: Resource) {
        while self.ring.len() >= self.depth {
            if self.ring.pop_front().is_none() {
                return;
            }
        }
        self.ring.push_back(resource);
    }

    /// Forgets the entries to which no duplicate can belong any more when `count` PSNs, at most 2^23, follow
    /// `expected`.
    #[inline]
    pub fn age(&mut self, expected: Psn, count: u32) {
        while let Some(oldest) = self.ring.front()
            && behind(oldest.last, expected) + count > DUPLICATES
        {
            self.ring.pop_front();
        }
    }

    /// The one that a duplicate's PSN belongs to.
    pub fn find(&self, psn: Psn) -> Option<&Resource> {
        self.ring.iter().rev().find(|entry| psn.since(entry.first) >= 0 && psn.since(entry.last) <= 0)
    }

    /// First PSN of the oldest one after `psn`, which is a duplicate.
    pub fn first_after(&self, psn: Psn, expected: Psn) -> Option<Psn> {
        let mut firsts = self.ring.iter().map(|entry| entry.first);
        firsts.find(|first| behind(*first, expected) < behind(psn, expected))
    }

    /// Changes the depth; keeps the newest.
    pub fn resize(&mut self, depth: usize) {
        let surplus = self.ring.len().saturating_sub(depth);
        self.ring.drain(..surplus);
        self.ring.reserve_exact(depth - self.ring.len());
        self.depth = depth;
    }

    pub fn clear(&mut self) {
        self.ring.clear();
    }
}
