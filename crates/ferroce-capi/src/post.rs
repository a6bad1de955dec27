//! Posting: the fast path. Nothing here allocates.

use std::cell::{Cell, UnsafeCell};
use std::mem::{MaybeUninit, offset_of};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::error::PostSendError;
use ferroce_engine::faults::Verb;
use ferroce_engine::{MAX_SGE, MwType, Qp, RecvWr, Remote, SendOp, SendTo, SendWr, Service, Sge};
use ferroce_host::latest::Reader;
use ferroce_wire::{Imm, Rkey, SrqNumber};

use crate::ah;
use crate::call;
use crate::check;
use crate::entry::{FromC, Object, Ptr, export, named};
use crate::errno::{Errno, judged};
use crate::handle::get;
use crate::mr;
use crate::mw;
use crate::mw::NewKey;
use crate::reason;

// An array of ibv_sge is an array of Sge.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<abi::ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<abi::ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(abi::ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(abi::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(abi::ibv_sge, lkey));
};

/// The valid bits of `send_flags`. The library computes no checksums: a raw packet leaves unchanged.
pub(crate) const SEND_FLAGS: u32 =
    abi::IBV_SEND_FENCE | abi::IBV_SEND_SIGNALED | abi::IBV_SEND_SOLICITED | abi::IBV_SEND_INLINE;

/// Room for a copy of one list whose address is not a multiple of 8. Programs may keep lists in packed
/// structures (libiscsi does), and the processor reads them there; Rust's references need aligned memory.
pub(crate) struct AlignedList(UnsafeCell<[MaybeUninit<Sge>; MAX_SGE as usize]>);

impl AlignedList {
    /// Costs nothing: the room is written when a list needs it.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([MaybeUninit::uninit(); MAX_SGE as usize]))
    }

    /// A copy of the list.
    ///
    /// # Safety
    ///
    /// `list` is an array of `count` elements, at most [`MAX_SGE`], at any address. The copy made before is
    /// no longer used.
    #[cold]
    unsafe fn copy(&self, list: *const Sge, count: usize) -> &[Sge] {
        let room = self.0.get().cast::<Sge>();
        for index in 0..count {
            // SAFETY: the list has `count` elements.
            let sge = unsafe { list.add(index).read_unaligned() };
            // SAFETY: there is room for `MAX_SGE` elements, and the copy made before is no longer read.
            unsafe { room.add(index).write(sge) };
        }
        // SAFETY: the loop wrote these elements, and nobody writes to them while the copy is used.
        unsafe { std::slice::from_raw_parts(room, count) }
    }
}

/// The list of a work request: in place if it is aligned, otherwise a copy in `room`. EINVAL for more than
/// `most`, before anything is read.
///
/// # Safety
///
/// `list` is NULL or an array of `count` elements, at any address, that stays as it is while the result is
/// used. An earlier result with the same `room` is no longer used.
#[inline(always)]
pub(crate) unsafe fn sges(
    list: *const abi::ibv_sge,
    count: usize,
    most: u32,
    room: &AlignedList,
) -> Result<&[Sge], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() || count > most.min(MAX_SGE) as usize {
        return Err(unusable(list.is_null(), count, most.min(MAX_SGE)));
    }
    let list = list.cast::<Sge>();
    if !list.is_aligned() {
        // SAFETY: `list` has `count` elements; both types lie alike (above), and the count was compared.
        return Ok(unsafe { room.copy(list, count) });
    }
    // SAFETY: `list` has `count` elements; both types lie alike (above), and any bits are a value of theirs.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

#[cold]
fn unusable(is_null: bool, given: usize, max: u32) -> Errno {
    if !is_null {
        reason::tell_of_post("a work request", &PostSendError::TooManySges { given, max });
    }
    Errno::EINVAL
}

/// Looks at a program's structure, which may be at any address; `None` for NULL.
#[inline(always)]
fn look<W: Copy, R>(at: Ptr<W>, look: impl FnOnce(&W) -> R) -> Option<R> {
    let lent = at.lent()?;
    let copied;
    let structure = if at.as_ptr().is_aligned() {
        // SAFETY: not NULL and aligned; a program leaves its work requests alone during the call that posts
        // them.
        unsafe { &*at.as_ptr() }
    } else {
        copied = lent.read();
        &copied
    };
    Some(look(structure))
}

