//! Memory regions.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use core::ffi::{c_int, c_uint, c_void};
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{Access, Advice, Mr, MrChange, Sge};
use ferroce_wire::Lkey;

use crate::buffer;
use crate::call;
use crate::check;
use crate::context::{ContextHandle, Made, object};
use crate::entry::{Object, Ptr, export, named};
use crate::errno::{Errno, judged, judged_without_device};
use crate::handle::{Pool, get, set};
use crate::origin::Registry;

pub(crate) static POOL: Pool<abi::ibv_mr, Made<Mr>> = Pool::new();

object!(abi::ibv_mr => Made<Mr>);

/// Registrations by number, for `ibv_import_mr`.
pub(crate) static REGISTRY: Registry<Mr> = Registry::new();

/// The live region behind a program's pointer.
pub(crate) fn engine(mr: Object<abi::ibv_mr>) -> Result<Arc<Mr>, Errno> {
    let handle = mr.handle()?;
    Ok(Arc::clone(&handle.live()?.engine))
}

/// Registers memory. `iova` is where peers address it; the octets at `addr` need not stay mapped, but an
/// access while they are not is refused.
fn register(
    pd: Object<abi::ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::ibv_mr {
    call::pointer(|owner| {
        let (_, live) = pd.enter(owner)?;
        let access = Access::from_bits_retain(access);
        judged(live.engine.context().judge(Verb::RegMr))?;
        let at = addr.expose_provenance() as u64;
        let engine = live.engine.reg_mr(at, length, iova, access)?;
        check::registered(&engine, at, iova, access);
        Ok(publish(pd, live.context, engine, addr))
    })
}

/// The handle of a registration.
fn publish(
    pd: Object<abi::ibv_pd>,
    context: &'static ContextHandle,
    engine: Arc<Mr>,
    addr: *mut c_void,
) -> *mut abi::ibv_mr {
    let number = context.number(&REGISTRY, &engine);
    publish_numbered(pd, context, engine, addr, number)
}

/// The handle of a registration that has its number.
pub(crate) fn publish_numbered(
    pd: Object<abi::ibv_pd>,
    context: &'static ContextHandle,
    engine: Arc<Mr>,
    addr: *mut c_void,
    number: u32,
) -> *mut abi::ibv_mr {
    check::keys(&engine, true);
    let mr = abi::ibv_mr {
        context: context.public(),
        pd: pd.as_ptr(),
        addr,
        length: engine.len(),
        handle: number,
        lkey: engine.lkey().value(),
        rkey: engine.rkey().value(),
    };
    POOL.put(mr, Made { engine, context }).c()
}

export! {
    /// Registers `length` octets at `addr`, which peers address as the program does.
    pub fn ibv_reg_mr(
        pd: Object<abi::ibv_pd>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut abi::ibv_mr {
        register(pd, addr, length, addr.expose_provenance() as u64, access as c_uint)
    }

    /// Registers `length` octets at `addr`, which peers address from `iova` on.
    pub fn ibv_reg_mr_iova(
        pd: Object<abi::ibv_pd>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut abi::ibv_mr {
        register(pd, addr, length, iova, access as c_uint)
    }

    /// The header replaces `ibv_reg_mr` and `ibv_reg_mr_iova` by this call if it cannot see that `access` has
    /// no optional bits.
    pub fn ibv_reg_mr_iova2(
        pd: Object<abi::ibv_pd>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut abi::ibv_mr {
        register(pd, addr, length, iova, access)
    }
}

fn register_file(
    pd: Object<abi::ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut abi::ibv_mr {
    /// Offsets of `offset` and `iova` in their pages agree.
    const PAGE: u64 = 4096;
    call::pointer(|owner| {
        let (_, live) = pd.enter(owner)?;
        let access = Access::from_bits_retain(access as c_uint);
        let possible = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::OPTIONAL;
        if !possible.contains(access) {
            return Err(Errno::EOPNOTSUPP);
        }
        if offset % PAGE != iova % PAGE {
            return Err(Errno::EINVAL);
        }
        if fd < 0 {
            // NCCL asks in this way whether a GPU's memory can be registered by DMA-BUF.
            return Err(if ferroce_memory::gpu_is_off() { Errno::EOPNOTSUPP } else { Errno::EBADF });
        }
        // SAFETY: not negative, and only used during this call; the kernel reports an invalid one.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let engine = live.engine.reg_file(file, offset, length, iova, access)?;
        // As libibverbs does, which has no address either.
        let addr = std::ptr::without_provenance_mut(offset as usize);
        Ok(publish(pd, live.context, engine, addr))
    })
}

export! {
    /// Registers `length` octets of a file from `offset` on, which peers address from `iova` on: of a memfd
    /// or a DMA-BUF that can be mapped, or of a GPU's DMA-BUF with the memory's address on the device as
    /// `iova`. EBADF for no descriptor (EOPNOTSUPP with `FERROCE_GPU=off`), EINVAL for one that cannot be
    /// mapped so, for a part that is not inside, and for an `iova` of another offset in its page; EOPNOTSUPP
    /// for access flags beyond local write and remote access.
    pub fn ibv_reg_dmabuf_mr(
        pd: Object<abi::ibv_pd>,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut abi::ibv_mr {
        register_file(pd, offset, length, iova, fd, access)
    }

    /// Registers memory by a structure: `addr` with or without `iova`, or `fd` with `fd_offset` and `iova`,
    /// as [`ibv_reg_dmabuf_mr`]. With `buf` the octets at `addr` are of that buffer of `ibv_alloc_buf`, in
    /// the domain that it was made in: EINVAL otherwise. Steering handles are refused with EOPNOTSUPP.
    pub fn ibv_reg_mr_ex(pd: Object<abi::ibv_pd>, attr: Ptr<abi::ibv_mr_init_attr>) -> *mut abi::ibv_mr {
        const ADDR: u64 = abi::IBV_REG_MR_MASK_ADDR as u64;
        const IOVA: u64 = abi::IBV_REG_MR_MASK_IOVA as u64;
        const FILE: u64 = (abi::IBV_REG_MR_MASK_FD | abi::IBV_REG_MR_MASK_FD_OFFSET) as u64;
        const BUFFER: u64 = abi::IBV_REG_MR_MASK_BUF as u64;
        let checked = call::value(None, |_| {
            let attr = attr.read()?;
            if attr.comp_mask & !(ADDR | IOVA | FILE | BUFFER) != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            if attr.comp_mask & BUFFER != 0 {
                buffer::check(named!(attr.buf), pd, attr.addr, attr.length)?;
            }
            let memory = attr.comp_mask & !(IOVA | BUFFER) == ADDR;
            if memory || attr.comp_mask == FILE | IOVA { Ok(Some(attr)) } else { Err(Errno::EINVAL) }
        });
        let Some(attr) = checked else { return std::ptr::null_mut() };
        if attr.comp_mask & FILE != 0 {
            let abi::ibv_mr_init_attr { fd_offset, length, iova, fd, access, .. } = attr;
            return register_file(pd, fd_offset, length, iova, fd, access);
        }
        let iova = if attr.comp_mask & IOVA != 0 { attr.iova } else { attr.addr.expose_provenance() as u64 };
        register(pd, attr.addr, attr.length, iova, attr.access as c_uint)
    }

    /// Registers octets of a buffer, as [`ibv_reg_mr_ex`] with `IBV_REG_MR_MASK_BUF`.
    pub fn ibv_reg_buf_mr(
        pd: Object<abi::ibv_pd>,
        buf: Object<abi::ibv_buf>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut abi::ibv_mr {
        let checked = call::value(false, |_| buffer::check(buf, pd, addr, length).map(|()| true));
        if !checked {
            return std::ptr::null_mut();
        }
        register(pd, addr, length, addr.expose_provenance() as u64, access as c_uint)
    }

    /// The slot behind the inline `ibv_reg_dm_mr`: a region of device memory that is addressed from 0 on.
    /// EINVAL without `IBV_ACCESS_ZERO_BASED`, for octets that are not inside, and for device memory of
    /// another context.
    pub(crate) fn reg_dm_mr(
        pd: Object<abi::ibv_pd>,
        dm: Object<abi::ibv_dm>,
        dm_offset: u64,
        length: usize,
        access: c_uint,
    ) -> *mut abi::ibv_mr = call::pointer |owner| {
        let (_, domain) = pd.enter(owner)?;
        let (_, memory) = dm.enter(owner)?;
        if !std::ptr::eq(domain.context, memory.context) {
            return Err(Errno::EINVAL);
        }
        let access = Access::from_bits_retain(access);
        let engine = domain.engine.reg_dm_mr(&memory.engine, dm_offset, length, access)?;
        Ok(publish(pd, domain.context, engine, std::ptr::null_mut()))
    }

    /// The slot behind the inline `ibv_alloc_null_mr`: a region for SGEs that read as zeros and forget what
    /// is written.
    pub(crate) fn alloc_null_mr(pd: Object<abi::ibv_pd>) -> *mut abi::ibv_mr = call::pointer |owner| {
        let (_, live) = pd.enter(owner)?;
        Ok(publish(pd, live.context, live.engine.null_mr()?, std::ptr::null_mut()))
    }

    /// The slot behind the inline `ibv_advise_mr`. Fetches at once, with or without
    /// `IBV_ADVISE_MR_FLAG_FLUSH`. EOPNOTSUPP for advice that does not exist, EINVAL for other flags, for an
    /// invalid list and for memory that is not on demand; see `errno` for what may be wrong with an
    /// element.
    pub(crate) fn advise_mr(
        pd: Object<abi::ibv_pd>,
        advice: abi::ibv_advise_mr_advice,
        flags: u32,
        sg_list: Ptr<abi::ibv_sge>,
        num_sges: u32,
    ) -> c_int {
        /// `IBV_ADVISE_MR_FLAG_FLUSH`.
        const FLUSH: u32 = 1;
        call::code(|owner| {
            judged_without_device(Verb::AdviseMr)?;
            let (_, live) = pd.enter(owner)?;
            let advice = match advice {
                abi::IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
                abi::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
                abi::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
                _ => return Err(Errno::EOPNOTSUPP),
            };
            if flags & !FLUSH != 0 {
                return Err(Errno::EINVAL);
            }
            // SAFETY: `sg_list` is as long as `num_sges` says.
            let list = unsafe { sg_list.array(num_sges as usize) }?;
            for index in 0..num_sges as usize {
                let abi::ibv_sge { addr, length, lkey } = list.read(index);
                live.engine.advise(advice, &[Sge { addr, length, lkey: Lkey::new(lkey) }])?;
            }
            Ok(())
        })
    }

    /// Changes what `flags` name of a registration; the keys stay. If this fails, the registration is as it
    /// was, so the answer is `IBV_REREG_MR_ERR_INPUT` ("the old MR is valid") and errno says why;
    /// `IBV_REREG_MR_ERR_CMD` if the context is dead.
    pub fn ibv_rereg_mr(
        mr: Object<abi::ibv_mr>,
        flags: c_int,
        pd: Object<abi::ibv_pd>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int {
        let flags = flags as c_uint;
        let asked = |flag: abi::ibv_rereg_mr_flags| flags & flag != 0;
        let code = call::code(|owner| {
            judged_without_device(Verb::ReregMr)?;
            let (handle, live) = mr.enter(owner)?;
            if flags & !abi::IBV_REREG_MR_FLAGS_SUPPORTED != 0
                || (asked(abi::IBV_REREG_MR_CHANGE_TRANSLATION) && (addr.is_null() || length == 0))
                || (access != 0 && !asked(abi::IBV_REREG_MR_CHANGE_ACCESS))
            {
                return Err(Errno::EINVAL);
            }
            let mut change = MrChange::default();
            if asked(abi::IBV_REREG_MR_CHANGE_PD) {
                let (_, domain) = pd.enter(owner)?;
                change.pd = Some(Arc::clone(&domain.engine));
                owner.is(live.context)?;
            }
            if asked(abi::IBV_REREG_MR_CHANGE_TRANSLATION) {
                change.translation = Some((addr.expose_provenance() as u64, length));
            }
            if asked(abi::IBV_REREG_MR_CHANGE_ACCESS) {
                change.access = Some(Access::from_bits_retain(access as c_uint));
            }
            live.engine.rereg(&change)?;
            check::reregistered();
            if change.pd.is_some() {
                set!(handle.pd = pd.as_ptr());
            }
            if change.translation.is_some() {
                set!(handle.addr = addr);
                set!(handle.length = length);
            }
            Ok(())
        });
        match code {
            0 => 0,
            libc::EIO => abi::IBV_REREG_MR_ERR_CMD,
            _ => abi::IBV_REREG_MR_ERR_INPUT,
        }
    }

    /// Ends the registration. When this returns nobody touches the memory any more.
    pub fn ibv_dereg_mr(mr: Object<abi::ibv_mr>) -> c_int = call::ending |owner| {
        let (handle, live) = mr.enter(owner)?;
        judged(live.engine.pd().context().judge(Verb::DeregMr))?;
        POOL.end(handle, |live| {
            live.engine.dereg()?;
            check::keys(&live.engine, false);
            REGISTRY.remove(get!(handle.handle));
            Ok(())
        })
    }
}
