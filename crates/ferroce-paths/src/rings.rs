//! Packets by way of the broker: RoCE v1, and everything with `FERROCE_DATAPATH=packet`.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroce_datapath::udp::{LossReason, Sent};
use ferroce_ipc::ring::{Consumer, MAX_PACKET, Popped, Producer, PushError, Rings};
use ferroce_wire::{BatchLimits, Flow, TxBatch};
use parking_lot::Mutex;

use crate::permitted;
use crate::rx::{Arrival, NO_FLOW, RxBatch};
use ferroce_client::{BrokerClient, BrokerError, RingsOffer};
use ferroce_host::fork::Guarded;
use ferroce_ipc::doorbell;

/// Packets of a batch: more would only wait in the ring while others have none.
const SEGMENTS: usize = 16;
/// Packets that are received in one turn.
const PACKETS: usize = 32;
/// Looks at an empty ring for each look at its doorbell by a thread that polls: the second is a system call.
const LOOKS_PER_DOORBELL: u32 = 16;

/// Our side of the rings to the broker. The doorbell stays for the life of the process, so that a lane can
/// wait for it; the rings are others with each broker. Without a broker packets are lost, as on the way.
pub struct RingPort {
    /// Readable when something may be in our ring.
    doorbell: Guarded<OwnedFd>,
    /// The broker's end of it. Held so that ours is not closed with a broker, and to ring it ourselves.
    far: Guarded<OwnedFd>,
    /// All senders share this lock. A sender holds it while it copies a batch.
    tx: Mutex<Option<ToBroker>>,
    /// The holder of the lane's.
    rx: Mutex<Option<Consumer>>,
    looks: AtomicU32,
}

struct ToBroker {
    ring: Producer,
    /// Wakes the broker.
    bell: Guarded<OwnedFd>,
}

impl RingPort {
    /// Opens rings to the broker.
    pub fn open(broker: &BrokerClient) -> Result<Arc<Self>, BrokerError> {
        let (doorbell, far) = ferroce_ipc::packet::pair()?;
        let offer = broker.open_rings(far.try_clone()?, permitted::v2_by_broker())?;
        let (doorbell, far) = (Guarded::new(doorbell), Guarded::new(far));
        let (tx, rx) = (Mutex::new(None), Mutex::new(None));
        let port = Self { doorbell, far, tx, rx, looks: AtomicU32::new(0) };
        port.install(offer)?;
        Ok(Arc::new(port))
    }

    /// Takes the rings of this broker in place of those of the last one.
    pub fn install(&self, offer: RingsOffer) -> io::Result<()> {
        let Rings { tx, rx } = Rings::join(&offer.memory)?;
        *self.rx.lock() = Some(rx);
        *self.tx.lock() = Some(ToBroker { ring: tx, bell: Guarded::new(offer.bell) });
        doorbell::ring(&*self.far);
        Ok(())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// The limits of a batch. Over IPv4 its packets have the identifications 0, 1, 2 …, as if the kernel had
    /// split it.
    pub fn limits() -> BatchLimits {
        BatchLimits { max_segments: SEGMENTS, gso: true }
    }

    /// Whether the broker lives and has not taken the packet yet that `newest` was set for: it is stopped, or
    /// has no processor. That nobody answers proves nothing then.
    pub fn keeps(&self, newest: u32) -> bool {
        let tx = self.tx.lock();
        tx.as_ref().is_some_and(|tx| tx.ring.keeps(newest) && doorbell::has_listener(&*tx.bell))
    }

    /// Sends a batch; what does not fit the ring is lost. Sets `newest` to the place of its last packet.
    pub fn send(&self, batch: &TxBatch<'_>, newest: &Cell<u32>) -> Sent {
        let Some(flow) = batch.flow() else { return Sent { sent: 0, lost: 0, reason: None } };
        let mut tx = self.tx.lock();
        let mut sent = 0;
        let mut reason = None;
        if let Some(ToBroker { ring, bell }) = tx.as_mut() {
            for (index, segment) in batch.segments().enumerate() {
                let id = if batch.limits().gso { index as u16 } else { 0 };
                let mut headers = [0; 48];
                let len = flow.write_headers(id, segment.len(), &mut headers);
                match ring.push(flow.link, &headers[..len], segment) {
                    Ok(()) => sent += 1,
                    Err(PushError::Full) => reason = Some(LossReason::Congested),
                    Err(PushError::TooLong(_)) => reason = Some(LossReason::TooLong),
                    Err(PushError::Corrupt(_)) => reason = Some(LossReason::Unreachable),
                }
            }
            match ring.publish() {
                Ok(asleep) => {
                    newest.set(ring.published());
                    if asleep {
                        doorbell::ring(&*bell);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "the broker's rings cannot be used");
                    *tx = None;
                }
            }
        } else {
            reason = Some(LossReason::Unreachable);
        }
        Sent { sent, lost: batch.len() - sent, reason }
    }

    /// The packets of one turn. `buffer` has room for one of them, and `unchecked` lists the interfaces where
    /// the ICRC does not count. `program`: its thread polls, and looks at the doorbell now and then only.
    pub fn receive<'a>(
        &'a self,
        buffer: &'a mut [u8; MAX_PACKET],
        unchecked: &'a [u32],
        program: bool,
    ) -> RingBatch<'a> {
        RingBatch { port: self, buffer, unchecked, program, left: PACKETS, flow: NO_FLOW }
    }

    /// Takes the next packet.
    ///
    /// The doorbell is silenced when the ring is empty, and rung again if a packet came meanwhile. So a
    /// thread that waits for it misses no packet, however many another thread took before.
    fn next(&self, out: &mut [u8; MAX_PACKET], program: bool) -> Option<Popped> {
        let mut rx = self.rx.lock();
        let popped = take(&mut rx, out);
        if popped.is_some() {
            self.looks.store(0, Ordering::Relaxed);
            return popped;
        }
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        if program && !look.is_multiple_of(LOOKS_PER_DOORBELL) {
            return None;
        }
        doorbell::silence(&*self.doorbell);
        let popped = take(&mut rx, out)?;
        doorbell::ring(&*self.far);
        Some(popped)
    }
}

/// The packets of one turn, see [`RingPort::receive`].
pub struct RingBatch<'a> {
    port: &'a RingPort,
    buffer: &'a mut [u8; MAX_PACKET],
    unchecked: &'a [u32],
    program: bool,
    /// Number of packets that may follow.
    left: usize,
    /// That of the last packet.
    flow: Flow,
}

impl RxBatch for RingBatch<'_> {
    fn next(&mut self) -> Option<Arrival<'_>> {
        self.left = self.left.checked_sub(1)?;
        let Popped { link, len } = self.port.next(self.buffer, self.program)?;
        let checks = !self.unchecked.contains(&link.ifindex);
        let octets = self.buffer.get(..len).unwrap_or_default();
        Some(Arrival::behind_headers(link, checks, octets, &mut self.flow))
    }
}

fn take(rx: &mut Option<Consumer>, out: &mut [u8; MAX_PACKET]) -> Option<Popped> {
    match rx.as_mut()?.pop(out) {
        Ok(popped) => popped,
        Err(error) => {
            tracing::error!(%error, "the broker's rings cannot be used");
            *rx = None;
            None
        }
    }
}
