//! Posting: the fast path. Nothing here allocates.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, offset_of};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::error::{PostRecvError, PostSendError};
use ferroce_engine::faults::Verb;
use ferroce_engine::{MAX_SGE, MwType, Qp, RecvWr, Remote, SendOp, SendTo, SendWr, Sends, Service, Sge};
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

/// A program's list of work requests that is being posted. Work requests may be at any address.
struct Chain<W> {
    /// The request that was taken last, at first the head of the list.
    at: Ptr<W>,
    /// The checks of the program saw the request with this number last.
    checked: Option<u64>,
}

/// The outcome of one work request that was not posted.
enum Unposted<E> {
    /// The library cannot read it.
    Malformed(Errno),
    /// The queue does not take it.
    Refused(E),
}

impl<W: Copy> Chain<W> {
    /// Runs a post; `bad` is told the request that was not posted, the ones before it are.
    #[inline(always)]
    fn post(
        queue: usize,
        is_send: bool,
        first: Ptr<W>,
        bad: Ptr<*mut W>,
        run: impl FnOnce(&mut Self) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut chain = Self { at: first, checked: None };
        let result = if first.is_null() { Err(Errno::EINVAL) } else { run(&mut chain) };
        if result.is_err() {
            chain.failed(queue, is_send, bad);
        }
        result
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, queue: usize, is_send: bool, bad: Ptr<*mut W>) {
        if let Some(wr_id) = self.checked {
            check::refused_one(queue, is_send, wr_id);
        }
        if let Some(bad) = bad.lent() {
            bad.write(self.at.as_ptr());
        }
    }

    /// Has `one` convert and post each request; that returns the request behind it.
    #[inline(always)]
    fn each<E>(
        &mut self,
        mut one: impl FnMut(&mut Self, &W) -> Result<Ptr<W>, Unposted<E>>,
    ) -> Result<(), Unposted<E>> {
        loop {
            let Some(next) = look(self.at, |wr| one(self, wr)) else { return Ok(()) };
            let next = next?;
            if next.is_null() {
                return Ok(());
            }
            self.at = next;
        }
    }

    /// The errno of a post that ended so.
    #[inline(always)]
    fn outcome<E>(&mut self, result: Result<(), Unposted<E>>) -> Result<(), Errno>
    where
        Errno: From<E>,
    {
        match result {
            Ok(()) => Ok(()),
            Err(Unposted::Malformed(errno)) => {
                // The checks saw the request before this one, which was posted.
                self.checked = None;
                Err(errno)
            }
            Err(Unposted::Refused(error)) => Err(error.into()),
        }
    }
}

/// Reads the work request once more: that one stays in registers where nothing is checked. The bind of a
/// window, for which that would make a second key, reads no memory. Returns the number of the request.
#[cold]
#[inline(never)]
fn check_send(queue: usize, wr: &abi::ibv_send_wr, most: u32, qp: &Qp) -> Option<u64> {
    let room = AlignedList::new();
    if wr.opcode == abi::IBV_WR_BIND_MW {
        let signaled = wr.send_flags & abi::IBV_SEND_SIGNALED != 0;
        check::send(queue, || check::Work::bind(wr.wr_id, signaled));
    } else {
        let mut request = SendWr::signaled(wr.wr_id, SendOp::Send, &[]);
        // SAFETY: as for the chain, with room of its own.
        if unsafe { read_send(&mut request, wr, most, qp, &room) }.is_ok() {
            check::send(queue, || check::Work::send(&request));
        }
    }
    Some(wr.wr_id)
}

#[cold]
#[inline(never)]
fn check_receive(queue: usize, wr: &RecvWr<'_>) -> Option<u64> {
    check::receive(queue, wr);
    Some(wr.wr_id)
}

/// The work request behind another one.
#[inline(always)]
fn next_of<W>(next: *mut W) -> Ptr<W> {
    // SAFETY: a pointer inside a program's work request, which follows the contract of `entry`.
    unsafe { <Ptr<W> as FromC>::from_c(next) }
}

