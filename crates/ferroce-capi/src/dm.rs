//! Device memory.

use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::DeviceMemory;
use ferroce_memory::guard;

use crate::call::{self, Owner};
use crate::context::{ContextHandle, Made, object};
use crate::entry::{Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::{Live, Pool, get};
use crate::origin::Registry;

pub(crate) static POOL: Pool<abi::ibv_dm, Made<DeviceMemory>> = Pool::new();

object!(abi::ibv_dm => Made<DeviceMemory>);

/// Device memory by number, for `ibv_import_dm`.
pub(crate) static REGISTRY: Registry<DeviceMemory> = Registry::new();

/// The handle of device memory that has its number.
pub(crate) fn publish(
    context: &'static ContextHandle,
    engine: Arc<DeviceMemory>,
    number: u32,
) -> *mut abi::ibv_dm {
    let dm = abi::ibv_dm {
        context: context.public(),
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: abi::IBV_DM_MASK_HANDLE,
        handle: number,
    };
    POOL.put(dm, Made { engine, context }).c()
}

/// As [`Object::enter`], for calls that a forked child may make with what its parent had.
fn enter_in_any_process(owner: &Owner, dm: Object<abi::ibv_dm>) -> Result<Live<Made<DeviceMemory>>, Errno> {
    let live = dm.handle()?.live()?;
    owner.was(live.context)?;
    Ok(live)
}

export! {
    /// The slot behind the inline `ibv_alloc_dm`: zeroed memory of this process, in the context of its parent
    /// too. EOPNOTSUPP for bits of `comp_mask`, of which there are none; EINVAL for no octets, and for an
    /// alignment above `max_dm_size`; ENOMEM for more than is free of `max_dm_size`.
    pub(crate) fn alloc_dm(
        context: Object<abi::ibv_context>,
        attr: Ptr<abi::ibv_alloc_dm_attr>,
    ) -> *mut abi::ibv_dm = call::pointer |owner| {
        let (handle, live) = context.once_opened(owner)?;
        let attr = attr.read()?;
        if attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let engine = live.engine.alloc_dm(attr.length, attr.log_align_req)?;
        let number = handle.number(&REGISTRY, &engine);
        Ok(publish(handle, engine, number))
    }

    /// The slot behind the inline `ibv_free_dm`: EBUSY while regions are in it. In a forked child the memory
    /// of the parent stays.
    pub(crate) fn free_dm(dm: Object<abi::ibv_dm>) -> c_int = call::code |owner| {
        enter_in_any_process(owner, dm)?;
        let handle = dm.handle()?;
        POOL.end(handle, |live| {
            live.engine.free()?;
            REGISTRY.remove(get!(handle.handle));
            Ok(())
        })
    }

    /// The function behind the inline `ibv_memcpy_to_dm`. EINVAL for an offset or a length that is no
    /// multiple of 4, EFAULT beyond the end, and for a `host_addr` that cannot be read.
    pub(crate) fn memcpy_to_dm(
        dm: Object<abi::ibv_dm>,
        dm_offset: u64,
        host_addr: *const c_void,
        length: usize,
    ) -> c_int = call::code |owner| {
        let live = enter_in_any_process(owner, dm)?;
        let from = host_addr.expose_provenance() as u64;
        in_pieces(&live.engine, dm_offset, length, |at, piece| {
            guard::read(from.wrapping_add(at), piece).map_err(|_| Errno::EFAULT)?;
            Ok(live.engine.write(dm_offset + at, piece)?)
        })
    }

    /// The function behind the inline `ibv_memcpy_from_dm`. EINVAL for an offset or a length that is no
    /// multiple of 4, EFAULT beyond the end, and for a `host_addr` that cannot be written.
    pub(crate) fn memcpy_from_dm(
        host_addr: *mut c_void,
        dm: Object<abi::ibv_dm>,
        dm_offset: u64,
        length: usize,
    ) -> c_int = call::code |owner| {
        let live = enter_in_any_process(owner, dm)?;
        let to = host_addr.expose_provenance() as u64;
        in_pieces(&live.engine, dm_offset, length, |at, piece| {
            live.engine.read(dm_offset + at, piece)?;
            // SAFETY: the contract of `entry`: the program's buffer has `length` octets, of which this is a
            // part.
            unsafe { guard::write(to.wrapping_add(at), piece) }.map_err(|_| Errno::EFAULT)
        })
    }
}

/// Calls `copy` with the start, from the range's own, and a buffer for each piece of a range of device
/// memory. Nothing is copied unless the whole range is inside.
fn in_pieces(
    memory: &DeviceMemory,
    offset: u64,
    length: usize,
    mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    const PIECE: usize = 4096;
    memory.check(offset, length)?;
    let mut buffer = [0; PIECE];
    (0..length).step_by(PIECE).try_for_each(|at| {
        let piece = &mut buffer[..PIECE.min(length - at)];
        copy(at as u64, piece)
    })
}