/// A chain of C work requests, converted one by one. Where one is malformed the chain ends there.
struct Chain<'e, W> {
    next: Ptr<W>,
    /// The request handed out last.
    at: &'e Cell<Ptr<W>>,
    malformed: &'e Cell<Option<Errno>>,
    /// Elements that a list may have.
    most: u32,
    /// The queue pair that sends.
    qp: Option<&'e Qp>,
    /// For a list that is not aligned.
    room: &'e AlignedList,
    /// New key of the window that the last request binds.
    key: Option<NewKey>,
    /// The queue at this address is checked, and was told a request.
    checked: Option<Checked<'e>>,
}

impl<W: Copy> Chain<'_, W> {
    /// Hands the conversion's outcome on.
    #[inline(always)]
    fn take<T>(&mut self, next: Ptr<W>, converted: Result<T, Errno>) -> Option<T> {
        self.at.set(self.next);
        self.next = next;
        match converted {
            Ok(wr) => Some(wr),
            Err(errno) => {
                self.malformed.set(Some(errno));
                self.next = Ptr::NULL;
                None
            }
        }
    }
}

impl<'e> Iterator for Chain<'e, abi::ibv_send_wr> {
    type Item = SendWr<'e>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        // The request before is posted: at the first that is refused the engine stops.
        if let Some(key) = self.key.take() {
            key.show();
        }
        let (most, qp, room) = (self.most, self.qp, self.room);
        // SAFETY: the engine is through with a request before it takes the next one, so `room` is free again.
        let convert = |wr: &abi::ibv_send_wr| (next_of(wr.next), unsafe { send_wr(wr, most, qp, room) });
        let (next, converted) = look(self.next, convert)?;
        let (wr, key) = self.take(next, converted)?;
        self.key = key;
        if let Some(checked) = self.checked {
            check_send(checked, self.at.get(), most, qp);
        }
        Some(wr)
    }
}

impl<'e> Iterator for Chain<'e, abi::ibv_recv_wr> {
    type Item = RecvWr<'e>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (most, room) = (self.most, self.room);
        // SAFETY: as for send work requests.
        let convert = |wr: &abi::ibv_recv_wr| (next_of(wr.next), unsafe { recv_wr(wr, most, room) });
        let (next, converted) = look(self.next, convert)?;
        let wr = self.take(next, converted)?;
        if let Some(checked) = self.checked {
            check_receive(checked, wr);
        }
        Some(wr)
    }
}

/// The queue of a chain that is checked, and the request that the checks saw last.
type Checked<'e> = (usize, &'e Cell<Option<u64>>);

/// Reads the work request once more: that one stays in registers where nothing is checked. The bind of a
/// window, for which that would make a second key, reads no memory.
#[cold]
#[inline(never)]
fn check_send((queue, told): Checked<'_>, at: Ptr<abi::ibv_send_wr>, most: u32, qp: Option<&Qp>) {
    let room = AlignedList::new();
    look(at, |wr| {
        told.set(Some(wr.wr_id));
        if wr.opcode == abi::IBV_WR_BIND_MW {
            let signaled = wr.send_flags & abi::IBV_SEND_SIGNALED != 0;
            check::send(queue, || check::Work::bind(wr.wr_id, signaled));
        } else if let Ok((wr, _)) = {
            // SAFETY: as for the chain, with room of its own.
            unsafe { send_wr(wr, most, qp, &room) }
        } {
            check::send(queue, || check::Work::send(&wr));
        }
    });
}

#[cold]
#[inline(never)]
fn check_receive((queue, told): Checked<'_>, wr: RecvWr<'_>) {
    told.set(Some(wr.wr_id));
    check::receive(queue, &wr);
}

/// The work request behind another one.
#[inline(always)]
fn next_of<W>(next: *mut W) -> Ptr<W> {
    // SAFETY: a pointer inside a program's work request, which follows the contract of `entry`.
    unsafe { <Ptr<W> as FromC>::from_c(next) }
}

/// Converts one work request, whose list is in place or in `room`.
///
/// # Safety
///
/// A request that was converted with the same `room` before is no longer used.
#[inline(always)]
unsafe fn send_wr<'a>(
    wr: &abi::ibv_send_wr,
    most: u32,
    qp: Option<&Qp>,
    room: &'a AlignedList,
) -> Result<(SendWr<'a>, Option<NewKey>), Errno> {
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::EINVAL)?;
    if wr.send_flags & !SEND_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (op, key) = send_op(wr)?;
    let wr = SendWr {
        wr_id: wr.wr_id,
        op,
        to: send_to(wr, qp)?,
        // SAFETY: `num_sge` is the length of the list, which the program leaves alone during the call; `room`
        // is free.
        sges: unsafe { sges(wr.sg_list, count, most, room) }?,
        signaled: wr.send_flags & abi::IBV_SEND_SIGNALED != 0,
        solicited: wr.send_flags & abi::IBV_SEND_SOLICITED != 0,
        fence: wr.send_flags & abi::IBV_SEND_FENCE != 0,
        inline: wr.send_flags & abi::IBV_SEND_INLINE != 0,
    };
    Ok((wr, key))
}

