//! Extended queue pairs: work requests built by functions, posted together or not at all.

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::{MwType, Remote, SendOp, SendTo, Sge};
use ferroce_host::latest::Reader;
use ferroce_wire::{Feth, Imm, Lkey, Rkey, SrqNumber};

use crate::ah;
use crate::batch::{BatchState, Pending};
use crate::call;
use crate::check;
use crate::entry::{ConstPtr, Object, export};
use crate::errno::Errno;
use crate::handle::get;
use crate::mw::NewKey;
use crate::post::AlignedList;
use crate::qp::QpHandle;
use crate::{mw, post};

/// Buffers of one inline payload: more than octets that any queue pair takes.
const MOST_BUFFERS: usize = 65_536;

/// The C structure of a queue pair. Every function is there, also those that no queue pair can be asked for:
/// they make the batch fail.
pub(crate) fn empty(qp_base: abi::ibv_qp) -> abi::ibv_qp_ex {
    abi::ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: Some(wr_send_tso),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
        wr_flush: Some(wr_flush),
    }
}

/// Runs `body` on the batch of a program's queue pair.
fn with(qp: Object<abi::ibv_qp_ex>, body: impl FnOnce(&'static QpHandle, &mut BatchState)) {
    call::quick::nothing(|_| {
        let handle = qp.handle()?;
        body(handle, &mut handle.extra.0.lock());
        Ok(())
    });
}

/// Starts a request: the members `wr_id` and `wr_flags` count as they are now.
fn build(qp: Object<abi::ibv_qp_ex>, op: SendOp) {
    let start = |handle: &QpHandle, state: &mut BatchState| {
        state.flush();
        let (wr_id, flags) = (get!(handle.wr_id), get!(handle.wr_flags));
        if flags & !post::SEND_FLAGS != 0 {
            state.fail(Errno::EINVAL);
        }
        state.pending = Some(Pending { wr_id, flags, op, to: SendTo::Peer });
    };
    with(qp, start)
}

/// Sets the data of the request that was started last.
fn set(qp: Object<abi::ibv_qp_ex>, sges: Result<&[Sge], Errno>, inline: bool) {
    let fill = |_: &QpHandle, state: &mut BatchState| match (state.pending.take(), sges) {
        (Some(pending), Ok(sges)) => state.push(&pending, sges, inline),
        // Data without a request.
        (None, Ok(_)) => state.fail(Errno::EINVAL),
        (_, Err(errno)) => state.fail(errno),
    };
    with(qp, fill)
}

export! {
    /// Opens a batch; another thread's batch on the queue pair ends first.
    fn wr_start(qp: Object<abi::ibv_qp_ex>) -> () = call::quick::nothing |owner| {
        let (handle, live) = qp.enter(owner)?;
        // Waits without the state's lock, which the open batch needs to end.
        let open = live.engine.sender();
        *handle.extra.0.lock() = BatchState { open: Some(open), ..BatchState::default() };
        Ok(())
    }

    /// Posts the batch, or nothing of it and returns its first error.
    fn wr_complete(qp: Object<abi::ibv_qp_ex>) -> c_int = call::quick::code |owner| {
        let reader = Reader::enter();
        qp.look(owner, &reader)?;
        let handle = qp.handle()?;
        let mut state = handle.extra.0.lock();
        state.flush();
        let BatchState { open, failed, keys, works, .. } = std::mem::take(&mut *state);
        drop(state);
        let batch = open.ok_or(Errno::EINVAL)?;
        if let Some(errno) = failed {
            return Err(errno);
        }
        let count = works.len();
        // The engine holds the queue pair until the batch is posted.
        works.into_iter().for_each(|work| check::send(qp.as_ptr().addr(), || work));
        let commit = batch.commit().inspect_err(|_| check::refused(qp.as_ptr().addr(), true, count));
        commit.map_err(Errno::of_batch)?;
        keys.into_iter().for_each(NewKey::show);
        Ok(())
    }

    /// Posts nothing.
    fn wr_abort(qp: Object<abi::ibv_qp_ex>) -> () {
        with(qp, |_, state| *state = BatchState::default())
    }
}

/// Functions that start a request.
macro_rules! builders {
    ($($name:ident($($argument:ident: $type:ty),*) => $op:expr;)*) => {
        $(
            export! {
                fn $name(qp: Object<abi::ibv_qp_ex> $(, $argument: $type)*) -> () {
                    build(qp, $op)
                }
            }
        )*
    };
}

fn remote(rkey: u32, addr: u64) -> Remote {
    Remote { addr, rkey: Rkey::new(rkey) }
}

builders! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: abi::be32) => SendOp::SendImm(Imm(imm.to_ne_bytes()));
    wr_send_inv(rkey: u32) => SendOp::SendInvalidate(Rkey::new(rkey));
    wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write { remote: remote(rkey, addr) };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: abi::be32) =>
        SendOp::WriteImm { remote: remote(rkey, addr), imm: Imm(imm.to_ne_bytes()) };
    wr_rdma_read(rkey: u32, addr: u64) => SendOp::Read { remote: remote(rkey, addr) };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        SendOp::CompareSwap { remote: remote(rkey, addr), compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => SendOp::FetchAdd { remote: remote(rkey, addr), add };
    wr_local_inv(rkey: u32) => SendOp::LocalInvalidate(Rkey::new(rkey));
}

