//! Whether the thread that takes a lane's events should be woken by its packets.
//!
//! A program that waits by its own epoll learns of a packet in two steps: the background thread receives the
//! packet and reports an event, which then wakes the program. If one thread takes every event soon after its
//! packet, the lane's socket joins the epoll set behind the channel's descriptor. The packet then wakes that
//! thread, which receives it in `ibv_get_cq_event`.
//!
//! At most one channel has a lane's socket. Wake-ups without an event end this, and the next try comes after
//! twice as many events.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Batches between two events of one thread: the message, and an acknowledgement apart from it.
const BATCHES_PER_EVENT: u64 = 2;
/// Events in a row before the first try, and at most.
const FIRST_TRY: u32 = 16;
const LAST_TRY: u32 = 1 << 16;
/// Wake-ups in vain that end a try, if no events came in between.
const IN_VAIN: u32 = 64;
/// Packets in a row that waited for a tick: after that the background thread no longer leaves them to the
/// program.
const LATE: u32 = 3;

/// The knowledge about the thread that takes the events. It is a guess; a wrong one costs time alone.
pub(crate) struct Follow {
    /// Batches that the lane received.
    batches: AtomicU64,
    /// The thread that took the last event, and the number of batches at that time.
    thread: AtomicU64,
    seen: AtomicU64,
    /// Events in a row that this thread took soon.
    prompt: AtomicU32,
    /// The number of such events that is needed.
    needed: AtomicU32,
    /// Wake-ups in vain, less the events since.
    in_vain: AtomicU32,
    /// Times in a row that a packet waited for the thread in vain.
    late: AtomicU32,
    /// A channel has the socket.
    attached: AtomicBool,
}

impl Follow {
    pub(super) const fn new() -> Self {
        Self {
            batches: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            prompt: AtomicU32::new(0),
            needed: AtomicU32::new(FIRST_TRY),
            in_vain: AtomicU32::new(0),
            late: AtomicU32::new(0),
            attached: AtomicBool::new(false),
        }
    }

    /// The holder of the lane received a batch.
    pub(super) fn received(&self) {
        self.batches.store(self.batches.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// `thread` took an event. Whether a channel of that thread should have the socket now.
    pub(crate) fn took(&self, thread: u64) -> bool {
        let batches = self.batches.load(Ordering::Relaxed);
        let passed = batches.wrapping_sub(self.seen.swap(batches, Ordering::Relaxed));
        let same = self.thread.swap(thread, Ordering::Relaxed) == thread;
        self.late.store(0, Ordering::Relaxed);
        if self.is_attached() {
            let in_vain = self.in_vain.load(Ordering::Relaxed);
            self.in_vain.store(in_vain.saturating_sub(1), Ordering::Relaxed);
            return false;
        }
        if !same || passed > BATCHES_PER_EVENT {
            self.prompt.store(0, Ordering::Relaxed);
            return false;
        }
        let prompt = self.prompt.load(Ordering::Relaxed) + 1;
        let enough = prompt >= self.needed.load(Ordering::Relaxed);
        self.prompt.store(if enough { 0 } else { prompt }, Ordering::Relaxed);
        enough
    }

    /// A channel takes the socket. `false`: another one has it.
    pub(crate) fn attach(&self) -> bool {
        let first = !self.attached.swap(true, Ordering::Relaxed);
        if first {
            self.in_vain.store(0, Ordering::Relaxed);
            self.late.store(0, Ordering::Relaxed);
        }
        first
    }

    /// The channel that had the socket gave it up.
    pub(crate) fn detach(&self) {
        self.attached.store(false, Ordering::Relaxed);
    }

    /// Whether a channel has the socket.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed)
    }

    /// The background thread received a packet that had waited for the thread for a whole tick. Whether it
    /// should leave packets to that thread all the same.
    pub(crate) fn was_late(&self) -> bool {
        let late = self.late.load(Ordering::Relaxed).saturating_add(1);
        self.late.store(late, Ordering::Relaxed);
        self.is_attached() && !self.is_unwanted()
    }

    /// The thread was late so often that its channel should give the socket up.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.late.load(Ordering::Relaxed) > LATE
    }

    /// A packet woke the thread and led to no event of its channel. Whether the channel shall give the socket
    /// up.
    pub(crate) fn woke_in_vain(&self) -> bool {
        let in_vain = self.in_vain.load(Ordering::Relaxed) + 1;
        self.in_vain.store(in_vain, Ordering::Relaxed);
        in_vain >= IN_VAIN
    }

    /// The channel gives the socket up because it was no good there: the next try comes after twice as many
    /// events.
    pub(crate) fn back_off(&self) {
        let needed = self.needed.load(Ordering::Relaxed);
        self.needed.store((needed * 2).min(LAST_TRY), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = 1;
    const OTHER: u64 = 2;

    fn message(follow: &Follow, thread: u64, batches: u64) -> bool {
        (0..batches).for_each(|_| follow.received());
        follow.took(thread)
    }

    /// Messages until the socket should move.
    fn until_try(follow: &Follow) -> u32 {
        (1..).find(|_| message(follow, ONE, 1)).unwrap()
    }

    #[test]
    fn one_thread_that_takes_each_event_soon() {
        let follow = Follow::new();
        message(&follow, ONE, 1);
        assert_eq!(until_try(&follow), FIRST_TRY);
        assert!(follow.attach() && !follow.attach());
        assert!(!message(&follow, ONE, 1), "it has the socket");
    }

    #[test]
    fn packets_of_others_and_other_threads_count_against_it() {
        let follow = Follow::new();
        assert!((0..1000).all(|_| !message(&follow, ONE, 3)), "a stream of writes, say");
        assert!((0..1000).all(|n| !message(&follow, if n % 2 == 0 { ONE } else { OTHER }, 1)));
    }

    #[test]
    fn wake_ups_in_vain_end_it_for_longer_each_time() {
        let follow = Follow::new();
        message(&follow, ONE, 1);
        let mut needed = FIRST_TRY;
        for _ in 0..3 {
            assert_eq!(until_try(&follow), needed);
            assert!(follow.attach());
            assert!((1..IN_VAIN).all(|_| !follow.woke_in_vain()));
            assert!(follow.woke_in_vain());
            follow.back_off();
            follow.detach();
            needed *= 2;
        }
    }

    #[test]
    fn a_thread_that_comes_too_late_loses_it() {
        let follow = Follow::new();
        assert!(follow.attach());
        assert!((0..10).all(|_| follow.was_late() && !message(&follow, ONE, 1)));
        assert!(follow.was_late() && follow.was_late() && follow.was_late() && !follow.was_late());
        assert!(follow.is_unwanted());
        follow.detach();
        assert!(!follow.was_late());
    }

    #[test]
    fn as_many_events_as_wake_ups_in_vain_go_on() {
        let follow = Follow::new();
        assert!(follow.attach());
        for _ in 0..1000 {
            assert!(!follow.woke_in_vain());
            message(&follow, ONE, 1);
        }
    }
}
