//! The delayed acknowledgement: whether that of one message waits, for what, and for how long.
//!
//! A thread of the program that receives a single message inside a verb most likely answers it. Then the
//! acknowledgement leaves with the answer. The lane sends it when the program comes back without an answer,
//! or after a millisecond.
//!
//! [`PeerRecord`] decides whether it stays behind the answer too. In a ping-pong each answer tells the peer
//! that its message arrived; the acknowledgement only ends its work request. If the peer does not wait for
//! that, one acknowledgement for several messages will do (IBTA 9.7.5.1.2), and each one left out saves a
//! segment at both ends. But a peer that asked for a completion may wait for it before it goes on. So it is
//! tried: an answer leaves alone, and if the next request comes while the acknowledgement is held back, the
//! peer does not wait. If time runs out first, it may have waited, or it was not given the CPU: the next try
//! comes after twice as many answers, and each request that came in time halves that. Programs that sleep get
//! each acknowledgement with its answer, before it. There the microsecond does not count, and the peer, which
//! is likely to be such a program too, may count on the order: `ib_send_lat -e` has one channel for both
//! queues and takes the first event for that of its own message; if the answer's comes first, it waits for
//! ever.
//!
//! [`ProgramRecord`] decides for a program that sleeps. On a card the acknowledgement leaves before the
//! program wakes up, and programs count on that: gloo ends its buffers once its neighbour's message came, and
//! aborts if its own sends are not acknowledged by then. So only a program that was seen to answer each
//! message within microseconds gets the acknowledgement delayed.
//!
//! The record also decides for a program that polls a pipe, where a packet takes no system call while the
//! peer is awake. If eight acknowledgements left alone since the program posted anything, it only receives:
//! then the acknowledgement leaves with the batch that brought its message, behind the completion, which
//! spares the wait and a second visit of the queue pair. The next post ends that.
//!
//! The record decides for a program that waits by its own epoll, too. An acknowledgement that leaves alone
//! costs a system call here, and it wakes the peer before the answer does. But a program that polls its queue
//! until the queue is empty looks as if it had nothing to send. So the acknowledgement waits through that
//! look once the program was seen to answer each message within microseconds. If no answer comes, the
//! acknowledgement is up to a tick late; then the program must answer twice as many messages in a row before
//! the next one waits.

use std::time::Duration;

use ferroce_wire::Instant;

/// An acknowledgement is held back this long while the program polls: a few half round trips within a host.
const HOLD: Duration = Duration::from_micros(20);
/// Acknowledgements held back in a row; the next one goes with its answer.
const HELD_IN_A_ROW: u8 = 7;
/// Answers with their acknowledgement before a try: at first, at least, and at most.
const FIRST_TRY: u16 = 32;
const SOONEST_TRY: u16 = 2;
const LAST_TRY: u16 = 1024;

/// An acknowledgement waits this long while a program that waits by epoll looks at its queues.
const WAIT: Duration = Duration::from_micros(100);
/// A request that is posted within this time after the acknowledgement is an answer.
const SOON: Duration = Duration::from_micros(100);
/// Answers in a row before an acknowledgement waits: at first, and at most.
const FIRST: u16 = 8;
const LAST: u16 = 4096;

/// Acknowledgements that left alone without a post between them, after which the program counts as one that
/// only receives.
const UNANSWERED: u8 = 8;

/// The state of one queue pair's acknowledgement.
pub struct DelayedAck {
    pending: bool,
    peer: PeerRecord,
    program: ProgramRecord,
}

/// How an acknowledgement is delayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckDelay {
    /// The acknowledgement does not leave with the program's answer: the peer goes on without it.
    pub held: bool,
    /// Time until which the acknowledgement waits, even if the program comes back without an answer.
    pub until: Instant,
}

impl Default for DelayedAck {
    fn default() -> Self {
        Self::new()
    }
}

impl DelayedAck {
    /// The state of a new queue pair.
    pub const fn new() -> Self {
        Self { pending: false, peer: PeerRecord::new(), program: ProgramRecord::new() }
    }

    /// Whether an acknowledgement waits for something to leave with.
    pub const fn is_pending(&self) -> bool {
        self.pending
    }

    /// See [`Self::is_pending`].
    pub const fn set_pending(&mut self, pending: bool) {
        self.pending = pending;
    }

    /// Whether one waited; the caller sends it.
    pub const fn take_pending(&mut self) -> bool {
        std::mem::replace(&mut self.pending, false)
    }

