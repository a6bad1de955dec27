//! Unreliable Connection: messages arrive whole or not at all (IBTA 9.8.2).

use ferroce_wire::{
    Bth, IcrcStatus, Imm, Operation, Packet, Psn, PushError, Request, Reth, SendTail, Sink, TxBatch,
};

use super::common::Common;
use super::pipeline::{Piece, Pipeline};
use super::receiving::{Message, SharedQueues};
use super::send_queue::MAX_MESSAGE;
use crate::counting::CountedOp;
use crate::{DropReason, Memory, MemoryError, QpAccess, ReceiveSource, RemoteAccess};

/// Adds one packet of a message to the batch.
pub(crate) fn push(
    piece: &Piece,
    common: &Common,
    pipeline: &Pipeline,
    mem: &impl Memory,
    out: &mut TxBatch<'_>,
) -> Result<(), PushError<MemoryError>> {
    let mut bth = common.bth(piece.psn);
    bth.solicited = piece.wqe.solicited && piece.is_last() && piece.wqe.op.takes_receive();
    let head = Packet { bth, op: Operation::Uc(piece.request()), icrc: IcrcStatus::Checked };
    out.push(&common.attr.path, &head, piece.len as usize, |payload| {
        pipeline.queue.gather(piece.index, u64::from(piece.offset), payload, mem)
    })
}

/// Executes requests. A message that cannot go on is given up without a word, and the next one begins with
/// its first packet; a receive WQE that was taken for it waits for that one.
#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    /// A message whose last packet has not come; packets in the middle of any other are dropped.
    message: Option<Message>,
}

impl Responder {
    pub const fn new() -> Self {
        Self { expected: Psn::new(0), message: None }
    }

    pub fn begin(&mut self, psn: Psn) {
        (self.expected, self.message) = (psn, None);
    }

    pub const fn expected(&self) -> Psn {
        self.expected
    }

    /// Executes a request or drops it, and with it the rest of its message.
    pub fn handle_request(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let result = self.serve(common, bth, request, queues, mem);
        match result {
            Ok(()) => common.processed(),
            Err(_) => self.message = None,
        }
        result
    }

    /// The chain of checks, then the effect.
    fn serve(
        &mut self,
        common: &mut Common,
        bth: &Bth,
        request: &Request<'_>,
        queues: &mut SharedQueues<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        self.check_psn(common, bth.psn, request)?;
        if !common.receiving.has_room() {
            return Err(DropReason::Backlog);
        }
        let part = Part::of(request)?;
        if !request.payload_fits(common.mtu()) {
            return Err(DropReason::InvalidRequest);
        }
        match part {
            Part::Send { first, tail } => {
                if first {
                    common.bind(queues, 0)?;
                    self.message = Some(Message::Send { received: 0 });
                }
                self.place_send(common, request.payload(), tail.is_some(), mem)?;
                if let Some(imm) = tail {
                    common.finish_placing(mem)?;
                    common.complete_message(self.message.take(), bth, imm, None);
                }
            }
            Part::Write { reth, imm, last } => {
                if !common.attr.access.contains(QpAccess::REMOTE_WRITE) {
                    return Err(DropReason::InvalidRequest);
                }
                if let Some(reth) = reth {
                    self.begin_write(reth, mem)?;
                }
                if imm.is_some() {
                    common.bind(queues, 0)?;
                }
                let length = self.place_write(request.payload(), last, mem)?;
                if last {
                    mem.finish_writes().map_err(|_| DropReason::AccessDenied)?;
                }
                if imm.is_some() {
                    common.complete_message(self.message.take(), bth, imm, None);
                }
                if last {
                    common.counting.completed(CountedOp::RemoteRdmaWrite, length);
                    self.message = None;
                }
            }
        }
        Ok(())
    }

    /// A first packet is taken whatever its PSN: what came before it is over. Any other must follow the one
    /// before it (IBTA 9.8.2.2.1).
    fn check_psn(&mut self, common: &mut Common, psn: Psn, request: &Request<'_>) -> Result<(), DropReason> {
        let begins = matches!(
            request,
            Request::SendFirst { .. }
                | Request::SendOnly { .. }
                | Request::WriteFirst { .. }
                | Request::WriteOnly { .. }
        );
        if begins {
            self.message = None;
        } else if psn != self.expected || self.message.is_none() {
            common.counters.out_of_seq_request += 1;
            return Err(DropReason::OutOfSequence);
        }
        self.expected = psn.next();
        Ok(())
    }

    fn place_send(
        &mut self,
        common: &mut Common,
        payload: &[u8],
        last: bool,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let Some(Message::Send { received }) = self.message else { return Err(DropReason::InvalidRequest) };
        let after = received + payload.len() as u64;
        // Before the last one more octet must follow.
        let room = common.receiving.bound().map(|wqe| wqe.length.min(MAX_MESSAGE));
        if room.is_none_or(|room| after + u64::from(!last) > room) {
            return Err(DropReason::TooLong);
        }
        common.place(received, payload, mem)?;
        self.message = Some(Message::Send { received: after });
        Ok(())
    }

