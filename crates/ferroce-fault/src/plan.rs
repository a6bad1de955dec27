//! A plan: rules, each with acts and terms.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ferroce_wire::NakCode;

use crate::corrupt::Place;
use crate::facts::Op;
pub use crate::units::Probability;
use crate::words::{WcError, words};

/// A plan of faults. The default plan has no rule.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// Chooses the random decisions. 1 if the text has none, so that a plan without a seed can be repeated as
    /// well.
    pub seed: u64,
    /// The file that hits are written to.
    pub log: Option<String>,
    /// The files of captured packets. A plan with the act `capture` has it.
    pub capture: Option<CaptureFolder>,
    /// The rules in order of writing.
    pub rules: Vec<Rule>,
}

/// The place of a process's captured packets, two files of pcapng blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureFolder {
    /// The folder, which exists.
    pub path: String,
    /// Octets that a process keeps at most, in its two files together.
    pub octets: u64,
}

/// A rule: `[name ":"] act { "+" act } [ "if" term { "," term } ]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The name of the rule, for messages and logs.
    pub name: Option<String>,
    /// The text of the rule as it was written, without the name.
    pub text: String,
    /// The acts of the rule, all of the same kind.
    pub acts: Vec<Act>,
    /// The terms of the rule, all of which must hold.
    pub terms: Vec<Term>,
}

/// The kind of event that a rule acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Packets.
    Packet,
    /// Calls of the program.
    Verb,
    /// Completions of the send queue.
    Completion,
    /// Moments at which a process is killed.
    Moment,
    /// Management datagrams of connection management, which the broker judges for the program.
    Mad,
}

/// An act of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// The packet is lost.
    Drop(Probability),
    /// The packet arrives twice.
    Dup(Probability),
    /// The packet is marked as having met congestion, if its sender is capable of ECN.
    Ce(Probability),
    /// Losses in bursts by a chain of two states (Gilbert and Elliott).
    Burst {
        /// Probability to enter the bad state, by packet.
        enter: Probability,
        /// Probability to leave it.
        leave: Probability,
        /// Probability of a loss in the bad state.
        bad: Probability,
        /// Probability of a loss in the good state.
        good: Probability,
    },
    /// The packet arrives behind some of its successors.
    Reorder {
        /// How often.
        probability: Probability,
        /// The distance by which the packet moves; `None`: one to eight packets, drawn.
        by: Option<By>,
    },
    /// A bit of the packet is flipped.
    Corrupt {
        /// How often.
        probability: Probability,
        /// The ICRC is computed again after the change, so that only later checks can find it.
        icrc_ok: bool,
        /// The place of the bit.
        at: Place,
    },
    /// The packet arrives later.
    Delay(Delay),
    /// The packet passes a link of limited rate with a queue in front.
    Rate {
        /// Bits a second, at least 1.
        bits: u64,
        /// Octets that may wait; more are dropped.
        queue: u64,
        /// The limit is this time instead, if given.
        queue_time: Option<Duration>,
        /// Packets that find this many octets waiting are marked as by `ce`.
        mark: Option<u64>,
    },
    /// The packet is lost, as behind a cut cable.
    Cut,
    /// The packet waits until the `time` of the rule is over, or the plan is cleared.
    Hold,
    /// The packet is written to the capture, also if another rule loses it after its arrival.
    Capture,
    /// The responder refuses the request for want of a receive WQE.
    Rnr(Duration),
    /// The responder refuses the request.
    Nak(NakCode),
    /// The call fails with this errno.
    Fail(i32),
    /// The call takes longer.
    Stall {
        /// How often.
        probability: Probability,
        /// The additional time.
        by: Delay,
    },
    /// The work request completes with this status, and its queue pair enters the error state.
    Wc(WcError),
    /// A process is killed.
    Kill(Target),
}

impl Act {
    /// Whether it acts on the FPDUs of a TCP connection, see [`Facts::stream`](crate::Facts::stream).
    pub(crate) const fn acts_on_streams(&self) -> bool {
        match self {
            Self::Cut | Self::Delay(_) => true,
            Self::Corrupt { icrc_ok, at, .. } => !*icrc_ok && at.is_in_streams(),
            _ => false,
        }
    }
}