    /// An acknowledgement is delayed now. `holding`: an earlier one waits behind its answer. `sleeps`: the
    /// program asks for events of its completions. `by_epoll`: packets wake it through its own epoll.
    pub fn delay(&mut self, now: Instant, holding: bool, sleeps: bool, by_epoll: bool) -> AckDelay {
        let held = !sleeps && self.peer.holds(holding);
        let until = match held {
            true => now + HOLD,
            false if by_epoll && self.program.answers() => now + WAIT,
            false => Instant::ZERO,
        };
        AckDelay { held, until }
    }

    /// A message came for a program that sleeps. Whether its acknowledgement leaves at once, before the
    /// program wakes up.
    pub fn leaves_before_wake_up(&mut self, now: Instant) -> bool {
        let at_once = !self.pending && !self.program.answers();
        if at_once {
            self.program.left_alone(now);
        }
        at_once
    }

    /// A message came by a pipe for a program that polls. Whether its acknowledgement leaves at once, because
    /// the program did not answer the last [`UNANSWERED`] messages.
    pub fn leaves_with_batch(&mut self, now: Instant) -> bool {
        let at_once = !self.pending && self.program.unanswered >= UNANSWERED;
        if at_once {
            self.program.left_alone(now);
        }
        at_once
    }

    /// Nothing came for it to leave with, so it leaves alone. `held`: it had stayed behind an answer.
    pub fn waited_in_vain(&mut self, now: Instant, held: bool) {
        self.program.left_alone(now);
        if held {
            self.peer.ran_out();
        }
    }

    /// The program posts send requests, so it does not only receive.
    pub const fn posts(&mut self) {
        self.program.unanswered = 0;
    }

    /// Notes that requests of the program leave.
    pub fn posted(&mut self, now: Instant) {
        self.program.posted(now, self.pending);
    }
}

/// Whether the peer goes on without an acknowledgement, as far as was seen.
#[derive(Clone, Copy, Debug)]
struct PeerRecord {
    state: DelayState,
    /// Answers before the next try.
    wait: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DelayState {
    /// Acknowledgements go with their answers; one is tried after this many.
    With { left: u16 },
    /// The peer went on without, or is being tried; this many are held back.
    Without { held: u8 },
}

impl PeerRecord {
    const fn new() -> Self {
        Self { state: DelayState::With { left: FIRST_TRY }, wait: FIRST_TRY }
    }

    /// A request came that the program will answer. Whether its acknowledgement shall stay behind when the
    /// answer leaves. `holding`: an earlier one did, and waits still.
    fn holds(&mut self, holding: bool) -> bool {
        if holding {
            self.wait = (self.wait / 2).max(SOONEST_TRY);
        }
        let (next, holds) = match self.state {
            DelayState::With { left: 0 } => (DelayState::Without { held: 1 }, true),
            DelayState::With { left } => (DelayState::With { left: left - 1 }, false),
            DelayState::Without { held } if held >= HELD_IN_A_ROW => (DelayState::Without { held: 0 }, false),
            DelayState::Without { held } => (DelayState::Without { held: held + 1 }, true),
        };
        self.state = next;
        holds
    }

    /// Nothing came for as long as an acknowledgement was held back: the peer may wait for it.
    fn ran_out(&mut self) {
        self.wait = (self.wait * 2).min(LAST_TRY);
        self.state = DelayState::With { left: self.wait };
    }
}

/// Whether the program answers what it receives, as far as was seen.
#[derive(Clone, Copy, Debug)]
struct ProgramRecord {
    in_a_row: u16,
    needed: u16,
    /// Acknowledgements that left alone since the program posted send requests.
    unanswered: u8,
    /// Time at which the last acknowledgement left alone, if no answer followed it so far.
    alone: Option<Instant>,
}

impl ProgramRecord {
    const fn new() -> Self {
        Self { in_a_row: 0, needed: FIRST, unanswered: 0, alone: None }
    }

    /// Whether the next message will be answered, as it seems.
    fn answers(&self) -> bool {
        self.in_a_row >= self.needed
    }

    /// The program posted requests. `waits`: an acknowledgement waits and leaves with them.
    fn posted(&mut self, now: Instant, waits: bool) {
        let alone = self.alone.take();
        if waits || alone.is_some_and(|at| now.saturating_since(at) <= SOON) {
            self.in_a_row = (self.in_a_row + 1).min(LAST);
        } else if alone.is_some() {
            self.in_a_row = 0;
        }
    }

