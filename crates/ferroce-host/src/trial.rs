//! Whether something is worth it that is so for some programs only.

/// Occasions left out after one in vain, at most.
const LONGEST_PAUSE: u32 = 64;

/// Counts how often something was in vain. It is tried at each occasion while it succeeds; each failure in a
/// row doubles the number of occasions that are left out.
#[derive(Default, Debug)]
pub struct Trial {
    /// Occasions until the next one.
    pause: u32,
    /// The pause after the next one in vain.
    next_pause: u32,
}

impl Trial {
    /// Whether to try it at this occasion; [`Self::ended`] follows then.
    pub fn is_worth_it(&mut self) -> bool {
        let worth = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        worth
    }

    /// Notes whether the try succeeded.
    pub fn ended(&mut self, succeeded: bool) {
        self.pause = if succeeded { 0 } else { self.next_pause };
        self.next_pause = if succeeded { 1 } else { (self.next_pause * 2).clamp(1, LONGEST_PAUSE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_ever_less_until_it_succeeds() {
        let mut trial = Trial::default();
        let mut left_out = |succeeds| {
            let count = (0..).find(|_| trial.is_worth_it()).unwrap();
            trial.ended(succeeds);
            count
        };
        assert_eq!([false; 9].map(&mut left_out), [0, 0, 1, 2, 4, 8, 16, 32, 64]);
        assert_eq!([false, true, true, true, false, false].map(&mut left_out), [64, 64, 0, 0, 0, 1]);
    }
}
