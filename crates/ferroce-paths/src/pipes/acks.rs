//! ACK words: notes of what was sent by a pipe, and what the other program said of it.
//!
//! A note names the packet that an entry of the pipe ends with. Once the other program has counted the entry,
//! the note says which queue pair's packets it has acknowledged. See [`ferroce_ipc::pipe`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferroce_ipc::pipe::{ASKED, Marks, Pipe};
use ferroce_wire::{Psn, Qpn};

/// The other program took everything up to a packet of this queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    pub qpn: Qpn,
    pub psn: Psn,
    /// The number of the pipe's note.
    pub(super) number: u64,
}

/// The packet that an entry ends with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    qpn: Qpn,
    psn: Psn,
}

impl Note {
    /// The note of a packet of `qpn`, if that is a SEND or an RDMA WRITE that asks for an ACK (IBTA 9.2.1 and
    /// table 38): data answers others.
    #[inline]
    pub fn of(qpn: Qpn, packet: &[u8]) -> Option<Self> {
        match packet {
            [0..12 | 22 | 23, _, _, _, _, _, _, _, asks, a, b, c, ..] if asks & 0x80 != 0 => {
                Some(Self { qpn, psn: Psn::from_be_bytes([*a, *b, *c]) })
            }
            _ => None,
        }
    }
}

/// The notes of one pipe, and the ACK words that this program owes.
pub(super) struct Acks {
    /// Number of notes made. The holder of the sending end writes this; the holder of the lane writes the
    /// other numbers.
    made: AtomicU64,
    /// Number of notes that were handed out.
    done: AtomicU64,
    /// Number of notes for which the other program is known to have answered; at most `made`, but for notes
    /// that were taken back.
    told: AtomicU64,
    /// A polling thread looks at the other program's word each time. Where entries brought the last words, a
    /// look would only delay those: the cache line is the other program's.
    looks: AtomicBool,
    /// Number of entries of the other program that were answered.
    answered: AtomicU64,
    notes: Box<[AtomicU64]>,
}

impl Acks {
    pub fn new() -> Self {
        let count = || AtomicU64::new(0);
        let notes = (0..ASKED).map(|_| count()).collect();
        let looks = AtomicBool::new(true);
        Self { made: count(), done: count(), told: count(), looks, answered: count(), notes }
    }

    fn place(&self, number: u64) -> Option<&AtomicU64> {
        self.notes.get(number as usize % ASKED)
    }

    /// Number of notes made.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// Makes a note, if there is room. The caller holds the sending end.
    #[inline]
    pub fn note(&self, note: Note) -> bool {
        let number = self.made();
        // A program that counts what was not sent may have had a note that was taken back handed out.
        let open = number.checked_sub(self.done.load(Ordering::Acquire));
        let has_room = open.is_some_and(|open| open < ASKED as u64);
        if has_room && let Some(place) = self.place(number) {
            place.store(u64::from(note.qpn.value()) << 32 | u64::from(note.psn.value()), Ordering::Relaxed);
            self.made.store(number + 1, Ordering::Release);
        }
        has_room
    }

    /// Takes the newest note back: its entry was not sent.
    pub fn retract(&self) {
        self.made.store(self.made().saturating_sub(1), Ordering::Release);
    }

    /// Whether a poll finds a word.
    #[inline(always)]
    pub fn are_ready(&self, pipe: &Pipe) -> bool {
        let done = self.done.load(Ordering::Relaxed);
        // Mostly no note is open.
        self.made() != done
            && (self.told.load(Ordering::Relaxed) != done
                || self.looks.load(Ordering::Relaxed) && self.have_come(pipe))
    }

    /// Whether the other program's word answers an open note.
    #[inline(always)]
    pub fn have_come(&self, pipe: &Pipe) -> bool {
        let done = self.done.load(Ordering::Acquire);
        self.made() > done && pipe.acks() > done
    }

    /// Looks at the other program's word, which counts unless a packet `waits` that may have been sent
    /// before.
    #[inline]
    pub fn look(&self, pipe: &Pipe, waits: impl FnOnce() -> bool) {
        if self.made() > self.told.load(Ordering::Relaxed) {
            let acks = pipe.acks();
            if !waits() {
                self.tell(acks, true);
            }
        }
    }

