//! The actions on a packet, and the record of them.

use std::fmt;
use std::time::Duration;

use ferroce_wire::{Instant, NakCode};

use crate::corrupt::Corruption;
use crate::facts::{Dir, Op};
use crate::plan::Target;
use crate::units::show_time;
use crate::words::{Moment, NAKS, Verb, WcError, errno_name};

/// The actions on a packet. The default lets it pass.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Actions {
    /// The packet is lost, and nothing else applies.
    pub drop: bool,
    /// The packet arrives once more.
    pub duplicate: bool,
    /// The packet's ECN field becomes 3. The judge sets this only for packets of an ECN-capable sender.
    pub mark_ce: bool,
    /// The bit of the packet that is flipped.
    pub corrupt: Option<Corruption>,
    /// The delay of the packet; `None` if it arrives at once.
    pub release: Option<Release>,
    /// The answer that the responder gives without seeing the packet.
    pub answer: Option<Answer>,
    /// The packet is written to the capture. The caller does it, not [`Self::apply`].
    pub capture: bool,
}

/// The end of a packet's delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// Latest time of release; [`Instant::MAX`]: when the plan is cleared.
    pub at: Instant,
    /// Number of later packets of the flow after which the packet is released earlier; 0: only the time
    /// counts.
    pub behind: u32,
}

/// An answer that a responder is made to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An RNR NAK with this time.
    Rnr(Duration),
    /// A NAK.
    Nak(NakCode),
}

/// A packet at the place where a plan acts on it. [`Actions::apply`] calls what the actions ask for.
pub trait Affected {
    /// Notes that the packet is lost.
    fn lose(&mut self) {}
    /// Has the responder answer so, without seeing the packet. Only packets that arrive are answered.
    fn answer(&mut self, _answer: Answer) {}
    /// Sets the packet's ECN field to 3. Only packets on their way are marked, no sender marks its own.
    fn mark_ce(&mut self) {}
    /// Flips a bit. Returns whether the packet goes on: a place that knows that a check finds the change may
    /// lose the packet at once.
    fn corrupt(&mut self, corruption: Corruption) -> bool;
    /// Lets the packet go on, at once or after `release`. A packet that is duplicated goes on twice.
    fn go_on(&mut self, release: Option<Release>);
    /// Counts the packet, which went on at once, for those of its flow that wait for successors.
    fn count_as_successor(&mut self) {}
}

impl Actions {
    /// Whether the packet passes unharmed and at once.
    pub fn is_pass(&self) -> bool {
        Self { capture: false, ..*self } == Self::default()
    }

    /// Applies the actions to the packet that they were decided for.
    pub fn apply(&self, packet: &mut impl Affected) {
        if self.drop {
            return packet.lose();
        }
        if let Some(answer) = self.answer {
            return packet.answer(answer);
        }
        if self.mark_ce {
            packet.mark_ce();
        }
        if self.corrupt.is_some_and(|corruption| !packet.corrupt(corruption)) {
            return;
        }
        for _ in 0..=u8::from(self.duplicate) {
            packet.go_on(self.release);
        }
        if self.release.is_none() {
            packet.count_as_successor();
        }
    }
}

/// An act that took effect, with its victim. Its text is a rule that does the same to the same packet, so a
/// list of hits is a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The place of the rule in the plan, from 0.
    pub rule: usize,
    pub(crate) victim: Victim,
    pub(crate) effect: Effect,
}

/// The object of a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// A packet, with the numbers by which terms name it.
    #[expect(missing_docs, reason = "the fields are the terms of the language")]
    Packet { dir: Dir, qp: u32, peer: u32, op: Op, psn: u32, iter: u32 },
    /// The `nth` call of this verb.
    #[expect(missing_docs, reason = "the fields are the terms of the language")]
    Verb { verb: Verb, nth: u64 },
    /// A work request.
    #[expect(missing_docs, reason = "the fields are the terms of the language")]
    Completion { qp: u32, msg: u64 },
    /// A management datagram of a connection.
    #[expect(missing_docs, reason = "the fields are the terms of the language")]
    Mad { dir: Dir, conn: u64, op: Op, iter: u32 },
    /// The `nth` moment of this kind.
    #[expect(missing_docs, reason = "the fields are the terms of the language")]
    Moment { at: Moment, nth: u64 },
}

/// An act after its random choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Drop,
    /// A connection breaks.
    Cut,
    Dup,
    Ce,
    Corrupt(Corruption),
    Delay(Duration),
    Behind(u32),
    Hold,
    Answer(Answer),
    Capture,
    Fail(i32),
    Stall(Duration),
    Wc(WcError),
    Kill(Target),
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Cut => f.write_str("cut"),
            Self::Dup => f.write_str("dup"),
            Self::Ce => f.write_str("ce"),
            Self::Corrupt(Corruption { icrc_ok, octet, bit }) => {
                write!(f, "corrupt icrc={} at={octet}/{bit}", if *icrc_ok { "ok" } else { "bad" })
            }
            Self::Delay(delay) => write!(f, "delay={}", show_time(*delay)),
            Self::Behind(packets) => write!(f, "reorder by={packets}"),
            Self::Hold => f.write_str("hold"),
            Self::Capture => f.write_str("capture"),
            Self::Answer(Answer::Rnr(time)) => write!(f, "rnr={}", show_time(*time)),
            Self::Answer(Answer::Nak(code)) => {
                let word =
                    NAKS.iter().find(|(_, known)| known == code).map_or("operation", |(word, _)| *word);
                write!(f, "nak={word}")
            }
            Self::Fail(errno) => write!(f, "fail={}", errno_name(*errno)),
            Self::Stall(time) => write!(f, "stall={}", show_time(*time)),
            Self::Wc(status) => write!(f, "wc={}", status.word()),
            Self::Kill(target) => write!(f, "kill={}", target.word()),
        }
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet { dir, qp, peer, op, psn, iter } => {
                write!(f, "dir={},qp={qp},peer={peer},op={},psn={psn},iter={iter}", dir.word(), op.word())
            }
            Self::Mad { dir, conn, op, iter } => {
                write!(f, "dir={},conn={conn},op={},iter={iter}", dir.word(), op.word())
            }
            Self::Verb { verb, nth } => write!(f, "verb={},nth={nth}", verb.word()),
            Self::Completion { qp, msg } => write!(f, "qp={qp},msg={msg}"),
            Self::Moment { at, nth } => write!(f, "at={},nth={nth}", at.word()),
        }
    }
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} if {}", self.effect, self.victim)
    }
}
