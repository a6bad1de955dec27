//! Protection domains.

use std::sync::Arc;

use ferroce_engine as engine;
use ferroce_engine::{QpCaps, QpInit, Service};

use crate::capacity::{Capacity, Requests};
use crate::device::Open;
use crate::qp::Reset;
use crate::service::{Shares, Uc, Ud};
use crate::{
    Access, CompletionQueue, Context, Error, MemoryRegion, MemoryWindow, QueuePair, SharedReceiveQueue,
    SrqOptions,
};

/// A protection domain: queue pairs access only memory of their own domain. Clones are the same one.
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) pd: Arc<engine::Pd>,
    /// Dropped after the domain: the device must outlive its objects.
    pub(crate) open: Arc<Open>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The domain is empty, because each object in it holds a reference.
        let _ = self.pd.dealloc();
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpOptions {
    /// Limit of outstanding send work requests, at most 16,384.
    pub max_send_wr: u32,
    /// Limit of outstanding receive work requests, at most 16,384.
    pub max_recv_wr: u32,
    /// Limit of slices in one send work request, at most 32.
    pub max_send_sge: u32,
    /// Limit of slices in one receive work request, at most 32.
    pub max_recv_sge: u32,
    /// Limit of octets in an inline send or write ([`WorkRequest::inline`](crate::WorkRequest::inline)), at most 1,024.
    pub max_inline: u32,
}

impl Default for QpOptions {
    /// 128 work requests in each direction, one slice each, 64 octets inline.
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 }
    }
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Context) -> Result<Self, Error> {
        let open = Arc::clone(&device.open);
        Ok(Self { shared: Arc::new(Shared { pd: open.context.alloc_pd()?, open }) })
    }

    /// Returns the open device of the domain.
    pub fn context(&self) -> Context {
        Context { open: Arc::clone(&self.shared.open) }
    }

    /// Registers memory, which the region owns from then on. Remote access needs [`Access::REMOTE_READ`] or
    /// [`Access::REMOTE_WRITE`] and `LOCAL_WRITE`.
    ///
    /// The region uses the vector's own memory if that begins at a multiple of 8; otherwise it copies the octets.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(
        &self,
        memory: impl Into<Vec<u8>>,
        access: Access,
    ) -> Result<MemoryRegion<'static>, Error> {
        MemoryRegion::owned(self, memory.into(), access)
    }

    /// Allocates `len` zeroed octets and registers them as [`Self::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize, access: Access) -> Result<MemoryRegion<'static>, Error> {
        MemoryRegion::zeroed(self, len, access)
    }

    /// Registers borrowed memory while `work` runs. After the return the device does not access it. The memory is not
    /// moved, so peers' atomics need a start that is a multiple of 8.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_for<R>(
        &self,
        memory: &mut [u8],
        access: Access,
        work: impl FnOnce(&MemoryRegion<'_>) -> R,
    ) -> Result<R, Error> {
        let region = MemoryRegion::borrowed(self, memory, access)?;
        Ok(work(&region))
    }

    /// Creates an unbound memory window of type 2.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self) -> Result<MemoryWindow, Error> {
        MemoryWindow::new(self)
    }

    /// Creates a reliable connected queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn rc_queue_pair(
        &self,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset>, Error> {
        self.queue_pair(Service::Rc, send, receive, None, options)
    }

    /// Creates an unreliable connected queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn uc_queue_pair(
        &self,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, Uc>, Error> {
        self.queue_pair(Service::Uc, send, receive, None, options)
    }

    /// Creates an unreliable datagram queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn ud_queue_pair(
        &self,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, Ud>, Error> {
        self.queue_pair(Service::Ud, send, receive, None, options)
    }

    /// Creates a queue pair that takes its receives from a shared queue; the receive sizes in its options are ignored.
    #[doc(alias = "ibv_create_qp")]
    pub fn queue_pair_on<S: Shares>(
        &self,
        shared: &SharedReceiveQueue,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, S>, Error> {
        self.queue_pair(S::SERVICE, send, receive, Some(shared), options)
    }

    /// Creates a shared receive queue, with memory of this domain.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, options: SrqOptions) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::new(self, None, |number| self.shared.pd.create_srq(options.init(number)))
    }

    fn queue_pair<S>(
        &self,
        service: Service,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        shared: Option<&SharedReceiveQueue>,
        options: QpOptions,
    ) -> Result<QueuePair<Reset, S>, Error> {
        let receives = match shared {
            Some(shared) => shared.requests(),
            None => Requests::Own(options.max_recv_wr),
        };
        let capacity =
            [Capacity::new(send, Requests::Own(options.max_send_wr))?, Capacity::new(receive, receives)?];
        let QpOptions { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline } = options;
        let init = QpInit {
            service,
            send_cq: Arc::clone(send.engine()),
            recv_cq: Arc::clone(receive.engine()),
            srq: shared.map(|shared| Arc::clone(shared.engine())),
            caps: QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline },
            sq_sig_all: false,
            user: 0,
        };
        let qp = self.shared.pd.create_qp(init)?;
        Ok(QueuePair::new(qp, self.clone(), send.clone(), receive.clone(), shared.cloned(), capacity))
    }
}
