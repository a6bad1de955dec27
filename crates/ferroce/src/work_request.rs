//! Send work requests.

use std::ops::RangeBounds;
use std::sync::Arc;

use ferroce_engine::{SendOp, SendTo, SendWr, Sge};
use ferroce_wire::{Imm, Lkey, Qkey, Qpn, Rkey, SrqNumber};

use crate::{Access, AddressHandle, Error, MemoryRegion, MemoryWindow, RemoteMemory, Slice};

/// A send work request, for [`QueuePair::post_send`](crate::QueuePair::post_send). Start from one of the
/// constructors.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct WorkRequest {
    wr_id: u64,
    op: SendOp,
    to: SendTo,
    sges: Vec<Sge>,
    /// The inline octets; `sges` has their address.
    inline: Option<Arc<[u8]>>,
    signaled: bool,
    solicited: bool,
    fence: bool,
}

impl WorkRequest {
    fn new(wr_id: u64, op: SendOp, memory: &[Slice]) -> Self {
        let sges = memory.iter().map(|slice| slice.sge()).collect();
        let to = SendTo::Peer;
        Self { wr_id, op, to, sges, inline: None, signaled: true, solicited: false, fence: false }
    }

    /// Sends a message to the peer's next receive.
    pub fn send(wr_id: u64, from: &[Slice]) -> Self {
        Self::new(wr_id, SendOp::Send, from)
    }

    /// As [`Self::send`], with immediate data for the peer's completion.
    pub fn send_imm(wr_id: u64, from: &[Slice], imm: Imm) -> Self {
        Self::new(wr_id, SendOp::SendImm(imm), from)
    }

    /// As [`Self::send`], and invalidates a key of the peer.
    pub fn send_invalidate(wr_id: u64, from: &[Slice], rkey: Rkey) -> Self {
        Self::new(wr_id, SendOp::SendInvalidate(rkey), from)
    }

    /// Writes to the peer's memory, without a completion there.
    pub fn write(wr_id: u64, from: &[Slice], to: RemoteMemory) -> Self {
        Self::new(wr_id, SendOp::Write { remote: to.engine() }, from)
    }

    /// As [`Self::write`], and completes the peer's next receive with `imm`.
    pub fn write_imm(wr_id: u64, from: &[Slice], to: RemoteMemory, imm: Imm) -> Self {
        Self::new(wr_id, SendOp::WriteImm { remote: to.engine(), imm }, from)
    }

    /// Reads the peer's memory.
    pub fn read(wr_id: u64, to: &[Slice], from: RemoteMemory) -> Self {
        Self::new(wr_id, SendOp::Read { remote: from.engine() }, to)
    }

    /// Replaces eight octets of the peer by `swap` if they equal `compare`; their previous value is stored in
    /// `old`.
    pub fn compare_swap(wr_id: u64, old: Slice, at: RemoteMemory, compare: u64, swap: u64) -> Self {
        Self::new(wr_id, SendOp::CompareSwap { remote: at.engine(), compare, swap }, &[old])
    }

    /// Adds to eight octets of the peer; their previous value is stored in `old`.
    pub fn fetch_add(wr_id: u64, old: Slice, at: RemoteMemory, add: u64) -> Self {
        Self::new(wr_id, SendOp::FetchAdd { remote: at.engine(), add }, &[old])
    }

    /// Stores eight octets (in memory order) as one word in the peer's memory, after all earlier operations.
    /// The peer must support this newer operation, as ferroce does.
    pub fn atomic_write(wr_id: u64, octets: [u8; 8], to: RemoteMemory) -> Self {
        Self::new(wr_id, SendOp::AtomicWrite { remote: to.engine(), octets: Some(octets) }, &[])
    }

    /// Binds a window to `range` of a region, for the peer of the queue pair that it is posted to: `access`
    /// is what the peer may do. After its completion, send [`MemoryWindow::remote`] to the peer.
    ///
    /// The region needs [`Access::MW_BIND`]. A window is bound once; [`Self::local_invalidate`] or the peer's
    /// [`Self::send_invalidate`] frees it.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind(
        wr_id: u64,
        window: &mut MemoryWindow,
        region: &MemoryRegion<'_>,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Self {
        Self::new(wr_id, SendOp::BindMw(window.bind(region, range, access)), &[])
    }

    /// Invalidates a key of our own: that of a bound window.
    pub fn local_invalidate(wr_id: u64, rkey: Rkey) -> Self {
        Self::new(wr_id, SendOp::LocalInvalidate(rkey), &[])
    }

    /// Sets the destination of a datagram: queue pair `qpn` there, with the Q_Key `qkey`. If its bit 31 is
    /// set, the sender's own Q_Key is used.
    ///
    /// The first datagram to a process there opens a socket, which can fail.
    pub fn to(mut self, there: &AddressHandle, qpn: Qpn, qkey: Qkey) -> Result<Self, Error> {
        self.to = there.to(qpn, qkey)?;
        Ok(self)
    }

    /// Sets the peer's shared receive queue that takes the message, or that selects the protection domain:
    /// XRC.
    #[must_use]
    pub fn to_queue(mut self, number: SrqNumber) -> Self {
        self.to = SendTo::XrcSrq(number);
        self
    }

    /// Carries `octets` instead of registered memory, in sends and writes; it replaces slices that were given
    /// before. The octets are copied now, and again when the work request is posted.
    ///
    /// Posting fails for more octets than [`QpOptions::max_inline`](crate::QpOptions::max_inline), and for
    /// work requests without a payload of their own (READ, atomics, binds).
    #[must_use]
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn inline(mut self, octets: &[u8]) -> Self {
        // Clones share the octets, so their address is valid as long as one of the clones exists.
        let octets: Arc<[u8]> = octets.into();
        let addr = octets.as_ptr().expose_provenance() as u64;
        // A length beyond `u32` exceeds every queue pair's limit.
        let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
        self.sges = vec![Sge { addr, length, lkey: Lkey::new(0) }];
        self.inline = Some(octets);
        self
    }

    /// Requests no completion on success.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Raises a solicited event at the peer.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Starts only after all earlier READs and atomics are done.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    pub(crate) fn as_wr(&self) -> SendWr<'_> {
        let Self { wr_id, op, to, ref sges, ref inline, signaled, solicited, fence } = *self;
        SendWr { wr_id, op, to, sges, signaled, solicited, fence, inline: inline.is_some() }
    }
}
