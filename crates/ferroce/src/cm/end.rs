//! The parts that both ends need: a device, a protection domain, and a queue pair that takes receives.

use ferroce_engine::cm::attributes::ConnectedAttr;
use ferroce_engine::cm::resolve::Route;
use ferroce_engine::cm::steps;
use ferroce_engine::{QpState, Service};

use super::{ConnectError, context};
use crate::declare::setters;
use crate::{
    Access, CompletionQueue, Error, Init, ProtectionDomain, QpOptions, QueuePair, ReadyToReceive, ReadyToSend,
};

/// Reads and atomics of a queue pair that may be in flight.
const MOST_READS: u8 = ferroce_engine::MAX_RD_ATOM as u8;

/// Options for one end of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndOptions {
    /// Sizes of the queue pair's queues.
    pub queues: QpOptions,
    /// Protection domain of the queue pair; `None` allocates a new one in the context that connections over
    /// the device share. A given domain must belong to the device that has the address, see
    /// [`Request::device`](super::Request::device) and
    /// [`Connector::device_for`](super::Connector::device_for).
    pub domain: Option<ProtectionDomain>,
    /// Completion queue of the sends; `None` creates a queue with a channel for this end alone.
    pub send_queue: Option<CompletionQueue>,
    /// Completion queue of the receives; `None` creates a queue with a channel for this end alone.
    pub receive_queue: Option<CompletionQueue>,
    /// READs and atomics that the peer may have in flight, 0 to 128. The peer may ask for fewer.
    pub responder_resources: u8,
    /// READs and atomics that this end may have in flight, 0 to 128. The peer may admit fewer.
    pub initiator_depth: u8,
    /// Retries before the connection is given up, 0 to 7. The connecting end's value counts for both.
    pub retry_cnt: u8,
    /// Retries of the peer while this end has no receive posted, 0 to 6; 7 retries forever.
    pub rnr_retry: u8,
    /// The time that the peer waits before such a retry: code 0 to 31 of IBTA table 45. 12 is 0.64 ms; 0,
    /// which Linux's connection management sets, is 655 ms.
    pub min_rnr_timer: u8,
    /// DSCP and ECN bits of the packets, `None` for the device's default. The connecting end's value counts
    /// for both.
    pub traffic_class: Option<u8>,
}

impl Default for EndOptions {
    /// 16 READs each way, 7 retries, RNR without end each 0.64 ms, everything else made anew.
    fn default() -> Self {
        Self {
            queues: QpOptions::default(),
            domain: None,
            send_queue: None,
            receive_queue: None,
            responder_resources: 16,
            initiator_depth: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: None,
        }
    }
}

setters! {
    EndOptions {
        queues: QpOptions,
        domain: ProtectionDomain,
        send_queue: CompletionQueue,
        receive_queue: CompletionQueue,
        responder_resources: u8,
        initiator_depth: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        min_rnr_timer: u8,
        traffic_class: u8,
    }
}

impl EndOptions {
    pub(super) fn check(&self) -> Result<(), ConnectError> {
        let deepest = self.responder_resources.max(self.initiator_depth);
        if deepest > MOST_READS {
            return Err(ConnectError::Depth { given: deepest, max: MOST_READS });
        }
        Ok(())
    }
}

/// An end before it is connected.
pub(super) struct End {
    pub(super) domain: ProtectionDomain,
    pub(super) qp: QueuePair<Init>,
    pub(super) route: Route,
    min_rnr_timer: u8,
}

impl End {
    /// Makes what the options do not bring, on the device of the route.
    pub(super) fn new(route: Route, options: &EndOptions) -> Result<Self, Error> {
        options.check()?;
        let domain = match &options.domain {
            Some(domain) => domain.clone(),
            None => context::shared(&route.local.device)?.protection_domain()?,
        };
        let device = domain.context();
        let own = |given: &Option<CompletionQueue>, entries: u32| match given {
            Some(queue) => Ok(queue.clone()),
            None => device.completion_queue(entries.max(1), Some(&device.completion_channel()?)),
        };
        let send = own(&options.send_queue, options.queues.max_send_wr)?;
        let receive = own(&options.receive_queue, options.queues.max_recv_wr)?;
        // RoCE sets the peer's access rights again once the number of its reads is known.
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let access = if route.is_iwarp() { all } else { Access::empty() };
        let qp = domain.rc_queue_pair(&send, &receive, options.queues)?.init(access)?;
        Ok(Self { domain, qp, route, min_rnr_timer: options.min_rnr_timer })
    }

    /// Brings the queue pair to where both ends can send. `class` and `hops` are those of the request.
    pub(super) fn connect(
        self,
        agreed: &ConnectedAttr,
        label: u32,
        class: u8,
        hops: u8,
    ) -> Result<QueuePair<ReadyToSend>, Error> {
        let ah = self.route.address(label, class, hops);
        let agreed = ConnectedAttr { min_rnr_timer: self.min_rnr_timer, ..*agreed };
        let attr = |to| steps::step(Service::Rc, to, &agreed, ah).0;
        let qp = self.qp.step::<Init>(&attr(QpState::Init))?;
        let qp = qp.step::<ReadyToReceive>(&attr(QpState::Rtr))?;
        Ok(qp.step::<ReadyToSend>(&attr(QpState::Rts))?)
    }
}
