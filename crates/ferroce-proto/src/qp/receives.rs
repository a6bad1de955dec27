//! A queue pair's source of receive WQEs.

use std::sync::Arc;

use super::receive_queue::{ReceiveQueue, ReceiveSource};
use crate::supply::{ReceiveSupply, RecvWqe, Taken};
use crate::{PostRecvError, QpCaps, RecvWr};

/// Its own queue, or one that it shares.
#[derive(Debug)]
pub(crate) enum Receives {
    Own(ReceiveQueue),
    Shared(Arc<dyn ReceiveSupply>),
}

impl Receives {
    pub fn new(caps: QpCaps, shared: Option<Arc<dyn ReceiveSupply>>) -> Self {
        match shared {
            Some(shared) => Self::Shared(shared),
            None => Self::Own(ReceiveQueue::new(caps.max_recv_wr, caps.max_recv_sge)),
        }
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match self {
            Self::Own(queue) => queue.post(wr),
            Self::Shared(_) => Err(PostRecvError::Shared),
        }
    }

    /// The oldest WQE that the error state flushes: what is in a shared queue stays there (IBTA 10.2.9.5).
    pub fn pop_flushed(&mut self) -> Option<u64> {
        match self {
            Self::Own(queue) => queue.pop_flushed(),
            Self::Shared(_) => None,
        }
    }

    /// RESET.
    pub fn clear(&mut self) {
        match self {
            Self::Own(queue) => queue.clear(),
            Self::Shared(_) => {}
        }
    }
}

impl ReceiveSource for Receives {
    fn take(&mut self, wqe: &mut RecvWqe) -> Taken {
        match self {
            Self::Own(queue) => queue.take(wqe),
            Self::Shared(supply) => supply.take(wqe),
        }
    }
}
