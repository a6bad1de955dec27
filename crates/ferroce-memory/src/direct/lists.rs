//! The vectors of a copy, one pair for each thread.

use std::cell::RefCell;

use ferroce_ipc::published::Region;
use ferroce_proto::{DirectKind, DirectLocal, DirectRequest};

use super::sys::{self, Piece};
use crate::HeldRegions;

/// The kernel takes no longer vectors (`UIO_MAXIOV`).
const PIECES: usize = 1024;

/// Our pieces of memory and the target's, of the same length together.
pub(super) struct Lists {
    local: Vec<Piece>,
    remote: Vec<Piece>,
}

/// Whether a request was added.
#[derive(PartialEq, Eq)]
pub(super) enum Filled {
    Yes,
    /// The lists have no room, or the access no right: the lists are as they were.
    No,
}

thread_local! {
    static LISTS: RefCell<Lists> = const { RefCell::new(Lists { local: Vec::new(), remote: Vec::new() }) };
}

impl Lists {
    /// `None` while the thread ends, and inside a signal handler that interrupted this function.
    pub(super) fn with<T>(act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let acted = LISTS.try_with(|lists| {
            let mut lists = lists.try_borrow_mut().ok()?;
            if lists.local.capacity() == 0 {
                lists.local.reserve_exact(PIECES);
                lists.remote.reserve_exact(PIECES);
            }
            Some(act(&mut lists))
        });
        acted.ok().flatten()
    }

    pub(super) fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
    }

    /// Adds `part` octets of a request from octet `from` on.
    pub(super) fn fill(
        &mut self,
        request: &DirectRequest<'_>,
        from: u32,
        part: u32,
        region: &Region,
        held: &mut HeldRegions<'_>,
    ) -> Filled {
        let before = (self.local.len(), self.remote.len());
        let added = self.add_remote(request, from, part, region).and_then(|()| match request.local {
            DirectLocal::Inline(octets) => {
                let octets = octets.get(from as usize..)?.get(..part as usize)?;
                push(&mut self.local, Piece { addr: octets.as_ptr() as u64, len: u64::from(part) })
            }
            DirectLocal::Sges(_) => self.add_local(request, from, part, held),
        });
        if added.is_some() {
            return Filled::Yes;
        }
        self.local.truncate(before.0);
        self.remote.truncate(before.1);
        Filled::No
    }

    fn add_remote(
        &mut self,
        request: &DirectRequest<'_>,
        from: u32,
        part: u32,
        region: &Region,
    ) -> Option<()> {
        // As `slots::Region::place`; the target's words may be nonsense, and then so is the place.
        let offset = request.remote.addr.checked_sub(region.iova)?;
        let length = u64::from(request.length);
        if length > region.len || offset > region.len - length {
            return None;
        }
        let start = region.addr.wrapping_add(offset).wrapping_add(from.into());
        let end = start.wrapping_add(part.into());
        let ends = from + part == request.length;
        // The last octets are seen behind all others: programs wait for them.
        let tail = end.wrapping_sub(1) & !7;
        let tail = if request.kind == DirectKind::Write && ends && request.length > 8 && tail > start {
            tail
        } else {
            end
        };
        push(&mut self.remote, Piece { addr: start, len: tail.wrapping_sub(start) })?;
        if tail != end {
            push(&mut self.remote, Piece { addr: tail, len: end - tail })?;
        }
        Some(())
    }

    fn add_local(
        &mut self,
        request: &DirectRequest<'_>,
        from: u32,
        part: u32,
        held: &mut HeldRegions<'_>,
    ) -> Option<()> {
        let DirectLocal::Sges(sges) = request.local else { return None };
        let (mut skip, mut left) = (u64::from(from), u64::from(part));
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            // The whole list is checked, also what comes later or came before.
            let place = held.place(sge, request.kind == DirectKind::Read).ok()??;
            let length = u64::from(sge.length);
            let start = skip.min(length);
            let len = left.min(length - start);
            skip -= start;
            left -= len;
            if len > 0 {
                push(&mut self.local, Piece { addr: place + start, len })?;
            }
        }
        (left == 0).then_some(())
    }

    /// Copies. The octets copied, `None` if there are none.
    pub(super) fn copy(&self, tid: libc::pid_t, kind: DirectKind) -> Option<u64> {
        let copied = match kind {
            DirectKind::Write => sys::write(tid, &self.local, &self.remote),
            DirectKind::Read => sys::read(tid, &self.local, &self.remote),
        };
        copied.inspect_err(|error| tracing::trace!(%error, "a direct copy fails")).ok()
    }
}

fn push(list: &mut Vec<Piece>, piece: Piece) -> Option<()> {
    (list.len() < PIECES).then(|| list.push(piece))
}
