//! Which packet is harmed, and how? Plans of faults, and the judge that applies them.
//!
//! A [`Plan`] is text such as `seed=7; drop 1% if dir=rx; tail: drop if op=write,pos=last,count=1`. A
//! [`Judge`] holds a plan and the state of its rules. The caller describes each packet by [`Facts`] and gets
//! [`Actions`], which [`Actions::apply`] carries out on the packet ([`Affected`]). This crate does no
//! I/O and reads no clock, so the same packets get the same actions in a program and in the simulation.
//!
//! # Determinism
//!
//! A random decision is a hash of the seed, the rule (its name, or its place in the plan), the flow, the
//! direction and the identity of the packet: its class, its PSN relative to the flow's first one, and how
//! often this PSN has come by. So another flow, another named rule or another order of threads changes no
//! decision. A rule with `burst` has a state, and so its decisions depend on the number of packets of the
//! flow and direction that reached it.
//!
//! A *flow* is a queue pair, by its order of creation, with one peer, by its order of appearance at that
//! queue pair.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod corrupt;
mod effect;
mod explore;
mod facts;
mod flow;
mod judge;
mod mad;
mod parse;
pub mod pcapng;
mod plan;
mod queue;
#[cfg(feature = "toml")]
mod table;
pub mod units;
mod words;

pub use corrupt::{Corruption, Place};
pub use effect::{Actions, Affected, Answer, Hit, Release};
pub use explore::exploration;
pub use facts::{CompletionFacts, Dir, Facts, Op, Pos, Segment, Side, VerbFacts};
pub use judge::{Crossing, Judge, Limit, MAX_FLOWS, MAX_HITS, RuleCounts, VerbFault, Victim};
pub use mad::{MOST_MAD_CONNECTIONS, MOST_MAD_HITS, MadFacts, MadJudge};
pub use parse::PlanError;
pub use plan::{Act, CaptureFolder, Delay, Key, Kind, Plan, Probability, Rule, Spread, Target, Term, Value};
pub use queue::{HeldQueue, MAX_HELD, MAX_HELD_OCTETS};
#[cfg(feature = "toml")]
pub use table::{TableError, plan_text, rule_text};
pub use words::{Moment, Verb, WcError, errno_name};
