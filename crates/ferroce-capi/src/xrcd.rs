//! XRC domains, and queue pairs opened by their number.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{Inode, Xrcd, XrcdInit};
use ferroce_wire::Qpn;

use crate::call::{self, Owner};
use crate::context::{self, ContextHandle};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Pool};
use crate::qp;

/// An XRC domain.
type XrcdHandle = Handle<abi::ibv_xrcd, LiveXrcd>;

/// What makes an XRC domain live.
pub(crate) struct LiveXrcd {
    pub(crate) engine: Arc<Xrcd>,
    pub(crate) context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_xrcd, LiveXrcd> = Pool::new();

/// The live domain behind a program's pointer, its context entered into `owner`.
///
/// # Safety
///
/// `xrcd` is NULL or came from [`open_xrcd`].
pub(crate) unsafe fn enter(
    owner: &Owner,
    xrcd: *mut abi::ibv_xrcd,
) -> Result<(&'static Handle<abi::ibv_xrcd, LiveXrcd>, Live<LiveXrcd>), Errno> {
    // SAFETY: as the caller says.
    let handle = unsafe { XrcdHandle::from_c(xrcd) }?;
    let live = handle.live()?;
    owner.is(live.context)?;
    Ok((handle, live))
}

/// The slot behind the inline `ibv_open_xrcd`. EBADF for a descriptor that is none, EAGAIN without `O_CREAT` for a file
/// that names no domain of this process, EINVAL with `O_EXCL` for one that does, as Linux has them.
///
/// # Safety
///
/// `context` is NULL or open, `init` NULL or readable.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut abi::ibv_context,
    init: *mut abi::ibv_xrcd_init_attr,
) -> *mut abi::ibv_xrcd {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, live) = unsafe { context::enter(owner, context) }?;
        // SAFETY: NULL, or readable as the caller says.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        let known = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if init.comp_mask != known || init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::EINVAL);
        }
        let engine = live.engine.open_xrcd(&XrcdInit {
            inode: inode(init.fd)?,
            create: init.oflags & libc::O_CREAT != 0,
            exclusive: init.oflags & libc::O_EXCL != 0,
        })?;
        let xrcd = POOL.take(abi::ibv_xrcd { context: handle.public() });
        POOL.enliven(xrcd, LiveXrcd { engine, context: handle });
        Ok(xrcd.c())
    })
}

/// The file behind a program's descriptor; `None` for -1.
fn inode(fd: c_int) -> Result<Option<Inode>, Errno> {
    match fd {
        -1 => Ok(None),
        ..-1 => Err(Errno::EBADF),
        0.. => {
            // SAFETY: borrowed for calls that fail where there is no such descriptor.
            let file = unsafe { BorrowedFd::borrow_raw(fd) };
            Ok(Some(Inode::of(file)?))
        }
    }
}

/// The slot behind the inline `ibv_close_xrcd`; EBUSY while queue pairs or shared receive queues use it.
///
/// # Safety
///
/// `xrcd` is NULL or came from [`open_xrcd`].
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut abi::ibv_xrcd) -> c_int {
    call::ending(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { enter(owner, xrcd) }?;
        POOL.end(handle, |live| Ok(live.engine.close()?))
    })
}

/// The slot behind the inline `ibv_open_qp`: a target queue pair of an XRC domain once more.
///
/// # Safety
///
/// `context` is NULL or open; `attr` is NULL or readable, its `xrcd` NULL or a domain.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_qp_open_attr,
) -> *mut abi::ibv_qp {
    call::pointer(|owner| {
        // SAFETY: as the caller says.
        let (handle, _) = unsafe { context::enter(owner, context) }?;
        // SAFETY: NULL, or readable as the caller says.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        let needed = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
        let known = needed | abi::IBV_QP_OPEN_ATTR_CONTEXT;
        if attr.comp_mask & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & needed != needed || attr.qp_type != abi::IBV_QPT_XRC_RECV {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as the caller says.
        let (_, live) = unsafe { enter(owner, attr.xrcd) }?;
        if !std::ptr::eq(live.context, handle) {
            return Err(Errno::EINVAL);
        }
        let has_context = attr.comp_mask & abi::IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
        qp::open(&live, Qpn::new(attr.qp_num), qp_context)
    })
}
