//! What the responder remembers of reads and atomics, to answer their duplicates.

use std::collections::VecDeque;

use ferroce_wire::{Psn, Rkey};

use crate::Domain;

/// A read or atomic that was executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    pub first: Psn,
    pub last: Psn,
    pub kind: Kind,
}

/// What it takes to answer it again.
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

/// The newest reads and atomics, as many as the peer may have outstanding.
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

    /// The one that a duplicate's PSN belongs to.
    pub fn find(&self, psn: Psn) -> Option<&Resource> {
        self.ring.iter().rev().find(|entry| psn.since(entry.first) >= 0 && psn.since(entry.last) <= 0)
    }

    /// First PSN of the oldest one after `psn`.
    pub fn first_after(&self, psn: Psn) -> Option<Psn> {
        self.ring.iter().map(|entry| entry.first).find(|first| first.since(psn) > 0)
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
