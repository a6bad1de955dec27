//! The receive half of a queue pair, the same for all services: where WQEs come from, the one in use,
//! completions.

use ferroce_wire::{Qpn, Rkey, SrqNumber};

use crate::receive::queue::ReceiveQueue;
use crate::ring::Ring;
use crate::{
    CreateQpError, Domain, Memory, MemoryError, PostRecvError, QpConfig, QpEvent, ReceiveSource, RecvWqe,
    RecvWr, Service, SharedReceives, Taken, WcOpcode, WcStatus, WorkCompletion,
};

/// Most receive completions that may wait to be fetched, where the receive queue has as many WQEs. A batch of
/// datagrams holds fewer.
const MAX_COMPLETIONS: u32 = 1023;

#[derive(Debug)]
pub(crate) struct Receiving {
    queue: Queue,
    /// The WQE in use, if `bound`.
    wqe: RecvWqe,
    bound: bool,
    completions: Ring<QpEvent>,
}

#[derive(Debug)]
enum Queue {
    Own(ReceiveQueue),
    Shared,
    /// Each request names a queue of an XRC domain.
    XrcDomain {
        own_memory: bool,
    },
    /// XRC initiators receive nothing.
    Nothing,
}

/// The shared queues that are open to one packet.
pub(crate) struct SharedQueues<'a, S> {
    pub source: &'a mut S,
    /// The queue that the packet names: XRC.
    pub named: Option<SrqNumber>,
}

/// The packet names a queue that its XRC domain does not have, or not its message's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoSuchQueue;

/// A message of a connected peer whose last packet has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Send { received: u64 },
    Write { rkey: Rkey, addr: u64, remaining: u32, length: u32 },
}

impl Message {
    /// Octets of it that have come, of a send.
    pub const fn received(self) -> u64 {
        match self {
            Self::Send { received } => received,
            Self::Write { .. } => 0,
        }
    }
}

