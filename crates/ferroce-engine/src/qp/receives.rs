//! The shared receive queues that a queue pair's transport takes from.

use ferroce_proto::{Domain, ReceiveSource, RecvWqe, Taken};
use ferroce_wire::SrqNumber;

use super::Qp;

/// Those of a queue pair. Each call locks the queue it takes from.
pub(super) struct Receives<'a>(pub(super) &'a Qp);

impl ReceiveSource for Receives<'_> {
    fn take(&mut self, number: Option<SrqNumber>, wqe: &mut RecvWqe, least: u64) -> Taken {
        match (number, self.0.srq(), self.0.xrcd()) {
            (None, Some(srq), _) => srq.take(wqe, least),
            (Some(number), _, Some(xrcd)) => xrcd.domain().take(number, wqe, least),
            _ => Taken::Empty,
        }
    }

    fn domain_of(&self, number: SrqNumber) -> Option<Domain> {
        self.0.xrcd()?.domain().domain_of(number)
    }
}
