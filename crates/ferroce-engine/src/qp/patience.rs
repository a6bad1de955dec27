//! Whether the peer goes on without an acknowledgement.
//!
//! In a ping-pong each answer tells the peer that its message arrived; the acknowledgement only ends its work request.
//! If nobody waits for that, one acknowledgement for several messages will do (IBTA 9.7.5.1.2), and each one left out
//! saves a segment at both ends. But a peer that asked for a completion may wait for it before it goes on. So it is
//! tried: an answer leaves alone, and if the next request comes while the acknowledgement is held back, the peer does
//! not wait. If time runs out first, it may have waited, or it was not given the CPU: the next try comes after twice as
//! many answers, and each request that came in time halves that.
//!
//! Programs that sleep get each acknowledgement with its answer, before it. There the microsecond does not count, and
//! the peer, which is likely to be such a program too, may count on the order: `ib_send_lat -e` has one channel for both
//! queues and takes the first event for that of its own message; if the answer's comes first, it waits for ever.

use std::time::Duration;

/// An acknowledgement is held back for so long while the program polls: a few half round trips within a host.
pub(super) const HOLD: Duration = Duration::from_micros(20);

/// Acknowledgements held back in a row; the next one goes with its answer.
const HELD_IN_A_ROW: u8 = 7;
/// Answers with their acknowledgement before a try: at first, at least, and at most.
const FIRST_TRY: u16 = 32;
const SOONEST_TRY: u16 = 2;
const LAST_TRY: u16 = 1024;

/// What is known of one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    state: State,
    /// Answers before the next try.
    wait: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Acknowledgements go with their answers; so many until one is tried.
    With { left: u16 },
    /// The peer went on without, or is being tried; so many are held back.
    Without { held: u8 },
}

impl Patience {
    pub(super) const fn new() -> Self {
        Self { state: State::With { left: FIRST_TRY }, wait: FIRST_TRY }
    }

    /// A request came that the program will answer. Whether its acknowledgement shall stay behind when the answer
    /// leaves. `holding`: an earlier one did, and waits still.
    pub(super) fn holds(&mut self, holding: bool) -> bool {
        if holding {
            self.wait = (self.wait / 2).max(SOONEST_TRY);
        }
        let (next, holds) = match self.state {
            State::With { left: 0 } => (State::Without { held: 1 }, true),
            State::With { left } => (State::With { left: left - 1 }, false),
            State::Without { held } if held >= HELD_IN_A_ROW => (State::Without { held: 0 }, false),
            State::Without { held } => (State::Without { held: held + 1 }, true),
        };
        self.state = next;
        holds
    }

    /// Nothing came for as long as an acknowledgement was held back: the peer may wait for it.
    pub(super) fn ran_out(&mut self) {
        self.wait = (self.wait * 2).min(LAST_TRY);
        self.state = State::With { left: self.wait };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers until one leaves without its acknowledgement.
    fn until_try(patience: &mut Patience) -> u16 {
        (0..).find(|_| patience.holds(false)).unwrap()
    }

    #[test]
    fn a_peer_that_goes_on_gets_one_for_eight() {
        let mut patience = Patience::new();
        assert_eq!(until_try(&mut patience), FIRST_TRY);
        for _ in 0..10 {
            // The first of the seven is the one before.
            assert!((1..HELD_IN_A_ROW).all(|_| patience.holds(true)));
            assert!(!patience.holds(true), "the eighth goes with its answer");
            assert!(patience.holds(false));
        }
    }

    #[test]
    fn a_peer_that_waits_is_tried_ever_less() {
        let mut patience = Patience::new();
        until_try(&mut patience);
        let mut wait = FIRST_TRY;
        while wait < LAST_TRY {
            patience.ran_out();
            wait *= 2;
            assert_eq!(until_try(&mut patience), wait);
        }
        patience.ran_out();
        assert_eq!(until_try(&mut patience), LAST_TRY);
        // It went on once: this failure is as good as the one before.
        assert!(patience.holds(true));
        patience.ran_out();
        assert_eq!(until_try(&mut patience), LAST_TRY);
    }

    #[test]
    fn who_went_on_often_may_be_late_once() {
        let mut patience = Patience::new();
        until_try(&mut patience);
        assert!((0..5).all(|_| patience.holds(true)));
        patience.ran_out();
        assert_eq!(until_try(&mut patience), 2 * SOONEST_TRY);
    }
}
