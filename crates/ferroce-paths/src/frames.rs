//! Raw packet queue pairs: the frames of their device's interface, over a packet socket of their own.
//!
//! The program itself needs CAP_NET_RAW for this socket: no raw packet passes through the broker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use arc_swap::ArcSwap;
use ferroce_datapath::packet::{PacketSocket, Rule};
use ferroce_ipc::ledger::DeviceCounters;
use ferroce_memory::View;
use ferroce_proto::QueuePair;
use parking_lot::Mutex;
use thiserror::Error;

use ferroce_host::fork::Guarded;

/// Frames of one queue pair before others have their turn.
const FRAMES: usize = 256;
/// Rules of one queue pair: each frame is held against all of them.
const MAX_FLOWS: usize = 256;

/// A rule of one queue pair for the frames that it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowId(u32);

/// A rule was not added.
#[derive(Debug, Error)]
pub enum FlowError {
    /// Other queue pairs receive packets that are addressed to them.
    #[error("only raw packet queue pairs have flow steering")]
    Service,
    /// The limit is reached.
    #[error("the limit of {max} rules of one queue pair is reached")]
    Limit {
        /// The limit.
        max: usize,
    },
    /// The interface cannot do it.
    #[error("the interface does not accept what the rule asks for")]
    System(#[source] io::Error),
    /// Destroyed, or its context closed.
    #[error("the queue pair was destroyed")]
    Destroyed,
}

/// A queue pair's access to an interface.
pub struct FramePort {
    socket: Guarded<PacketSocket>,
    /// The rules that select its frames, read without a lock.
    rules: ArcSwap<Vec<(FlowId, Rule)>>,
    /// Number of the next rule; held while rules change.
    next: Mutex<u32>,
}

impl FramePort {
    pub fn open(ifindex: u32) -> io::Result<Arc<Self>> {
        let socket = Guarded::new(PacketSocket::open(ifindex)?);
        let rules = ArcSwap::default();
        Ok(Arc::new(Self { socket, rules, next: Mutex::new(0) }))
    }

    pub fn socket(&self) -> &PacketSocket {
        &self.socket
    }

    pub fn rules(&self) -> Arc<Vec<(FlowId, Rule)>> {
        self.rules.load_full()
    }

    pub fn add(&self, rule: Rule) -> Result<FlowId, FlowError> {
        let mut next = self.next.lock();
        let mut rules = Vec::clone(&self.rules.load());
        if rules.len() >= MAX_FLOWS {
            return Err(FlowError::Limit { max: MAX_FLOWS });
        }
        let address = rule.required_address();
        if let Some(address) = address {
            self.socket.accept(address, true).map_err(FlowError::System)?;
        }
        let id = FlowId(*next);
        rules.push((id, rule));
        if let Err(error) = self.publish(rules) {
            if let Some(address) = address {
                self.give_up(address);
            }
            return Err(FlowError::System(error));
        }
        *next = next.wrapping_add(1);
        Ok(id)
    }

    pub fn remove(&self, id: FlowId) {
        let _next = self.next.lock();
        let rules = self.rules.load();
        let (gone, left): (Vec<_>, Vec<_>) = rules.iter().cloned().partition(|(known, _)| *known == id);
        if gone.is_empty() {
            return;
        }
        if let Err(error) = self.publish(left) {
            tracing::error!(%error, "a packet socket cannot be told what to receive");
        }
        gone.iter().filter_map(|(_, rule)| rule.required_address()).for_each(|address| self.give_up(address));
    }

    fn give_up(&self, address: Option<[u8; 6]>) {
        if let Err(error) = self.socket.accept(address, false) {
            // The interface is gone, and what it accepted with it.
            tracing::debug!(%error, "an interface cannot be told what to accept");
        }
    }

    /// First the rules, then the socket: no frame comes that nobody asked for.
    fn publish(&self, rules: Vec<(FlowId, Rule)>) -> io::Result<()> {
        let outgoing = rules.iter().any(|(_, rule)| rule.includes_outgoing());
        let listen = !rules.is_empty();
        let before = self.rules.swap(Arc::new(rules));
        let told = self.socket.listen(listen, outgoing);
        if told.is_err() {
            self.rules.store(before);
        }
        told
    }

    /// Sends the frames that the queue pair has, up to a bound; returns whether it has more.
    pub fn drain(
        &self,
        transport: &mut QueuePair,
        memory: &View,
        buffer: &mut [u8],
        counters: &DeviceCounters,
    ) -> bool {
        for _ in 0..FRAMES {
            let Some(len) = transport.poll_frame(memory, buffer) else { return false };
            DeviceCounters::count(&counters.sent_pkts);
            DeviceCounters::add(&counters.sent_octets, len as u64);
            DeviceCounters::count(&counters.tx_calls);
            // As on a card, a frame that the interface does not take is lost.
            if let Err(error) = self.socket.send(&buffer[..len]) {
                DeviceCounters::count(&counters.send_err);
                tracing::debug!(%error, len, "the system refuses a frame");
            }
        }
        true
    }
}

impl AsFd for FramePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
