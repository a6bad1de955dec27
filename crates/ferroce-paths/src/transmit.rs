//! From a queue pair to the wire: batches built in one buffer per thread.

use std::cell::RefCell;

use ferroce_datapath::udp::{LossReason, MAX_BATCH, Sent};
use ferroce_ipc::ledger::{DeviceCounters, Entry};
use ferroce_memory::View;
use ferroce_proto::QueuePair;
use ferroce_proto::history::Event;
use ferroce_wire::icrc::Starts;
use ferroce_wire::{Instant, Slot, TxBatch};

use crate::faults::{self, Harm};
use crate::pipes::{PipeEnd, Room};
use crate::tx_path::Transmit;

/// Batches of one queue pair before others have their turn: a peer may ask for 2 GiB at once.
const BATCHES: usize = 32;

/// Octets of a packet that goes the straight way, at most: longer ones are copied by batches.
const LONGEST_ONE: usize = 128;

/// The buffer and the cached CRCs of a thread's batches.
struct Builder {
    buffer: Box<[u8]>,
    starts: Starts,
}

impl Builder {
    fn new() -> Self {
        Self { buffer: vec![0; MAX_BATCH].into_boxed_slice(), starts: Starts::new() }
    }
}

thread_local! {
    static BUILDER: RefCell<Builder> = RefCell::new(Builder::new());
}

/// As [`drain`], if one packet is all there is to send, and goes the straight way into a pipe. Returns
/// whether it did; otherwise nothing has changed. No plan of faults is in force.
#[inline]
pub fn straight(
    transport: &mut QueuePair,
    memory: &mut View,
    end: &PipeEnd,
    now: Instant,
    counters: &DeviceCounters,
    record: &Entry,
) -> bool {
    let mut octets = [0; LONGEST_ONE];
    let mut slot = Slot::new(&mut octets);
    if !end.is_open() || !transport.transmit_straight(now, memory, &mut slot) {
        return false;
    }
    let packet = slot.bytes();
    Event::sent(now, packet).inspect(|event| record.happened_again(*event, Event::merged));
    let Sent { lost, reason, .. } = end.send_one(packet);
    DeviceCounters::count(&counters.pipe_sent_pkts);
    DeviceCounters::add(&counters.pipe_sent_octets, packet.len() as u64);
    if lost > 0 {
        refused(lost, reason, counters);
    }
    true
}

#[cold]
fn refused(lost: usize, reason: Option<LossReason>, counters: &DeviceCounters) {
    DeviceCounters::add(&counters.send_err, lost as u64);
    tracing::debug!(lost, ?reason, "the system refuses packets");
}

/// Records the first packet of a batch and the last. Between their PSNs are those of the others.
#[inline]
fn note_sent(batch: &TxBatch<'_>, now: Instant, record: &Entry) {
    let mut packets = batch.segments();
    for packet in [packets.next(), packets.next_back()].into_iter().flatten() {
        Event::sent(now, packet).inspect(|event| record.happened_again(*event, Event::merged));
    }
}

/// Sends up to a fixed number of batches of what the queue pair has queued. Returns the time at which to call
/// again if more is queued.
pub fn drain(
    transport: &mut QueuePair,
    memory: &mut View,
    path: &impl Transmit,
    now: Instant,
    counters: &DeviceCounters,
    record: &Entry,
    mut harm: Harm<'_>,
) -> Option<Instant> {
    harm.send_due(path, now);
    if transport.is_silent() {
        path.has_no_more();
        return None;
    }
    let mut send = |builder: &mut Builder| {
        let mut batch = TxBatch::with_starts(&mut builder.buffer, path.limits(), &mut builder.starts);
        if path.is_pipe() {
            batch.leave_icrc_out();
        }
        for _ in 0..BATCHES {
            let (more, later) = match path.room(now) {
                Room::ForAll => (transport.poll_transmit(now, memory, &mut batch), None),
                Room::ForAcks(later) => (transport.poll_ack(now, memory, &mut batch), Some(later)),
                Room::None(later) => (false, Some(later)),
            };
            if !more {
                return later;
            }
            let (packets, octets) = match path.is_pipe() {
                true => (&counters.pipe_sent_pkts, &counters.pipe_sent_octets),
                false => (&counters.sent_pkts, &counters.sent_octets),
            };
            DeviceCounters::add(packets, batch.len() as u64);
            DeviceCounters::add(octets, batch.bytes().len() as u64);
            if !path.is_pipe() {
                DeviceCounters::count(&counters.tx_calls);
            }
            note_sent(&batch, now, record);
            // A packet that the system refuses counts as lost: the transport's timers send it again.
            let sent = match faults::on() {
                false => path.send(&mut batch, now),
                true => harm.send(path, &mut batch, now, transport),
            };
            match sent {
                Some(Ok(Sent { lost: 0, .. })) => {}
                None => DeviceCounters::add(&counters.send_err, batch.len() as u64),
                Some(Ok(Sent { lost, reason, .. })) => refused(lost, reason, counters),
                Some(Err(error)) => {
                    DeviceCounters::add(&counters.send_err, batch.len() as u64);
                    tracing::error!(%error, "a socket cannot be used");
                }
            }
            batch.clear();
            if transport.is_silent() {
                path.has_no_more();
                return None;
            }
        }
        path.has_more();
        Some(now)
    };
    // While the thread ends its buffer may be gone already; programs do post from destructors. It is in use
    // if a signal handler posts that interrupted this function, which allocates nothing, so the handler may
    // allocate.
    let sent =
        BUILDER.try_with(|builder| builder.try_borrow_mut().map(|mut builder| send(&mut builder)).ok());
    match sent {
        Ok(Some(more)) => more,
        Ok(None) | Err(_) => send(&mut Builder::new()),
    }
}
