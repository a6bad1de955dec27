//! Unreliable Datagram: one packet a message, from anybody who knows the Q_Key (IBTA 9.8.3).

use alloc::collections::VecDeque;

use ferroce_wire::{
    Bth, Deth, Flow, IcrcStatus, Operation, Packet, PushError, Qkey, TxBatch, UdPacket, WireError,
};

use super::common::Common;
use super::pipeline::{Piece, Pipeline};
use super::receive_source::Receives;
use super::responder::{MAX_COMPLETIONS, failed};
use super::roles::ReceiveDepth;
use crate::{
    AsyncEvent, DropReason, Memory, MemoryError, NetworkHeader, QpState, ReceiveSource, RecvWqe, SendOp,
    SendTo, Taken, WcOpcode, WcStatus, WorkCompletion,
};

/// Adds one datagram to the batch. A batch has one destination, so it is full where that changes.
pub(crate) fn push(
    piece: &Piece,
    common: &Common,
    pipeline: &Pipeline,
    mem: &impl Memory,
    out: &mut TxBatch<'_>,
) -> Result<(), PushError<MemoryError>> {
    let SendTo::Datagram { path, qpn, qkey } = pipeline.queue.to(piece.index) else {
        return Err(PushError::Wire(WireError::NoSuchOperation(ferroce_wire::Service::Ud)));
    };
    let mut bth = Bth::new(qpn, piece.psn);
    bth.solicited = piece.wqe.solicited;
    let deth = Deth { qkey: if is_own(qkey) { common.attr.qkey } else { qkey }, src_qp: common.qpn };
    let imm = match piece.wqe.op {
        SendOp::SendImm(imm) => Some(imm),
        _ => None,
    };
    let op = Operation::Ud(UdPacket { deth, payload: &[], imm });
    let head = Packet { bth, op, icrc: IcrcStatus::Checked };
    out.push(&path, &head, piece.len as usize, |payload| pipeline.queue.gather(piece.index, 0, payload, mem))
}

/// A Q_Key that stands for the sender's own: one with the highest bit set, which programs without privilege cannot
/// otherwise use (IBTA 10.2.5).
const fn is_own(qkey: Qkey) -> bool {
    qkey.value() >> 31 != 0
}

/// Takes datagrams. Nothing that a sender does changes its state.
#[derive(Debug)]
pub(crate) struct Receiver {
    wqe: RecvWqe,
    completions: VecDeque<WorkCompletion>,
    max_completions: usize,
}

impl Receiver {
    pub fn new(depth: ReceiveDepth) -> Self {
        let completions = depth.max_wr.clamp(1, MAX_COMPLETIONS) as usize;
        Self {
            wqe: RecvWqe::new(depth.max_sge),
            completions: VecDeque::with_capacity(completions),
            max_completions: completions,
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.completions.clear();
    }

    /// Puts a datagram that came along `from` into the next receive buffer, behind forty octets about the way.
    pub fn handle(
        &mut self,
        common: &mut Common,
        from: &Flow,
        bth: &Bth,
        datagram: &UdPacket<'_>,
        receives: &mut Receives<'_, impl ReceiveSource>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if !common.answers() {
            return Err(DropReason::State);
        }
        if datagram.deth.qkey != common.attr.qkey {
            return Err(DropReason::WrongQkey);
        }
        if self.completions.len() >= self.max_completions {
            return Err(DropReason::Backlog);
        }
        let header = Flow::GRH_AREA as u64;
        let length = header + datagram.payload.len() as u64;
        match receives.take(&mut self.wqe, length) {
            Taken::Wqe => {}
            Taken::Empty => return Err(DropReason::NoReceiveWqe),
            // Class D of IBTA 9.9.6: dropped, and the WQE serves the next datagram that fits. It is the same with a shared
            // receive queue, where rxe completes the WQE in error: a sender of long datagrams must not use up what all
            // queue pairs share.
            Taken::TooShort => return Err(DropReason::TooLong),
            Taken::Failed => {
                common.transition("shared receive queue failed", QpState::Error);
                return Err(DropReason::LocalFault);
            }
        }
        let packet = Packet { bth: *bth, op: Operation::Ud(*datagram), icrc: IcrcStatus::Checked };
        let transport_len =
            packet.wire_len(datagram.payload.len()).map_err(|_| DropReason::InvalidRequest)?;
        let mut placed = self.wqe.scatter(0, &from.grh_area(transport_len), mem);
        if !datagram.payload.is_empty() {
            placed = placed.and_then(|()| self.wqe.scatter(header, datagram.payload, mem));
        }
        if placed.is_err() {
            self.completions.push_back(failed(self.wqe.wr_id, WcStatus::LocProtErr, common.qpn));
            common.transition("receive buffer cannot be written", QpState::Error);
            return Err(DropReason::LocalFault);
        }
        common.counters.rdma_recvs += 1;
        self.completions.push_back(WorkCompletion {
            wr_id: self.wqe.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: length as u32,
            imm: datagram.imm,
            invalidated: None,
            qpn: common.qpn,
            src_qp: datagram.deth.src_qp,
            solicited: bth.solicited,
            grh: true,
            header: Some(NetworkHeader::of(from)),
            vendor_err: 0,
        });
        if common.state() == QpState::Rtr && !common.established {
            common.established = true;
            common.events.raise(AsyncEvent::CommEst);
        }
        Ok(())
    }

    /// The next receive completion.
    pub fn poll_completion(&mut self) -> Option<WorkCompletion> {
        self.completions.pop_front()
    }
}
