//! Held requests: when they are put away, executed and given up.

use core::time::Duration;

use ferroce_wire::{Bth, Instant, Operation, RcPacket, Request};

use super::super::common::Common;
use super::super::receiving::SharedQueues;
use super::Responder;
use crate::{Budget, Memory, ReceiveSource};

/// Number of ACK timeouts without progress after which held requests are given up.
const HOLD_TIMEOUTS: u32 = 4;
/// The ACK timeout of a queue pair that has none, for this purpose.
const NO_ACK_TIMEOUT: Duration = Duration::from_millis(500);

impl Responder {
    /// Executes the held requests up to the next gap.
    pub(super) fn execute_held(
        &mut self,
        now: Instant,
        common: &mut Common,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) {
        let mut acknowledge = false;
        while common.answers() && self.has_room(common) {
            let Some(taken) = self.held.take(self.expected) else { break };
            let mut executed = false;
            if let Some(packet) = taken.packet()
                && let Operation::Rc(RcPacket::Request(request))
                | Operation::Xrc { packet: RcPacket::Request(request), .. } = packet.op
            {
                if let Operation::Xrc { srq, .. } = packet.op {
                    queues.named = srq;
                }
                executed = self.handle_one(common, &packet.bth, &request, queues, mem).is_ok();
                // The answers to reads and atomics acknowledge what is before them.
                acknowledge = executed && !is_answered(&request);
            }
            self.held.put_back(taken, common.budget.hold());
            common.counters.held_executed += u64::from(executed);
            if !executed {
                break;
            }
            self.hold_deadline = None;
        }
        if acknowledge {
            // The peer may be about to send all of it again: it hears at once how far we are.
            self.replies.acknowledge(self.expected.add(u32::MAX), self.msn);
        }
        self.report_due |= self.reports && !self.held.is_empty();
        if self.held.is_empty() {
            self.drop_held(&common.budget);
        } else if self.hold_deadline.is_none() {
            let timeout = common.ack_timeout().unwrap_or(NO_ACK_TIMEOUT.into());
            self.hold_deadline = Some(now + timeout * HOLD_TIMEOUTS);
        }
    }

    /// Holds a request that came too early. `false`: it is dropped.
    pub(super) fn hold(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        queues: &SharedQueues<'_, impl ReceiveSource>,
    ) -> bool {
        let distance = bth.psn.since(self.expected) as u32;
        if self.not_ready || self.held.contains(distance) {
            // The first of two copies counts.
            return false;
        }
        let held = self.held.put(distance, bth, request, queues.named, common);
        common.counters.held_request += u64::from(held);
        common.counters.held_no_room += u64::from(!held);
        held
    }

    pub(super) fn drop_held(&mut self, budget: &Budget) {
        self.held.clear(budget.hold());
        (self.hold_deadline, self.report_due) = (None, false);
    }
}

/// Whether an answer of its own acknowledges the request.
const fn is_answered(request: &Request<'_>) -> bool {
    match request {
        Request::ReadRequest { .. }
        | Request::CompareSwap { .. }
        | Request::FetchAdd { .. }
        | Request::Flush { .. }
        | Request::AtomicWrite { .. } => true,
        Request::SendFirst { .. }
        | Request::SendMiddle { .. }
        | Request::SendLast { .. }
        | Request::SendOnly { .. }
        | Request::WriteFirst { .. }
        | Request::WriteMiddle { .. }
        | Request::WriteLast { .. }
        | Request::WriteOnly { .. } => false,
    }
}
