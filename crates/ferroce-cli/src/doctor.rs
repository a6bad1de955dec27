//! `ferroce doctor`: finds what keeps programs on this host or in this container from RoCE, and how to correct it; of a
//! program, the libraries that it will load.
//!
//! It changes and starts nothing. [`host`] gathers the facts; [`judge`] derives the findings from them alone.

mod host;
mod judge;
mod program;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use ferroce_ipc::DeviceInfo;
use serde::Serialize;

use crate::args::Style;
use crate::{rows, run};

#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Information.
    Note,
    /// A feature works badly, or may fail.
    Warning,
    /// A feature does not work.
    Error,
}

/// One line: a check and its finding.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
struct Finding {
    check: &'static str,
    state: State,
    found: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Finding {
    fn new(check: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { check, state, found: found.into(), cure: None }
    }

    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, State::Ok, found)
    }

    fn cure(self, cure: impl Into<String>) -> Self {
        Self { cure: Some(cure.into()), ..self }
    }
}

/// Examines the host or a program and prints the findings; fails if one is an error.
pub fn run(program: Option<&Path>, style: Style) -> Result<ExitCode> {
    let findings = match program {
        None => judge::all(&host::gather()),
        Some(program) => program::judge(program, &run::library_dir()?),
    };
    rows::write_text(&shown(&findings, style)?)?;
    let hopeless = findings.iter().any(|finding| finding.state == State::Error);
    Ok(if hopeless { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says on standard error who else holds the port, if a device of RoCE is shown: its programs then have no addresses.
pub fn warn_of_port(devices: &[(u32, &DeviceInfo)]) {
    if devices.iter().all(|(_, device)| device.is_iwarp()) {
        return;
    }
    let finding = judge::port(&host::of_port());
    if finding.state == State::Error {
        eprintln!("ferroce: {}: RoCE does not work; {}", finding.found, finding.cure.unwrap_or_default());
    }
}

fn shown(findings: &[Finding], style: Style) -> Result<String> {
    let lines = || findings.iter().map(line).collect();
    Ok(rows::json(findings, style)?.unwrap_or_else(lines))
}

fn line(finding: &Finding) -> String {
    let state = match finding.state {
        State::Ok => "ok",
        State::Note => "note",
        State::Warning => "warning",
        State::Error => "error",
    };
    let cure = finding.cure.as_ref().map(|cure| format!("{:<20}-> {cure}\n", "")).unwrap_or_default();
    format!("{state:<8} {:<10} {}\n{cure}", finding.check, finding.found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_keys() {
        let findings = [
            Finding::ok("kernel", "Linux 6.1"),
            Finding::new("loopback", State::Error, "lo is down").cure("ip link set lo up"),
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
