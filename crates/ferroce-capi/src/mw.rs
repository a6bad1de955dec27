//! Memory windows.

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{Bind, Mw, MwType, SendOp, WindowAccess};
use ferroce_wire::{Lkey, Rkey};

use crate::call;
use crate::context::{Made, object};
use crate::entry::{Object, export, named};
use crate::errno::{Errno, judged};
use crate::handle::{Handle, Pool, next_number, set};
use crate::mr;

/// A memory window.
type MwHandle = Handle<abi::ibv_mw, Made<Mw>>;

static POOL: Pool<abi::ibv_mw, Made<Mw>> = Pool::new();

object!(abi::ibv_mw => Made<Mw>);

export! {
    /// The slot behind the inline `ibv_alloc_mw`. EINVAL for other types than 1 and 2.
    pub(crate) fn alloc_mw(pd: Object<abi::ibv_pd>, kind: abi::ibv_mw_type) -> *mut abi::ibv_mw = call::pointer |owner| {
        let (_, live) = pd.enter(owner)?;
        judged(live.engine.context().judge(Verb::AllocMw))?;
        let engine = live.engine.alloc_mw(match kind {
            abi::IBV_MW_TYPE_1 => MwType::One,
            abi::IBV_MW_TYPE_2 => MwType::Two,
            _ => return Err(Errno::EINVAL),
        })?;
        let mw = abi::ibv_mw {
            context: live.context.public(),
            pd: pd.as_ptr(),
            rkey: engine.name().value(),
            handle: next_number(),
            type_: kind,
        };
        Ok(POOL.put(mw, Made { engine, context: live.context }).c())
    }

    /// The slot behind the inline `ibv_dealloc_mw`: unbinds it first if it is bound.
    pub(crate) fn dealloc_mw(mw: Object<abi::ibv_mw>) -> c_int = call::ending |owner| {
        let (handle, _) = mw.enter(owner)?;
        POOL.end(handle, |live| {
            live.engine.dealloc();
            Ok(())
        })
    }
}

/// The key that a window has once its bind is posted.
pub(crate) struct NewKey {
    of: &'static MwHandle,
    rkey: Rkey,
}

impl NewKey {
    /// The bind is posted: `mw->rkey` is the key that the peer may be told. The man page says so for type 1.
    /// For type 2 it says nothing; irdma's library does it, mlx5's does not, and programs written for mlx5
    /// compute the same key.
    pub(crate) fn show(self) {
        let Self { of, rkey } = self;
        set!(of.rkey = rkey.value());
    }
}

/// The bind of a window of type `kind`, and the window's key from then on; EINVAL for windows of the other
/// type and for an address without a region.
pub(crate) fn operation(
    mw: Object<abi::ibv_mw>,
    rkey: u32,
    info: &abi::ibv_mw_bind_info,
    kind: MwType,
) -> Result<(SendOp, NewKey), Errno> {
    let of = mw.handle()?;
    let window = of.live()?;
    if window.engine.kind() != kind {
        return Err(Errno::EINVAL);
    }
    let region = if !info.mr.is_null() {
        let region = mr::engine(named!(info.mr))?;
        if region.is_null() {
            return Err(Errno::EOPNOTSUPP);
        }
        region.lkey()
    } else if info.addr != 0 || info.length != 0 {
        return Err(Errno::EINVAL);
    } else {
        Lkey::default()
    };
    let bind = Bind {
        window: window.engine.name(),
        rkey: Rkey::new(rkey),
        region,
        addr: info.addr,
        length: info.length,
        access: WindowAccess::from_bits_retain(info.mw_access_flags),
    };
    Ok((SendOp::BindMw(bind), NewKey { of, rkey: window.engine.rkey(rkey) }))
}