impl Receiving {
    pub fn new(config: &QpConfig) -> Result<Self, CreateQpError> {
        let QpConfig { service, caps, srq, .. } = *config;
        let queue = match (service, srq) {
            (Service::XrcTarget, Some(SharedReceives::XrcDomain { own_memory, .. })) => {
                Queue::XrcDomain { own_memory }
            }
            (Service::XrcInitiator, None) => Queue::Nothing,
            (Service::Rc | Service::Uc | Service::Ud | Service::RawPacket | Service::Iwarp, None) => {
                Queue::Own(ReceiveQueue::new(caps.max_recv_wr, caps.max_recv_sge))
            }
            (
                Service::Rc | Service::Uc | Service::Ud | Service::RawPacket | Service::Iwarp,
                Some(SharedReceives::Queue { .. }),
            ) => Queue::Shared,
            (_, Some(_)) | (Service::XrcTarget, None) => return Err(CreateQpError::SharedReceives(service)),
        };
        let (max_wr, max_sge) =
            srq.map_or((caps.max_recv_wr, caps.max_recv_sge), |shared| (u32::MAX, shared.max_sge()));
        let max_completions = max_wr.clamp(1, MAX_COMPLETIONS);
        Ok(Self { queue, wqe: RecvWqe::new(max_sge), bound: false, completions: Ring::new(max_completions) })
    }

    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match &mut self.queue {
            Queue::Own(queue) => queue.post(wr),
            Queue::Shared => Err(PostRecvError::Shared),
            Queue::XrcDomain { .. } | Queue::Nothing => Err(PostRecvError::Xrc),
        }
    }

    pub fn clear(&mut self) {
        if let Queue::Own(queue) = &mut self.queue {
            queue.clear();
        }
        self.bound = false;
        self.completions.clear();
    }

    /// Whether one more message can be completed.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.completions.has_room()
    }

    /// Whether a completion waits to be fetched.
    #[inline]
    pub fn has_completed(&self) -> bool {
        !self.completions.is_empty()
    }

    #[inline]
    pub fn bound(&self) -> Option<&RecvWqe> {
        self.bound.then_some(&self.wqe)
    }

    /// Binds the oldest WQE if it holds `least` octets, unless one is in use already. A WQE that was taken is
    /// never given back.
    pub fn take(&mut self, shared: &mut SharedQueues<'_, impl ReceiveSource>, least: u64) -> Taken {
        if self.bound {
            return Taken::Wqe;
        }
        let taken = match &mut self.queue {
            Queue::Own(queue) => queue.take(&mut self.wqe, least),
            Queue::Shared => shared.source.take(None, &mut self.wqe, least),
            Queue::XrcDomain { .. } => {
                let taken = shared.source.take(shared.named, &mut self.wqe, least);
                self.wqe.queue = shared.named;
                taken
            }
            Queue::Nothing => Taken::Empty,
        };
        self.bound = taken == Taken::Wqe;
        taken
    }

    /// Binds the oldest WQE of the queue pair's own queue, if that holds `len` octets. None is in use.
    #[inline(always)]
    pub fn take_own(&mut self, len: usize) -> bool {
        let Queue::Own(queue) = &mut self.queue else { return false };
        self.bound = queue.take(&mut self.wqe, len as u64) == Taken::Wqe;
        self.bound
    }

    /// Checks that the queue that the packet names is there, and if the packet `continues` the message of the
    /// WQE in use, that this WQE came from it (IBTA A14). Returns the domain to look for remote keys in, if
    /// not in the queue pair's.
    pub fn check_named(
        &self,
        shared: &SharedQueues<'_, impl ReceiveSource>,
        continues: bool,
    ) -> Result<Option<Domain>, NoSuchQueue> {
        let Queue::XrcDomain { own_memory } = self.queue else { return Ok(None) };
        let domain = shared.named.and_then(|number| shared.source.domain_of(number)).ok_or(NoSuchQueue)?;
        if continues && self.bound && self.wqe.queue != shared.named {
            return Err(NoSuchQueue);
        }
        Ok(if own_memory { None } else { Some(domain) })
    }

    /// Copies a message's octets from `offset` on into the WQE in use.
    #[inline(always)]
    pub fn scatter(&self, offset: u64, octets: &[u8], mem: &mut impl Memory) -> Result<(), MemoryError> {
        if octets.is_empty() { Ok(()) } else { self.wqe.scatter(offset, octets, mem) }
    }

    /// Completes the WQE in use.
    #[inline(always)]
    pub fn complete(&mut self, completion: WorkCompletion) {
        if core::mem::take(&mut self.bound) {
            let completion = WorkCompletion { wr_id: self.wqe.wr_id, ..completion };
            match self.wqe.queue {
                None => self.completions.push(QpEvent::Recv(completion)),
                Some(number) => self.completions.push(QpEvent::RecvXrc(number, completion)),
            }
        }
    }

    /// Completes the WQE in use, if any, in error.
    #[cold]
    pub fn fail(&mut self, status: WcStatus, qpn: Qpn) {
        self.complete(WorkCompletion { status, opcode: WcOpcode::Recv, qpn, ..WorkCompletion::BLANK });
    }

    /// The next completion; in the `error` state, once those of success are out, that of the WQE in use.
    #[inline]
    pub fn poll_completion(&mut self, error: bool, qpn: Qpn) -> Option<QpEvent> {
        if self.completions.is_empty() && error {
            self.fail(WcStatus::WrFlushErr, qpn);
        }
        self.completions.pop()
    }

    /// Completes the oldest WQE of the queue pair's own queue because of the error state. WQEs of a shared
    /// queue stay there (IBTA 10.2.9.5).
    pub fn flush(&mut self, qpn: Qpn) -> Option<QpEvent> {
        let Queue::Own(queue) = &mut self.queue else { return None };
        self.wqe.fill(queue.pop_flushed()?, &[], 0);
        self.bound = true;
        self.poll_completion(true, qpn)
    }
}