    /// The head of an entry has brought the other program's word.
    #[inline]
    pub fn read(&self, marks: Marks) {
        let told = self.told.load(Ordering::Relaxed);
        if self.made() > told {
            self.tell(marks.acks(told), false);
        }
    }

    #[inline]
    fn tell(&self, acks: u64, looks: bool) {
        let told = acks.min(self.made());
        if told > self.told.load(Ordering::Relaxed) {
            self.told.store(told, Ordering::Relaxed);
            self.looks.store(looks, Ordering::Relaxed);
        }
    }

    /// The next word that was told: one for all notes of a queue pair that follow each other.
    #[inline]
    pub fn next(&self, pipe: &Pipe) -> Option<Word> {
        let (mut done, told) = (self.done.load(Ordering::Relaxed), self.told.load(Ordering::Relaxed));
        let mut word: Option<Word> = None;
        while done < told {
            let note = self.place(done)?.load(Ordering::Relaxed);
            let (qpn, psn) = (Qpn::new((note >> 32) as u32), Psn::new(note as u32));
            if word.is_some_and(|word| word.qpn != qpn) {
                break;
            }
            if pipe.is_acknowledged(done) {
                word = Some(Word { qpn, psn, number: done });
            }
            done += 1;
        }
        self.done.store(done, Ordering::Release);
        word
    }

    /// Whether there is nothing to hand out.
    #[inline]
    pub fn is_told_all(&self) -> bool {
        self.done.load(Ordering::Relaxed) == self.told.load(Ordering::Relaxed)
    }

    /// Answers the other program's next entry that asks. Returns whether its doorbell must be rung.
    #[inline]
    pub fn answer(&self, pipe: &Pipe, taken: bool) -> bool {
        let number = self.answered.load(Ordering::Relaxed);
        self.answered.store(number + 1, Ordering::Relaxed);
        pipe.answer(number, taken)
    }
}

#[cfg(test)]
mod tests {
    use ferroce_ipc::pipe::Side;

    use super::*;

    /// The two programs of a pipe: one sends, and the other answers.
    struct Bed {
        here: Pipe,
        there: Pipe,
        sent: Acks,
        owed: Acks,
    }

    impl Bed {
        fn new() -> Self {
            let memory = Pipe::create().unwrap();
            let [here, there] = [Side::First, Side::Second].map(|side| Pipe::join(&memory, side).unwrap().0);
            Self { here, there, sent: Acks::new(), owed: Acks::new() }
        }

        fn note(&self, qpn: u32, psn: u32) -> bool {
            self.sent.note(Note { qpn: Qpn::new(qpn), psn: Psn::new(psn) })
        }

        fn answer(&self, taken: bool) {
            self.owed.answer(&self.there, taken);
        }

        /// All that is known, as queue pair and PSN.
        fn words(&self) -> Vec<(u32, u32)> {
            let mut words = Vec::new();
            while !self.sent.is_told_all() {
                words.extend(self.sent.next(&self.here).map(|word| (word.qpn.value(), word.psn.value())));
            }
            words
        }

        fn look(&self) -> Vec<(u32, u32)> {
            self.sent.look(&self.here, || false);
            self.words()
        }
    }

    #[test]
    fn a_note_is_of_a_packet_that_asks_for_an_ack() {
        let packet = |opcode, asks: u8| [opcode, 0, 0xff, 0xff, 0, 0, 0, 9, asks, 1, 2, 3, 0];
        let of = |packet: &[u8]| Note::of(Qpn::new(7), packet).map(|note| (note.qpn, note.psn));
        let (send_only, write_only, read, ack) = (0x04, 0x0a, 0x0c, 0x11);
        for opcode in [send_only, write_only] {
            assert_eq!(of(&packet(opcode, 0x80)), Some((Qpn::new(7), Psn::new(0x01_0203))));
            assert_eq!(of(&packet(opcode, 0)), None);
            assert_eq!(of(&packet(opcode, 0x80)[..11]), None);
        }
        assert_eq!([read, ack].map(|opcode| of(&packet(opcode, 0x80))), [None; 2]);
    }

