//! The last ACKs of a queue pair that its program is about to end.

use super::QueuePair;
use crate::QpState;

impl QueuePair {
    /// Queues copies of the last ACK, for a program that is about to end the queue pair; `true` if there are any to send.
    ///
    /// If the ACK of the last request gets lost, the peer repeats that request towards a queue pair that is gone, and gets
    /// `IBV_WC_RETRY_EXC_ERR` for a message that was received. Only a peer that agreed to selective repeat gets copies, because no other
    /// peer was tried with them.
    pub fn repeat_ack(&mut self) -> bool {
        let serves = matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        serves && self.roles.reliable_mut().is_some_and(|reliable| reliable.responder.repeat_ack())
    }
}
