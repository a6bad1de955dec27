//! The resources of a queue pair, and the reports of its endpoint to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ferroce_ipc::ledger::Entry;
use ferroce_paths::faults::{self, QpName, WcError};
use ferroce_proto::history::Event;
use ferroce_proto::{
    AsyncEventKind, Domain, QpAttr, QpAttrMask, QpEvent, QpState, QueuePair, RecvWqe, Taken, WcStatus,
    WorkCompletion,
};
use ferroce_wire::{Instant, SrqNumber};
use parking_lot::Mutex;

use super::Qp;
use super::share::Target;
use crate::cq::Pushed;
use crate::lane::{Lane, Outputs, Published};
use crate::{CompletionQueue, Pd, Srq, Xrcd};

/// The objects that a queue pair uses as long as it lives.
pub(super) struct Resources {
    pub(super) me: Weak<Qp>,
    /// As that of the endpoint.
    pub(super) name: QpName,
    /// Completions of the send queue, counted while a plan of faults is in force.
    pub(super) sent: AtomicU64,
    pub(super) pd: Arc<Pd>,
    pub(super) send_cq: Option<Arc<CompletionQueue>>,
    pub(super) recv_cq: Option<Arc<CompletionQueue>>,
    pub(super) srq: Option<Arc<Srq>>,
    pub(super) target: Option<Target>,
    /// Completion queues that were overrun, until their users fail.
    pub(super) overrun: Mutex<Vec<Arc<CompletionQueue>>>,
}

impl Resources {
    /// The completion queues; twice the same if both are one.
    pub(super) fn cqs(&self) -> impl Iterator<Item = &Arc<CompletionQueue>> {
        self.send_cq.iter().chain(&self.recv_cq)
    }

    pub(super) fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.target.as_ref().map(|target| &target.xrcd)
    }

    /// Queues an event for each holder of the queue pair.
    fn report(&self, kind: AsyncEventKind) {
        if self.target.as_ref().is_none_or(|target| target.sharing.report(kind)) {
            self.pd.context().async_events().push(kind, self.me.clone());
        }
    }
}

impl Resources {
    /// A plan of faults may have a work request complete with an error. As with a real one, the queue pair
    /// then enters the error state.
    #[cold]
    fn judge(&self, transport: &mut QueuePair, completion: &mut WorkCompletion) {
        let msg = self.sent.fetch_add(1, Ordering::Relaxed);
        let Some(error) = faults::completion(&self.name, msg) else { return };
        if completion.status == WcStatus::Success {
            completion.status = status_of(error);
            let to_error = QpAttr { state: QpState::Error, ..transport.query() };
            if let Err(error) = transport.modify(&to_error, QpAttrMask::STATE) {
                tracing::error!(%error, "a queue pair did not enter the error state");
            }
        }
    }
}

impl Resources {
    /// A plan of faults may end a process when a receive work request completes.
    fn received(&self, by_plan: bool) {
        if by_plan {
            faults::moment(faults::Moment::Received, Some(&self.name), None);
        }
    }
}

const fn status_of(error: WcError) -> WcStatus {
    match error {
        WcError::LocLen => WcStatus::LocLenErr,
        WcError::LocQpOp => WcStatus::LocQpOpErr,
        WcError::LocProt => WcStatus::LocProtErr,
        WcError::MwBind => WcStatus::MwBindErr,
        WcError::RemInvReq => WcStatus::RemInvReqErr,
        WcError::RemAccess => WcStatus::RemAccessErr,
        WcError::RemOp => WcStatus::RemOpErr,
        WcError::RetryExc => WcStatus::RetryExcErr,
        WcError::RnrRetryExc => WcStatus::RnrRetryExcErr,
    }
}

#[cold]
fn record_failure(record: &Entry, failed: &WorkCompletion, now: Instant) {
    let event = Event::failed(now, failed.status, failed.opcode, failed.wr_id);
    if !Event::is_flush(event) || !record.events().last().is_some_and(Event::is_flush) {
        record.happened(event);
    }
}

