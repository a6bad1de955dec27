//! The headers of requests.

use ferroce_wire::{AtomicEth, Request, Reth, SendTail};

use super::super::pipeline::Piece;
use crate::{Remote, SendOp};

/// The headers of a piece; the payload is written by the batch.
pub(crate) fn request(piece: &Piece) -> Request<'static> {
    let payload: &[u8] = &[];
    let (first, last) = (piece.packet == 0, piece.is_last());
    let send = |tail| match (first, last) {
        (true, true) => Request::SendOnly { payload, tail },
        (true, false) => Request::SendFirst { payload },
        (false, false) => Request::SendMiddle { payload },
        (false, true) => Request::SendLast { payload, tail },
    };
    let write = |remote: Remote, imm| {
        let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: piece.wqe.length };
        match (first, last) {
            (true, true) => Request::WriteOnly { reth, payload, imm },
            (true, false) => Request::WriteFirst { reth, payload },
            (false, false) => Request::WriteMiddle { payload },
            (false, true) => Request::WriteLast { payload, imm },
        }
    };
    let atomic = |remote: Remote, swap_or_add, compare| AtomicEth {
        va: remote.addr,
        rkey: remote.rkey,
        swap_or_add,
        compare,
    };
    match piece.wqe.op {
        // A local operation never gets here; see `local_operations::run`.
        SendOp::Send | SendOp::LocalInvalidate(_) | SendOp::BindMw(_) => send(SendTail::None),
        SendOp::SendImm(imm) => send(SendTail::Imm(imm)),
        SendOp::SendInvalidate(rkey) => send(SendTail::Invalidate(rkey)),
        SendOp::Write { remote } => write(remote, None),
        SendOp::WriteImm { remote, imm } => write(remote, Some(imm)),
        SendOp::Read { remote } => Request::ReadRequest {
            reth: Reth {
                va: remote.addr.wrapping_add(u64::from(piece.offset)),
                rkey: remote.rkey,
                dma_len: piece.len,
            },
        },
        SendOp::CompareSwap { remote, compare, swap } => {
            Request::CompareSwap { atomic: atomic(remote, swap, compare) }
        }
        SendOp::AtomicWrite { remote, .. } => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: piece.wqe.length };
            Request::AtomicWrite { reth, payload }
        }
        SendOp::Flush { remote, length, feth } => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, dma_len: length };
            Request::Flush { feth, reth }
        }
        SendOp::FetchAdd { remote, add } => Request::FetchAdd { atomic: atomic(remote, add, 0) },
    }
}
