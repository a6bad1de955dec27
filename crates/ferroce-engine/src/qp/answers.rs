//! Whether a program that waits by its own epoll answers what it receives.
//!
//! An acknowledgement that leaves alone costs a system call here, and it wakes the peer before the answer does. But a program that
//! polls its queue until the queue is empty looks as if it had nothing to send. So the acknowledgement waits through that look once
//! the program was seen to answer each message within microseconds. If no answer comes, the acknowledgement is up to a tick late;
//! then the program must answer twice as many messages in a row before the next one waits.

use std::time::Duration;

use ferroce_wire::Instant;

/// An acknowledgement waits for so long while the program looks at its queues.
pub(super) const WAIT: Duration = Duration::from_micros(100);

/// A request that is posted so soon after the acknowledgement is an answer.
const SOON: Duration = Duration::from_micros(100);
/// Answers in a row before an acknowledgement waits: at first, and at most.
const FIRST: u16 = 8;
const LAST: u16 = 4096;

/// The record of one queue pair's answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    in_a_row: u16,
    needed: u16,
    /// When an acknowledgement left alone that an answer may have followed.
    alone: Option<Instant>,
}

impl Answers {
    pub(super) const fn new() -> Self {
        Self { in_a_row: 0, needed: FIRST, alone: None }
    }

    /// Whether the next message will be answered, as it seems.
    pub(super) fn is_expected(&self) -> bool {
        self.in_a_row >= self.needed
    }

    /// The program posted requests. `waits`: an acknowledgement waits and leaves with them.
    pub(super) fn posted(&mut self, now: Instant, waits: bool) {
        let alone = self.alone.take();
        if waits || alone.is_some_and(|at| now.saturating_since(at) <= SOON) {
            self.in_a_row = (self.in_a_row + 1).min(LAST);
        } else if alone.is_some() {
            self.in_a_row = 0;
        }
    }

    /// An acknowledgement left alone.
    pub(super) fn left_alone(&mut self, now: Instant) {
        if self.is_expected() {
            self.needed = (self.needed * 2).min(LAST);
            self.in_a_row = 0;
        } else if self.alone.is_some() {
            self.in_a_row = 0;
        }
        self.alone = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Messages whose acknowledgement left alone, each with its answer soon after, until the next one may wait.
    fn until_expected(answers: &mut Answers) -> u16 {
        (1..)
            .find(|_| {
                answers.left_alone(at(10));
                answers.posted(at(20), false);
                answers.is_expected()
            })
            .unwrap()
    }

    #[test]
    fn answers_in_a_row_are_expected_to_go_on() {
        let mut answers = Answers::new();
        assert_eq!(until_expected(&mut answers), FIRST);
        for _ in 0..3 * u32::from(LAST) {
            answers.posted(at(30), true);
            assert!(answers.is_expected());
        }
    }

    #[test]
    fn a_missing_answer_doubles_what_is_needed() {
        let mut answers = Answers::new();
        let mut needed = FIRST;
        while needed < LAST {
            assert_eq!(until_expected(&mut answers), needed);
            answers.left_alone(at(1000));
            assert!(!answers.is_expected());
            needed *= 2;
            answers.posted(at(1010), false);
            answers.in_a_row = 0;
        }
        assert_eq!(until_expected(&mut answers), LAST);
        answers.left_alone(at(1000));
        answers.posted(at(1010), false);
        answers.in_a_row = 0;
        assert_eq!(until_expected(&mut answers), LAST);
    }

    #[test]
    fn requests_that_answer_nothing_do_not_count() {
        let mut answers = Answers::new();
        for _ in 0..100 {
            // A message each millisecond, a request of its own each millisecond.
            answers.left_alone(at(0));
            answers.posted(at(500), false);
            answers.posted(at(501), false);
            assert!(!answers.is_expected());
        }
        for _ in 0..100 {
            // Two messages for each request.
            answers.left_alone(at(0));
            answers.left_alone(at(10));
            answers.posted(at(11), false);
            assert!(!answers.is_expected());
        }
    }
}