impl Resources {
    #[inline(never)]
    fn publish_events(&self, transport: &mut QueuePair, record: &Entry, now: Instant) -> Published {
        let mut published = Published::default();
        let by_plan = faults::calls();
        // To ask for an event that is not there costs more than the first look.
        while transport.may_have_events() {
            let queue;
            // The event stays where it is: to move it costs a copy.
            let mut event = transport.poll_event();
            let (cq, completion) = match &mut event {
                None => break,
                Some(QpEvent::Send(completion)) => {
                    if by_plan {
                        self.judge(transport, completion);
                    }
                    (self.send_cq.as_ref(), completion)
                }
                Some(QpEvent::Recv(completion)) => {
                    published.receives += 1;
                    self.received(by_plan);
                    (self.recv_cq.as_ref(), completion)
                }
                Some(QpEvent::RecvXrc(number, completion)) => {
                    published.receives += 1;
                    self.received(by_plan);
                    queue = self.xrcd().and_then(|xrcd| xrcd.domain().cq_of(*number));
                    (queue.as_ref(), completion)
                }
                Some(QpEvent::Async(event)) => {
                    self.report(*event);
                    continue;
                }
            };
            transport.count(completion);
            if completion.status != WcStatus::Success {
                record_failure(record, completion, now);
            }
            // A queue that ended took its completions with it.
            let Some(cq) = cq else { continue };
            if cq.push(completion, now) == (Pushed::Lost { first: true }) {
                published.overrun += 1;
                self.overrun.lock().push(Arc::clone(cq));
            }
        }
        published
    }
}

impl Outputs for Resources {
    fn publish(&self, transport: &mut QueuePair, record: &Entry, now: Instant) -> Published {
        // Visits that only answer a packet have no events.
        if transport.may_have_events() {
            self.publish_events(transport, record, now)
        } else {
            Published::default()
        }
    }

    fn fail_overrun(&self) {
        let overrun = std::mem::take(&mut *self.overrun.lock());
        overrun.iter().for_each(fail_users);
    }

    fn reports_by_events(&self) -> bool {
        self.cqs().any(|cq| cq.sleeps())
    }

    fn wakes_program(&self) -> bool {
        self.recv_cq.as_ref().is_some_and(|cq| cq.wakes_program())
    }

    fn send_polls(&self) -> u64 {
        self.send_cq.as_ref().map_or(0, |cq| cq.polls())
    }

    fn add_lane(&self, lane: &Arc<Lane>) {
        self.cqs().for_each(|cq| cq.add_lane(lane));
        self.xrcd().inspect(|xrcd| xrcd.domain().add_lane(lane));
    }

    fn remove_lane(&self, lane: &Arc<Lane>) {
        self.cqs().for_each(|cq| cq.remove_lane(lane));
        self.xrcd().inspect(|xrcd| xrcd.domain().remove_lane(lane));
    }

    fn take(&self, number: Option<SrqNumber>, wqe: &mut RecvWqe, least: u64) -> Taken {
        match (number, &self.srq, self.xrcd()) {
            (None, Some(srq), _) => srq.take(wqe, least),
            (Some(number), _, Some(xrcd)) => xrcd.domain().take(number, wqe, least),
            _ => Taken::Empty,
        }
    }

    fn domain_of(&self, number: SrqNumber) -> Option<Domain> {
        self.xrcd()?.domain().domain_of(number)
    }
}

/// Takes all that use a queue that was overrun to the error state.
fn fail_users(overrun: &Arc<CompletionQueue>) {
    let engine = overrun.context().engine();
    let is_overrun = |cq: &Arc<CompletionQueue>| Arc::ptr_eq(cq, overrun);
    for qp in Qp::all(engine).filter(|qp| qp.cqs().any(is_overrun)) {
        qp.endpoint.fail();
    }
    let srqs = Srq::table(engine);
    for srq in srqs.iter().filter(|srq| srq.xrc().is_some_and(|xrc| is_overrun(&xrc.cq))) {
        srq.fail();
    }
}
