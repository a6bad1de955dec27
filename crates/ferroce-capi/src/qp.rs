//! Queue pairs. Every one is an `ibv_qp_ex`, whose head is an `ibv_qp`.

use std::ptr;
use std::sync::Arc;

use core::ffi::{c_int, c_void};
use ferroce_abi as abi;
use ferroce_engine::{Qp, QpAttr, QpAttrMask, QpCaps, QpInit, QpShare, QpState, Service};

use ferroce_wire::Qpn;

use crate::attr;
use crate::call::{self, Owner};
use crate::context::ContextHandle;
use crate::context::object;
use crate::entry::{Object, Ptr, export, named};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Pool, next_number, set};
use crate::qp_ex::{self, Batch};
use crate::xrcd::LiveXrcd;

/// A queue pair.
pub(crate) type QpHandle = Handle<abi::ibv_qp_ex, LiveQp, Batch>;

/// What makes a queue pair live.
pub(crate) struct LiveQp {
    pub(crate) engine: Arc<Qp>,
    /// Set if it was opened by its number, and not made here.
    share: Option<Arc<QpShare>>,
    pub(crate) context: &'static ContextHandle,
    /// Made with `send_ops_flags`: it has the `wr_*` functions.
    extended: bool,
    /// What it was made with, as `ibv_query_qp` gives it back.
    init: InitAttr,
}

/// An `ibv_qp_init_attr` that threads may share: its pointers are the program's and never followed.
struct InitAttr(abi::ibv_qp_init_attr);

// SAFETY: see the type.
unsafe impl Send for InitAttr {}
// SAFETY: see the type.
unsafe impl Sync for InitAttr {}

static POOL: Pool<abi::ibv_qp_ex, LiveQp, Batch> = Pool::new();

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
    fn show_state(&self, state: QpState) {
        set!(self.qp_base.state = state as abi::ibv_qp_state);
    }
}

