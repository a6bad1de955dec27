//! XRC domains (IBTA A14): which target queue pairs may take from which shared receive queues.
//!
//! The C interface makes targets without a protection domain. Such a target looks for remote keys in the
//! domain of the queue that the request names.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ferroce_proto::{Domain, RecvWqe, Taken};
use ferroce_wire::{Qpn, SrqNumber};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use parking_lot::Mutex;

use crate::error::{Busy, CreateSrqError, OpenXrcdError};
use crate::lane::Lane;
use crate::qpn::QpnTable;
use crate::{CompletionQueue, Context, Pd, Srq, SrqInit};
use ferroce_host::fork::{self, Guarded};

/// A file that names an XRC domain: every open of the same inode in this process gets the same domain.
#[derive(Clone)]
pub struct Inode {
    device: u64,
    number: u64,
    /// Keeps the number from being used for another file. `O_PATH`: closing it takes no lock away.
    _open: Option<Arc<Guarded<OwnedFd>>>,
}

impl Inode {
    /// The inode behind a descriptor, which may be closed afterwards.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = fstat(file)?;
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let open = open(link.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        let open = open.ok().map(|fd| Arc::new(Guarded::new(fd)));
        Ok(Self { device: stat.st_dev, number: stat.st_ino, _open: open })
    }

    fn is(&self, other: &Self) -> bool {
        (self.device, self.number) == (other.device, other.number)
    }
}

/// How to open an XRC domain (`ibv_xrcd_init_attr`).
#[derive(Clone, Default)]
#[doc(alias = "ibv_xrcd_init_attr")]
pub struct XrcdInit {
    /// The file that names it; `None` for a domain that no other opener can find.
    pub inode: Option<Inode>,
    /// Make it if it is not there (`O_CREAT`). A domain without a file is always made.
    pub create: bool,
    /// Refuse one that is there already (`O_EXCL`).
    pub exclusive: bool,
}

/// An XRC domain, opened (`ibv_xrcd`). It lives until all that opened it have closed it.
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd {
    context: Arc<Context>,
    /// For targets that have no protection domain: nobody else is in it, and no memory.
    nowhere: Arc<Pd>,
    domain: Arc<XrcCore>,
    users: AtomicUsize,
    closed: Mutex<bool>,
    epoch: u64,
}

impl Context {
    /// Opens an XRC domain.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(self: &Arc<Self>, init: &XrcdInit) -> Result<Arc<Xrcd>, OpenXrcdError> {
        if self.is_iwarp() {
            return Err(OpenXrcdError::Iwarp);
        }
        let engine = self.engine();
        let fresh = || Arc::new(XrcCore { srqs: Srq::table(engine), members: Mutex::default() });
        let domain = match &init.inode {
            None => fresh(),
            Some(inode) => {
                let domains = engine.shared(Domains::default);
                let mut named = domains.lock();
                let same = |entry: &&mut Named| entry.device == self.id() && entry.inode.is(inode);
                match named.iter_mut().find(same) {
                    Some(_) if init.exclusive => return Err(OpenXrcdError::Exists),
                    None if !init.create => return Err(OpenXrcdError::NotThere),
                    Some(entry) => {
                        entry.opens += 1;
                        Arc::clone(&entry.domain)
                    }
                    None => {
                        let domain = fresh();
                        named.push(Named {
                            device: self.id(),
                            inode: inode.clone(),
                            domain: Arc::clone(&domain),
                            opens: 1,
                        });
                        domain
                    }
                }
            }
        };
        Ok(Arc::new(Xrcd {
            context: Arc::clone(self),
            nowhere: Pd::new(self, engine.next_pd()),
            domain,
            users: AtomicUsize::new(0),
            closed: Mutex::new(false),
            epoch: fork::epoch(),
        }))
    }
}

impl Xrcd {
    /// The context it was opened in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether both are the same domain.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.domain, &other.domain)
    }

    /// Makes a shared receive queue that targets of this domain receive into; its completions go to `cq`.
    pub fn create_srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        cq: &Arc<CompletionQueue>,
        init: SrqInit,
    ) -> Result<Arc<Srq>, CreateSrqError> {
        Srq::create(pd, init, Some(XrcSrq { xrcd: Arc::clone(self), cq: Arc::clone(cq) }))
    }

    /// Closes it. Refused while queue pairs or shared receive queues made or opened by it are there. A second
    /// call does nothing.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(&self) -> Result<(), Busy> {
        if self.epoch != fork::epoch() {
            return Ok(());
        }
        let mut closed = self.closed.lock();
        let users = self.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(Busy { users });
        }
        if !std::mem::replace(&mut *closed, true) {
            let domains = self.context.engine().shared(Domains::default);
            let mut named = domains.lock();
            if let Some(at) = named.iter().position(|entry| Arc::ptr_eq(&entry.domain, &self.domain)) {
                named[at].opens -= 1;
                if named[at].opens == 0 {
                    named.swap_remove(at);
                }
            }
        }
        Ok(())
    }

    /// Something starts to use it; `false` if it was closed.
    pub(crate) fn add_user(&self) -> bool {
        let closed = self.closed.lock();
        if !*closed {
            self.users.fetch_add(1, Ordering::AcqRel);
        }
        !*closed
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// The protection domain of targets that have none.
    pub(crate) fn nowhere(&self) -> &Arc<Pd> {
        &self.nowhere
    }

    pub(crate) fn domain(&self) -> &Arc<XrcCore> {
        &self.domain
    }
}