/// The distance of a reordered packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Number of later packets of the flow that pass the packet.
    Packets(u32),
    /// The packet arrives this much later.
    Time(Duration),
}

/// A delay: `base`, spread by `jitter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delay {
    /// The usual delay.
    pub base: Duration,
    /// The spread to both sides; the result is never negative.
    pub jitter: Duration,
    /// How the spread is distributed.
    pub spread: Spread,
}

/// The distribution of a delay's spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Uniform within `jitter` of the base.
    Uniform,
    /// Normal, with `jitter` as its standard deviation.
    Normal,
    /// Pareto with shape 3 above the base: mostly short, now and then many times `jitter`, at most 100 times.
    Pareto,
}

words! {
    /// A process that `kill` ends by SIGKILL.
    pub enum Target {
        /// The program itself.
        Myself = "self",
        /// The broker that it uses.
        Broker = "broker",
    }
}

/// A condition of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Term {
    /// The property.
    pub key: Key,
    /// `!=` instead of `=`.
    pub negated: bool,
    /// The values of which one must apply.
    pub values: Vec<Value>,
}

/// A value of a term.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number, word or time within these bounds, both included. Words are places in their list, times are
    /// nanoseconds.
    Range(u64, u64),
    /// Numbers that this divides.
    Every(u64),
    /// An address.
    Address(IpAddr),
    /// A name.
    Text(String),
}

words! {
    /// The properties that terms compare.
    pub enum Key {
        /// `rx` or `tx`.
        Dir = "dir",
        /// The name of the device.
        Dev = "dev",
        /// The address of the other end, or its number by order of appearance at the queue pair, from 0.
        Peer = "peer",
        /// The queue pair by order of creation, from 0.
        Qp = "qp",
        /// For management datagrams: the connection by order of its first one at the program, from 0.
        Conn = "conn",
        /// The operation.
        Op = "op",
        /// The PSN relative to the first one of the flow, in the sequence that the packet belongs to.
        Psn = "psn",
        /// The MSN of an answer.
        Msn = "msn",
        /// The message by its order in the flow and direction, from 0; requests and READ responses count
        /// apart.
        Msg = "msg",
        /// The number of the packet, or call, among those that match the other terms, from 1.
        Nth = "nth",
        /// How often the packet's PSN has come by, from 1.
        Iter = "iter",
        /// The place in the message.
        Pos = "pos",
        /// Octets of payload.
        Len = "len",
        /// The AckReq bit, 0 or 1.
        Ack = "ack",
        /// Time since the first packet; for calls and moments since the first call.
        Time = "time",
        /// The rule acts at most so often, counted for each flow and direction.
        Count = "count",
        /// The call.
        Verb = "verb",
        /// The moment.
        At = "at",
    }
}

impl Key {
    /// Whether rules of this kind can have it. A rule on packets becomes one on management datagrams by its
    /// term `op`.
    pub(crate) const fn is_of(self, kind: Kind) -> bool {
        if matches!(kind, Kind::Mad) {
            return matches!(
                self,
                Self::Dir
                    | Self::Peer
                    | Self::Conn
                    | Self::Op
                    | Self::Nth
                    | Self::Iter
                    | Self::Count
                    | Self::Time
            );
        }
        match self {
            Self::Dev | Self::Qp | Self::Nth | Self::Count | Self::Time => true,
            Self::Verb => matches!(kind, Kind::Verb),
            Self::At => matches!(kind, Kind::Moment),
            Self::Msg => !matches!(kind, Kind::Verb),
            _ => matches!(kind, Kind::Packet),
        }
    }
}

impl Act {
    /// The kind of event that it acts on; packets may be management datagrams.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Fail(_) | Self::Stall { .. } => Kind::Verb,
            Self::Wc(_) => Kind::Completion,
            Self::Kill(_) => Kind::Moment,
            _ => Kind::Packet,
        }
    }
}

impl Rule {
    /// The kind of event that it acts on.
    pub fn kind(&self) -> Kind {
        match self.acts.first().map_or(Kind::Packet, Act::kind) {
            Kind::Packet if self.names_mads() => Kind::Mad,
            kind => kind,
        }
    }

