//! Direct copies: RDMA WRITE and READ to a process of this host and user by one system call
//! (`process_vm_writev(2)`), without a thread of the target.
//!
//! The target publishes its keys and queue pairs ([`crate::publisher`]), and this side checks each operation
//! against them as the target's responder would. An operation that does not pass, or that the kernel refuses
//! or cuts short, is left to packets, and so ends with the NAK and the status that the rules ask for.
//!
//! The kernel copies octets in order of their addresses, and one element of a vector after the other. An
//! element of eight aligned octets or less is seen whole or not at all. Both were observed, not promised: on
//! x86_64 with `fsrm`, Linux 6.18, in three million writes each, see the tests of this module. The last
//! aligned word of a longer WRITE is an element of its own, so that it is seen last.

mod lists;
mod peer;
mod sys;

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_host::fork::Guarded;
use ferroce_ipc::ledger::DeviceCounters;
use ferroce_ipc::published::{Connection, Identity, Published, Region};
use ferroce_proto::{DirectKind, DirectRequest, QueuePair};
use ferroce_wire::{Flow, Psn, Qpn, Rkey};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use self::lists::{Filled, Lists};
pub use self::peer::Peer;

use crate::publisher::{Hazards, pid_of};
use crate::{Access, HeldRegions, Secret, View};

/// Most octets of one system call: as long, the end of a registration may have to wait.
const CALL: u64 = 4 << 20;
/// Octets of one queue pair before others have their turn.
const TURN: u64 = 32 << 20;

/// A process of this host whose memory this one may copy to and from.
pub struct Direct {
    /// The number that copies name: that of `target`.
    tid: libc::pid_t,
    target: Target,
    /// The thread of the publication, as an honest target has it to its end.
    owner: u32,
    published: Published,
    secret: Secret,
    hazards: Hazards,
}

/// The thread or process that copies go to, by a descriptor: its number may be another's after its end.
struct Target {
    /// An epoll set with `fd` as its member. An empty look at a set takes 0.15 µs, `poll(2)` on the member
    /// 0.4 µs (Linux 6.18), and each copy looks.
    set: Guarded<OwnedFd>,
    /// Held open because the set forgets a descriptor that is closed.
    _fd: Guarded<OwnedFd>,
    /// A thread that lives as long as the address space, so that its number is that of no process that
    /// executes another program. Otherwise the process, because the kernel has no descriptors of threads.
    is_thread: bool,
}

impl Target {
    /// The thread `tid`, which may be of any process, or the process behind `pidfd`.
    fn open(pidfd: BorrowedFd<'_>, tid: libc::pid_t) -> io::Result<Self> {
        // Linux 6.9 has it; an older one, and a filter of system calls, refuses it.
        const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
        let thread = Pid::from_raw(tid).ok_or(Errno::SRCH);
        let thread = thread.and_then(|tid| pidfd_open(tid, PidfdFlags::from_bits_retain(PIDFD_THREAD)));
        let (fd, is_thread) = match thread {
            Ok(fd) => (fd, true),
            Err(Errno::SRCH) => return Err(Errno::SRCH.into()),
            Err(_) => (pidfd.try_clone_to_owned()?, false),
        };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, &fd, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { set: Guarded::new(set), _fd: Guarded::new(fd), is_thread })
    }

    /// Whether its number is still its own.
    #[inline]
    fn lives(&self) -> bool {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; 1];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.set, &mut events, Some(&now)).is_ok_and(|(ended, _)| ended.is_empty())
    }
}

/// Why there are no direct copies with a process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectError {
    #[error("its publication cannot be used")]
    Publication(#[source] io::Error),
    #[error("its process cannot be found")]
    Process(#[source] io::Error),
    #[error("its address space ended")]
    Ended,
    #[error("the kernel refuses access to its memory")]
    Refused(#[source] io::Error),
    #[error("the publication is of another process")]
    Foreign,
}

/// How far a long request was executed.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    request: u64,
    octets: u32,
}

/// The two ends of a connection, as the target must know them too.
pub struct Ends<'a> {
    pub local: Qpn,
    pub remote: Qpn,
    pub flow: &'a Flow,
    pub target: &'a TargetConnection,
}

/// The target's connection, as this end of it knows it.
#[derive(Default)]
pub struct TargetConnection {
    /// The first PSN that this end sends, by which a target tells the packets of its connection.
    first: Psn,
    /// As the target has told it: a card would know a later one by its PSNs, and copies have none.
    known: Cell<Option<Connection>>,
    /// The target serves another one.
    over: Cell<bool>,
}

impl TargetConnection {
    pub fn new(first: Psn) -> Self {
        Self { first, ..Self::default() }
    }

