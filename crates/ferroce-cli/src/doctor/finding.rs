//! A line of the output of `ferroce doctor`.

use serde::Serialize;

#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Ok,
    /// Information.
    Note,
    /// A feature works badly, or may fail.
    Warning,
    /// A feature does not work.
    Error,
}

/// A line of the output: a check and its finding.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub check: &'static str,
    pub state: Severity,
    pub found: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
}

impl Finding {
    pub fn new(check: &'static str, state: Severity, found: impl Into<String>) -> Self {
        Self { check, state, found: found.into(), cure: None }
    }

    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, found)
    }

    pub fn cure(self, cure: impl Into<String>) -> Self {
        Self { cure: Some(cure.into()), ..self }
    }
}
