//! The checks that a request must pass before it has any effect, in the order of the specification.

use ferroce_wire::{Feth, NakCode, Psn, Request, Reth, Rkey};

use super::super::common::Common;
use super::super::receiving::{Message, Receiving, SharedQueues};
use super::super::send_queue::MAX_MESSAGE;
use super::Responder;
use crate::{Memory, MemoryError, QpAccess, ReceiveSource, RemoteAccess, Taken, WcStatus};

/// The fate of a request that is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The request was executed before (IBTA C9-105).
    Duplicate,
    /// Requests are missing before this one.
    SequenceGap,
    /// There is no receive WQE for it.
    RnrNak,
    /// The request names a shared receive queue that its XRC domain does not have, or another one than its
    /// message's first packet (IBTA A14).
    NoSuchQueue,
    /// The request can never be executed.
    Nak(Fault),
}

/// A fatal refusal: the NAK that the peer gets and, if a receive WQE is in use, its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub code: NakCode,
    pub status: WcStatus,
}

pub(super) const INVALID: Refusal =
    Refusal::Nak(Fault { code: NakCode::InvalidRequest, status: WcStatus::WrFlushErr });
pub(super) const TOO_LONG: Refusal =
    Refusal::Nak(Fault { code: NakCode::InvalidRequest, status: WcStatus::LocLenErr });
/// A key or its range is bad. The only WQE that can be in use then is that of a WRITE with immediate, for
/// which the status exists (IBTA 11.6.2).
pub(super) const ACCESS: Refusal =
    Refusal::Nak(Fault { code: NakCode::RemoteAccessError, status: WcStatus::LocAccessErr });
/// The key that a send ends is bad. The data is there, but the message is not what its sender meant: an error
/// at both ends.
pub(super) const BAD_INVALIDATE: Refusal =
    Refusal::Nak(Fault { code: NakCode::RemoteAccessError, status: WcStatus::LocAccessErr });
/// Our receive buffer is bad.
pub(super) const OWN_FAULT: Refusal =
    Refusal::Nak(Fault { code: NakCode::RemoteOperationalError, status: WcStatus::LocProtErr });

/// The checked target of a request's effect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Receive,
    /// Remote memory from here on.
    Memory {
        rkey: Rkey,
        addr: u64,
    },
}

impl Responder {
    pub(super) fn check_psn(&self, psn: Psn) -> Result<(), Refusal> {
        match psn.since(self.expected) {
            0 => Ok(()),
            ..0 => Err(Refusal::Duplicate),
            1.. => Err(Refusal::SequenceGap),
        }
    }

