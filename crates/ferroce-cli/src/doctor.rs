//! `ferroce doctor`: finds what keeps programs on this host or in this container from RoCE, and how to
//! correct it; of a program, the libraries that it will load; of a running process, those that it has; of
//! another host, why it does not answer.
//!
//! `ferroce doctor` changes nothing, and starts nothing but a broker that asks another host. [`host`] gathers
//! the facts; [`judge`] derives the findings from them alone.

mod firewall;
mod host;
mod judge;
mod process;
mod program;

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use ferroce_ipc::DeviceInfo;

use crate::args::Style;
use crate::finding::{self, Finding, Severity};
use crate::{ping, run};

/// Examines this host, a program, a process or another host, and prints the findings; fails if one is an
/// error, or with `strict` a warning.
pub fn run(program: Option<&Path>, pid: Option<u32>, strict: bool, style: Style) -> Result<ExitCode> {
    let findings = match (program, pid) {
        (_, Some(pid)) => process::judge(pid),
        (None, None) => judge::all(&host::gather()),
        (Some(program), None) => match host_named(program) {
            Some(host) => way_to(host)?,
            None => program::judge(program, &run::library_dir()?),
        },
    };
    finding::print(&findings, strict, style)
}

/// The argument as a host, if it is an address, or no program or file but a name that has an address.
fn host_named(word: &Path) -> Option<&str> {
    // Resolvers take a number for an address, but it is rather that of a process.
    let is_number = |word: &str| word.bytes().all(|octet| octet.is_ascii_digit());
    let word = word.to_str().filter(|word| !word.contains('/') && !is_number(word))?;
    let is_address = word.parse::<IpAddr>().is_ok();
    let is_name = || crate::program::find(Path::new(word)).is_none() && (word, 0).to_socket_addrs().is_ok();
    (!Path::new(word).exists() && (is_address || is_name())).then_some(word)
}

/// The findings about this host that are not in order, then those about the way to another one.
fn way_to(host: &str) -> Result<Vec<Finding>> {
    let mut findings = judge::all(&host::gather());
    findings.retain(|finding| finding.state > Severity::Ok);
    findings.extend(ping::examine(host)?);
    Ok(findings)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_name_that_no_program_has() {
        for (word, is_host) in [
            ("192.0.2.1", true),
            ("::1", true),
            ("localhost", true),
            ("4711", false),
            ("sh", false),
            ("/bin/sh", false),
            ("./localhost", false),
        ] {
            assert_eq!(host_named(Path::new(word)).is_some(), is_host, "{word}");
        }
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
}
