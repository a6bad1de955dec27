//! Whether threads of this process waited for a processor.

use std::fs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::PerProcess;

/// The most threads that are looked at.
const MOST_THREADS: usize = 64;

/// The last look.
struct Look {
    at: Instant,
    /// Time for which the threads had waited by then.
    waited: Duration,
    verdict: bool,
}

#[derive(Default)]
struct Last(Mutex<Option<Look>>);

static LAST: PerProcess<Last> = PerProcess::new();

/// Whether the threads of this process together waited for a processor, since the last look, for a quarter of
/// that time and of `within` at least. A second look within half of `within` returns the verdict of the
/// first. False at the first look, and where `/proc` does not tell.
///
/// The time comes from `/proc/self/task/TID/schedstat` (Linux, `Documentation/scheduler/sched-stats.rst`: the
/// second number). A look takes about 10 µs for each thread.
pub fn was_starved(within: Duration) -> bool {
    let mut last = LAST.get().0.lock();
    let now = Instant::now();
    if let Some(look) = last.as_ref().filter(|look| now - look.at < within / 2) {
        return look.verdict;
    }
    let Some(waited) = waited() else { return false };
    let verdict = last
        .as_ref()
        .is_some_and(|look| waited.saturating_sub(look.waited) >= (now - look.at).max(within) / 4);
    *last = Some(Look { at: now, waited, verdict });
    verdict
}

/// Time for which the threads of this process, those that live, have waited for a processor so far. A thread
/// that ends during the look is left out. `None` without `/proc`.
fn waited() -> Option<Duration> {
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten().take(MOST_THREADS);
    let of = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    };
    Some(threads.filter_map(of).sum())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    /// Three threads that never sleep share one processor, so that two of them wait at any time.
    #[test]
    fn threads_that_share_a_processor_wait_for_it() {
        const WITHIN: Duration = Duration::from_millis(20);
        if !fs::exists("/proc/self/schedstat").unwrap() {
            println!("skipped: /proc/self/task has no schedstat here");
            return;
        }
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap();
        let mut one = CpuSet::new();
        one.set(first).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let begin = Instant::now();
            let mut found = false;
            while !found && begin.elapsed() < Duration::from_secs(60) {
                thread::sleep(WITHIN);
                found = was_starved(WITHIN);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(found, "the threads waited for {:?}", waited());
        });
    }
}
