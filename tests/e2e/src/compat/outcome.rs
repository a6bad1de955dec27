//! The outcome of one trial.

use serde::{Deserialize, Serialize};

use super::trial::Trial;

/// How a trial ended, over all its rounds.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum TrialState {
    /// Every round ended well, and ferroce counted what was sent.
    Passed,
    /// It failed, and nobody knows yet why.
    Failed,
    /// It failed for the known reason.
    Known(String),
    /// It passed although a reason for its failure is noted.
    Unexpected,
    /// The program could not be made ready here, for this reason.
    NotRun(String),
}

/// A trial, how it ended and its figures.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Outcome {
    /// The program's name.
    pub program: String,
    /// Of Debian's package or the wheel.
    pub version: String,
    /// The trial's own name.
    pub what: String,
    pub state: TrialState,
    /// The program compares the data.
    pub verified: bool,
    /// It asks a device and sends nothing.
    pub silent: bool,
    /// Octets that ferroce counted meanwhile, both directions, all ends and rounds together.
    pub octets: u64,
    /// `MB/s` or `µs`, if there are figures.
    pub unit: Option<String>,
    pub more_is_better: bool,
    /// The program's figure in each round.
    pub ferroce: Vec<f64>,
    /// The same over its own TCP transport.
    pub tcp: Vec<f64>,
    /// A limit that users meet.
    pub limit: String,
}

impl Outcome {
    /// The outcome of a trial before its first round.
    pub fn of(trial: &Trial) -> Self {
        Self {
            program: trial.of.name.to_owned(),
            version: trial.of.version(),
            what: trial.what.to_owned(),
            state: TrialState::Failed,
            verified: trial.verified,
            silent: trial.octets == 0,
            octets: 0,
            unit: trial.figure.map(|figure| figure.unit.to_owned()),
            more_is_better: trial.figure.is_some_and(|figure| figure.more),
            ferroce: Vec::new(),
            tcp: Vec::new(),
            limit: trial.limit.to_owned(),
        }
    }

    /// An outcome that passed, for tests.
    #[cfg(test)]
    pub fn example(program: &str, what: &str, version: &str) -> Self {
        Self {
            program: program.to_owned(),
            version: version.to_owned(),
            what: what.to_owned(),
            state: TrialState::Passed,
            verified: false,
            silent: false,
            octets: 2_500_000,
            unit: Some("MB/s".to_owned()),
            more_is_better: true,
            ferroce: vec![300.0, 100.0, 200.0],
            tcp: vec![50.0],
            limit: String::new(),
        }
    }

    /// Nothing to look at: it passed, failed as known, or could not be tried here.
    pub fn is_expected(&self) -> bool {
        !matches!(self.state, TrialState::Failed | TrialState::Unexpected)
    }

    /// The cell of the page's column "result".
    pub fn result(&self) -> String {
        match &self.state {
            TrialState::Passed if self.verified => "passes, compared".to_owned(),
            TrialState::Passed if self.silent => "passes, sends nothing".to_owned(),
            TrialState::Passed => "passes".to_owned(),
            TrialState::Failed => "**fails**, cause unknown".to_owned(),
            TrialState::Known(why) => format!("**fails**: {why}"),
            TrialState::Unexpected => "passes, although a reason for its failure is noted".to_owned(),
            TrialState::NotRun(why) => format!("not run: {why}"),
        }
    }
}