    /// Whether its term `op` names management datagrams.
    fn names_mads(&self) -> bool {
        self.term(Key::Op).is_some_and(|term| term.values.iter().any(Value::is_mad))
    }

    /// The term with this key, if there is one.
    pub fn term(&self, key: Key) -> Option<&Term> {
        self.terms.iter().find(|term| term.key == key)
    }

    /// Whether it captures packets and does nothing else.
    pub(crate) fn captures(&self) -> bool {
        self.acts.iter().all(|act| *act == Act::Capture)
    }

    /// The name of the rule, or its text without a name.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.text)
    }
}

impl Plan {
    /// Whether some rule acts on this.
    pub fn has(&self, kind: Kind) -> bool {
        self.rules.iter().any(|rule| rule.kind() == kind)
    }

    /// The rules for management datagrams alone, for the broker; `None` if there are none.
    pub fn for_mads(&self) -> Option<Self> {
        let of = |rule: &&Rule| rule.kind() == Kind::Mad;
        let rules: Vec<Rule> = self.rules.iter().filter(of).cloned().collect();
        (!rules.is_empty()).then_some(Self { seed: self.seed, rules, ..Self::default() })
    }

    /// Whether no rule does more than capture packets.
    pub fn only_captures(&self) -> bool {
        self.rules.iter().all(Rule::captures)
    }

    /// Whether some rule compares this.
    pub fn compares(&self, key: Key) -> bool {
        self.rules.iter().any(|rule| rule.term(key).is_some())
    }

    /// Whether some rule changes the ECN field, which takes a program that reads it.
    pub fn marks(&self) -> bool {
        let marks = |act: &Act| matches!(act, Act::Ce(_) | Act::Rate { mark: Some(_), .. });
        self.rules.iter().any(|rule| rule.acts.iter().any(marks))
    }
}

/// Text that reads as the same plan: seed, log, capture, then a rule in each line.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed={}", self.seed)?;
        if let Some(log) = &self.log {
            writeln!(f, "log={log}")?;
        }
        if let Some(CaptureFolder { path, octets }) = &self.capture {
            writeln!(f, "capture={path},{octets}")?;
        }
        for Rule { name, text, .. } in &self.rules {
            if let Some(name) = name {
                write!(f, "{name}: ")?;
            }
            writeln!(f, "{text}")?;
        }
        Ok(())
    }
}

impl Value {
    /// Whether it is a word of the term `op` for management datagrams.
    pub(crate) fn is_mad(&self) -> bool {
        matches!(self, Self::Range(first, _) if Op::MADS.contains(first))
    }
}

impl Term {
    /// Whether it holds for a number, word or time.
    pub(crate) fn holds(&self, number: u64) -> bool {
        self.any(|value| match value {
            Value::Range(low, high) => (*low..=*high).contains(&number),
            Value::Every(step) => number.is_multiple_of(*step),
            Value::Address(_) | Value::Text(_) => false,
        })
    }

    /// Whether it holds for an address, which is the `number`-th of its queue pair.
    pub(crate) fn holds_for_peer(&self, peer: IpAddr, number: u32) -> bool {
        self.any(|value| match value {
            Value::Address(address) => *address == peer,
            Value::Range(low, high) => (*low..=*high).contains(&u64::from(number)),
            Value::Every(_) | Value::Text(_) => false,
        })
    }

    /// Whether it holds for a name.
    pub(crate) fn holds_for_name(&self, name: &str) -> bool {
        self.any(|value| matches!(value, Value::Text(text) if text == name))
    }

    fn any(&self, test: impl FnMut(&Value) -> bool) -> bool {
        self.values.iter().any(test) != self.negated
    }

    /// The largest number that it names, if that is bounded.
    pub(crate) fn last(&self) -> Option<u64> {
        let highest = self.values.iter().map(|value| match value {
            Value::Range(_, high) => *high,
            _ => u64::MAX,
        });
        highest.max().filter(|high| *high != u64::MAX && !self.negated)
    }
}