    /// Middle and Last only in a message of their kind, everything else only outside of one (IBTA 9.7.4.1.4).
    pub(super) fn check_op_seq(&self, request: &Request<'_>) -> Result<(), Refusal> {
        let fits = match request {
            Request::SendMiddle { .. } | Request::SendLast { .. } => {
                matches!(self.message, Some(Message::Send { .. }))
            }
            Request::WriteMiddle { .. } | Request::WriteLast { .. } => {
                matches!(self.message, Some(Message::Write { .. }))
            }
            Request::SendFirst { .. }
            | Request::SendOnly { .. }
            | Request::WriteFirst { .. }
            | Request::WriteOnly { .. }
            | Request::ReadRequest { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::Flush { .. }
            | Request::AtomicWrite { .. } => self.message.is_none(),
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    /// Checks that the queue pair supports and admits the operation (IBTA 9.7.4.1.6). A missing permission
    /// here is an invalid request; a missing permission of memory is an access error.
    pub(super) fn check_op_valid(&self, request: &Request<'_>, access: QpAccess) -> Result<(), Refusal> {
        let needs = match request {
            Request::SendFirst { .. }
            | Request::SendMiddle { .. }
            | Request::SendLast { .. }
            | Request::SendOnly { .. } => QpAccess::empty(),
            Request::WriteFirst { .. }
            | Request::WriteMiddle { .. }
            | Request::WriteLast { .. }
            | Request::WriteOnly { .. } => QpAccess::REMOTE_WRITE,
            Request::ReadRequest { .. } => QpAccess::REMOTE_READ,
            Request::CompareSwap { .. } | Request::FetchAdd { .. } => QpAccess::REMOTE_ATOMIC,
            Request::AtomicWrite { .. } => QpAccess::REMOTE_WRITE,
            Request::Flush { feth, .. } => flush_access(*feth).ok_or(INVALID)?,
        };
        if access.contains(needs) { Ok(()) } else { Err(INVALID) }
    }

    /// The queue that a request of XRC's names (IBTA A14), and with it in whose memory its key is.
    pub(super) fn check_queue(
        &mut self,
        request: &Request<'_>,
        receiving: &Receiving,
        queues: &SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let continues = matches!(request, Request::SendMiddle { .. } | Request::SendLast { .. });
        self.domain = receiving.check_named(queues, continues).map_err(|_| Refusal::NoSuchQueue)?;
        if self.domain.is_some() {
            mem.enter(self.domain);
        }
        Ok(())
    }

    /// A place to remember reads and atomics; a receive WQE for whatever takes one (IBTA 9.7.4.1.5,
    /// 9.7.5.2.8).
    pub(super) fn check_resource(
        &mut self,
        request: &Request<'_>,
        receiving: &mut Receiving,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
    ) -> Result<(), Refusal> {
        match request {
            Request::ReadRequest { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::Flush { .. }
            | Request::AtomicWrite { .. } => {
                if self.replies.reads_pending() < self.resources.depth() {
                    Ok(())
                } else {
                    Err(INVALID)
                }
            }
            Request::SendFirst { .. }
            | Request::SendOnly { .. }
            | Request::WriteLast { imm: Some(_), .. }
            | Request::WriteOnly { imm: Some(_), .. } => {
                // Once taken it is never given back: whatever is wrong from here on is fatal.
                match receiving.take(queues, 0) {
                    Taken::Wqe => Ok(()),
                    Taken::Empty | Taken::TooShort => Err(Refusal::RnrNak),
                    Taken::Failed => Err(OWN_FAULT),
                }
            }
            Request::SendMiddle { .. }
            | Request::SendLast { .. }
            | Request::WriteFirst { .. }
            | Request::WriteMiddle { .. }
            | Request::WriteLast { imm: None, .. }
            | Request::WriteOnly { imm: None, .. } => Ok(()),
        }
    }

    /// Each packet against the path MTU, messages against what was declared and what there is room for
    /// (IBTA C9-92 to C9-94, 9.7.4.1.7).
    pub(super) fn check_length(&self, request: &Request<'_>, common: &Common) -> Result<(), Refusal> {
        let len = request.payload().len() as u64;
        let room = common.receiving.bound().map_or(0, |wqe| wqe.length.min(MAX_MESSAGE));
        if !request.payload_fits(common.mtu()) {
            return Err(INVALID);
        }
        let declared = |reth: &Reth| u64::from(reth.dma_len);
        let remaining = match self.message {
            Some(Message::Write { remaining, .. }) => u64::from(remaining),
            Some(Message::Send { .. }) | None => 0,
        };
        let message_fits = match request {
            Request::SendFirst { .. } | Request::SendMiddle { .. } => {
                // At least one more packet must follow.
                return if self.received() + len < room { Ok(()) } else { Err(TOO_LONG) };
            }
            Request::SendLast { .. } | Request::SendOnly { .. } => {
                return if self.received() + len <= room { Ok(()) } else { Err(TOO_LONG) };
            }
            Request::WriteFirst { reth, .. } => (len + 1..=MAX_MESSAGE).contains(&declared(reth)),
            Request::WriteMiddle { .. } => len < remaining,
            Request::WriteLast { .. } => len == remaining,
            Request::WriteOnly { reth, .. } => len == declared(reth),
            Request::ReadRequest { reth } => declared(reth) <= MAX_MESSAGE,
            Request::CompareSwap { .. } | Request::FetchAdd { .. } | Request::Flush { .. } => true,
            Request::AtomicWrite { reth, .. } => reth.dma_len == 8,
        };
        if message_fits { Ok(()) } else { Err(INVALID) }
    }

    /// Octets of the send in progress.
    pub(super) fn received(&self) -> u64 {
        self.message.map_or(0, Message::received)
    }

    /// Key, range and permission of all that the message will touch, at its first packet. Zero length needs
    /// none (IBTA C9-88).
    pub(super) fn check_rkey(&self, request: &Request<'_>, mem: &impl Memory) -> Result<Target, Refusal> {
        let range = |reth: &Reth, access| {
            let target = Target::Memory { rkey: reth.rkey, addr: reth.va };
            if reth.dma_len == 0 {
                return Ok(target);
            }
            match mem.check_remote(reth.rkey, reth.va, u64::from(reth.dma_len), access) {
                Ok(()) => Ok(target),
                Err(_) => Err(ACCESS),
            }
        };
        let word = |rkey, addr: u64, access| {
            if !addr.is_multiple_of(8) {
                return Err(INVALID);
            }
            match mem.check_remote(rkey, addr, 8, access) {
                Ok(()) => Ok(Target::Memory { rkey, addr }),
                Err(MemoryError::Misaligned) => Err(INVALID),
                Err(_) => Err(ACCESS),
            }
        };
        match request {
            Request::SendFirst { .. }
            | Request::SendMiddle { .. }
            | Request::SendLast { .. }
            | Request::SendOnly { .. } => Ok(Target::Receive),
            // Checked when it is executed, with its key also when its length is zero.
            Request::Flush { reth, .. } => Ok(Target::Memory { rkey: reth.rkey, addr: reth.va }),
            Request::AtomicWrite { reth, .. } => word(reth.rkey, reth.va, RemoteAccess::AtomicWrite),
            Request::WriteMiddle { .. } | Request::WriteLast { .. } => match self.message {
                Some(Message::Write { rkey, addr, .. }) => Ok(Target::Memory { rkey, addr }),
                Some(Message::Send { .. }) | None => Err(INVALID),
            },
            Request::WriteFirst { reth, .. } | Request::WriteOnly { reth, .. } => {
                range(reth, RemoteAccess::Write)
            }
            Request::ReadRequest { reth } => range(reth, RemoteAccess::Read),
            Request::CompareSwap { atomic } | Request::FetchAdd { atomic } => {
                word(atomic.rkey, atomic.va, RemoteAccess::Atomic)
            }
        }
    }
}

/// The access that a queue pair must admit for a flush; `None` if there is no such flush (IBTA A19.4.1).
fn flush_access(feth: Feth) -> Option<QpAccess> {
    let placement = match feth.placement {
        Feth::GLOBAL_VISIBILITY => QpAccess::FLUSH_GLOBAL,
        Feth::PERSISTENCE => QpAccess::FLUSH_PERSISTENT,
        // Both bits, and no others.
        3 => QpAccess::FLUSH_GLOBAL.union(QpAccess::FLUSH_PERSISTENT),
        _ => return None,
    };
    matches!(feth.selectivity, Feth::RANGE | Feth::WHOLE_REGION).then_some(placement)
}
