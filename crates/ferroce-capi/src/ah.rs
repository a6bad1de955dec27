//! Address handles.

use core::ffi::c_int;
use std::sync::Arc;

use ferroce_abi as abi;
use ferroce_engine::{Ah, AhAttr, Qp, SendTo};
use ferroce_wire::{Flow, Qkey, Qpn};

use crate::attr::{c_ah, engine_ah};
use crate::call::{self, Owner};
use crate::context::{self, ContextHandle};
use crate::errno::Errno;
use crate::handle::{Handle, Pool};
use crate::{cq, pd};

/// An address handle.
pub(crate) type AhHandle = Handle<abi::ibv_ah, LiveAh>;

/// What makes an address handle live.
pub(crate) struct LiveAh {
    engine: Arc<Ah>,
    context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_ah, LiveAh> = Pool::new();

/// The destination of a datagram; EINVAL where the handle is not one of the queue pair's protection domain (or of its
/// parent domain).
///
/// # Safety
///
/// `ah` is NULL or an address handle.
pub(crate) unsafe fn destination(
    qp: &Qp,
    ah: *mut abi::ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) -> Result<SendTo, Errno> {
    // SAFETY: as the caller says.
    let live = unsafe { AhHandle::from_c(ah) }?.live()?;
    if !live.engine.pd().shares_memory_with(qp.pd()) {
        return Err(Errno::EINVAL);
    }
    Ok(live.engine.to(Qpn::new(remote_qpn), Qkey::new(remote_qkey))?)
}

/// # Safety
///
/// `pd` is NULL or a protection domain.
unsafe fn create(owner: &Owner, pd: *mut abi::ibv_pd, attr: AhAttr) -> Result<*mut abi::ibv_ah, Errno> {
    // SAFETY: as the caller says.
    let (_, domain) = unsafe { pd::enter(owner, pd) }?;
    let engine = domain.engine.create_ah(attr)?;
    let context = domain.context;
    let ah = POOL.take(abi::ibv_ah { context: context.public(), pd, handle: pd::next_number() });
    POOL.enliven(ah, LiveAh { engine, context });
    Ok(ah.c())
}

/// Makes an address handle. `is_global` must be 1, port and GID exist, source and destination be of one family;
/// otherwise EINVAL.
///
/// # Safety
///
/// `pd` is NULL or a protection domain, `attr` NULL or readable.
pub unsafe extern "C" fn ibv_create_ah(
    pd: *mut abi::ibv_pd,
    attr: *mut abi::ibv_ah_attr,
) -> *mut abi::ibv_ah {
    call::pointer(|owner| {
        // SAFETY: NULL, or readable as the caller says.
        let attr = engine_ah(unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?);
        if attr.port_num != 1 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as the caller says.
        unsafe { create(owner, pd, attr) }
    })
}

/// Ends it. What was posted to it and has not left may be lost.
///
/// # Safety
///
/// `ah` is NULL or came from [`ibv_create_ah`].
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut abi::ibv_ah) -> c_int {
    call::ending(|owner| {
        // SAFETY: as the caller says.
        let handle = unsafe { AhHandle::from_c(ah) }?;
        owner.is(handle.live()?.context)?;
        POOL.end(handle, |live| {
            live.engine.destroy();
            Ok(())
        })
    })
}

/// The way back to the sender of a completed receive; without a GRH it leads nowhere, and `is_global` is 0.
///
/// # Safety
///
/// `context` is NULL or open; `wc` is NULL or a completion of it; `grh` is NULL or what the receive buffer began with.
unsafe fn answer(
    owner: &Owner,
    context: *mut abi::ibv_context,
    port_num: u8,
    wc: *mut abi::ibv_wc,
    grh: *mut abi::ibv_grh,
) -> Result<AhAttr, Errno> {
    // SAFETY: as the caller says.
    let (_, live) = unsafe { context::enter(owner, context) }?;
    // SAFETY: NULL, or readable as the caller says.
    let wc = unsafe { wc.as_ref() }.ok_or(Errno::EINVAL)?;
    if wc.wc_flags & abi::IBV_WC_GRH == 0 {
        return Ok(AhAttr { is_global: false, sl: wc.sl, port_num, ..AhAttr::default() });
    }
    if grh.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL; forty octets that the caller lends, whatever their alignment.
    let area = unsafe { grh.cast::<[u8; Flow::GRH_AREA]>().read_unaligned() };
    let attr = AhAttr::answering(&live.engine, &area)?;
    // Our completions have the kind of the header there, which is no service level to answer with.
    let sl = if wc.sl & cq::SL_UDP != 0 { 0 } else { wc.sl };
    Ok(AhAttr { sl, port_num, ..attr })
}

/// Fills in the attributes of an address handle that answers a completed receive.
///
/// # Safety
///
/// As for [`ibv_create_ah_from_wc`]; `ah_attr` is NULL or writable.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut abi::ibv_context,
    port_num: u8,
    wc: *mut abi::ibv_wc,
    grh: *mut abi::ibv_grh,
    ah_attr: *mut abi::ibv_ah_attr,
) -> c_int {
    call::minus_one(|owner| {
        // SAFETY: as the caller says.
        let attr = unsafe { answer(owner, context, port_num, wc, grh) }?;
        if ah_attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL, and the caller says it may be written to.
        unsafe { ah_attr.write(c_ah(&attr)) };
        Ok(0)
    })
}

/// Makes an address handle that answers a completed receive.
///
/// # Safety
///
/// `pd` is NULL or a protection domain; `wc` is NULL or a completion of its context; `grh` is NULL or what the receive
/// buffer began with.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut abi::ibv_pd,
    wc: *mut abi::ibv_wc,
    grh: *mut abi::ibv_grh,
    port_num: u8,
) -> *mut abi::ibv_ah {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (_, domain) = unsafe { pd::enter(owner, pd) }?;
        // SAFETY: as the caller says.
        let attr = unsafe { answer(owner, domain.context.public(), port_num, wc, grh) }?;
        if attr.port_num != 1 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as the caller says.
        unsafe { create(owner, pd, attr) }
    })
}
