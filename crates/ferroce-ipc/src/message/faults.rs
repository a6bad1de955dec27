//! Orders to running programs about faults on purpose, and what programs report of them.

/// What a program is to do with its plan of faults.
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
    /// Its name; empty without one.
    pub name: String,
    /// Its text without the name.
    pub text: String,
    /// Packets, calls or moments that matched its terms.
    pub seen: u64,
    /// How often it acted.
    pub hits: u64,
}
