//! Shared receive queues.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ferroce_ipc::ledger::records::{Block, SrqRecord};
use ferroce_ipc::ledger::{Entry, Table};
use ferroce_proto::{
    Domain, PostRecvError, RecvWqe, RecvWr, SharedReceiveQueue, SrqAttr, SrqAttrMask, Taken,
};
use ferroce_wire::{Qpn, SrqNumber};
use parking_lot::Mutex;

use crate::async_queue::{AckCount, EventSource};
use crate::device::{MAX_SRQ, MAX_SRQ_SGE, MAX_SRQ_WR};
use crate::engine::Engine;
use crate::error::{Busy, CreateSrqError, LimitReached, ModifySrqError};
use crate::qpn::QpnTable;
use crate::xrc::XrcSrq;
use crate::{Context, Pd};
use ferroce_host::fork;

/// The parameters of a new shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "ibv_srq_init_attr")]
pub struct SrqInit {
    /// Receive work requests that may be outstanding: at least 1.
    pub max_wr: u32,
    /// SGEs of one.
    pub max_sge: u32,
    /// The caller's own, given back by [`Srq::user`] and in events.
    pub user: u64,
}

/// A shared receive queue (`ibv_srq`): queue pairs of its context take their receive WQEs from it, in the
/// order of posting. Its work requests name memory of its own protection domain.
#[doc(alias = "ibv_srq")]
pub struct Srq {
    me: Weak<Srq>,
    pd: Arc<Pd>,
    number: SrqNumber,
    max_sge: u32,
    user: u64,
    core: Mutex<Core>,
    users: AtomicUsize,
    async_acks: AckCount,
    /// The entry in the ledger's list of objects.
    entry: Entry,
    epoch: u64,
    xrc: Option<XrcSrq>,
    table: Arc<QpnTable<Self>>,
}

impl Pd {
    /// Makes a shared receive queue.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, CreateSrqError> {
        Srq::create(self, init, None)
    }
}

/// The state under the lock, which is taken after that of a queue pair and before that of a completion queue.
struct Core {
    queue: SharedReceiveQueue,
    destroyed: bool,
}

impl Srq {
    /// The numbers of the process's shared receive queues, and those queues that peers name by them: XRC's.
    pub(crate) fn table(engine: &Engine) -> Arc<QpnTable<Self>> {
        engine.shared(|| engine.hub().numbers_of_srqs())
    }

