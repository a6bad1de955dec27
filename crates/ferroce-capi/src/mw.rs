//! Memory windows.

use std::sync::Arc;

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::{Bind, Mw, MwType, SendOp, SendTo, SendWr, Service, WindowAccess};
use ferroce_wire::{Lkey, Rkey};

use crate::call;
use crate::context::ContextHandle;
use crate::context::object;
use crate::entry::{Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::{Handle, Pool, get, next_number, set};
use crate::mr;

/// A memory window.
type MwHandle = Handle<abi::ibv_mw, LiveMw>;

/// What makes a memory window live.
pub(crate) struct LiveMw {
    engine: Arc<Mw>,
    context: &'static ContextHandle,
}

static POOL: Pool<abi::ibv_mw, LiveMw> = Pool::new();

object!(abi::ibv_mw => LiveMw);

export! {
    /// The slot behind the inline `ibv_alloc_mw`. EINVAL for other types than 1 and 2.
    pub(crate) fn alloc_mw(pd: Object<abi::ibv_pd>, kind: abi::ibv_mw_type) -> *mut abi::ibv_mw = call::pointer |owner| {
        let (_, live) = pd.enter(owner)?;
        let engine = live.engine.alloc_mw(match kind {
            abi::IBV_MW_TYPE_1 => MwType::One,
            abi::IBV_MW_TYPE_2 => MwType::Two,
            _ => return Err(Errno::EINVAL),
        })?;
        let mw = POOL.take(abi::ibv_mw {
            context: live.context.public(),
            pd: pd.as_ptr(),
            rkey: engine.name().value(),
            handle: next_number(),
            type_: kind,
        });
        POOL.enliven(mw, LiveMw { engine, context: live.context });
        Ok(mw.c())
    }

    /// The slot behind the inline `ibv_dealloc_mw`: unbinds it first if it is bound.
    pub(crate) fn dealloc_mw(mw: Object<abi::ibv_mw>) -> c_int = call::ending |owner| {
        let (handle, _) = mw.enter(owner)?;
        POOL.end(handle, |live| {
            live.engine.dealloc();
            Ok(())
        })
    }

    /// The slot behind the inline `ibv_bind_mw`, for type 1: posts the request and sets `mw->rkey` to the key that it will
    /// have. Without a region, or of length 0, it unbinds. EPERM if region and window are of different domains; what else is
    /// wrong ends the request with `IBV_WC_MW_BIND_ERR`.
    pub(crate) fn bind_mw(
        qp: Object<abi::ibv_qp>,
        mw: Object<abi::ibv_mw>,
        mw_bind: Ptr<abi::ibv_mw_bind>,
    ) -> c_int = call::code |owner| {
        let (_, live) = qp.enter(owner)?;
        let bind = mw_bind.read()?;
        let handle = mw.handle()?;
        let window = handle.live()?;
        let info = &bind.bind_info;
        if live.engine.service() == Service::Ud || info.mw_access_flags & abi::IBV_ACCESS_ZERO_BASED != 0 {
            return Err(Errno::EINVAL);
        }
        if !info.mr.is_null() {
            let region = mr::engine(named!(info.mr))?;
            if !region.pd().shares_memory_with(window.engine.pd()) {
                return Err(Errno::EPERM);
            }
        }
        let rkey = get!(handle.rkey);
        let next = window.engine.rkey(rkey.wrapping_add(1));
        let (op, key) = operation(mw, next.value(), info, MwType::One)?;
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

/// The key that a window has once its bind is posted.
pub(crate) struct NewKey {
    of: &'static MwHandle,
    rkey: Rkey,
}

impl NewKey {
    /// The bind is posted: `mw->rkey` is the key that the peer may be told. The man page says so for type 1. For type 2 it
    /// says nothing; irdma's library does it, mlx5's does not, and programs written for mlx5 compute the same key.
    pub(crate) fn show(self) {
        let Self { of, rkey } = self;
        set!(of.rkey = rkey.value());
    }
}

/// The bind of a window of type `kind`, and the window's key from then on; EINVAL for windows of the other type and for an address
/// without a region.
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
