//! Queue pairs. Every one is an `ibv_qp_ex`, whose head is an `ibv_qp`.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use core::ffi::c_int;
use ferroce_abi as abi;
use ferroce_engine::faults::Verb;
use ferroce_engine::{Qp, QpAttr, QpAttrMask, QpShare, QpState, Service};

use crate::attr;
use crate::batch::Batch;
use crate::call::{self, Owner};
use crate::check;
use crate::context::{ContextHandle, object};
use crate::entry::{InContext, Object, Ptr, export};
use crate::errno::{Errno, judged};
use crate::handle::{Handle, Pool, set};

/// A queue pair.
pub(crate) type QpHandle = Handle<abi::ibv_qp_ex, LiveQp, Batch>;

pub(crate) struct LiveQp {
    pub(crate) engine: Arc<Qp>,
    /// Set if it was opened by its number, and not made here.
    pub(crate) share: Option<Arc<QpShare>>,
    pub(crate) context: &'static ContextHandle,
    /// Made with `send_ops_flags`: it has the `wr_*` functions.
    pub(crate) extended: bool,
    /// The creation attributes, which `ibv_query_qp` returns.
    pub(crate) init: InitAttr,
    /// The state of path migration, which is the program's to say and means nothing on RoCE (rxe 6.12,
    /// `rxe_qp_from_attr`).
    pub(crate) path_mig_state: AtomicU8,
}

/// An `ibv_qp_init_attr` that threads may share: its pointers are the program's and never followed.
pub(crate) struct InitAttr(pub(crate) abi::ibv_qp_init_attr);

// SAFETY: see the type.
unsafe impl Send for InitAttr {}
// SAFETY: see the type.
unsafe impl Sync for InitAttr {}

pub(crate) static POOL: Pool<abi::ibv_qp_ex, LiveQp, Batch> = Pool::new();

impl QpHandle {
    /// The program's pointer to an engine's queue pair: its `user` is where the handle is.
    pub(crate) fn public(qp: &Qp) -> *mut abi::ibv_qp {
        Self::at(qp.user())
    }

    /// The program's pointer that is a `user` of the engine's.
    pub(crate) fn at(user: u64) -> *mut abi::ibv_qp {
        ptr::with_exposed_provenance_mut(user as usize)
    }

    /// Sets the attributes that `mask` names, all or none, and shows the program the state.
    pub(crate) fn modify(&self, live: &LiveQp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Errno> {
        let result = live.engine.modify(attr, mask);
        self.show_state(live.engine.state());
        Ok(result?)
    }

    /// Lets the program see the state it is in.
    pub(crate) fn show_state(&self, state: QpState) {
        set!(self.qp_base.state = state as abi::ibv_qp_state);
    }
}

impl LiveQp {
    /// The state of an open queue pair, without what the other services add.
    pub(crate) fn of(
        engine: Arc<Qp>,
        share: Option<Arc<QpShare>>,
        context: &'static ContextHandle,
        init: abi::ibv_qp_init_attr,
    ) -> Self {
        Self {
            engine,
            share,
            context,
            extended: false,
            init: InitAttr(init),
            path_mig_state: AtomicU8::new(0),
        }
    }

    /// Acknowledges one asynchronous event of this handle.
    pub(crate) fn ack_async_event(&self) {
        match &self.share {
            Some(share) => share.ack_async_event(),
            None => self.engine.ack_async_event(),
        }
    }
}

object!(abi::ibv_qp as abi::ibv_qp_ex => LiveQp, Batch);
object!(abi::ibv_qp_ex as abi::ibv_qp_ex => LiveQp, Batch);

impl InContext for LiveQp {
    type Context = ContextHandle;

    #[inline(always)]
    fn context(&self) -> &'static ContextHandle {
        self.context
    }
}