/// Returns the destination of a request on a datagram or XRC queue pair.
#[inline(always)]
fn send_to(wr: &abi::ibv_send_wr, qp: Option<&Qp>) -> Result<SendTo, Errno> {
    match qp {
        Some(qp) if qp.service() == Service::Ud => {
            // SAFETY: a pointer and integers, whatever the bits.
            let ud = unsafe { wr.wr.ud };
            ah::destination(qp, named!(ud.ah), ud.remote_qpn, ud.remote_qkey)
        }
        Some(qp) if qp.service() == Service::XrcInitiator => {
            // SAFETY: an integer, whatever the bits.
            let number = unsafe { wr.qp_type.xrc }.remote_srqn;
            Ok(SendTo::XrcSrq(SrqNumber::new(number)))
        }
        _ => Ok(SendTo::Peer),
    }
}

/// The unions of the structure, read by what the opcode says; every member of each is plain integers.
/// A bind brings the key that its window will have.
#[inline(always)]
fn send_op(wr: &abi::ibv_send_wr) -> Result<(SendOp, Option<NewKey>), Errno> {
    let imm = || {
        // SAFETY: integers of one size.
        Imm(unsafe { wr.unnamed.imm_data }.to_ne_bytes())
    };
    let invalidate = || {
        // SAFETY: integers of one size.
        Rkey::new(unsafe { wr.unnamed.invalidate_rkey })
    };
    let remote = || {
        // SAFETY: integers only.
        let rdma = unsafe { wr.wr.rdma };
        Remote { addr: rdma.remote_addr, rkey: Rkey::new(rdma.rkey) }
    };
    let atomic = || {
        // SAFETY: integers only.
        let atomic = unsafe { wr.wr.atomic };
        let remote = Remote { addr: atomic.remote_addr, rkey: Rkey::new(atomic.rkey) };
        (remote, atomic.compare_add, atomic.swap)
    };
    let op = match wr.opcode {
        abi::IBV_WR_SEND => SendOp::Send,
        abi::IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm()),
        abi::IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate(invalidate()),
        abi::IBV_WR_RDMA_WRITE => SendOp::Write { remote: remote() },
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { remote: remote(), imm: imm() },
        abi::IBV_WR_RDMA_READ => SendOp::Read { remote: remote() },
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (remote, compare, swap) = atomic();
            SendOp::CompareSwap { remote, compare, swap }
        }
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let (remote, add, _) = atomic();
            SendOp::FetchAdd { remote, add }
        }
        abi::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(invalidate()),
        abi::IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote: remote(), octets: None },
        abi::IBV_WR_BIND_MW => {
            // SAFETY: the union's members are plain integers and pointers, which any bits are.
            let bind = unsafe { wr.unnamed_2.bind_mw };
            let (op, key) = mw::operation(named!(bind.mw), bind.rkey, &bind.bind_info, MwType::Two)?;
            return Ok((op, Some(key)));
        }
        // Also IBV_WR_FLUSH: the structure has no place for what kind of flush, so only `ibv_wr_flush` asks
        // for one.
        _ => return Err(Errno::EINVAL),
    };
    Ok((op, None))
}

/// As [`send_wr`].
///
/// # Safety
///
/// As there.
unsafe fn recv_wr<'a>(wr: &abi::ibv_recv_wr, most: u32, room: &'a AlignedList) -> Result<RecvWr<'a>, Errno> {
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::EINVAL)?;
    // SAFETY: as in `send_wr`.
    let sges = unsafe { sges(wr.sg_list, count, most, room) }?;
    Ok(RecvWr { wr_id: wr.wr_id, sges })
}

