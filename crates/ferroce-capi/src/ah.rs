//! Address handles.

use core::ffi::c_int;

use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{Ah, AhAttr, Qp, SendTo};
use ferroce_wire::{Flow, Qkey, Qpn};

use crate::attr::{c_ah, engine_ah};
use crate::call::{self, Owner};
use crate::check;
use crate::context::{LiveContext, Made, object};
use crate::cq;
use crate::entry::{Object, Ptr, export};
use crate::errno::{Errno, judged};
use crate::handle::{Pool, next_number};

static POOL: Pool<abi::ibv_ah, Made<Ah>> = Pool::new();

object!(abi::ibv_ah => Made<Ah>);

/// The destination of a datagram; EINVAL where the handle is not one of the queue pair's protection domain
/// (or of its parent domain).
pub(crate) fn destination(
    qp: &Qp,
    ah: Object<abi::ibv_ah>,
    remote_qpn: u32,
    remote_qkey: u32,
) -> Result<SendTo, Errno> {
    let live = ah.handle()?.live()?;
    if !live.engine.pd().shares_memory_with(qp.pd()) {
        return Err(Errno::EINVAL);
    }
    Ok(live.engine.to(Qpn::new(remote_qpn), Qkey::new(remote_qkey))?)
}

fn create(owner: &Owner, pd: Object<abi::ibv_pd>, attr: AhAttr) -> Result<*mut abi::ibv_ah, Errno> {
    let (_, domain) = pd.enter(owner)?;
    judged(domain.engine.context().judge(Verb::CreateAh))?;
    check::addressed("ibv_create_ah", domain.engine.context(), &attr);
    let engine = domain.engine.create_ah(attr)?;
    let context = domain.context;
    let ah = abi::ibv_ah { context: context.public(), pd: pd.as_ptr(), handle: next_number() };
    Ok(POOL.put(ah, Made { engine, context }).c())
}

export! {
    /// Makes an address handle; EOPNOTSUPP on iWARP. `is_global` must be 1, port and GID exist, source and
    /// destination be of one family; otherwise EINVAL.
    pub fn ibv_create_ah(pd: Object<abi::ibv_pd>, attr: Ptr<abi::ibv_ah_attr>) -> *mut abi::ibv_ah = call::pointer |owner| {
        let attr = engine_ah(&attr.read()?);
        if attr.port_num != 1 {
            return Err(Errno::EINVAL);
        }
        create(owner, pd, attr)
    }

    /// Destroys the handle. Posted requests that the engine has not sent yet may be lost.
    pub fn ibv_destroy_ah(ah: Object<abi::ibv_ah>) -> c_int = call::ending |owner| {
        let (handle, _) = ah.enter(owner)?;
        POOL.end(handle, |live| {
            live.engine.destroy();
            Ok(())
        })
    }
}

/// The way back to the sender of a completed receive; without a GRH it leads nowhere, and `is_global` is 0.
fn answer(
    context: &LiveContext,
    port_num: u8,
    wc: Ptr<abi::ibv_wc>,
    grh: Ptr<[u8; Flow::GRH_AREA]>,
) -> Result<AhAttr, Errno> {
    let wc = wc.read()?;
    if wc.wc_flags & abi::IBV_WC_GRH == 0 {
        return Ok(AhAttr { is_global: false, sl: wc.sl, port_num, ..AhAttr::default() });
    }
    let grh = grh.some()?;
    let attr = context.engine.answering(&grh.read())?;
    // Our completions have the kind of the header there, which is no service level to answer with.
    let sl = if wc.sl & cq::SL_UDP != 0 { 0 } else { wc.sl };
    Ok(AhAttr { sl, port_num, ..attr })
}

export! {
    /// Fills in the attributes of an address handle that answers a completed receive.
    pub fn ibv_init_ah_from_wc(
        context: Object<abi::ibv_context>,
        port_num: u8,
        wc: Ptr<abi::ibv_wc>,
        grh: Ptr<[u8; Flow::GRH_AREA]>,
        ah_attr: Ptr<abi::ibv_ah_attr>,
    ) -> c_int = call::minus_one |owner| {
        let (_, live) = context.opened(owner)?;
        let attr = answer(&live, port_num, wc, grh)?;
        ah_attr.some()?.write(c_ah(&attr));
        Ok(0)
    }

    /// Makes an address handle that answers a completed receive.
    pub fn ibv_create_ah_from_wc(
        pd: Object<abi::ibv_pd>,
        wc: Ptr<abi::ibv_wc>,
        grh: Ptr<[u8; Flow::GRH_AREA]>,
        port_num: u8,
    ) -> *mut abi::ibv_ah = call::pointer |owner| {
        let (_, domain) = pd.enter(owner)?;
        let context = domain.context.live()?;
        let attr = answer(&context, port_num, wc, grh)?;
        if attr.port_num != 1 {
            return Err(Errno::EINVAL);
        }
        create(owner, pd, attr)
    }
}
