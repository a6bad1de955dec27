//! Unreliable Datagram: one packet a message, from any sender that knows the Q_Key (IBTA 9.8.3).

use ferroce_wire::{
    Bth, Deth, Flow, IcrcStatus, Operation, Packet, PushError, Qkey, Sink, TxBatch, UdPacket, WireError,
};

use super::common::Common;
use super::pipeline::{Piece, Pipeline};
use super::receiving::SharedQueues;
use crate::{
    DropReason, Memory, MemoryError, NetworkHeader, ReceiveSource, SendOp, SendTo, WcOpcode, WorkCompletion,
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

/// A Q_Key that stands for the sender's own: one with the highest bit set, which programs without privilege
/// cannot otherwise use (IBTA 10.2.5).
const fn is_own(qkey: Qkey) -> bool {
    qkey.value() >> 31 != 0
}

/// Puts a datagram that came along `from` into the next receive buffer, behind forty octets of network
/// header. Nothing that a sender does changes the queue pair's state.
pub(crate) fn receive(
    common: &mut Common,
    from: &Flow,
    bth: &Bth,
    datagram: &UdPacket<'_>,
    queues: &mut SharedQueues<'_, impl ReceiveSource>,
    mem: &mut impl Memory,
) -> Result<(), DropReason> {
    if datagram.deth.qkey != common.attr.qkey {
        return Err(DropReason::WrongQkey);
    }
    if !common.receiving.has_room() {
        return Err(DropReason::Backlog);
    }
    let packet = Packet { bth: *bth, op: Operation::Ud(*datagram), icrc: IcrcStatus::Checked };
    let transport_len = packet.wire_len(datagram.payload.len()).map_err(|_| DropReason::InvalidRequest)?;
    let header = Flow::GRH_AREA as u64;
    let length = header + datagram.payload.len() as u64;
    // Class D of IBTA 9.9.6: a datagram that is too long is dropped, and the WQE serves the next datagram
    // that fits. It is the same with a shared receive queue, where rxe completes the WQE in error: a sender
    // of long datagrams must not use up what all queue pairs share.
    common.bind(queues, length)?;
    common.place(0, &from.grh_area(transport_len), mem)?;
    common.place(header, datagram.payload, mem)?;
    common.finish_placing(mem)?;
    common.complete(WorkCompletion {
        opcode: WcOpcode::Recv,
        byte_len: length as u32,
        imm: datagram.imm,
        src_qp: datagram.deth.src_qp,
        solicited: bth.solicited,
        grh: true,
        header: Some(NetworkHeader::of(from)),
        ..WorkCompletion::BLANK
    });
    common.processed();
    Ok(())
}