    /// An acknowledgement left alone.
    fn left_alone(&mut self, now: Instant) {
        if self.answers() {
            self.needed = (self.needed * 2).min(LAST);
            self.in_a_row = 0;
        } else if self.alone.is_some() {
            self.in_a_row = 0;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.alone = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_only_receives_has_its_acknowledgements_leave_at_once_until_it_posts() {
        let mut ack = DelayedAck::new();
        let mut now = Instant::from_nanos(1);
        for _ in 0..UNANSWERED {
            assert!(!ack.leaves_with_batch(now));
            ack.waited_in_vain(now, false);
            now += SOON;
        }
        assert!(ack.leaves_with_batch(now) && ack.leaves_with_batch(now));
        ack.posts();
        assert!(!ack.leaves_with_batch(now), "the next one waits for an answer");
    }

    /// Answers until one leaves without its acknowledgement.
    fn until_try(peer: &mut PeerRecord) -> u16 {
        (0..).find(|_| peer.holds(false)).unwrap()
    }

    #[test]
    fn a_peer_that_goes_on_gets_one_for_eight() {
        let mut peer = PeerRecord::new();
        assert_eq!(until_try(&mut peer), FIRST_TRY);
        for _ in 0..10 {
            // The first of the seven is the one before.
            assert!((1..HELD_IN_A_ROW).all(|_| peer.holds(true)));
            assert!(!peer.holds(true), "the eighth goes with its answer");
            assert!(peer.holds(false));
        }
    }

    #[test]
    fn a_peer_that_waits_is_tried_ever_less() {
        let mut peer = PeerRecord::new();
        until_try(&mut peer);
        let mut wait = FIRST_TRY;
        while wait < LAST_TRY {
            peer.ran_out();
            wait *= 2;
            assert_eq!(until_try(&mut peer), wait);
        }
        peer.ran_out();
        assert_eq!(until_try(&mut peer), LAST_TRY);
        // The peer went on only once: the wait does not become shorter.
        assert!(peer.holds(true));
        peer.ran_out();
        assert_eq!(until_try(&mut peer), LAST_TRY);
    }

    #[test]
    fn who_went_on_often_may_be_late_once() {
        let mut peer = PeerRecord::new();
        until_try(&mut peer);
        assert!((0..5).all(|_| peer.holds(true)));
        peer.ran_out();
        assert_eq!(until_try(&mut peer), 2 * SOONEST_TRY);
    }

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Messages whose acknowledgement left alone, each with its answer soon after, until the next one may
    /// wait.
    fn until_expected(program: &mut ProgramRecord) -> u16 {
        (1..)
            .find(|_| {
                program.left_alone(at(10));
                program.posted(at(20), false);
                program.answers()
            })
            .unwrap()
    }

    #[test]
    fn answers_in_a_row_are_expected_to_go_on() {
        let mut program = ProgramRecord::new();
        assert_eq!(until_expected(&mut program), FIRST);
        for _ in 0..3 * u32::from(LAST) {
            program.posted(at(30), true);
            assert!(program.answers());
        }
    }

    #[test]
    fn only_a_program_that_answers_has_its_acknowledgement_delayed_while_it_sleeps() {
        let mut ack = DelayedAck::new();
        for _ in 0..FIRST {
            assert!(ack.leaves_before_wake_up(at(10)));
            ack.posted(at(20));
        }
        assert!(!ack.leaves_before_wake_up(at(30)), "its answer is about to leave");
        ack.waited_in_vain(at(40), false);
        for message in 0..100 {
            assert!(ack.leaves_before_wake_up(at(50 + message)), "it stopped to answer");
        }
    }

    #[test]
    fn a_missing_answer_doubles_what_is_needed() {
        let mut program = ProgramRecord::new();
        let mut needed = FIRST;
        while needed < LAST {
            assert_eq!(until_expected(&mut program), needed);
            program.left_alone(at(1000));
            assert!(!program.answers());
            needed *= 2;
            program.posted(at(1010), false);
            program.in_a_row = 0;
        }
        assert_eq!(until_expected(&mut program), LAST);
        program.left_alone(at(1000));
        program.posted(at(1010), false);
        program.in_a_row = 0;
        assert_eq!(until_expected(&mut program), LAST);
    }

    #[test]
    fn requests_that_answer_nothing_do_not_count() {
        let mut program = ProgramRecord::new();
        for _ in 0..100 {
            // A message each millisecond, a request of its own each millisecond.
            program.left_alone(at(0));
            program.posted(at(500), false);
            program.posted(at(501), false);
            assert!(!program.answers());
        }
        for _ in 0..100 {
            // Two messages for each request.
            program.left_alone(at(0));
            program.left_alone(at(10));
            program.posted(at(11), false);
            assert!(!program.answers());
        }
    }
}
