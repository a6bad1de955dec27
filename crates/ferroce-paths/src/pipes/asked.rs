//! The question of a batch for an ACK word, and its answer.

use std::cell::Cell;

use super::PeerPipe;

/// The question for an ACK word that the sender of a batch asks. Each question gets an answer: when the batch
/// is done at the latest, that there is no such word.
pub struct Asked<'a> {
    pipe: Option<&'a PeerPipe>,
    takes_word: bool,
    answered: Cell<bool>,
}

impl<'a> Asked<'a> {
    /// The question of a batch out of this pipe, if it `asks` one.
    #[inline]
    pub fn by(pipe: &'a PeerPipe, asks: bool) -> Self {
        // A program that sleeps is better woken by an answer, with which a packet can leave.
        let takes_word = asks && pipe.pipe.is_awake();
        Self { pipe: asks.then_some(pipe), takes_word, answered: Cell::new(!asks) }
    }

    /// No question.
    #[inline]
    pub const fn nothing() -> Self {
        Self { pipe: None, takes_word: false, answered: Cell::new(true) }
    }

    /// Whether the ACK of the batch may be a word.
    #[inline]
    pub fn takes_word(&self) -> bool {
        self.takes_word && !self.answered.get()
    }

    /// The batch was taken whole: tells the sender.
    #[inline]
    pub fn acknowledge(&self) {
        self.answer(true);
    }

    #[inline]
    fn answer(&self, taken: bool) {
        if let Some(pipe) = self.pipe.filter(|_| !self.answered.replace(true)) {
            pipe.answer(taken);
        }
    }
}

impl Drop for Asked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.answer(false);
    }
}
