//! Where a queue pair takes its receive WQEs from.

use ferroce_wire::SrqNumber;

use crate::receive::queue::ReceiveQueue;
use crate::{
    CreateQpError, Domain, PostRecvError, QpCaps, ReceiveSource, RecvWqe, RecvWr, Service, SharedReceives,
    Taken,
};

#[derive(Debug)]
pub(crate) enum ReceiveQueues {
    Own(ReceiveQueue),
    Shared,
    /// Those of an XRC domain: each request names one.
    XrcDomain {
        own_memory: bool,
    },
    /// XRC initiators receive nothing.
    Nothing,
}

impl ReceiveQueues {
    pub fn new(
        service: Service,
        caps: QpCaps,
        shared: Option<SharedReceives>,
    ) -> Result<Self, CreateQpError> {
        match (service, shared) {
            (Service::XrcTarget, Some(SharedReceives::XrcDomain { own_memory, .. })) => {
                Ok(Self::XrcDomain { own_memory })
            }
            (Service::XrcInitiator, None) => Ok(Self::Nothing),
            (Service::Rc | Service::Uc | Service::Ud | Service::RawPacket, None) => {
                Ok(Self::Own(ReceiveQueue::new(caps.max_recv_wr, caps.max_recv_sge)))
            }
            (
                Service::Rc | Service::Uc | Service::Ud | Service::RawPacket,
                Some(SharedReceives::Queue { .. }),
            ) => Ok(Self::Shared),
            (_, Some(_)) | (Service::XrcTarget, None) => Err(CreateQpError::SharedReceives(service)),
        }
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match self {
            Self::Own(queue) => queue.post(wr),
            Self::Shared => Err(PostRecvError::Shared),
            Self::XrcDomain { .. } | Self::Nothing => Err(PostRecvError::Xrc),
        }
    }

    /// The oldest WQE that the error state flushes: what is in a shared queue stays there (IBTA 10.2.9.5).
    pub fn pop_flushed(&mut self) -> Option<u64> {
        match self {
            Self::Own(queue) => queue.pop_flushed(),
            Self::Shared | Self::XrcDomain { .. } | Self::Nothing => None,
        }
    }

    /// RESET.
    pub fn clear(&mut self) {
        match self {
            Self::Own(queue) => queue.clear(),
            Self::Shared | Self::XrcDomain { .. } | Self::Nothing => {}
        }
    }
}

/// The receive queues that are open to one packet.
pub(crate) struct Receives<'a, S> {
    pub queues: &'a mut ReceiveQueues,
    /// The shared ones.
    pub source: &'a mut S,
    /// The queue that the packet names: XRC.
    pub named: Option<SrqNumber>,
}

/// The packet names a queue that its XRC domain does not have, or not its message's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoSuchQueue;

impl<S: ReceiveSource> Receives<'_, S> {
    /// Moves the oldest WQE into `wqe` if it holds `least` octets; if not, it stays. A WQE that was taken is never given
    /// back.
    pub fn take(&mut self, wqe: &mut RecvWqe, least: u64) -> Taken {
        match self.queues {
            ReceiveQueues::Own(queue) => queue.take(wqe, least),
            ReceiveQueues::Shared => self.source.take(None, wqe, least),
            ReceiveQueues::XrcDomain { .. } => {
                let taken = self.source.take(self.named, wqe, least);
                wqe.queue = self.named;
                taken
            }
            ReceiveQueues::Nothing => Taken::Empty,
        }
    }

    /// Checks that the queue that the packet names is there, and is the one that `bound`, the WQE of the message in
    /// progress, came from (IBTA A14). Returns the domain to look for remote keys in, if not in the queue pair's.
    pub fn check_named(&self, bound: Option<&RecvWqe>) -> Result<Option<Domain>, NoSuchQueue> {
        let ReceiveQueues::XrcDomain { own_memory } = *self.queues else { return Ok(None) };
        let domain = self.named.and_then(|number| self.source.domain_of(number)).ok_or(NoSuchQueue)?;
        if bound.is_some_and(|wqe| wqe.queue != self.named) {
            return Err(NoSuchQueue);
        }
        Ok(if own_memory { None } else { Some(domain) })
    }
}
