//! Received packets that wait.

use ferroce_fault::{HeldQueue, Release};
use ferroce_wire::{Flow, Instant};

/// Packets that wait on one lane, or behind one queue pair. Made when the first one waits.
#[derive(Default)]
pub struct Held {
    queue: Option<Box<Queue>>,
}

struct Queue {
    packets: HeldQueue<(Flow, Vec<u8>)>,
    /// The plan by which they wait.
    generation: u32,
}

/// The flow that a packet's successors belong to.
const fn flow_number(qp: u32) -> (u32, u32) {
    (qp, 0)
}

impl Held {
    /// Keeps a packet; `false` if there is no room, and it is lost.
    pub fn push(&mut self, release: Release, qp: u32, flow: &Flow, octets: Vec<u8>) -> bool {
        let generation = super::generation();
        let queue =
            self.queue.get_or_insert_with(|| Box::new(Queue { packets: HeldQueue::default(), generation }));
        queue.packets.push(release, flow_number(qp), octets.len(), (*flow, octets)).is_ok()
    }

    /// A packet of the queue pair passed.
    pub fn passed(&mut self, qp: u32) {
        if let Some(queue) = &mut self.queue {
            queue.packets.passed(flow_number(qp));
        }
    }

    /// Takes the next packet that is due; all are, once the plan has changed.
    pub fn pop(&mut self, now: Instant) -> Option<(Flow, Vec<u8>)> {
        let queue = self.queue.as_mut()?;
        let generation = super::generation();
        if queue.generation != generation {
            queue.generation = generation;
            queue.packets.release_all();
        }
        queue.packets.pop(now)
    }

    /// Time at which the next packet is due; `None` if no packet waits for a time.
    pub fn next(&self) -> Option<Instant> {
        self.queue.as_ref().and_then(|queue| queue.packets.next())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.packets.is_empty())
    }
}
