//! `ferroce doctor`: finds what keeps programs on this host or in this container from RoCE, and how to
//! correct it; of a program, the libraries that it will load; of a running process, those that it has.
//!
//! It changes and starts nothing. [`host`] gathers the facts; [`judge`] derives the findings from them alone.

mod finding;
mod firewall;
mod host;
mod judge;
mod process;
mod program;

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use ferroce_ipc::DeviceInfo;

use self::finding::{Finding, Severity};
use crate::args::Style;
use crate::{rows, run};

/// Examines the host, a program or a process and prints the findings; fails if one is an error, or with
/// `strict` a warning.
pub fn run(program: Option<&Path>, pid: Option<u32>, strict: bool, style: Style) -> Result<ExitCode> {
    let findings = match (program, pid) {
        (_, Some(pid)) => process::judge(pid),
        (None, None) => judge::all(&host::gather()),
        (Some(program), None) => program::judge(program, &run::library_dir()?),
    };
    rows::write_text(&shown(&findings, style)?)?;
    Ok(if fails(&findings, strict) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn fails(findings: &[Finding], strict: bool) -> bool {
    let worst = if strict { Severity::Warning } else { Severity::Error };
    findings.iter().any(|finding| finding.state >= worst)
}

/// Others hold the port, so that RoCE does not work on some addresses or on all.
pub struct TakenPort {
    /// The sentence that names the holders.
    pub held: String,
    host: host::Host,
}

impl TakenPort {
    /// Looks for other holders, if a device of RoCE is shown, and says on standard error what to do about
    /// them.
    pub fn find(devices: &[(u32, &DeviceInfo)]) -> Option<Self> {
        if devices.iter().all(|(_, device)| device.is_iwarp()) {
            return None;
        }
        let host = host::of_port();
        let finding = Some(judge::port(&host)).filter(|finding| finding.state == Severity::Error)?;
        eprintln!("ferroce: {}; RoCE does not work: {}", finding.found, finding.cure.unwrap_or_default());
        Some(Self { held: finding.found, host })
    }

    /// How many of a device's addresses have their port taken: none, some, or all. iWARP needs no port.
    pub fn of(&self, device: &DeviceInfo) -> Taken {
        if device.is_iwarp() { Taken::None } else { self.on(&device.netdev) }
    }

    fn on(&self, netdev: &str) -> Taken {
        let Some(netdev) = self.host.netdevs.get(netdev) else { return Taken::None };
        let taken = |address: &&IpAddr| self.host.port.iter().any(|holder| holder.covers(**address));
        match netdev.addresses.iter().filter(taken).count() {
            0 => Taken::None,
            count if count == netdev.addresses.len() => Taken::All,
            _ => Taken::Some,
        }
    }
}

/// See [`TakenPort::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    None,
    Some,
    All,
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
    fn a_taken_port_is_that_of_some_addresses() {
        let on = |holder: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let netdev = host::Netdev { addresses, ..Default::default() };
            let port =
                vec![host::Holder { address: holder.parse().unwrap(), uid: 0, kernel: false, process: None }];
            let host = host::Host { netdevs: [("lo".to_owned(), netdev)].into(), port, ..Default::default() };
            TakenPort { held: String::new(), host }.on("lo")
        };
        assert_eq!(on("0.0.0.0", &["127.0.0.1", "::1"]), Taken::Some);
        assert_eq!(on("::", &["127.0.0.1", "::1"]), Taken::All);
        assert_eq!(on("127.0.0.1", &["127.0.0.1"]), Taken::All);
        assert_eq!(on("10.0.0.1", &["127.0.0.1", "::1"]), Taken::None);
        assert_eq!(on("0.0.0.0", &[]), Taken::None);
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
