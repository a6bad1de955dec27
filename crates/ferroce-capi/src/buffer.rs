//! Buffers that the device allocates (`ibv_alloc_buf`). A card may need memory of its own kind; here ordinary
//! memory serves, as in libibverbs for each driver without such a need.

use std::ptr;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;

use crate::call;
use crate::context::{ContextHandle, object};
use crate::entry::{InContext, Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::Pool;

static POOL: Pool<abi::ibv_buf, LiveBuffer> = Pool::new();

object!(abi::ibv_buf => LiveBuffer);

pub(crate) struct LiveBuffer {
    pages: Pages,
    /// The address of the domain that it was made in, which is only compared.
    pd: usize,
    context: &'static ContextHandle,
}

impl InContext for LiveBuffer {
    type Context = ContextHandle;

    fn context(&self) -> &'static ContextHandle {
        self.context
    }
}

/// Zeroed memory of its own pages, until it is dropped.
struct Pages {
    addr: usize,
    /// Octets that the program asked for.
    size: usize,
}

impl Pages {
    fn new(size: usize) -> Result<Self, Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a mapping at an address that the kernel chooses touches nothing that is mapped.
        let base = unsafe { libc::mmap(ptr::null_mut(), size.max(1), access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            Err(Errno::ENOMEM)
        } else {
            Ok(Self { addr: base.expose_provenance(), size })
        }
    }

    fn start(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.addr)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, which the program gave back. Registrations of it may last:
        // they bear that memory is unmapped.
        unsafe { libc::munmap(self.start(), self.size.max(1)) };
    }
}

/// Checks that the octets are of the buffer and the domain is the one that it was made in; EINVAL if not.
pub(crate) fn check(
    buffer: Object<abi::ibv_buf>,
    pd: Object<abi::ibv_pd>,
    addr: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    let live = buffer.handle()?.live()?;
    let room =
        addr.addr().checked_sub(live.pages.addr).and_then(|offset| live.pages.size.checked_sub(offset));
    let inside = room.is_some_and(|room| length <= room);
    if inside && live.pd == pd.as_ptr().addr() { Ok(()) } else { Err(Errno::EINVAL) }
}

export! {
    /// Allocates `size` octets of zeroed memory that begin a page, and stores the handle of the buffer in
    /// `buf`. ENOMEM for more than the system gives.
    pub fn ibv_alloc_buf(
        pd: Object<abi::ibv_pd>,
        size: usize,
        buf: Ptr<*mut abi::ibv_buf>,
    ) -> *mut c_void = call::pointer |owner| {
        let (_, domain) = pd.enter(owner)?;
        let buf = buf.some()?;
        let pages = Pages::new(size)?;
        let start = pages.start();
        let live = LiveBuffer { pages, pd: pd.as_ptr().addr(), context: domain.context };
        buf.write(POOL.put(abi::ibv_buf::default(), live).c());
        Ok(start)
    }

    /// Gives the memory of a buffer back. In a forked child the memory of the parent's buffers stays.
    pub fn ibv_free_buf(buf: Object<abi::ibv_buf>) -> () = call::nothing |owner| {
        let (handle, _) = buf.enter(owner)?;
        POOL.end(handle, |_| Ok(()))
    }

    /// No buffer is a DMA-BUF, so ENODATA.
    pub fn ibv_export_buf_dmabuf_fd(buf: Object<abi::ibv_buf>) -> c_int = call::minus_one |owner| {
        buf.enter(owner)?;
        Err(Errno::ENODATA)
    }
}
