//! From a queue pair to the wire: batches built in one buffer per thread.

use std::cell::RefCell;

use crate::pending::proto::QueuePair;
use crate::pending::udp::TxSocket;
use ferroce_wire::{BatchLimits, Instant, TxBatch};

use crate::counters::DeviceCounters;
use crate::memory::View;

/// What one system call takes.
const BUFFER: usize = 1 << 16;
/// Linux cuts a call into at most 64 segments; later versions take 128.
const SEGMENTS: usize = 64;
/// Batches of one queue pair before others have their turn: a peer may ask for 2 GiB at once.
const BATCHES: usize = 32;

thread_local! {
    static BATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
}

/// Sends what the queue pair has, up to a bound; returns whether it has more.
pub(crate) fn drain(
    transport: &mut QueuePair,
    memory: &mut View,
    socket: &TxSocket,
    now: Instant,
    counters: &DeviceCounters,
) -> bool {
    let mut send = |buffer: &mut [u8]| {
        let mut batch = TxBatch::new(buffer, BatchLimits { max_segments: SEGMENTS, gso: socket.gso() });
        for _ in 0..BATCHES {
            if !transport.poll_transmit(now, memory, &mut batch) {
                return false;
            }
            DeviceCounters::add(&counters.sent_pkts, batch.len() as u64);
            DeviceCounters::count(&counters.tx_calls);
            if let Err(error) = socket.send(&mut batch) {
                // As if lost on the way: the transport's timers see to it.
                DeviceCounters::count(&counters.send_err);
                tracing::debug!(%error, "cannot send");
            }
            batch.clear();
        }
        true
    };
    // While the thread ends its buffer may be gone already; programs do post from destructors.
    match BATCH.try_with(|buffer| send(&mut buffer.borrow_mut())) {
        Ok(more) => more,
        Err(_) => send(&mut vec![0; BUFFER]),
    }
}
