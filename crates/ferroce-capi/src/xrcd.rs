//! XRC domains, and queue pairs opened by their number.

use std::os::fd::BorrowedFd;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{Inode, Xrcd, XrcdInit};

use crate::call;
use crate::context::{ContextHandle, LiveContext, Made, object};
use crate::entry::{Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::Pool;

static POOL: Pool<abi::ibv_xrcd, Made<Xrcd>> = Pool::new();

object!(abi::ibv_xrcd => Made<Xrcd>);

/// Opens a domain.
pub(crate) fn open(
    context: &'static ContextHandle,
    live: &LiveContext,
    init: &XrcdInit,
) -> Result<*mut abi::ibv_xrcd, Errno> {
    let engine = live.engine.open_xrcd(init)?;
    Ok(POOL.put(abi::ibv_xrcd { context: context.public() }, Made { engine, context }).c())
}

export! {
    /// The slot behind the inline `ibv_open_xrcd`. EOPNOTSUPP on iWARP, EBADF for an unused descriptor,
    /// EAGAIN without `O_CREAT` for a file that names no domain of this process, EINVAL with `O_EXCL` for one
    /// that does, as Linux has them.
    pub(crate) fn open_xrcd(
        context: Object<abi::ibv_context>,
        init: Ptr<abi::ibv_xrcd_init_attr>,
    ) -> *mut abi::ibv_xrcd = call::pointer |owner| {
        let (handle, live) = context.opened(owner)?;
        let init = init.read()?;
        let known = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if init.comp_mask != known || init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::EINVAL);
        }
        let init = XrcdInit {
            inode: inode(init.fd)?,
            create: init.oflags & libc::O_CREAT != 0,
            exclusive: init.oflags & libc::O_EXCL != 0,
        };
        open(handle, &live, &init)
    }
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

export! {
    /// The slot behind the inline `ibv_close_xrcd`; EBUSY while queue pairs or shared receive queues use it.
    pub(crate) fn close_xrcd(xrcd: Object<abi::ibv_xrcd>) -> c_int = call::ending |owner| {
        let (handle, _) = xrcd.enter(owner)?;
        POOL.end(handle, |live| Ok(live.engine.close()?))
    }
}
