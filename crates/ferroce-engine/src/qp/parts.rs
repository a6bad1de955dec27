//! Parameters and parts of a queue pair.

use std::sync::Arc;

use ferroce_proto::{QpCaps, Service, SharedReceives};

use crate::device::MAX_SRQ_SGE;
use crate::error::CreateQpError;
use crate::{CompletionQueue, Srq, Xrcd};

/// The parameters of a new queue pair (`ibv_qp_init_attr`).
#[derive(Clone)]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInit {
    /// Service of the queue pair.
    pub service: Service,
    /// Completion queue of the sends.
    pub send_cq: Arc<CompletionQueue>,
    /// Completion queue of the receives; may be that of the sends.
    pub recv_cq: Arc<CompletionQueue>,
    /// A shared receive queue of the same context in place of its own; the sizes of that are then 0.
    pub srq: Option<Arc<Srq>>,
    /// Sizes of its queues. The created queues are never smaller, see [`crate::Qp::caps`].
    pub caps: QpCaps,
    /// Every send work request is signaled.
    pub sq_sig_all: bool,
    /// The caller's own, given back by [`crate::Qp::user`] and in events.
    pub user: u64,
}

/// The parts of a new queue pair of any service.
pub(crate) struct Parts {
    pub(super) service: Service,
    pub(super) send_cq: Option<Arc<CompletionQueue>>,
    pub(super) recv_cq: Option<Arc<CompletionQueue>>,
    pub(super) srq: Option<Arc<Srq>>,
    /// XRC's targets; with it, whether they have a protection domain of their own.
    pub(super) xrcd: Option<(Arc<Xrcd>, bool)>,
    pub(super) caps: QpCaps,
    pub(super) sq_sig_all: bool,
    pub(super) user: u64,
}

impl From<QpInit> for Parts {
    fn from(init: QpInit) -> Self {
        let QpInit { service, send_cq, recv_cq, srq, mut caps, sq_sig_all, user } = init;
        // An initiator asks and never receives.
        let initiator = service == Service::XrcInitiator;
        if srq.is_some() || initiator {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        let (send_cq, recv_cq) = (Some(send_cq), (!initiator).then_some(recv_cq));
        Self { service, send_cq, recv_cq, srq, xrcd: None, caps, sq_sig_all, user }
    }
}

impl Parts {
    /// The parts of an XRC target.
    pub(crate) fn target(xrcd: &Arc<Xrcd>, own_memory: bool, user: u64) -> Self {
        Self {
            service: Service::XrcTarget,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: Some((Arc::clone(xrcd), own_memory)),
            caps: QpCaps::default(),
            sq_sig_all: false,
            user,
        }
    }

    pub(super) fn shared_receives(&self) -> Option<SharedReceives> {
        match (&self.srq, &self.xrcd) {
            (Some(srq), _) => Some(SharedReceives::Queue { max_sge: srq.max_sge() }),
            (None, Some((_, own_memory))) => {
                Some(SharedReceives::XrcDomain { max_sge: MAX_SRQ_SGE, own_memory: *own_memory })
            }
            (None, None) => None,
        }
    }

    /// Begins to use all of them, or none.
    pub(super) fn add_users(&self) -> Result<(), CreateQpError> {
        let cqs = || self.send_cq.iter().chain(&self.recv_cq);
        for (index, cq) in cqs().enumerate() {
            if !cq.add_user() {
                cqs().take(index).for_each(|cq| cq.remove_user());
                return Err(CreateQpError::ForeignCq);
            }
        }
        if self.srq.as_ref().is_some_and(|srq| !srq.add_user()) {
            cqs().for_each(|cq| cq.remove_user());
            return Err(CreateQpError::ForeignSrq);
        }
        if self.xrcd.as_ref().is_some_and(|(xrcd, _)| !xrcd.add_user()) {
            return Err(CreateQpError::Xrcd);
        }
        Ok(())
    }
}