/// Runs a post over the chain; `bad` is told the request that was refused, the ones before it are posted.
/// Work requests may be at any address.
#[inline(always)]
fn post<W: Copy>(
    queue: usize,
    is_send: bool,
    first: Ptr<W>,
    bad: Ptr<*mut W>,
    run: impl FnOnce(Chain<'_, W>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let at = Cell::new(first);
    let malformed = Cell::new(None);
    let told = Cell::new(None);
    let room = AlignedList::new();
    let posted = if first.is_null() {
        Err(Errno::EINVAL)
    } else {
        let checked = check::is_on().then_some((queue, &told));
        let (at, malformed, room) = (&at, &malformed, &room);
        run(Chain { next: first, at, malformed, most: 0, qp: None, room, key: None, checked })
    };
    if let (Err(_), Some(wr_id)) = (posted, told.get()) {
        check::refused_one(queue, is_send, wr_id);
    }
    let result = malformed.get().map_or(posted, Err);
    if let (Err(_), Some(bad)) = (result, bad.lent()) {
        bad.write(at.get().as_ptr());
    }
    result
}

export! {
    /// The slot behind the inline `ibv_post_send`.
    pub(crate) fn post_send(
        qp: Object<abi::ibv_qp>,
        wr: Ptr<abi::ibv_send_wr>,
        bad_wr: Ptr<*mut abi::ibv_send_wr>,
    ) -> c_int = call::quick::code |owner| {
        let run = |chain: Chain<'_, abi::ibv_send_wr>| {
            let reader = Reader::enter();
            let live = qp.look(owner, &reader)?;
            judged(live.engine.judge(Verb::PostSend))?;
            let most = live.engine.caps().max_send_sge;
            let chain = Chain { most, qp: Some(&live.engine), ..chain };
            live.engine.post_send(chain).map_err(|(_, error)| error.into())
        };
        post(qp.as_ptr().addr(), true, wr, bad_wr, run)
    }

    /// The slot behind the inline `ibv_post_recv`.
    pub(crate) fn post_recv(
        qp: Object<abi::ibv_qp>,
        wr: Ptr<abi::ibv_recv_wr>,
        bad_wr: Ptr<*mut abi::ibv_recv_wr>,
    ) -> c_int = call::quick::code |owner| {
        let run = |mut chain: Chain<'_, abi::ibv_recv_wr>| {
            let reader = Reader::enter();
            let live = qp.look(owner, &reader)?;
            judged(live.engine.judge(Verb::PostRecv))?;
            chain.most = live.engine.caps().max_recv_sge;
            live.engine.post_recv(chain).map_err(|(_, error)| error.into())
        };
        post(qp.as_ptr().addr(), false, wr, bad_wr, run)
    }

    /// The slot behind the inline `ibv_post_srq_recv`.
    pub(crate) fn post_srq_recv(
        srq: Object<abi::ibv_srq>,
        wr: Ptr<abi::ibv_recv_wr>,
        bad_wr: Ptr<*mut abi::ibv_recv_wr>,
    ) -> c_int = call::quick::code |owner| {
        let run = |mut chain: Chain<'_, abi::ibv_recv_wr>| {
            let reader = Reader::enter();
            let live = srq.look(owner, &reader)?;
            chain.most = live.engine.max_sge();
            live.engine.post_recv(chain).map_err(|(_, error)| error.into())
        };
        post(srq.as_ptr().addr(), false, wr, bad_wr, run)
    }

    /// The slot behind the inline `ibv_bind_mw`, for type 1: posts the request and sets `mw->rkey` to the key
    /// that it will have. Without a region, or of length 0, it unbinds. EPERM if region and window are of
    /// different domains; what else is wrong ends the request with `IBV_WC_MW_BIND_ERR`.
    pub(crate) fn bind_mw(
        qp: Object<abi::ibv_qp>,
        window: Object<abi::ibv_mw>,
        mw_bind: Ptr<abi::ibv_mw_bind>,
    ) -> c_int = call::code |owner| {
        let (_, live) = qp.enter(owner)?;
        let bind = mw_bind.read()?;
        let handle = window.handle()?;
        let live_window = handle.live()?;
        let info = &bind.bind_info;
        if live.engine.service() == Service::Ud || info.mw_access_flags & abi::IBV_ACCESS_ZERO_BASED != 0 {
            return Err(Errno::EINVAL);
        }
        if !info.mr.is_null() {
            let region = mr::engine(named!(info.mr))?;
            if !region.pd().shares_memory_with(live_window.engine.pd()) {
                return Err(Errno::EPERM);
            }
        }
        let rkey = get!(handle.rkey);
        let next = live_window.engine.rkey(rkey.wrapping_add(1));
        let (op, key) = mw::operation(window, next.value(), info, MwType::One)?;
        let wr = SendWr {
            wr_id: bind.wr_id,
            signaled: bind.send_flags & abi::IBV_SEND_SIGNALED != 0,
            fence: bind.send_flags & abi::IBV_SEND_FENCE != 0,
            op,
            to: SendTo::Peer,
            sges: &[],
            solicited: false,
            inline: false,
        };
        live.engine.post_send([wr]).map_err(|(_, error)| error)?;
        key.show();
        Ok(())
    }
}