pub(crate) fn service(qp_type: abi::ibv_qp_type) -> Result<Service, Errno> {
    match qp_type {
        abi::IBV_QPT_RC => Ok(Service::Rc),
        abi::IBV_QPT_UC => Ok(Service::Uc),
        abi::IBV_QPT_UD => Ok(Service::Ud),
        abi::IBV_QPT_XRC_SEND => Ok(Service::XrcInitiator),
        abi::IBV_QPT_XRC_RECV => Ok(Service::XrcTarget),
        abi::IBV_QPT_RAW_PACKET => Ok(Service::RawPacket),
        abi::IBV_QPT_DRIVER => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// Ends a queue pair.
pub(crate) fn destroy(owner: &Owner, qp: Object<abi::ibv_qp>) -> Result<(), Errno> {
    let (handle, _) = qp.enter(owner)?;
    POOL.end(handle, |live| {
        match &live.share {
            Some(share) => share.close(),
            None => live.engine.try_destroy()?,
        }
        handle.extra.abandon();
        Ok(())
    })
}

export! {
    /// Sets the attributes that `attr_mask` names, all or none.
    pub fn ibv_modify_qp(
        qp: Object<abi::ibv_qp>,
        attr: Ptr<abi::ibv_qp_attr>,
        attr_mask: c_int,
    ) -> c_int = call::code |owner| {
        let (handle, live) = qp.enter(owner)?;
        judged(live.engine.judge(Verb::ModifyQp))?;
        let attr = attr.read()?;
        let mask = QpAttrMask::from_bits_retain(attr_mask as u32);
        let wanted = attr::engine_attr(&attr, mask)?;
        check::modifying(handle.c().addr(), live.engine.context(), &wanted, mask);
        handle.modify(&live, &wanted, mask)?;
        if mask.contains(QpAttrMask::PATH_MIG_STATE) {
            // The kernel takes an octet (Linux 6.12, `ib_uverbs_modify_qp`).
            live.path_mig_state.store(attr.path_mig_state as u8, Ordering::Relaxed);
        }
        Ok(())
    }

    /// All attributes, whatever `attr_mask` says, and what the queue pair was made with.
    pub fn ibv_query_qp(
        qp: Object<abi::ibv_qp>,
        attr: Ptr<abi::ibv_qp_attr>,
        _attr_mask: c_int,
        init_attr: Ptr<abi::ibv_qp_init_attr>,
    ) -> c_int = call::code |owner| {
        let (handle, live) = qp.enter(owner)?;
        judged(live.engine.judge(Verb::QueryQp))?;
        let (attr, init_attr) = (attr.some()?, init_attr.some()?);
        let queried = live.engine.query();
        handle.show_state(queried.state);
        let path_mig_state = live.path_mig_state.load(Ordering::Relaxed).into();
        attr.write(abi::ibv_qp_attr { path_mig_state, ..attr::c_attr(&queried, &live.engine.caps()) });
        init_attr.write(live.init.0);
        Ok(())
    }

    /// Ends the queue pair. Outstanding work requests vanish; waits until its events are acknowledged.
    pub fn ibv_destroy_qp(qp: Object<abi::ibv_qp>) -> c_int = call::ending |owner| {
        destroy(owner, qp)
    }

    /// The queue pair in its extended form; NULL unless it was made with `send_ops_flags`.
    pub fn ibv_qp_to_qp_ex(qp: Object<abi::ibv_qp>) -> *mut abi::ibv_qp_ex {
        call::value(ptr::null_mut(), |_| {
            let handle = qp.handle()?;
            Ok(if handle.live()?.extended { handle.c() } else { ptr::null_mut() })
        })
    }

    /// 0: lost packets are placed when they come again, so nothing is promised about the order within a
    /// message.
    pub fn ibv_query_qp_data_in_order(
        _qp: Object<abi::ibv_qp>,
        _opcode: abi::ibv_wr_opcode,
        _flags: u32,
    ) -> c_int {
        0
    }
}
