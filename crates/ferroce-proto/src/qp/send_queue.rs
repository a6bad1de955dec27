//! The send queue: work requests from post to report.

use alloc::boxed::Box;
use alloc::vec;
use ferroce_wire::{Feth, Psn, SrqNumber};

use crate::{
    DirectLocal, Memory, MemoryError, PostSendError, QpAttr, QpCaps, SendOp, SendTo, SendWr, Sge, WcStatus,
    ring, sg,
};

/// Longest message in octets.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// A send work request in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub wr_id: u64,
    pub op: SendOp,
    /// Octets of the message, at most [`MAX_MESSAGE`].
    pub length: u32,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub inline: bool,
    sge_count: u16,
    /// The local memory of the WQE was checked as a whole.
    pub checked: bool,
    /// Set when the first packet leaves.
    pub first_psn: Psn,
    /// PSNs it takes; 0 until the first packet leaves.
    pub packets: u32,
    /// The reason why the WQE cannot succeed, reported when everything before it has completed.
    pub failure: Option<Failure>,
}

/// How a WQE ends in error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub status: WcStatus,
    pub vendor_err: u32,
}

/// The packets of a WQE that was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub first_psn: Psn,
    pub packets: u32,
    /// Octets of the message.
    pub length: u32,
    /// See [`SendOp::is_answered`].
    pub is_answered: bool,
}

impl Extent {
    /// The PSN of the last packet.
    pub const fn last_psn(self) -> Psn {
        self.first_psn.add(self.packets.wrapping_sub(1))
    }
}

impl From<WcStatus> for Failure {
    fn from(status: WcStatus) -> Self {
        Self { status, vendor_err: 0 }
    }
}

impl SendWqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send,
        length: 0,
        signaled: false,
        solicited: false,
        fence: false,
        inline: false,
        sge_count: 0,
        checked: false,
        first_psn: Psn::new(0),
        packets: 0,
        failure: None,
    };

    /// The caller may be able to execute it without packets.
    pub const fn may_be_direct(&self) -> bool {
        self.failure.is_none()
            && self.length > 0
            && matches!(self.op, SendOp::Write { .. } | SendOp::Read { .. })
    }

    /// Executes a local operation, whose turn it is.
    pub fn execute(&self, mem: &mut impl Memory) -> Result<(), WcStatus> {
        match &self.op {
            SendOp::BindMw(bind) => mem.bind(bind).map_err(|_| WcStatus::MwBindErr),
            SendOp::LocalInvalidate(rkey) => mem.invalidate(*rkey).map_err(|_| WcStatus::LocQpOpErr),
            // The others are not local.
            _ => Err(WcStatus::LocQpOpErr),
        }
    }

    /// The fields that acknowledgements need.
    pub const fn extent(&self) -> Extent {
        let Self { first_psn, packets, length, .. } = *self;
        Extent { first_psn, packets, length, is_answered: self.op.is_answered() }
    }

    /// The PSN of its last packet.
    pub const fn last_psn(&self) -> Psn {
        self.extent().last_psn()
    }

    /// Whether the PSN is of one of its packets.
    pub const fn has(&self, psn: Psn) -> bool {
        psn.since(self.first_psn) >= 0 && psn.since(self.last_psn()) <= 0
    }
}

/// PSNs that a message of this length takes: a message without payload takes one (IBTA 9.7.2).
pub(crate) const fn packets(length: u32, mtu: u32) -> u32 {
    if length == 0 { 1 } else { length.div_ceil(mtu) }
}

/// A ring of WQEs with room for their SGEs and inline payloads, all allocated at creation.
///
/// WQEs are named by an index that counts up for the queue's life. In order:
/// `reported <= done <= started <= tail`.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    /// Beside the slots, which are copied often; none where every request goes to the connected peer.
    destinations: Box<[SendTo]>,
    inline: Box<[u8]>,
    caps: QpCaps,
    /// Oldest WQE whose slot is in use.
    reported: u64,
    /// Oldest WQE that is not completed.
    done: u64,
    /// Oldest WQE of which nothing was sent.
    started: u64,
    tail: u64,
    /// Calls of [`Self::get`].
    #[cfg(test)]
    pub lookups: core::cell::Cell<usize>,
}