export! {
    /// Starts a request: eight octets, copied now, for the peer to store as one word.
    fn wr_atomic_write(
        qp: Object<abi::ibv_qp_ex>,
        rkey: u32,
        remote_addr: u64,
        atomic_wr: *const c_void,
    ) -> () {
        let live = qp.handle().and_then(|handle| handle.live());
        let mut octets = [0; 8];
        let read = live
            .and_then(|live| Ok(live.engine.read_inline(atomic_wr.expose_provenance() as u64, &mut octets)?));
        match read {
            Ok(()) => {
                let op = SendOp::AtomicWrite { remote: remote(rkey, remote_addr), octets: Some(octets) };
                build(qp, op)
            }
            Err(errno) => with(qp, |_, state| state.fail(errno)),
        }
    }

    /// Starts a request that flushes. `len` beyond what a message can be, and types and levels that are none,
    /// make the batch fail with EINVAL.
    fn wr_flush(
        qp: Object<abi::ibv_qp_ex>,
        rkey: u32,
        remote_addr: u64,
        len: usize,
        placement: u8,
        selectivity: u8,
    ) -> () {
        let remote = remote(rkey, remote_addr);
        match u32::try_from(len) {
            Ok(length) => {
                let feth = Feth { placement, selectivity };
                build(qp, SendOp::Flush { remote, length, feth })
            }
            Err(_) => with(qp, |_, state| state.fail(Errno::EINVAL)),
        }
    }

    /// Starts a request that binds a type 2 window.
    fn wr_bind_mw(
        qp: Object<abi::ibv_qp_ex>,
        mw: Object<abi::ibv_mw>,
        rkey: u32,
        info: ConstPtr<abi::ibv_mw_bind_info>,
    ) -> () {
        match info.read().and_then(|info| mw::operation(mw, rkey, &info, MwType::Two)) {
            Ok((op, key)) => {
                build(qp, op);
                with(qp, |_, state| state.keys.push(key))
            }
            Err(errno) => with(qp, |_, state| state.fail(errno)),
        }
    }

    /// No queue pair can be asked for it: the batch fails with EOPNOTSUPP.
    fn wr_send_tso(qp: Object<abi::ibv_qp_ex>, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) -> () {
        with(qp, |_, state| state.fail(Errno::EOPNOTSUPP))
    }

    /// Sets the destination of the request that was started last, before its data or after.
    fn wr_set_ud_addr(
        qp: Object<abi::ibv_qp_ex>,
        ah: Object<abi::ibv_ah>,
        remote_qpn: u32,
        remote_qkey: u32,
    ) -> () {
        let address = |handle: &QpHandle, state: &mut BatchState| {
            let to = handle.live().and_then(|live| {
                ah::destination(&live.engine, ah, remote_qpn, remote_qkey)
            });
            match to {
                Ok(to) => state.address(to),
                Err(errno) => state.fail(errno),
            }
        };
        with(qp, address)
    }

    /// Sets the shared receive queue of the peer's that the request started last is for, before its data or
    /// after.
    fn wr_set_xrc_srqn(qp: Object<abi::ibv_qp_ex>, remote_srqn: u32) -> () {
        let to = SendTo::XrcSrq(SrqNumber::new(remote_srqn));
        with(qp, |_, state| state.address(to))
    }

    /// Sets the payload to one range of registered memory. A length of 0 sets no payload.
    fn wr_set_sge(qp: Object<abi::ibv_qp_ex>, lkey: u32, addr: u64, length: u32) -> () {
        let one = [Sge { addr, length, lkey: Lkey::new(lkey) }];
        let sges = if length == 0 { &one[..0] } else { &one[..] };
        set(qp, Ok(sges), false)
    }

    /// Pieces of registered memory.
    fn wr_set_sge_list(qp: Object<abi::ibv_qp_ex>, num_sge: usize, list: ConstPtr<abi::ibv_sge>) -> () {
        let most = qp.handle()
            .and_then(|handle| handle.live())
            .map_or(0, |live| live.engine.caps().max_send_sge);
        let room = AlignedList::new();
        // SAFETY: `list` has `num_sge` elements, which the program leaves alone during the call; the room is
        // new.
        let sges = unsafe { post::sges(list.as_ptr(), num_sge, most, &room) };
        set(qp, sges, false)
    }

    /// Octets that are copied now.
    fn wr_set_inline_data(qp: Object<abi::ibv_qp_ex>, addr: *mut c_void, length: usize) -> () {
        // Longer than a piece can be is longer than any queue pair takes.
        let sge = u32::try_from(length).map_err(|_| Errno::ENOSPC);
        let sge = sge.map(|length| [Sge { addr: addr.expose_provenance() as u64, length, lkey: Lkey::new(0) }]);
        let sges = sge.as_ref().map(|one| &one[..]).map_err(|errno| *errno);
        set(qp, sges, true)
    }

    /// Octets from several places that are copied now.
    fn wr_set_inline_data_list(
        qp: Object<abi::ibv_qp_ex>,
        num_buf: usize,
        list: ConstPtr<abi::ibv_data_buf>,
    ) -> () {
        let pieces = if num_buf == 0 {
            Ok(Vec::new())
        } else if list.is_null() || num_buf > MOST_BUFFERS {
            Err(Errno::EINVAL)
        } else {
            let piece = |index| {
                // SAFETY: `list` has `num_buf` elements, at any address.
                let buf = unsafe { list.as_ptr().add(index).read_unaligned() };
                let length = u32::try_from(buf.length).map_err(|_| Errno::ENOSPC)?;
                Ok(Sge { addr: buf.addr.expose_provenance() as u64, length, lkey: Lkey::new(0) })
            };
            (0..num_buf).map(piece).collect::<Result<Vec<Sge>, Errno>>()
        };
        let sges = pieces.as_deref().map_err(|errno| *errno);
        set(qp, sges, true)
    }
}