impl LiveQp {
    /// One of an XRC target.
    fn of(
        engine: Arc<Qp>,
        share: Option<Arc<QpShare>>,
        context: &'static ContextHandle,
        init: abi::ibv_qp_init_attr,
    ) -> Self {
        Self { engine, share, context, extended: false, init: InitAttr(init) }
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
object!(abi::ibv_qp_ex => LiveQp, Batch);

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

/// Makes a queue pair and writes the sizes it got into `init.cap`.
pub(crate) fn create(
    owner: &Owner,
    pd: Object<abi::ibv_pd>,
    init: &mut abi::ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut abi::ibv_qp, Errno> {
    let (_, domain) = pd.enter(owner)?;
    let service = service(init.qp_type)?;
    let shared = if init.srq.is_null() {
        None
    } else {
        let (_, srq) = named!(init.srq).enter(owner)?;
        Some(Arc::clone(&srq.engine))
    };
    let (_, send_cq) = named!(init.send_cq).enter(owner)?;
    // An initiator of XRC receives nothing.
    let recv_cq = if service == Service::XrcInitiator { init.send_cq } else { init.recv_cq };
    let (_, recv_cq) = named!(recv_cq).enter(owner)?;
    owner.is(domain.context)?;
    let handle = POOL.take(blank(domain.context, pd, init));
    let made = domain.engine.create_qp(QpInit {
        service,
        send_cq: Arc::clone(&send_cq.engine),
        recv_cq: Arc::clone(&recv_cq.engine),
        srq: shared,
        caps: QpCaps {
            max_send_wr: init.cap.max_send_wr,
            max_recv_wr: init.cap.max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_recv_sge: init.cap.max_recv_sge,
            max_inline: init.cap.max_inline_data,
        },
        sq_sig_all: init.sq_sig_all != 0,
        user: handle.c().addr() as u64,
    });
    let engine = match made {
        Ok(engine) => engine,
        Err(error) => {
            POOL.put_back(handle);
            return Err(error.into());
        }
    };
    init.cap = attr::c_caps(&engine.caps());
    set!(handle.qp_base.qp_num = engine.qpn().value());
    let init = InitAttr(*init);
    POOL.enliven(handle, LiveQp { engine, share: None, context: domain.context, extended, init });
    Ok(handle.c().cast())
}

/// The C structure of a queue pair that is not there yet.
fn blank(
    context: &'static ContextHandle,
    pd: Object<abi::ibv_pd>,
    init: &abi::ibv_qp_init_attr,
) -> abi::ibv_qp_ex {
    qp_ex::empty(abi::ibv_qp {
        context: context.public(),
        qp_context: init.qp_context,
        pd: pd.as_ptr(),
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: next_number(),
        qp_num: 0,
        state: abi::IBV_QPS_RESET,
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    })
}

/// An `ibv_qp_init_attr` of an XRC target: it has no queues of its own.
fn target_init(qp_context: *mut c_void) -> abi::ibv_qp_init_attr {
    abi::ibv_qp_init_attr {
        qp_context,
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: attr::c_caps(&QpCaps::default()),
        qp_type: abi::IBV_QPT_XRC_RECV,
        sq_sig_all: 0,
    }
}

/// Makes an XRC target; `pd` may be NULL.
pub(crate) fn create_target(
    owner: &Owner,
    xrcd: &Live<LiveXrcd>,
    pd: Object<abi::ibv_pd>,
    qp_context: *mut c_void,
) -> Result<*mut abi::ibv_qp, Errno> {
    let domain = if pd.is_null() {
        None
    } else {
        let (_, domain) = pd.enter(owner)?;
        Some(Arc::clone(&domain.engine))
    };
    let init = target_init(qp_context);
    let handle = POOL.take(blank(xrcd.context, pd, &init));
    match xrcd.engine.create_target(domain.as_ref(), handle.c().expose_provenance() as u64) {
        Ok(engine) => Ok(hand_out(handle, LiveQp::of(engine, None, xrcd.context, init))),
        Err(error) => {
            POOL.put_back(handle);
            Err(error.into())
        }
    }
}

/// Opens an XRC target by its number.
pub(crate) fn open(
    xrcd: &Live<LiveXrcd>,
    qpn: Qpn,
    qp_context: *mut c_void,
) -> Result<*mut abi::ibv_qp, Errno> {
    let init = target_init(qp_context);
    let handle = POOL.take(blank(xrcd.context, Object::NULL, &init));
    match xrcd.engine.open_qp(qpn, handle.c().expose_provenance() as u64) {
        Ok(share) => {
            let engine = Arc::clone(share.qp());
            Ok(hand_out(handle, LiveQp::of(engine, Some(share), xrcd.context, init)))
        }
        Err(error) => {
            POOL.put_back(handle);
            Err(error.into())
        }
    }
}

/// Makes the handle live; the pointer for the program.
fn hand_out(handle: &'static QpHandle, live: LiveQp) -> *mut abi::ibv_qp {
    set!(handle.qp_base.qp_num = live.engine.qpn().value());
    handle.show_state(live.engine.state());
    POOL.enliven(handle, live);
    handle.c().cast()
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
    /// Makes a queue pair.
    pub fn ibv_create_qp(pd: Object<abi::ibv_pd>, init: Ptr<abi::ibv_qp_init_attr>) -> *mut abi::ibv_qp = call::pointer |owner| {
        let (to, mut init) = (init.some()?, init.read()?);
        let qp = create(owner, pd, &mut init, false)?;
        set!(to.cap = init.cap);
        Ok(qp)
    }

    /// Sets the attributes that `attr_mask` names, all or none.
    pub fn ibv_modify_qp(
        qp: Object<abi::ibv_qp>,
        attr: Ptr<abi::ibv_qp_attr>,
        attr_mask: c_int,
    ) -> c_int = call::code |owner| {
        let (handle, live) = qp.enter(owner)?;
        let attr = attr.read()?;
        let mask = QpAttrMask::from_bits_retain(attr_mask as u32);
        handle.modify(&live, &attr::engine_attr(&attr, mask)?, mask)
    }

    /// All attributes, whatever `attr_mask` says, and what the queue pair was made with.
    pub fn ibv_query_qp(
        qp: Object<abi::ibv_qp>,
        attr: Ptr<abi::ibv_qp_attr>,
        _attr_mask: c_int,
        init_attr: Ptr<abi::ibv_qp_init_attr>,
    ) -> c_int = call::code |owner| {
        let (handle, live) = qp.enter(owner)?;
        let (attr, init_attr) = (attr.some()?, init_attr.some()?);
        let queried = live.engine.query();
        handle.show_state(queried.qp_state);
        attr.write(attr::c_attr(&queried, &live.engine.caps()));
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

    /// 0: lost packets are placed when they come again, so nothing is promised about the order within a message.
    pub fn ibv_query_qp_data_in_order(
        _qp: Object<abi::ibv_qp>,
        _opcode: abi::ibv_wr_opcode,
        _flags: u32,
    ) -> c_int {
        0
    }
}
