//! A work request as the rules see it.

use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use ferroce_engine::{RecvWr, SendOp, SendWr, Sge};
use ferroce_memory::guard;

use super::trace::Trace;

/// Octets of a work request that are compared: its first ones.
const COMPARED: u64 = 256 << 10;

/// What a work request does with the program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Reads,
    Writes,
    Nothing,
}

/// A work request that is posted and whose completion was not polled.
#[derive(Debug)]
pub(crate) struct Work {
    /// Place among all work requests of the process.
    pub(super) number: u64,
    pub(super) wr_id: u64,
    pub(super) name: &'static str,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) inline: bool,
    pub(super) uses: Use,
    pub(super) rkey: Option<u32>,
    pub(super) spans: Vec<Sge>,
    /// Hash of the memory when it was posted; `None` if it is not compared.
    pub(super) hash: Option<u64>,
    pub(super) posted: Trace,
}

impl Work {
    pub(crate) fn send(wr: &SendWr<'_>) -> Self {
        let (name, uses, remote) = match wr.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => ("SEND", Use::Reads, None),
            SendOp::Write { remote } | SendOp::WriteImm { remote, .. } => {
                ("RDMA WRITE", Use::Reads, Some(remote))
            }
            SendOp::Read { remote } => ("RDMA READ", Use::Writes, Some(remote)),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                ("atomic", Use::Writes, Some(remote))
            }
            SendOp::AtomicWrite { remote, .. } => ("ATOMIC WRITE", Use::Reads, Some(remote)),
            SendOp::Flush { .. } => ("FLUSH", Use::Nothing, None),
            SendOp::LocalInvalidate(_) | SendOp::BindMw(_) => ("local operation", Use::Nothing, None),
        };
        let rkey = remote.map(|remote| remote.rkey.value());
        let (signaled, fence, inline) = (wr.signaled, wr.fence, wr.inline);
        Self { signaled, fence, inline, rkey, ..Self::new(wr.wr_id, name, uses, wr.sges) }
    }

    pub(super) fn receive(wr: &RecvWr<'_>) -> Self {
        Self::new(wr.wr_id, "receive", Use::Writes, wr.sges)
    }

    fn new(wr_id: u64, name: &'static str, uses: Use, sges: &[Sge]) -> Self {
        let spans = sges.iter().filter(|sge| sge.length > 0).copied().collect();
        let (number, signaled, fence, inline, rkey, hash) = Default::default();
        let posted = Trace::here();
        Self { number, wr_id, name, signaled, fence, inline, uses, rkey, spans, hash, posted }
    }

    /// The addresses of its memory.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.spans.iter().map(|sge| sge.addr..sge.addr.saturating_add(sge.length.into()))
    }

    pub(super) fn octets(&self) -> u64 {
        self.spans.iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Whether both use some octet.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.ranges().any(|one| other.ranges().any(|two| one.start < two.end && two.start < one.end))
    }

    /// Hash of its memory as it is now; `None` if some of it is not there.
    pub(super) fn read(&self) -> Option<u64> {
        let (mut hasher, mut left, mut page) = (DefaultHasher::new(), COMPARED, [0; 1024]);
        for range in self.ranges() {
            let mut at = range.start;
            while at < range.end && left > 0 {
                let part = page.get_mut(..(range.end - at).min(left).min(1024) as usize)?;
                guard::read(at, part).ok()?;
                hasher.write(part);
                at += part.len() as u64;
                left -= part.len() as u64;
            }
        }
        Some(hasher.finish())
    }
}