/// All domains of the process that a file names.
type Domains = Mutex<Vec<Named>>;

/// A domain that has a name.
struct Named {
    device: u32,
    inode: Inode,
    domain: Arc<XrcCore>,
    opens: usize,
}

/// The XRC part of a shared receive queue.
pub(crate) struct XrcSrq {
    pub(crate) xrcd: Arc<Xrcd>,
    pub(crate) cq: Arc<CompletionQueue>,
}

impl XrcSrq {
    /// Begins to use both, or none.
    pub(crate) fn add_users(&self, context: &Arc<Context>) -> Result<(), CreateSrqError> {
        let ours = |other: &Arc<Context>| Arc::ptr_eq(other, context);
        if !ours(self.xrcd.context()) || !ours(self.cq.context()) || !self.cq.add_user() {
            return Err(CreateSrqError::Foreign);
        }
        if !self.xrcd.add_user() {
            self.cq.remove_user();
            return Err(CreateSrqError::Foreign);
        }
        Ok(())
    }
}

/// The domain itself.
pub(crate) struct XrcCore {
    srqs: Arc<QpnTable<Srq>>,
    members: Mutex<Members>,
}

/// The lanes of its targets, each once, and its queues: a thread that polls a queue's completions receives on
/// these lanes.
#[derive(Default)]
struct Members {
    lanes: Vec<Arc<Lane>>,
    srqs: Vec<Weak<Srq>>,
}

impl XrcCore {
    /// Runs `look` on the domain's queue of this number. Wait-free. Numbers of other processes are not here.
    fn with<R>(&self, number: SrqNumber, look: impl FnOnce(&Srq, &XrcSrq) -> R) -> Option<R> {
        let qpn = Qpn::new(number.value());
        let srq = self.srqs.owns(qpn).then(|| self.srqs.get(qpn)).flatten()?;
        let xrc = srq.xrc().filter(|xrc| std::ptr::eq(Arc::as_ptr(&xrc.xrcd.domain), self))?;
        Some(look(&srq, xrc))
    }

    /// The protection domain of a queue.
    pub(crate) fn domain_of(&self, number: SrqNumber) -> Option<Domain> {
        self.with(number, |srq, _| Domain(srq.pd().id().value()))
    }

    /// Takes from a queue, see [`Srq::take`].
    pub(crate) fn take(&self, number: SrqNumber, wqe: &mut RecvWqe, least: u64) -> Taken {
        self.with(number, |srq, _| srq.take(wqe, least)).unwrap_or(Taken::Empty)
    }

    /// Completion queue of a shared receive queue.
    pub(crate) fn cq_of(&self, number: SrqNumber) -> Option<Arc<CompletionQueue>> {
        self.with(number, |_, xrc| Arc::clone(&xrc.cq))
    }

    pub(crate) fn add_srq(&self, srq: &Arc<Srq>, cq: &CompletionQueue) {
        let mut members = self.members.lock();
        members.srqs.push(Arc::downgrade(srq));
        members.lanes.iter().for_each(|lane| cq.add_lane(lane));
    }

    pub(crate) fn remove_srq(&self, srq: &Srq, cq: &CompletionQueue) {
        let mut members = self.members.lock();
        members.srqs.retain(|known| !std::ptr::eq(known.as_ptr(), srq));
        members.lanes.iter().for_each(|lane| cq.remove_lane(lane));
    }

    fn each_cq(members: &Members, mut run: impl FnMut(&CompletionQueue)) {
        for srq in members.srqs.iter().filter_map(Weak::upgrade) {
            if let Some(xrc) = srq.xrc() {
                run(&xrc.cq);
            }
        }
    }

    /// A target came to this lane.
    pub(crate) fn add_lane(&self, lane: &Arc<Lane>) {
        let mut members = self.members.lock();
        members.lanes.push(Arc::clone(lane));
        Self::each_cq(&members, |cq| cq.add_lane(lane));
    }

    /// A target left this lane.
    pub(crate) fn remove_lane(&self, lane: &Arc<Lane>) {
        let mut members = self.members.lock();
        if let Some(at) = members.lanes.iter().position(|known| Arc::ptr_eq(known, lane)) {
            members.lanes.swap_remove(at);
            Self::each_cq(&members, |cq| cq.remove_lane(lane));
        }
    }

    /// Removes what a target that ended left in the completion queues.
    pub(crate) fn purge(&self, qpn: Qpn) {
        Self::each_cq(&self.members.lock(), |cq| cq.purge(qpn));
    }
}