impl SendQueue {
    /// `addressed`: requests name their destination.
    pub fn new(caps: QpCaps, addressed: bool) -> Self {
        let slots = ring::size(caps.max_send_wr);
        Self {
            destinations: vec![SendTo::Peer; if addressed { slots } else { 0 }].into(),
            slots: vec![SendWqe::EMPTY; slots].into(),
            sges: vec![Sge::default(); slots * caps.max_send_sge as usize].into(),
            inline: vec![0; slots * caps.max_inline as usize].into(),
            caps,
            reported: 0,
            done: 0,
            started: 0,
            tail: 0,
            #[cfg(test)]
            lookups: core::cell::Cell::new(0),
        }
    }

    pub const fn done(&self) -> u64 {
        self.done
    }

    pub const fn started(&self) -> u64 {
        self.started
    }

    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// As [`Self::post`], for a SEND or WRITE of one SGE of registered memory to the connected peer. `false`:
    /// nothing was done.
    #[inline]
    pub fn post_plain(&mut self, wr: &SendWr<'_>, signaled: bool) -> bool {
        let &[sge] = wr.sges else { return false };
        let plain = matches!((wr.op, wr.to), (SendOp::Send | SendOp::Write { .. }, SendTo::Peer))
            && !wr.inline
            && u64::from(sge.length) <= MAX_MESSAGE
            && self.has_room();
        let Some(slot) = self.sges_mut(self.tail).first_mut().filter(|_| plain) else { return false };
        *slot = sge;
        self.put(wr, signaled, sge.length);
        true
    }

