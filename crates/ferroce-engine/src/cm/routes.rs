//! A cache of the kernel's routes, valid until the kernel reports a change.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use ferroce_host::fork::Guarded;
use ferroce_host::rtnetlink::Monitor;

/// Routes that are kept.
const MOST: usize = 64;
/// How long, although nothing changes: the kernel does not tell of path MTUs that it learns and forgets.
const KEPT: Duration = Duration::from_secs(1);

/// The kernel's answer about a source, perhaps the wildcard, and a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The local address.
    pub(super) from: SocketAddr,
    /// The destination, as the kernel understood it.
    pub(super) to: SocketAddr,
    /// The MTU of the way.
    pub(super) mtu: u32,
    /// Time to live or hop limit.
    pub(super) hop_limit: u8,
}

/// Answers of the kernel.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// `Some(None)`: the system does not report changes, so nothing is cached.
    monitor: Option<Option<Guarded<Monitor>>>,
    /// How often something changed.
    changes: u64,
    answers: Vec<(SocketAddr, SocketAddr, Instant, Answer)>,
}

impl Routes {
    /// The answer about `source` and `destination`, both without ports; from `ask` if none is known that still holds.
    pub(super) fn get<E>(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        ask: impl FnOnce() -> Result<Answer, E>,
    ) -> Result<Answer, E> {
        let changes = {
            let mut known = self.known.lock();
            // A change is there to be read before the call that made it returns, so what is found below holds.
            known.follow();
            let is = |known: &&(SocketAddr, SocketAddr, Instant, Answer)| {
                known.0 == source && known.1 == destination && known.2.elapsed() < KEPT
            };
            if let Some((.., answer)) = known.answers.iter().find(is) {
                return Ok(*answer);
            }
            known.changes
        };
        let since = Instant::now();
        let answer = ask()?;
        let mut known = self.known.lock();
        // The next lookup detects a change after this point.
        if known.changes == changes && matches!(known.monitor, Some(Some(_))) {
            known
                .answers
                .retain(|known| known.2.elapsed() < KEPT && (known.0, known.1) != (source, destination));
            if known.answers.len() < MOST {
                known.answers.push((source, destination, since, answer));
            }
        }
        Ok(answer)
    }
}

impl Known {
    /// Forgets what may be wrong by now.
    fn follow(&mut self) {
        let monitor = self.monitor.get_or_insert_with(|| {
            let monitor = Monitor::of_routes();
            monitor.inspect_err(|e| tracing::debug!("routes are not kept: {e}")).ok().map(Guarded::new)
        });
        if monitor.as_ref().is_none_or(|monitor| monitor.drain()) {
            self.changes += 1;
            self.answers.clear();
        }
    }
}