    /// Key, range and permission of all that the message will touch. Zero length needs none (IBTA C9-88).
    fn begin_write(&mut self, reth: &Reth, mem: &impl Memory) -> Result<(), DropReason> {
        let Reth { va: addr, rkey, dma_len: length } = *reth;
        if u64::from(length) > MAX_MESSAGE {
            return Err(DropReason::InvalidRequest);
        }
        if length > 0 {
            mem.check_remote(rkey, addr, u64::from(length), RemoteAccess::Write)
                .map_err(|_| DropReason::AccessDenied)?;
        }
        self.message = Some(Message::Write { rkey, addr, remaining: length, length });
        Ok(())
    }

    /// Returns the length of the whole message.
    fn place_write(&mut self, payload: &[u8], last: bool, mem: &mut impl Memory) -> Result<u32, DropReason> {
        let Some(Message::Write { rkey, addr, remaining, length }) = self.message else {
            return Err(DropReason::InvalidRequest);
        };
        let len = payload.len() as u32;
        if if last { len != remaining } else { len >= remaining } {
            return Err(DropReason::InvalidRequest);
        }
        if !payload.is_empty() {
            mem.write_remote(rkey, addr, payload).map_err(|_| DropReason::AccessDenied)?;
        }
        let addr = addr.wrapping_add(u64::from(len));
        self.message = Some(Message::Write { rkey, addr, remaining: remaining - len, length });
        Ok(length)
    }
}

/// The part of a message that a packet is.
enum Part<'a> {
    /// `tail` where the message ends: its immediate data, if any.
    Send { first: bool, tail: Option<Option<Imm>> },
    /// `reth` where the message begins.
    Write { reth: Option<&'a Reth>, imm: Option<Imm>, last: bool },
}

impl<'a> Part<'a> {
    /// [`DropReason::InvalidRequest`] for what UC does not have.
    fn of(request: &'a Request<'_>) -> Result<Self, DropReason> {
        let end = |tail: &SendTail| match *tail {
            SendTail::None => Ok(Some(None)),
            SendTail::Imm(imm) => Ok(Some(Some(imm))),
            SendTail::Invalidate(_) => Err(DropReason::InvalidRequest),
        };
        Ok(match request {
            Request::SendFirst { .. } => Self::Send { first: true, tail: None },
            Request::SendMiddle { .. } => Self::Send { first: false, tail: None },
            Request::SendLast { tail, .. } => Self::Send { first: false, tail: end(tail)? },
            Request::SendOnly { tail, .. } => Self::Send { first: true, tail: end(tail)? },
            Request::WriteFirst { reth, .. } => Self::Write { reth: Some(reth), imm: None, last: false },
            Request::WriteMiddle { .. } => Self::Write { reth: None, imm: None, last: false },
            Request::WriteLast { imm, .. } => Self::Write { reth: None, imm: *imm, last: true },
            Request::WriteOnly { reth, imm, .. } => Self::Write { reth: Some(reth), imm: *imm, last: true },
            Request::ReadRequest { .. }
            | Request::CompareSwap { .. }
            | Request::FetchAdd { .. }
            | Request::Flush { .. }
            | Request::AtomicWrite { .. } => return Err(DropReason::InvalidRequest),
        })
    }
}

#[cfg(test)]
mod tests {
    use ferroce_wire::Lkey;

    use super::*;
    use crate::memory::nothing::Nothing;
    use crate::{NoSharedQueue, QpCaps, RecvWr, Service, Sge, Taken};

    /// A message has at most 2^31 octets, however long the receive WQE is.
    #[test]
    fn a_send_has_at_most_two_to_the_31_octets() {
        let caps = QpCaps { max_recv_wr: 1, max_recv_sge: 2, ..QpCaps::default() };
        let mut common = Common::for_test(Service::Uc, caps);
        let sge = Sge { addr: 0, length: u32::MAX, lkey: Lkey::new(1) };
        common.receiving.post(&RecvWr { wr_id: 1, sges: &[sge, sge] }).unwrap();
        let mut queues = SharedQueues { source: &mut NoSharedQueue, named: None };
        assert_eq!(common.receiving.take(&mut queues, 0), Taken::Wqe);
        let mut responder = Responder::new();
        for (received, last) in [(MAX_MESSAGE - 256, false), (MAX_MESSAGE - 255, true), (MAX_MESSAGE, true)] {
            responder.message = Some(Message::Send { received });
            let placed = responder.place_send(&mut common, &[0; 256], last, &mut Nothing);
            assert_eq!(placed, Err(DropReason::TooLong), "{received}");
        }
    }
}
