//! Lines of the output of `ferroce doctor` and `ferroce ping`.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::args::Style;
use crate::rows;

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

/// Prints the findings; the status says whether one is an error, or with `strict` a warning.
pub fn print(findings: &[Finding], strict: bool, style: Style) -> Result<ExitCode> {
    rows::write_text(&shown(findings, style)?)?;
    Ok(if fails(findings, strict) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn fails(findings: &[Finding], strict: bool) -> bool {
    let worst = if strict { Severity::Warning } else { Severity::Error };
    findings.iter().any(|finding| finding.state >= worst)
}

fn shown(findings: &[Finding], style: Style) -> Result<String> {
    let lines = || findings.iter().map(line).collect();
    Ok(rows::json(findings, style)?.unwrap_or_else(lines))
}

fn line(finding: &Finding) -> String {
    let state = match finding.state {
        Severity::Ok => "ok",
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let cure = finding.cure.as_ref().map(|cure| format!("{:<20}-> {cure}\n", "")).unwrap_or_default();
    format!("{state:<8} {:<10} {}\n{cure}", finding.check, finding.found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fail_where_they_are_asked_for() {
        let all = [Severity::Ok, Severity::Note, Severity::Warning, Severity::Error]
            .map(|state| [Finding::new("x", state, "")]);
        assert_eq!(all.each_ref().map(|found| fails(found, false)), [false, false, false, true]);
        assert_eq!(all.each_ref().map(|found| fails(found, true)), [false, false, true, true]);
    }

    #[test]
    fn lines_and_keys() {
        let findings = [
            Finding::ok("kernel", "Linux 6.1"),
            Finding::new("loopback", Severity::Error, "lo is down").cure("ip link set lo up"),
        ];
        let style = |json| Style { json, pretty: false, details: false };
        let want = "ok       kernel     Linux 6.1\n\
                    error    loopback   lo is down\n                    -> ip link set lo up\n";
        assert_eq!(shown(&findings, style(false)).unwrap(), want);
        let want = "[{\"check\":\"kernel\",\"state\":\"ok\",\"found\":\"Linux 6.1\"},\
                    {\"check\":\"loopback\",\"state\":\"error\",\"found\":\"lo is down\",\"cure\":\"ip link set lo up\"}]\n";
        assert_eq!(shown(&findings, style(true)).unwrap(), want);
    }
}
