//! The straight way: one message of one packet, on a reliable connection on which nothing is lost and nothing
//! waits.
//!
//! The state machine asks for each packet what may be the matter: loss, pacing, flow control, held requests,
//! a change of state. While the connection is *calm* the answer to all of these is known, and a packet takes
//! the few steps that are left, which are the state machine's own: windows, budget, timers, counters, memory.
//! So a rule stands in one place only. What is not calm, or is no packet of the common kinds (SEND and WRITE
//! without immediate data, and the ACK of either), goes to the state machine.
//!
//! Each function here either has the whole effect that the state machine would have had, or returns `false`
//! and leaves a state from which the state machine has the same effect as without the call.
//! `tests/rc/straight.rs` drives pairs with and without the straight way through the same events, and
//! compares all that comes out.

use ferroce_wire::{Flow, IcrcStatus, Instant, Operation, Packet, Pkey, RcPacket, Request, Response, Sink};

use super::QueuePair;
use super::completer::Completer;
use super::recovery::SendSide;
use crate::{Memory, QpState, Service};

impl QueuePair {
    /// Has the state machine alone at work, or with `on`, which is the default, the straight way before it.
    /// The two differ in nothing but speed.
    pub fn use_straight_way(&mut self, on: bool) {
        self.common.straight = on && self.service == Service::Rc;
    }

    /// Whether anything else than the straight way was at work since the last call. If not, the queue pair's
    /// state and the rights of the peer are the same, and of its counters only `sent_pkts`, `rcvd_pkts`,
    /// `sent_acks`, `rdma_sends` and `rdma_recvs` may have grown.
    #[inline]
    pub fn take_strayed(&mut self) -> bool {
        core::mem::replace(&mut self.strayed, false) || self.service != Service::Rc
    }

    /// As [`Self::poll_transmit`], if one request or one ACK is all there is to send, and goes the straight
    /// way. `out` is empty.
    #[inline]
    pub fn transmit_straight(&mut self, now: Instant, mem: &mut impl Memory, out: &mut impl Sink) -> bool {
        let Self { common, pipeline, roles, .. } = self;
        let Some(reliable) = roles.reliable_mut() else { return false };
        if !common.straight || common.state() != QpState::Rts || !common.is_calm() || !reliable.is_calm() {
            return false;
        }
        let held = reliable.delays_ack();
        let has_ack = reliable.responder.only_ack_pending() && !held;
        if pipeline.is_at_tail() {
            return has_ack
                && !reliable.requester.recovery.repeats()
                && reliable.responder.transmit_ack(common, out);
        }
        !has_ack
            && (held || reliable.responder.is_silent())
            && reliable.requester.transmit_one(&mut SendSide { now, common, pipeline }, mem, out)
    }

    /// As [`Self::handle_datagram`], for a packet that is taken.
    #[inline]
    pub(super) fn handle_straight(
        &mut self,
        now: Instant,
        from: &Flow,
        packet: &Packet<'_>,
        mem: &mut impl Memory,
    ) -> bool {
        let Self { common, pipeline, roles, .. } = self;
        let (Some(reliable), Operation::Rc(op)) = (roles.reliable_mut(), &packet.op) else { return false };
        let (bth, peer) = (&packet.bth, &common.attr.path);
        let is_meant = packet.icrc == IcrcStatus::Checked
            && bth.dest_qp == common.qpn
            && from.source == peer.destination
            && !from.destination.is_multicast()
            && from.link.version == peer.link.version
            && !from.is_marked()
            && bth.pkey.matches(Pkey::DEFAULT);
        if !common.straight || common.state() != QpState::Rts || !is_meant {
            return false;
        }
        let taken = match op {
            RcPacket::Request(request @ (Request::SendOnly { .. } | Request::WriteOnly { .. })) => {
                reliable.responder.serve_one(now, common, bth, request, mem)
            }
            RcPacket::Response(Response::Acknowledge { aeth }) => {
                let agrees = bth.extended && !reliable.requester.recovery.is_agreed();
                let side = SendSide { now, common, pipeline };
                let taken = !agrees
                    && Completer { side, requester: &mut reliable.requester }.acknowledged(bth.psn, *aeth);
                if taken {
                    self.follow_queue();
                }
                taken
            }
            _ => false,
        };
        self.common.counters.rcvd_pkts += u64::from(taken);
        taken
    }
}
