//! Orders to running programs about faults on purpose, what programs report of them, and rules that the
//! broker applies for programs.

/// The broker's order to a program about its plan of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultOrder {
    /// Take a plan into force in place of the present one.
    Apply {
        /// The rules, as the environment variable `FERROCE_FAULT` has them: lines of printable text.
        rules: String,
        /// The seed, in place of the one of the rules.
        seed: Option<u64>,
    },
    /// End all faults. The report has the counts of the plan that ended.
    Clear,
    /// Report alone.
    Show,
}

/// A program's plan of faults. Without a plan there are no rules.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FaultReport {
    /// Chooses the random decisions.
    pub seed: u64,
    /// Hits that the log of hits does not have, because there were too many at once.
    pub unlogged: u64,
    /// The rules in order of writing.
    pub rules: Vec<FaultCounts>,
}

/// A rule and its counts since it came into force.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Name of the rule; empty without a name.
    pub name: String,
    /// Text of the rule without the name.
    pub text: String,
    /// Packets, calls or moments that matched its terms.
    pub seen: u64,
    /// How often it acted.
    pub hits: u64,
    /// Whether the counts are all there is.
    pub known: Known,
}

/// How much the counts of a rule say. Rules for management datagrams are judged by the broker, which tells
/// the program the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Known {
    /// The list is complete.
    #[default]
    All = 0,
    /// There may be more: a broker did not answer in time, or ended before it told all.
    AtLeast = 1,
    /// The rule is not in force, because the broker did not take it.
    NotInForce = 2,
}

impl FaultCounts {
    /// The counts in words, for people.
    pub fn outcome(&self) -> String {
        let Self { seen, hits, .. } = self;
        match (self.known, hits) {
            (Known::NotInForce, _) => "not in force".to_owned(),
            (Known::All, 0) => format!("never hit, {seen} matched"),
            (Known::All, _) => format!("{hits} hits, {seen} matched"),
            (Known::AtLeast, _) => {
                format!("{hits} hits, {seen} matched or more (the broker did not tell all)")
            }
        }
    }
}

/// The counts and new hits of a program's rules for management datagrams. See
/// [`Message::MadFaultReport`](super::Message::MadFaultReport).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MadFaultReport {
    /// Generation of the rules, as [`Message::MadFaults`](super::Message::MadFaults) gave it; 0 without
    /// rules.
    pub generation: u32,
    /// Hits that are not reported, because there were too many at once.
    pub unlogged: u64,
    /// For each rule in order of writing: datagrams that matched its terms, and those that it acted on, since
    /// it came into force.
    pub counts: Vec<(u64, u64)>,
    /// Hits since the last report, in order: the place of the rule among these, and a rule that does the same
    /// to the same datagram.
    pub hits: Vec<(u16, String)>,
    /// Other hits wait for the next report.
    pub more: bool,
}
