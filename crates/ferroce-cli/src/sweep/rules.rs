//! The rules of a sweep.

use ferroce_fault::{Op, Plan, Verb};

use crate::usage::Usage;

/// A rule, and one that does no harm at the same place.
#[derive(Debug)]
pub struct Rule {
    pub text: String,
    pub trial: String,
}

/// The acts on each kind of packet.
const ACTS: [&str; 3] = ["drop", "dup", "corrupt"];

/// Each call fails once, and each kind of packet is lost, duplicated and corrupted once.
pub fn all(errno: &str) -> Result<Vec<Rule>, Usage> {
    let calls = Verb::WORDS.iter().map(|(verb, _)| Rule {
        text: format!("fail={errno} if verb={verb},nth=1"),
        trial: format!("stall=0ns if verb={verb},nth=1"),
    });
    // `mad` is any of the datagrams that have a word each.
    let ops = Op::WORDS.iter().map(|(op, _)| *op).filter(|op| *op != Op::Mad.word());
    let packets = ops.flat_map(|op| {
        ACTS.iter().map(move |act| Rule {
            text: format!("{act} if op={op},dir=tx,count=1"),
            trial: format!("delay=1ns if op={op},dir=tx,count=1"),
        })
    });
    let rules: Vec<Rule> = calls.chain(packets).collect();
    match rules.iter().try_for_each(|rule| rule.text.parse::<Plan>().map(drop)) {
        Ok(()) => Ok(rules),
        Err(error) => Err(Usage(format!("--errno {errno}: {error}"))),
    }
}

/// A plan that logs which of the rules can act, and does no harm.
pub fn survey(rules: &[Rule]) -> String {
    let mut trials: Vec<&str> = rules.iter().map(|rule| &*rule.trial).collect();
    trials.dedup();
    trials.join("; ")
}