    /// Takes a work request, or leaves the queue as it is. `signaled`: its completion is reported.
    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        signaled: bool,
        attr: &QpAttr,
        mem: &impl Memory,
    ) -> Result<(), PostSendError> {
        let length = self.check(wr, attr)?;
        if !self.has_room() {
            return Err(PostSendError::QueueFull { max: self.caps.max_send_wr });
        }
        let index = self.tail;
        if wr.inline {
            let mut room = self.inline_mut(index);
            for sge in wr.sges.iter().filter(|sge| sge.length > 0) {
                // The sum was checked, so every part fits.
                let Some((part, rest)) = room.split_at_mut_checked(sge.length as usize) else { break };
                mem.read_inline(sge.addr, part).map_err(PostSendError::Inline)?;
                room = rest;
            }
        } else {
            for (slot, sge) in self.sges_mut(index).iter_mut().zip(wr.sges) {
                *slot = *sge;
            }
        }
        self.put(wr, signaled, length);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.tail - self.reported < u64::from(self.caps.max_send_wr)
    }

    /// Adds a WQE, for which there is room, behind its SGEs or its inline payload.
    #[inline]
    fn put(&mut self, wr: &SendWr<'_>, signaled: bool, length: u32) {
        let slot = self.slot(self.tail);
        // Each field is written alone, because a whole value would be made beside the slot, and copied.
        if let Some(SendWqe {
            wr_id,
            op,
            length: octets,
            signaled: reported,
            solicited,
            fence,
            inline,
            sge_count,
            checked,
            first_psn,
            packets,
            failure,
        }) = self.slots.get_mut(slot)
        {
            *op = wr.op;
            (*wr_id, *octets, *reported) = (wr.wr_id, length, signaled);
            (*solicited, *fence, *inline) = (wr.solicited, wr.fence, wr.inline);
            *sge_count = if wr.inline { 0 } else { wr.sges.len() as u16 };
            (*checked, *first_psn, *packets, *failure) = (false, Psn::new(0), 0, None);
        }
        if let Some(to) = self.destinations.get_mut(slot) {
            *to = wr.to;
        }
        self.tail += 1;
    }

    pub fn to(&self, index: u64) -> SendTo {
        self.destinations.get(self.slot(index)).copied().unwrap_or_default()
    }

    /// The shared receive queue that a request of XRC's is for.
    pub fn srq(&self, index: u64) -> Option<SrqNumber> {
        match self.to(index) {
            SendTo::XrcSrq(number) => Some(number),
            SendTo::Peer | SendTo::Datagram { .. } => None,
        }
    }

    fn check(&self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<u32, PostSendError> {
        let given = match wr.op {
            SendOp::AtomicWrite { octets: Some(octets), .. } => octets.len() as u64,
            _ => sg::length(wr.sges),
        };
        if wr.inline {
            if !wr.op.has_payload() {
                return Err(PostSendError::InlineNotAllowed);
            }
            if given > u64::from(self.caps.max_inline) {
                return Err(PostSendError::InlineTooLong { given, max: self.caps.max_inline });
            }
        } else if wr.sges.len() > self.caps.max_send_sge as usize {
            return Err(PostSendError::TooManySges { given: wr.sges.len(), max: self.caps.max_send_sge });
        }
        if given > MAX_MESSAGE {
            return Err(PostSendError::MessageTooLong { given });
        }
        if wr.op.is_answered() && attr.max_rd_atomic == 0 {
            return Err(PostSendError::NoReadAtomicDepth);
        }
        if let SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. }
        | SendOp::AtomicWrite { remote, .. } = wr.op
        {
            if given != 8 {
                return Err(PostSendError::AtomicLength { given });
            }
            if !remote.addr.is_multiple_of(8) {
                return Err(PostSendError::AtomicMisaligned);
            }
        }
        if let SendOp::Flush { length, feth, .. } = wr.op {
            let placements = Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE;
            if feth.placement == 0
                || feth.placement & !placements != 0
                || feth.selectivity > Feth::WHOLE_REGION
            {
                return Err(PostSendError::FlushKind);
            }
            if u64::from(length) > MAX_MESSAGE {
                return Err(PostSendError::MessageTooLong { given: length.into() });
            }
            return Ok(0);
        }
        Ok(if wr.op.is_local() { 0 } else { given as u32 })
    }

    /// Takes back what was posted since `tail` was `mark` and has not started.
    pub fn roll_back(&mut self, mark: u64) {
        self.tail = mark.max(self.started).min(self.tail);
    }

    #[inline]
    pub fn get(&self, index: u64) -> Option<&SendWqe> {
        #[cfg(test)]
        self.lookups.set(self.lookups.get() + 1);
        if index < self.reported || index >= self.tail { None } else { self.slots.get(self.slot(index)) }
    }

    #[inline]
    pub fn get_mut(&mut self, index: u64) -> Option<&mut SendWqe> {
        let slot = self.slot(index);
        if index < self.reported || index >= self.tail { None } else { self.slots.get_mut(slot) }
    }

    /// Has a WQE complete with this failure, unless it failed before.
    pub fn fail(&mut self, index: u64, failure: impl Into<Failure>) {
        if let Some(wqe) = self.get_mut(index) {
            wqe.failure.get_or_insert(failure.into());
        }
    }

    /// The newest WQE that has a packet of this PSN, among those completed and not reported.
    pub fn completed(&self, psn: Psn) -> Option<&SendWqe> {
        (self.reported..self.done).rev().filter_map(|index| self.get(index)).find(|wqe| wqe.has(psn))
    }

    /// The oldest WQE that was started and is not completed.
    #[inline(always)]
    pub fn oldest(&self) -> Option<&SendWqe> {
        if self.done < self.started { self.get(self.done) } else { None }
    }

    /// Notes that the first packet of the next WQE leaves.
    #[inline]
    pub fn start(&mut self, first_psn: Psn, packets: u32) {
        if let Some(wqe) = self.get_mut(self.started) {
            wqe.first_psn = first_psn;
            wqe.packets = packets;
            self.started += 1;
        }
    }

    /// Notes that the oldest WQE is completed.
    #[inline]
    pub fn complete_oldest(&mut self) {
        if self.done < self.started {
            self.done += 1;
        }
    }

    /// Whether a completed WQE waits for [`Self::pop_done`].
    #[inline]
    pub const fn has_done(&self) -> bool {
        self.reported < self.done
    }

    /// The oldest completed WQE, whose slot [`Self::pop_done`] frees.
    #[inline]
    pub fn oldest_done(&self) -> Option<&SendWqe> {
        if self.has_done() { self.get(self.reported) } else { None }
    }

    /// Frees the slot of the oldest completed WQE.
    #[inline]
    pub fn pop_done(&mut self) {
        self.reported += u64::from(self.has_done());
    }

    /// Frees the oldest slot although its WQE is not completed: the queue pair is in error.
    pub fn pop_failed(&mut self) -> Option<SendWqe> {
        if self.reported >= self.tail {
            return None;
        }
        let wqe = self.get(self.reported).copied();
        self.reported += 1;
        self.done = self.done.max(self.reported);
        self.started = self.started.max(self.reported);
        wqe
    }

    pub fn clear(&mut self) {
        (self.reported, self.done, self.started) = (self.tail, self.tail, self.tail);
    }

    /// Whether the whole local memory of a WQE may be read, or with `write` written.
    pub fn check_memory(&self, index: u64, write: bool, mem: &impl Memory) -> Result<(), MemoryError> {
        sg::check(self.sges(index), write, mem)
    }

    /// Copies payload of a WQE from `offset` on.
    pub fn gather(
        &self,
        index: u64,
        offset: u64,
        out: &mut [u8],
        mem: &impl Memory,
    ) -> Result<(), MemoryError> {
        match self.get(index) {
            Some(wqe) => self.gather_of(index, wqe, offset, out, mem),
            None => sg::gather(&[], offset, out, mem),
        }
    }

    /// As [`Self::gather`], of the WQE `index`, which is `wqe`.
    #[inline(always)]
    pub fn gather_of(
        &self,
        index: u64,
        wqe: &SendWqe,
        offset: u64,
        out: &mut [u8],
        mem: &impl Memory,
    ) -> Result<(), MemoryError> {
        match wqe {
            SendWqe { op: SendOp::AtomicWrite { octets: Some(octets), .. }, .. } => {
                // The packet has all eight octets.
                out.copy_from_slice(octets.get(..out.len()).ok_or(MemoryError::OutOfRange)?);
                Ok(())
            }
            SendWqe { inline: true, .. } => {
                let from = offset as usize;
                let payload = self.inline(index).get(from..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(payload.ok_or(MemoryError::OutOfRange)?);
                Ok(())
            }
            _ => sg::gather(self.sges_of(index, wqe), offset, out, mem),
        }
    }

    /// The local side of a WQE.
    pub fn local(&self, index: u64) -> DirectLocal<'_> {
        match self.get(index) {
            Some(wqe) if wqe.inline => {
                DirectLocal::Inline(self.inline(index).get(..wqe.length as usize).unwrap_or_default())
            }
            _ => DirectLocal::Sges(self.sges(index)),
        }
    }

    /// Copies data into the local memory of a WQE.
    pub fn scatter(
        &self,
        index: u64,
        offset: u64,
        data: &[u8],
        mem: &mut impl Memory,
    ) -> Result<(), MemoryError> {
        sg::scatter(self.sges(index), offset, data, mem)
    }

    /// The local memory of `len` octets of a WQE from `offset` on, piece by piece; none of an inline one.
    pub fn part(&self, index: u64, offset: u64, len: usize) -> impl Iterator<Item = Sge> {
        sg::part(self.sges(index), offset, len)
    }

    /// The first SGE of a WQE.
    pub fn first_sge(&self, index: u64) -> Option<&Sge> {
        self.sges(index).first()
    }

    fn slot(&self, index: u64) -> usize {
        ring::place(index, self.slots.len())
    }

    fn sges(&self, index: u64) -> &[Sge] {
        self.get(index).map(|wqe| self.sges_of(index, wqe)).unwrap_or_default()
    }

    /// The SGEs of the WQE `index`, which is `wqe`.
    #[inline]
    fn sges_of(&self, index: u64, wqe: &SendWqe) -> &[Sge] {
        let start = self.slot(index) * self.caps.max_send_sge as usize;
        self.sges.get(start..start + usize::from(wqe.sge_count)).unwrap_or_default()
    }

    fn sges_mut(&mut self, index: u64) -> &mut [Sge] {
        let width = self.caps.max_send_sge as usize;
        let start = self.slot(index) * width;
        self.sges.get_mut(start..start + width).unwrap_or_default()
    }

    fn inline(&self, index: u64) -> &[u8] {
        let width = self.caps.max_inline as usize;
        let start = self.slot(index) * width;
        self.inline.get(start..start + width).unwrap_or_default()
    }

    fn inline_mut(&mut self, index: u64) -> &mut [u8] {
        let width = self.caps.max_inline as usize;
        let start = self.slot(index) * width;
        self.inline.get_mut(start..start + width).unwrap_or_default()
    }
}
