//! Direct operations: one-sided operations that the caller executes itself: the peer is a process of this
//! host, and its memory can be reached without packets.
//!
//! A request is offered only while nothing before it is under way, so that it takes effect in the order of
//! the queue, and so that the packets of a request that the caller cannot execute leave as if it had never
//! been offered. It takes no PSN: the peer's responder does not learn of it.

use super::QueuePair;
use crate::counting::CountedOp;
use crate::{DirectKind, DirectRequest, DirectTarget, QpAccess, QpState, SendOp, Service, WcStatus};

impl QueuePair {
    /// The request that is `ahead` places behind the head of the send queue, if it and all before it may be
    /// executed now by the caller instead of by packets.
    pub fn direct_request(&self, ahead: u32) -> Option<DirectRequest<'_>> {
        let ready = match self.service {
            Service::Rc => self.pipeline.is_idle() && self.roles.reliable()?.requester.recovery.is_idle(),
            // No answer says that packets have arrived, and a copy must not overtake them.
            Service::Uc => self.pipeline.is_idle() && !self.pipeline.has_sent(),
            Service::Ud
            | Service::RawPacket
            | Service::XrcInitiator
            | Service::XrcTarget
            | Service::Iwarp => false,
        };
        if !ready || self.state() != QpState::Rts {
            return None;
        }
        let queue = &self.pipeline.queue;
        let index = queue.done() + u64::from(ahead);
        let wqe = queue.get(index).filter(|wqe| wqe.may_be_direct())?;
        let (kind, remote) = match wqe.op {
            SendOp::Write { remote } => (DirectKind::Write, remote),
            SendOp::Read { remote } if self.common.attr.max_rd_atomic > 0 => (DirectKind::Read, remote),
            _ => return None,
        };
        Some(DirectRequest { index, kind, remote, length: wqe.length, local: queue.local(index) })
    }

    /// Whether the next request to send is one that the caller may be able to execute, once nothing before it
    /// is under way.
    pub fn is_direct_next(&self) -> bool {
        self.pipeline.at_cursor().is_some_and(|(_, wqe)| wqe.may_be_direct())
    }

    /// The requests of the send queue that were completed since it began; `None` if no answers complete them.
    pub fn sends_answered(&self) -> Option<u64> {
        (self.service == Service::Rc).then(|| self.pipeline.queue.done())
    }

    /// With `prefer`, a request that the caller may be able to execute does not leave by packets behind
    /// others of its kind: it waits until those are completed, so that the caller gets a stream of requests
    /// back that once took packets.
    pub fn prefer_direct(&mut self, prefer: bool) {
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.requester.prefer_direct(prefer);
        }
    }

    /// Notes that the caller executed the first request of [`direct_request`](Self::direct_request): it is
    /// completed. Does nothing without such a request.
    pub fn complete_direct(&mut self) {
        let Some(request) = self.direct_request(0) else { return };
        self.common.counters.rdma_sends += u64::from(request.kind == DirectKind::Write);
        if let Some(reliable) = self.roles.reliable_mut() {
            reliable.requester.unblock(&self.common);
        }
        self.pipeline.executed_locally();
        self.after_change();
    }

    /// The peer's queue pair has begun another connection: the first request of
    /// [`direct_request`](Self::direct_request) gets no answer any more, and fails as one without an answer.
    /// `false` without such a request, or if the service has no answers ([`Service::Uc`]).
    pub fn lose_peer(&mut self) -> bool {
        let loses = self.service == Service::Rc && self.direct_request(0).is_some();
        if loses {
            self.common.counters.retry_exceeded_err += 1;
            self.fail_send(self.pipeline.queue.done(), WcStatus::RetryExcErr.into());
            self.after_change();
        }
        loses
    }

    /// The rights of the peer now; `None` in states without answers, and before the first request in RTR,
    /// which must raise an event. Operations that a completion counter counts take packets, so they are
    /// left out.
    pub fn direct_target(&self) -> Option<DirectTarget> {
        let common = &self.common;
        let serves = match self.state() {
            QpState::Rtr => common.is_established(),
            _ => common.answers(),
        };
        let connected = matches!(self.service, Service::Rc | Service::Uc);
        let access = common.attr.access;
        (serves && connected).then(|| DirectTarget {
            remote: common.attr.dest_qp,
            write: access.contains(QpAccess::REMOTE_WRITE)
                && !common.counting.counts(CountedOp::RemoteRdmaWrite),
            read: self.service == Service::Rc
                && !common.counting.counts(CountedOp::RemoteRdmaRead)
                && access.contains(QpAccess::REMOTE_READ)
                && common.attr.max_dest_rd_atomic > 0,
        })
    }
}
