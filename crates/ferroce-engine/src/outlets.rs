//! The sockets that a queue pair sends from.

use std::sync::Arc;

use ferroce_datapath::udp::TxSocket;
use ferroce_wire::{BatchLimits, Flow};

use crate::engine::Engine;
use crate::tx::Sender;

/// Where packets leave.
pub(crate) trait Outlet {
    /// The socket of a flow; `None` if it is gone.
    fn socket(&self, flow: &Flow) -> Option<&TxSocket>;
    /// What a batch may hold.
    fn limits(&self) -> BatchLimits;
}

impl Outlet for Sender {
    fn socket(&self, _: &Flow) -> Option<&TxSocket> {
        Some(self)
    }

    fn limits(&self) -> BatchLimits {
        TxSocket::limits(self)
    }
}

/// Those of a queue pair of datagrams, by source port: found without a lock, and open as long as the queue pair may have
/// something for them, whatever becomes of the address handle. At most 256 for each local address.
#[derive(Default)]
pub(crate) struct Outlets(Vec<Arc<Sender>>);

impl Outlets {
    fn place(&self, flow: &Flow) -> Result<usize, usize> {
        let key = |flow: &Flow| (flow.source_port, flow.source);
        self.0.binary_search_by_key(&key(flow), |sender| key(&sender.flow()))
    }

    /// Sees to it that `flow` has its socket, unless that is closed.
    pub(crate) fn open(&mut self, flow: &Flow, engine: &Engine) {
        let Err(place) = self.place(flow) else { return };
        let lanes = engine.lanes();
        let mut of_address = lanes.iter().filter(|lane| lane.local() == flow.source);
        if let Some(sender) = of_address.find_map(|lane| lane.senders().datagrams_from(flow.source_port)) {
            self.0.insert(place, sender);
        }
    }
}

impl Outlet for Outlets {
    fn socket(&self, flow: &Flow) -> Option<&TxSocket> {
        self.place(flow).ok().and_then(|place| self.0.get(place)).map(|sender| &***sender)
    }

    /// They agree, but where the system refused to cut for one of them; that one sees to it.
    fn limits(&self) -> BatchLimits {
        // Without any socket packets are lost one by one.
        self.0.first().map_or(BatchLimits { max_segments: 1, gso: false }, |sender| TxSocket::limits(sender))
    }
}