/// Converts one work request, whose list is in place or in `room`. `to` is a send to the peer without a list
/// before, which spares copies.
///
/// # Safety
///
/// A request that was converted with the same `room` before is no longer used.
#[inline(always)]
unsafe fn read_send<'a>(
    to: &mut SendWr<'a>,
    wr: &abi::ibv_send_wr,
    most: u32,
    qp: &Qp,
    room: &'a AlignedList,
) -> Result<Option<NewKey>, Errno> {
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::EINVAL)?;
    if wr.send_flags & !SEND_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    to.wr_id = wr.wr_id;
    to.signaled = wr.send_flags & abi::IBV_SEND_SIGNALED != 0;
    to.solicited = wr.send_flags & abi::IBV_SEND_SOLICITED != 0;
    to.fence = wr.send_flags & abi::IBV_SEND_FENCE != 0;
    to.inline = wr.send_flags & abi::IBV_SEND_INLINE != 0;
    let key = read_op(&mut to.op, wr)?;
    if matches!(qp.service(), Service::Ud | Service::XrcInitiator) {
        to.to = destination(wr, qp)?;
    }
    // SAFETY: `num_sge` is the length of the list, which the program leaves alone during the call; `room` is
    // free.
    to.sges = unsafe { sges(wr.sg_list, count, most, room) }?;
    Ok(key)
}

/// Returns the destination of a request on a datagram or XRC queue pair.
#[inline(never)]
fn destination(wr: &abi::ibv_send_wr, qp: &Qp) -> Result<SendTo, Errno> {
    if qp.service() == Service::Ud {
        // SAFETY: a pointer and integers, whatever the bits.
        let ud = unsafe { wr.wr.ud };
        ah::destination(qp, named!(ud.ah), ud.remote_qpn, ud.remote_qkey)
    } else {
        // SAFETY: an integer, whatever the bits.
        let number = unsafe { wr.qp_type.xrc }.remote_srqn;
        Ok(SendTo::XrcSrq(SrqNumber::new(number)))
    }
}

/// The unions of the structure, read by what the opcode says; every member of each is plain integers.
/// A bind brings the key that its window will have. Each kind is written to `op` by itself: one value of the
/// whole `match` would be copied.
#[inline(always)]
fn read_op(op: &mut SendOp, wr: &abi::ibv_send_wr) -> Result<Option<NewKey>, Errno> {
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
    match wr.opcode {
        abi::IBV_WR_SEND => *op = SendOp::Send,
        abi::IBV_WR_SEND_WITH_IMM => *op = SendOp::SendImm(imm()),
        abi::IBV_WR_SEND_WITH_INV => *op = SendOp::SendInvalidate(invalidate()),
        abi::IBV_WR_RDMA_WRITE => *op = SendOp::Write { remote: remote() },
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => *op = SendOp::WriteImm { remote: remote(), imm: imm() },
        abi::IBV_WR_RDMA_READ => *op = SendOp::Read { remote: remote() },
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (remote, compare, swap) = atomic();
            *op = SendOp::CompareSwap { remote, compare, swap };
        }
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let (remote, add, _) = atomic();
            *op = SendOp::FetchAdd { remote, add };
        }
        abi::IBV_WR_LOCAL_INV => *op = SendOp::LocalInvalidate(invalidate()),
        abi::IBV_WR_ATOMIC_WRITE => *op = SendOp::AtomicWrite { remote: remote(), octets: None },
        abi::IBV_WR_BIND_MW => {
            // SAFETY: the union's members are plain integers and pointers, which any bits are.
            let bind = unsafe { wr.unnamed_2.bind_mw };
            let (bind, key) = mw::operation(named!(bind.mw), bind.rkey, &bind.bind_info, MwType::Two)?;
            *op = bind;
            return Ok(Some(key));
        }
        // Also IBV_WR_FLUSH: the structure has no place for what kind of flush, so only `ibv_wr_flush` asks
        // for one.
        _ => return Err(Errno::EINVAL),
    }
    Ok(None)
}

/// As [`read_send`].
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn recv_wr<'a>(wr: &abi::ibv_recv_wr, most: u32, room: &'a AlignedList) -> Result<RecvWr<'a>, Errno> {
    let count = usize::try_from(wr.num_sge).map_err(|_| Errno::EINVAL)?;
    // SAFETY: as in `read_send`.
    let sges = unsafe { sges(wr.sg_list, count, most, room) }?;
    Ok(RecvWr { wr_id: wr.wr_id, sges })
}