    pub(crate) fn create(
        pd: &Arc<Pd>,
        init: SrqInit,
        xrc: Option<XrcSrq>,
    ) -> Result<Arc<Self>, CreateSrqError> {
        let SrqInit { max_wr, max_sge, user } = init;
        if max_wr == 0 {
            return Err(CreateSrqError::Empty);
        }
        for (what, asked, max) in [("max_wr", max_wr, MAX_SRQ_WR), ("max_sge", max_sge, MAX_SRQ_SGE)] {
            if asked > max {
                return Err(CreateSrqError::Capability { what, asked, max });
            }
        }
        let queue = SharedReceiveQueue::new(max_wr, max_sge, Domain(pd.id().value()))
            .ok_or(CreateSrqError::Memory { max_wr })?;
        let engine = pd.context().engine();
        let table = Self::table(engine);
        let further = || engine.lease_further_slot().then(|| table.allocate()).flatten();
        let number = table
            .allocate()
            .or_else(further)
            .ok_or(LimitReached { what: "shared receive queues", max: MAX_SRQ })?;
        if let Some(xrc) = &xrc
            && let Err(error) = xrc.add_users(pd.context())
        {
            table.release(number);
            return Err(error);
        }
        pd.add_user();
        let entry = pd.context().record(Table::Srq);
        entry.put(&SrqRecord {
            block: Block::new(pd.context().block()),
            pd: pd.number(),
            srqn: number.value(),
            is_xrc: xrc.is_some().into(),
            cq: xrc.as_ref().map_or(0, |xrc| xrc.cq.number()),
        });
        let srq = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            pd: Arc::clone(pd),
            number: SrqNumber::new(number.value()),
            max_sge,
            user,
            core: Mutex::new(Core { queue, destroyed: false }),
            users: AtomicUsize::new(0),
            async_acks: AckCount::default(),
            entry,
            epoch: fork::epoch(),
            xrc,
            table,
        });
        if let Some(xrc) = &srq.xrc {
            xrc.xrcd.domain().add_srq(&srq, &xrc.cq);
            srq.table.insert(number, Arc::clone(&srq));
        }
        Ok(srq)
    }

    /// The domain its memory is in.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The context it was made in.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Number of the queue, unique in the network namespace: peers name XRC queues by it.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> SrqNumber {
        self.number
    }

    /// The caller's own value.
    pub fn user(&self) -> u64 {
        self.user
    }

    /// Sizes of the queue, and the limit as it is now: 0 once its event was raised.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttr {
        self.core.lock().queue.query()
    }

    /// SGEs of a work request.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Sets what `mask` names, all or none: the size, which keeps what is outstanding, or the limit, which
    /// raises [`crate::AsyncEventKind::SrqLimitReached`] once, when fewer work requests are left.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<(), ModifySrqError> {
        if mask.contains(SrqAttrMask::MAX_WR) && attr.max_wr > MAX_SRQ_WR {
            return Err(ModifySrqError::TooLarge { asked: attr.max_wr, max: MAX_SRQ_WR });
        }
        let mut core = self.core.lock();
        if core.destroyed {
            return Err(ModifySrqError::Destroyed);
        }
        core.queue.modify(attr, mask)?;
        self.report(&mut core);
        Ok(())
    }

    /// Posts receive work requests in order. At the first that is refused it stops: the ones before it are
    /// posted, the error says which one it was. Each request is copied before the next one is taken from
    /// `wrs`.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> Result<(), (usize, PostRecvError)> {
        self.post_receives(|post| {
            let each = |(index, wr)| post(&wr).map_err(|error| (index, error));
            wrs.into_iter().enumerate().try_for_each(each)
        })
    }

    /// As [`Self::post_recv`], by `posts`, which posts one work request after the other.
    #[inline(always)]
    pub fn post_receives<R>(
        &self,
        posts: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostRecvError>) -> R,
    ) -> R {
        let mut core = self.core.lock();
        posts(&mut |wr| core.queue.post(wr))
    }

    /// Ends the queue, and the work requests in it without completions. Refused while queue pairs use it;
    /// waits until its asynchronous events are acknowledged. A second call does nothing.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        {
            let mut core = self.core.lock();
            let users = self.users.load(Ordering::Acquire);
            if users > 0 {
                return Err(Busy { users });
            }
            if std::mem::replace(&mut core.destroyed, true) {
                return Ok(());
            }
            // Takes no more: posts find no room.
            if let Some(empty) = SharedReceiveQueue::new(0, 0, Domain(0)) {
                core.queue = empty;
            }
        }
        let number = Qpn::new(self.number.value());
        if let Some(xrc) = &self.xrc {
            self.table.remove(number);
            xrc.xrcd.domain().remove_srq(self, &xrc.cq);
            xrc.cq.remove_user();
            xrc.xrcd.remove_user();
        }
        self.context().async_events().purge(self);
        self.async_acks.wait();
        self.entry.end();
        self.table.release(number);
        self.pd.remove_user();
        Ok(())
    }

    /// A queue pair starts to use it; `false` if it is being destroyed.
    pub(crate) fn add_user(&self) -> bool {
        let core = self.core.lock();
        if core.destroyed {
            return false;
        }
        self.users.fetch_add(1, Ordering::AcqRel);
        true
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Acknowledges one asynchronous event of this queue.
    pub fn ack_async_event(&self) {
        self.async_acks.acknowledge(1);
    }

    /// The XRC part, if this is an XRC shared receive queue.
    pub(crate) fn xrc(&self) -> Option<&XrcSrq> {
        self.xrc.as_ref()
    }

    /// Stops the queue, which can report no completions any more: nothing is taken from it.
    pub(crate) fn fail(&self) {
        let mut core = self.core.lock();
        core.queue.fail();
        self.report(&mut core);
    }

    /// Moves the oldest work request into `wqe` if it holds `least` octets.
    pub(crate) fn take(&self, wqe: &mut RecvWqe, least: u64) -> Taken {
        let mut core = self.core.lock();
        let taken = core.queue.take(wqe, least);
        self.report(&mut core);
        taken
    }

    fn report(&self, core: &mut Core) {
        if let Some(event) = core.queue.poll_event() {
            self.context().async_events().push(event, self.me.clone());
        }
    }
}

impl EventSource for Srq {
    fn async_acks(&self) -> &AckCount {
        &self.async_acks
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("number", &self.number).finish_non_exhaustive()
    }
}
