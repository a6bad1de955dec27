//! A queue pair's source of receive WQEs.

use alloc::sync::Arc;

use ferroce_wire::SrqNumber;

use super::receive_queue::{NoSuchQueue, ReceiveQueue, ReceiveSource};
use crate::supply::{Domain, ReceiveSupply, RecvWqe, Supply, Taken, XrcDomain};
use crate::{CreateQpError, PostRecvError, QpCaps, RecvWr, Service};

/// Its own queue, or one that it shares.
#[derive(Debug)]
pub(crate) enum Receives {
    Own(ReceiveQueue),
    Shared(Arc<dyn ReceiveSupply>),
    /// The queue that the request at hand names.
    Named {
        xrcd: Arc<dyn XrcDomain>,
        own_memory: bool,
        number: SrqNumber,
    },
    /// It receives nothing: XRC's initiators.
    Nothing,
}

impl Receives {
    pub fn new(service: Service, caps: QpCaps, supply: Option<Supply>) -> Result<Self, CreateQpError> {
        match (service, supply) {
            (Service::XrcTarget, Some(Supply::Named { xrcd, own_memory })) => {
                Ok(Self::Named { xrcd, own_memory, number: SrqNumber::new(0) })
            }
            (Service::XrcInitiator, None) => Ok(Self::Nothing),
            (Service::Rc | Service::Uc | Service::Ud | Service::RawPacket, None) => {
                Ok(Self::Own(ReceiveQueue::new(caps.max_recv_wr, caps.max_recv_sge)))
            }
            (Service::Rc | Service::Uc | Service::Ud | Service::RawPacket, Some(Supply::Shared(shared))) => {
                Ok(Self::Shared(shared))
            }
            (_, Some(_)) | (Service::XrcTarget, None) => Err(CreateQpError::Supply(service)),
        }
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match self {
            Self::Own(queue) => queue.post(wr),
            Self::Shared(_) => Err(PostRecvError::Shared),
            Self::Named { .. } | Self::Nothing => Err(PostRecvError::Xrc),
        }
    }

    /// The oldest WQE that the error state flushes: what is in a shared queue stays there (IBTA 10.2.9.5).
    pub fn pop_flushed(&mut self) -> Option<u64> {
        match self {
            Self::Own(queue) => queue.pop_flushed(),
            Self::Shared(_) | Self::Named { .. } | Self::Nothing => None,
        }
    }

    /// RESET.
    pub fn clear(&mut self) {
        match self {
            Self::Own(queue) => queue.clear(),
            Self::Shared(_) | Self::Named { .. } | Self::Nothing => {}
        }
    }

    /// The queue that the packet at hand names.
    pub fn name(&mut self, named: SrqNumber) {
        if let Self::Named { number, .. } = self {
            *number = named;
        }
    }
}

impl ReceiveSource for Receives {
    fn take(&mut self, wqe: &mut RecvWqe, least: u64) -> Taken {
        match self {
            Self::Own(queue) => queue.take(wqe, least),
            Self::Shared(supply) => supply.take(wqe, least),
            Self::Named { xrcd, number, .. } => {
                let taken = xrcd.take(*number, wqe);
                wqe.queue = Some(*number);
                taken
            }
            Self::Nothing => Taken::Empty,
        }
    }

    fn named(&self, bound: Option<&RecvWqe>) -> Result<Option<Domain>, NoSuchQueue> {
        let Self::Named { xrcd, own_memory, number } = self else { return Ok(None) };
        let domain = xrcd.domain_of(*number).ok_or(NoSuchQueue)?;
        if bound.is_some_and(|wqe| wqe.queue != Some(*number)) {
            return Err(NoSuchQueue);
        }
        Ok(if *own_memory { None } else { Some(domain) })
    }
}
