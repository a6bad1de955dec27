//! The last ACKs of a queue pair that its program is about to end.

use ferroce_wire::Instant;

use super::QueuePair;
use crate::QpState;

impl QueuePair {
    /// Queues copies of the last ACK, for a program that is about to end the queue pair; `true` if there are
    /// any to send.
    ///
    /// If the ACK of the last request gets lost, the peer repeats that request towards a queue pair that is
    /// gone, and gets `IBV_WC_RETRY_EXC_ERR` for a message that was received. Only a peer that agreed to
    /// selective repeat gets copies, because no other peer was tried with them.
    ///
    /// There are none a second after the last request, when its repeats would have been answered, and none
    /// while requests wait to be sent, because they would leave as well.
    pub fn repeat_ack(&mut self, now: Instant) -> bool {
        let serves = matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        serves
            && self.pipeline.at_cursor().is_none()
            && self.roles.reliable_mut().is_some_and(|reliable| reliable.responder.repeat_ack(now))
    }
}
