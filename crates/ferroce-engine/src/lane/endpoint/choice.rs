//! Direct copies or packets, for a stream of requests to a program of this host that could be copied.
//!
//! A copy costs a system call for some requests together, and the kernel takes time for each of them. Packets
//! cost the target's time too, and none of the kernel's while both programs are awake. Which is faster
//! depends on processor, kernel and length: of two machines, copies of 8 octets were faster on one by a
//! factor of 1.8, and slower on the other by 2.1. So it is measured: a stream sends some requests the other
//! way now and then, and stays there if that is faster by a fifth. After each try in vain, the next one waits
//! twice as long.
//!
//! A request that does not come in a stream is always copied: nobody has to wake up for it.

use std::time::Duration;

use ferroce_wire::Instant;

/// Requests of a measurement.
const WINDOW: u64 = 128;
/// Measurements of a try, the best of which counts: memory may be touched for the first time, and the other
/// program has to wake up.
const TRY: u32 = 3;
/// A measurement of a try that takes longer was in vain.
const LONGEST_TRY: Duration = Duration::from_millis(5);
/// Measurements before the first try of the other way, and at most.
const FIRST_WAIT: u32 = 4;
const LONGEST_WAIT: u32 = 1024;
/// Requests before one, posted in quick succession or waiting with it, that make a stream.
pub(super) const STREAM: u64 = 2;
/// Longer requests are always copied: a datagram's worth of packets costs two copies of the data.
const LONGEST: u32 = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Copies,
    Packets,
}

impl Way {
    const fn other(self) -> Self {
        match self {
            Self::Copies => Self::Packets,
            Self::Packets => Self::Copies,
        }
    }
}

/// The knowledge about the two ways, for requests of one order of length.
pub(super) struct Choice {
    /// The faster way, as far as is known, and the one in use, which is tried if it is not that one.
    best: Way,
    now: Way,
    /// The shortest time that [`WINDOW`] requests took on the faster way, of late.
    time: Option<Duration>,
    /// Measurements until the next try, and between tries.
    left: u32,
    wait: u32,
    /// Measurements of the present try, and the shortest time of them.
    tried: u32,
    trial: Duration,
    /// Requests that had been completed when the measurement began, and its time; `None` before the first.
    begun: Option<(u64, Instant)>,
    /// The order of the length: the number of its bits.
    order: u32,
}

impl Choice {
    const fn new(order: u32) -> Self {
        let (best, wait) = (Way::Copies, FIRST_WAIT);
        let (left, tried, trial) = (wait, 0, Duration::MAX);
        Self { best, now: best, time: None, left, wait, tried, trial, begun: None, order }
    }

    /// Whether requests leave by packets now. `streams`: they come in a stream, see [`STREAM`]; `idle`:
    /// nothing is under way.
    pub(super) fn sends(
        &mut self,
        streams: bool,
        idle: bool,
        length: u32,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        if self.now != self.best && self.begun.is_some_and(|(_, begun)| now() > begun + LONGEST_TRY) {
            // The other program is stopped, or has no processor.
            self.wait = LONGEST_WAIT;
            self.end_try();
        }
        let order = length.checked_ilog2().unwrap_or(0);
        if idle && order != self.order {
            *self = Self::new(order);
        }
        self.now == Way::Packets && length <= LONGEST && (streams || !idle)
    }

    /// Notes the number of requests that are completed. Ends the measurement if they are enough.
    #[inline]
    pub(super) fn completed(&mut self, done: u64, now: impl FnOnce() -> Instant) {
        if self.begun.is_none_or(|(before, _)| done.wrapping_sub(before) >= WINDOW) {
            self.measured(done, now());
        }
    }

    #[cold]
    fn measured(&mut self, done: u64, now: Instant) {
        let Some((before, begun)) = self.begun.replace((done, now)) else { return };
        let requests = done.wrapping_sub(before).max(1);
        // A list of requests may end far behind the window.
        let time = now.saturating_since(begun).mul_f64(WINDOW as f64 / requests as f64);
        if self.now != self.best {
            self.tried += 1;
            self.trial = self.trial.min(time);
            let faster = self.time.is_some_and(|known| self.trial * 5 < known * 4);
            if faster {
                (self.best, self.time, self.wait) = (self.now, Some(self.trial), FIRST_WAIT);
            } else if self.tried < TRY {
                return;
            } else {
                self.wait = (2 * self.wait).min(LONGEST_WAIT);
            }
            self.end_try();
            return;
        }
        // A pause of the program is no property of the way; an old time is forgotten bit by bit.
        self.time = Some(self.time.map_or(time, |known| (known + known / 16).min(time)));
        self.left -= 1;
        if self.left == 0 {
            self.now = self.best.other();
        }
    }

    /// Goes the way that is faster as far as is known.
    const fn end_try(&mut self) {
        (self.now, self.left) = (self.best, self.wait);
        (self.tried, self.trial) = (0, Duration::MAX);
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of requests, and the nanoseconds that each takes by copies and by packets.
    struct Stream {
        choice: Choice,
        now: Instant,
        done: u64,
        costs: [u64; 2],
    }

    impl Stream {
        fn new(costs: [u64; 2]) -> Self {
            Self { choice: Choice::default(), now: Instant::from_nanos(1), done: 0, costs }
        }

        /// Completes some requests; how many of them left by packets.
        fn run(&mut self, requests: u64, length: u32) -> u64 {
            let mut packets = 0;
            for _ in 0..requests {
                let sends = self.choice.sends(true, true, length, || self.now);
                packets += u64::from(sends);
                self.now += Duration::from_nanos(self.costs[usize::from(sends)]);
                self.done += 1;
                self.choice.completed(self.done, || self.now);
            }
            packets
        }
    }

    #[test]
    fn a_stream_goes_the_faster_way() {
        let mut stream = Stream::new([500, 300]);
        stream.run(20 * WINDOW, 8);
        let most = stream.run(1000 * WINDOW, 8);
        assert!(most > 970 * WINDOW, "{most}");
        // The other program lost its processor.
        stream.costs = [500, 50_000];
        stream.run(100 * WINDOW, 8);
        let few = stream.run(1000 * WINDOW, 8);
        assert!(few < 30 * WINDOW, "{few}");
    }

    #[test]
    fn a_try_without_an_answer_ends() {
        let mut stream = Stream::new([500, 300]);
        while stream.run(1, 8) == 0 {}
        assert!(stream.choice.sends(false, false, 8, || stream.now));
        let later = stream.now + 2 * LONGEST_TRY;
        assert!(!stream.choice.sends(false, false, 8, || later));
        assert_eq!(stream.run(100 * WINDOW, 8), 0, "no other try for long");
    }

    #[test]
    fn what_is_hardly_faster_is_tried_ever_less() {
        let mut stream = Stream::new([300, 270]);
        let tries = [100, 1000, 10_000].map(|windows| stream.run(windows * WINDOW, 8) / WINDOW);
        assert!(tries[0] <= 15 && tries[1] <= 12 && tries[2] <= 33, "{tries:?}");
    }

    #[test]
    fn single_and_long_requests_are_copied() {
        let mut stream = Stream::new([500, 300]);
        stream.run(20 * WINDOW, 8);
        let (choice, now) = (&mut stream.choice, stream.now);
        let ways = [(false, true), (true, true), (false, false)];
        assert_eq!(ways.map(|(streams, idle)| choice.sends(streams, idle, 8, || now)), [false, true, true]);
        assert!(!choice.sends(true, true, 4096, || now), "nothing is known of that length");
        assert_eq!(stream.run(100 * WINDOW, LONGEST + 1), 0);
    }
}