impl Chain<abi::ibv_send_wr> {
    /// Posts all.
    #[inline(always)]
    fn send(&mut self, queue: usize, qp: &Qp, sends: &mut Sends<'_>) -> Result<(), Unposted<PostSendError>> {
        let (most, room) = (qp.caps().max_send_sge, AlignedList::new());
        self.each(|chain, wr| {
            let mut request = SendWr::signaled(0, SendOp::Send, &[]);
            // SAFETY: the engine copied the request before, so `room` is free.
            let key = unsafe { read_send(&mut request, wr, most, qp, &room) }.map_err(Unposted::Malformed)?;
            if check::is_on() {
                chain.checked = check_send(queue, wr, most, qp);
            }
            sends.post(&request).map_err(Unposted::Refused)?;
            if let Some(key) = key {
                key.show();
            }
            Ok(next_of(wr.next))
        })
    }
}

impl Chain<abi::ibv_recv_wr> {
    /// Posts all by `post`, which copies a request.
    #[inline(always)]
    fn receive(
        &mut self,
        queue: usize,
        most: u32,
        mut post: impl FnMut(&RecvWr<'_>) -> Result<(), PostRecvError>,
    ) -> Result<(), Unposted<PostRecvError>> {
        let room = AlignedList::new();
        self.each(|chain, wr| {
            // SAFETY: the engine copied the request before, so `room` is free.
            let request = unsafe { recv_wr(wr, most, &room) }.map_err(Unposted::Malformed)?;
            if check::is_on() {
                chain.checked = check_receive(queue, &request);
            }
            post(&request).map_err(Unposted::Refused)?;
            Ok(next_of(wr.next))
        })
    }
}

export! {
    /// The slot behind the inline `ibv_post_send`.
    pub(crate) fn post_send(
        qp: Object<abi::ibv_qp>,
        wr: Ptr<abi::ibv_send_wr>,
        bad_wr: Ptr<*mut abi::ibv_send_wr>,
    ) -> c_int = call::quick::code |owner| {
        let queue = qp.as_ptr().addr();
        Chain::post(queue, true, wr, bad_wr, |chain| {
            let reader = Reader::enter();
            let live = qp.look(owner, &reader)?;
            judged(live.engine.judge(Verb::PostSend))?;
            let result = live.engine.post_sends(|sends| chain.send(queue, &live.engine, sends))?;
            chain.outcome(result)
        })
    }

    /// The slot behind the inline `ibv_post_recv`.
    pub(crate) fn post_recv(
        qp: Object<abi::ibv_qp>,
        wr: Ptr<abi::ibv_recv_wr>,
        bad_wr: Ptr<*mut abi::ibv_recv_wr>,
    ) -> c_int = call::quick::code |owner| {
        let queue = qp.as_ptr().addr();
        Chain::post(queue, false, wr, bad_wr, |chain| {
            let reader = Reader::enter();
            let live = qp.look(owner, &reader)?;
            judged(live.engine.judge(Verb::PostRecv))?;
            let most = live.engine.caps().max_recv_sge;
            let result = live.engine.post_receives(|receives| {
                chain.receive(queue, most, |wr| receives.post(wr))
            })?;
            chain.outcome(result)
        })
    }

    /// The slot behind the inline `ibv_post_srq_recv`.
    pub(crate) fn post_srq_recv(
        srq: Object<abi::ibv_srq>,
        wr: Ptr<abi::ibv_recv_wr>,
        bad_wr: Ptr<*mut abi::ibv_recv_wr>,
    ) -> c_int = call::quick::code |owner| {
        let queue = srq.as_ptr().addr();
        Chain::post(queue, false, wr, bad_wr, |chain| {
            let reader = Reader::enter();
            let live = srq.look(owner, &reader)?;
            let most = live.engine.max_sge();
            let result = live.engine.post_receives(|post| chain.receive(queue, most, post));
            chain.outcome(result)
        })
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