    #[test]
    fn notes_of_one_queue_pair_that_follow_each_other_make_one_word() {
        let bed = Bed::new();
        assert!([(1, 10), (1, 11), (2, 5), (1, 12)].into_iter().all(|(qpn, psn)| bed.note(qpn, psn)));
        assert_eq!(bed.look(), [], "nothing was answered");
        (0..3).for_each(|_| bed.answer(true));
        assert!(bed.sent.are_ready(&bed.here) && bed.sent.have_come(&bed.here));
        assert_eq!(bed.look(), [(1, 11), (2, 5)]);
        assert!(!bed.sent.are_ready(&bed.here) && !bed.sent.have_come(&bed.here));
        bed.answer(true);
        assert_eq!(bed.look(), [(1, 12)]);
    }

    #[test]
    fn an_entry_that_was_not_taken_makes_no_word() {
        let bed = Bed::new();
        for psn in 0..4 * ASKED as u32 {
            assert!(bed.note(1, psn) && bed.note(2, psn));
            bed.answer(psn % 3 > 0);
            bed.answer(psn % 2 > 0);
            let taken = [(1, psn, psn % 3 > 0), (2, psn, psn % 2 > 0)];
            let taken: Vec<_> = taken.into_iter().filter(|of| of.2).map(|(qpn, psn, _)| (qpn, psn)).collect();
            assert_eq!(bed.look(), taken, "of {psn}");
        }
    }

    #[test]
    fn there_are_so_many_notes_and_one_can_be_taken_back() {
        let bed = Bed::new();
        assert!((0..ASKED as u32).all(|psn| bed.note(1, psn)) && !bed.note(1, 999));
        bed.answer(true);
        assert!(!bed.note(1, 999), "the word was not taken");
        assert_eq!(bed.look(), [(1, 0)]);
        assert!(bed.note(1, 500));
        bed.sent.retract();
        assert!(bed.note(3, 600));
        (0..ASKED).for_each(|_| bed.answer(true));
        assert_eq!(bed.look(), [(1, ASKED as u32 - 1), (3, 600)]);
    }

    /// The count in the head of an entry may be older than the word.
    #[test]
    fn heads_of_entries_bring_words_and_take_none_back() {
        let memory = Pipe::create().unwrap();
        let (here, _, mut rx) = Pipe::join(&memory, Side::First).unwrap();
        let (there, mut tx, _) = Pipe::join(&memory, Side::Second).unwrap();
        let (sent, owed) = (Acks::new(), Acks::new());
        let way = super::super::testing::WAY;
        let out = vec![0; ferroce_ipc::pipe::MAX_BATCH].into_boxed_slice();
        let mut out: Box<[u8; ferroce_ipc::pipe::MAX_BATCH]> = out.try_into().unwrap();
        let mut expected = 0;
        // More than the bits in a head can count.
        for psn in 0..10_000 {
            assert!(sent.note(Note { qpn: Qpn::new(1), psn: Psn::new(psn) }));
            tx.send(&way, 4, &[0; 4]).unwrap();
            owed.answer(&there, true);
            if psn % 7 == 0 {
                sent.look(&here, || false);
                expected = psn + 1;
            }
            sent.read(rx.receive(&mut out).unwrap().unwrap().marks);
            // The head was written before the answer.
            expected = expected.max(psn);
            assert_eq!(sent.told.load(Ordering::Relaxed), u64::from(expected));
            while sent.next(&here).is_some() {}
        }
    }

    /// The other program counts an entry for which there was no room.
    #[test]
    fn a_note_that_was_taken_back_leaves_the_others_as_they_were() {
        let bed = Bed::new();
        assert!(bed.note(1, 5));
        bed.there.answer(1 << 40, true);
        assert_eq!(bed.look(), [(1, 5)]);
        bed.sent.retract();
        assert!(!bed.sent.have_come(&bed.here) && !bed.sent.are_ready(&bed.here));
        assert!(!bed.note(1, 6), "an ACK by a packet is all that it loses");
        assert_eq!(bed.look(), []);
    }

    #[test]
    fn a_count_that_cannot_be_acknowledges_no_more_than_was_sent() {
        let bed = Bed::new();
        assert!(bed.note(1, 5));
        bed.there.answer(1 << 40, true);
        assert_eq!(bed.look(), [(1, 5)]);
        assert!(bed.note(1, 6));
        bed.there.answer(0, true);
        assert_eq!(bed.look(), [], "it counted backwards");
    }
}