    fn is(&self, told: Connection) -> bool {
        match self.known.get() {
            Some(known) => {
                self.over.set(known != told);
                known == told
            }
            None if told.first() == self.first => {
                self.known.set(Some(told));
                true
            }
            None => false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.over.get()
    }
}

impl Direct {
    /// Tries once whether memory of the process behind `pidfd` can be copied. `published` is its publication;
    /// copies are announced in `hazards`, which it looks at.
    pub(crate) fn open(
        pidfd: BorrowedFd<'_>,
        published: &impl AsFd,
        hazards: Hazards,
    ) -> Result<Self, DirectError> {
        let published = Published::open(published).map_err(DirectError::Publication)?;
        let Identity { nonce, nonce_address, secret } = published.identity();
        let tid = published.owner().ok_or(DirectError::Ended)?;
        let pid = pid_of(pidfd).map_err(DirectError::Process)?;
        let target = Target::open(pidfd, tid as libc::pid_t).map_err(DirectError::Process)?;
        // The id comes from the publication, so the kernel must say that the thread belongs to the process.
        std::fs::metadata(format!("/proc/{pid}/task/{tid}")).map_err(DirectError::Process)?;
        if !target.lives() {
            return Err(DirectError::Ended);
        }
        let owner = tid;
        let tid = if target.is_thread { tid as libc::pid_t } else { pid };
        let found = sys::read_word(tid, nonce_address).map_err(DirectError::Refused)?;
        // The number of a process that ended may be another's by now.
        if pid_of(pidfd).ok() != Some(pid) || published.owner().is_none() {
            return Err(DirectError::Ended);
        }
        if found != nonce {
            return Err(DirectError::Foreign);
        }
        Ok(Self { tid, target, owner, published, secret: Secret::from_words(secret), hazards })
    }

    /// The region that a request names, if the target admits it now. A copy must be announced.
    fn admit(&self, ends: &Ends<'_>, kind: DirectKind, rkey: Rkey) -> Option<Region> {
        let Ends { local, remote, flow, target: connection } = *ends;
        if self.published.owner() != Some(self.owner) {
            return None;
        }
        let target = self.published.queue_pair(remote)?;
        let is_peer = target.remote == local
            && target.version == flow.link.version
            && target.source == flow.destination
            && target.destination == flow.source;
        let (admitted, access) = match kind {
            DirectKind::Write => (target.write, Access::REMOTE_WRITE),
            DirectKind::Read => (target.read, Access::REMOTE_READ),
        };
        let region = self.published.region(self.secret.slot(rkey.value()))?;
        let has_right = region.key == rkey.value()
            && region.pd == target.pd
            && region.qpn.is_none_or(|qpn| qpn == remote)
            && Access::from_bits_retain(region.access).contains(access);
        (is_peer && admitted && has_right && connection.is(target.connection)).then_some(region)
    }

    /// Executes what the send queue has for direct copies, up to a bound; returns whether it has more.
    pub fn drain(
        &self,
        transport: &mut QueuePair,
        memory: &View,
        ends: &Ends<'_>,
        progress: &mut Progress,
        counters: &DeviceCounters,
    ) -> bool {
        let mut turn = 0;
        while turn < TURN {
            let Some(copied) =
                Lists::with(|lists| self.copy(lists, transport, memory, ends, progress)).flatten()
            else {
                return false;
            };
            (0..copied.requests).for_each(|_| transport.complete_direct());
            DeviceCounters::add(&counters.direct_ops, copied.requests.into());
            DeviceCounters::add(&counters.direct_octets, copied.octets);
            if copied.short {
                return false;
            }
            turn += copied.octets;
        }
        transport.direct_request(0).is_some()
    }

    /// Executes requests of one key by one system call, as many as that takes. Returns `None` if packets have
    /// to execute them.
    fn copy(
        &self,
        lists: &mut Lists,
        transport: &QueuePair,
        memory: &View,
        ends: &Ends<'_>,
        progress: &mut Progress,
    ) -> Option<Copied> {
        let DirectRequest { kind, remote, index, length, .. } = transport.direct_request(0)?;
        let done = if progress.request == index { progress.octets } else { 0 };
        let _claim = self.hazards.claim(remote.rkey, ends.remote)?;
        let region = self.admit(ends, kind, remote.rkey)?;
        let mut held = HeldRegions::new(memory);
        lists.clear();
        let mut requests = 0;
        let mut octets = 0;
        while let Some(request) = transport.direct_request(requests) {
            if (request.kind, request.remote.rkey) != (kind, remote.rkey) {
                break;
            }
            let from = if requests == 0 { done } else { 0 };
            // Only the first may be longer than a call.
            let part = u64::from(request.length - from).min(CALL);
            if requests > 0 && octets + part > CALL {
                break;
            }
            match lists.fill(&request, from, part as u32, &region, &mut held) {
                Filled::Yes => {}
                Filled::No => break,
            }
            requests += 1;
            octets += part;
            if u64::from(from) + part < u64::from(request.length) {
                break;
            }
        }
        if requests == 0 {
            return None;
        }
        // The target writes its own publication, so only the kernel is asked whether the number is still the
        // target's.
        if !self.target.lives() {
            return None;
        }
        let copied = lists.copy(self.tid, kind)?;
        if copied < octets {
            return Some(Copied { requests: whole(transport, done, copied), octets: copied, short: true });
        }
        if requests == 1 && u64::from(done) + octets < u64::from(length) {
            *progress = Progress { request: index, octets: done + octets as u32 };
            requests = 0;
        }
        Some(Copied { requests, octets, short: false })
    }
}

#[cfg(test)]
mod tests;

/// The result of a system call.
struct Copied {
    /// Requests that are executed now.
    requests: u32,
    octets: u64,
    /// Not all was copied that was asked for.
    short: bool,
}

/// The requests that `copied` octets complete, if the first had `done` before.
fn whole(transport: &QueuePair, done: u32, copied: u64) -> u32 {
    let mut left = copied + u64::from(done);
    let mut requests = 0;
    while let Some(request) = transport.direct_request(requests)
        && u64::from(request.length) <= left
    {
        left -= u64::from(request.length);
        requests += 1;
    }
    requests
}
